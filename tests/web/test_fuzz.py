"""A short run of the fuzzer; `make torture` has a long one."""

import asyncio
import random

import pytest

from tests.web import fuzz
from tests.web.fuzz import Difference, Read, Server, by_h11, by_wsproto, compare

CASES = 3_000


@pytest.mark.parametrize("seed", [20_261, None])
def test_other_readers_read_the_same(seed: int | None) -> None:
    """One seed that is always the same, and one that is new; the message names it."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print(f"fuzzing the web readers: seed {seed}")
    asyncio.run(fuzz.run(seed, lambda number: number < CASES))


def test_all_the_traffic_before_its_mutation_is_read() -> None:
    async def story() -> None:
        server = Server()
        for whole in fuzz.REQUESTS:
            ours, answered = await server.read([whole])
            assert len(ours) == 1
            assert answered == [200]
            compare(whole, ours, answered)

    asyncio.run(story())
    for whole in fuzz.FRAMES:
        assert by_wsproto([whole])[0] or whole[0] & 0x08


def test_a_difference_is_noticed() -> None:
    whole = fuzz.REQUESTS[0]
    (theirs,), why = by_h11(whole)
    assert why == "the end"
    for ours, answered in (
        ([], [400]),
        ([theirs, theirs], [200, 200]),
        ([theirs._replace(target=b"/other")], [200]),
        ([theirs._replace(body=b"more")], [200]),
        ([theirs], [500]),
    ):
        with pytest.raises(Difference):
            compare(whole, ours, answered)


def test_what_we_refuse_for_a_reason_is_no_difference() -> None:
    whole = b"BREW /a HTTP/1.1\r\nHost: x\r\n\r\n"
    assert by_h11(whole)[0] == [Read("BREW", b"/a", {b"host": b"x"}, b"")]
    compare(whole, [], [400])

"""The bytes of external payloads on disk."""

import asyncio

import pytest

from perdure.store.interface import (
    Changes,
    Conflict,
    PayloadFate,
    PayloadKey,
    PayloadPut,
    Record,
    RecordChange,
    RecordKey,
    Store,
)
from tests.store.building import a_run
from tests.store.keeping import Keep
from tests.store.nodes import nodes, nothing_written

KEY = PayloadKey("default", "ep_1")
OTHER = PayloadKey("other", "ep_1")
LARGE = b"A" * 3_000_000


def put(keep: Keep, store: Store, **payloads: PayloadPut | PayloadFate) -> None:
    keys = {"first": KEY, "other": OTHER}
    changes = Changes(payloads={keys[name]: fate for name, fate in payloads.items()})
    assert not changes.is_empty
    keep.run(store.commit(changes))


def test_bytes_are_found_again_by_namespace_and_id(keep: Keep) -> None:
    with keep.opened() as store:
        assert keep.run(store.read_payload(KEY)) is None
        put(keep, store, first=PayloadPut(LARGE, is_loose=True))
        put(keep, store, other=PayloadPut(b"", is_loose=False))
    with keep.opened() as store:
        assert keep.run(store.read_payload(KEY)) == LARGE
        assert keep.run(store.read_payload(OTHER)) == b""


def test_what_is_loose_is_counted_until_it_is_kept_or_gone(keep: Keep) -> None:
    with keep.opened() as store:
        assert keep.run(store.read_loose_payloads()) == (0, 0)
        put(keep, store, first=PayloadPut(b"12345", is_loose=True))
        put(keep, store, other=PayloadPut(b"123", is_loose=True))
        assert keep.run(store.read_loose_payloads()) == (2, 8)
        put(keep, store, first=PayloadFate.KEPT)
        assert keep.run(store.read_loose_payloads()) == (1, 3)
        put(keep, store, other=PayloadFate.GONE)
        assert keep.run(store.read_loose_payloads()) == (0, 0)
        assert keep.run(store.read_payload(KEY)) == b"12345"
        assert keep.run(store.read_payload(OTHER)) is None


def test_what_was_gone_may_come_again(keep: Keep) -> None:
    with keep.opened() as store:
        put(keep, store, first=PayloadPut(b"one", is_loose=True))
        put(keep, store, first=PayloadFate.GONE)
        put(keep, store, first=PayloadPut(b"two", is_loose=False))
        assert keep.run(store.read_payload(KEY)) == b"two"
        put(keep, store, first=PayloadPut(b"three", is_loose=True))
        assert keep.run(store.read_payload(KEY)) == b"three"


@pytest.mark.parametrize("first", ["named", "forgotten"])
def test_of_naming_and_forgetting_on_two_nodes_one_is_done(migrated_url: str, first: str) -> None:
    """Who comes second has decided on a record that is not there any more in that form."""
    name = RecordKey("payload", "default", "ep_1")

    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            loose = Changes(
                records={name: RecordChange(None, Record(b"loose", 9))},
                payloads={KEY: PayloadPut(b"bytes", is_loose=True)},
            )
            await one.commit(loose)
            seen = (await one.find_records([name]))[name]
            naming = Changes(
                runs=[a_run()],
                records={name: RecordChange(seen, Record(b"kept"))},
                payloads={KEY: PayloadFate.KEPT},
            )
            forgetting = Changes(
                records={name: RecordChange(seen, Record(b"gone", 99))},
                payloads={KEY: PayloadFate.GONE},
            )
            winner, loser = (naming, forgetting) if first == "named" else (forgetting, naming)
            await one.commit(winner)
            async with nothing_written(migrated_url):
                with pytest.raises(Conflict):
                    await two.commit(loser)
            expected = b"bytes" if first == "named" else None
            assert await two.read_payload(KEY) == expected

    asyncio.run(story())

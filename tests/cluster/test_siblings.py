"""Sockets between the processes of one supervisor: whole messages in order, or none."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.cluster.local_sockets import Family, LocalSockets, families, family_of, socket_pairs

PATIENCE = 90.0


class Process:
    """One end of it."""

    def __init__(self, share: Family, node: str) -> None:
        mouths = {slot: os.dup(mouth) for slot, mouth in share.mouths.items()}
        self.siblings = LocalSockets(Family(share.slot, os.dup(share.ear), mouths), node)
        self.heard: list[bytes] = []
        self.gone: list[str] = []
        self._loop: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._loop = asyncio.ensure_future(self.siblings.run(self.heard.append, self.gone.append))

    async def end(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})
        self.siblings.close()


@asynccontextmanager
async def shares(count: int) -> AsyncIterator[list[Family]]:
    pairs = socket_pairs(count)
    try:
        yield families(pairs)
    finally:
        for end in itertools.chain(*pairs):
            end.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (nobody would tell us)
            await asyncio.sleep(0)


def test_processes_find_each_other_and_talk() -> None:
    async def story() -> None:
        async with shares(3) as inherited:
            processes = [Process(share, f"node {share.slot}") for share in inherited]
            for process in processes:
                process.begin()
            for process, other in itertools.permutations(processes, 2):
                name = f"node {processes.index(other)}"
                await until(lambda p=process, n=name: p.siblings.knows(n))
            assert not processes[0].siblings.knows("node 0")
            for number in range(100):
                assert processes[0].siblings.send("node 1", b"%d" % number)
            await until(lambda: len(processes[1].heard) == 100)
            assert processes[1].heard == [b"%d" % number for number in range(100)]
            assert processes[2].heard == []
            assert not processes[0].siblings.send("nobody", b"x")
            for process in processes:
                await process.end()

    asyncio.run(story())


def test_one_that_follows_another_in_its_place_gets_none_of_its_messages() -> None:
    async def story() -> None:
        async with shares(2) as inherited:
            one, two = (Process(share, f"node {share.slot}") for share in inherited)
            one.begin()
            two.begin()
            await until(lambda: one.siblings.knows("node 1"))
            await two.end()
            assert one.siblings.send("node 1", b"for the dead")
            heir = Process(inherited[1], "heir")
            heir.begin()
            await until(lambda: one.siblings.knows("heir"))
            assert one.gone == ["node 1"]
            assert not one.siblings.knows("node 1")
            assert one.siblings.send("heir", b"hello")
            await until(lambda: bool(heir.heard))
            assert heir.heard == [b"hello"]
            await one.end()
            await heir.end()

    asyncio.run(story())


def test_what_does_not_fit_is_not_sent() -> None:
    async def story() -> None:
        async with shares(2) as inherited:
            one, two = (Process(share, f"node {share.slot}") for share in inherited)
            one.begin()
            two.begin()
            await until(lambda: one.siblings.knows("node 1"))
            assert not one.siblings.send("node 1", b"x" * 1_000_000)
            await two.end()
            sent = [one.siblings.send("node 1", b"x" * 10_000) for _ in range(1_000)]
            assert sent[0]
            assert not sent[-1], "nobody reads, so there is no room in the end"
            await one.end()

    asyncio.run(story())


def test_nonsense_is_left_alone() -> None:
    async def story() -> None:
        async with shares(2) as inherited:
            one, two = (Process(share, f"node {share.slot}") for share in inherited)
            one.begin()
            two.begin()
            await until(lambda: one.siblings.knows("node 1"))
            for nonsense in (b"", b"\xc1", b"\x93\x01", b"\x94\x63\xa1a\xa0\xc4\x00"):
                one.siblings._mouths[1].send(nonsense)
            assert one.siblings.send("node 1", b"sense")
            await until(lambda: bool(two.heard))
            assert two.heard == [b"sense"]
            await one.end()
            await two.end()

    asyncio.run(story())


def test_a_share_can_be_told_on_a_command_line() -> None:
    share = Family(1, 7, {0: 8, 2: 9})
    assert str(share) == "1:7,0:8,2:9"
    assert family_of(str(share)) == share
    assert share.descriptors == (7, 8, 9)
    for nonsense in ("", "1", "a:b", "1:2:3"):
        with pytest.raises(ValueError, match=r"."):
            family_of(nonsense)

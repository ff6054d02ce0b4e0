"""Several servers on one PostgreSQL in this process, each without its socket.

What nodes tell each other can be cut off, or doubled and mixed up; then a test says when they look
for themselves.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec

from perdure.clock import Clock, FollowingClock, SystemClock
from perdure.cluster.local_sockets import Family, families, socket_pairs
from perdure.cluster.refresh import ClusterRefresh
from perdure.core.run.state import Run
from perdure.dispatch.polls import Poll, PollAnswer
from perdure.engine.beat import Engine
from perdure.server.assemble import Server
from perdure.server.settings import Settings
from perdure.store.interface import Changes, Conflict
from perdure.store.postgres.hints import HintChannel
from perdure.store.postgres.store import PostgresStore
from tests.engine.engine_harness import NAMESPACE, PATIENCE, QUEUE, Stage
from tests.support.clock import SECOND


class Skewed:
    """The clock of a machine that nobody sets right."""

    def __init__(self, *, seconds: float) -> None:
        self._own = SystemClock()
        self._wrong = round(seconds * SECOND)

    def set_ahead(self, *, seconds: float) -> None:
        self._wrong = round(seconds * SECOND)

    def now(self) -> int:
        return self._own.now() + self._wrong

    async def sleep(self, delay_us: int) -> None:
        await self._own.sleep(delay_us)


class LosingStore(PostgresStore):
    """Loses some of its races, before it has looked or after it has decided."""

    def __init__(self, url: str, *, node_id: str, clock: Clock, die: Random, odds: float) -> None:
        super().__init__(url, node_id=node_id, clock=clock)
        self._die = die
        self.odds = odds
        self.lost = 0

    def _strike(self) -> None:
        if self._die.random() < self.odds:
            self.lost += 1
            raise Conflict("injected")

    async def load_runs(
        self, run_ids: Collection[str], held: Mapping[str, Run] = MappingProxyType({})
    ) -> list[Run]:
        self._strike()
        return await super().load_runs(run_ids, held)

    async def commit(self, changes: Changes) -> None:
        self._strike()
        await super().commit(changes)


class Garbling(HintChannel):
    """Delivers every hint twice, the later one first, and the first one late."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._earlier: str | None = None
        self.sent = 0

    async def send(self, text: str) -> None:
        earlier, self._earlier = self._earlier, text
        for each in (text, earlier, text):
            if each is not None:
                await super().send(each)
                self.sent += 1


class Node(Stage):
    """One of several servers."""

    def __init__(self, url: str, server: Server) -> None:
        self.url = url
        self.server = server

    @property
    def engine(self) -> Engine:
        return self.server.engine

    @property
    def lookout(self) -> ClusterRefresh:
        assert self.server.cluster is not None
        return self.server.cluster.lookout

    async def look(self) -> None:
        """See what others did."""
        await asyncio.wait_for(self.lookout.look(), PATIENCE)

    async def poll_as(
        self, poll_id: str | None, kind: str = "workflow", worker_id: str = "w1", *, seconds: float
    ) -> PollAnswer:
        """A poll that can be repeated."""
        poll = Poll(
            namespace=NAMESPACE,
            worker_id=worker_id,
            queue=QUEUE,
            kind=kind,
            timeout=round(seconds * SECOND),
            request_id=poll_id,
            page_size=500,
        )
        return await self.server.polling.poll(poll, lambda gone: None)

    async def events(self, run_id: str) -> list[dict[str, Any]]:
        found = await self.server.store.read_history(run_id, 0, 9999)
        return [msgspec.json.decode(event) for event in found]


@asynccontextmanager
async def a_node(
    url: str,
    *,
    clock: Clock | None = None,
    hints: str = "live",
    looks: bool = False,
    die: Random | None = None,
    odds: float = 0.1,
    family: Family | None = None,
    **chosen: Any,
) -> AsyncIterator[Node]:
    """A node that beats. Hints are `live`, `garbled` or `off`; it looks around if it is told to."""
    clock = clock or FollowingClock(SystemClock())
    settings = Settings(store=url, auth_driver="none", **chosen)
    store = None
    if die is not None:
        name = f"losing {die.random()}"
        store = LosingStore(url, node_id=name, clock=clock, die=die, odds=0)
    server = Server(settings, store=store, clock=clock, family=family)
    assert server.cluster is not None
    if hints != "live":
        server.cluster.wire = Garbling(url) if hints == "garbled" else None
    node = Node(url, server)
    await server.open()
    if store is not None:
        store.odds = odds
    try:
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(server.engine.run(), name="beat")
            loops = []
            for name, work in server.loops():
                if name == "lookout" and not looks:
                    work.close()
                else:
                    loops.append(group.create_task(work, name=name))
            if server.cluster.wire is not None:
                await node.until(lambda: heard(server))
            yield node
            server.drain()
            for loop in loops:
                loop.cancel()
            server.engine.stop()
            await beat
    finally:
        await server.close()


def heard(server: Server) -> bool:
    """Whether a server hears what others say."""
    assert server.cluster is not None
    wire = server.cluster.wire
    return wire is not None and wire._line.is_open


@asynccontextmanager
async def several(
    url: str, count: int = 2, *, near: bool = False, **options: Any
) -> AsyncIterator[list[Node]]:
    """Some nodes that are all alike; if they are near, with sockets between them."""
    async with AsyncExitStack() as stack:
        shares: list[Family | None] = [None] * count
        if near:
            pairs = socket_pairs(count)
            shares = [_own(share) for share in families(pairs)]
            for end in itertools.chain(*pairs):
                end.close()
        yield [
            await stack.enter_async_context(a_node(url, family=share, **options))
            for share in shares
        ]


def _own(share: Family) -> Family:
    """What a process inherits is its own."""
    mouths = {slot: os.dup(mouth) for slot, mouth in share.mouths.items()}
    return Family(share.slot, os.dup(share.ear), mouths)

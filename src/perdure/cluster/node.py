"""One node of a cluster: its hints, its shared polls, its messages, and its periodic refresh."""

from collections.abc import Coroutine
from typing import Any

from perdure.clock import Clock, FollowingClock
from perdure.cluster.hints import Hints
from perdure.cluster.local_sockets import LocalSockets
from perdure.cluster.poll_borrower import Borrower
from perdure.cluster.poll_lender import Lender
from perdure.cluster.push_statuses import Statuses
from perdure.cluster.refresh import ClusterRefresh
from perdure.cluster.remote_queries import QueryPost
from perdure.cluster.transport import NodeTransport
from perdure.dispatch.parked_polls import ParkedPolls
from perdure.dispatch.polls import Polling
from perdure.dispatch.query_broker import QueryBroker
from perdure.dispatch.run_watchers import RunWatchers
from perdure.dispatch.stream_readers import StreamReaders
from perdure.dispatch.task_waiters import TaskWaiterSet
from perdure.dispatch.update_waiters import UpdateWaiters
from perdure.engine.beat import Engine
from perdure.store.interface import SharedStore
from perdure.store.postgres.hints import HintChannel
from perdure.store.postgres.node_channel import NodeChannel


class ClusterNode:
    """The parts of a server that only a node among others has."""

    def __init__(
        self,
        *,
        node_id: str,
        clock: Clock,
        store: SharedStore,
        wire: HintChannel | None,
        parcels: NodeChannel | None,
        parked_polls: ParkedPolls,
        task_waiters: TaskWaiterSet,
        watchers: RunWatchers,
        update_waiters: UpdateWaiters,
        siblings: LocalSockets | None = None,
    ) -> None:
        self._node_id = node_id
        self._parked_polls = parked_polls
        self.siblings = siblings
        self.errands = NodeTransport(node_id)
        self.errands.near = siblings
        self.wire = wire
        self.parcels = parcels
        self.hints = Hints(
            node_id=node_id,
            clock=clock,
            parked_polls=task_waiters,
            watchers=watchers,
            update_waiters=update_waiters,
            refresh_worker=self._refresh_worker,
            refresh_rollouts=self._refresh_rollouts,
        )
        # Where hints are not heard, queries stay with the polls of their own node.
        self.post: QueryPost | None = None
        if parcels is not None:
            self.post = QueryPost(node_id, parcels, self.hints.asked)
            self.post.on_errand = self.errands.heard
        self._clock = clock
        self._store = store
        self._watchers = watchers
        self._engine: Engine
        self.lookout: ClusterRefresh
        self.lender: Lender
        self.borrower: Borrower

    def connect(self, engine: Engine, polling: Polling) -> None:
        """Say whom all this is for."""
        self._engine = engine
        self.lookout = ClusterRefresh(self._store, self._clock, engine, polling, self._watchers)
        self.lender = Lender(self._node_id, self._clock, self._parked_polls, engine, self.errands)
        self.lookout.lender = self.lender
        self.borrower = Borrower(self._node_id, self._clock, engine, self.errands)
        self.errands.connect(self.lender, self.borrower)
        self.hints.on_wanted = self.lender.wanted_by
        self._parked_polls.others = self.borrower

    def connect_query_broker(self, query_broker: QueryBroker) -> None:
        """Say who hears of the queries of others."""
        if self.post is not None:
            self.post.connect(query_broker)
            self.hints.on_query = query_broker.announced

    def connect_stream_readers(self, stream_readers: StreamReaders) -> None:
        """Say who waits at streams that others may write to."""
        stream_readers.connect(self.hints.watching)
        self.hints.on_changed = stream_readers.changed
        self.lookout.stream_readers = stream_readers

    def connect_statuses(self, statuses: Statuses) -> None:
        """Say who wants to know what becomes of push runs elsewhere."""
        statuses.connect(self.hints)
        self.lookout.statuses = statuses

    async def open(self) -> None:
        """Agree with the others what time it is."""
        if isinstance(self._clock, FollowingClock):
            others = await self._store.read_latest_life()
            await self._clock.follow(self._store.read_clock, others=others)
            await self._store.note_life()

    async def _refresh_worker(self, key: tuple[str, str]) -> None:
        await self._engine.refresh_worker(key)

    async def _refresh_rollouts(self) -> None:
        await self._engine.refresh_rollouts()

    def loops(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """What runs for as long as the server lives."""
        self.lookout.hears = self.wire is not None
        loops = [("lookout", self.lookout.run())]
        if self.wire is not None:
            loops.append(("hints", self.hints.run(self.wire)))
            loops.append(("wire", self.wire.run(self.hints.heard, self.lookout.look_soon)))
        if self.parcels is not None and self.post is not None:
            loops.append(("post", self.post.run()))
            loops.append(("parcels", self.parcels.run(self.post.heard)))
            loops.append(("errands", self.errands.run(self.parcels)))
        if self.siblings is not None:
            siblings = self.siblings.run(self.errands.heard, self.errands.gone)
            loops.append(("siblings", siblings))
        return loops

    async def close(self) -> None:
        if self.wire is not None:
            await self.wire.close()
        if self.parcels is not None:
            await self.parcels.close()
        if self.siblings is not None:
            self.siblings.close()

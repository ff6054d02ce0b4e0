"""What a node does because there are others: it tells, it hears, and now and then it looks."""

from collections.abc import Coroutine
from typing import Any

from perdure.clock import Clock, FollowingClock
from perdure.dispatch.borrowing import Borrower
from perdure.dispatch.courier import ErrandPost
from perdure.dispatch.hints import Hints
from perdure.dispatch.lending import Lender
from perdure.dispatch.lookout import Lookout
from perdure.dispatch.pollers import PollerYard
from perdure.dispatch.polling import Polling
from perdure.dispatch.queries import QueryDesk
from perdure.dispatch.query_post import QueryPost
from perdure.dispatch.statuses import Statuses
from perdure.dispatch.tailing import Tails
from perdure.dispatch.updating import UpdateWaiters
from perdure.dispatch.watching import Watchers
from perdure.dispatch.yards import Yard
from perdure.engine.beat import Engine
from perdure.server.siblings import Siblings
from perdure.store.interface import SharedStore
from perdure.store.postgres.hints import HintWire
from perdure.store.postgres.parcels import ParcelWire


class Neighbours:
    """The parts of a server that only a node among others has."""

    def __init__(
        self,
        *,
        node_id: str,
        clock: Clock,
        store: SharedStore,
        wire: HintWire | None,
        parcels: ParcelWire | None,
        yard: PollerYard,
        yards: Yard,
        watchers: Watchers,
        update_waiters: UpdateWaiters,
        siblings: Siblings | None = None,
    ) -> None:
        self._node_id = node_id
        self._yard = yard
        self.siblings = siblings
        self.errands = ErrandPost(node_id)
        self.errands.near = siblings
        self.wire = wire
        self.parcels = parcels
        self.hints = Hints(
            node_id=node_id,
            clock=clock,
            yard=yards,
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
        self.lookout: Lookout
        self.lender: Lender
        self.borrower: Borrower

    def connect(self, engine: Engine, polling: Polling) -> None:
        """Say whom all this is for."""
        self._engine = engine
        self.lookout = Lookout(self._store, self._clock, engine, polling, self._watchers)
        self.lender = Lender(self._node_id, self._clock, self._yard, engine, self.errands)
        self.lookout.lender = self.lender
        self.borrower = Borrower(self._node_id, self._clock, engine, self.errands)
        self.errands.connect(self.lender, self.borrower)
        self.hints.on_wanted = self.lender.wanted_by
        self._yard.others = self.borrower

    def connect_desk(self, desk: QueryDesk) -> None:
        """Say who hears of the queries of others."""
        if self.post is not None:
            self.post.connect(desk)
            self.hints.on_query = desk.announced

    def connect_tails(self, tails: Tails) -> None:
        """Say who waits at streams that others may write to."""
        tails.connect(self.hints.watching)
        self.hints.on_changed = tails.changed
        self.lookout.tails = tails

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

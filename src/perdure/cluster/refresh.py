"""The periodic look at what other nodes have changed. It makes a lost hint cost only time."""

import asyncio
import logging

from perdure.clock import SLOWED_BY, Clock, FollowingClock
from perdure.cluster.poll_lender import Lender
from perdure.cluster.push_statuses import Statuses
from perdure.core.limits import SECOND
from perdure.dispatch.polls import Polling
from perdure.dispatch.run_watchers import RunWatchers
from perdure.dispatch.stream_readers import StreamReaders
from perdure.engine.beat import Engine
from perdure.identity import jitter
from perdure.store.interface import SharedStore, Unavailable

log = logging.getLogger(__name__)

INTERVAL = 5 * SECOND
_SKEW = 10 * SECOND
"""How far back registrations are looked at again: a slow commit may come late."""
_LIFE_EVERY = 4
_CLOCK_EVERY = 12
_CLOCK_TOLD = SECOND
"""A correction of the clock that is worth a word."""
_ROOM_EVERY = 720
_ROLLOUTS_EVERY = 4
"""How often what is wanted of builds is looked at by who hears of it: a statement in 20 seconds."""


class ClusterRefresh:
    """The slow loop of a node among others."""

    def __init__(
        self,
        store: SharedStore,
        clock: Clock,
        engine: Engine,
        polling: Polling,
        watchers: RunWatchers,
    ) -> None:
        self._store = store
        self._clock = clock
        self._engine = engine
        self._polling = polling
        self._watchers = watchers
        self.lender: Lender | None = None
        self.stream_readers: StreamReaders | None = None
        self.statuses: Statuses | None = None
        self._versions: dict[str, int] = {}
        self._looked_at = 0
        self._looks = 0
        self._now = asyncio.Event()
        # Whether others can tell us anything, and whether something that they told may be lost.
        self.hears = True
        self._missed = False

    def look_soon(self) -> None:
        """Hints may have been lost: do not wait for the next time."""
        self._missed = True
        self._now.set()

    async def run(self) -> None:
        """Look for as long as the server lives."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                log.warning("cluster refresh failed, retrying in 5 s: %s", error.message)
            except Exception:
                log.exception("cluster refresh failed; retrying in 5 s")
            await self._pause()

    async def look(self) -> None:
        """Once at everything that a hint may have been about."""
        since, self._looked_at = self._looked_at - _SKEW, self._clock.now()
        await self._engine.offer_ready_tasks()
        self._engine.take_in(await self._store.load_changed_workers(since))
        if self._missed or not self.hears or self._looks % _ROLLOUTS_EVERY == 0:
            self._missed = False
            await self._engine.refresh_rollouts()
        await self._polling.recover(self._store)
        if self.lender is not None:
            await self.lender.recover(self._store)
        await self._look_at_watched()
        await self._look_at_streams()
        if self.statuses is not None:
            await self.statuses.look(self._clock.now())
        self._looks += 1
        if self._looks % _LIFE_EVERY == 0:
            await self._store.note_life()
        if self._looks % _CLOCK_EVERY == 0 and isinstance(self._clock, FollowingClock):
            await self._follow_clock(self._clock)
        if self._looks % _ROOM_EVERY == 0:
            await self._store.reopen_before_message()

    async def _follow_clock(self, clock: FollowingClock) -> None:
        """Go by the clock of the database, and report when it was set."""
        before = clock.ahead_us
        wrong = await clock.follow(self._store.read_clock)
        ahead = clock.ahead_us
        if ahead > before + _CLOCK_TOLD:
            log.warning(
                "the database's clock went back: this node is %.1f s ahead of it and goes on at "
                "nine tenths of its rate until they agree, in about %.0f s",
                ahead / SECOND,
                ahead * SLOWED_BY / SECOND,
            )
        elif wrong > _CLOCK_TOLD:
            log.warning(
                "the database's clock is %.1f s ahead of this node, which follows at once",
                wrong / SECOND,
            )
        elif before and not ahead:
            log.info("this node and the database agree what time it is again")

    async def _look_at_watched(self) -> None:
        watched = self._watchers.watched
        if not watched:
            self._versions.clear()
            return
        found = dict(await self._store.read_versions(watched))
        for run_id, version in found.items():
            # Whoever came since the last look may have missed something as well.
            if self._versions.get(run_id) != version:
                self._watchers.changed(run_id)
        self._versions = found

    async def _look_at_streams(self) -> None:
        if self.stream_readers is None or not (watched := self.stream_readers.watched):
            return
        for key, version in (await self._store.read_record_versions(watched)).items():
            self.stream_readers.found(key, version)

    async def _pause(self) -> None:
        self._now.clear()
        timer = asyncio.ensure_future(self._clock.sleep(INTERVAL - SECOND // 4 + jitter(SECOND)))
        called = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait({timer, called}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            called.cancel()

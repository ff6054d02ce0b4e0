"""Whether the store can be used: found out again and again while it cannot, and told at once.

Routes ask here and never wait long. Polls are refused while nothing can be leased. The log has a
line when trouble begins, every ten minutes while it lasts, and when it ends.
"""

import asyncio
import logging
from collections.abc import Callable

from perdure.clock import Clock
from perdure.core.limits import SECOND
from perdure.store.interface import Store, Unavailable

log = logging.getLogger(__name__)

INTERVAL = 2 * SECOND
"""How often the store is checked; one that nobody shares only while it is in trouble."""
GRACE = 2 * SECOND
"""Trouble that is over sooner is not told to polls: a database that restarts costs nothing."""
REMINDER = 600 * SECOND
FLAPPING = 60 * SECOND
"""Trouble that comes back sooner with the same reason is not logged anew."""
CHECK_SECONDS = 5.0
"""A store that has not answered a check by then counts as away."""
ANSWER_SECONDS = 2.0
"""How long a route waits for the answer of a check."""


class StoreWatch:
    """The slow loop that checks the store, and what routes ask."""

    def __init__(self, store: Store, clock: Clock, on_outage: Callable[[], None]) -> None:
        self._store = store
        self._health = store.health
        self._clock = clock
        self._on_outage = on_outage
        self._checking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._began_at: int | None = None
        self._logged_at: int | None = None
        self._logged_reason = ""
        self._is_logged = False
        self._health.on_change(self._changed.set)

    @property
    def known_trouble(self) -> Unavailable | None:
        """Why the store cannot be used, as far as it is known."""
        return self._health.trouble

    async def trouble(self) -> Unavailable | None:
        """Why the store cannot be used. Known trouble is told at once, and looked into."""
        checking = self._check()
        if self._health.trouble is None:
            await asyncio.wait({checking}, timeout=ANSWER_SECONDS)
            if not checking.done():
                return Unavailable("storage_unavailable", "the store does not answer")
        return self._health.trouble

    async def run(self) -> None:
        """Watch for as long as the server lives."""
        while True:
            try:
                await self._pause()
                await self.look()
            except Exception:
                log.exception(
                    "the watch of the store failed; it goes on in %d s", INTERVAL // SECOND
                )
                await self._clock.sleep(INTERVAL)

    async def look(self) -> None:
        """Check once, and tell what is new."""
        self._changed.clear()
        self._tell()
        if self._store.is_shared or self._health.trouble is not None:
            await asyncio.wait({self._check()})
        self._tell()

    def _check(self) -> "asyncio.Task[None]":
        """The check that is under way. Whoever asks meanwhile shares it."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._ask(), name="store check")
        return self._checking

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._store.check()
        except TimeoutError:
            told = f"the store has not answered for {CHECK_SECONDS:.0f} s"
            self._health.failed(Unavailable("storage_unavailable", told, 1))
        except Unavailable as error:
            self._health.failed(error)
        except Exception as error:
            log.exception("the check of the store failed")
            self._health.failed(Unavailable("storage_error", f"the check failed: {error}", 2))

    def _tell(self) -> None:
        now, trouble = self._clock.now(), self._health.trouble
        if trouble is None:
            self._ended(now)
            return
        if self._began_at is None:
            self._began_at = now
        self._log(now, trouble)
        if not self._health.is_outage and now - self._began_at >= GRACE:
            self._health.is_outage = True
            self._on_outage()

    def _log(self, now: int, trouble: Unavailable) -> None:
        # A store that fails and works by turns is not logged by turns.
        pause = REMINDER if self._is_logged else FLAPPING
        is_known = self._logged_reason == trouble.reason and self._logged_at is not None
        if is_known and now - (self._logged_at or 0) < pause:
            return
        self._is_logged = True
        self._logged_at, self._logged_reason = now, trouble.reason
        log.error(
            "the store cannot be used (%s: %s); changes are refused with 503 and it is checked "
            "every %d s",
            trouble.reason,
            trouble.message,
            INTERVAL // SECOND,
        )

    def _ended(self, now: int) -> None:
        if self._began_at is None:
            return
        seconds = (now - self._began_at) // SECOND
        self._began_at = None
        if self._is_logged:
            self._is_logged = False
            log.warning("the store can be used again after %d s", seconds)

    async def _pause(self) -> None:
        timer = asyncio.ensure_future(self._clock.sleep(INTERVAL))
        called = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({timer, called}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            called.cancel()

    async def close(self) -> None:
        """Give up a check that is under way."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})

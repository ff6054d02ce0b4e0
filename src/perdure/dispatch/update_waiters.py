"""Clients who wait until an update has come as far as they asked.

A waiting client is one small object. It is woken by a hint when its update moves; it also looks by
itself now and then, because the hint may have been given elsewhere.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from perdure.core.limits import UPDATE_WAITERS_MAX
from perdure.core.rejection import LongPollCapacityExhausted
from perdure.core.run.state import Run


class News:
    """Whether an update has moved since somebody looked."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def tell(self) -> None:
        self._woken.set()

    def looked(self) -> None:
        self._woken.clear()

    async def wait(self, seconds: float) -> None:
        """Return when there is news, or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


class UpdateWaiters:
    """Wakes those who wait for an update when it was accepted, refused or answered."""

    def __init__(self) -> None:
        self.waiting: dict[str, dict[str, set[News]]] = {}
        self._count = 0
        self._on_watch: Callable[[str], None] = lambda run_id: None
        self.is_closed = False

    def connect(self, on_watch: Callable[[str], None]) -> None:
        """Say who wants to hear that somebody waits for a run."""
        self._on_watch = on_watch

    @property
    def count(self) -> int:
        return self._count

    def require_room(self) -> None:
        """Refuse before anything is accepted: nobody shall be told to wait and then not be let."""
        if self._count >= UPDATE_WAITERS_MAX:
            raise LongPollCapacityExhausted(f"{self._count} clients wait for updates already")

    @contextlib.contextmanager
    def expecting(self, run_id: str, update_id: str) -> Iterator[News]:
        """Hear of one update for as long as the block lasts."""
        news = News()
        of_run = self.waiting.setdefault(run_id, {})
        of_run.setdefault(update_id, set()).add(news)
        self._count += 1
        self._on_watch(run_id)
        try:
            yield news
        finally:
            self._count -= 1
            of_run[update_id].discard(news)
            if not of_run[update_id]:
                del of_run[update_id]
            if not of_run:
                del self.waiting[run_id]

    def changed(self, run: Run) -> None:
        """A run has changed: tell those whose update is among the last that moved."""
        waiting = self.waiting.get(run.run_id)
        if waiting is None:
            return
        if run.is_closed:
            moved = list(waiting)
        else:
            moved = [ended.update_id for ended in run.updates_ended]
            if run.update is not None:
                moved.append(run.update.update_id)
        for update_id in moved:
            for news in waiting.get(update_id, ()):
                news.tell()

    def changed_elsewhere(self, run_id: str) -> None:
        """Another node changed a run: everybody who waits for it looks."""
        for expecting in self.waiting.get(run_id, {}).values():
            for news in expecting:
                news.tell()

    def release_all(self) -> None:
        """The server is about to stop: everybody is told how far it has come."""
        self.is_closed = True
        for waiting in self.waiting.values():
            for expecting in waiting.values():
                for news in expecting:
                    news.tell()

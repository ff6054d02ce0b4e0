"""Readers who wait for news of a run."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from perdure.core.limits import HISTORY_WATCHERS_MAX
from perdure.core.rejection import LongPollCapacityExhausted


class RunWatch:
    """One reader. It looks, and waits if it found nothing new; nothing is missed in between."""

    __slots__ = ("_changed", "is_over")

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        # Whether there is nothing to wait for any more: the reader or the server goes.
        self.is_over = False

    def looks(self) -> None:
        """What changes from now on is news."""
        self._changed.clear()

    def wake(self) -> None:
        self._changed.set()

    def end(self) -> None:
        self.is_over = True
        self.wake()

    async def wait(self, seconds: float) -> bool:
        """Whether the run changes, or the watch is over, before the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
                return True
        return False


class RunWatchers:
    """Wakes everybody who waits for a run when it has changed."""

    def __init__(self) -> None:
        self.waiting: dict[str, set[RunWatch]] = {}
        self._count = 0
        self._is_closed = False
        self._on_watch: Callable[[str], None] = lambda run_id: None

    def connect(self, on_watch: Callable[[str], None]) -> None:
        """Say who wants to hear that somebody waits for a run."""
        self._on_watch = on_watch

    @property
    def watched(self) -> list[str]:
        """The runs that somebody waits for."""
        return list(self.waiting)

    @contextlib.contextmanager
    def watching(self, run_id: str) -> Iterator[RunWatch]:
        """Hear of a run for as long as the block lasts. Enter before reading."""
        if self._count >= HISTORY_WATCHERS_MAX:
            raise LongPollCapacityExhausted(f"{self._count} readers wait already")
        watch = RunWatch()
        watch.is_over = self._is_closed
        self.waiting.setdefault(run_id, set()).add(watch)
        self._count += 1
        self._on_watch(run_id)
        try:
            yield watch
        finally:
            self._count -= 1
            waiting = self.waiting[run_id]
            waiting.discard(watch)
            if not waiting:
                del self.waiting[run_id]

    def changed(self, run_id: str) -> None:
        for watch in self.waiting.get(run_id, ()):
            watch.wake()

    def release_all(self) -> None:
        """The server is about to stop: everybody reads what there is, now and from now on."""
        self._is_closed = True
        for waiting in self.waiting.values():
            for watch in waiting:
                watch.end()

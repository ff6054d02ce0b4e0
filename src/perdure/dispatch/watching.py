"""Readers who wait for news of a run."""

import asyncio
from collections.abc import Callable

from perdure.core.limits import HISTORY_WATCHERS_MAX
from perdure.core.rejection import LongPollCapacityExhausted


class Watchers:
    """Wakes everybody who waits for a run when it has changed."""

    def __init__(self) -> None:
        self.waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._on_watch: Callable[[str], None] = lambda run_id: None

    def connect(self, on_watch: Callable[[str], None]) -> None:
        """Say who wants to hear that somebody waits for a run."""
        self._on_watch = on_watch

    @property
    def watched(self) -> list[str]:
        """The runs that somebody waits for."""
        return list(self.waiting)

    async def wait(
        self,
        run_id: str,
        timeout_seconds: float,
        watch: Callable[[Callable[[], object]], None],
    ) -> None:
        """Return when the run has changed, the time is up, or the reader has left."""
        if self._count >= HISTORY_WATCHERS_MAX:
            raise LongPollCapacityExhausted(f"{self._count} readers wait already")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(run_id, set()).add(future)
        self._on_watch(run_id)
        self._count += 1

        def leave() -> None:
            if not future.done():
                future.set_result(None)

        timer = asyncio.get_running_loop().call_later(timeout_seconds, leave)
        watch(leave)
        try:
            await future
        finally:
            timer.cancel()
            self._count -= 1
            waiting = self.waiting.get(run_id)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self.waiting[run_id]

    def changed(self, run_id: str) -> None:
        for future in self.waiting.get(run_id, ()):
            if not future.done():
                future.set_result(None)

    def release_all(self) -> None:
        """The server is about to stop: everybody reads what there is."""
        for waiting in self.waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_result(None)

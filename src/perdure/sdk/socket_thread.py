"""A thread with an event loop of its own for a runner's socket.

Pings and heartbeats go on there, whatever blocks the event loop of the handlers.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

JOIN_SECONDS = 5.0

T = TypeVar("T")


class SocketThread:
    """The thread, as a context."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="perdure-socket", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        post(self._loop, self._loop.stop)
        self._thread.join(JOIN_SECONDS)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and return its result; cancelled here, it is cancelled there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Call something there, after all that was posted before."""
        post(self._loop, callback, *args)

    def _run(self) -> None:
        loop = self._loop
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(_all_ended(left))
        finally:
            loop.close()


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Call something in a loop of another thread, unless that loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


async def _all_ended(tasks: "set[asyncio.Task[Any]]") -> None:
    await asyncio.gather(*tasks, return_exceptions=True)

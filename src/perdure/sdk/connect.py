"""The Connect transport: the runner dials the engine and is invoked over that socket.

A `Connection` dials, registers, answers invokes and dials again whenever it loses the engine. It
ends gracefully: what runs may finish. The socket has a thread of its own, so that pings go on
whatever blocks the event loop of the handlers.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from perdure.sdk.channel import Ending, NoChannel
from perdure.sdk.clock import now_ms
from perdure.sdk.limits import GRACE_SECONDS
from perdure.sdk.link import LinkTerms
from perdure.sdk.loop_watchdog import LoopWatchdog
from perdure.sdk.offload import ResultStore
from perdure.sdk.registration import registration
from perdure.sdk.session import Session, Terms
from perdure.sdk.settings import resolve, resolve_seconds
from perdure.sdk.socket_thread import SocketThread
from perdure.sdk.wire import encode
from perdure.sdk.workflows import App

REJECTIONS = {1002, 1008, 1009}
"""Endings that dialling again at once would only repeat."""

log = logging.getLogger("perdure.sdk")


class Connection:
    """A connected runner. `run()` until it is closed, or use it as a context."""

    def __init__(
        self,
        app: App,
        *,
        engine_url: str | None = None,
        runner: str | None = None,
        api_key: str | None = None,
        region: str | None = None,
        ping_seconds: float | None = None,
        pong_seconds: float | None = None,
        redial_seconds: float | None = None,
        redial_seconds_max: float | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._settings = resolve(
            engine_url=engine_url, app=app.name, api_key=api_key, region=region, runner=runner
        )
        self.registered = asyncio.Event()
        """Set while our registration has gone out on an open socket."""
        told = registration(app, self._settings, framework="connect")
        self._results = ResultStore(self._settings)
        self._terms = Terms(
            app,
            LinkTerms(
                self._settings.engine_url,
                self._settings.headers(),
                encode({"type": "runner.register", "payload": told}),
                resolve_seconds(ping_seconds, "DURATON_CONNECT_PING_MS", 25_000),
                resolve_seconds(pong_seconds, "DURATON_CONNECT_PONG_TIMEOUT_MS", 10_000),
            ),
            clock,
            self.registered.set,
            self._results,
        )
        self._redial_seconds = resolve_seconds(
            redial_seconds, "DURATON_CONNECT_RECONNECT_INITIAL_MS", 500
        )
        self._redial_seconds_max = resolve_seconds(
            redial_seconds_max, "DURATON_CONNECT_RECONNECT_MAX_MS", 30_000
        )
        self._session: Session | None = None
        self._is_closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the engine until `close()`; `Incompatible` ends it, too."""
        with SocketThread() as thread, LoopWatchdog():
            await self._serve(thread)

    async def _serve(self, thread: SocketThread) -> None:
        delay = self._redial_seconds
        while not self._is_closing.is_set():
            try:
                ending = await self._serve_once(thread)
            except NoChannel as error:
                if self._is_closing.is_set():
                    return
                log.warning(
                    "connecting to the engine at %s failed, retrying: %s",
                    self._settings.engine_url,
                    error,
                )
            else:
                if self._is_closing.is_set():
                    return
                log.warning(
                    "the engine closed the connection (%d %s); reconnecting",
                    ending.code,
                    ending.reason,
                )
                if ending.code not in REJECTIONS:
                    delay = self._redial_seconds
            await self._pause(delay)
            delay = min(delay * 2, self._redial_seconds_max)

    async def close(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Take nothing new, let what runs finish within the grace, and leave."""
        self._is_closing.set()
        if self._session is not None:
            await self._session.drain(grace_seconds)
        if self._running is not None:
            await self._running
        await self._results.close()

    async def __aenter__(self) -> Self:
        self._running = asyncio.get_running_loop().create_task(self.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _serve_once(self, thread: SocketThread) -> Ending:
        self._session = session = Session(self._terms, thread)
        try:
            return await session.serve()
        finally:
            self._session = None
            self.registered.clear()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_closing.wait()

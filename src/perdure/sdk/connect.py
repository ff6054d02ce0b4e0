"""The Connect transport: the runner dials the engine and is invoked over that socket.

A `Connection` dials, registers, answers invokes and dials again whenever it loses the engine. It
keeps the engine's liveness by pings of its own and ends gracefully: what runs may finish.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from perdure.sdk.channel import Channel, Ending, NoChannel, dial
from perdure.sdk.clock import now_ms
from perdure.sdk.limits import GRACE_SECONDS
from perdure.sdk.offload import ResultStore
from perdure.sdk.registration import registration
from perdure.sdk.session import Session, Terms
from perdure.sdk.settings import resolve, resolve_seconds
from perdure.sdk.wire import encode
from perdure.sdk.workflows import App

SUBPROTOCOLS = ("durablex.connect.v0", "duraton.connect.v0")
DIAL_SECONDS = 10.0

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
            encode({"type": "runner.register", "payload": told}),
            resolve_seconds(ping_seconds, "DURATON_CONNECT_PING_MS", 25_000),
            resolve_seconds(pong_seconds, "DURATON_CONNECT_PONG_TIMEOUT_MS", 10_000),
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
        self._dialling: asyncio.Task[Channel] | None = None
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve the engine until `close()`; `Incompatible` ends it, too."""
        delay = self._redial_seconds
        while not self._is_closing.is_set():
            try:
                ending = await self._serve_once()
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
        elif self._dialling is not None:
            self._dialling.cancel()
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

    async def _serve_once(self) -> Ending:
        session = Session(self._terms)
        channel = await self._dial(session.hear)
        session.begin(channel)
        self._session = session
        try:
            if self._is_closing.is_set():
                channel.begin_close()
            ending = await asyncio.shield(channel.ended)
        finally:
            self._session = None
            self.registered.clear()
            session.end()
            channel.abort()
        if session.failure is not None:
            raise session.failure
        return ending

    async def _dial(self, on_message: Callable[[bytes], None]) -> Channel:
        dialling = dial(
            self._settings.engine_url,
            headers=self._settings.headers(),
            subprotocols=SUBPROTOCOLS,
            on_message=on_message,
            seconds=DIAL_SECONDS,
        )
        self._dialling = asyncio.get_running_loop().create_task(dialling)
        try:
            return await self._dialling
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise NoChannel("this runner is closing") from None
        finally:
            self._dialling = None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_closing.wait()

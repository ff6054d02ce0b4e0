"""The Serve transport: the engine calls the runner at a URL of its own.

An `Endpoint` is an ASGI application that can be mounted anywhere. While it is started it registers
with the engine, again and again until that answers, and then as a heartbeat.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

from perdure.sdk.clock import now_ms
from perdure.sdk.errors import ApiError
from perdure.sdk.http import HttpClient
from perdure.sdk.limits import INVOKE_BYTES_MAX
from perdure.sdk.loop_watchdog import LoopWatchdog
from perdure.sdk.offload import ResultStore
from perdure.sdk.passes import execute
from perdure.sdk.registration import registration
from perdure.sdk.settings import resolve
from perdure.sdk.signature import SIGNATURE_HEADERS, complaint
from perdure.sdk.versions import PROTOCOL_HEADERS, PROTOCOL_VERSION, header_fits
from perdure.sdk.wire import Reply, encode, read_invoke, refusal
from perdure.sdk.workflows import App

HEARTBEAT_SECONDS = 30.0
RETRY_SECONDS = 0.5
GOODBYE_SECONDS = 2.0
"""How long the goodbye may take; an engine that misses it finds out by itself."""

log = logging.getLogger("perdure.sdk")

Message = MutableMapping[str, Any]


class Endpoint:
    """Where the engine finds an app. `start()` it, use it as a context, or let ASGI's lifespan."""

    def __init__(
        self,
        app: App,
        *,
        url: str,
        engine_url: str | None = None,
        runner: str | None = None,
        api_key: str | None = None,
        signing_key: str | None = None,
        region: str | None = None,
        framework: str = "asgi",
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.url = url
        self._app = app
        self._clock = clock
        self._settings = resolve(
            engine_url=engine_url,
            app=app.name,
            api_key=api_key,
            signing_key=signing_key,
            region=region,
            runner=runner,
        )
        self._results = ResultStore(self._settings)
        # Several processes may stand behind one URL; the engine counts who is left.
        process = {"url": url, "instance": os.urandom(8).hex()}
        told = registration(app, self._settings, framework=framework, url=url)
        self._registration = encode(told | process)
        names = {name: told[name] for name in ("app", "runner") if name in told}
        self._goodbye = encode(names | process)
        self._has_asked = False
        self._heartbeat_seconds = heartbeat_seconds
        self._retry_seconds = retry_seconds
        self._registering: asyncio.Task[None] | None = None
        self._watchdog = LoopWatchdog()
        self.registered = asyncio.Event()
        """Set once the engine has taken our registration."""

    async def handle(self, method: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer one request. The names of the headers are in lower case."""
        if method != "POST":
            return refusal(405, "an invoke is a POST")
        if len(body) > INVOKE_BYTES_MAX:
            return refusal(413, f"an invoke has at most {INVOKE_BYTES_MAX} bytes")
        if not all(header_fits(headers.get(name)) for name in PROTOCOL_HEADERS):
            return refusal(400, f"this runner speaks version {PROTOCOL_VERSION} of the protocol")
        if self._settings.signing_key:
            told = next((headers[name] for name in SIGNATURE_HEADERS if name in headers), None)
            wrong = complaint(self._settings.signing_key, told, body, self._clock() // 1000)
            if wrong is not None:
                return refusal(401, wrong)
        try:
            invoke = read_invoke(body)
        except ValueError as error:
            return refusal(400, str(error))
        return await execute(self._app, invoke, clock=self._clock, store=self._results)

    async def start(self) -> None:
        """Begin to register. It does not wait for the engine; `registered` tells."""
        if self._registering is None:
            self._watchdog.start()
            self._registering = asyncio.get_running_loop().create_task(self._register())

    async def stop(self) -> None:
        """Register no more and say goodbye: the engine sends nothing new. What runs may finish."""
        if self._registering is not None:
            self._registering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._registering
            self._registering = None
            self._watchdog.stop()
        if self._has_asked:
            self._has_asked = False
            await self._deregister()
        await self._results.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _deregister(self) -> None:
        self.registered.clear()
        async with HttpClient(self._settings.engine_url, self._settings.headers()) as http:
            try:
                answer = await http.request(
                    "POST", "/deregister", self._goodbye, seconds=GOODBYE_SECONDS
                )
            except ApiError as error:
                log.warning("not deregistered at %s: %s", self._settings.engine_url, error)
                return
        if answer.status >= 300:
            # An older engine does not know the word; it misses the heartbeat.
            log.info("not deregistered at %s: %d", self._settings.engine_url, answer.status)

    async def _register(self) -> None:
        delay = self._retry_seconds
        async with HttpClient(self._settings.engine_url, self._settings.headers()) as http:
            while True:
                self._has_asked = True
                try:
                    answer = await http.request("POST", "/register", self._registration)
                    is_taken = answer.status < 300
                    told = f"{answer.status} {answer.body[:500].decode('utf-8', 'replace')}"
                except ApiError as error:
                    is_taken, told = False, str(error)
                if is_taken:
                    self.registered.set()
                    delay = self._retry_seconds
                    await asyncio.sleep(self._heartbeat_seconds)
                else:
                    log.warning(
                        "registering at the engine at %s failed, retrying: %s",
                        self._settings.engine_url,
                        told,
                    )
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, self._heartbeat_seconds)

    # ASGI -----------------------------------------------------------------------------------------

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Serve one request, or the life of the application around us."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
            body = await _body(receive)
            if body is None:
                return
            reply = await self.handle(scope["method"], headers, body)
            sent = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(reply.body)),
            ]
            await send({"type": "http.response.start", "status": reply.status, "headers": sent})
            await send({"type": "http.response.body", "body": reply.body})
        else:
            raise RuntimeError(f"an endpoint does not serve {scope['type']}")

    async def _live(
        self,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _body(receive: Callable[[], Awaitable[Message]]) -> bytes | None:
    """The whole body, or a little more than is allowed; None if the caller went away."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > INVOKE_BYTES_MAX or not message.get("more_body", False):
            return b"".join(parts)

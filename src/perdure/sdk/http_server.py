"""A server for one endpoint: HTTP/1.1 as far as an engine needs it, and nothing else to install."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, cast

import httptools

from perdure.sdk.endpoint import Endpoint
from perdure.sdk.limits import GRACE_SECONDS, HEAD_BYTES_MAX, INVOKE_BYTES_MAX
from perdure.sdk.wire import Reply, refusal
from perdure.sdk.workflows import App

DEFAULT_PORT = 6773
LINGER_SECONDS = 0.3
"""How long a server refuses invokes after its goodbye, before it listens no more."""


@asynccontextmanager
async def serving(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    url: str | None = None,
    engine_url: str | None = None,
    runner: str | None = None,
    api_key: str | None = None,
    signing_key: str | None = None,
    region: str | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> AsyncIterator[Endpoint]:
    """Listen for the engine and register with it. `url` is where the engine finds us."""
    server = Server()
    bound = await server.listen(host, port)
    endpoint = Endpoint(
        app,
        url=url or f"http://{host}:{bound}/invoke",
        engine_url=engine_url,
        runner=runner,
        api_key=api_key,
        signing_key=signing_key,
        region=region,
        framework="perdure",
    )
    server.endpoint = endpoint
    try:
        async with endpoint:
            yield endpoint
    finally:
        await server.leave(min(LINGER_SECONDS, grace_seconds))
        await server.close(grace_seconds)


class Server:
    """Listens for an endpoint."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.is_leaving = False
        """Invokes are refused, and every answer is the last of its connection."""
        self.is_closed = False
        self._lines: set[_Line] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Begin to listen and return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Line(self, self._lines), host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def handle(self, method: str, headers: dict[str, str], body: bytes) -> Reply:
        """Answer one request."""
        if self.endpoint is None:
            return refusal(503, "this runner is only just starting")
        if self.is_leaving:
            return refusal(503, "this runner is stopping")
        return await self.endpoint.handle(method, headers, body)

    async def leave(self, seconds: float) -> None:
        """Refuse invokes that the engine sent before it heard the goodbye.

        It charges no run for a refusal with 503, but it does for a connection that is reset.
        """
        self.is_leaving = True
        await asyncio.sleep(seconds)

    async def close(self, grace_seconds: float) -> None:
        """Listen no more and let passes finish within the grace. Then all connections are gone."""
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)  # the loop closes the socket in its next turn
        self.is_closed = True
        for line in list(self._lines):
            line.close_when_idle()
        await self._wait_for_lines(grace_seconds)
        for line in list(self._lines):
            line.abort()
        await self._wait_for_lines(None)

    async def _wait_for_lines(self, seconds: float | None) -> None:
        if self._lines:
            await asyncio.wait([line.gone for line in self._lines], timeout=seconds)


class _Line(asyncio.Protocol):
    """One connection of the engine: one request after the other."""

    def __init__(self, server: Server, lines: "set[_Line]") -> None:
        self._server = server
        self._lines = lines
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self._body_bytes = 0
        self._is_last = False
        self.playing: asyncio.Task[None] | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the connection is closed."""

    def close_when_idle(self) -> None:
        self._is_last = True
        if self.playing is None and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._parser = httptools.HttpRequestParser(self)
        self._lines.add(self)
        if self._server.is_closed:
            self.abort()  # accepted just before the socket was closed

    def data_received(self, data: bytes) -> None:
        if self.playing is not None:
            self.abort()  # the engine does not pipeline
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._is_last = True
            self._write(refusal(400, "not HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lines.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)
        if self.playing is not None:
            self.playing.cancel()

    # httptools ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.playing is not None:
            self.abort()
        self._headers, self._parts = {}, []
        self._head_bytes = self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.abort()
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > INVOKE_BYTES_MAX:
            self._is_last = True
            self._write(refusal(413, f"an invoke has at most {INVOKE_BYTES_MAX} bytes"))
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self._parser.should_keep_alive():
            self._is_last = True
        method = self._parser.get_method().decode("latin-1")
        self.playing = asyncio.get_running_loop().create_task(self._play(method))

    # ----------------------------------------------------------------------------------------------

    async def _play(self, method: str) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            reply = await self._server.handle(method, self._headers, b"".join(self._parts))
            self.playing = None
            self._write(reply)

    def _write(self, reply: Reply) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
        self._is_last |= self._server.is_leaving
        phrase = HTTPStatus(reply.status).phrase.encode()
        ending = b"connection: close\r\n" if self._is_last else b""
        message = head % (reply.status, phrase, len(reply.body), ending) + reply.body
        self._transport.write(message)
        if self._is_last:
            self._transport.close()

"""HTTP/1.1 over a stream: httptools parses, the application answers, one write sends.

A general ASGI server costs more per request here than deciding and committing the request does, and
a parked poll would need a task only to notice that its client left. This protocol does what the two
wire protocols need and no more: keep-alive, pipelining one at a time, bounded heads and bodies,
`Expect: 100-continue`, a limit on silence, and a word to the handler when the client is gone.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, cast

import httptools

from perdure.web.app import Application
from perdure.web.message import HttpError, Request, Response, too_large

HEAD_BYTES_MAX = 32_768
PIPELINED_MAX = 8
LINGER_SECONDS = 2
IDLE_SECONDS = 75
"""A connection without a request in hand is closed after this silence."""

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n"
    % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


class Connections:
    """Every open connection of a server, so that a stop can wait for those at work."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.open: set[HttpProtocol] = set()
        self.is_draining = False
        self._answering: set[asyncio.Task[None]] = set()

    def protocol(self) -> "HttpProtocol":
        return HttpProtocol(self)

    def start(self, answering: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(answering)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def sweep(self) -> None:
        """Close silent connections, for as long as the server lives."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(IDLE_SECONDS / 5)
            silent_since = loop.time() - IDLE_SECONDS
            for protocol in list(self.open):
                if protocol.idle_since is not None and protocol.idle_since < silent_since:
                    protocol.close_if_idle()

    async def drain(self, seconds: float) -> None:
        """Close idle connections at once and the others after their answer."""
        self.is_draining = True
        for protocol in list(self.open):
            protocol.close_if_idle()
        if self._answering:
            await asyncio.wait(self._answering, timeout=seconds)
        for protocol in list(self.open):
            protocol.abort()


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_busy",
        "_connections",
        "_deaf",
        "_head_bytes",
        "_headers",
        "_parser",
        "_request",
        "_target",
        "_transport",
        "_waiting",
        "_writable",
        "idle_since",
    )

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._headers: dict[bytes, bytes] = {}
        self._target = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._request: Request | None = None
        # The request that is being answered; later ones wait behind it.
        self._busy: Request | None = None
        self._waiting: deque[Request] = deque()
        # Set while no request is coming in or being answered.
        self.idle_since: float | None = None
        self._writable: asyncio.Event | None = None
        # Set when what still comes in is only let run out.
        self._deaf = False

    # The stream ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.open.add(self)
        self.idle_since = asyncio.get_running_loop().time()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.open.discard(self)
        self._waiting.clear()
        if self._busy is not None:
            self._busy.went_away()
        if self._writable is not None:
            self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._deaf:
                head = self._head_without_offer()
                self._parser = httptools.HttpRequestParser(self)
                self.data_received(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse_stream(400, "malformed_http", "this is not HTTP/1.1")

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def close_if_idle(self) -> None:
        if self._busy is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # The parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = {}
        self._target = b""
        self._body = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._request = None

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if self._request is None:
            # What follows the body is no header: it has passed a proxy unseen.
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        parser = self._parser
        websocket = self._headers.get(b"upgrade", b"").lower() == b"websocket"
        if self._deaf or (parser.should_upgrade() and not websocket):
            return
        request = self._request = Request(
            parser.get_method().decode("latin-1"),
            self._target,
            self._headers,
            keep_alive=parser.should_keep_alive(),
        )
        length = self._headers.get(b"content-length")
        most = self._connections.app.body_bytes_max
        if websocket:
            message = "this path cannot be upgraded"
            request.refusal = HttpError(400, "upgrade_not_supported", message)
        elif length is not None and length.isdigit() and int(length) > most:
            request.refusal = too_large(most)
        elif self._headers.get(b"expect", b"").lower() == b"100-continue" and self._busy is None:
            # Behind an unanswered request it would be taken for the answer to that one.
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.refusal is not None:
            self._answer_early(request)

    def on_body(self, body: bytes) -> None:
        request = self._request
        if request is None or request.refusal is not None:
            return
        self._body.append(body)
        self._body_bytes += len(body)
        most = self._connections.app.body_bytes_max
        if self._body_bytes > most:
            request.refusal = too_large(most)
            self._answer_early(request)

    def on_message_complete(self) -> None:
        request = self._request
        if self._deaf or request is None or request.refusal is not None:
            return
        body = self._body
        request.body = body[0] if len(body) == 1 else b"".join(body)
        if self._busy is None:
            self._start(request)
        elif len(self._waiting) < PIPELINED_MAX:
            self._waiting.append(request)
        else:
            self._transport.abort()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_stream(431, "headers_too_large", f"more than {HEAD_BYTES_MAX} bytes")

    def _head_without_offer(self) -> bytes:
        """The head of a request that offers another protocol, as if it did not.

        Some clients offer HTTP/2 with every first request and expect to be passed over; the
        parser would stop behind such a head.
        """
        lines = [b"%s %s HTTP/1.1" % (self._parser.get_method(), self._target)]
        lines += [
            name + b": " + value
            for name, value in self._headers.items()
            if name not in (b"connection", b"upgrade", b"http2-settings")
        ]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    # Answering -----------------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        self._busy = request
        self.idle_since = None
        self._connections.start(self._answer(request))

    async def _answer(self, request: Request) -> None:
        response = await self._connections.app.answer(request)
        if request.is_gone:
            return
        keep_alive = request.keep_alive and not self._connections.is_draining
        self._write(request, response, keep_alive=keep_alive)
        if self._writable is not None:
            await self._writable.wait()
        self._busy = None
        if request.refusal is not None:
            self._linger()
        elif not keep_alive:
            self._transport.close()
        elif self._waiting:
            self._start(self._waiting.popleft())
        else:
            self.idle_since = asyncio.get_running_loop().time()

    def _write(self, request: Request, response: Response, *, keep_alive: bool) -> None:
        parts: list[bytes] = [_STATUS_LINES[response.status]]
        for name, value in response.headers:
            parts += (name, b": ", value, b"\r\n")
        if not keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"content-length: %d\r\n\r\n" % len(response.body))
        if request.method != "HEAD":
            parts.append(response.body)
        self._transport.write(b"".join(parts))

    def _linger(self) -> None:
        """Close our side, and let a client that is still sending read why before we hang up."""
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)

    def _answer_early(self, request: Request) -> None:
        """Refuse a request whose body will not be read; the stream cannot go on behind it."""
        request.keep_alive = False
        self._deaf = True
        if self._busy is None:
            self._start(request)
        else:
            self._transport.abort()

    def _refuse_stream(self, status: int, reason: str, message: str) -> None:
        if self._deaf or self._transport.is_closing():
            return
        self._deaf = True
        if self._busy is not None:
            # Its answer is still owed; the connection ends behind it.
            self._busy.keep_alive = False
            self._waiting.clear()
            return
        error = HttpError(status, reason, message)
        body = b'{"message":"%s","reason":"%s"}' % (error.message.encode(), error.reason.encode())
        request = Request("GET", b"", {})
        self._write(request, Response(status, body), keep_alive=False)
        self._transport.close()


async def listen(connections: Connections, listener: Any) -> asyncio.Server:
    """Accept connections on a bound socket."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(connections.protocol, sock=listener, backlog=4096)

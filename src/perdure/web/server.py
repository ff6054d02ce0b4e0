"""HTTP/1.1 over a stream: httptools parses, the application answers, one write sends.

A general ASGI server costs more per request here than deciding and committing the request does, and
a parked poll would need a task only to notice that its client left. This protocol does what the two
wire protocols need and no more: keep-alive, pipelining one at a time, bounded heads and bodies,
`Expect: 100-continue`, a limit on silence, and a word to the handler when the client is gone.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import httptools

from perdure.web.app import Application
from perdure.web.exchange import Exchange
from perdure.web.message import (
    Handover,
    HttpError,
    Request,
    Response,
    Successor,
    request_for,
    too_large,
)
from perdure.web.outbox import Outbox

HEAD_BYTES_MAX = 32_768
PIPELINED_MAX = 8
EARLY_BYTES_MAX = 65_536
"""What a client may send before it knows that its connection is upgraded."""
LINGER_SECONDS = 2
IDLE_SECONDS = 75
"""A connection without a request in hand is closed after this silence, or a little later."""
IDLE_SWEEPS = 5
"""How often silence is looked for meanwhile."""

_METHODS = {name.encode(): name for name in ("GET", "POST", "PUT", "DELETE", "HEAD")}


@lru_cache(maxsize=256)
def _head(
    status: int, media_type: bytes, headers: tuple[tuple[bytes, bytes], ...], keep_alive: bool
) -> bytes:
    """The head of an answer up to its length. There are few, and most are sent again at once."""
    lines = [
        b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()),
        b"content-type: " + media_type,
        *(name + b": " + value for name, value in headers),
    ]
    if not keep_alive:
        lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"content-length: "])


class Connections:
    """Every open connection of a server, so that a stop can wait for those at work."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.outbox = Outbox()
        # How often silent connections were looked for. They count their silence by it, since
        # asking for the time with every request would cost more.
        self.sweeps = 0
        self.open: set[HttpProtocol] = set()
        # Connections that have become something else.
        self.handed_over: set[Successor] = set()
        self.is_draining = False
        self._handling: set[asyncio.Task[None]] = set()
        self.answering = 0
        self._all_answered = asyncio.Event()

    def protocol(self) -> "HttpProtocol":
        return HttpProtocol(self)

    def end(self) -> None:
        self.answering -= 1
        if self.is_draining and not self.answering:
            self._all_answered.set()

    def spawn(self, handling: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(handling)
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def sweep(self) -> None:
        """Close silent connections, for as long as the server lives."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / IDLE_SWEEPS)
            self.close_silent()

    def close_silent(self) -> None:
        """Sweep once."""
        self.sweeps += 1
        for protocol in list(self.open):
            if protocol.idle_since is not None and self.sweeps - protocol.idle_since > IDLE_SWEEPS:
                protocol.close_if_idle()

    async def drain(self, seconds: float) -> None:
        """Close idle connections at once and the others after their answer."""
        self.is_draining = True
        for protocol in list(self.open):
            protocol.close_if_idle()
        for successor in list(self.handed_over):
            successor.go_away()
        if self.answering:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_answered.wait(), seconds)
        for protocol in list(self.open):
            protocol.abort()
        for successor in list(self.handed_over):
            successor.abort()

    def hand_over(self, successor: Successor, transport: asyncio.Transport) -> None:
        """A connection goes on as something else."""
        self.handed_over.add(successor)
        successor.on_left = lambda: self.handed_over.discard(successor)
        transport.set_protocol(successor)
        successor.connection_made(transport)
        if self.is_draining:
            successor.go_away()


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_begins",
        "_body_bytes",
        "_body_parts",
        "_busy",
        "_connections",
        "_deaf",
        "_early",
        "_exchange",
        "_head_bytes",
        "_headers",
        "_is_large",
        "_parser",
        "_request",
        "_sent",
        "_successor",
        "_target",
        "_transport",
        "_waiting",
        "_writable",
        "idle_since",
    )

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._exchange = Exchange(connections.app, self._answer, connections.spawn)
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._headers: dict[bytes, bytes] = {}
        self._target = b""
        # What follows the first part of a body; most bodies have one.
        self._body_parts: list[bytes] = []
        self._body_bytes = 0
        # What is known of a head that comes in several parts. In a part that may be too much of
        # it the headers are counted one by one; no other head needs that.
        self._head_bytes = 0
        self._is_large = False
        self._begins = False
        self._request: Request | None = None
        # The request that is being answered; later ones wait behind it.
        self._busy: Request | None = None
        self._waiting: deque[Request] = deque()
        # Set while no request is coming in or being answered.
        self.idle_since: int | None = None
        self._writable = True
        # An answered request whose answer the client has not taken yet.
        self._sent: Request | None = None
        # Set when what still comes in is only let run out.
        self._deaf = False
        # What came behind a request to be upgraded, and who reads it once that is answered.
        self._early: bytes | None = None
        self._successor: Successor | None = None

    # The stream ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.open.add(self)
        self.idle_since = self._connections.sweeps

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.open.discard(self)
        self._waiting.clear()
        if self._sent is not None:
            self._sent = None
            self._connections.end()
        elif self._busy is not None:
            self._busy.went_away()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._early is not None:
            self._keep_early(data)
            return
        self._is_large = self._head_bytes + len(data) > HEAD_BYTES_MAX
        self._begins = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._request is not None and self._request.is_upgrade:
                self._keep_early(data[upgrade.args[0] :])
            elif self._parser.get_method() == b"CONNECT":
                self._refuse_stream(400, "malformed_http", "this is no proxy")
            elif not self._deaf:
                head = self._head_without_offer()
                self._parser = httptools.HttpRequestParser(self)
                self._head_bytes = 0
                self.data_received(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse_stream(400, "malformed_http", "this is not HTTP/1.1")
        else:
            if self._request is None:
                self._count_part(data)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._sent is not None:
            sent, self._sent = self._sent, None
            self._go_on_behind(sent)

    def close_if_idle(self) -> None:
        if self._busy is None:
            self._close()

    def abort(self) -> None:
        self._connections.outbox.flush()
        self._transport.abort()

    def _close(self) -> None:
        self._connections.outbox.flush()
        self._transport.close()

    # The parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begins = True
        self._headers = {}
        self._target = b""
        self._body_bytes = 0
        self._head_bytes = 0
        self._request = None

    def on_url(self, url: bytes) -> None:
        self._target += url
        if self._is_large:
            self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_large:
            self._count_head(len(name) + len(value))
        if self._request is None:
            # What follows the body is no header: it has passed a proxy unseen.
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        parser = self._parser
        headers = self._headers
        websocket = b"upgrade" in headers and headers[b"upgrade"].lower() == b"websocket"
        if self._deaf or (parser.should_upgrade() and not websocket):
            return
        method = parser.get_method()
        request = self._request = request_for(
            _METHODS.get(method) or method.decode("latin-1"),
            self._target,
            headers,
            keep_alive=parser.should_keep_alive(),
        )
        length = headers.get(b"content-length")
        most = self._connections.app.body_bytes_max
        if websocket:
            # Whatever it is answered, no other request can follow it.
            request.is_upgrade, request.keep_alive = True, False
        if (
            length is not None
            and length.isdigit()
            and int(length) > most
            and int(length) > (most := self._connections.app.body_limit(request))
        ):
            request.refusal = too_large(most)
        elif (
            b"expect" in headers
            and headers[b"expect"].lower() == b"100-continue"
            and self._busy is None
        ):
            # Behind an unanswered request it would be taken for the answer to that one.
            self._connections.outbox.put(self._transport, b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.refusal is not None:
            self._answer_early(request)

    def on_body(self, body: bytes) -> None:
        request = self._request
        if request is None or request.refusal is not None:
            return
        self._body_bytes += len(body)
        if not request.body:
            request.body = body
        else:
            self._body_parts.append(body)
        most = self._connections.app.body_bytes_max
        if self._body_bytes > most and self._body_bytes > (
            most := self._connections.app.body_limit(request)
        ):
            request.refusal = too_large(most)
            self._answer_early(request)

    def on_message_complete(self) -> None:
        request = self._request
        if self._deaf or request is None or request.refusal is not None:
            return
        if self._body_parts:
            request.body = b"".join((request.body, *self._body_parts))
            self._body_parts = []
        if self._busy is None:
            self._start(request)
        elif len(self._waiting) < PIPELINED_MAX:
            self._waiting.append(request)
        else:
            self.abort()

    def _count_part(self, data: bytes) -> None:
        """The part that was received ends inside a head."""
        if not self._begins:
            self._count_head(len(data))
        elif not self._is_large:
            known = sum(len(name) + len(value) for name, value in self._headers.items())
            self._count_head(len(self._target) + known)

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
        self._connections.answering += 1
        self._exchange.start(request)

    def _answer(self, request: Request, response: Response) -> None:
        if request.is_gone:
            self._connections.end()
            return
        if type(response) is not Response:
            self._hand_over(cast(Handover, response))
            return
        connections = self._connections
        if connections.is_draining:
            request.keep_alive = False
        self._write(request, response)
        if not self._writable:
            self._sent = request
        elif request.keep_alive and not self._waiting:
            # As `_go_on_behind` does, for nearly all.
            connections.answering -= 1
            self._busy = None
            self.idle_since = connections.sweeps
        else:
            self._go_on_behind(request)

    def _go_on_behind(self, request: Request) -> None:
        """The answer to a request is on its way: take up what follows it."""
        self._connections.end()
        self._busy = None
        if request.refusal is not None:
            self._linger()
        elif not request.keep_alive:
            self._close()
        elif self._waiting:
            self._start(self._waiting.popleft())
        else:
            self.idle_since = self._connections.sweeps

    def _write(self, request: Request, response: Response) -> None:
        head = _head(response.status, response.media_type, response.headers, request.keep_alive)
        body, tail = response.body, response.tail
        length = b"%d\r\n\r\n" % (len(body) + len(tail))
        if request.method == "HEAD":
            body = tail = b""
        data = b"".join((head, length, body, tail))
        self._connections.outbox.put(self._transport, data)

    def _keep_early(self, data: bytes) -> None:
        """What follows a request to be upgraded is for whoever takes over, if anybody does."""
        if self._successor is not None:
            self._successor.data_received(data)
            return
        self._early = (self._early or b"") + data
        if len(self._early) > EARLY_BYTES_MAX:
            self.abort()

    def _hand_over(self, response: Handover) -> None:
        self._connections.end()
        self._connections.open.discard(self)
        self._busy = None
        phrase = HTTPStatus(response.status).phrase.encode()
        lines = [b"HTTP/1.1 %d %b" % (response.status, phrase)]
        lines += [name + b": " + value for name, value in response.headers]
        outbox = self._connections.outbox
        outbox.put(self._transport, b"\r\n".join(lines) + b"\r\n\r\n")
        # From here on somebody else writes.
        outbox.flush()
        self._successor = response.successor
        self._connections.hand_over(response.successor, self._transport)
        if self._early:
            early, self._early = self._early, b""
            self._successor.data_received(early)

    def _linger(self) -> None:
        """Close our side, and let a client that is still sending read why before we hang up."""
        self._connections.outbox.flush()
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)

    def _answer_early(self, request: Request) -> None:
        """Refuse a request whose body will not be read; the stream cannot go on behind it."""
        request.keep_alive = False
        self._deaf = True
        if self._busy is None:
            self._start(request)
        else:
            self.abort()

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
        request = Request("GET", b"", {}, keep_alive=False)
        self._write(request, Response(status, body))
        self._close()


async def listen(connections: Connections, listener: Any) -> asyncio.Server:
    """Accept connections on a bound socket."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(connections.protocol, sock=listener, backlog=4096)

"""HTTP/1.1 over a stream: httptools parses, the application answers, one write sends.

A general ASGI server costs more per request here than deciding and committing the request does, and
a parked poll would need a task only to notice that its client left. This protocol does what the two
wire protocols need and no more: keep-alive, pipelining one at a time, `Expect: 100-continue`, a
bound and a deadline for every phase (`limits.py`), and a word to the handler when the client is
gone. A request is admitted when its head is complete; what is not admitted is not kept.
"""

import asyncio
from collections import deque
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import httptools

from perdure.web import limits
from perdure.web.exchange import Exchange
from perdure.web.limits import Progress
from perdure.web.message import (
    Handover,
    HttpError,
    Request,
    Response,
    Successor,
    request_for,
    too_large,
)
from perdure.web.routing import PUBLIC

if TYPE_CHECKING:
    from perdure.web.server import Connections

_HEAD_BYTES_MAX = limits.HEAD.bytes_max
_METHODS = {name.encode(): name for name in ("GET", "POST", "PUT", "DELETE", "HEAD")}
_ONCE = frozenset(
    {b"host", b"authorization", b"content-length", b"content-type", b"transfer-encoding"}
)
"""Headers that must not be repeated. All others are lists, or refused for their odd value."""
_LENGTHS = [b"%d\r\n\r\n" % length for length in range(4_096)]
"""What ends the head of a small answer."""
_OFFER = frozenset({b"upgrade", b"http2-settings"})


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


class HttpConnection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_bare_bytes",
        "_began",
        "_begins",
        "_body_bytes",
        "_busy",
        "_connections",
        "_deaf",
        "_early",
        "_exchange",
        "_framing_bytes",
        "_head_bytes",
        "_head_held",
        "_headers",
        "_idle_since",
        "_ignored_bytes",
        "_is_known",
        "_is_large",
        "_is_lost",
        "_parser",
        "_parts",
        "_receiving",
        "_repeated",
        "_request",
        "_sent",
        "_server_address",
        "_stalled",
        "_stalled_bytes",
        "_successor",
        "_target",
        "_trailer_bytes",
        "_transport",
        "_waiting",
        "is_excess",
        "peer",
    )

    def __init__(self, connections: "Connections") -> None:
        self._connections = connections
        self._exchange = Exchange(connections.app, self._answer, connections.spawn)
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self.peer = ""
        self._server_address = ""
        # Whether it was accepted beyond the bound, for one request.
        self.is_excess = False
        # Whether a valid credential has been shown.
        self._is_known = False
        self._is_lost = False
        # The message that is coming in: since when, and how its body gets along.
        self._began: int | None = None
        self._receiving: Progress | None = None
        self._headers: dict[bytes, bytes] = {}
        self._target = b""
        # A header that stands there twice and must not.
        self._repeated: bytes | None = None
        self._request: Request | None = None
        # What follows the first part of a body; most bodies have one.
        self._parts: bytearray | None = None
        self._body_bytes = 0
        # What came in beside the body of a chunked one; of it, what came since its last byte, and
        # what was read as trailers.
        self._framing_bytes = 0
        self._bare_bytes = 0
        self._trailer_bytes = 0
        # What is known of a head that comes in several parts. In a part that may be too much of
        # it the headers are counted one by one; no other head needs that.
        self._head_bytes = 0
        self._head_held = 0
        self._is_large = False
        self._begins = 0
        # The request that is being answered; later ones wait behind it.
        self._busy: Request | None = None
        self._waiting: deque[Request] = deque()
        # Set while no request is being answered.
        self._idle_since = 0
        # Set while the client does not take what we write, with the bytes that wait for it.
        self._stalled: Progress | None = None
        self._stalled_bytes = 0
        # An answered request whose answer the client has not taken yet.
        self._sent: Request | None = None
        # Set when what still comes in is only let run out.
        self._deaf = False
        self._ignored_bytes = 0
        # What came behind a request to be upgraded, and who reads it once that is answered.
        self._early: bytes | None = None
        self._successor: Successor | None = None

    # The stream ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connections = self._connections
        self._idle_since = connections.sweeps
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        own = transport.get_extra_info("sockname")
        self._server_address = own[0] if own else ""
        if not connections.enter(self, self.peer):
            self._is_lost = True
            self._write(Request("GET", b"", {}, keep_alive=False), _plain(_no_room()))
            self._close()

    def connection_lost(self, error: Exception | None) -> None:
        """Let go of everything at once: nothing of a client that is gone waits for a collector."""
        if not self._is_lost:
            self._connections.leave(self)
        self._is_lost = True
        busy, self._busy = self._busy, None
        self._drop_waiting()
        self._drop_incoming()
        self._end_stall()
        self._detach()
        if self._sent is not None:
            self._sent = None
            self._connections.end()
        elif busy is not None:
            busy.went_away()

    def _detach(self) -> None:
        self._headers = {}
        self._target = b""
        self._early = self._successor = None
        # Each refers back to us.
        del self._parser, self._exchange

    def eof_received(self) -> bool:
        """The client sends no more. It still gets the answer that it waits for."""
        busy = self._busy
        self._connections.outbox.flush()
        if busy is None or self._early is not None:
            return False
        self._deaf = True
        busy.keep_alive = False
        self._drop_waiting()
        self._drop_incoming()
        # Most that close their side are gone: no handler is to wait for them any longer.
        busy.went_away()
        return True

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._ignore(data)
            return
        if self._early is not None:
            self._keep_early(data)
            return
        while True:
            self._begins = 0
            # Between the end of a chunked head and that of its body headers are counted, too.
            self._is_large = (
                self._request is not None or self._head_bytes + len(data) > _HEAD_BYTES_MAX
            )
            body_before = self._body_bytes
            was_between = self._began is None
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                if self._deaf:
                    return
                if self._early is not None:
                    self._keep_early(rest)
                    return
                if self._parser.get_method() == b"CONNECT":
                    self._refuse_stream(_malformed("this is no proxy"))
                    return
                data = self._head_without_offer() + rest
                self._parser = httptools.HttpRequestParser(self)
                self._head_bytes = 0
                continue
            except httptools.HttpParserError:
                self._refuse_stream(_malformed("this is not HTTP/1.1"))
                return
            break
        if self._began is None or self._deaf:
            return
        if self._request is None:
            self._count_part(data, is_alone=was_between and self._begins == 1)
        else:
            self._count_framing(len(data), 0 if self._begins else body_before)

    def pause_writing(self) -> None:
        size = self._transport.get_write_buffer_size()
        connections = self._connections
        self._stalled = Progress(limits.ANSWER, connections.sweeps, -size)
        if connections.memory.reserve(size, is_known=True):
            self._stalled_bytes = size
        else:
            self.abort()

    def resume_writing(self) -> None:
        self._end_stall()
        if self._sent is not None:
            sent, self._sent = self._sent, None
            self._go_on_behind(sent)

    def _end_stall(self) -> None:
        self._stalled = None
        self._connections.memory.release(self._stalled_bytes)
        self._stalled_bytes = 0

    # Time ----------------------------------------------------------------------------------------

    def check(self, sweep: int) -> None:
        """End what is past its deadline."""
        if self._stalled is not None:
            if self._stalled.is_late(sweep, -self._transport.get_write_buffer_size()):
                self.abort()
        elif self._early is not None:
            if self._began is not None and sweep - self._began > limits.UPGRADE.sweeps:
                self.abort()
        elif self._deaf:
            pass
        elif self._receiving is not None:
            if self._receiving.is_late(sweep, self._body_bytes):
                self._refuse_stream(_timeout("the body"))
        elif self._began is not None:
            if sweep - self._began > limits.HEAD.sweeps:
                self._refuse_stream(_timeout("the head"))
        elif self._busy is None and sweep - self._idle_since > limits.IDLE.sweeps:
            self._close()

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is being answered."""
        return self._busy is None

    def close_if_idle(self) -> None:
        if self._busy is None:
            self._close()

    def abort(self) -> None:
        self._deaf = True
        self._connections.outbox.flush()
        self._transport.abort()

    def _close(self) -> None:
        self._deaf = True
        self._connections.outbox.flush()
        self._transport.close()

    # The parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begins += 1
        self._headers = {}
        self._target = b""
        self._head_bytes = 0
        self._began = self._connections.sweeps

    def on_url(self, url: bytes) -> None:
        self._target += url
        if self._is_large:
            self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_large:
            if self._request is not None:
                self._count_trailer(len(name) + len(value))
                return
            self._count_head(len(name) + len(value))
        headers = self._headers
        name = name.lower()
        if name in headers:
            if name in _ONCE:
                self._repeated = name
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        if self._head_held:
            self._release_head()
        parser = self._parser
        headers = self._headers
        keep_alive = parser.should_keep_alive()
        token = parser.get_method()
        method = _METHODS.get(token)
        # Without a header that says so the parser keeps only a connection of HTTP/1.1, and
        # upgrades none.
        is_plain = keep_alive and method is not None and b"connection" not in headers
        if (
            self._repeated is not None
            or b"host" not in headers
            or b"transfer-encoding" in headers
            or not (is_plain or parser.get_http_version() == "1.1")
        ):
            fault = self._fault_of_head(headers)
            if fault is not None:
                self._refuse_stream(_malformed(fault))
                return
        is_upgrade = False
        if not is_plain and parser.should_upgrade():
            if headers[b"upgrade"].strip().lower() != b"websocket":
                # An offer that is passed over; see `data_received`.
                return
            is_upgrade = True
        request = self._request = request_for(
            method or token.decode("latin-1"),
            self._target,
            headers,
            keep_alive and not self.is_excess,
            self.peer,
            self._server_address,
        )
        if not is_plain and b"close" in headers.get(b"connection", b"").lower():
            # Whatever else it says; the parser does not see that in HTTP/1.0.
            request.keep_alive = False
        if is_upgrade:
            # Whatever it is answered, no other request can follow it.
            request.is_upgrade, request.keep_alive = True, False
        self._body_bytes = 0
        if b"content-length" in headers:
            request.body_bytes = int(headers[b"content-length"])
        elif b"transfer-encoding" in headers:
            # What follows the body is no header: it has passed a proxy unseen.
            request.is_chunked = self._is_large = True
            self._framing_bytes = self._bare_bytes = self._trailer_bytes = 0
        connections = self._connections
        self._exchange.admit(request)
        if self.is_excess and request.refusal is None:
            self._require_served(request)
        if connections.is_draining and request.refusal is None:
            self._require_public(request)
        size = request.body_bytes
        if size and request.refusal is None:
            memory = connections.memory
            held = memory.held + size
            if held <= memory.free_max:
                # As `_reserve` does, for nearly all.
                memory.held = held
                request.held = size
            else:
                self._reserve(request, size)
        if request.is_known and not self._is_known:
            self._is_known = True
            connections.strangers.pop(self, None)
        if request.refusal is not None:
            self._refuse(request)
        elif b"expect" in headers:
            self._ask_for_body(request)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        request = self._request
        if request is None or request.refusal is not None or self._deaf:
            return
        if request.is_chunked:
            self._take_chunk(request, len(body))
            if request.refusal is not None:
                self._drop_incoming()
                self._refuse(request)
                return
        if self._parts is not None:
            self._parts += body
        elif request.body:
            self._parts = bytearray(request.body)
            self._parts += body
        else:
            request.body = body

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        self._began = self._receiving = None
        connections = self._connections
        self._idle_since = connections.sweeps
        if self._deaf or request is None or request.refusal is not None:
            return
        if self._parts is not None:
            request.body = bytes(self._parts)
            self._parts = None
        if request.is_upgrade:
            self._early = b""
            self._began = connections.sweeps
        if self._busy is None:
            self._busy = request
            connections.answering += 1
            self._exchange.start(request)
        else:
            self._accept(request)

    # What comes in -------------------------------------------------------------------------------

    def _fault_of_head(self, headers: dict[bytes, bytes]) -> str | None:
        """What RFC 9112 asks of a head, and the parser lets pass."""
        if self._repeated is not None:
            return f"two headers {self._repeated.decode()}"
        version = self._parser.get_http_version()
        if version == "1.1":
            if b"host" not in headers:
                return "the header host is missing"
        elif version != "1.0":
            return "this is not HTTP/1.1"
        if b"transfer-encoding" in headers:
            if version == "1.0":
                return "HTTP/1.0 has no transfer-encoding"
            if headers[b"transfer-encoding"].strip().lower() != b"chunked":
                return "the only transfer-encoding is chunked"
        return None

    def _require_served(self, request: Request) -> None:
        """Beyond the bound of connections: health, and whoever has a credential."""
        route = request.route
        assert route is not None
        is_bare = route.roles is PUBLIC and not request.body_bytes and not request.is_chunked
        if not request.is_known and not is_bare:
            self._connections.refused += 1
            request.refusal = _no_room()

    def _require_public(self, request: Request) -> None:
        """While the server stops, nothing new is begun; whoever asks for its health is told so."""
        route = request.route
        assert route is not None
        if route.roles is not PUBLIC:
            request.refusal = HttpError(503, "server_stopping", "the server is stopping", *_RETRY)

    def _reserve(self, request: Request, size: int) -> None:
        memory = self._connections.memory
        total = request.held + size
        if not memory.reserve(size, is_known=request.is_known, total=total):
            request.refusal = HttpError(
                503, "request_memory_full", "too many request bodies are in memory; retry", *_RETRY
            )
            return
        request.held = total

    def _take_chunk(self, request: Request, size: int) -> None:
        app = self._connections.app
        if self._body_bytes > app.body_bytes_max:
            most = app.body_limit(request)
            if self._body_bytes > most:
                request.refusal = too_large(most)
                return
        self._reserve(request, size)

    def _ask_for_body(self, request: Request) -> None:
        # Behind an unanswered request it would be taken for the answer to that one.
        if request.headers[b"expect"].strip().lower() == b"100-continue" and self._busy is None:
            self._connections.outbox.put(self._transport, b"HTTP/1.1 100 Continue\r\n\r\n")

    def _count_part(self, data: bytes, *, is_alone: bool) -> None:
        """The part that was received ends inside a head, perhaps with nothing else in it."""
        if is_alone:
            self._head_bytes = 0
        if is_alone or not self._begins:
            self._count_head(len(data))
        elif not self._is_large:
            known = sum(len(name) + len(value) for name, value in self._headers.items())
            self._count_head(len(self._target) + known)
        memory = self._connections.memory
        more = self._head_bytes - self._head_held
        if self._deaf or more <= 0:
            return
        if memory.reserve(more, is_known=self._is_known):
            self._head_held = self._head_bytes
        else:
            self._refuse_stream(_no_room())

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _HEAD_BYTES_MAX:
            self._refuse_stream(_large("headers", _HEAD_BYTES_MAX))

    def _count_trailer(self, size: int) -> None:
        self._trailer_bytes += size + 4
        if self._trailer_bytes > limits.TRAILER.bytes_max:
            self._refuse_stream(_large("trailers", limits.TRAILER.bytes_max))

    def _release_head(self) -> None:
        self._connections.memory.release(self._head_held)
        self._head_held = 0

    def _count_framing(self, size: int, body_before: int) -> None:
        """The part that was received ends inside a body: what of it was not the body?"""
        request = self._request
        assert request is not None
        if self._receiving is None:
            self._receiving = Progress(limits.BODY, self._connections.sweeps, self._body_bytes)
        if not request.is_chunked or self._begins:
            return
        gained = self._body_bytes - body_before
        self._framing_bytes += size - gained
        # Nothing but framing may be one trailer that never ends.
        self._bare_bytes = 0 if gained else self._bare_bytes + size
        most = limits.TRAILER.bytes_max
        by_body = limits.FRAMING_PER_BODY_BYTE * self._body_bytes
        if self._bare_bytes > most or self._framing_bytes > most + by_body:
            self._refuse_stream(_large("trailers", most))

    def _head_without_offer(self) -> bytes:
        """The head of a request that offers another protocol, as if it did not.

        Some clients offer HTTP/2 with every first request and expect to be passed over; the
        parser would stop behind such a head.
        """
        parser = self._parser
        version = parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (parser.get_method(), self._target, version)]
        for name, value in self._headers.items():
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(o for o in options if o.lower() not in _OFFER)
            if name not in _OFFER:
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _drop_incoming(self) -> None:
        """Forget the message that is coming in."""
        self._release_head()
        request, self._request = self._request, None
        self._began = self._receiving = self._parts = None
        if request is not None:
            self._forget(request)

    def _drop_waiting(self) -> None:
        while self._waiting:
            self._forget(self._waiting.popleft())

    def _forget(self, request: Request) -> None:
        """A request does without its body from here on."""
        request.body = b""
        self._connections.memory.held -= request.held
        request.held = 0

    def _ignore(self, data: bytes) -> None:
        self._ignored_bytes += len(data)
        if self._ignored_bytes > limits.REFUSED.bytes_max:
            self.abort()

    # Answering -----------------------------------------------------------------------------------

    def _accept(self, request: Request) -> None:
        """Start with a request, or let it wait for its turn."""
        if self._busy is None:
            self._start(request)
        elif len(self._waiting) < limits.PIPELINED_MAX:
            self._waiting.append(request)
        else:
            self.abort()

    def _start(self, request: Request) -> None:
        self._busy = request
        self._connections.answering += 1
        self._exchange.start(request)

    def _refuse(self, request: Request) -> None:
        """Answer a request that is not admitted, before its body is here.

        The connection goes on behind a body that is small enough to be skipped, unless the client
        may not send it, or has its answer closed anyway.
        """
        can_skip = not request.is_chunked and request.body_bytes <= limits.SKIPPED_BYTES_MAX
        if request.is_upgrade or not can_skip or b"expect" in request.headers:
            request.keep_alive = False
            self._deaf = True
        self._accept(request)

    def _answer(self, request: Request, response: Response) -> None:
        connections = self._connections
        if request.held:
            connections.memory.held -= request.held
            request.held = 0
        if self._is_lost:
            connections.end()
            return
        if type(response) is not Response:
            self._hand_over(request, cast(Handover, response))
            return
        if connections.is_draining:
            request.keep_alive = False
        self._write(request, response)
        if self._stalled is not None:
            self._sent = request
        elif request.keep_alive and not self._waiting:
            # As `_go_on_behind` does, for nearly all.
            connections.answering -= 1
            self._busy = None
            self._idle_since = connections.sweeps
        else:
            self._go_on_behind(request)

    def _go_on_behind(self, request: Request) -> None:
        """The answer to a request is on its way: take up what follows it."""
        self._connections.end()
        self._busy = None
        self._idle_since = self._connections.sweeps
        if not request.keep_alive:
            if request.refusal is not None or self._request is not None:
                self._linger()
            else:
                self._close()
        elif self._waiting:
            self._start(self._waiting.popleft())

    def _write(self, request: Request, response: Response) -> None:
        head = _head(response.status, response.media_type, response.headers, request.keep_alive)
        body, tail = response.body, response.tail
        size = len(body) + len(tail)
        length = _LENGTHS[size] if size < 4_096 else b"%d\r\n\r\n" % size
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
        if len(self._early) > limits.UPGRADE.bytes_max:
            self.abort()

    def _hand_over(self, request: Request, response: Handover) -> None:
        connections = self._connections
        connections.end()
        self._busy = None
        phrase = HTTPStatus(response.status).phrase.encode()
        lines = [b"HTTP/1.1 %d %b" % (response.status, phrase)]
        lines += [name + b": " + value for name, value in response.headers]
        connections.outbox.put(self._transport, b"\r\n".join(lines) + b"\r\n\r\n")
        if request.method == "HEAD" or request.is_gone:
            # It wants to know the head alone, or can no longer be asked what it wants.
            self._close()
            return
        # From here on somebody else writes.
        connections.outbox.flush()
        if self._is_lost or self._transport.is_closing():
            return
        successor = self._successor = response.successor
        connections.hand_over(self, successor, self._transport)
        self._is_lost = True
        early, self._early = self._early, b""
        self._drop_waiting()
        self._drop_incoming()
        self._end_stall()
        if early:
            successor.data_received(early)
        # The parser may be at work just now.
        asyncio.get_running_loop().call_soon(self._detach)

    def _linger(self) -> None:
        """Close our side, and let a client that is still sending read why before we hang up."""
        self._deaf = True
        self._drop_incoming()
        self._connections.outbox.flush()
        if self._transport.is_closing():
            return
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(limits.REFUSED.seconds, self._transport.abort)

    def _refuse_stream(self, error: HttpError) -> None:
        """Refuse what is no request, or not one any more; the connection ends with it."""
        if self._deaf or self._transport.is_closing():
            return
        self._deaf = True
        self._drop_incoming()
        if self._busy is not None:
            # Its answer is still owed; the connection ends behind it.
            self._busy.keep_alive = False
            self._drop_waiting()
            return
        self._write(Request("GET", b"", {}, keep_alive=False), _plain(error))
        self._linger()


def _plain(error: HttpError) -> Response:
    """An error of the connection: no route says in which shape."""
    body = b'{"message":"%b","reason":"%b"}' % (error.message.encode(), error.reason.encode())
    return Response(error.status, body, error.headers)


def _malformed(message: str) -> HttpError:
    return HttpError(400, "malformed_http", message)


def _large(what: str, bytes_max: int) -> HttpError:
    return HttpError(431, "headers_too_large", f"more than {bytes_max} bytes of {what}")


def _timeout(what: str) -> HttpError:
    return HttpError(408, "request_timeout", f"{what} took too long")


_RETRY = (
    {"retryable": True, "retry_after_seconds": limits.RETRY_AFTER_SECONDS},
    ((b"retry-after", b"%d" % limits.RETRY_AFTER_SECONDS),),
)


def _no_room() -> HttpError:
    return HttpError(503, "too_many_connections", "all connections are in use; retry", *_RETRY)

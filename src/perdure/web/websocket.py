"""One WebSocket after its handshake: messages in and out, pings, and an orderly end."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from perdure.web import frames
from perdure.web.limits import WEBSOCKET_IN, WEBSOCKET_OUT, Progress
from perdure.web.message import Handover, HttpError, Request, Successor
from perdure.web.outflow import Outflow

_CLOSE_SECONDS = 2.0
"""How long the other side may take to say goodbye before we hang up."""
_MISSED_MAX = 2
"""How many pings may go unanswered."""


class Listener(Protocol):
    """Who a WebSocket is for. Called on the loop; what it raises closes the socket."""

    def opened(self, socket: "WebSocket") -> None: ...
    def received(self, message: bytes) -> None: ...
    def lost(self) -> None:
        """The connection is gone. Called once."""
        ...


class WebSocket(Successor):
    """Frames over a transport. Text and binary messages look the same to the listener."""

    def __init__(self, listener: Listener, *, bytes_max: int, ping_seconds: float) -> None:
        self._listener = listener
        self._reader = frames.FrameReader(bytes_max)
        self._ping_seconds = ping_seconds
        self._transport: asyncio.Transport
        self._out: Outflow
        # The message that is coming in, and how many bytes have come in altogether.
        self._receiving: Progress | None = None
        self._received_bytes = 0
        self._held = 0
        self._sweep = 0
        # The latest ping of a peer that takes nothing: older ones need no answer.
        self._unanswered: bytes | None = None
        self._missed = 0
        self._is_closing = False
        self._pinging: asyncio.TimerHandle | None = None
        self.on_writable: Callable[[], None] = _do_nothing

    # The stream ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._out = Outflow(self._transport, WEBSOCKET_OUT)
        self._ping_later()
        self._listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._is_closing = True
        if self._pinging is not None:
            self._pinging.cancel()
        self._hold(0)
        # The listener refers to us, too.
        listener, self._listener = self._listener, _NOBODY
        self.on_writable = _do_nothing
        listener.lost()

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        reader = self._reader
        try:
            for message in reader.feed(data):
                self._receiving = None
                self._take(message)
            self._hold(reader.pending_bytes)
        except frames.FrameError as error:
            self.close(error.code, error.reason)
            # What follows makes no sense either, so nobody waits for a goodbye.
            self._transport.close()
            return
        if reader.is_between:
            self._receiving = None
        elif self._receiving is None:
            self._receiving = Progress(WEBSOCKET_IN, self._sweep, self._received_bytes)

    def pause_writing(self) -> None:
        self._out.pause()

    def resume_writing(self) -> None:
        self._out.resume()
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None and not self._is_closing:
            self._out.write(frames.frame(frames.PONG, unanswered))
        self.on_writable()

    def check(self, sweep: int) -> None:
        """Cut off a peer that sends or takes a message too slowly."""
        self._sweep = sweep
        self._out.check(sweep)
        if self._receiving is not None and self._receiving.is_late(sweep, self._received_bytes):
            self._transport.abort()

    def _hold(self, size: int) -> None:
        """Count what is held of a message against the memory of all connections."""
        memory, more = self.memory, size - self._held
        if memory is None:
            return
        if more <= 0:
            memory.release(-more)
        elif not memory.reserve(more, is_known=True, total=size):
            raise frames.FrameError(frames.TRY_LATER, "too many bytes are in memory; retry")
        self._held = size

    # Messages ------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        return self._out.is_writable

    @property
    def is_open(self) -> bool:
        return not self._is_closing

    def send(self, text: bytes) -> None:
        """Send a text message; one that is sent while the socket closes is lost."""
        if not self._is_closing:
            self._out.write(frames.frame(frames.TEXT, text))

    def close(self, code: int = frames.NORMAL, reason: str = "") -> None:
        """Say goodbye, and hang up when the other side has said it too, or soon anyway."""
        if self._is_closing:
            return
        self._is_closing = True
        self._transport.write(frames.close_frame(code, reason))
        asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._transport.abort)

    def go_away(self) -> None:
        self.close(frames.GOING_AWAY, "the server is about to stop")

    def abort(self) -> None:
        self._transport.abort()

    def _take(self, message: frames.Message) -> None:
        opcode, payload = message
        self._missed = 0
        if opcode == frames.PING:
            if not self._out.is_writable:
                self._unanswered = payload
            elif not self._is_closing:
                self._out.write(frames.frame(frames.PONG, payload))
        elif opcode == frames.CLOSE:
            code = frames.close_code(payload)
            if not self._is_closing:
                self._is_closing = True
                self._transport.write(frames.close_frame(code))
            self._transport.close()
        elif opcode != frames.PONG and not self._is_closing:
            self._listener.received(payload)

    def _ping_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._pinging = loop.call_later(self._ping_seconds, self._ping)

    def _ping(self) -> None:
        if self._missed >= _MISSED_MAX:
            self._transport.abort()
            return
        self._missed += 1
        if not self._is_closing:
            self._out.write(frames.frame(frames.PING, b""))
            self._ping_later()


def upgrade(
    request: Request, listener: Listener, *, protocols: tuple[str, ...], **options: float
) -> Handover:
    """The answer that turns a request into a WebSocket for a listener.

    `protocols` are the names that we speak, the best first. A client that offers others only is
    refused; one that offers none is served without a name.
    """
    headers = request.headers
    key = headers.get(b"sec-websocket-key", b"").strip()
    if not request.is_upgrade or request.method != "GET":
        raise HttpError(
            400, "upgrade_required", "this path is for WebSockets", headers=_SPEAKS_WEBSOCKET
        )
    if headers.get(b"sec-websocket-version", b"").strip() != b"13" or len(key) != 24:
        raise HttpError(
            400, "malformed_upgrade", "version 13 and a key are needed", headers=_SPEAKS_WEBSOCKET
        )
    offered = [
        name.strip() for name in (request.header(b"sec-websocket-protocol") or "").split(",")
    ]
    chosen = next((name for name in protocols if name in offered), None)
    if chosen is None and any(offered):
        raise HttpError(400, "unknown_subprotocol", f"offer one of {', '.join(protocols)}")
    answered = [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", frames.accept_key(key)),
    ]
    if chosen is not None:
        answered.append((b"sec-websocket-protocol", chosen.encode()))
    socket = WebSocket(
        listener,
        bytes_max=int(options["bytes_max"]),
        ping_seconds=options["ping_seconds"],
    )
    return Handover(101, b"", tuple(answered), successor=socket)


def _do_nothing() -> None:
    pass


class _Nobody:
    """Who a WebSocket is for that is gone."""

    def opened(self, socket: WebSocket) -> None:
        pass

    def received(self, message: bytes) -> None:
        pass

    def lost(self) -> None:
        pass


_NOBODY = _Nobody()
_SPEAKS_WEBSOCKET = ((b"upgrade", b"websocket"), (b"sec-websocket-version", b"13"))

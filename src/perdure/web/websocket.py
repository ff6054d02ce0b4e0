"""One WebSocket after its handshake: messages in and out, pings, and an orderly end."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from perdure.web import frames
from perdure.web.message import Handover, HttpError, Request, Successor

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
        self._missed = 0
        self._is_closing = False
        self._pinging: asyncio.TimerHandle | None = None
        self.is_writable = True
        self.on_writable: Callable[[], None] = lambda: None

    # The stream ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ping_later()
        self._listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._is_closing = True
        if self._pinging is not None:
            self._pinging.cancel()
        self._listener.lost()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._take(message)
        except frames.FrameError as error:
            self.close(error.code, error.reason)
            # What follows makes no sense either, so nobody waits for a goodbye.
            self._transport.close()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self.on_writable()

    # Messages ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return not self._is_closing

    def send(self, text: bytes) -> None:
        """Send a text message; one that is sent while the socket closes is lost."""
        if not self._is_closing:
            self._transport.write(frames.frame(frames.TEXT, text))

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
            if not self._is_closing:
                self._transport.write(frames.frame(frames.PONG, payload))
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
            self._transport.write(frames.frame(frames.PING, b""))
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


_SPEAKS_WEBSOCKET = ((b"upgrade", b"websocket"), (b"sec-websocket-version", b"13"))

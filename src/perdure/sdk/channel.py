"""One WebSocket to an engine: messages in, messages out, and the end of it.

`websockets` does the protocol without touching a socket; this feeds it. All messages that arrive
together are handled together, and what is sent in one turn of the loop leaves in one write.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit, urlunsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from perdure.sdk.limits import MESSAGE_BYTES_MAX

NO_WORD = 1006
"""The code of a connection that ended without a closing message."""

_silent = logging.getLogger("perdure.sdk.websockets")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class NoChannel(ConnectionError):
    """The engine could not be reached, or refused the upgrade."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a connection ended."""

    code: int
    reason: str


class Channel(asyncio.Protocol):
    """An open WebSocket. `on_message` is called with each message, in order."""

    def __init__(self, protocol: ClientProtocol, on_message: Callable[[bytes], None]) -> None:
        self._protocol = protocol
        self._on_message = on_message
        self._parts: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._will_flush = False
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[Ending] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._protocol.state is State.OPEN

    def send(self, message: bytes) -> None:
        """Send a message with the others of this turn; into a closed channel it goes nowhere."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_text(message)
            self._flush_soon()

    def begin_close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye; `ended` tells when the engine has answered."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            self._flush_soon()

    def abort(self) -> None:
        """End it at once: a dead peer answers no goodbye."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._flush()

    def data_received(self, data: bytes) -> None:
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if not isinstance(event, Frame):
                self._open()
            elif event.opcode is Opcode.TEXT and event.fin:
                self._on_message(bytes(event.data))
            elif event.opcode in (Opcode.TEXT, Opcode.CONT):
                self._parts.append(bytes(event.data))
                if event.fin:
                    self._on_message(b"".join(self._parts))
                    self._parts.clear()
        if protocol.handshake_exc is not None:
            self._open()
        self._flush()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        protocol = self._protocol
        protocol.receive_eof()
        if not self.opened.done():
            self.opened.set_exception(NoChannel(str(exc or "the connection was closed")))
        if not self.ended.done():
            told = protocol.close_rcvd
            ending = Ending(told.code, told.reason) if told else Ending(NO_WORD, str(exc or ""))
            self.ended.set_result(ending)

    # ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self.opened.done():
            return
        failure = self._protocol.handshake_exc
        if failure is None:
            self.opened.set_result(None)
        elif isinstance(failure, InvalidStatus):
            status, body = failure.response.status_code, failure.response.body or b""
            told = body[:500].decode("utf-8", "replace")
            self.opened.set_exception(NoChannel(f"the engine answered {status}: {told}"))
        else:
            self.opened.set_exception(NoChannel(str(failure)))

    def _flush_soon(self) -> None:
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        parts = self._protocol.data_to_send()
        if not parts or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(b"".join(parts))
        if parts[-1] == b"":  # the end of the stream
            self._transport.close()


async def dial(
    engine_url: str,
    *,
    headers: Mapping[str, str],
    subprotocols: Sequence[str],
    on_message: Callable[[bytes], None],
    seconds: float,
) -> Channel:
    """Open a channel to the engine's `/connect`, or raise `NoChannel`."""
    parts = urlsplit(engine_url)
    is_secure = parts.scheme == "https"
    path = parts.path.rstrip("/") + "/connect"
    uri = parse_uri(urlunsplit(("wss" if is_secure else "ws", parts.netloc, path, "", "")))
    protocol = ClientProtocol(
        uri,
        subprotocols=[Subprotocol(name) for name in subprotocols],
        max_size=MESSAGE_BYTES_MAX,
        logger=_silent,
    )
    request = protocol.connect()
    for name, value in headers.items():
        request.headers[name] = value
    protocol.send_request(request)
    channel = Channel(protocol, on_message)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            await loop.create_connection(
                lambda: channel,
                uri.host,
                uri.port,
                ssl=ssl.create_default_context() if is_secure else None,
            )
            await channel.opened
    except (OSError, TimeoutError) as error:
        channel.abort()
        raise NoChannel(str(error) or "no answer in time") from error
    except asyncio.CancelledError:
        channel.abort()
        raise
    return channel

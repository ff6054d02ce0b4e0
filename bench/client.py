"""One keep-alive HTTP/1.1 connection to a loopback server, as cheap as Python allows.

It trusts the server under test to frame replies with Content-Length, and never pipelines: one
caller, one connection, one request in flight.
"""

import asyncio
from typing import Final, cast

HEAD_END: Final = b"\r\n\r\n"
CONTENT_LENGTH: Final = b"content-length:"


class Refused(Exception):
    """The server answered, but not with a success."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body[:500].decode(errors='replace')}")
        self.status = status


class Disconnected(Exception):
    """The connection ended in the middle of a request."""


class Connection(asyncio.Protocol):
    """A caller's own connection; it opens on first use and again after an idle close."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[bytes] | None = None
        self._received = bytearray()
        self._body_start = 0
        self._reply_end = 0

    async def open(self) -> None:
        """Connect unless already connected."""
        if self._transport is None:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: self, self._host, self._port)

    async def send(self, request: bytes) -> bytes:
        """Send a whole request and return the body of its reply; raises `Refused` on 3xx to 5xx."""
        if self._transport is None:
            await self.open()
        assert self._transport is not None
        assert self._waiting is None, "one request at a time"
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def close(self) -> None:
        """Hang up without a word, as a stopping worker does."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the shape of asyncio's without inheriting from it.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget_reply()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Disconnected(str(exc or "closed by the server")))

    def data_received(self, data: bytes) -> None:
        # Most replies arrive whole; only the parts of a long one are gathered.
        received: bytes | bytearray = data
        if self._received:
            self._received += data
            received = self._received
        if not self._reply_end:
            self._read_head(received)
        if self._reply_end and len(received) >= self._reply_end:
            self._settle(received)
        elif received is data:
            self._received += data

    def _read_head(self, received: bytes | bytearray) -> None:
        head_end = received.find(HEAD_END)
        if head_end >= 0:
            self._body_start = head_end + len(HEAD_END)
            self._reply_end = self._body_start + content_length(bytes(received[:head_end]))

    def _settle(self, received: bytes | bytearray) -> None:
        status = int(received[9:12])
        body = bytes(received[self._body_start : self._reply_end])
        self._forget_reply()
        if self._waiting is None or self._waiting.done():
            return
        if status < 300:
            self._waiting.set_result(body)
        else:
            self._waiting.set_exception(Refused(status, body))

    def _forget_reply(self) -> None:
        self._received.clear()
        self._body_start = self._reply_end = 0


def content_length(head: bytes) -> int:
    """The length a reply head announces; a bodyless 204 announces none."""
    found = head.lower().find(CONTENT_LENGTH)
    if found < 0:
        if head[9:12] == b"204":
            return 0
        raise Disconnected(f"reply without Content-Length: {head[:200]!r}")
    line_end = head.find(b"\r\n", found)
    return int(head[found + len(CONTENT_LENGTH) : line_end if line_end >= 0 else len(head)])

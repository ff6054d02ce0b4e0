"""PostgreSQL's protocol 3, as far as somebody in the middle must know it: where a message ends.

Encryption is declined, so everything that follows can be read.
"""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from threading import Thread
from typing import Final, TypeVar
from urllib.parse import urlsplit

Result = TypeVar("Result")

HOST: Final = "127.0.0.1"
START_TIMEOUT: Final = 10.0
PROTOCOL_3: Final = 3 << 16
CANCEL: Final = 80877102
ENCRYPTION: Final = (80877103, 80877104)
FRAME_BYTES_MAX: Final = 1 << 30

# What a client sends.
QUERY, SYNC, CALL, EXECUTE, TERMINATE = b"Q", b"S", b"F", b"E", b"X"
# What a server sends.
READY, ERROR, AUTHENTICATION, PARAMETER, KEY = b"Z", b"E", b"R", b"S", b"K"

ENDING: Final = frozenset({QUERY, SYNC, CALL})
"""What a client sends at the end of a request: each is answered with one READY."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of either side."""

    kind: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        """As it is sent."""
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body


@dataclass(frozen=True, slots=True)
class Startup:
    """The first message of a session."""

    parameters: dict[str, str]

    @property
    def raw(self) -> bytes:
        """As it is sent."""
        words = [word.encode() for pair in self.parameters.items() for word in pair]
        body = struct.pack("!i", PROTOCOL_3) + b"".join(word + b"\0" for word in words) + b"\0"
        return struct.pack("!i", len(body) + 4) + body


@dataclass(frozen=True, slots=True)
class Cancel:
    """A connection that only asks to cancel what another one does."""

    key: bytes

    @property
    def raw(self) -> bytes:
        """As it is sent."""
        return struct.pack("!ii", len(self.key) + 8, CANCEL) + self.key


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next message, or None when the other side is gone."""
    try:
        head = await reader.readexactly(5)
        size = int.from_bytes(head[1:], "big") - 4
        assert 0 <= size < FRAME_BYTES_MAX, f"a frame of {size} bytes"
        return Frame(head[:1], await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def read_opening(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Startup | Cancel | None:
    """How a client introduces itself, after it was told that there is no encryption here."""
    try:
        for _ in range(len(ENCRYPTION) + 1):
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            body = await reader.readexactly(size - 8)
            if code not in ENCRYPTION:
                return Cancel(body) if code == CANCEL else _startup_of(body)
            writer.write(b"N")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    return None


def _startup_of(body: bytes) -> Startup:
    words = body.rstrip(b"\0").decode().split("\0")
    return Startup(dict(zip(words[::2], words[1::2], strict=True)))


def words_of(body: bytes, count: int) -> list[str]:
    """The first zero-ended words of a message."""
    return [word.decode(errors="replace") for word in body.split(b"\0", count)[:count]]


class LoopbackServer:
    """Serves a free port of loopback, on a loop in a thread of its own.

    Clients may live in the loop of a test or in another process: neither notices the thread.
    """

    def __init__(self, serve: Serve, *, name: str) -> None:
        self._serve = serve
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._loop = asyncio.new_event_loop()
        self._visits: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    def open(self) -> None:
        """Listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_TIMEOUT)

    def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Hang up on everybody, do a last thing on the loop, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._leave(last), self._loop).result(START_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT)
        self._loop.close()

    def call(self, function: Callable[[], Result]) -> Result:
        """Run something on the loop of the server, where all its state lives."""

        async def calling() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(calling(), self._loop).result(START_TIMEOUT)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._visit, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _leave(self, last: Callable[[], Awaitable[None]] | None) -> None:
        assert self._server is not None
        self._server.close()
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        if last is not None:
            await last()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None
        self._visits.add(visit)
        # Cancelled only by `_leave`, which waits for us.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await self._serve(reader, writer)
            finally:
                self._visits.discard(visit)
                writer.transport.abort()


def address_of(url: str) -> tuple[str, int]:
    """Where the server of a URL listens."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or 5432


def moved(url: str, port: int) -> str:
    """The same database at another port of loopback."""
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    return parts._replace(netloc=f"{user}{HOST}:{port}").geturl()

"""A small transaction pooler: every transaction of a client runs in another session.

It imitates pgbouncer with `pool_mode = transaction` and no help for prepared statements, which is
the strictest that operators run. Sessions take turns, so whatever relies on one of them (a named
statement, SET, LISTEN, a session's advisory lock) fails in the second transaction and not on a bad
day in production.
"""

import asyncio
import secrets
import struct
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from tests.support.pgwire import (
    AUTHENTICATION,
    ENDING,
    ERROR,
    KEY,
    PARAMETER,
    READY,
    TERMINATE,
    Cancel,
    Frame,
    LoopbackServer,
    Startup,
    address_of,
    moved,
    read_frame,
    read_opening,
)

KNOWN_PARAMETERS: Final = frozenset(
    {
        *("user", "database", "application_name", "client_encoding"),
        *("datestyle", "timezone", "standard_conforming_strings"),
    }
)
"""What a client may say at the start; pgbouncer refuses everything else, as search_path."""
IDLE: Final = b"I"


class Pooler:
    """Few sessions behind one port of loopback; its state lives on a loop of its own."""

    def __init__(self, upstream_url: str, *, sessions: int = 2) -> None:
        self.upstream_url = upstream_url
        self._server = LoopbackServer(self._serve, name="pooler")
        self._sessions = sessions
        self._free: asyncio.Queue[_Session | None] = asyncio.Queue()
        self._clients: dict[bytes, _Client] = {}
        self._open: set[_Session] = set()

    @property
    def url(self) -> str:
        """The same database, through the pooler."""
        return moved(self.upstream_url, self._server.port)

    async def take(self) -> "_Session":
        """The session that has rested longest; one that is not there yet is opened."""
        while True:
            session = await self._free.get()
            if session is not None and session.is_alive:
                return session
            try:
                session = await _Session.open(self)
            except OSError:
                self._free.put_nowait(None)
                raise
            self._open.add(session)
            return session

    def give_back(self, session: "_Session") -> None:
        """To the end of the line; a dead one leaves its place to a new one."""
        if not session.is_alive:
            self._open.discard(session)
        self._free.put_nowait(session if session.is_alive else None)

    def __enter__(self) -> Self:
        for _ in range(self._sessions):
            self._free.put_nowait(None)
        self._server.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close(self._close_sessions)

    async def _close_sessions(self) -> None:
        for session in self._open:
            await session.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = await read_opening(reader, writer)
        if isinstance(opening, Cancel):
            await self._cancel(opening)
        elif opening is not None:
            client = _Client(self, reader, writer)
            self._clients[client.key] = client
            try:
                await client.run(opening)
            finally:
                del self._clients[client.key]

    async def _cancel(self, request: Cancel) -> None:
        client = self._clients.get(request.key)
        if client is not None and client.session is not None:
            reader, writer = await asyncio.open_connection(*address_of(self.upstream_url))
            writer.write(Cancel(client.session.key).raw)
            await reader.read()
            writer.transport.abort()


class _Client:
    """Holds a session from the first message of a transaction to its end."""

    def __init__(
        self, pooler: Pooler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._pooler = pooler
        self._reader = reader
        self.writer = writer
        self.key = secrets.token_bytes(8)
        self.session: _Session | None = None

    async def run(self, opening: Startup) -> None:
        """Greet, then carry messages until the client leaves."""
        unknown = [name for name in opening.parameters if name.lower() not in KNOWN_PARAMETERS]
        if unknown:
            await self._refuse("08P01", f"unsupported startup parameter: {unknown[0]}")
            return
        try:
            await self._greet()
            while (frame := await read_frame(self._reader)) is not None:
                if frame.kind == TERMINATE:
                    return
                if self.session is None:
                    self.session = await self._pooler.take()
                self.session.send(frame, self)
        except OSError as error:
            await self._refuse("08006", f"the server cannot be reached: {error}")
        finally:
            await self._leave()

    async def _greet(self) -> None:
        session = await self._pooler.take()
        frames = [
            Frame(AUTHENTICATION, struct.pack("!i", 0)),
            *session.parameters,
            Frame(KEY, self.key),
            Frame(READY, IDLE),
        ]
        self._pooler.give_back(session)
        self.writer.write(b"".join(frame.raw for frame in frames))

    async def _leave(self) -> None:
        # Nobody can finish the transaction of a client that left: it ends with its session.
        session, self.session = self.session, None
        if session is not None:
            await session.close()
            self._pooler.give_back(session)

    async def _refuse(self, code: str, words: str) -> None:
        fields = b"".join(
            letter + word.encode() + b"\0"
            for letter, word in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", code), (b"M", words))
        )
        self.writer.write(Frame(ERROR, fields + b"\0").raw)
        await self.writer.drain()
        self.writer.close()
        await self.writer.wait_closed()


class _Session:
    """One connection to the server, lent to one client at a time."""

    def __init__(
        self, pooler: Pooler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._pooler = pooler
        self._reader = reader
        self._writer = writer
        self._client: _Client | None = None
        self._owed = 0
        self._listening: asyncio.Task[None] | None = None
        self.key = b""
        self.parameters: list[Frame] = []
        self.is_alive = True

    @classmethod
    async def open(cls, pooler: Pooler) -> Self:
        """Start a session of the pooler's own."""
        session = cls(pooler, *await asyncio.open_connection(*address_of(pooler.upstream_url)))
        try:
            await session._start()
        except BaseException:
            session._writer.transport.abort()
            raise
        session._listening = asyncio.create_task(session._listen())
        return session

    def send(self, frame: Frame, client: _Client) -> None:
        """Carry a message of the client that has the session."""
        self._client = client
        if frame.kind in ENDING:
            self._owed += 1
        self._writer.write(frame.raw)

    async def close(self) -> None:
        """Hang up."""
        self.is_alive = False
        self._client = None
        self._writer.transport.abort()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _start(self) -> None:
        parts = urlsplit(self._pooler.upstream_url)
        assert parts.username is not None
        startup = Startup({"user": parts.username, "database": parts.path[1:]})
        self._writer.write(startup.raw)
        while (frame := await read_frame(self._reader)) is not None:
            if frame.kind == READY:
                return
            if frame.kind == PARAMETER:
                self.parameters.append(frame)
            if frame.kind == KEY:
                self.key = frame.body
            if frame.kind == ERROR:
                raise ConnectionError(frame.body.decode(errors="replace"))
        raise ConnectionError("the server hung up")

    async def _listen(self) -> None:
        """Carry answers to the client that has the session; what comes without one is lost."""
        while (frame := await read_frame(self._reader)) is not None:
            client = self._client
            if frame.kind == READY:
                self._owed -= 1
                if not self._owed and frame.body == IDLE:
                    self._part()
            if client is not None:
                client.writer.write(frame.raw)
        self.is_alive = False
        if self._client is not None:
            self._client.writer.transport.abort()

    def _part(self) -> None:
        if self._client is not None:
            self._client.session = None
            self._client = None
            self._pooler.give_back(self)

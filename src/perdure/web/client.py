"""A small HTTP/1.1 client: posts a body, reads a bounded answer, keeps connections for the next.

Follows no redirects and uses no proxies. Whoever calls decides how long to wait.
"""

import asyncio
import contextlib
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 5.0
IDLE_PER_ORIGIN_MAX = 32
_READ_BYTES = 65_536


class ClientError(Exception):
    """There was no answer, or none that makes sense."""


class AnswerTooLarge(ClientError):
    """The answer is larger than the caller takes."""


class Unreachable(ClientError):
    """No connection came about, so nothing was sent."""


class ConnectionLost(ClientError):
    """The connection ended after something was sent and before the answer was complete."""


class Stale(ConnectionLost):
    """The connection closed before anything came back."""


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes


class Target(NamedTuple):
    """Where a URL leads."""

    host: str
    port: int
    is_secure: bool
    path: str


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses that may be connected to for a host and a port. Raises `ClientError`."""


@lru_cache(maxsize=1024)
def target_of(url: str) -> Target:
    """The parts of a URL. Raises `ClientError` for one that leads nowhere."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ClientError(f"{url} is no URL") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ClientError(f"{url} is no URL of HTTP")
    is_secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host, port or (443 if is_secure else 80), is_secure, path)


class _Reading:
    """What the parser tells of one answer."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._size = 0
        self.parser: httptools.HttpResponseParser
        self.is_complete = False
        self.keeps_alive = False

    def on_headers_complete(self) -> None:
        # Asked later, the parser has forgotten.
        self.keeps_alive = self.parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def is_too_large(self) -> bool:
        return self._size > self._bytes_max

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def is_usable(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def exchange(self, request: bytes, bytes_max: int) -> tuple[Answer, bool]:
        """The answer, and whether the connection can be used again."""
        self._writer.write(request)
        reading = _Reading(bytes_max)
        parser = reading.parser = httptools.HttpResponseParser(reading)
        silent = True
        while not reading.is_complete:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                kind = Stale if silent else ConnectionLost
                raise kind("the connection closed before the answer was complete")
            silent = False
            try:
                parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise ClientError("the answer is no HTTP") from error
            if reading.is_too_large:
                raise AnswerTooLarge(f"the answer has more than {bytes_max} bytes")
        return Answer(parser.get_status_code(), reading.body), reading.keeps_alive

    def close(self) -> None:
        self._writer.close()


class HttpClient:
    """Connections by origin, the last used one first.

    With `resolve` it connects only to the addresses that this names, so that what was checked is
    what is connected to.
    """

    def __init__(self, resolve: Resolve | None = None) -> None:
        self._resolve = resolve
        self._idle: dict[tuple[str, int, bool], list[_Connection]] = defaultdict(list)
        self._context: ssl.SSLContext | None = None

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, bytes_max: int
    ) -> Answer:
        """Post JSON and return the answer. Raises `ClientError`, by how far it got."""
        target = target_of(url)
        request = _request(target, body, headers)
        known = self._take(target)
        if known is not None:
            # One that was idle may have been closed at this very moment, and nobody read it.
            with contextlib.suppress(Stale, OSError):
                return await self._exchange(target, known, request, bytes_max)
        connection = await self._open(target)
        try:
            return await self._exchange(target, connection, request, bytes_max)
        except OSError as error:
            raise ConnectionLost(f"{target.host}:{target.port} is away: {error}") from error

    async def _exchange(
        self, target: Target, connection: _Connection, request: bytes, bytes_max: int
    ) -> Answer:
        try:
            answer, is_usable = await connection.exchange(request, bytes_max)
        except BaseException:
            connection.close()
            raise
        idle = self._idle[target[:3]]
        if is_usable and len(idle) < IDLE_PER_ORIGIN_MAX:
            idle.append(connection)
        else:
            connection.close()
        return answer

    def _take(self, target: Target) -> _Connection | None:
        idle = self._idle[target[:3]]
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None

    async def _open(self, target: Target) -> _Connection:
        try:
            secure = self._secure() if target.is_secure else None
            async with asyncio.timeout(CONNECT_SECONDS):
                if self._resolve is None:
                    return _Connection(
                        *await asyncio.open_connection(target.host, target.port, ssl=secure)
                    )
                return await self._open_at(
                    await self._resolve(target.host, target.port), target, secure
                )
        except TimeoutError as error:
            raise Unreachable(f"{target.host}:{target.port} does not answer") from error
        except (OSError, UnicodeError) as error:
            # Names that are too long for DNS are found out while connecting.
            raise Unreachable(f"{target.host}:{target.port} is away: {error}") from error

    async def _open_at(
        self, addresses: Sequence[str], target: Target, secure: ssl.SSLContext | None
    ) -> _Connection:
        name = target.host if secure is not None else None
        for address in addresses[:-1]:
            with contextlib.suppress(OSError):
                return _Connection(
                    *await asyncio.open_connection(
                        address, target.port, ssl=secure, server_hostname=name
                    )
                )
        return _Connection(
            *await asyncio.open_connection(
                addresses[-1], target.port, ssl=secure, server_hostname=name
            )
        )

    def _secure(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context

    def close(self) -> None:
        """Let go of what is idle."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


def _request(target: Target, body: bytes, headers: Mapping[str, str]) -> bytes:
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"host: {host}:{target.port}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body

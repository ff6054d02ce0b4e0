"""A small HTTP/1.1 client: requests of JSON to one engine over connections that are kept.

It does what registering and the REST client need and no more: no redirects, no cookies, no proxies.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httptools

from perdure.sdk.errors import ApiError
from perdure.sdk.limits import ANSWER_BYTES_MAX, CONNECTIONS_IDLE_MAX


@dataclass(slots=True)
class Answer:
    """A status, headers in lower case and a body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpClient:
    """Requests to one server."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(base_url)
        assert parts.hostname is not None
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._is_secure else 80)
        self._path = parts.path.rstrip("/")
        named = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = f"host: {parts.netloc.rpartition('@')[2]}\r\n{named}"
        self._idle: list[_Line] = []

    async def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float = 30.0,
    ) -> Answer:
        """Send a request and return its whole answer; `ApiError` 0 if there is none.

        A body is JSON unless the headers say otherwise.
        """
        lines = [f"{method} {self._path}{target} HTTP/1.1\r\n", self._head]
        if body is not None or method != "GET":
            told = headers or {"content-type": "application/json"}
            lines += [f"{name}: {value}\r\n" for name, value in told.items()]
            lines.append(f"content-length: {len(body or b'')}\r\n")
        message = "".join([*lines, "\r\n"]).encode("latin-1") + (body or b"")
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(message)
        except (OSError, TimeoutError, EOFError, httptools.HttpParserError) as error:
            raise ApiError(0, f"no answer from the engine: {error or 'timed out'}") from error

    async def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            line = self._idle.pop()
            line.close()
            await line.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _exchange(self, message: bytes) -> Answer:
        line = await self._line()
        try:
            answer = await line.exchange(message)
        except BaseException:
            line.close()
            raise
        if line.is_reusable and len(self._idle) < CONNECTIONS_IDLE_MAX:
            self._idle.append(line)
        else:
            line.close()
        return answer

    async def _line(self) -> "_Line":
        while self._idle:
            line = self._idle.pop()
            if not line.is_stale:
                return line
            line.close()
        context = ssl.create_default_context() if self._is_secure else None
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context)
        return _Line(reader, writer)


class _Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = Answer()
        self._parts: list[bytes] = []
        self._size = 0
        self._parser: Any = None
        self._is_complete = False
        self.is_reusable = False

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed it meanwhile."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def exchange(self, message: bytes) -> Answer:
        self._answer, self._parts, self._size = Answer(), [], 0
        self._is_complete = self.is_reusable = False
        self._parser = parser = httptools.HttpResponseParser(self)
        self._writer.write(message)
        await self._writer.drain()
        while not self._is_complete:
            data = await self._reader.read(65_536)
            if not data:
                if "content-length" in self._answer.headers or not self._answer.status:
                    raise EOFError("the connection was closed")
                break  # the body ends with the connection
            parser.feed_data(data)
            self._answer.status = parser.get_status_code()
        self._answer.body = b"".join(self._parts)
        return self._answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    # httptools ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > ANSWER_BYTES_MAX:
            raise EOFError("the answer is too large")
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self.is_reusable = self._parser.should_keep_alive()  # known only now

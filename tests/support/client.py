"""A lean HTTP client for tests that ask thousands of times: what it sends is what it was given.

Published clients speak to our servers in the stories; here the client would cost more than what it
asks for.
"""

import asyncio
import zlib
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self, cast
from urllib.parse import quote

import httptools

HOST: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 100
IDLE_MAX: Final = 20
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))
_WINDOWS: Final = {"gzip": 31, "deflate": -15}
"""How packed bodies begin, in the words of zlib: deflate without a header."""
_WITHOUT_BODY: Final = ("GET", "HEAD", "DELETE", "OPTIONS")

Reply = tuple[int, dict[str, str], bytes]
"""Status, headers by their names in lower case, and body."""


class Client:
    """One server, with as many connections as calls are under way."""

    def __init__(self, port: int, *, patience_seconds: float) -> None:
        self._port = port
        self._patience_seconds = patience_seconds
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)

    async def request(
        self, method: str, path: str, *, content: bytes | None, headers: Mapping[str, str]
    ) -> Reply:
        """Ask and wait for the whole answer."""
        sent = {
            "host": f"{HOST}:{self._port}",
            "accept-encoding": "identity",
            **{name.lower(): value for name, value in headers.items()},
        }
        if content is not None or method not in _WITHOUT_BODY:
            sent.setdefault("content-length", str(len(content or b"")))
        target = quote(path, safe=_PRINTABLE)
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {sent[name]}" for name in sent), "\r\n"]
        async with self._room, asyncio.timeout(self._patience_seconds):
            connection = await self._connection()
            try:
                head = "\r\n".join(lines).encode("ascii")
                return await connection.exchange(head + (content or b""), method)
            except BaseException:
                connection.close()
                raise
            finally:
                self._put_back(connection)

    async def _connection(self) -> "_Connection":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, HOST, self._port)
        return connection

    def _put_back(self, connection: "_Connection") -> None:
        if connection.is_open and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._idle:
            self._idle.pop().close()


class _Connection(asyncio.Protocol):
    """Asks one thing at a time."""

    _transport: asyncio.Transport
    _parser: httptools.HttpResponseParser
    _reply: "asyncio.Future[Reply]"

    def __init__(self) -> None:
        self._method = ""
        self._has_head = False
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    async def exchange(self, request: bytes, method: str) -> Reply:
        self._method, self._has_head, self._headers, self._body = method, False, {}, []
        self._parser = httptools.HttpResponseParser(self)
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        self._transport.close()

    # What the loop calls -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and self._ends_with_connection:
            self.on_message_complete()
        self._fail(error or ConnectionResetError("closed before the answer was complete"))

    @property
    def _ends_with_connection(self) -> bool:
        """Whether an answer has begun that says of no other end: a stream."""
        framed = {"content-length", "transfer-encoding"}
        return self._has_head and not framed & self._headers.keys()

    def _fail(self, error: Exception) -> None:
        self._transport.close()
        if hasattr(self, "_reply") and not self._reply.done():
            self._reply.set_exception(error)

    # What the parser calls -----------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        known, text = name.decode("ascii").lower(), value.decode("latin-1")
        told = self._headers.get(known)
        self._headers[known] = text if told is None else f"{told}, {text}"

    def on_headers_complete(self) -> None:
        self._has_head = True
        if self._method == "HEAD":
            # Its length is that of a body which does not come, and for which the parser waits.
            self.on_message_complete()
            self._transport.close()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._reply.done():
            return
        body = b"".join(self._body)
        packed = self._headers.get("content-encoding", "identity")
        if body and packed != "identity":
            body = zlib.decompress(body, _WINDOWS[packed])
        if not self._parser.should_keep_alive():
            self._transport.close()
        self._reply.set_result((self._parser.get_status_code(), self._headers, body))

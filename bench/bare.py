"""A server that does next to nothing: what HTTP alone costs in Python on this machine.

It reads a request of JSON, checks three headers and answers with a kilobyte of JSON.
"""

import asyncio
import sys
from typing import Any, cast

import httptools
import msgspec
import uvloop


class _Exchange(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        headers = self._headers
        is_fit = (
            headers.get(b"content-type") == b"application/json"
            and headers.get(b"authorization") == b"Bearer nobody"
            and headers.get(b"x-version") == b"1"
        )
        asked: dict[str, Any] = msgspec.json.decode(self._body)
        body = msgspec.json.encode({"number": asked["number"], "text": "x" * 1000})
        head = f"HTTP/1.1 {200 if is_fit else 400} .\r\nContent-Length: {len(body)}\r\n\r\n"
        assert self._transport is not None
        self._transport.write(head.encode() + body)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Exchange, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"listening on http://{host}:{port}", flush=True)
    # Whoever started us holds the other end.
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve())

"""Server-sent events: an answer that goes on, fed for as long as its client listens."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from perdure.web.limits import EVENTS_OUT
from perdure.web.message import Handover, Successor
from perdure.web.outflow import Outflow

KEEP_ALIVE = b": keep-alive\n\n"
_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"connection", b"close"),
)


class EventStream(Successor):
    """Writes events; what the client still says is not read."""

    def __init__(self, feed: "Callable[[EventStream], Awaitable[None]]") -> None:
        self._feed = feed
        self._feeding: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._out: Outflow
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._out = Outflow(self._transport, EVENTS_OUT)
        self._feeding = asyncio.get_running_loop().create_task(self._run())

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._feeding is not None:
            self._feeding.cancel()

    def pause_writing(self) -> None:
        self._out.pause()
        self._writable.clear()

    def resume_writing(self) -> None:
        self._out.resume()
        self._writable.set()

    def check(self, sweep: int) -> None:
        self._out.check(sweep)

    async def _run(self) -> None:
        try:
            await self._feed(self)
        finally:
            self._transport.close()

    async def send(self, kind: str, data: bytes, number: int | None = None) -> None:
        """Send one event, as soon as the client has taken those before."""
        await self._writable.wait()
        head = b"" if number is None else b"id: %d\n" % number
        self._out.write(b"%bevent: %b\ndata: %b\n\n" % (head, kind.encode(), data))

    async def keep_alive(self) -> None:
        await self._writable.wait()
        self._out.write(KEEP_ALIVE)

    def go_away(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def stream(feed: Callable[[EventStream], Awaitable[None]]) -> Handover:
    """The answer that goes on."""
    return Handover(200, b"", _HEADERS, successor=EventStream(feed))

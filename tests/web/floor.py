"""The floor alone: a real socket, a few routes without any domain."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from perdure.web.app import Application
from perdure.web.auth import TokenAuthentication
from perdure.web.connection import HttpConnection
from perdure.web.limits import ConnectionLimits
from perdure.web.message import HttpError, Request, Response, Successor
from perdure.web.routing import PUBLIC, Route, Router
from perdure.web.server import Connections, listen
from perdure.web.stream import EventStream, stream
from perdure.web.websocket import WebSocket, upgrade
from tests.support.http import Loop, Stream, a_loop

BODY_BYTES_MAX = 4_096
LARGE_BYTES = 200_000
HUGE_BYTES = 20_000_000
SOCKET_BYTES_MAX = 100_000


class CountingConnections(Connections):
    """Counts clients that have come, and those that have closed their side."""

    ended = 0
    entered = 0

    def enter(self, connection: HttpConnection, peer: str) -> bool:
        self.entered += 1
        return super().enter(connection, peer)

    def protocol(self) -> HttpConnection:
        return CountedConnection(self)


class CountedConnection(HttpConnection):
    def eof_received(self) -> bool:
        connections = self._connections
        assert isinstance(connections, CountingConnections)
        connections.ended += 1
        return super().eof_received()


class Listening:
    """Keeps what a WebSocket hears."""

    def __init__(self) -> None:
        self.socket: WebSocket
        self.messages: list[bytes] = []
        self.is_lost = False

    def opened(self, socket: WebSocket) -> None:
        self.socket = socket

    def received(self, message: bytes) -> None:
        self.messages.append(message)

    def lost(self) -> None:
        self.is_lost = True


class PlainSurface:
    """Admits everybody and says no in plain JSON."""

    def admit(self, request: Request) -> None:
        pass

    def refuse(self, request: Request, error: HttpError) -> Response:
        body = {"message": error.message, "reason": error.reason, **error.details}
        return Response(error.status, json.dumps(body).encode(), error.headers)


class Floor:
    """What the routes do, and a record of what they did."""

    def __init__(self, loop: Loop, *, lean: bool, limits: ConnectionLimits | None = None) -> None:
        self.loop = loop
        self.sockets: list[Listening] = []
        self.ping_seconds = 60.0
        self.done: list[str] = []
        self.gone: list[str] = []
        self.waiting: dict[str, asyncio.Future[None]] = {}
        surface = PlainSurface()
        table = (
            ("GET", "/echo", self.echo),
            ("POST", "/echo", self.echo),
            ("GET", "/large", self.large),
            ("GET", "/broken", self.broken),
            ("GET", "/unspeakable", self.unspeakable),
            ("GET", "/turning", self.turning),
            ("GET", "/wait/{name}", self.wait),
            ("POST", "/wait/{name}", self.wait),
            ("GET", "/slow", self.slow),
            ("POST", "/posted", self.echo),
            ("GET", "/huge", self.huge),
            ("GET", "/events", self.events),
            ("GET", "/socket", self.socket),
            ("GET", "/unfinished", self.unfinished),
        )
        routes = [
            Route(
                m, path, PUBLIC, surface, h, lean=lean, upgrades=path in ("/socket", "/unfinished")
            )
            for m, path, h in table
        ]
        worker = frozenset({"worker"})
        routes += [
            Route("GET", "/health", PUBLIC, surface, self.turning, lean=lean),
            Route("POST", "/work", worker, surface, self.echo, lean=lean),
            Route("GET", "/work/{name}", worker, surface, self.wait, lean=lean),
        ]
        self.app = Application(
            Router(routes),
            TokenAuthentication(shared="s3cret"),
            surface_of=lambda path: surface,
            translate=lambda error: None,
            body_bytes_max=BODY_BYTES_MAX,
            compression_bytes_min=1_024,
        )
        self.connections = CountingConnections(self.app, limits)
        self.port = 0
        self._accepting: asyncio.Server

    async def echo(self, request: Request) -> Response:
        """Says what was asked."""
        self.done.append(request.body.decode("latin-1"))
        told = {
            "method": request.method,
            "query": request.query,
            "headers": {k.decode(): v.decode("latin-1") for k, v in request.headers.items()},
            "body": request.body.decode("latin-1"),
        }
        return Response(200, json.dumps(told).encode())

    async def large(self, request: Request) -> Response:
        """Much of the same."""
        return Response(200, b'"' + b"x" * LARGE_BYTES + b'"')

    async def turning(self, request: Request) -> Response:
        """Lets others go first, twice."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return Response(200, b"{}")

    async def broken(self, request: Request) -> Response:
        raise ValueError("a secret of the inside")

    async def unspeakable(self, request: Request) -> Response:
        raise HttpError(409, "odd", "what goes with it cannot be said", {"secret": object()})

    async def wait(self, request: Request) -> Response:
        """Answers when it is released, or when its client has left."""
        name = request.params["name"]
        released = self.waiting[name] = asyncio.get_running_loop().create_future()

        def left() -> None:
            self.gone.append(name)
            if not released.done():
                released.set_result(None)

        request.watch(left)
        await released
        self.done.append(name)
        return Response(200, json.dumps({"waited": name}).encode())

    async def slow(self, request: Request) -> Response:
        """Answers when it is released, whoever has left meanwhile."""
        released = self.waiting["slow"] = asyncio.get_running_loop().create_future()
        await released
        return Response(200, b"{}")

    async def huge(self, request: Request) -> Response:
        """More than any socket takes at once."""
        return Response(200, b'"' + b"x" * HUGE_BYTES + b'"')

    async def events(self, request: Request) -> Response:
        """Events without end, as fast as they are taken."""

        async def feed(events: EventStream) -> None:
            while True:
                self.done.append("event")
                await events.send("tick", b"x" * 60_000)
                await asyncio.sleep(0)

        return stream(feed)

    async def socket(self, request: Request) -> Response:
        listening = Listening()
        self.sockets.append(listening)
        return upgrade(
            request,
            listening,
            protocols=("floor",),
            bytes_max=SOCKET_BYTES_MAX,
            ping_seconds=self.ping_seconds,
        )

    @property
    def ended(self) -> int:
        """How many clients have closed their side."""
        return self.connections.ended

    async def unfinished(self, request: Request) -> Response:
        """An upgrade that takes its time."""
        released = self.waiting["unfinished"] = asyncio.get_running_loop().create_future()
        request.watch(released.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await released
        return Response(200, b"{}")

    def has_received(self, connection: HttpConnection, size: int) -> bool:
        """Whether so much of a body has come in, or all of it."""
        return connection._body_bytes >= size or not connection.is_idle

    def unsent(self, successor: Successor) -> int:
        """What a client has not taken yet."""
        assert isinstance(successor, WebSocket)
        return successor._transport.get_write_buffer_size()

    def check_all(self) -> None:
        """Sweep once."""

        async def check() -> None:
            self.connections.check_all()

        self.loop.run(check())

    def settle(self) -> None:
        """Let everything come in that is on its way."""

        async def turn() -> None:
            for _ in range(200):
                await asyncio.sleep(0)

        self.loop.run(turn())

    def release(self, name: str) -> None:
        self.loop.until(lambda: name in self.waiting)
        self.waiting[name].set_result(None)

    def connect(self) -> Stream:
        return self.loop.connect(self.port)

    def open(self) -> None:
        async def start() -> None:
            listener = socket.create_server(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
            self._accepting = await listen(self.connections, listener)

        self.loop.run(start())

    def close(self) -> None:
        async def stop() -> None:
            self._accepting.close()
            for future in self.waiting.values():
                if not future.done():
                    future.set_result(None)
            await self.connections.drain(5)

        self.loop.close_streams()
        self.loop.run(stop())


@contextmanager
def a_floor(*, lean: bool = False, limits: ConnectionLimits | None = None) -> Iterator[Floor]:
    with a_loop() as loop:
        floor = Floor(loop, lean=lean, limits=limits)
        floor.open()
        try:
            yield floor
        finally:
            floor.close()


def request(
    target: str = "/echo", body: bytes = b"", *, method: str = "POST", headers: str = ""
) -> bytes:
    """A request in bytes."""
    head = f"{method} {target} HTTP/1.1\r\nHost: floor\r\n{headers}"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("latin-1") + b"\r\n" + body

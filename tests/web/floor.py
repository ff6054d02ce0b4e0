"""The floor alone: a real socket, a few routes without any domain."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from perdure.web.app import Application
from perdure.web.auth import NoAuthentication
from perdure.web.message import HttpError, Request, Response
from perdure.web.routing import PUBLIC, Route, Router
from perdure.web.server import Connections, listen
from tests.support.http import Loop, Stream, a_loop

BODY_BYTES_MAX = 4_096
LARGE_BYTES = 200_000


class PlainSurface:
    """Admits everybody and says no in plain JSON."""

    def admit(self, request: Request) -> None:
        pass

    def refuse(self, request: Request, error: HttpError) -> Response:
        body = {"message": error.message, "reason": error.reason, **error.details}
        return Response(error.status, json.dumps(body).encode(), error.headers)


class Floor:
    """What the routes do, and a record of what they did."""

    def __init__(self, loop: Loop, *, lean: bool) -> None:
        self.loop = loop
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
        )
        self.app = Application(
            Router([Route(m, path, PUBLIC, surface, h, lean=lean) for m, path, h in table]),
            NoAuthentication(),
            surface_of=lambda path: surface,
            translate=lambda error: None,
            body_bytes_max=BODY_BYTES_MAX,
            compression_bytes_min=1_024,
        )
        self.connections = Connections(self.app)
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
def a_floor(*, lean: bool = False) -> Iterator[Floor]:
    with a_loop() as loop:
        floor = Floor(loop, lean=lean)
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

"""A fake engine: a real socket, the contract's manners, and a script instead of a mind."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from tests.sdk_runner.contract import check_message

HELLO = {"protocolVersion": 1, "minProtocolVersion": 1, "maxProtocolVersion": 1}
PATIENCE_SECONDS = 90.0


class RunnerSocket:
    """The engine's end of one runner's socket."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._results: dict[str, asyncio.Future[tuple[int, Any]]] = {}
        self._count = 0
        self.pinged: asyncio.Queue[None] = asyncio.Queue()
        self.answers_pings = True

    async def listen(self) -> None:
        """Hear the runner out; every message must be of the contract."""
        with contextlib.suppress(ConnectionClosed):
            async for raw in self.socket:
                assert isinstance(raw, str), "messages are text"
                message = json.loads(raw)
                check_message(message)
                if message["type"] == "ping":
                    self.pinged.put_nowait(None)
                    if self.answers_pings:
                        await self.send({"type": "pong"})
                elif message.get("id") in self._results:
                    told = message["payload"]
                    self._results.pop(message["id"]).set_result((told["status"], told["body"]))
                else:
                    self._heard.put_nowait(message)
        for waiting in [each for each in self._results.values() if not each.done()]:
            waiting.set_exception(ConnectionError("the runner is gone"))

    async def send(self, message: object) -> None:
        """Send a message, or text as it is."""
        await self.socket.send(message if isinstance(message, str) else json.dumps(message))

    async def hear(self) -> dict[str, Any]:
        """The next message that is neither a ping nor an awaited result."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._heard.get()

    async def greet(self, **hello: object) -> dict[str, Any]:
        """Say hello and return the registration."""
        await self.send({"type": "hello", "payload": {**HELLO, "heartbeatMs": 15000, **hello}})
        message = await self.hear()
        assert message["type"] == "runner.register"
        payload: dict[str, Any] = message["payload"]
        return payload

    def begin(self, body: object) -> "asyncio.Future[tuple[int, Any]]":
        """Begin an invoke; its status and body will follow."""
        self._count += 1
        id = f"inv_{self._count}"
        self._results[id] = asyncio.get_running_loop().create_future()
        frame = {"type": "invoke", "id": id, "payload": body}
        sending = asyncio.ensure_future(self.send(frame))
        self._results[id].add_done_callback(lambda _: sending)
        return self._results[id]

    async def invoke(self, body: object) -> tuple[int, Any]:
        """Invoke and wait for the result."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.begin(body)


@dataclass
class FakeEngine:
    """Listens on loopback; sockets come in one by one through `accept`."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    refused: "asyncio.Queue[None]" = field(default_factory=asyncio.Queue)
    refuse_with: int | None = None
    subprotocols: tuple[str, ...] = ("duraton.connect.v0", "durablex.connect.v0")
    _arrived: "asyncio.Queue[RunnerSocket]" = field(default_factory=asyncio.Queue)
    _server: Server | None = None

    async def accept(self) -> RunnerSocket:
        """The next socket that a runner opens."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._arrived.get()

    async def _serve(self, socket: ServerConnection) -> None:
        runner = RunnerSocket(socket)
        self._arrived.put_nowait(runner)
        await runner.listen()

    def _look_at(self, socket: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if self.refuse_with is not None:
            self.refused.put_nowait(None)
            return socket.respond(self.refuse_with, '{"error": "not today"}')
        return None


@contextlib.asynccontextmanager
async def fake_engine(**options: Any) -> AsyncIterator[FakeEngine]:
    """A fake engine while the context lasts."""
    engine = FakeEngine(**options)
    names = [Subprotocol(name) for name in engine.subprotocols]
    async with serve(
        engine._serve,
        "127.0.0.1",
        0,
        subprotocols=names or None,
        process_request=engine._look_at,
        ping_interval=None,
        max_size=1_048_576,
        close_timeout=1,
    ) as server:
        engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield engine

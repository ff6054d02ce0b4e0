"""A runner by hand: a real socket to a real server, answered by the test."""

import asyncio
import json
from hashlib import sha256
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.support.http import PATIENCE_SECONDS, Json, Wire

DURATON = "duraton.connect.v0"
DURABLEX = "durablex.connect.v0"


def step_id(name: str) -> str:
    """The hashed id of a step."""
    return sha256(name.encode()).hexdigest()


def ran(name: str, data: Any = None, **members: Any) -> Json:
    """A step that the runner ran."""
    return {"op": "StepRun", "id": step_id(name), "name": name, "data": data, **members}


def broke(name: str, message: str = "no", **members: Any) -> Json:
    """A step that the runner ran, and that failed."""
    error = {"message": message}
    return {"op": "StepRun", "id": step_id(name), "name": name, "error": error, **members}


def op(kind: str, name: str, **members: Any) -> Json:
    return {"op": kind, "id": step_id(name), "name": name, **members}


def workflow(name: str, **members: Any) -> Json:
    return {"name": name, **members}


class Invoke:
    """A pass that a runner was asked for."""

    def __init__(self, runner: "HandRunner", frame: Json) -> None:
        self._runner = runner
        self.frame = frame
        self.id: str = frame["id"]
        self.body: Json = frame["payload"]

    @property
    def context(self) -> Json:
        context: Json = self.body["ctx"]
        return context

    @property
    def run_id(self) -> str:
        return str(self.context["runId"])

    def memo(self, name: str) -> Json | None:
        """What the runner is told about a step, if anything."""
        told: Json | None = self.body["steps"].get(step_id(name))
        return told

    def answer(self, status: int, body: Json) -> None:
        payload = {"status": status, "body": body}
        self._runner.send({"type": "invoke.result", "id": self.id, "payload": payload})

    def found(self, *opcodes: Json, logs: list[Json] | None = None) -> None:
        """The code stands at these steps."""
        self.answer(206, {"opcodes": list(opcodes), "logs": logs or []})

    def returned(self, data: Any = None, logs: list[Json] | None = None) -> None:
        self.answer(200, {"data": data, "logs": logs or []})


class HandRunner:
    """One socket."""

    def __init__(self, wire: Wire, socket: ClientConnection) -> None:
        self._wire = wire
        self.socket = socket
        wire.loop.abort_at_end(socket.transport.abort)

    def send(self, frame: Json) -> None:
        self.send_text(json.dumps(frame))

    def send_text(self, text: str | bytes) -> None:
        self._wire.run(self.socket.send(text))

    def read(self) -> Json:
        """The next frame."""
        reading = asyncio.wait_for(self.socket.recv(), PATIENCE_SECONDS)
        frame: Json = json.loads(self._wire.run(reading))
        return frame

    def register(self, *workflows: Json, app: str = "shop", **members: Any) -> "HandRunner":
        """Say what one is, and wait until the server knows."""
        known = self._wire.server.runners._count
        payload = {"app": app, "protocolVersion": 1, "workflows": list(workflows), **members}
        self.send({"type": "runner.register", "payload": payload})
        self._wire.until(lambda: self._wire.server.runners._count > known)
        return self

    def next(self) -> Invoke:
        """The next pass."""
        frame = self.read()
        assert frame["type"] == "invoke", frame
        return Invoke(self, frame)

    def has_nothing(self) -> bool:
        """Whether nothing is under way to this runner."""
        return self._wire.server.invoker.count == 0

    def closed_with(self) -> tuple[int, str]:
        """How the server closed the socket, which it must."""

        async def end() -> tuple[int, str]:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while True:
                        await self.socket.recv()
            except ConnectionClosed as closed:
                told = closed.rcvd
            return (1006, "") if told is None else (told.code, told.reason)

        return self._wire.run(end())

    def close(self) -> None:
        self._wire.run(self.socket.close())

    def vanish(self) -> None:
        """Hang up without a word, and wait until the server knows."""
        sessions = self._wire.server.connect.sessions
        left = len(sessions) - 1
        self.socket.transport.abort()
        self._wire.until(lambda: len(sessions) <= left)


def dial(wire: Wire, *protocols: str, **options: Any) -> HandRunner:
    """A socket whose server has not said hello yet."""
    offered = [Subprotocol(name) for name in protocols] or None
    url = f"ws://127.0.0.1:{wire.port}/connect"
    opening = connect(
        url, subprotocols=offered, ping_interval=None, proxy=None, compression=None, **options
    )

    async def begin() -> ClientConnection:
        return await opening

    return HandRunner(wire, wire.run(begin()))


def a_runner(wire: Wire, *workflows: Json, app: str = "shop", **members: Any) -> HandRunner:
    """A registered runner."""
    runner = dial(wire, DURATON)
    hello = runner.read()
    assert hello["type"] == "hello", hello
    return runner.register(*workflows, app=app, **members)


def emit(wire: Wire, name: str, data: Any = None, **members: Any) -> Json:
    """Send an event and return what became of it."""
    return wire.call("POST", "/events", {"name": name, "data": data, **members}).ok(202)


def start(wire: Wire, name: str, data: Any = None, **members: Any) -> str:
    """Send an event that starts a run, and return the id of that."""
    return str(emit(wire, name, data, **members)["runId"])


def show(wire: Wire, run_id: str) -> Json:
    return wire.call("GET", f"/runs/{run_id}").ok()


def steps(wire: Wire, run_id: str) -> list[Json]:
    answer = wire.call("GET", f"/runs/{run_id}/steps")
    assert answer.status == 200, answer
    found: list[Json] = json.loads(answer.content)
    return found


def rows(wire: Wire, path: str) -> list[Json]:
    """A list."""
    answer = wire.call("GET", path)
    assert answer.status == 200, answer
    found: list[Json] = json.loads(answer.content)
    return found


def settled(wire: Wire, run_id: str, status: str, **members: Any) -> Json:
    """The run, once it has come to a status and, perhaps, to other values."""
    expected = {"status": status, **members}

    async def wait() -> Json:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                run = (await wire.send("GET", f"/runs/{run_id}")).body
                if {name: run.get(name) for name in expected} == expected:
                    return run

    return wire.run(wait())

"""A real server in this process: a real socket, a real file, and a clock that we move.

`Wire` is a plain, synchronous handle. The server lives on an event loop that turns only while a
call of the wire is under way, so a test reads from top to bottom and nothing happens behind its
back.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import uvloop

from perdure.core.payload import Frame, decode, encode
from perdure.engine.claims import ShowRun
from perdure.server.assemble import Server
from perdure.server.settings import Settings, is_postgres, sqlite_path
from perdure.web.server import Connections, listen
from tests.support.client import Client
from tests.support.clock import FakeClock
from tests.support.tables import every_row, every_row_of_file, migrated_file

PATIENCE_SECONDS = 90
"""Longer than anything here takes: reaching it is a failure, never a way to wait."""

CONTROL_VERSION = "X-Durable-Workflow-Control-Plane-Version"
WORKER_VERSION = "X-Durable-Workflow-Protocol-Version"

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Json:
        """The body, which is a JSON object everywhere."""
        decoded = json.loads(self.content)
        assert isinstance(decoded, dict), self.content
        return decoded

    @property
    def reason(self) -> str | None:
        reason = self.body.get("reason")
        assert reason is None or isinstance(reason, str)
        return reason

    def ok(self, status: int = 200) -> Json:
        """The body of a success."""
        assert self.status == status, (self.status, self.content)
        return self.body

    def refused(self, status: int, reason: str) -> Json:
        """The body of a refusal, which names its reason and says something to people."""
        assert (self.status, self.reason) == (status, reason), (self.status, self.content)
        body = self.body
        assert isinstance(body["message"], str)
        assert body["message"]
        return body

    def invalid(self, field: str) -> Json:
        """The body of a 422 about one field."""
        body = self.refused(422, "validation_failed")
        assert list(body["errors"]) == [field], body["errors"]
        assert body["validation_errors"] == body["errors"]
        assert all(isinstance(text, str) and text for text in body["errors"][field])
        assert field in body["message"], "clients show the message alone"
        return body


def avro(value: Any, frame: Frame = Frame.VALUE) -> Json:
    """An envelope around a value."""
    return {"codec": "avro", "blob": encode(value, frame)}


def unavro(envelope: Json) -> Any:
    """The value in an envelope."""
    assert set(envelope) == {"codec", "blob"}, envelope
    assert envelope["codec"] == "avro"
    return decode(envelope["blob"])


class Loop:
    """An event loop that turns only while somebody waits for something."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._streams: list[Stream] = []
        self._aborts: list[Callable[[], object]] = []

    def abort_at_end(self, abort: Callable[[], object]) -> None:
        """Call this before the loop is closed. uvloop waits for ever for an open connection.

        A test that fails leaves its peers open.
        """
        self._aborts.append(abort)

    @property
    def here(self) -> asyncio.AbstractEventLoop:
        return self._runner.get_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Turn until some work is done."""
        # Not with the runner: it would listen for signals anew every time.
        return self._runner.get_loop().run_until_complete(work)

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn until something is so."""
        self.run(self.turn_until(condition))

    async def turn_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 (nobody would tell us)
                await asyncio.sleep(0)

    def connect(self, port: int) -> "Stream":
        """A bare connection to this machine."""
        reader, writer = self.run(asyncio.open_connection("127.0.0.1", port))
        stream = Stream(self, reader, writer)
        self._streams.append(stream)
        return stream

    def close_streams(self) -> None:
        while self._streams:
            self._streams.pop().close()

    def abort_peers(self) -> None:
        while self._aborts:
            self._aborts.pop()()


@contextmanager
def a_loop() -> Iterator[Loop]:
    """The kind of loop that the server runs on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = Loop(runner)
        try:
            yield loop
        finally:
            loop.close_streams()
            loop.abort_peers()


class Stream:
    """A bare connection, for what no client library would send."""

    def __init__(
        self, loop: Loop, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)
        self._loop.run(self._writer.drain())

    def read_until(self, separator: bytes) -> bytes:
        reading = self._reader.readuntil(separator)
        return self._loop.run(asyncio.wait_for(reading, PATIENCE_SECONDS))

    def read_answer(self, *, has_body: bool = True) -> Answer:
        """One response, by its Content-Length."""
        head = self.read_until(b"\r\n\r\n").decode("latin-1")
        status_line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = int(headers.get("content-length", "0")) if has_body else 0
        reading = self._reader.readexactly(length)
        content = self._loop.run(asyncio.wait_for(reading, PATIENCE_SECONDS))
        return Answer(int(status_line.split(" ")[1]), headers, content)

    def read_to_end(self) -> bytes:
        """Everything until the server closes, which it must."""
        return self._loop.run(asyncio.wait_for(self._reader.read(), PATIENCE_SECONDS))

    @property
    def unread(self) -> bytes:
        """What has come in and was not read, without waiting for more."""
        return bytes(self._reader._buffer)  # type: ignore[attr-defined]  # asyncio has no peek.

    def end(self) -> None:
        """Close our side: nothing more is sent, but answers are still read."""
        self._writer.write_eof()

    def stop_reading(self) -> None:
        """Take nothing more from the socket, as a client does that hangs."""
        self._transport.pause_reading()

    def go_on_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def read_some(self, size: int) -> bytes:
        """Take a little, and stop again."""
        self.go_on_reading()
        taken = self._loop.run(asyncio.wait_for(self._reader.read(size), PATIENCE_SECONDS))
        self.stop_reading()
        return taken

    @property
    def _transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self._writer.transport)

    def close(self) -> None:
        self._writer.close()


class Parked:
    """A call that waits at the server."""

    def __init__(self, loop: Loop, task: "asyncio.Task[Answer]") -> None:
        self._loop = loop
        self._task = task

    @property
    def is_waiting(self) -> bool:
        return not self._task.done()

    def answer(self) -> Answer:
        """The answer, now that something should have brought it."""
        return self._loop.run(asyncio.wait_for(self._task, PATIENCE_SECONDS))


class Wire:
    """Both planes of one live server."""

    def __init__(self, loop: Loop, settings: Settings) -> None:
        self.loop = loop
        self.clock = FakeClock()
        self.server: Server
        self.connections: Connections
        self.port = 0
        self._settings = settings
        self._ready: asyncio.Event
        self._stop: asyncio.Event
        self._life: asyncio.Task[None]
        self._client: Client
        self._under_way: list[asyncio.Task[Answer]] = []

    def find_loop(self, kind: type[T]) -> T:
        """The loop of a feature, by its class."""
        (found,) = (loop for _, loop in self.server.feature_loops if isinstance(loop, kind))
        return found

    # Life ----------------------------------------------------------------------------------------

    def open(self) -> None:
        async def start() -> None:
            self._ready, self._stop = asyncio.Event(), asyncio.Event()
            self._life = asyncio.create_task(self._live())
            ready = asyncio.ensure_future(self._ready.wait())
            await asyncio.wait({ready, self._life}, return_when=asyncio.FIRST_COMPLETED)
            if self._life.done():
                ready.cancel()
                self._life.result()

        self.run(start())

    def close(self) -> None:
        async def stop() -> None:
            self._stop.set()
            await asyncio.wait_for(self._life, PATIENCE_SECONDS)

        self.loop.close_streams()
        self.run(stop())

    def restart(self) -> None:
        """Stop and open again on the same file; the clock goes on."""
        self.close()
        self.open()

    async def _live(self) -> None:
        """What `perdure.server.run` does, without signals and with our clock."""
        self.server = server = Server(self._settings, clock=self.clock)
        await server.open()
        try:
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(server.engine.run())
                # A clock that stands still tells nobody when to look around, and nobody is there.
                firing = group.create_task(server.deadlines.run(server.engine))
                listener = socket.create_server(("127.0.0.1", 0))
                self.port = listener.getsockname()[1]
                self.connections = Connections(server.app)
                accepting = await listen(self.connections, listener)
                async with Client(self.port, patience_seconds=PATIENCE_SECONDS) as self._client:
                    self._ready.set()
                    await self._stop.wait()
                    accepting.close()
                    server.drain()
                    # Calls that a test left waiting are answered; nobody looks at how.
                    await asyncio.gather(*self._under_way, return_exceptions=True)
                    self._under_way.clear()
                await self.connections.drain(PATIENCE_SECONDS)
                firing.cancel()
                server.engine.stop()
                await beat
        finally:
            await server.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def until(self, condition: Callable[[], bool]) -> None:
        self.loop.until(condition)

    def until_decided(self) -> None:
        """Turn until everything is on disk that was asked for by now."""

        async def ask() -> None:
            # The beat takes one thing after the other, and this comes last and changes nothing.
            await self.server.engine.submit(ShowRun("default", "nobody", lambda run: run))

        self.run(ask())

    def advance(self, *, seconds: float) -> None:
        """Time passes, and what is due happens."""
        self.run(self.clock.advance(seconds=seconds))

    def jump(self, *, seconds: float) -> None:
        """Time passes, and nobody wakes up: as on a machine that is too busy."""
        deadlines = self.server.deadlines
        self.until(lambda: self.clock.sleepers > 0 and not deadlines._armed.is_set())
        self.clock.jump(seconds=seconds)

    def look_around(self) -> None:
        """Where there may be other nodes: see what they did, as a server does now and then."""
        if self.server.cluster is not None:
            self.run(self.server.cluster.lookout.look())

    # The disk ------------------------------------------------------------------------------------

    def stored(self) -> dict[str, list[tuple[object, ...]]]:
        """Every row of every table."""
        store = self._settings.store
        if is_postgres(store):
            return self.run(every_row(store))
        return every_row_of_file(sqlite_path(store))

    @contextmanager
    def nothing_changes(self) -> Iterator[None]:
        """What happens inside leaves no trace on the disk."""
        before = self.stored()
        yield
        after = self.stored()
        changed = {
            name: [row for row in rows if row not in before[name]]
            for name, rows in after.items()
            if rows != before[name]
        }
        assert not changed, changed

    # Calls ---------------------------------------------------------------------------------------

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = dict(headers or {})
        if body is not None:
            content = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        return Answer(*await self._client.request(method, path, content=content, headers=sent))

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Any request at all."""
        return self.run(self.send(method, path, body, content=content, headers=headers))

    def control(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """A call of the control plane; `path` is what stands behind `/api`."""
        sent = {CONTROL_VERSION: "2", **(headers or {})}
        return self.call(method, f"/api{path}", body, headers=sent)

    def worker(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """A call of the worker plane; `path` is what stands behind `/api/worker`."""
        sent = {WORKER_VERSION: "1.20", **(headers or {})}
        return self.call(method, f"/api/worker{path}", body, headers=sent)

    def call_later(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str]
    ) -> Parked:
        """A call that is under way, and may be for long."""

        async def begin() -> "asyncio.Task[Answer]":
            return asyncio.create_task(self.send(method, path, body, headers=headers))

        task = self.run(begin())
        self._under_way.append(task)
        return Parked(self.loop, task)

    def park(self, path: str, body: Json) -> Parked:
        """A poll that is left waiting at the server."""
        waiting = self.server.parked_polls.count
        parked = self.call_later(
            "POST", f"/api/worker{path}", body, headers={WORKER_VERSION: "1.20"}
        )
        self.until(lambda: self.server.parked_polls.count > waiting or not parked.is_waiting)
        return parked

    def stream(self) -> Stream:
        """A bare connection."""
        return self.loop.connect(self.port)

    # The everyday of a client --------------------------------------------------------------------

    def start(self, workflow_id: str = "order-1", **members: Any) -> Json:
        """A new run on queue `q` of type `Order`."""
        body = {
            "workflow_id": workflow_id,
            "workflow_type": "Order",
            "task_queue": "q",
            "input": avro([]),
            **members,
        }
        return self.control("POST", "/workflows", body).ok(201)

    def describe(self, workflow_id: str = "order-1") -> Json:
        return self.control("GET", f"/workflows/{workflow_id}").ok()

    def events(self, workflow_id: str = "order-1", run_id: str | None = None) -> list[Json]:
        """The whole history of a run, the newest by default."""
        run_id = run_id or self.describe(workflow_id)["run_id"]
        path = f"/workflows/{workflow_id}/runs/{run_id}/history"
        events = self.control("GET", path).ok()["events"]
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        return list(events)

    def event_types(self, workflow_id: str = "order-1", run_id: str | None = None) -> list[str]:
        return [event["event_type"] for event in self.events(workflow_id, run_id)]

    def signal(self, name: str, workflow_id: str = "order-1", **members: Any) -> Json:
        return self.control("POST", f"/workflows/{workflow_id}/signal/{name}", members).ok(202)

    def update(self, name: str = "add", workflow_id: str = "order-1", **members: Any) -> Answer:
        """An update, and what became of it as far as its caller asked."""
        return self.control("POST", f"/workflows/{workflow_id}/update/{name}", members)

    def update_later(
        self, name: str = "add", workflow_id: str = "order-1", **members: Any
    ) -> Parked:
        """An update whose caller is left waiting at the server."""
        path = f"/api/workflows/{workflow_id}/update/{name}"
        waiters = self.server.update_waiters
        waiting = waiters.count
        parked = self.call_later("POST", path, members, headers={CONTROL_VERSION: "2"})
        self.until(lambda: waiters.count > waiting or not parked.is_waiting)
        return parked

    # The everyday of a worker --------------------------------------------------------------------

    def register(self, worker_id: str = "w1", **members: Any) -> Json:
        """A worker of queue `q` that knows everything these tests use."""
        body = {
            "worker_id": worker_id,
            "task_queue": "q",
            "runtime": "python",
            "sdk_version": "durable-workflow-python/2.12.0",
            "supported_workflow_types": ["Order", "Child"],
            "supported_activity_types": ["charge", "ship"],
            **members,
        }
        return self.worker("/register", body).ok(201)

    def poll(self, kind: str = "workflow", worker_id: str = "w1", **members: Any) -> Json:
        """The answer to a poll that does not wait."""
        body = {"worker_id": worker_id, "task_queue": "q", "timeout_seconds": 0, **members}
        return self.worker(f"/{kind}-tasks/poll", body).ok()

    def take(self, kind: str = "workflow", worker_id: str = "w1", **members: Any) -> Json:
        """The task that must be there."""
        answer = self.poll(kind, worker_id, timeout_seconds=PATIENCE_SECONDS // 2, **members)
        assert answer["poll_status"] == "leased", answer
        task = answer["task"]
        assert isinstance(task, dict)
        return task

    def report(self, task: Json, verb: str, **members: Any) -> Answer:
        """A report on a workflow task, from whoever holds it."""
        body = {
            "lease_owner": task["lease_owner"],
            "workflow_task_attempt": task["workflow_task_attempt"],
            **members,
        }
        return self.worker(f"/workflow-tasks/{task['task_id']}/{verb}", body)

    def complete(self, task: Json, *commands: Json) -> Json:
        return self.report(task, "complete", commands=list(commands)).ok()

    def judge(self, task: Json, verb: str, **members: Any) -> Answer:
        """A verdict on an update, from whoever holds its validation."""
        body = {
            "lease_owner": task["lease_owner"],
            "update_validation_attempt": task["update_validation_attempt"],
            **members,
        }
        path = f"/update-validation-tasks/{task['update_validation_task_id']}/{verb}"
        return self.worker(path, body)

    def register_validator(self, worker_id: str = "w1", **members: Any) -> Json:
        """A worker whose `Order` takes the updates `add`, which it validates, and `close`."""
        contract = contract_of("Order", updates={"add": 1, "close": 0}, validators=["add"])
        told = {"workflow_command_contracts": contract, "capabilities": ["update_validation_tasks"]}
        return self.register(worker_id, **told, **members)

    def take_validation(self, worker_id: str = "w1") -> Json:
        """The validation that must be there."""
        task = self.take(worker_id=worker_id, task_kinds=["workflow", "update_validation"])
        assert task["task_kind"] == "update_validation", task
        return task

    def report_attempt(self, task: Json, verb: str, **members: Any) -> Answer:
        """A report on an attempt of an activity, from whoever holds it."""
        body = {
            "lease_owner": task["lease_owner"],
            "activity_attempt_id": task["activity_attempt_id"],
            **members,
        }
        return self.worker(f"/activity-tasks/{task['task_id']}/{verb}", body)

    def run_to(self, *commands: Json, workflow_id: str = "order-1", **members: Any) -> Json:
        """A started run whose first workflow task was completed with these commands."""
        started = self.start(workflow_id, **members)
        self.complete(self.take(), *commands)
        return started


@contextmanager
def a_wire(folder: Path, **settings: Any) -> Iterator[Wire]:
    """A live server, on a fresh file unless told otherwise, without credentials unless given."""
    chosen = {"auth_driver": "none", "poll_timeout": 10_000_000, **settings}
    if "store" not in chosen:
        migrated_file(folder / "perdure.db")
        chosen["store"] = f"sqlite:///{folder / 'perdure.db'}"
    with a_loop() as loop:
        wire = Wire(loop, Settings(**chosen))
        wire.open()
        try:
            yield wire
        finally:
            wire.close()


# Contracts and commands ---------------------------------------------------------------------------


def contract_of(
    workflow_type: str,
    *,
    signals: Mapping[str, int] | None = None,
    updates: Mapping[str, int] | None = None,
    validators: Sequence[str] = (),
) -> Json:
    """What a 2.x worker tells of its code: names, and how many arguments each must have."""

    def entries(counts: Mapping[str, int]) -> list[Json]:
        return [
            {
                "name": name,
                "parameters": [
                    {"name": f"p{position}", "position": position, "required": True}
                    for position in range(count)
                ],
            }
            for name, count in counts.items()
        ]

    return {
        workflow_type: {
            "queries": [],
            "query_contracts": [],
            "signals": list(signals or {}),
            "signal_contracts": entries(signals or {}),
            "updates": list(updates or {}),
            "update_contracts": entries(updates or {}),
            "update_validators": list(validators),
        }
    }


def complete_update(task: Json, result: Any = "added") -> Json:
    return {
        "type": "complete_update",
        "update_id": task["workflow_update_id"],
        "result": avro(result),
    }


def fail_update(task: Json, message: str = "no", **members: Any) -> Json:
    update_id = task["workflow_update_id"]
    return {"type": "fail_update", "update_id": update_id, "message": message, **members}


def schedule_activity(activity_type: str = "charge", **members: Any) -> Json:
    return {
        "type": "schedule_activity",
        "activity_type": activity_type,
        "arguments": avro([1]),
        **members,
    }


def local_activity(outcome: str = "completed", **members: Any) -> Json:
    """What a worker tells of an activity that it ran itself."""
    result = {"result": avro("done")} if outcome == "completed" else {}
    return {
        "type": "record_local_activity",
        "activity_type": "charge",
        "execution_mode": "local",
        "arguments": avro([1]),
        "outcome": outcome,
        "attempts": [local_attempt()],
        **result,
        **members,
    }


def local_call(**members: Any) -> Json:
    """What a worker tells of an activity that it wants leave to run."""
    return {
        "type": "record_local_activity",
        "activity_type": "charge",
        "execution_mode": "local",
        "arguments": avro([1]),
        "payload_codec": "avro",
        **members,
    }


def local_attempt(number: int = 1, outcome: str = "completed", **members: Any) -> Json:
    return {
        "attempt_id": f"{number:064x}",
        "attempt_number": number,
        "outcome": outcome,
        "duration_ms": 7,
        "heartbeats": [],
        **members,
    }


def start_timer(seconds: int) -> Json:
    return {"type": "start_timer", "delay_seconds": seconds}


def start_child(workflow_type: str = "Child", **members: Any) -> Json:
    return {
        "type": "start_child_workflow",
        "workflow_type": workflow_type,
        "arguments": avro([]),
        **members,
    }


def wait_for_condition(key: str = "paid", **members: Any) -> Json:
    return {"type": "open_condition_wait", "condition_key": key, **members}


def wait_for_signal(name: str = "pay", **members: Any) -> Json:
    return {"type": "open_signal_wait", "signal_name": name, **members}


def complete_workflow(result: Any = "done") -> Json:
    return {"type": "complete_workflow", "result": avro(result)}


def fail_workflow(message: str = "boom", **members: Any) -> Json:
    return {"type": "fail_workflow", "message": message, **members}


def continue_as_new() -> Json:
    return {"type": "continue_as_new", "arguments": avro(["again"])}

"""Stories about runs: a small driver of the engine without a loop.

A `Story` decides the engine's real operations in real worlds, one beat at a time, with a clock that
stands still until it is told to move. What a beat leaves is written to a `Disk` exactly as the runs
list it as unsaved, so a story can lose its memory at any time and go on from there.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pytest

from perdure.core.bounds import DEFAULT_BOUNDS
from perdure.core.fleet.worker import Worker
from perdure.core.limits import ACTIVITY_LEASE_TIMEOUT, SECOND, WORKFLOW_LEASE_TIMEOUT
from perdure.core.rejection import Rejection
from perdure.core.run.activity import Reported
from perdure.core.run.command import (
    Command,
)
from perdure.core.run.completion import TaskReport
from perdure.core.run.context import Context
from perdure.core.run.inbox import Refusal
from perdure.core.run.interruption import Acknowledged, Delivery
from perdure.core.run.lease import Lease, TaskState
from perdure.core.run.operation import Activity, Child
from perdure.core.run.start import StartRequest
from perdure.core.run.state import WORKFLOW_TASK, Run, RunChanges, WorkflowTask
from perdure.core.run.state_parts import Boundary
from perdure.core.run.task import request_task
from perdure.core.run.validation import VerdictResult
from perdure.engine.activity_tasks import (
    AskActivity,
    AttemptRef,
    AttemptView,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    Recorded,
    ReleaseActivity,
    RenewActivity,
)
from perdure.engine.cancellation import (
    AcknowledgeStop,
    DeliverCancellation,
    RequestCancellation,
    Requested,
)
from perdure.engine.claims import FireDue
from perdure.engine.leasing import Leasing, is_ready
from perdure.engine.operation import Operation
from perdure.engine.rollouts import Rollouts
from perdure.engine.run_commands import (
    CancelRun,
    Commanded,
    CommandTarget,
    SignalRun,
    StartWorkflow,
    TerminateRun,
)
from perdure.engine.updates import (
    Admitted,
    ApproveUpdate,
    ReadUpdate,
    RejectUpdate,
    UpdateRun,
    UpdateView,
)
from perdure.engine.workflow_tasks import (
    CompleteWorkflowTask,
    FailWorkflowTask,
    RenewWorkflowTask,
    TaskCompleted,
)
from perdure.engine.world import World
from perdure.identity import IdSource
from perdure.server.features import make_registry
from perdure.store import rows
from perdure.store.interface import Instance, Receipt, ReceiptKey
from tests.support.clock import START, FakeClock
from tests.support.commands import ARGUMENTS, RESULT

NAMESPACE = "default"
QUEUE = "orders"
WORKER = "w1"
SDK_2 = "durable-workflow-python/2.12.0"
SDK_0_4 = "durable-workflow-python/0.4.106"


class Event(msgspec.Struct):
    """One event as it is sent."""

    id: str
    sequence: int
    event_type: str
    recorded_at: str
    timestamp: str
    namespace: str
    payload: dict[str, Any]


_event_decoder = msgspec.json.Decoder(Event)


def event_of(encoded: bytes) -> Event:
    """The event that some bytes of a history are."""
    return _event_decoder.decode(encoded)


# Workers ----------------------------------------------------------------------------------------


def worker(worker_id: str = WORKER, *, sdk_version: str = SDK_2, runtime: str = "python") -> Worker:
    return Worker(
        namespace=NAMESPACE,
        worker_id=worker_id,
        queue=QUEUE,
        runtime=runtime,
        registered_at=START,
        heartbeat_at=START,
        registration_token="token",
        sdk_version=sdk_version,
    )


def validator(worker_id: str = WORKER, *validated: str) -> Worker:
    """A worker whose code takes the updates `add` and `close` and validates some of them."""
    told = worker(worker_id)
    told.workflow_types = ["order"]
    told.capabilities = ["update_validation_tasks", "cooperative_cancellation"]
    told.contracts = {
        "order": {
            "updates": ["add", "close"],
            "update_validators": list(validated or ("add",)),
        }
    }
    return told


def preparer(worker_id: str = WORKER) -> Worker:
    """A worker that asks before it runs local activities."""
    told = worker(worker_id)
    told.capabilities = ["cooperative_cancellation", "prepared_local_activities"]
    return told


class _Hand:
    """A poller that is there exactly when a task is ready."""

    poll_id = None
    is_elsewhere = False

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def granted(self, run: Run, place: int) -> None:
        """The story reads the lease from the run."""


class _Take(Operation):
    """Lease one ready task, as a poll that finds it does."""

    name = "take"

    def __init__(self, run_id: str, place: int, worker: Worker, leasing: Leasing) -> None:
        self._run_id = run_id
        self._place = place
        self._worker = worker
        self._leasing = leasing

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def decide(self, world: World) -> None:
        run = world.runs[self._run_id]
        assert is_ready(run, self._place), f"task {self._place} is not ready"
        self._leasing.grant(world, run, self._place, _Hand(self._worker))


class _Wake(Operation):
    """Give a run a task although nothing happened, as an over-eager server would."""

    name = "wake"

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def decide(self, world: World) -> None:
        run = world.runs[self._run_id]
        request_task(run, world.ctx)
        world.changed(run)


# The disk ---------------------------------------------------------------------------------------


class Disk:
    """Keeps the bytes that a store would keep, from the differences that runs list as unsaved."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[Any, ...]] = {}
        self._operations: dict[str, dict[int, bytes]] = {}
        self._inbox: dict[str, dict[int, bytes]] = {}
        self._events: dict[str, list[bytes]] = {}
        self.ready: dict[str, set[int]] = {}
        self.due_at: dict[str, int | None] = {}

    @property
    def run_ids(self) -> list[str]:
        return list(self._rows)

    def commit(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._write(run)
            run.mark_saved()

    def _write(self, run: Run) -> None:
        run_id, unsaved = run.run_id, run.unsaved
        assert unsaved.created == (run_id not in self._rows), "a run is created once"
        assert not unsaved.effects, "effects are carried out in the same beat"
        self._rows[run_id] = rows.run_row(run)
        events = self._events.setdefault(run_id, [])
        if unsaved.rewritten is not None:
            events[:] = rows.events_of(unsaved.rewritten)
        events += unsaved.events
        assert len(events) == run.history_count
        _write_all(self._operations.setdefault(run_id, {}), unsaved.operations, run.operations)
        _write_all(self._inbox.setdefault(run_id, {}), unsaved.inbox, {**run.inbox, **run.unread})
        ready = self.ready.setdefault(run_id, set())
        for place, shown in unsaved.ready.items():
            (ready.add if shown else ready.discard)(place)
        if run.due_at != unsaved.due_at:
            self.due_at[run_id] = run.due_at

    def load(self, run_id: str) -> Run:
        run = rows.run_of(self._rows[run_id])
        for sequence, data in sorted(self._operations[run_id].items()):
            run.operations[sequence] = rows.operation_of(data)
        for position, data in sorted(self._inbox[run_id].items()):
            run.place_message(position, rows.signal_of(data))
        run.events = list(self._events[run_id])
        run.events_bytes = sum(map(len, run.events))
        run.arguments = rows.arguments_of(b",".join(run.events))
        return run


def _write_all(kept: dict[int, bytes], changed: set[int], present: Mapping[int, Any]) -> None:
    for place in changed:
        if place in present:
            kept[place] = rows.encode(present[place])
        else:
            kept.pop(place, None)


def picture(run: Run) -> dict[str, Any]:
    """Everything that a run is, as plain values that share nothing with it."""
    names = [name for name in Run.__struct_fields__ if name != "unsaved"]
    taken = msgspec.msgpack.encode({name: getattr(run, name) for name in names})
    return cast(dict[str, Any], msgspec.msgpack.decode(taken, strict=False))


def unsaved_picture(run: Run) -> dict[str, Any]:
    """What a run has yet to write."""
    return {
        name: value.copy() if isinstance(value, list | set | dict) else value
        for name in RunChanges.__slots__
        for value in [getattr(run.unsaved, name)]
    }


# The driver -------------------------------------------------------------------------------------


class Story:
    """Runs, a clock and a disk. Every call is one beat, unless a beat is held open."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = FakeClock()
        self.disk = Disk()
        self.runs: dict[str, Run] = {}
        self.bounds = DEFAULT_BOUNDS
        self.leasing = Leasing(
            workflow_timeout=WORKFLOW_LEASE_TIMEOUT, activity_timeout=ACTIVITY_LEASE_TIMEOUT
        )
        self._current: dict[Instance, str] = {}
        self._receipts: dict[ReceiptKey, Receipt] = {}
        self.workers: dict[tuple[str, str], Worker] = {}
        self._ids = IdSource(self.clock.now, seed)
        self._world: World | None = None
        self._holding = False

    # Deciding ------------------------------------------------------------------------------------

    def decide(self, operation: Operation) -> Any:
        """Have an operation decided as the beat does it. A `Rejection` comes through."""
        world = self._world or self._new_world()
        self._world = world
        self._load(world, operation)
        try:
            reply = operation.decide(world)
        except Rejection:
            self._end_beat()
            raise
        self._end_beat()
        return reply

    def _end_beat(self) -> None:
        if not self._holding:
            self.commit()

    def hold(self) -> None:
        """Let the following operations share one beat."""
        self._holding = True

    def commit(self) -> None:
        """End the beat: carry out what follows for other runs, then write."""
        self._holding = False
        world, self._world = self._world, None
        if world is None:
            return
        while world.follow_ups:
            following, world.follow_ups = world.follow_ups, []
            for operation in following:
                self._load(world, operation)
                operation.decide(world)
        self.runs.update(world.runs)
        self._current.update(world.current)
        assert not world.changes.receipts.keys() & self._receipts.keys(), "answers are kept once"
        self._receipts.update(world.receipts)
        self.disk.commit(world.touched.values())
        for run_id, run in world.touched.items():
            assert picture(self.disk.load(run_id)) == picture(run), "the disk has what memory has"

    def crash(self) -> None:
        """Lose everything that is not on disk."""
        self._holding = False
        self._world = None
        self.runs = {run_id: self.disk.load(run_id) for run_id in self.disk.run_ids}

    def _new_world(self) -> World:
        ctx = Context(self.clock.now(), self._ids, self.bounds)
        return World(ctx, self.workers, Rollouts(), make_registry())

    def _load(self, world: World, operation: Operation) -> None:
        wanted = list(operation.run_ids())
        for instance in operation.instances():
            if instance in self._current:
                world.current.setdefault(instance, self._current[instance])
                wanted.append(world.current[instance])
        for key in operation.receipts():
            if key in self._receipts:
                world.receipts.setdefault(key, self._receipts[key])
        for run_id in wanted:
            if run_id not in world.runs and run_id in self.runs:
                world.runs[run_id] = self.runs[run_id]

    @property
    def known(self) -> dict[str, Run]:
        """All runs, also those of a beat that is held open."""
        return self.runs if self._world is None else {**self.runs, **self._world.runs}

    @contextmanager
    def refused(self, rejection: type[Rejection]) -> Iterator[pytest.ExceptionInfo[Rejection]]:
        """Expect a refusal of exactly this kind that changes nothing at all."""
        before = self.pictures()
        with pytest.raises(rejection) as caught:
            yield caught
        assert type(caught.value) is rejection
        assert self.pictures() == before

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Expect that nothing of any run changes."""
        before = self.pictures()
        yield
        assert self.pictures() == before

    def pictures(self) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        return {run_id: (picture(run), unsaved_picture(run)) for run_id, run in self.known.items()}

    # Clients -------------------------------------------------------------------------------------

    def start(self, workflow_id: str = "order-1", **wanted: Any) -> Run:
        request: dict[str, Any] = {
            "namespace": NAMESPACE,
            "workflow_id": workflow_id,
            "workflow_type": "order",
            "queue": QUEUE,
        }
        if not wanted.keys() & {"plain", "arguments"}:
            request["arguments"] = ARGUMENTS
        started = self.decide(
            StartWorkflow(StartRequest(**{**request, **wanted}), use_existing=False)
        )
        return self.known[started.run_id]

    def signal(
        self,
        run: Run,
        name: str = "approve",
        arguments: bytes | None = ARGUMENTS,
        **target: Any,
    ) -> Commanded:
        commanded = self.decide(SignalRun(_target(run, **target), name=name, arguments=arguments))
        return cast(Commanded, commanded)

    def update(
        self,
        run: Run,
        name: str = "add",
        arguments: bytes | None = ARGUMENTS,
        *,
        workers: Iterable[Worker] = (),
        **target: Any,
    ) -> Admitted:
        """An update, while these workers are known to the server."""
        self.workers = {(w.namespace, w.worker_id): w for w in workers}
        operation = UpdateRun(_target(run, **target), name=name, arguments=arguments)
        return cast(Admitted, self.decide(operation))

    def look_at_update(self, run: Run, update_id: str) -> UpdateView:
        view = self.decide(ReadUpdate(run.namespace, run.run_id, update_id))
        return cast(UpdateView, view)

    def cancel(self, run: Run, reason: str | None = None) -> None:
        self.decide(CancelRun(_target(run), reason=reason))

    def terminate(self, run: Run, reason: str | None = None) -> None:
        self.decide(TerminateRun(_target(run), reason=reason))

    # Workers -------------------------------------------------------------------------------------

    def lease(
        self,
        run: Run,
        owner: str = WORKER,
        *,
        sdk_version: str = SDK_2,
        runtime: str = "python",
    ) -> WorkflowTask:
        """A worker takes the ready workflow task."""
        taker = worker(owner, sdk_version=sdk_version, runtime=runtime)
        self.decide(_Take(run.run_id, WORKFLOW_TASK, taker, self.leasing))
        assert run.task is not None
        return run.task

    def lease_validation(self, run: Run, owner: str = WORKER) -> WorkflowTask:
        """A worker takes the validation that the run waits for."""
        self.decide(_Take(run.run_id, WORKFLOW_TASK, validator(owner), self.leasing))
        assert run.task is not None
        return run.task

    def lease_preparing(self, run: Run, owner: str = WORKER) -> TaskReport:
        """A worker takes the task that asks before it runs local activities."""
        self.decide(_Take(run.run_id, WORKFLOW_TASK, preparer(owner), self.leasing))
        return report_of(run)

    def approve(self, run: Run, report: TaskReport | None = None) -> VerdictResult:
        operation = ApproveUpdate(run.namespace, run.run_id, report or report_of(run))
        return cast(VerdictResult, self.decide(operation))

    def reject(self, run: Run, reason: str, report: TaskReport | None = None) -> VerdictResult:
        refusal = Refusal(reason, "it does not fit")
        operation = RejectUpdate(run.namespace, run.run_id, report or report_of(run), refusal)
        return cast(VerdictResult, self.decide(operation))

    def request_cancellation(
        self, run: Run, *, reason: str | None = "enough", seconds: int = 60
    ) -> Requested:
        """Ask the run's code to cancel itself."""
        operation = RequestCancellation(_target(run), reason=reason, timeout_seconds=seconds)
        return cast(Requested, self.decide(operation))

    def deliver_cancellation(
        self,
        run: Run,
        call_kind: str,
        sequence: int,
        *,
        span: int = 1,
        operation: tuple[int, int] | None = None,
        report: TaskReport | None = None,
        request_id: str | None = None,
    ) -> Delivery:
        """The worker that has the task names the call at which its code stands."""
        assert run.cancellation is not None or request_id is not None
        named = "" if run.cancellation is None else run.cancellation.request_id
        boundary = Boundary(
            sequence=sequence,
            call_kind=call_kind,
            span=span,
            operation_sequence=None if operation is None else operation[0],
            operation_span=1 if operation is None else operation[1],
        )
        deliver = DeliverCancellation(
            run.namespace,
            run.run_id,
            report or report_of(run),
            request_id=request_id or named,
            boundary=boundary,
        )
        return cast(Delivery, self.decide(deliver))

    def acknowledge_stop(self, run: Run, ref: AttemptRef) -> Acknowledged:
        """Whoever ran a cancelled attempt says that it has stopped."""
        assert run.cancellation is not None
        operation = AcknowledgeStop(ref, run.cancellation.request_id)
        return cast(Acknowledged, self.decide(operation))

    def ask_activity(self, ref: AttemptRef) -> AttemptView:
        return cast(AttemptView, self.decide(AskActivity(ref)))

    def wake(self, run: Run) -> None:
        """The run gets a task for no reason."""
        self.decide(_Wake(run.run_id))

    def complete(
        self, run: Run, *commands: Command, report: TaskReport | None = None
    ) -> TaskCompleted:
        """The worker that has the task answers with commands."""
        operation = CompleteWorkflowTask(
            run.namespace, run.run_id, report or report_of(run), commands
        )
        return cast(TaskCompleted, self.decide(operation))

    def work(self, run: Run, *commands: Command) -> TaskCompleted:
        """A worker takes the task and answers with commands."""
        self.lease(run)
        return self.complete(run, *commands)

    def fail_task(
        self,
        run: Run,
        message: str = "boom",
        *,
        failure_type: str | None = None,
        report: TaskReport | None = None,
    ) -> TaskCompleted:
        operation = FailWorkflowTask(
            run.namespace,
            run.run_id,
            report or report_of(run),
            failure_type=failure_type,
            message=message,
        )
        return cast(TaskCompleted, self.decide(operation))

    def renew_task(self, run: Run, *, report: TaskReport | None = None) -> None:
        timeout = self.leasing.workflow_timeout
        self.decide(
            RenewWorkflowTask(run.namespace, run.run_id, report or report_of(run), timeout=timeout)
        )

    def lease_activity(self, run: Run, sequence: int, owner: str = WORKER) -> Activity:
        """A worker takes a ready activity task."""
        self.decide(_Take(run.run_id, sequence, worker(owner), self.leasing))
        return self.activity(run, sequence)

    def complete_activity(
        self,
        run: Run,
        sequence: int,
        result: bytes | None = RESULT,
        *,
        ref: AttemptRef | None = None,
    ) -> Recorded:
        operation = CompleteActivity(ref or ref_of(run, sequence), result)
        return cast(Recorded, self.decide(operation))

    def do_activity(self, run: Run, sequence: int, result: bytes | None = RESULT) -> None:
        """A worker takes an activity task and completes it."""
        self.lease_activity(run, sequence)
        self.complete_activity(run, sequence, result)

    def fail_activity(
        self,
        run: Run,
        sequence: int,
        failure: Reported | None = None,
        *,
        ref: AttemptRef | None = None,
    ) -> Recorded:
        failure = failure or Reported("card refused", exception_type="CardRefused")
        return cast(Recorded, self.decide(FailActivity(ref or ref_of(run, sequence), failure)))

    def heartbeat(
        self,
        run: Run,
        sequence: int,
        progress: bytes | None = None,
        *,
        ref: AttemptRef | None = None,
    ) -> AttemptView:
        operation = HeartbeatActivity(
            ref or ref_of(run, sequence),
            timeout=self.leasing.activity_timeout,
            progress=progress,
        )
        return cast(AttemptView, self.decide(operation))

    def renew_activity(
        self, run: Run, sequence: int, *, ref: AttemptRef | None = None
    ) -> AttemptView:
        operation = RenewActivity(
            ref or ref_of(run, sequence), timeout=self.leasing.activity_timeout
        )
        return cast(AttemptView, self.decide(operation))

    def release_activity(self, ref: AttemptRef, *, was_seen: bool) -> None:
        """The poll that was to receive an attempt is gone."""
        self.decide(ReleaseActivity(ref, was_seen=was_seen))

    # Time ----------------------------------------------------------------------------------------

    def later(self, *, seconds: float) -> None:
        """Let time pass; everything fires at the instant for which it is armed."""
        until = self.clock.now() + round(seconds * SECOND)
        for _ in range(1000):
            due_at = min(self._armed(), default=until + 1)
            if due_at > until:
                break
            self._pass_until(due_at)
            self.fire()
        else:
            raise AssertionError("something is due for ever")
        self._pass_until(until)

    def _pass_until(self, instant: int) -> None:
        self.clock.jump(seconds=max(instant - self.clock.now(), 0) / SECOND)

    def fire(self) -> None:
        """Look at every run whose armed deadline has come, once."""
        now = self.clock.now()
        for run_id in [i for i, at in self.disk.due_at.items() if at is not None and at <= now]:
            self.decide(FireDue(run_id))

    def _armed(self) -> list[int]:
        return [at for at in self.disk.due_at.values() if at is not None]

    # Looking -------------------------------------------------------------------------------------

    def activity(self, run: Run, sequence: int) -> Activity:
        operation = run.operations[sequence]
        assert isinstance(operation, Activity)
        return operation

    def child_of(self, run: Run, sequence: int) -> Run:
        """The run that a run waits for at a sequence."""
        operation = run.operations[sequence]
        assert isinstance(operation, Child)
        return self.known[operation.run_id]

    def successor_of(self, run: Run) -> Run:
        assert run.continued_to_run_id is not None
        return self.known[run.continued_to_run_id]

    def history(self, run: Run) -> list[Event]:
        events = [event_of(encoded) for encoded in run.events]
        assert [event.sequence for event in events] == list(range(1, run.history_count + 1))
        return events

    def types(self, run: Run, *, after: int = 0) -> list[str]:
        """The types of the events behind a position."""
        return [event.event_type for event in self.history(run)[after:]]

    def numbered(self, run: Run, *, after: int = 0) -> list[tuple[str, int | None]]:
        """Types with workflow sequences."""
        return [(e.event_type, e.payload.get("sequence")) for e in self.history(run)[after:]]

    def last(self, run: Run, event_type: str | None = None) -> dict[str, Any]:
        """The payload of the newest event, or of the newest of a type."""
        events = [e for e in self.history(run) if event_type in (None, e.event_type)]
        assert events, f"no {event_type} in {self.types(run)}"
        return events[-1].payload


def report_of(run: Run, *, owner: str | None = None, attempt: int | None = None) -> TaskReport:
    """A report on the run's present task, by its owner unless another one is named."""
    task = run.task
    assert task is not None, "the run has no workflow task"
    held_by = "" if task.lease is None else task.lease.owner
    return TaskReport(
        number=task.number,
        owner=held_by if owner is None else owner,
        attempt=task.attempt if attempt is None else attempt,
    )


def ref_of(run: Run, sequence: int, *, owner: str | None = None) -> AttemptRef:
    """The present attempt of an activity, by its owner unless another one is named."""
    operation = run.operations[sequence]
    assert isinstance(operation, Activity)
    held_by = "" if operation.lease is None else operation.lease.owner
    return AttemptRef(
        namespace=run.namespace,
        run_id=run.run_id,
        sequence=sequence,
        attempt_id=operation.attempt_id,
        owner=held_by if owner is None else owner,
    )


def lease_of(holder: WorkflowTask | Activity) -> Lease:
    """The lease of a task that must have one."""
    assert holder.state is TaskState.LEASED
    assert holder.lease is not None
    return holder.lease


def _target(run: Run, **target: Any) -> CommandTarget:
    instance = Instance(run.namespace, run.workflow_id)
    return CommandTarget(instance=instance, **{"run_id": run.run_id, **target})

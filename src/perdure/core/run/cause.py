"""Why a run is not moving: the one thing that it waits for, in words and as a value."""

from typing import assert_never

from msgspec import Struct, field, structs

from perdure.core import instant
from perdure.core.fleet.routing import plain_of_name
from perdure.core.fleet.worker_availability import AwaitedTask, WorkerAvailability
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import (
    Activity,
    Child,
    ConditionWait,
    GroupMode,
    LocalActivity,
    Operation,
    PushStep,
    ServiceCall,
    SignalWait,
    StepState,
    Timer,
)
from perdure.core.run.push import ApprovalWait
from perdure.core.run.state import Run, TaskKind, WorkflowTask
from perdure.core.run.state_parts import Cancellation
from perdure.core.run.status import RunStatus
from perdure.core.run.task import activity_place, task_name


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What moves an open run next."""

    kind: str
    text: str
    queue: str | None = None
    owner: str | None = None
    until: int | None = None
    name: str | None = None
    sequence: int | None = None
    attempt: int | None = None
    run_id: str | None = None
    last_failure: str | None = None
    update_id: str | None = None
    request_id: str | None = None
    approval_id: str | None = None
    availability: WorkerAvailability | None = field(default=None, name="staffing")
    """What keeps workers from a task that is ready, if it is known and somebody is missing."""


def next_cause(
    run: Run, availability: WorkerAvailability | None = None, damage: str | None = None
) -> Cause | None:
    """Exactly one cause for an open run, none for a closed one.

    `staffing` says who is there for the task that it waits for, if it does; see `awaited_task`.
    `damage` is what was found wrong with what the disk holds of it.
    """
    if run.is_closed:
        return None
    if damage is not None:
        text = f"the run is damaged on disk and stands still: {damage}; restore it from a backup"
        return Cause(kind="history_damaged", text=text)
    cause = _next_cause(run)
    if availability is not None and availability is not WorkerAvailability.PRESENT:
        cause = _missing(cause, run, availability)
    return cause if run.cancellation is None else _until_closed(cause, run.cancellation)


def awaited_task(run: Run) -> AwaitedTask | None:
    """The ready task that an open run waits for somebody to take, if that is its cause."""
    if run.is_closed or run.push is not None:
        return None
    mover = _mover(run)
    if isinstance(mover, WorkflowTask) and mover.state is TaskState.READY:
        kind, queue, type_name, name = "workflow", run.queue, run.workflow_type, task_name(run)
    elif isinstance(mover, Activity) and mover.state is TaskState.READY:
        kind, queue, type_name = "activity", mover.queue, mover.activity_type
        name = plain_of_name(activity_place(run, mover)[1])
    else:
        return None
    return AwaitedTask(kind, run.namespace, queue, type_name, name, run.build_id)


def _missing(cause: Cause, run: Run, availability: WorkerAvailability) -> Cause:
    """Why nobody can have taken the task."""
    told = {
        WorkerAvailability.NOBODY: "none is registered for it",
        WorkerAvailability.SILENT: "none that is registered for it was heard of lately",
        WorkerAvailability.OTHER_BUILD: f"none that lives is of build {run.build_id}",
        WorkerAvailability.UNABLE: "none that lives has the capabilities that it needs",
        WorkerAvailability.DRAINING: "all that could are draining",
        WorkerAvailability.THROTTLED: "no more may be leased from the queue now",
    }
    return structs.replace(
        cause, text=f"{cause.text}: {told[availability]}", availability=availability
    )


def _until_closed(cause: Cause, cancellation: Cancellation) -> Cause:
    """A run that was asked to cancel itself is closed at a deadline, whatever it waits for."""
    at = cancellation.deadline_at
    return structs.replace(
        cause,
        text=f"{cause.text}; asked to cancel, it is closed at {instant.text(at)}",
        until=at if cause.until is None else min(cause.until, at),
        request_id=cancellation.request_id,
    )


def _next_cause(run: Run) -> Cause:
    if run.status is RunStatus.PAUSED and run.task is None:
        return Cause(kind="paused", text=_why_paused(run))
    mover = _mover(run)
    if mover is None:
        return Cause(kind="signal", text=_NOTHING_OPEN)
    if isinstance(mover, WorkflowTask):
        return _task(run, mover)
    return (_message(run, mover) if mover.sequence == run.wait else None) or _operation(mover)


def _mover(run: Run) -> WorkflowTask | Operation | None:
    """What moves the run next, if it is anything of its own."""
    if run.task is not None:
        return run.task
    if run.wait is not None and run.wait in run.operations:
        return run.operations[run.wait]
    # What has an outcome already waits for the rest of its list; the rest is the cause.
    waiting = [operation for operation in run.operations.values() if _is_awaited(operation)]
    return min(waiting, key=lambda o: (_comes_last(run, o), o.sequence), default=None)


_NOTHING_OPEN = (
    "waits for a signal; nothing else is open: its code said that it waits, and only a signal, an "
    "update or a request to cancel brings it back"
)


def _why_paused(run: Run) -> str:
    pause = None if run.push is None else run.push.pause
    if pause is None or pause.reason == "manual":
        return "paused; it goes on when somebody resumes it"
    return (
        f"paused for its {pause.reason} ({pause.detail}); it goes on when the window has moved on, "
        "or somebody resumes it"
    )


def _is_awaited(operation: Operation) -> bool:
    if isinstance(operation, PushStep):
        return operation.state in (StepState.WAITING, StepState.BACKOFF)
    return operation.outcome is None and not operation.detached


def _comes_last(run: Run, operation: Operation) -> bool:
    """Whether this is the cause only if there is no other.

    The code went on without the losers of a selection, and nobody can end a selected condition
    but its time-out.
    """
    group = None if operation.group is None else run.groups.get(operation.group)
    if group is None or group.mode is not GroupMode.SELECT:
        return False
    endless = isinstance(operation, ConditionWait) and operation.fire_at is None
    return endless or group.winner is not None


def _task(run: Run, task: WorkflowTask) -> Cause:
    if task.kind is not TaskKind.PROGRESS:
        return _update(run, task)
    match task.state:
        case TaskState.LEASED:
            lease = task.lease
            assert lease is not None
            return Cause(
                kind="workflow_task_leased",
                text=f"worker {lease.owner} works on it until {instant.text(lease.expires_at)}",
                queue=run.queue,
                owner=lease.owner,
                until=lease.expires_at,
                attempt=task.attempt,
                last_failure=task.failure_message,
            )
        case TaskState.READY:
            taker = "worker of queue" if run.push is None else "runner of app"
            why = ""
            if run.push is not None and task.failure_message is not None:
                why = f"; the last one could not be reached: {task.failure_message}"
            return Cause(
                kind="workflow_task_ready",
                text=f"ready since {instant.text(task.available_at)}; no {taker} "
                f"{run.queue} that knows {run.workflow_type} has taken it{why}",
                queue=run.queue,
                name=run.workflow_type,
                attempt=task.attempt,
                last_failure=task.failure_message,
            )
        case TaskState.DELAYED:
            failed = task.failure_message is not None
            why = f"its last workflow task failed ({task.failure_message})" if failed else "delayed"
            return Cause(
                kind="backoff" if failed else "delayed_start",
                text=f"{why}; next try at {instant.text(task.available_at)}",
                until=task.available_at,
                attempt=task.attempt,
                last_failure=task.failure_message,
            )
        case _:
            assert_never(task.state)


def _update(run: Run, task: WorkflowTask) -> Cause:
    """An update that waits for its outcome, or for the word of its validator."""
    judged = task.kind is TaskKind.VALIDATION
    update_id = str(task.resume["workflow_update_id"])
    if judged:
        name = str(task.resume["update_name"])
    else:
        assert run.update is not None
        name = run.update.name
    doing = "validates" if judged else "works on"
    lease, until = task.lease, None
    if lease is not None:
        until = lease.expires_at
        what = f"worker {lease.owner} {doing} update {name} until {instant.text(until)}"
    elif task.state is TaskState.DELAYED:
        until = task.available_at
        what = (
            f"the last task of update {name} failed ({task.failure_message}); "
            f"next try at {instant.text(until)}"
        )
    else:
        at = instant.text(task.available_at)
        able = "validates it" if judged else f"knows {run.workflow_type}"
        what = f"update {name} waits since {at}; no worker of queue {run.queue} that {able} took it"
    return Cause(
        kind="update_validation" if judged else "update",
        text=what,
        queue=run.queue,
        name=name,
        owner=None if lease is None else lease.owner,
        until=until,
        attempt=task.attempt,
        last_failure=task.failure_message,
        update_id=update_id,
    )


def _message(run: Run, wait: Operation) -> Cause | None:
    """The message that the code waits for, if its worker told that it waits for one."""
    if not isinstance(wait, ConditionWait):
        return None
    for name, position in run.stream_waits.items():
        if wait.key == f"message-stream:{name}:{position}":
            return Cause(
                kind="message_stream",
                text=f"waits for a message of stream {name} behind position {position}",
                sequence=wait.sequence,
                name=name,
            )
    return None


def _operation(operation: Operation) -> Cause:
    match operation:
        case Activity():
            return _activity(operation)
        case LocalActivity():
            return _local_activity(operation)
        case Timer():
            return Cause(
                kind="timer",
                text=f"sleeps until {instant.text(operation.fire_at)}",
                sequence=operation.sequence,
                until=operation.fire_at,
            )
        case Child():
            return Cause(
                kind="child",
                text=f"waits for child {operation.workflow_type} ({operation.workflow_id})",
                sequence=operation.sequence,
                name=operation.workflow_type,
                run_id=operation.run_id,
            )
        case ConditionWait():
            what = f"condition {operation.key}" if operation.key else "a condition"
            return Cause(
                kind="condition",
                text=f"waits for {what}{_until(operation.fire_at)}{_by(operation)}",
                sequence=operation.sequence,
                name=operation.key,
                until=operation.fire_at,
            )
        case ServiceCall():
            return Cause(
                kind="service_call",
                text=f"waits for service operation {operation.name} of namespace "
                f"{operation.namespace}, call {operation.call_id}{_until(operation.fire_at)}",
                sequence=operation.sequence,
                name=operation.name,
                until=operation.fire_at,
            )
        case SignalWait():
            return Cause(
                kind="signal",
                text=f"waits for signal {operation.signal_name}{_until(operation.fire_at)}",
                sequence=operation.sequence,
                name=operation.signal_name,
                until=operation.fire_at,
            )
        case PushStep() if operation.approval is not None:
            return _approval(operation, operation.approval)
        case PushStep():
            return Cause(
                kind="step",
                text=f"step {operation.name} ({operation.kind}) is {operation.state}"
                f"{_until(operation.fire_at)}",
                sequence=operation.sequence,
                name=operation.name,
                until=operation.fire_at,
                attempt=operation.attempt,
                run_id=operation.child_run_id,
            )
        case _:
            assert_never(operation)


def _approval(step: PushStep, wait: ApprovalWait) -> Cause:
    asked = f"; {wait.escalates_to} was asked" if wait.is_escalated else ""
    return Cause(
        kind="approval",
        text=f"step {step.name} waits for somebody to decide on {wait.tool}"
        f"{_until(step.fire_at)}{asked}",
        sequence=step.sequence,
        name=step.name,
        until=step.fire_at,
        approval_id=wait.approval_id,
    )


def _activity(activity: Activity) -> Cause:
    lease = activity.lease
    if lease is not None:
        text = (
            f"worker {lease.owner} runs activity {activity.activity_type}, attempt "
            f"{activity.attempt}, until {instant.text(lease.expires_at)}"
        )
        until = lease.expires_at
    elif activity.state is TaskState.DELAYED:
        at = instant.text(activity.available_at)
        text = f"activity {activity.activity_type} failed; attempt {activity.attempt + 1} at {at}"
        until = activity.available_at
    else:
        at = instant.text(activity.available_at)
        of = "" if activity.session is None else f" of session {activity.session.session_id}"
        text = (
            f"activity {activity.activity_type}{of} is ready since {at}; no worker of queue "
            f"{activity.queue} has taken it"
        )
        until = None
    return Cause(
        kind="activity",
        text=text,
        sequence=activity.sequence,
        name=activity.activity_type,
        queue=activity.queue,
        owner=None if lease is None else lease.owner,
        until=until,
        attempt=activity.attempt,
        last_failure=activity.last_failure,
    )


def _local_activity(local: LocalActivity) -> Cause:
    what = f"local activity {local.activity_type}"
    if local.claim is not None:
        text = f"worker {local.claim.owner} runs {what}, attempt {local.attempt}"
    elif local.state is TaskState.DELAYED:
        at = instant.text(local.available_at)
        text = f"{what} failed; attempt {local.attempt + 1} at {at}"
    else:
        text = f"{what} waits for a worker that asks before it runs one"
    return Cause(
        kind="local_activity",
        text=text,
        sequence=local.sequence,
        name=local.activity_type,
        owner=None if local.claim is None else local.claim.owner,
        until=local.available_at if local.state is TaskState.DELAYED else None,
        attempt=local.attempt,
        last_failure=local.last_failure,
    )


def _by(wait: ConditionWait) -> str:
    # A selection has no word by which a worker could say that a condition has become true.
    return "; a signal may satisfy it" if wait.group is None else ", in a selection"


def _until(at: int | None) -> str:
    return "" if at is None else f" until {instant.text(at)}"

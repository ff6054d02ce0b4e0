"""Cause of an open run: the one thing that it waits for, as a text and as a value."""

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
    """Why no worker can take the ready task, if that is known."""


def next_cause(
    run: Run, availability: WorkerAvailability | None = None, damage: str | None = None
) -> Cause | None:
    """Exactly one cause for an open run, none for a closed one.

    `availability` is that of workers for the ready task of the run; see `awaited_task`.
    `damage` describes the corruption that was found in the stored run.
    """
    if run.is_closed:
        return None
    if damage is not None:
        text = f"the stored run is damaged and cannot continue: {damage}; restore it from a backup"
        return Cause(kind="history_damaged", text=text)
    cause = _next_cause(run)
    if availability is not None and availability is not WorkerAvailability.PRESENT:
        cause = _add_availability(cause, run, availability)
    return cause if run.cancellation is None else _until_closed(cause, run.cancellation)


def awaited_task(run: Run) -> AwaitedTask | None:
    """The ready task that a worker must take, if that is the cause of the run."""
    if run.is_closed or run.push is not None:
        return None
    awaited = _awaited(run)
    if isinstance(awaited, WorkflowTask) and awaited.state is TaskState.READY:
        kind, queue, type_name, name = "workflow", run.queue, run.workflow_type, task_name(run)
    elif isinstance(awaited, Activity) and awaited.state is TaskState.READY:
        kind, queue, type_name = "activity", awaited.queue, awaited.activity_type
        name = plain_of_name(activity_place(run, awaited)[1])
    else:
        return None
    return AwaitedTask(kind, run.namespace, queue, type_name, name, run.build_id)


def _add_availability(cause: Cause, run: Run, availability: WorkerAvailability) -> Cause:
    """Add to the text why no worker has taken the task."""
    reasons = {
        WorkerAvailability.NOBODY: "none is registered for it",
        WorkerAvailability.SILENT: "none that is registered for it was active lately",
        WorkerAvailability.OTHER_BUILD: f"no active worker is of build {run.build_id}",
        WorkerAvailability.UNABLE: "no active worker has the capabilities that it needs",
        WorkerAvailability.DRAINING: "every worker that could take it is draining",
        WorkerAvailability.THROTTLED: "quotas allow no more leases from its queue for now",
    }
    return structs.replace(
        cause, text=f"{cause.text}: {reasons[availability]}", availability=availability
    )


def _until_closed(cause: Cause, cancellation: Cancellation) -> Cause:
    """Add the deadline at which a run that was asked to cancel itself is closed in any case."""
    at = cancellation.deadline_at
    return structs.replace(
        cause,
        text=f"{cause.text}; asked to cancel itself, it is closed at {instant.text(at)}",
        until=at if cause.until is None else min(cause.until, at),
        request_id=cancellation.request_id,
    )


def _next_cause(run: Run) -> Cause:
    if run.status is RunStatus.PAUSED and run.task is None:
        return Cause(kind="paused", text=_why_paused(run))
    awaited = _awaited(run)
    if awaited is None:
        return Cause(kind="signal", text=_NOTHING_OPEN)
    if isinstance(awaited, WorkflowTask):
        return _task(run, awaited)
    return (_message(run, awaited) if awaited.sequence == run.wait else None) or _operation(awaited)


def _awaited(run: Run) -> WorkflowTask | Operation | None:
    """The task or operation that moves the run next, if it is one of its own."""
    if run.task is not None:
        return run.task
    if run.wait is not None and run.wait in run.operations:
        return run.operations[run.wait]
    # An operation with an outcome waits for the rest of its group; the rest is the cause.
    waiting = [operation for operation in run.operations.values() if _is_awaited(operation)]
    return min(waiting, key=lambda o: (_is_last_resort(run, o), o.sequence), default=None)


_NOTHING_OPEN = (
    "waits for a signal; nothing else is open: only a signal, an update or a request to cancel "
    "resumes its code"
)


def _why_paused(run: Run) -> str:
    pause = None if run.push is None else run.push.pause
    if pause is None or pause.reason == "manual":
        return "paused; it continues when it is resumed"
    return (
        f"paused for its {pause.reason} ({pause.detail}); it continues when enough usage has "
        "left the window, or when it is resumed"
    )


def _is_awaited(operation: Operation) -> bool:
    if isinstance(operation, PushStep):
        return operation.state in (StepState.WAITING, StepState.BACKOFF)
    return operation.outcome is None and not operation.detached


def _is_last_resort(run: Run, operation: Operation) -> bool:
    """Whether this is the cause only if there is no other.

    The code continued without the losers of a selection, and only the time-out can end a condition
    in a selection.
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
            poller_kind = "worker of queue" if run.push is None else "runner of app"
            why = ""
            if run.push is not None and task.failure_message is not None:
                why = f"; the last one could not be reached: {task.failure_message}"
            return Cause(
                kind="workflow_task_ready",
                text=f"ready since {instant.text(task.available_at)}; no {poller_kind} "
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
    """An update that waits for its outcome or its validation."""
    is_validation = task.kind is TaskKind.VALIDATION
    update_id = str(task.resume["workflow_update_id"])
    if is_validation:
        name = str(task.resume["update_name"])
    else:
        assert run.update is not None
        name = run.update.name
    verb = "validates" if is_validation else "works on"
    lease, until = task.lease, None
    if lease is not None:
        until = lease.expires_at
        what = f"worker {lease.owner} {verb} update {name} until {instant.text(until)}"
    elif task.state is TaskState.DELAYED:
        until = task.available_at
        what = (
            f"the last task of update {name} failed ({task.failure_message}); "
            f"next try at {instant.text(until)}"
        )
    else:
        at = instant.text(task.available_at)
        requirement = "validates it" if is_validation else f"knows {run.workflow_type}"
        what = (
            f"update {name} waits since {at}; no worker of queue {run.queue} that {requirement} "
            "took it"
        )
    return Cause(
        kind="update_validation" if is_validation else "update",
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
    """The stream message that the code waits for, if its worker reported that it does."""
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
    escalation = f"; {wait.escalates_to} was asked" if wait.is_escalated else ""
    return Cause(
        kind="approval",
        text=f"step {step.name} waits for a decision on {wait.tool}"
        f"{_until(step.fire_at)}{escalation}",
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
        text = f"{what} waits for a worker that prepares local activities"
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
    # In a selection a worker has no command to report that a condition has become true.
    return "; a signal may satisfy it" if wait.group is None else ", in a selection"


def _until(at: int | None) -> str:
    return "" if at is None else f" until {instant.text(at)}"

"""Cooperative cancellation: delivers a request at the call where the workflow code waits.

The worker names that call. Steps that ended before the request keep their results. Steps that are
open at the call are stopped or detached, each kind by its policy; then the delivery is recorded,
and the code continues with its clean-up under the same lease. With a policy that waits, the lease
is released until the work has stopped.
"""

from msgspec import Struct

from perdure.core import instant
from perdure.core.rejection import (
    AttemptNotFound,
    CancellationAlreadyDelivered,
    CancellationRequestNotFound,
    CooperativeCancellationUnavailable,
    InvalidCancellationBoundary,
    LeaseOwnerMismatch,
)
from perdure.core.run.activity import cancelled_members, end_cancelled, find_attempt
from perdure.core.run.cancellation import ask_to_cancel, find_stopped, record_request
from perdure.core.run.completion import TaskReport
from perdure.core.run.context import Context
from perdure.core.run.effect import CancelChild
from perdure.core.run.group import is_blocked
from perdure.core.run.history import record, with_metadata
from perdure.core.run.lease import TaskState
from perdure.core.run.local.activity import cancel_local, claim_of
from perdure.core.run.message import require_active
from perdure.core.run.operation import (
    Activity,
    Child,
    ConditionWait,
    GroupMode,
    LocalActivity,
    Operation,
    SignalWait,
    Timer,
)
from perdure.core.run.settle import drop_operation, member_of, record_held, settle
from perdure.core.run.state import Dialect, Run, TaskKind, WorkflowTask
from perdure.core.run.state_parts import Boundary, Cancellation, Stopped
from perdure.core.run.task import (
    RELEASES,
    WAITING_FOR_ACTIVITY,
    WAITING_FOR_CHILD,
    finish_task,
    require_lease,
    withdraw,
)
from perdure.core.run.wait import cancel_timeout, close_wait_before

WAIT = "wait_cancellation_completed"
ABANDON = "abandon"

_KINDS: dict[str, type[Operation]] = {
    "activity": Activity,
    "timer": Timer,
    "condition": ConditionWait,
    "signal": SignalWait,
    "child": Child,
    "local_activity": LocalActivity,
}


class Delivery(Struct, frozen=True):
    """The answer to a delivery; a reason says what must stop before it can be delivered."""

    run_id: str
    waiting: str | None = None


class Acknowledged(Struct, frozen=True):
    """The answer to a worker that confirms the stop of a cancelled attempt."""

    event_id: str
    duplicate: bool


def request_cancellation(
    run: Run, ctx: Context, *, reason: str | None, timeout_seconds: int
) -> tuple[Cancellation, bool]:
    """Ask the code to cancel itself. A second request returns the first."""
    if run.cancellation is not None:
        return run.cancellation, True
    require_active(run)
    if run.hosted is not None or run.dialect is not Dialect.PULL:
        raise CooperativeCancellationUnavailable(
            f"run {run.run_id} cannot be asked to cancel itself: no worker executes its code",
            run_id=run.run_id,
        )
    cancellation = ask_to_cancel(run, ctx, reason=reason, timeout_seconds=timeout_seconds)
    settle(run, ctx)
    return cancellation, False


def deliver_cancellation(
    run: Run, ctx: Context, report: TaskReport, request_id: str, boundary: Boundary
) -> Delivery:
    """Interrupt the code at one call. A repeated delivery changes nothing."""
    released = run.last_task
    if released is not None and released.outcome in RELEASES:
        reported = (released.number, released.owner, released.attempt)
        if reported == (report.number, report.owner, report.attempt):
            return Delivery(run.run_id, released.outcome)
    task = require_lease(run, ctx, number=report.number, owner=report.owner, attempt=report.attempt)
    cancellation = _require_request(run, request_id)
    if not task.cooperative:
        raise CooperativeCancellationUnavailable(
            f"worker {report.owner} did not register for cooperative cancellation"
        )
    if cancellation.delivered is not None:
        if cancellation.delivered == boundary:
            return Delivery(run.run_id)
        raise CancellationAlreadyDelivered(
            f"request {request_id} was delivered at call {cancellation.delivered.sequence}",
            sequence=cancellation.delivered.sequence,
            call_kind=cancellation.delivered.call_kind,
        )
    _check_call(run, task, cancellation, boundary)
    _require_stopped(run, task, cancellation, boundary)
    if run.repeats and _is_next(run, boundary.sequence):
        close_wait_before(run, ctx, task, None)
        run.next_sequence, run.repeats = boundary.sequence, 0
    if cancellation.event_id is None:
        record_request(run, ctx)
    cancellation.seen = True
    waiting = _ask_to_stop(run, ctx, boundary)
    if waiting is not None:
        finish_task(run, task, waiting)
        settle(run, ctx)
        return Delivery(run.run_id, waiting)
    _interrupt(run, ctx, task, boundary)
    task.snapshot = run.history_count
    return Delivery(run.run_id)


def acknowledge_stop(
    run: Run, ctx: Context, *, sequence: int, attempt_id: str, owner: str, request_id: str
) -> Acknowledged:
    """Record that the worker of a cancelled attempt has stopped it."""
    cancellation = _require_request(run, request_id)
    stopped = find_stopped(run, attempt_id)
    if stopped is None:
        activity = find_attempt(run, sequence=sequence, attempt_id=attempt_id)
        assert activity.lease is not None
        _require_owner(attempt_id, activity.lease.owner, owner)
        if not activity.cancel_requested:
            raise AttemptNotFound(f"attempt {attempt_id} was not cancelled")
        stopped = _stopped(cancellation, activity, cancellation.event_id)
        end_cancelled(run, ctx, activity, cancellation)
    _require_owner(attempt_id, stopped.owner, owner)
    duplicate = stopped.acknowledged
    if not run.is_closed:
        # A closed run does not change, so a repeat gets the same answer.
        stopped.acknowledged = True
    return Acknowledged(stopped.event_id, duplicate)


def _require_request(run: Run, request_id: str) -> Cancellation:
    cancellation = run.cancellation
    if cancellation is None or cancellation.request_id != request_id:
        raise CancellationRequestNotFound(f"run {run.run_id} has no request {request_id}")
    return cancellation


def _require_owner(attempt_id: str, lease_owner: str, owner: str) -> None:
    if lease_owner != owner:
        raise LeaseOwnerMismatch(
            f"attempt {attempt_id} is leased by {lease_owner}", lease_owner=lease_owner
        )


# Validation of the call -------------------------------------------------------------------------


def _check_call(
    run: Run, task: WorkflowTask, cancellation: Cancellation, boundary: Boundary
) -> None:
    """Refuse a call where the code cannot be waiting, or that ended before the request."""
    if task.kind is not TaskKind.PROGRESS:
        raise InvalidCancellationBoundary("an update task cannot deliver a cancellation")
    first, last = _range(boundary)
    if boundary.call_kind == "selection_handle":
        _check_handle(run, boundary)
    elif _is_next(run, boundary.sequence):
        if is_blocked(run):
            raise InvalidCancellationBoundary("the code waits at an earlier call")
        return
    elif boundary.sequence + boundary.span > run.next_sequence:
        raise InvalidCancellationBoundary(f"the next call of the run is {run.next_sequence}")
    elif boundary.call_kind == "parallel":
        _check_group(run, boundary)
    else:
        _check_single(run, boundary)
    if cancellation.event_id is None:
        if run.repeats and run.wait is not None and first <= run.wait <= last:
            raise InvalidCancellationBoundary(
                "the wait was opened again; first the request must be in history"
            )
        deliverable = any(first <= sequence <= last for sequence in run.operations)
    else:
        deliverable = last >= cancellation.first_later_call or any(
            first <= sequence <= last for sequence in cancellation.open_calls
        )
    # Code that waits for a loser by its handle waits in a selection that is decided.
    decided = () if boundary.call_kind == "selection_handle" else cancellation.decided_groups
    if not deliverable or any(first <= base <= last for base in decided):
        raise InvalidCancellationBoundary(f"call {first} ended before the request")


def _is_next(run: Run, sequence: int) -> bool:
    """Whether this is a new call of the code, by its worker's count of calls."""
    return run.next_sequence <= sequence <= run.next_sequence + run.repeats


def _range(boundary: Boundary) -> tuple[int, int]:
    """The first and the last sequence of the steps that are interrupted."""
    if boundary.operation_sequence is not None:
        first = boundary.operation_sequence
        return first, first + boundary.operation_span - 1
    return boundary.sequence, boundary.sequence + boundary.span - 1


def _check_handle(run: Run, boundary: Boundary) -> None:
    if not _is_next(run, boundary.sequence):
        raise InvalidCancellationBoundary(f"the next call of the run is {run.next_sequence}")
    first, last = _range(boundary)
    if last >= run.next_sequence:
        raise InvalidCancellationBoundary(f"there is no step {last}")
    for group in run.groups.values():
        if group.mode is GroupMode.SELECT and group.base <= first < group.base + group.size:
            member = member_of(group, first)
            if (member.base, member.size) != (first, boundary.operation_span):
                raise InvalidCancellationBoundary(f"no member of a selection begins at {first}")


def _check_group(run: Run, boundary: Boundary) -> None:
    group = run.groups.get(boundary.sequence)
    if group is not None and (group.size != boundary.span or group.winner is not None):
        raise InvalidCancellationBoundary(f"no open group of this size is at {boundary.sequence}")
    inside = range(boundary.sequence, boundary.sequence + boundary.span)
    if group is None and any(s in run.operations for s in inside):
        raise InvalidCancellationBoundary(f"call {boundary.sequence} is not a group")


def _check_single(run: Run, boundary: Boundary) -> None:
    operation = run.operations.get(boundary.sequence)
    kind = _KINDS.get(boundary.call_kind)
    if kind is None:
        raise InvalidCancellationBoundary(
            f"the code cannot wait at {boundary.sequence} for a {boundary.call_kind}"
        )
    if operation is not None and (
        not isinstance(operation, kind) or operation.group in run.groups or operation.detached
    ):
        raise InvalidCancellationBoundary(
            f"call {boundary.sequence} is not a {boundary.call_kind} that the code waits for"
        )


# Interruption of open steps ---------------------------------------------------------------------


def _open_steps(run: Run, boundary: Boundary) -> list[Operation]:
    first, last = _range(boundary)
    return [
        operation
        for sequence, operation in sorted(run.operations.items())
        if first <= sequence <= last and not operation.detached
    ]


def _require_stopped(
    run: Run, task: WorkflowTask, cancellation: Cancellation, boundary: Boundary
) -> None:
    """Require that the worker has stopped its own local attempts. Those of lost leases are over."""
    for operation in _open_steps(run, boundary):
        if not isinstance(operation, LocalActivity) or operation.claim != claim_of(task):
            continue
        stopped = find_stopped(run, operation.attempt_id)
        if stopped is None or not stopped.acknowledged:
            raise InvalidCancellationBoundary(
                f"stop attempt {operation.attempt_id} and confirm it before the delivery"
            )


def _ask_to_stop(run: Run, ctx: Context, boundary: Boundary) -> str | None:
    """Request the stop of steps whose policy waits. Returns why the delivery must wait, if so."""
    waiting = None
    for operation in _open_steps(run, boundary):
        if operation.outcome is not None:
            continue
        if isinstance(operation, Activity) and operation.cancellation_policy == WAIT:
            if operation.state is not TaskState.LEASED:
                continue
            operation.cancel_requested = True
            waiting = waiting or WAITING_FOR_ACTIVITY
        elif isinstance(operation, Child) and operation.cancellation_policy == WAIT:
            _cancel_child(run, operation)
            waiting = WAITING_FOR_CHILD
        else:
            continue
        run.unsaved.operations.add(operation.sequence)
        group = None if operation.group is None else run.groups.get(operation.group)
        if group is not None:
            group.interrupted = True
    return waiting


def _cancel_child(run: Run, child: Child) -> None:
    assert run.cancellation is not None
    run.unsaved.effects.append(CancelChild(child.run_id, run.cancellation))


def _interrupt(run: Run, ctx: Context, task: WorkflowTask, boundary: Boundary) -> None:
    cancellation = run.cancellation
    assert cancellation is not None
    if boundary.sequence == run.next_sequence:
        # The code has passed its open wait without a command.
        close_wait_before(run, ctx, task, None)
    for operation in _open_steps(run, boundary):
        _leave_group(run, operation)
        _stop_operation(run, ctx, cancellation, operation)
    cancellation.delivered = boundary
    behind = boundary.sequence + boundary.span
    run.next_sequence = max(run.next_sequence, behind)
    cancellation.delivered_event_id = record(
        run,
        ctx,
        "CooperativeCancellationDelivered",
        {
            "workflow_command_id": cancellation.request_id,
            "workflow_instance_id": run.workflow_id,
            "workflow_run_id": run.run_id,
            "sequence": boundary.sequence,
            "call_kind": boundary.call_kind,
            "sequence_span": boundary.span,
            "operation_sequence": boundary.operation_sequence,
            "operation_sequence_span": boundary.operation_span,
        },
    )


def _leave_group(run: Run, operation: Operation) -> None:
    group = None if operation.group is None else run.groups.get(operation.group)
    operation.group = None
    if group is None:
        return
    group.unrecorded -= 1
    if operation.outcome is None:
        group.open -= 1
    if group.mode is GroupMode.SELECT:
        member_of(group, operation.sequence).cancelled = True
    if group.unrecorded <= 0:
        del run.groups[group.base]


def _stop_operation(
    run: Run, ctx: Context, cancellation: Cancellation, operation: Operation
) -> None:
    if operation.outcome is not None:
        # It ended after the request, or while the worker decided. Its event is recorded, but the
        # code does not receive the result.
        record_held(run, ctx, operation)
        drop_operation(run, operation.sequence)
        return
    match operation:
        case LocalActivity():
            cancel_local(run, ctx, operation, cancellation)
        case Activity() if operation.cancellation_policy == ABANDON:
            _detach(run, operation)
        case Activity():
            _cancel_activity(run, ctx, cancellation, operation)
        case Timer():
            cancelled_at = instant.text(ctx.now)
            payload = {
                "timer_id": operation.timer_id,
                "sequence": operation.sequence,
                "delay_seconds": operation.delay_seconds,
                "fire_at": instant.text(operation.fire_at),
                "cancelled_at": cancelled_at,
            }
            record(run, ctx, "TimerCancelled", with_metadata(payload, operation))
            drop_operation(run, operation.sequence)
        case ConditionWait() | SignalWait():
            cancel_timeout(run, ctx, operation)
            drop_operation(run, operation.sequence)
        case Child():
            if operation.cancellation_policy not in (None, ABANDON):
                _cancel_child(run, operation)
            _detach(run, operation)
        case _:
            _detach(run, operation)


def _detach(run: Run, operation: Operation) -> None:
    operation.detached = True
    run.unsaved.operations.add(operation.sequence)


def _cancel_activity(
    run: Run, ctx: Context, cancellation: Cancellation, activity: Activity
) -> None:
    record_held(run, ctx, activity)
    payload = with_metadata(cancelled_members(activity, cancellation, ctx.now), activity)
    event_id = record(run, ctx, "ActivityCancelled", payload)
    if activity.state is TaskState.LEASED:
        _stopped(cancellation, activity, event_id)
    elif activity.state is TaskState.READY:
        withdraw(run, activity.sequence)
    drop_operation(run, activity.sequence)


def _stopped(cancellation: Cancellation, activity: Activity, event_id: str | None) -> Stopped:
    assert activity.lease is not None
    assert event_id is not None
    stopped = Stopped(activity.attempt_id, activity.lease.owner, event_id)
    cancellation.stopped.append(stopped)
    return stopped

"""Deadline of a run: the earliest instant at which anything of it is due.

The stored deadline is never later than the true one, but may be earlier: `arm` only moves it to an
earlier instant, and it is set to a later one when it fires. So most leases do not change it.
"""

from perdure.core.limits import SECOND
from perdure.core.run.inbox import Update
from perdure.core.run.lease import DELAYED, LEASED
from perdure.core.run.operation import (
    NO_TIMEOUTS,
    Activity,
    ConditionWait,
    LocalActivity,
    Operation,
    PushStep,
    ServiceCall,
    SignalWait,
    Timer,
)
from perdure.core.run.state import Run


def arm(run: Run, due_at: int | None) -> None:
    """Ensure that the deadline of the run is no later than `due_at`."""
    if due_at is not None and (run.due_at is None or due_at < run.due_at):
        run.due_at = due_at


def next_due(run: Run) -> int | None:
    """The earliest instant at which anything of the run is due."""
    if run.is_closed:
        return None
    moments = [run.run_deadline_at, run.execution_deadline_at]
    if run.cancellation is not None:
        moments.append(run.cancellation.deadline_at)
    task = run.task
    if task is not None:
        if task.lease is not None:
            moments.append(task.lease.expires_at)
        elif task.state is DELAYED:
            moments.append(task.available_at)
    if run.push is not None:
        moments.append(run.push.pin_look_at)
    moments.extend(operation_due(operation) for operation in run.operations.values())
    if run.updates_open:
        moments.extend(m.validate_by for m in run.inbox.values() if isinstance(m, Update))
    return min((moment for moment in moments if moment is not None), default=None)


def operation_due(operation: Operation) -> int | None:
    """The earliest instant at which an operation is due; none once it has an outcome."""
    if operation.outcome is not None:
        return None
    if isinstance(operation, Activity):
        if operation.timeouts == NO_TIMEOUTS and operation.state is not DELAYED:
            return None if operation.lease is None else operation.lease.expires_at
        return min((at for _, at in activity_deadlines(operation)), default=None)
    if isinstance(operation, LocalActivity):
        return min((at for _, at in local_deadlines(operation)), default=None)
    if isinstance(operation, Timer | ConditionWait | SignalWait | ServiceCall | PushStep):
        return operation.fire_at
    return None


def local_deadlines(local: LocalActivity) -> list[tuple[str, int]]:
    """The deadlines of a local activity; once fenced it has only that of the cancellation."""
    timeouts = local.timeouts
    due: list[tuple[str, int]] = []
    if local.fenced:
        return due
    if timeouts.schedule_to_close is not None:
        due.append(("schedule_to_close", local.scheduled_at + timeouts.schedule_to_close * SECOND))
    if local.state is DELAYED:
        due.append(("available", local.available_at))
    if local.state is not LEASED:
        return due
    if timeouts.heartbeat is not None:
        beat_at = local.heartbeat_at or local.started_at
        due.append(("heartbeat", beat_at + timeouts.heartbeat * SECOND))
    if timeouts.start_to_close is not None:
        due.append(("start_to_close", local.started_at + timeouts.start_to_close * SECOND))
    return due


def activity_deadlines(activity: Activity) -> list[tuple[str, int]]:
    """The deadlines of an activity in its present state; the kinds with precedence first."""
    timeouts = activity.timeouts
    due: list[tuple[str, int]] = []
    if timeouts.schedule_to_close is not None:
        at = activity.scheduled_at + timeouts.schedule_to_close * SECOND
        due.append(("schedule_to_close", at))
    lease = activity.lease
    if lease is None:
        if activity.state is DELAYED:
            due.append(("available", activity.available_at))
        elif timeouts.schedule_to_start is not None:
            at = activity.available_at + timeouts.schedule_to_start * SECOND
            due.append(("schedule_to_start", at))
        return due
    if timeouts.heartbeat is not None:
        beat_at = activity.heartbeat_at or lease.granted_at
        due.append(("heartbeat", beat_at + timeouts.heartbeat * SECOND))
    if timeouts.start_to_close is not None:
        due.append(("start_to_close", lease.granted_at + timeouts.start_to_close * SECOND))
    due.append(("lease", lease.expires_at))
    return due

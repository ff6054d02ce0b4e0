"""Activities: leased one attempt at a time, retried by policy, ended once."""

from typing import Any, NamedTuple

from msgspec import Raw, Struct

from perdure.core import instant
from perdure.core.bounds import Reached
from perdure.core.limits import (
    HEARTBEAT_NOTE_INTERVAL,
    HEARTBEAT_NOTES_MIN,
    SECOND,
)
from perdure.core.rejection import (
    AttemptNotFound,
    LeaseOwnerMismatch,
    RunCancelled,
    RunClosed,
    RunTerminated,
    StaleAttempt,
    TaskNotFound,
)
from perdure.core.run.cancellation import find_stopped
from perdure.core.run.command import CompleteRun, FailRun
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm, operation_due
from perdure.core.run.history import encode, held, raw
from perdure.core.run.lease import DELAYED, LEASED, READY, Lease
from perdure.core.run.operation import Activity, LocalActivity, RetryPolicy
from perdure.core.run.settle import record_or_hold, resolve, settle
from perdure.core.run.standalone_host import complete_host, fail_host
from perdure.core.run.state import Run
from perdure.core.run.state_parts import Cancellation
from perdure.core.run.status import CLOSED, RunStatus
from perdure.core.run.stop_details import stop_details, stop_reason, was_stopped
from perdure.core.run.task import withdraw

CANCELLATION_REQUESTED = "cancellation_requested"
"""The stop reason of an attempt whose workflow was asked to cancel itself."""

LEASE_MAX = 86_400 * SECOND
"""No lease is longer than a day, whatever a start-to-close time-out allows."""


class Reported(NamedTuple):
    """A failure that a worker reports for an attempt."""

    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    code: int | str | None = None
    non_retryable: bool = False
    stack_trace: str | None = None
    details: bytes | None = None
    timeout_kind: str | None = None
    cancelled: bool = False
    # The limit that the result exceeds. Set if the server rejected the result.
    reached: Reached | None = None

    @property
    def category(self) -> str:
        """The `failure_category` in history."""
        if self.reached is not None:
            return "structural_limit"
        return "activity" if self.timeout_kind is None else "timeout"


class AttemptStatus(NamedTuple):
    """The answer to a worker that asks whether its attempt may continue."""

    can_continue: bool
    cancel_requested: bool
    reason: str | None
    activity: Activity | None
    # Of an attempt that was cancelled with its workflow: whether its worker confirmed the stop.
    acknowledged: bool | None = None


def lease_activity(
    run: Run,
    ctx: Context,
    activity: Activity,
    *,
    owner: str,
    timeout: int,
    poll_id: str | None = None,
) -> None:
    """Lease the next attempt to a worker. Attempts count leases: a lost worker used one."""
    assert activity.state is READY, "only a ready activity can be leased"
    now = ctx.now
    activity.state = LEASED
    activity.attempt += 1
    activity.heartbeat_at = activity.heartbeat_noted_at = None
    activity.heartbeat_count = 0
    activity.lease = Lease(owner, now, now + lease_timeout(activity, timeout), poll_id)
    withdraw(run, activity.sequence)
    record_or_hold(run, ctx, activity, "ActivityStarted", _attempt(activity))
    arm(run, operation_due(activity))


def lease_timeout(activity: Activity, timeout: int) -> int:
    """The lease time of an attempt: no second worker gets it before its start-to-close time-out."""
    allowed = activity.timeouts.start_to_close
    if allowed is None or activity.timeouts.heartbeat is not None:
        return timeout
    return min(max(timeout, allowed * SECOND), LEASE_MAX)


def cancelled_members(activity: Activity, cancellation: Cancellation, now: int) -> dict[str, Any]:
    """The payload of `ActivityCancelled` for an activity that was cancelled with its workflow."""
    return {
        "workflow_command_id": cancellation.request_id,
        **_identity(activity),
        "attempt_number": activity.attempt or None,
        "cancelled_at": instant.text(now),
        "message": "the code that waited for it was cancelled",
    }


def end_cancelled(run: Run, ctx: Context, activity: Activity, cancellation: Cancellation) -> None:
    """End an activity that was asked to stop: its worker confirmed it, or the lease expired."""
    activity.lease = None
    members = cancelled_members(activity, cancellation, ctx.now)
    resolve(run, activity, held("ActivityCancelled", members, activity, failed=True))
    settle(run, ctx)


def find_attempt(run: Run, *, sequence: int, attempt_id: str) -> Activity:
    """The leased attempt that a report names. Rejects closed runs, unknown and old attempts."""
    if run.status in CLOSED:
        details = stop_details(run)
        match run.status:
            case RunStatus.CANCELLED:
                raise RunCancelled(f"run {run.run_id} was cancelled", **details)
            case RunStatus.TERMINATED:
                raise RunTerminated(f"run {run.run_id} was terminated", **details)
            case _:
                raise RunClosed(f"run {run.run_id} is {run.status}", **details)
    activity = run.operations.get(sequence)
    if not isinstance(activity, Activity):
        if 1 <= sequence < run.next_sequence:
            raise StaleAttempt(f"attempt {attempt_id} has ended")
        raise TaskNotFound(f"run {run.run_id} has no activity task {sequence}")
    if activity.lease is not None and activity.attempt_id == attempt_id:
        return activity
    execution, _, number = attempt_id.rpartition("-")
    if execution == activity.execution_id.upper() and number.isdecimal():
        raise StaleAttempt(f"attempt {attempt_id} has ended")
    raise AttemptNotFound(f"activity task {sequence} has no attempt {attempt_id}")


def require_attempt(run: Run, *, sequence: int, attempt_id: str, owner: str) -> Activity:
    """The leased attempt; rejects other owners."""
    activity = find_attempt(run, sequence=sequence, attempt_id=attempt_id)
    assert activity.lease is not None
    if activity.lease.owner != owner:
        raise LeaseOwnerMismatch(
            f"attempt {attempt_id} is leased by {activity.lease.owner}",
            lease_owner=activity.lease.owner,
        )
    return activity


def complete_activity(run: Run, ctx: Context, activity: Activity, result: bytes | None) -> None:
    """Complete the activity with the result of its attempt."""
    activity.lease = None
    members = _attempt(activity)
    members.result = raw(result)
    members.payload_codec = "avro"
    outcome = held("ActivityCompleted", members, activity)
    if run.hosted is not None:
        complete_host(run, ctx, outcome, CompleteRun(result=result))
        return
    resolve(run, activity, outcome)
    settle(run, ctx)


def fail_activity(run: Run, ctx: Context, activity: Activity, failure: Reported) -> bool:
    """Record a failed attempt. Returns whether another one follows."""
    retryable = not (failure.non_retryable or failure.cancelled or activity.cancel_requested)
    if retryable and may_retry(run, ctx, activity, failure):
        _schedule_retry(run, ctx, activity, failure)
        settle(run, ctx)
        return True
    activity.lease = None
    kind = failure.timeout_kind
    outcome = held(
        "ActivityFailed" if kind is None else "ActivityTimedOut",
        {
            **_identity(activity),
            "attempt_number": activity.attempt or None,
            "failure_id": ctx.ids.ulid(),
            "failure_category": failure.category,
            "timeout_kind": kind,
            "message": failure.message,
            "exception_type": failure.exception_type,
            "exception_class": failure.exception_class or failure.exception_type,
            "code": failure.code,
            "non_retryable": failure.non_retryable,
            "exception": _exception(failure),
            **limit_members(failure.reached),
        },
        activity,
        failed=True,
    )
    if run.hosted is not None:
        ending = FailRun(
            message=failure.message,
            exception_type=failure.exception_type,
            exception_class=failure.exception_class or failure.exception_type,
            exception=encode(_exception(failure)),
            non_retryable=failure.non_retryable,
        )
        fail_host(run, ctx, outcome, ending, category=failure.category)
        return False
    resolve(run, activity, outcome)
    settle(run, ctx)
    return False


def result_too_large(reached: Reached) -> Reported:
    """The failure of an attempt whose result is too large to store. It is not retried."""
    kind, value, limit = reached
    return Reported(
        message=f"{kind} of the result is {value}, more than {limit}",
        exception_type="StructuralLimitExceeded",
        exception_class="StructuralLimitExceeded",
        non_retryable=True,
        reached=reached,
    )


def limit_members(reached: Reached | None) -> dict[str, Any]:
    """The members of a failure event that name the limit that a result exceeds."""
    if reached is None:
        return {}
    return {
        "structural_limit_kind": reached.limit_kind,
        "structural_limit_value": reached.current_value,
        "structural_limit_configured": reached.configured_limit,
    }


def time_out_activity(run: Run, ctx: Context, activity: Activity, kind: str) -> None:
    """Fail the attempt by a time-out. Schedule-to-close ends the activity without a retry."""
    if activity.state is READY:
        withdraw(run, activity.sequence)
    if kind == "schedule_to_start":
        # An attempt that no worker leased counts, too; otherwise no retry policy would end it.
        activity.attempt += 1
    failure = Reported(
        message=f"activity {activity.activity_type} passed its {kind} timeout",
        exception_type="ActivityTimeout",
        exception_class="ActivityTimeout",
        timeout_kind=kind,
    )
    if kind == "schedule_to_close":
        failure = failure._replace(non_retryable=True)
    fail_activity(run, ctx, activity, failure)


def redeliver_activity(run: Run, ctx: Context, activity: Activity) -> None:
    """Make an activity ready again whose lease expired without a report."""
    if activity.cancel_requested and run.cancellation is not None:
        end_cancelled(run, ctx, activity, run.cancellation)
        return
    activity.lease = None
    _make_available(run, activity, ctx.now, ctx.now)


def return_activity(run: Run, ctx: Context, activity: Activity) -> None:
    """Take back a lease that was never delivered: it does not count as an attempt."""
    activity.attempt -= 1
    activity.undelivered += 1
    redeliver_activity(run, ctx, activity)


def heartbeat_activity(
    run: Run, ctx: Context, activity: Activity, *, timeout: int, progress: bytes | None
) -> None:
    """Extend the lease by a heartbeat.

    History records the first heartbeats of an attempt and then one every few seconds: an activity
    that sends one for each of a million rows must not exceed the history limit of its run.
    """
    assert activity.lease is not None
    activity.heartbeat_at = ctx.now
    renew_activity(run, ctx, activity, timeout=timeout)
    activity.heartbeat_count += 1
    noted_at = activity.heartbeat_noted_at or 0
    if (
        activity.heartbeat_count > HEARTBEAT_NOTES_MIN
        and ctx.now - noted_at < HEARTBEAT_NOTE_INTERVAL
    ):
        return
    activity.heartbeat_noted_at = ctx.now
    record_or_hold(
        run,
        ctx,
        activity,
        "ActivityHeartbeatRecorded",
        {
            **_identity(activity),
            "attempt_number": activity.attempt,
            "heartbeat_at": instant.text(ctx.now),
            "lease_expires_at": instant.text(activity.lease.expires_at),
            "progress": raw(progress),
        },
    )


def renew_activity(run: Run, ctx: Context, activity: Activity, *, timeout: int) -> None:
    """Extend the lease; never shorten it."""
    lease = activity.lease
    assert lease is not None
    lease.expires_at = max(lease.expires_at, ctx.now + lease_timeout(activity, timeout))
    run.unsaved.operations.add(activity.sequence)
    arm(run, operation_due(activity))


def attempt_status(run: Run, *, sequence: int, attempt_id: str, owner: str) -> AttemptStatus:
    """Whether an attempt may continue. Returns also what a rejection would report to its worker."""
    stopped = find_stopped(run, attempt_id)
    if stopped is not None and stopped.owner == owner:
        return AttemptStatus(False, True, CANCELLATION_REQUESTED, None, stopped.acknowledged)
    try:
        activity = require_attempt(run, sequence=sequence, attempt_id=attempt_id, owner=owner)
    except (RunClosed, RunCancelled, RunTerminated):
        reason = stop_reason(run) if was_stopped(run) else "run_closed"
        return AttemptStatus(False, True, reason, None)
    except StaleAttempt:
        removed = sequence not in run.operations
        return AttemptStatus(
            False, True, "activity_not_running" if removed else "stale_attempt", None
        )
    if activity.cancel_requested:
        return AttemptStatus(False, True, CANCELLATION_REQUESTED, None, False)
    return AttemptStatus(True, False, None, activity)


def may_retry(
    run: Run, ctx: Context, activity: Activity | LocalActivity, failure: Reported
) -> bool:
    """Whether another attempt follows one that failed."""
    policy = activity.retry
    if policy is None:
        return False
    if run.hosted is not None and run.history_count >= ctx.bounds.history_events_max:
        # A standalone activity has no code that could continue as new.
        return False
    if policy.attempts_max is not None and max(activity.attempt, 1) >= policy.attempts_max:
        return False
    names = policy.non_retryable_types
    if failure.exception_type in names or failure.exception_class in names:
        return False
    limit = activity.timeouts.schedule_to_close
    if limit is None:
        return True
    return ctx.now + backoff(policy, activity.attempt) < activity.scheduled_at + limit * SECOND


def backoff(policy: RetryPolicy, attempt: int) -> int:
    """The delay after an attempt, in microseconds; the last entry repeats."""
    delays = policy.backoff_seconds
    return delays[min(max(attempt, 1), len(delays)) - 1] * SECOND if delays else 0


def _schedule_retry(run: Run, ctx: Context, activity: Activity, failure: Reported) -> None:
    policy = activity.retry
    assert policy is not None
    delay = backoff(policy, activity.attempt)
    activity.lease = None
    activity.last_failure = failure.message[:500]
    available_at = ctx.now + delay
    record_or_hold(
        run,
        ctx,
        activity,
        "ActivityRetryScheduled",
        {
            **_identity(activity),
            "retry_available_at": instant.text(available_at),
            "retry_backoff_seconds": delay // SECOND,
            "retry_after_attempt_id": activity.attempt_id,
            "retry_after_attempt": activity.attempt,
            "retry_reason": "failure" if failure.timeout_kind is None else "timeout",
            "max_attempts": policy.attempts_max,
            "timeout_kind": failure.timeout_kind,
            "exception_type": failure.exception_type,
            "exception_class": failure.exception_class,
            "message": failure.message,
            "code": failure.code,
        },
    )
    _make_available(run, activity, ctx.now, available_at)


def _make_available(run: Run, activity: Activity, now: int, available_at: int) -> None:
    activity.available_at = available_at
    run.unsaved.operations.add(activity.sequence)
    if available_at > now:
        activity.state = DELAYED
    else:
        activity.state = READY
        run.unsaved.ready[activity.sequence] = True
    arm(run, operation_due(activity))


def end_backoff(run: Run, activity: Activity, now: int) -> None:
    """Make the next attempt ready after its delay."""
    _make_available(run, activity, now, activity.available_at)


class _Attempt(Struct, omit_defaults=True):
    """The payload of `ActivityStarted` and `ActivityCompleted`."""

    sequence: int
    activity_execution_id: str
    activity_attempt_id: str
    activity_type: str
    attempt_number: int
    result: Raw | None = None
    payload_codec: str | None = None


def _attempt(activity: Activity) -> _Attempt:
    return _Attempt(
        activity.sequence,
        activity.execution_id,
        activity.attempt_id,
        activity.activity_type,
        activity.attempt,
    )


def _identity(activity: Activity) -> dict[str, Any]:
    return {
        "sequence": activity.sequence,
        "activity_execution_id": activity.execution_id,
        "activity_attempt_id": activity.attempt_id if activity.attempt else None,
        "activity_type": activity.activity_type,
    }


def _exception(failure: Reported) -> dict[str, Any]:
    exception = {
        "type": failure.exception_type,
        "message": failure.message,
        "code": failure.code,
        "non_retryable": failure.non_retryable,
        "details": raw(failure.details),
        "details_payload_codec": None if failure.details is None else "avro",
        "stack_trace": failure.stack_trace,
    }
    return {key: value for key, value in exception.items() if value is not None}

"""Reports on attempts of prepared local activities: heartbeats, outcomes, and confirmed stops."""

from typing import NamedTuple

from perdure.core import limits
from perdure.core.rejection import (
    AttemptNotFound,
    CancellationRequested,
    CancellationRequestNotFound,
    LeaseOwnerMismatch,
    StaleAttempt,
)
from perdure.core.run import close
from perdure.core.run.activity import Reported, may_retry
from perdure.core.run.cancellation import find_stopped, record_request
from perdure.core.run.claim import Claim, LocalEnd
from perdure.core.run.completion import TaskReport
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm, local_deadlines, operation_due
from perdure.core.run.lease import TaskState
from perdure.core.run.local.activity import (
    claim_of,
    completed,
    end_attempt_under_lease,
    failed,
    note_heartbeat,
    release_for_retry,
    schedule_retry,
)
from perdure.core.run.local.preparation import Ended, answers_to, require_claim
from perdure.core.run.operation import LocalActivity
from perdure.core.run.state import Run, WorkflowTask
from perdure.core.run.state_parts import Cancellation, Stopped
from perdure.core.run.task import renew_task

CANCELLATION_REQUESTED = "cancellation_requested"
DEADLINE_EXPIRED = "deadline_expired"


class Watched(NamedTuple):
    """Whether an attempt may continue; if not, why, and the cancellation request, if any."""

    local: LocalActivity
    lease_expires_at: int
    reason: str | None = None
    cancellation: Cancellation | None = None


class Stop(NamedTuple):
    """The answer to a worker that confirms the stop of a cancelled attempt."""

    event_id: str
    duplicate: bool


class Outcome(NamedTuple):
    """The outcome that a worker reports: a result, or a failure."""

    result: bytes | None = None
    failure: Reported | None = None


def watch(
    run: Run, ctx: Context, report: TaskReport, attempt_id: str, *, timeout: int | None
) -> Watched:
    """Whether an attempt may continue; with a time-out, the lease of its task is renewed."""
    task, local = _require_attempt(run, ctx, report, attempt_id)
    assert task.lease is not None
    stop = _stop_reason(run, ctx, local)
    if stop == CANCELLATION_REQUESTED:
        _fence(run, ctx, task, local)
        return Watched(local, task.lease.expires_at, stop, run.cancellation)
    if stop is None and timeout is not None:
        renew_task(run, ctx, task, timeout)
    return Watched(local, task.lease.expires_at, stop)


def heartbeat(
    run: Run, ctx: Context, report: TaskReport, attempt_id: str, progress: bytes | None
) -> Watched:
    """Accept a heartbeat. History records as few of them as for any activity."""
    watched = watch(run, ctx, report, attempt_id, timeout=None)
    if watched.reason is not None:
        return watched
    local = watched.local
    local.heartbeat_at = ctx.now
    local.heartbeat_count += 1
    run.unsaved.operations.add(local.sequence)
    arm(run, operation_due(local))
    since = ctx.now - (local.heartbeat_noted_at or 0)
    if local.heartbeat_count <= limits.HEARTBEAT_NOTES_MIN or (
        since >= limits.HEARTBEAT_NOTE_INTERVAL
    ):
        local.heartbeat_noted_at = ctx.now
        note_heartbeat(run, ctx, local, progress)
        assert run.task is not None
        run.task.snapshot = run.history_count
    return watched


def end_attempt(
    run: Run, ctx: Context, report: TaskReport, attempt_id: str, outcome: Outcome
) -> Ended:
    """Accept the outcome of an attempt. If it is retried, the lease is released."""
    claim = Claim(report.number, report.attempt, report.owner)
    earlier = None
    if run.answers is not None and run.answers.claim == claim:
        earlier = run.answers.ends.get(attempt_id)
    if earlier is not None and not earlier.recovered:
        if (earlier.event_type == "ActivityCompleted") is not (outcome.failure is None):
            raise StaleAttempt(f"attempt {attempt_id} has ended with another outcome")
        return Ended(earlier, duplicate=True)
    task, local = _require_attempt(run, ctx, report, attempt_id)
    if local.fenced:
        raise CancellationRequested("the code is asked to cancel itself")
    if _stop_reason(run, ctx, local) == DEADLINE_EXPIRED:
        raise StaleAttempt(f"attempt {attempt_id} has passed its deadline")
    failure, created = outcome.failure, None
    if failure is None:
        event = completed(run, local, outcome.result)
        event_id = end_attempt_under_lease(run, ctx, local, event)
    elif failure.non_retryable or not may_retry(run, ctx, local, failure):
        event = failed(ctx, local, failure)
        event_id = end_attempt_under_lease(run, ctx, local, event)
    else:
        event = schedule_retry(ctx, local, failure, reason="failure")
        event_id, created = release_for_retry(run, ctx, task, local, event)
    end = LocalEnd(
        sequence=local.sequence,
        execution_id=local.execution_id,
        attempt_id=attempt_id,
        nonce=local.nonce,
        event_type=event.event_type,
        event_id=event_id,
        recorded_at=ctx.now,
        created=created,
    )
    answers_to(run, claim).keep_end(end)
    if run.history_count > ctx.bounds.history_events_max:
        # A worker that never completes its task must not extend the history without limit.
        close.exceed_history(run, ctx)
    return Ended(end, duplicate=False)


def acknowledge(
    run: Run, ctx: Context, report: TaskReport, attempt_id: str, request_id: str
) -> Stop:
    """Record that the worker has stopped a cancelled attempt."""
    cancellation = run.cancellation
    if cancellation is None or cancellation.request_id != request_id:
        raise CancellationRequestNotFound(f"run {run.run_id} has no request {request_id}")
    stopped = find_stopped(run, attempt_id)
    if stopped is None:
        raise AttemptNotFound(f"attempt {attempt_id} was not cancelled")
    if stopped.owner != report.owner:
        raise LeaseOwnerMismatch(
            f"attempt {attempt_id} is leased by {stopped.owner}", lease_owner=stopped.owner
        )
    if stopped.acknowledged:
        return Stop(stopped.event_id, duplicate=True)
    require_claim(run, ctx, report)
    stopped.acknowledged = True
    return Stop(stopped.event_id, duplicate=False)


def _require_attempt(
    run: Run, ctx: Context, report: TaskReport, attempt_id: str
) -> tuple[WorkflowTask, LocalActivity]:
    task = require_claim(run, ctx, report)
    execution, _, _ = attempt_id.rpartition("-")
    for sequence in run.local_calls:
        local = run.operations.get(sequence)
        if not isinstance(local, LocalActivity) or local.execution_id.upper() != execution:
            continue
        if (
            local.attempt_id == attempt_id
            and local.state is TaskState.LEASED
            and local.claim == claim_of(task)
        ):
            return task, local
        raise StaleAttempt(f"attempt {attempt_id} is not the one that this lease runs")
    raise AttemptNotFound(f"this lease runs no attempt {attempt_id}")


def _stop_reason(run: Run, ctx: Context, local: LocalActivity) -> str | None:
    cancellation = run.cancellation
    if local.fenced or (cancellation is not None and cancellation.delivered is None):
        return CANCELLATION_REQUESTED
    if any(at <= ctx.now for _, at in local_deadlines(local)):
        return DEADLINE_EXPIRED
    return None


def _fence(run: Run, ctx: Context, task: WorkflowTask, local: LocalActivity) -> None:
    """Record the request in history; from now on reports of the attempt are rejected."""
    cancellation = run.cancellation
    assert cancellation is not None
    if local.fenced:
        return
    if cancellation.event_id is None:
        record_request(run, ctx)
    assert cancellation.event_id is not None
    local.fenced = True
    run.unsaved.operations.add(local.sequence)
    owner = claim_of(task).owner
    cancellation.stopped.append(Stopped(local.attempt_id, owner, cancellation.event_id))
    task.snapshot = run.history_count

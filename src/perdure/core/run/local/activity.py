"""Prepared local activities: operations that a worker opens before it runs them itself.

They are operations of the run like others, but no worker polls for them. An attempt belongs to one
lease of the workflow task, and events under that lease enter history at once: the worker reads them
there and continues. Other events are held like everything from outside.
"""

from typing import Any

from perdure.core import instant
from perdure.core.limits import SECOND
from perdure.core.run.activity import Reported, backoff, limit_members, may_retry
from perdure.core.run.claim import Claim
from perdure.core.run.command import PrepareLocalActivity
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm, operation_due
from perdure.core.run.history import Raw, encode, held, raw, record, record_encoded, with_metadata
from perdure.core.run.lease import TaskState
from perdure.core.run.local.recorded import options
from perdure.core.run.operation import Held, LocalActivity, Metadata
from perdure.core.run.settle import (
    drop_operation,
    is_frozen,
    release_later,
    resolve,
    settle,
)
from perdure.core.run.state import Run, TaskKind, WorkflowTask, workflow_task_id
from perdure.core.run.state_parts import Cancellation
from perdure.core.run.task import LOCAL_RELEASE, finish_task, hasten_task

COLD_REPLAY = "cold_replay"
"""The retry reason of an attempt whose worker was lost."""


def claim_of(task: WorkflowTask) -> Claim:
    """The lease of a task, as a claim."""
    assert task.lease is not None
    return Claim(task.number, task.attempt, task.lease.owner)


def identity(local: LocalActivity) -> dict[str, Any]:
    """The common members of all events of a local activity."""
    return {
        "sequence": local.sequence,
        "activity_execution_id": local.execution_id,
        "activity_attempt_id": local.attempt_id if local.attempt else None,
        "activity_type": local.activity_type,
        "attempt_number": local.attempt or None,
        "execution_mode": "local",
        "local_activity": True,
    }


def open_local(
    run: Run,
    ctx: Context,
    command: PrepareLocalActivity,
    sequence: int,
    metadata: Metadata | None,
) -> LocalActivity:
    """Open a local activity; its worker may begin the first attempt."""
    local = LocalActivity(
        sequence=sequence,
        metadata=metadata,
        execution_id=ctx.ids.ulid(),
        activity_type=command.activity_type,
        scheduled_at=ctx.now,
        available_at=ctx.now,
        retry=command.retry,
        timeouts=command.timeouts,
        cancellation_policy=command.cancellation_policy,
        cleanup=command.cleanup is not None,
    )
    run.operations[sequence] = local
    run.unsaved.operations.add(sequence)
    run.local_calls.append(sequence)
    snapshot = {"arguments": Raw(command.arguments), **options(command.retry, command.timeouts)}
    payload = {
        **identity(local),
        "cancellation_policy": local.cancellation_policy,
        "activity": snapshot,
    }
    record(run, ctx, "ActivityScheduled", with_metadata(payload, local))
    arm(run, operation_due(local))
    return local


def begin_attempt(
    run: Run, ctx: Context, task: WorkflowTask, local: LocalActivity, nonce: str
) -> None:
    """Begin the next attempt under the lease of the task."""
    local.state = TaskState.LEASED
    local.attempt += 1
    local.claim = claim_of(task)
    local.nonce = nonce
    local.started_at = ctx.now
    local.heartbeat_at = local.heartbeat_noted_at = None
    local.heartbeat_count = 0
    run.unsaved.operations.add(local.sequence)
    members = {**identity(local), "workflow_task_id": workflow_task_id(run, task)}
    record(run, ctx, "ActivityStarted", with_metadata(members, local))
    arm(run, operation_due(local))


def completed(run: Run, local: LocalActivity, result: bytes | None) -> Held:
    """The outcome of an attempt that succeeded."""
    members = {**identity(local), "result": raw(result), "payload_codec": run.codec}
    return held("ActivityCompleted", members, local)


def failed(
    ctx: Context, local: LocalActivity, failure: Reported, recovery: dict[str, Any] | None = None
) -> Held:
    """The outcome of an activity whose last attempt failed."""
    kind = failure.timeout_kind
    members = {
        **identity(local),
        "failure_id": ctx.ids.ulid(),
        "failure_category": failure.category,
        "timeout_kind": kind,
        "message": failure.message,
        "exception_type": failure.exception_type,
        "exception_class": failure.exception_type,
        "non_retryable": failure.non_retryable,
        "local_recovery": recovery,
        **limit_members(failure.reached),
    }
    event_type = "ActivityFailed" if kind is None else "ActivityTimedOut"
    return held(event_type, members, local, failed=True)


def schedule_retry(
    ctx: Context,
    local: LocalActivity,
    failure: Reported,
    *,
    reason: str,
    recovery: dict[str, Any] | None = None,
) -> Held:
    """End the attempt and schedule the next one. Returns the event of that."""
    policy = None if reason == COLD_REPLAY else local.retry
    delay = 0 if policy is None else backoff(policy, local.attempt)
    available_at = ctx.now + delay
    members = {
        **identity(local),
        "attempt_number": None,
        "retry_available_at": instant.text(available_at),
        "retry_backoff_seconds": delay // SECOND,
        "retry_after_attempt_id": local.attempt_id,
        "retry_after_attempt": local.attempt,
        "retry_reason": reason,
        "max_attempts": None if local.retry is None else local.retry.attempts_max,
        "timeout_kind": failure.timeout_kind,
        "exception_type": failure.exception_type,
        "message": failure.message,
        "local_recovery": recovery,
    }
    event = held("ActivityRetryScheduled", members, local)
    local.claim = None
    local.available_at = available_at
    local.last_failure = failure.message[:500]
    local.state = TaskState.DELAYED if delay else TaskState.READY
    return event


def end_attempt_under_lease(run: Run, ctx: Context, local: LocalActivity, outcome: Held) -> str:
    """Record an outcome under the worker's own lease: its code continues without another task."""
    assert run.task is not None
    event_id = record_encoded(run, ctx, outcome.event_type, outcome.payload)
    drop_operation(run, local.sequence)
    group = None if local.group is None else run.groups.get(local.group)
    if group is not None:
        group.open -= 1
        group.unrecorded -= 1
        group.failed = group.failed or outcome.failed
        if group.unrecorded == 0:
            del run.groups[group.base]
    run.task.snapshot = run.history_count
    return event_id


def release_for_retry(
    run: Run, ctx: Context, task: WorkflowTask, local: LocalActivity, event: Held
) -> tuple[str, str]:
    """Record that another attempt follows, and end the lease; the attempt gets another task.

    Returns the id of the event and that of the task.
    """
    event_id = record_encoded(run, ctx, event.event_type, event.payload)
    run.unsaved.operations.add(local.sequence)
    arm(run, operation_due(local))
    finish_task(run, task, LOCAL_RELEASE)
    settle(run, ctx)
    if run.task is not None:
        return event_id, workflow_task_id(run, run.task)
    return event_id, f"{run.run_id}-w{run.task_count + 1}"


def end_local_backoff(run: Run, local: LocalActivity) -> None:
    """Make the next attempt ready after its delay."""
    local.state = TaskState.READY
    run.unsaved.operations.add(local.sequence)


def time_out_local(run: Run, ctx: Context, local: LocalActivity, kind: str) -> None:
    """End an attempt by a time-out, and the lease of its task, whose history is out of date."""
    task = run.task
    failure = Reported(
        message=f"local activity {local.activity_type} passed its {kind} timeout",
        exception_type="ActivityTimeout",
        timeout_kind=kind,
        non_retryable=kind == "schedule_to_close",
    )
    if task is not None and task.state is TaskState.LEASED and task.kind is TaskKind.PROGRESS:
        finish_task(run, task, LOCAL_RELEASE)
    if failure.non_retryable or not may_retry(run, ctx, local, failure):
        local.claim = None
        resolve(run, local, failed(ctx, local, failure))
    else:
        event = schedule_retry(ctx, local, failure, reason="timeout")
        _note(run, ctx, local, event)
        arm(run, operation_due(local))
    settle(run, ctx)
    task = run.task
    if task is not None and task.kind is TaskKind.PROGRESS and task.state is TaskState.READY:
        # Which workers may lease the task can depend on the operations that are open.
        hasten_task(run, ctx, task.resume)


def _note(run: Run, ctx: Context, local: LocalActivity, event: Held) -> None:
    run.unsaved.operations.add(local.sequence)
    if is_frozen(run):
        local.held.append(event)
        release_later(run, local.sequence)
        return
    record_encoded(run, ctx, event.event_type, event.payload)


def cancel_local(run: Run, ctx: Context, local: LocalActivity, cancellation: Cancellation) -> None:
    """Cancel a local activity with its workflow code; its worker has stopped it, or was lost."""
    payload = {
        "workflow_command_id": cancellation.request_id,
        **identity(local),
        "cancelled_at": instant.text(ctx.now),
        "message": "the code that waited for it was cancelled",
    }
    for event in local.held:
        record_encoded(run, ctx, event.event_type, event.payload)
    record_encoded(run, ctx, "ActivityCancelled", encode(with_metadata(payload, local)))
    drop_operation(run, local.sequence)


def note_heartbeat(run: Run, ctx: Context, local: LocalActivity, progress: bytes | None) -> None:
    """Record a heartbeat under the worker's own lease."""
    members = {
        **identity(local),
        "heartbeat_at": instant.text(ctx.now),
        "progress": raw(progress),
    }
    local.heartbeat_event_id = record(
        run, ctx, "ActivityHeartbeatRecorded", with_metadata(members, local)
    )

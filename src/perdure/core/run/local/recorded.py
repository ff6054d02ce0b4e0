"""Recorded local activities: work that the worker did itself and reports when its task completes.

The server schedules nothing for them. Their events are those of any activity, marked as local, so
that replay finds the outcome at the call of the code, and the history shows every attempt.
"""

from typing import Any

from perdure.core import instant
from perdure.core.limits import HEARTBEAT_NOTE_INTERVAL, HEARTBEAT_NOTES_MIN, SECOND
from perdure.core.run.command import LocalAttempt, LocalHeartbeat, RecordLocalActivity
from perdure.core.run.context import Context
from perdure.core.run.history import Raw, raw, record
from perdure.core.run.operation import ActivityTimeouts, RetryPolicy
from perdure.core.run.state import Run, TaskReceipt

_ENDINGS = {
    "completed": "ActivityCompleted",
    "failed": "ActivityFailed",
    "timed_out": "ActivityTimedOut",
    "cancelled": "ActivityCancelled",
}
_CATEGORIES = {"failed": "activity", "timed_out": "timeout", "cancelled": "cancelled"}


def record_local_activity(
    run: Run, ctx: Context, command: RecordLocalActivity, sequence: int
) -> None:
    """Record all events of a local activity, from its schedule to its outcome."""
    activity = {
        "sequence": sequence,
        "activity_execution_id": ctx.ids.ulid(),
        "activity_type": command.activity_type,
        "execution_mode": "local",
        "local_activity": True,
        "workflow_task_id": _task_id(run, run.last_task),
    }
    snapshot = {"arguments": Raw(command.arguments), **options(command.retry, command.timeouts)}
    record(run, ctx, "ActivityScheduled", {**activity, "activity": snapshot})
    for attempt in command.attempts:
        attempt_members = {
            **activity,
            "activity_attempt_id": attempt.attempt_id,
            "attempt_number": attempt.number,
        }
        record(run, ctx, "ActivityStarted", attempt_members)
        for heartbeat in _noted(attempt.heartbeats):
            _record_heartbeat(run, ctx, attempt_members, heartbeat)
        if attempt is not command.attempts[-1]:
            _record_retry(run, ctx, activity, attempt, command.retry)
        else:
            _record_outcome(run, ctx, attempt_members, attempt, command)


def local_event_count(command: RecordLocalActivity) -> int:
    """How many events `record_local_activity` records for a command."""
    attempt_events = sum(2 + len(_noted(attempt.heartbeats)) for attempt in command.attempts)
    return 1 + attempt_events


def _task_id(run: Run, receipt: TaskReceipt | None) -> str:
    assert receipt is not None, "commands are applied when their task is finished"
    return f"{run.run_id}-w{receipt.number}"


def options(retry: RetryPolicy | None, timeouts: ActivityTimeouts) -> dict[str, Any]:
    """The options of a local activity, as in its events."""
    options: dict[str, Any] = {
        f"{name}_timeout": seconds
        for name in ("start_to_close", "schedule_to_close", "heartbeat")
        if (seconds := getattr(timeouts, name)) is not None
    }
    if retry is not None:
        options["retry_policy"] = {
            "max_attempts": retry.attempts_max,
            "backoff_seconds": retry.backoff_seconds,
            "non_retryable_error_types": retry.non_retryable_types,
        }
    return options


def _noted(heartbeats: list[LocalHeartbeat]) -> list[LocalHeartbeat]:
    """The heartbeats that are recorded: the first ones, then one every few seconds."""
    noted = heartbeats[:HEARTBEAT_NOTES_MIN]
    interval_ms = HEARTBEAT_NOTE_INTERVAL * 1000 // SECOND
    for heartbeat in heartbeats[HEARTBEAT_NOTES_MIN:]:
        if heartbeat.elapsed_ms - noted[-1].elapsed_ms >= interval_ms:
            noted.append(heartbeat)
    return noted


def _record_heartbeat(
    run: Run, ctx: Context, attempt_members: dict[str, Any], heartbeat: LocalHeartbeat
) -> None:
    members: dict[str, Any] = {"activity_attempt": {"elapsed_ms": heartbeat.elapsed_ms}}
    if heartbeat.details is not None:
        members["progress"] = {"details": Raw(heartbeat.details)}
    record(run, ctx, "ActivityHeartbeatRecorded", {**attempt_members, **members})


def _record_retry(
    run: Run,
    ctx: Context,
    activity: dict[str, Any],
    attempt: LocalAttempt,
    policy: RetryPolicy | None,
) -> None:
    record(
        run,
        ctx,
        "ActivityRetryScheduled",
        {
            **activity,
            "activity_attempt_id": attempt.attempt_id,
            "retry_backoff_seconds": attempt.backoff_seconds,
            "retry_after_attempt_id": attempt.attempt_id,
            "retry_after_attempt": attempt.number,
            "retry_reason": attempt.retry_reason,
            "max_attempts": None if policy is None else policy.attempts_max,
            "timeout_kind": attempt.timeout_kind,
            "exception_type": attempt.exception_type,
            "message": attempt.message,
        },
    )


def _record_outcome(
    run: Run,
    ctx: Context,
    attempt_members: dict[str, Any],
    attempt: LocalAttempt,
    command: RecordLocalActivity,
) -> None:
    # The code has already seen exactly these members of the failure; replay must get the same.
    members: dict[str, Any] = {"activity_attempt": {"duration_ms": attempt.duration_ms}}
    if attempt.outcome == "completed":
        members |= {"result": raw(command.result), "payload_codec": run.codec}
    else:
        members |= {
            "failure_id": ctx.ids.ulid(),
            "failure_category": _CATEGORIES[attempt.outcome],
            "timeout_kind": attempt.timeout_kind,
            "message": command.message,
            "exception_type": attempt.exception_type,
            "non_retryable": attempt.non_retryable,
        }
    if attempt.outcome == "cancelled":
        members["cancelled_at"] = instant.text(ctx.now)
    record(run, ctx, _ENDINGS[attempt.outcome], {**attempt_members, **members})

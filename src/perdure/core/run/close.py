"""Close of a run: records its end and drops its open operations. A closed run stays closed."""

from collections.abc import Callable, Mapping

from perdure.core import instant
from perdure.core.push.effect import Ended
from perdure.core.push.step import cancel_open_steps
from perdure.core.run.cancellation import carry_over
from perdure.core.run.command import CompleteRun, ContinueAsNew, FailRun
from perdure.core.run.context import Context
from perdure.core.run.effect import (
    CallersNotice,
    CloseChild,
    Effect,
    LeaveServiceCall,
    ParentContinuedNotice,
    ParentNotice,
    StartRun,
)
from perdure.core.run.history import Raw, raw, record, with_metadata
from perdure.core.run.inbox import Signal, StreamMessage
from perdure.core.run.message_stream import hand_over_streams, unread_messages
from perdure.core.run.operation import Activity, Child, LocalActivity, ServiceCall, Timer
from perdure.core.run.settle import record_held, settle
from perdure.core.run.start import start_successor
from perdure.core.run.state import Dialect, Failure, Run
from perdure.core.run.state_parts import Cancellation
from perdure.core.run.status import TRANSITIONS, RunStatus
from perdure.core.run.undelivered import reject_signals
from perdure.core.run.update import close_updates

CANCELLED = "WorkflowCancelled"
"""The last event of a cancelled run, and the exception that its code raises on cancellation."""

_CLOSING_POLICIES = {"request_cancel", "request_cancellation", "terminate"}


def complete_run(run: Run, ctx: Context, command: CompleteRun) -> None:
    """Close the run with the result of its code."""
    close_updates(run, ctx, category="cancelled", ended="completed")
    reject_signals(run, ctx, "completed")
    cancel_open_steps(run, ctx)
    _apply_parent_close_policy(run, ctx, "completed")
    output = command.result or b"null"
    record(run, ctx, "WorkflowCompleted", {"output": Raw(output), "payload_codec": run.codec})
    _close(run, ctx, RunStatus.COMPLETED, "completed", output)
    _notify_parent(run, output)


def fail_run(
    run: Run,
    ctx: Context,
    command: FailRun,
    *,
    category: str = "application",
    source: tuple[str, str] | None = None,
) -> None:
    """Close the run as failed: its code raised, or its standalone activity failed.

    `source` names that activity. The exception by which the code ends a cancellation is no failure.
    """
    cancellation = run.cancellation
    delivered = cancellation is not None and cancellation.delivered is not None
    if cancellation is not None and delivered and command.exception_type == CANCELLED:
        end_cancelled_run(run, ctx, cancellation)
        return
    source_kind, source_id = source or ("workflow_run", run.run_id)
    run.failure = Failure(
        failure_id=ctx.ids.ulid(),
        message=command.message,
        category=category,
        exception_type=command.exception_type,
        exception_class=command.exception_class,
        non_retryable=command.non_retryable,
        exception=command.exception,
    )
    close_updates(run, ctx, category="cancelled", ended="failed")
    reject_signals(run, ctx, "failed")
    cancel_open_steps(run, ctx)
    _apply_parent_close_policy(run, ctx, "failed")
    record(
        run,
        ctx,
        "WorkflowFailed",
        {
            "failure_id": run.failure.failure_id,
            "source_kind": source_kind,
            "source_id": source_id,
            "failure_category": run.failure.category,
            "non_retryable": run.failure.non_retryable,
            "exception_type": command.exception_type,
            "exception_class": command.exception_class,
            "message": command.message,
            "exception": raw(command.exception),
            "failed_step_sequence": command.failed_step,
            "failed_activity_execution_id": command.failed_execution_id,
        },
    )
    _close(run, ctx, RunStatus.FAILED, "failed")
    _notify_parent(run, None)


def exceed_history(run: Run, ctx: Context) -> None:
    """Fail a run whose history exceeds its limit, with a message that says what to do."""
    limit = ctx.bounds.history_events_max
    fail_run(
        run,
        ctx,
        FailRun(
            message=f"history has more than {limit} events; use continue_as_new before that",
            exception_type="HistoryLimitExceeded",
            exception_class="HistoryLimitExceeded",
            non_retryable=True,
        ),
    )


def continue_run(run: Run, ctx: Context, command: ContinueAsNew) -> Run:
    """Close the run and start the next of its id, which gets the messages that are unseen."""
    successor = start_successor(
        run,
        ctx,
        workflow_type=command.workflow_type,
        queue=command.queue,
        arguments=command.arguments,
        trace=command.trace,
        continued=True,
    )
    run.continued_to_run_id = successor.run_id
    carry_over(run, ctx, successor)
    close_updates(run, ctx, category="cancelled", ended="continued as new")
    record(
        run,
        ctx,
        "WorkflowContinuedAsNew",
        {
            "sequence": run.next_sequence,
            "continued_to_run_id": successor.run_id,
            "continued_to_run_number": successor.run_number,
            "closed_reason": "continued",
        },
    )
    hand_over_streams(run, successor, ctx, unread_messages(run))
    settle(successor, ctx)
    _close(run, ctx, RunStatus.COMPLETED, "continued")
    run.unsaved.effects.append(StartRun(successor))
    if run.parent is not None:
        run.unsaved.effects.append(ParentContinuedNotice(run, successor))
    return successor


def cancel_run(run: Run, ctx: Context, *, command_id: str, reason: str | None) -> None:
    """Close the run from outside, as cancelled. The code is not resumed."""
    _stop(run, ctx, RunStatus.CANCELLED, command_id=command_id, reason=reason)


def terminate_run(run: Run, ctx: Context, *, command_id: str, reason: str | None) -> None:
    """Close the run from outside, by force."""
    _stop(run, ctx, RunStatus.TERMINATED, command_id=command_id, reason=reason)


def end_cancelled_run(
    run: Run, ctx: Context, cancellation: Cancellation, *, expired: bool = False
) -> None:
    """Close a run as cancelled: its code ended as requested, or the deadline for that passed."""
    _release_held(run, ctx)
    reason = cancellation.reason
    if expired:
        reason = "the deadline of its clean-up passed" + (f" ({reason})" if reason else "")
    ids = _command_ids(run, cancellation.request_id)
    _end_stopped(run, ctx, RunStatus.CANCELLED, ids=ids, reason=reason)


def time_out_run(run: Run, ctx: Context) -> None:
    """Close a run whose execution or run deadline has passed."""
    overdue = run.execution_deadline_at is not None and run.execution_deadline_at <= ctx.now
    kind = "execution_timeout" if overdue else "run_timeout"
    seconds = run.execution_timeout_seconds if overdue else run.run_timeout_seconds
    _release_held(run, ctx)
    close_updates(run, ctx, category="timeout", ended="passed its deadline")
    reject_signals(run, ctx, "timed_out")
    _record_cancelled_work(run, ctx, None)
    message = f"Workflow passed its {kind.replace('_', ' ')} of {seconds} s."
    run.failure = Failure(
        failure_id=ctx.ids.ulid(),
        message=message,
        category="timeout",
        exception_type="WorkflowTimedOut",
        exception_class="WorkflowTimedOut",
    )
    _apply_parent_close_policy(run, ctx, "timed_out")
    record(
        run,
        ctx,
        "WorkflowTimedOut",
        {
            "failure_id": run.failure.failure_id,
            "failure_category": "timeout",
            "timeout_kind": kind,
            "message": message,
            "exception_class": "WorkflowTimedOut",
            "execution_deadline_at": instant.text_or_none(run.execution_deadline_at),
            "run_deadline_at": instant.text_or_none(run.run_deadline_at),
        },
    )
    _close(run, ctx, RunStatus.FAILED, "timed_out")
    _notify_parent(run, None)


def _stop(
    run: Run, ctx: Context, status: RunStatus, *, command_id: str, reason: str | None
) -> None:
    cancelled = status is RunStatus.CANCELLED
    _release_held(run, ctx)
    ids = _command_ids(run, command_id)
    record(
        run,
        ctx,
        "CancelRequested" if cancelled else "TerminateRequested",
        {**ids, "command_type": "cancel" if cancelled else "terminate", "reason": reason},
    )
    _end_stopped(run, ctx, status, ids=ids, reason=reason)


def _command_ids(run: Run, command_id: str) -> dict[str, str]:
    return {
        "workflow_command_id": command_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
    }


def _end_stopped(
    run: Run, ctx: Context, status: RunStatus, *, ids: dict[str, str], reason: str | None
) -> None:
    cancelled = status is RunStatus.CANCELLED
    close_updates(run, ctx, category=status.value, ended=f"was {status.value}")
    reject_signals(run, ctx, status.value)
    _record_cancelled_work(run, ctx, ids["workflow_command_id"])
    sentence = f"Workflow {status.value}"
    message = f"{sentence}: {reason}" if reason else f"{sentence}."
    run.failure = Failure(
        failure_id=ctx.ids.ulid(),
        message=message,
        category=status.value,
        exception_type=CANCELLED if cancelled else "WorkflowTerminated",
        exception_class=CANCELLED if cancelled else "WorkflowTerminated",
    )
    _apply_parent_close_policy(run, ctx, status.value)
    record(
        run,
        ctx,
        CANCELLED if cancelled else "WorkflowTerminated",
        {
            **ids,
            "failure_id": run.failure.failure_id,
            "failure_category": status.value,
            "closed_reason": status.value,
            "exception_class": run.failure.exception_class,
            "message": message,
            # Without a reason the member is absent: clients have a default text for that.
            **({"reason": reason} if reason else {}),
        },
    )
    _close(run, ctx, status, status.value)
    run.close_message = reason
    _notify_parent(run, None)


def _release_held(run: Run, ctx: Context) -> None:
    """Record held events: they were acknowledged, even if no worker will replay them."""
    for sequence in sorted(run.operations):
        record_held(run, ctx, run.operations[sequence])
    run.releasing = []


def _record_cancelled_work(run: Run, ctx: Context, command_id: str | None) -> None:
    cancel_open_steps(run, ctx)
    at = instant.text(ctx.now)
    open_operations = [o for _, o in sorted(run.operations.items()) if o.outcome is None]
    for operation in open_operations:
        if isinstance(operation, Activity | LocalActivity):
            local = isinstance(operation, LocalActivity)
            record(
                run,
                ctx,
                "ActivityCancelled",
                with_metadata(
                    {
                        "workflow_command_id": command_id,
                        "sequence": operation.sequence,
                        "activity_execution_id": operation.execution_id,
                        "activity_attempt_id": operation.attempt_id if operation.attempt else None,
                        "activity_type": operation.activity_type,
                        "attempt_number": operation.attempt or None,
                        "execution_mode": "local" if local else None,
                        "local_activity": True if local else None,
                        "cancelled_at": at,
                    },
                    operation,
                ),
            )
    for operation in open_operations:
        if isinstance(operation, Timer):
            record(
                run,
                ctx,
                "TimerCancelled",
                with_metadata(
                    {
                        "timer_id": operation.timer_id,
                        "sequence": operation.sequence,
                        "delay_seconds": operation.delay_seconds,
                        "fire_at": instant.text(operation.fire_at),
                        "cancelled_at": at,
                    },
                    operation,
                ),
            )


def _apply_parent_close_policy(run: Run, ctx: Context, reason: str) -> None:
    # Written before the terminal event, which stays the last one of a run.
    for _, operation in sorted(run.operations.items()):
        if not isinstance(operation, Child) or operation.outcome is not None:
            continue
        policy = operation.parent_close_policy
        if policy not in _CLOSING_POLICIES:
            continue
        run.unsaved.effects.append(CloseChild(operation.run_id, policy, f"parent run {reason}"))
        record(
            run,
            ctx,
            "ParentClosePolicyApplied",
            {
                "child_instance_id": operation.workflow_id,
                "child_run_id": operation.run_id,
                "policy": policy,
                "reason": reason,
            },
        )


def _close(
    run: Run, ctx: Context, status: RunStatus, reason: str, output: bytes | None = None
) -> None:
    assert status in TRANSITIONS[run.status], f"a {run.status} run cannot become {status}"
    run.status = status
    run.closed_reason = reason
    run.closed_at = ctx.now
    for place, operation in run.operations.items():
        run.unsaved.operations.add(place)
        if isinstance(operation, ServiceCall) and operation.outcome is None:
            left = LeaveServiceCall(run.run_id, operation, f"its caller was closed as {reason}")
            run.unsaved.effects.append(left)
        if isinstance(operation, Activity):
            _withdraw_ready(run, place)
            if run.hosted is not None:
                run.hosted.attempt = operation.attempt
                run.hosted.heartbeat_at = operation.heartbeat_at
    _withdraw_ready(run, 0)
    if status is RunStatus.FAILED:
        # A redrive of the run delivers these messages.
        unseen = [m for _, m in sorted(run.inbox.items())]
        run.unseen = [m for m in unseen if isinstance(m, Signal | StreamMessage)]
    if run.streams and run.parent is not None:
        # If the parent retries the child, the streams of the id continue; signals do not.
        messages = [m for m in unread_messages(run) if isinstance(m, StreamMessage)]
        run.unsaved.unread_at_close = messages
    run.unsaved.inbox.update(run.inbox, run.unread)
    run.operations = {}
    run.inbox = {}
    run.unread = {}
    run.stream_waits = {}
    run.groups = {}
    run.releasing = []
    run.local_calls = []
    run.answers = None
    run.unapplied = []
    run.task = None
    run.wait = None
    run.due_at = None
    run.unsaved.effects += _ENDING[run.dialect](run, output)


_ENDING: Mapping[Dialect, Callable[[Run, bytes | None], list[Effect]]] = {
    Dialect.PULL: lambda run, output: [],
    Dialect.PUSH: lambda run, output: [Ended(run, output)],
}
"""Effects when a run of a dialect has closed, beside notices to parent and callers."""


def _withdraw_ready(run: Run, place: int) -> None:
    if run.unsaved.ready.pop(place, None) is None or not run.unsaved.created:
        run.unsaved.ready[place] = False


def _notify_parent(run: Run, output: bytes | None) -> None:
    if run.parent is not None:
        run.unsaved.effects.append(ParentNotice(run, output))
    if run.served is not None:
        run.unsaved.effects.append(CallersNotice(run, output))


def overdue(run: Run, now: int) -> bool:
    """Whether the execution or run deadline of the open run has passed."""
    execution, own = run.execution_deadline_at, run.run_deadline_at
    return (execution is not None and execution <= now) or (own is not None and own <= now)

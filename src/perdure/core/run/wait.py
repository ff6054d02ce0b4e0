"""Waits of the code for a condition or a signal: opened, re-opened, satisfied, timed out."""

from perdure.core import instant
from perdure.core.limits import SECOND
from perdure.core.payload import Frame
from perdure.core.run.command import Command, OpenConditionWait, OpenSignalWait
from perdure.core.run.condition_reopen import bind_messages, record_superseded_waits
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.history import held, raw, record, with_metadata
from perdure.core.run.operation import ConditionWait, Metadata, SignalWait
from perdure.core.run.reframe import applied_value
from perdure.core.run.settle import drop_operation, resolve
from perdure.core.run.state import Run, WorkflowTask
from perdure.core.run.wait_events import condition, opening, timeout_timer


def open_condition_wait(
    run: Run,
    ctx: Context,
    command: OpenConditionWait,
    sequence: int,
    metadata: Metadata | None,
) -> ConditionWait:
    """Open a new wait with its full time-out, also if it repeats the last condition."""
    wait = ConditionWait(
        sequence=sequence,
        metadata=metadata,
        wait_id=ctx.ids.ulid().upper(),
        opened_at=ctx.now,
        key=command.key,
        fingerprint=command.fingerprint,
        timeout_seconds=command.timeout_seconds,
        quiet=True,
    )
    run.operations[sequence] = wait
    run.unsaved.operations.add(sequence)
    record(run, ctx, "ConditionWaitOpened", opening(wait))
    if command.timeout_seconds is not None:
        _start_timeout(run, ctx, wait)
    if metadata is None:
        run.wait = sequence
    return wait


def open_signal_wait(run: Run, ctx: Context, command: OpenSignalWait, sequence: int) -> SignalWait:
    """Open a wait for one signal. A signal that was received before keeps its recorded wait id."""
    kept = next((s for s in run.unapplied if s.name == command.signal_name), None)
    wait = SignalWait(
        sequence=sequence,
        wait_id=ctx.ids.ulid().upper() if kept is None else f"signal-command:{kept.command_id}",
        opened_at=ctx.now,
        signal_name=command.signal_name,
        timeout_seconds=command.timeout_seconds,
    )
    run.operations[sequence] = wait
    run.unsaved.operations.add(sequence)
    run.wait = sequence
    run.keeps_signals = True
    record(
        run,
        ctx,
        "SignalWaitOpened",
        {
            "sequence": sequence,
            "signal_wait_id": wait.wait_id,
            "signal_name": wait.signal_name,
            "timeout_seconds": wait.timeout_seconds,
        },
    )
    if command.timeout_seconds is not None:
        _start_timeout(run, ctx, wait)
    return wait


def repeats_wait(wait: ConditionWait, command: Command) -> bool:
    """Whether a command opens the same condition that is open already."""
    return (
        isinstance(command, OpenConditionWait)
        and command.path is None
        and (command.key, command.fingerprint) == (wait.key, wait.fingerprint)
    )


def close_wait_before(
    run: Run, ctx: Context, task: WorkflowTask, reopening: OpenConditionWait | None
) -> int | None:
    """Close the open wait: the code advanced, or opens the same condition again.

    Returns the sequence that a condition keeps when it is opened again. Workers that prepare local
    activities count the calls of the code, and that is one call; for others every opening is a
    step of its own.
    """
    if run.wait is None:
        return None
    wait = run.operations.get(run.wait)
    if isinstance(wait, SignalWait):
        if wait.signal is not None:
            _apply_signal(run, ctx, wait)
        return None
    if not isinstance(wait, ConditionWait):
        return None
    if reopening is not None and repeats_wait(wait, reopening):
        # Superseded without an end event: whether the predicate became true is not known.
        bind_messages(run, ctx, wait)
        first = run.reopened_from or wait.sequence
        drop_operation(run, wait.sequence)
        run.reopened_from = first
        if not task.prepares:
            return None
        run.repeats += 1
        return wait.sequence
    record(
        run,
        ctx,
        "ConditionWaitSatisfied",
        {
            **condition(wait),
            "timer_id": wait.timer_id,
            "timeout_seconds": wait.timeout_seconds,
            "workflow_signal_id": task.resume.get("workflow_signal_id"),
            "signal_name": task.resume.get("signal_name"),
        },
    )
    cancel_timeout(run, ctx, wait)
    if wait.cooperative:
        record_superseded_waits(run, ctx, wait.sequence - 1)
    drop_operation(run, wait.sequence)
    return None


def time_out_wait(run: Run, ctx: Context, wait: ConditionWait | SignalWait) -> None:
    """End an open wait by its time-out."""
    if isinstance(wait, ConditionWait):
        outcome = held(
            "ConditionWaitTimedOut",
            {
                **condition(wait),
                "timer_id": wait.timer_id,
                "timeout_seconds": wait.timeout_seconds,
            },
            wait,
        )
    else:
        fired_at = instant.text(ctx.now)
        outcome = held("TimerFired", {**timeout_timer(wait), "fired_at": fired_at}, wait)
    resolve(run, wait, outcome)


def _apply_signal(run: Run, ctx: Context, wait: SignalWait) -> None:
    signal = wait.signal
    assert signal is not None
    if wait.timer_id is not None:
        cancel_timeout(run, ctx, wait)
    record(
        run,
        ctx,
        "SignalApplied",
        {
            "workflow_command_id": signal.command_id,
            "signal_id": signal.signal_id,
            "signal_name": signal.name,
            "signal_wait_id": wait.wait_id,
            "sequence": wait.sequence,
            "value": raw(applied_value(signal.arguments, Frame(run.frame))),
        },
    )
    drop_operation(run, wait.sequence)


def _start_timeout(run: Run, ctx: Context, wait: ConditionWait | SignalWait) -> None:
    assert wait.timeout_seconds is not None
    wait.timer_id = ctx.ids.ulid()
    wait.fire_at = ctx.now + wait.timeout_seconds * SECOND
    record(run, ctx, "TimerScheduled", with_metadata(timeout_timer(wait), wait))
    arm(run, wait.fire_at)


def cancel_timeout(run: Run, ctx: Context, wait: ConditionWait | SignalWait) -> None:
    """Record the end of a wait's timer, if it has one."""
    if wait.timer_id is None:
        return
    cancelled_at = instant.text(ctx.now)
    payload = {**timeout_timer(wait), "cancelled_at": cancelled_at}
    record(run, ctx, "TimerCancelled", with_metadata(payload, wait))

"""Release of held events into history, and requests for a task when the code can advance.

While a workflow task is leased no event from outside may enter the history that its worker replays.
Outcomes are held at their operation, signals and updates in the inbox; `settle` records them as
soon as the history is no longer frozen. It runs after every change of a run.
"""

from typing import Any

from perdure.core.run.cancellation import is_unseen, record_due_request
from perdure.core.run.condition_reopen import (
    mark_overtaken,
    open_condition,
    record_superseded_waits,
    reopen_before_message,
)
from perdure.core.run.context import Context
from perdure.core.run.history import Members, held, raw, record, record_encoded, with_metadata
from perdure.core.run.inbox import Signal, StreamMessage, Update
from perdure.core.run.lease import DELAYED, LEASED, READY
from perdure.core.run.message_stream import message_members
from perdure.core.run.operation import (
    Activity,
    Child,
    ConditionWait,
    Group,
    GroupMode,
    Held,
    LocalActivity,
    Member,
    Operation,
    PushStep,
    ServiceCall,
    SignalWait,
    Timer,
)
from perdure.core.run.state import PROGRESS, WORKFLOW_TASK, Run
from perdure.core.run.status import CLOSED
from perdure.core.run.task import request_task, withdraw
from perdure.core.run.trace import link_command
from perdure.core.run.update import (
    hand_over_update,
    leave_inbox,
    oldest_position,
    request_update_task,
)


def record_or_hold(
    run: Run, ctx: Context, operation: Operation, event_type: str, payload: Members
) -> None:
    """Record an event that does not end its operation, now or when the history is unfrozen."""
    run.unsaved.operations.add(operation.sequence)
    if is_frozen(run):
        operation.held.append(held(event_type, payload, operation))
        release_later(run, operation.sequence)
    else:
        if run.wait is not None:
            mark_overtaken(run)
        record(run, ctx, event_type, with_metadata(payload, operation))


def resolve(run: Run, operation: Operation, outcome: Held) -> None:
    """Set the outcome of an operation. `settle` records it in history."""
    operation.outcome = outcome
    run.unsaved.operations.add(operation.sequence)
    group = _group(run, operation)
    if group is not None:
        group.open -= 1
        if group.mode is GroupMode.ORDERED:
            if group.open == 0:
                for sequence in sorted(
                    s for s, o in run.operations.items() if o.group == operation.group
                ):
                    _release_last(run, sequence)
            return
    _release_last(run, operation.sequence)


def settle(run: Run, ctx: Context) -> None:
    """Record held events, then hand over messages, one task at a time."""
    if run.status in CLOSED or is_frozen(run):
        return
    while run.releasing:
        _release(run, ctx, run.releasing.pop(0))
    if run.cancellation is not None:
        record_due_request(run, ctx)
    if run.local_calls:
        _wake_for_attempts(run, ctx)
    if run.task is None and run.update is not None:
        # The update task had been replaced by a progress task.
        request_update_task(run, ctx, run.update)
    while run.inbox and (run.task is None or _may_add_message(run, ctx)):
        _hand_over(run, ctx)
    if run.task is None and run.unapplied:
        _apply_kept_signal(run, ctx)


def _may_add_message(run: Run, ctx: Context) -> bool:
    """Whether the task that was requested for a message may carry the next message, too.

    Only for code that waits at a condition with a key, and only for workers whose replay is known.
    Messages behind an update wait until the code has seen the update.
    """
    limit = run.signals_per_task_max or ctx.bounds.signals_per_task_max
    if limit == 1 or run.keeps_signals or run.update is not None:
        return False
    task, wait = run.task, open_condition(run)
    if task is None or task.kind is not PROGRESS or task.state is not READY or wait is None:
        return False
    if not (wait.key or wait.fingerprint) or not 0 < wait.messages < limit:
        return False
    return not isinstance(run.inbox[oldest_position(run)], Update)


def hand_over_unseen(run: Run, ctx: Context) -> None:
    """Hand over all waiting messages in one task to code that closed its run before it saw them.

    An update waits its turn, and stream messages do not overtake it.
    """
    for position, message in unseen_messages(run):
        if isinstance(message, StreamMessage):
            _receive_message(run, ctx, position, message)
        else:
            leave_inbox(run, position)
            _receive(run, ctx, message)
    request_task(run, ctx)


def unseen_messages(run: Run) -> list[tuple[int, Signal | StreamMessage]]:
    """Signals and stream messages that can be handed over at once, in order."""
    found: list[tuple[int, Signal | StreamMessage]] = []
    behind_update = False
    for position, message in sorted(run.inbox.items()):
        if isinstance(message, Update):
            behind_update = True
        elif isinstance(message, Signal) or not behind_update:
            found.append((position, message))
    return found


def _wake_for_attempts(run: Run, ctx: Context) -> None:
    """Request a task to begin the next local attempts, or to recover those of a lost lease.

    The worker begins all open attempts, so none of them may still be delayed; a task that was
    already ready is withdrawn. For code that is asked to cancel itself the request is the wake-up.
    """
    if run.cancellation is not None and run.cancellation.delivered is None:
        return
    calls = [run.operations.get(sequence) for sequence in run.local_calls]
    due = [o for o in calls if isinstance(o, LocalActivity) and o.outcome is None]
    task = run.task
    if any(local.state is DELAYED for local in due):
        if task is not None and task.kind is PROGRESS:
            if task.state is READY:
                withdraw(run, WORKFLOW_TASK)
            run.task = None
    elif due:
        request_task(run, ctx, resume_context(due[0], "ActivityRetryScheduled"))


def is_frozen(run: Run) -> bool:
    """Whether a worker is replaying this history now, or must first see a cancellation request.

    If a selection were decided between a request to cancel and its delivery, the code could
    neither be shown the decision nor be interrupted there.
    """
    task = run.task
    if task is not None and task.state is LEASED:
        return True
    return run.cancellation is not None and is_unseen(run)


def record_held(run: Run, ctx: Context, operation: Operation) -> None:
    """Record the held events of an operation that is dropped: they were acknowledged."""
    for event in operation.held:
        record_encoded(run, ctx, event.event_type, event.payload)
    operation.held = []
    if operation.outcome is not None:
        record_encoded(run, ctx, operation.outcome.event_type, operation.outcome.payload)


def drop_operation(run: Run, sequence: int) -> None:
    """Remove an operation that has ended."""
    run.operations.pop(sequence, None)
    run.unsaved.operations.add(sequence)
    if run.local_calls and sequence in run.local_calls:
        run.local_calls.remove(sequence)
    if run.wait == sequence:
        run.wait = run.reopened_from = None


def release_later(run: Run, sequence: int) -> None:
    """Queue an operation whose events are recorded when the history is unfrozen."""
    if sequence not in run.releasing:
        run.releasing.append(sequence)


def _release_last(run: Run, sequence: int) -> None:
    # Outcomes are recorded in the order of their arrival, also when earlier events of their
    # operations are held.
    if sequence in run.releasing:
        run.releasing.remove(sequence)
    run.releasing.append(sequence)


def _release(run: Run, ctx: Context, sequence: int) -> None:
    operation = run.operations.get(sequence)
    if operation is None:
        return
    run.unsaved.operations.add(sequence)
    if run.wait is not None:
        mark_overtaken(run)
    if operation.held:
        for event in operation.held:
            record_encoded(run, ctx, event.event_type, event.payload)
        operation.held = []
    outcome = operation.outcome
    if outcome is None:
        return
    group = _group(run, operation)
    if group is not None and group.mode is GroupMode.ORDERED and group.open > 0:
        return
    event_id = record_encoded(run, ctx, outcome.event_type, outcome.payload)
    if sequence == run.wait and isinstance(operation, ConditionWait) and operation.cooperative:
        record_superseded_waits(run, ctx, sequence - 1)
    drop_operation(run, sequence)
    _wake_after(run, ctx, operation, outcome, group, event_id)


def _wake_after(
    run: Run,
    ctx: Context,
    operation: Operation,
    outcome: Held,
    group: Group | None,
    event_id: str,
) -> None:
    if operation.detached:
        return
    resume = resume_context(operation, outcome.event_type)
    if group is None:
        request_task(run, ctx, resume)
        return
    group.unrecorded -= 1
    group.failed = group.failed or outcome.failed
    if group.unrecorded == 0:
        del run.groups[group.base]
    if group.interrupted:
        request_task(run, ctx, resume)
        return
    if group.mode is not GroupMode.SELECT:
        if group.unrecorded == 0:
            request_task(run, ctx, resume)
        return
    member = member_of(group, operation.sequence)
    member.open -= 1
    member.failed = member.failed or outcome.failed
    if group.winner is None and (outcome.failed or member.open == 0):
        group.winner = member.index
        _record_winner(run, ctx, group, member, outcome, event_id)
        request_task(run, ctx, resume)
    elif open_condition(run) is None and (outcome.failed or member.open == 0):
        # The code does not need a loser's outcome to evaluate its condition.
        request_task(run, ctx, resume)


def member_of(group: Group, sequence: int) -> Member:
    """The member of a selection that an operation belongs to."""
    for member in group.members:
        if member.base <= sequence < member.base + member.size:
            return member
    raise AssertionError(f"operation {sequence} is in no member of its selection")


def _record_winner(
    run: Run, ctx: Context, group: Group, member: Member, outcome: Held, event_id: str
) -> None:
    record(
        run,
        ctx,
        "SelectionResolved",
        {
            "selection_group_id": group.group_id,
            "selection_group_base_sequence": group.base,
            "selection_group_size": group.size,
            "member_key": member.key,
            "member_index": member.index,
            "member_base_sequence": member.base,
            "member_size": member.size,
            "operation_kind": member.kind,
            "operation_identity": member.identity,
            "outcome": "failed" if outcome.failed else "completed",
            "resolution_event_id": event_id,
            "resolution_event_type": outcome.event_type,
        },
    )


def _group(run: Run, operation: Operation) -> Group | None:
    return None if operation.group is None else run.groups.get(operation.group)


# Messages ---------------------------------------------------------------------------------------


def _hand_over(run: Run, ctx: Context) -> None:
    position = oldest_position(run)
    message = run.inbox[position]
    if isinstance(message, Update):
        hand_over_update(run, ctx, position, message)
    elif isinstance(message, StreamMessage):
        _receive_message(run, ctx, position, message)
    else:
        leave_inbox(run, position)
        _receive(run, ctx, message)


def _receive_message(run: Run, ctx: Context, position: int, message: StreamMessage) -> None:
    """Record a stream message. It stays in `unread` until the code has read it."""
    del run.inbox[position]
    run.unread[position] = message
    # The row keeps its position: one before `inbox_first` counts as handed over.
    run.inbox_first = position + 1
    reopen_before_message(run, ctx)
    record(run, ctx, "SignalReceived", message_members(run, message))
    if open_condition(run) is not None or all(o.detached for o in run.operations.values()):
        request_task(run, ctx, _signal_resume(message, None))


def _receive(run: Run, ctx: Context, signal: Signal) -> None:
    """Record one signal; request a task only if the code can handle it now."""
    link_command(run, signal)
    reopen_before_message(run, ctx)
    wait = None if run.wait is None else run.operations.get(run.wait)
    bound = isinstance(wait, SignalWait) and wait.signal is None and wait.signal_name == signal.name
    kept = not bound and run.keeps_signals and not isinstance(wait, ConditionWait)
    wait_id = f"signal-command:{signal.command_id}" if kept else None
    if isinstance(wait, SignalWait) and bound:
        wait_id = wait.wait_id
    record(run, ctx, "SignalReceived", {**signal_members(run, signal), "signal_wait_id": wait_id})
    if isinstance(wait, SignalWait) and bound:
        _bind(run, ctx, wait, signal)
        return
    if kept:
        run.unapplied.append(signal)
    if isinstance(wait, ConditionWait) or all(o.detached for o in run.operations.values()):
        request_task(run, ctx, _signal_resume(signal, None))


def signal_members(run: Run, signal: Signal) -> dict[str, Any]:
    """The payload of `SignalReceived`."""
    return {
        "workflow_command_id": signal.command_id,
        "signal_id": signal.signal_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
        "signal_name": signal.name,
        "arguments": raw(signal.arguments),
        "payload_codec": "avro",
    }


def _apply_kept_signal(run: Run, ctx: Context) -> None:
    """Apply a signal that was received before its wait was opened."""
    wait = None if run.wait is None else run.operations.get(run.wait)
    if not isinstance(wait, SignalWait) or wait.signal is not None:
        return
    for position, signal in enumerate(run.unapplied):
        if signal.name == wait.signal_name:
            del run.unapplied[position]
            _bind(run, ctx, wait, signal)
            return


def _bind(run: Run, ctx: Context, wait: SignalWait, signal: Signal) -> None:
    wait.signal = signal
    wait.fire_at = None
    run.unsaved.operations.add(wait.sequence)
    request_task(run, ctx, _signal_resume(signal, wait.wait_id))


def _signal_resume(signal: Signal | StreamMessage, wait_id: str | None) -> dict[str, str | int]:
    resume: dict[str, str | int] = {
        "workflow_wait_kind": "signal",
        "open_wait_id": f"signal-application:{signal.signal_id}",
        "resume_source_kind": "workflow_signal",
        "resume_source_id": signal.signal_id,
        "workflow_signal_id": signal.signal_id,
        "signal_name": signal.name,
        "workflow_command_id": signal.command_id,
    }
    if wait_id is not None:
        resume["signal_wait_id"] = wait_id
    return resume


def resume_context(operation: Operation, event_type: str) -> dict[str, str | int]:
    """The resume members of a task: which operation woke the run."""
    match operation:
        case Activity():
            return {
                "workflow_wait_kind": "activity",
                "open_wait_id": f"activity:{operation.execution_id}",
                "resume_source_kind": "activity_execution",
                "resume_source_id": operation.execution_id,
                "activity_execution_id": operation.execution_id,
                "activity_attempt_id": operation.attempt_id,
                "activity_type": operation.activity_type,
                "workflow_sequence": operation.sequence,
                "workflow_event_type": event_type,
            }
        case LocalActivity():
            return {
                "workflow_wait_kind": "local_activity",
                "open_wait_id": f"local-activity:{operation.execution_id}",
                "resume_source_kind": "local_activity",
                "resume_source_id": operation.execution_id,
                "activity_execution_id": operation.execution_id,
                "activity_attempt_id": operation.attempt_id,
                "activity_type": operation.activity_type,
                "workflow_sequence": operation.sequence,
                "workflow_event_type": event_type,
            }
        case Child():
            return {
                "workflow_wait_kind": "child",
                "open_wait_id": f"child:{operation.call_id}",
                "resume_source_kind": "child_workflow_run",
                "resume_source_id": operation.run_id,
                "child_call_id": operation.call_id,
                "child_workflow_run_id": operation.run_id,
                "workflow_sequence": operation.sequence,
                "workflow_event_type": event_type,
            }
        case Timer():
            return {
                "workflow_wait_kind": "timer",
                "open_wait_id": f"timer:{operation.timer_id}",
                "resume_source_kind": "timer",
                "resume_source_id": operation.timer_id,
                "timer_id": operation.timer_id,
                "workflow_sequence": operation.sequence,
                "workflow_event_type": event_type,
            }
        case ServiceCall():
            return {
                "workflow_wait_kind": "service_operation",
                "open_wait_id": f"service-call:{operation.call_id}",
                "resume_source_kind": "service_call",
                "resume_source_id": operation.call_id,
                "workflow_sequence": operation.sequence,
                "workflow_event_type": event_type,
            }
        case ConditionWait() | SignalWait():
            kind = "condition" if isinstance(operation, ConditionWait) else "signal"
            resume: dict[str, str | int] = {
                "workflow_wait_kind": kind,
                "open_wait_id": operation.wait_id,
                "resume_source_kind": "timer",
                "resume_source_id": operation.timer_id or operation.wait_id,
                "workflow_sequence": operation.sequence,
                "workflow_event_type": event_type,
            }
            if operation.timer_id is not None:
                resume["timer_id"] = operation.timer_id
            if isinstance(operation, ConditionWait):
                resume["condition_wait_id"] = operation.wait_id
                if operation.key is not None:
                    resume["condition_key"] = operation.key
                if operation.fingerprint is not None:
                    resume["condition_definition_fingerprint"] = operation.fingerprint
            else:
                resume["signal_wait_id"] = operation.wait_id
                resume["signal_name"] = operation.signal_name
            return resume
        case PushStep():
            raise AssertionError("steps of push runs are never held")

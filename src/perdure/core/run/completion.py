"""Completion of a workflow task: applies all commands of the worker, or none of them."""

from collections.abc import Sequence
from typing import Any, assert_never

from msgspec import Struct

from perdure.core import instant, limits
from perdure.core.payload import Frame, encode
from perdure.core.rejection import InvalidCommands, RunTimedOut
from perdure.core.run import close
from perdure.core.run.child import open_child
from perdure.core.run.command import (
    BLOCKING,
    SCHEDULABLE,
    TERMINAL,
    UNNUMBERED,
    UPDATE_OUTCOMES,
    CancelSelectionOperation,
    Command,
    CompleteRun,
    CompleteUpdate,
    ContinueAsNew,
    FailRun,
    FailUpdate,
    OpenConditionWait,
    OpenSignalWait,
    PrepareLocalActivity,
    RecordLocalActivity,
    RecordSideEffect,
    RecordVersionMarker,
    ScheduleActivity,
    StartChild,
    StartServiceOperation,
    StartTimer,
    UpsertMemo,
    UpsertSearchAttributes,
)
from perdure.core.run.command_limits import (
    check_events,
    check_merged,
    check_pending,
    merge,
    require_batch,
)
from perdure.core.run.condition_reopen import open_condition
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm, operation_due
from perdure.core.run.effect import CloseChild
from perdure.core.run.group import Rebase, is_blocked, is_selected, join, join_ordered
from perdure.core.run.history import Raw, record, with_metadata
from perdure.core.run.lease import DELAYED, READY
from perdure.core.run.local.recorded import record_local_activity
from perdure.core.run.message_stream import Consumption, check_consumption, note_consumption
from perdure.core.run.operation import (
    Activity,
    Child,
    ConditionWait,
    GroupMode,
    LocalActivity,
    Metadata,
    Operation,
    Timer,
)
from perdure.core.run.reframe import envelope_json
from perdure.core.run.service import CallRefusal, ServicePlan, open_service_call
from perdure.core.run.settle import (
    drop_operation,
    hand_over_unseen,
    record_held,
    settle,
    unseen_messages,
)
from perdure.core.run.state import (
    PROGRESS,
    UPDATE,
    Run,
    TaskReceipt,
    WorkflowTask,
    activity_task_id,
    first_task_id,
    workflow_task_id,
)
from perdure.core.run.status import RunStatus
from perdure.core.run.stream import directive_members
from perdure.core.run.task import (
    find_receipt,
    finish_task,
    request_task,
    require_lease,
    retry_task,
    withdraw,
)
from perdure.core.run.update import finish_update
from perdure.core.run.wait import (
    close_wait_before,
    open_condition_wait,
    open_signal_wait,
    repeats_wait,
)

_MESSAGE_MEMBERS = {"workflow_signal_id", "workflow_update_id", "workflow_command_id"}
"""Resume members of tasks that were requested for a signal or an update.

A task that follows an update has no resume members.
"""

_NO_SERVICE = ServicePlan(
    refusal=CallRefusal(
        "rejected_not_found", "service_operation_not_found", "no service has this operation"
    )
)

WAITING_FOR_HISTORY = "WorkflowTaskWaitingForHistory"
"""The failure type that SDK 2.12 sends when it has no commands yet."""


NOTHING_READ = Consumption()
_PENDING = RunStatus.PENDING


class TaskReport(Struct, frozen=True, kw_only=True):
    """The lease that a report of a worker names."""

    number: int
    owner: str
    attempt: int


def complete_task(
    run: Run,
    ctx: Context,
    report: TaskReport,
    commands: Sequence[Command],
    consumption: Consumption = NOTHING_READ,
    service: ServicePlan = _NO_SERVICE,
) -> TaskReceipt:
    """Apply the commands of a leased task. A repeated report gets the recorded answer.

    `service` is the catalogue's plan for the service call among the commands, if there is one.
    """
    receipt = find_receipt(run, number=report.number, owner=report.owner, attempt=report.attempt)
    if receipt is not None:
        return receipt
    task = require_lease(run, ctx, number=report.number, owner=report.owner, attempt=report.attempt)
    if close.overdue(run, ctx.now):
        raise RunTimedOut(f"run {run.run_id} has passed its deadline", run_status="failed")
    _check(run, ctx, task, commands)
    if consumption.cursors:
        check_consumption(run, consumption)
    if not commands and _leaves_no_cause(run, task):
        raise InvalidCommands(
            "a completion without commands needs an open step that will resume the code"
        )
    events_before = run.history_count
    run.answers = None
    unseen_signals = _count_deferring_signals(run, ctx, commands)
    receipt = finish_task(run, task, "completed")
    _mark_request_seen(run, task)
    if run.status is _PENDING:
        run.status = RunStatus.WAITING
    run.last_progress_at = ctx.now
    if unseen_signals:
        _defer_close(run, ctx, task, commands)
        receipt.late_signals = unseen_signals
        settle(run, ctx)
        return receipt
    run.late_signal_tasks = 0
    if task.kind is PROGRESS:
        note_consumption(run, consumption)
    elif task.kind is UPDATE:
        commands = _finish_update(run, ctx, commands)
    if commands or task.kind is PROGRESS:
        again = None if run.wait is None else _close_open_wait(run, ctx, task, commands)
        _apply(run, ctx, commands, receipt, service, again)
        if task.cooperative and (wait := open_condition(run)) is not None:
            wait.cooperative, wait.keeps_number = True, task.prepares
            run.unsaved.operations.add(wait.sequence)
    if run.history_count > ctx.bounds.history_events_max and not run.is_closed:
        close.exceed_history(run, ctx)
    if run.history_count > events_before and _needs_another_task(run, commands):
        request_task(run, ctx)
    settle(run, ctx)
    return receipt


def _count_deferring_signals(run: Run, ctx: Context, commands: Sequence[Command]) -> int:
    """How many unseen signals defer the close of the run; 0 if the close is applied.

    A cancelled run always closes. So does a run that had its maximum of such tasks in a row, or
    whose history has no room for the signals.
    """
    if not run.inbox or not commands or not isinstance(commands[-1], CompleteRun | FailRun):
        return 0
    limit = run.late_signal_tasks_max
    if limit is None:
        limit = ctx.bounds.late_signal_tasks_max
    if run.late_signal_tasks >= limit or run.cancellation is not None:
        return 0
    late = len(unseen_messages(run))
    return late if run.history_count + late <= ctx.bounds.history_events_max else 0


def _defer_close(run: Run, ctx: Context, task: WorkflowTask, commands: Sequence[Command]) -> None:
    """Apply only the outcome of an update; the code decides again after it has the signals."""
    run.late_signal_tasks += 1
    if task.kind is UPDATE:
        _finish_update(run, ctx, [c for c in commands if isinstance(c, UPDATE_OUTCOMES)])
    hand_over_unseen(run, ctx)


def _leaves_no_cause(run: Run, task: WorkflowTask) -> bool:
    """Whether a completion without commands would leave the run without a cause.

    Code that was woken by a signal or an update may have nothing to do; SDK 2.0.0 also sends no
    commands while it waits for open steps.
    """
    follows_message = not task.resume and task.number > 1
    if follows_message or task.resume.keys() & _MESSAGE_MEMBERS or task.kind is not PROGRESS:
        return False
    if run.inbox or run.cancellation is not None:
        return False
    return run.wait is None and all(operation.detached for operation in run.operations.values())


def fail_task(
    run: Run, ctx: Context, report: TaskReport, *, failure_type: str | None, message: str
) -> TaskReceipt:
    """Record that the worker failed the task. The run stays open and the task is retried."""
    receipt = find_receipt(run, number=report.number, owner=report.owner, attempt=report.attempt)
    if receipt is not None:
        return receipt
    task = require_lease(run, ctx, number=report.number, owner=report.owner, attempt=report.attempt)
    needs_history = failure_type == WAITING_FOR_HISTORY and not has_unfinished_local(run)
    if needs_history and task.kind is PROGRESS:
        receipt = finish_task(run, task, "waiting_for_history")
        _mark_request_seen(run, task)
        _close_open_wait(run, ctx, task, ())
        if run.status is RunStatus.PENDING:
            run.status = RunStatus.WAITING
    else:
        assert task.lease is not None
        receipt = TaskReceipt(
            task.number, task.attempt, task.lease.owner, "failed", [workflow_task_id(run, task)]
        )
        run.last_task = receipt
        retry_task(run, ctx, message if failure_type is None else f"{failure_type}: {message}")
    settle(run, ctx)
    return receipt


def _mark_request_seen(run: Run, task: WorkflowTask) -> None:
    """Record that a worker completed a task whose history contained a request to cancel."""
    cancellation = run.cancellation
    if cancellation is not None and cancellation.event_id is not None:
        cancellation.seen = cancellation.seen or task.kind is PROGRESS


def _needs_another_task(run: Run, commands: Sequence[Command]) -> bool:
    """Whether the code has reached the call at which it will be cancelled.

    A worker first commits what the code did before that call. Without another task it would not
    return to deliver the cancellation.
    """
    cancellation = run.cancellation
    if cancellation is None or cancellation.event_id is None or run.is_closed:
        return False
    opens_step = any(isinstance(command, BLOCKING) for command in commands)
    return cancellation.delivered is None and not opens_step and not is_blocked(run)


def _check(run: Run, ctx: Context, task: WorkflowTask, commands: Sequence[Command]) -> None:
    """Validate all commands before any of them is applied."""
    require_batch(ctx.bounds, commands)
    kinds = _kinds(commands)
    if task.kind is UPDATE or not kinds.isdisjoint(UPDATE_OUTCOMES):
        _check_update(run, task, commands)
    closes = not kinds.isdisjoint(TERMINAL)
    if closes:
        _check_endings(commands)
    sequence = check_steps(run, ctx, commands, run.next_sequence)
    if not closes:
        if run.local_calls and task.kind is PROGRESS and has_unfinished_local(run):
            raise InvalidCommands("a local activity of this task is still running")
        return
    ending = commands[-1]
    if isinstance(ending, FailRun) and (ending.failed_step or 0) >= sequence:
        raise InvalidCommands(f"the run has no step {ending.failed_step} that could have failed")


def _kinds(commands: Sequence[Command | PrepareLocalActivity]) -> set[type]:
    return {*map(type, commands)}


def _check_endings(commands: Sequence[Command]) -> None:
    endings = [index for index, command in enumerate(commands) if isinstance(command, TERMINAL)]
    if len(endings) > 1:
        raise InvalidCommands("a completion may close the run once")
    if endings[0] != len(commands) - 1:
        raise InvalidCommands("the command that closes the run must be the last one")


def has_unfinished_local(run: Run) -> bool:
    """Whether the code waits for local activities whose attempts are running or may begin."""
    if not run.local_calls:
        return False
    calls = [run.operations.get(sequence) for sequence in run.local_calls]
    return any(isinstance(o, LocalActivity) and o.state is not DELAYED for o in calls)


def check_steps(
    run: Run, ctx: Context, commands: Sequence[Command | PrepareLocalActivity], sequence: int
) -> int:
    """Validate new steps, the first of them numbered `sequence`.

    Returns the next free sequence.
    """
    bounds, blocked = ctx.bounds, is_blocked(run)
    rebase = Rebase()
    kinds = _kinds(commands)
    if RecordLocalActivity in kinds or 2 * len(commands) > bounds.events_per_completion_max:
        check_events(bounds, [c for c in commands if not (blocked and isinstance(c, BLOCKING))])
    if RecordVersionMarker in kinds:
        _check_versions(commands)
    for command in commands:
        path = getattr(command, "path", None)
        if path:
            rebase.metadata(path, sequence)
        if type(command) not in _WITHOUT_SEQUENCE:
            sequence += 1
    if StartServiceOperation in kinds:
        _check_calls(commands)
    if not blocked:
        # Steps that a blocked worker sends again, perhaps only in part, are ignored.
        check_pending(run, bounds, commands)
        rebase.require_complete()
    if not kinds.isdisjoint(_MERGED):
        check_merged(run, bounds, commands)
    return sequence


def _check_versions(commands: Sequence[Command | PrepareLocalActivity]) -> None:
    for command in commands:
        if isinstance(command, RecordVersionMarker) and not (
            command.min_supported <= command.version <= command.max_supported
        ):
            raise InvalidCommands(f"version {command.version} is outside its supported range")


def _check_calls(commands: Sequence[Command | PrepareLocalActivity]) -> None:
    if sum(isinstance(command, StartServiceOperation) for command in commands) > 1:
        raise InvalidCommands("a completion may call one service operation only")


_WITHOUT_SEQUENCE = frozenset((*UNNUMBERED, *TERMINAL))
_MERGED = (UpsertMemo, UpsertSearchAttributes)


def _check_update(run: Run, task: WorkflowTask, commands: Sequence[Command]) -> None:
    """Require exactly the outcome of its update from an update task, and none from others."""
    reported = [command.update_id for command in commands if isinstance(command, UPDATE_OUTCOMES)]
    expected = [run.update.update_id] if task.kind is UPDATE and run.update else []
    if reported == expected:
        return
    if not expected:
        raise InvalidCommands(f"the task is not for update {reported[0]}; send no outcome of it")
    raise InvalidCommands(f"the task needs exactly one outcome, that of update {expected[0]}")


def _finish_update(run: Run, ctx: Context, commands: Sequence[Command]) -> Sequence[Command]:
    """Record the outcome of the task's update. Returns the remaining commands."""
    (outcome,) = [command for command in commands if isinstance(command, UPDATE_OUTCOMES)]
    others = [command for command in commands if not isinstance(command, UPDATE_OUTCOMES)]
    finish_update(run, ctx, outcome, wake=not others)
    return others


def _close_open_wait(
    run: Run, ctx: Context, task: WorkflowTask, commands: Sequence[Command]
) -> int | None:
    """Close the open condition wait unless the first command shows that the code still waits.

    Returns the sequence of a condition that is opened again. A signal wait needs no such check: it
    ends when a task delivers its signal to the code.
    """
    wait = None if run.wait is None else run.operations.get(run.wait)
    if wait is None:
        return None
    first = next((c for c in commands if not isinstance(c, CancelSelectionOperation)), None)
    if isinstance(wait, ConditionWait) and (first is None or _still_waits_at(run, wait, first)):
        return None
    again = first if isinstance(first, OpenConditionWait) else None
    return close_wait_before(run, ctx, task, again)


def _still_waits_at(run: Run, wait: ConditionWait, command: Command) -> bool:
    """Whether the code cannot have advanced beyond its condition, whatever it sends again."""
    if not isinstance(command, BLOCKING):
        return False
    return is_blocked(run) or (wait.quiet and repeats_wait(wait, command))


def _apply(
    run: Run,
    ctx: Context,
    commands: Sequence[Command],
    receipt: TaskReceipt,
    service: ServicePlan,
    reopened: int | None,
) -> None:
    blocked = is_blocked(run) or open_condition(run) is not None
    rebase = Rebase()
    ungrouped: list[Operation] = []
    for command in _conditions_first(commands):
        if blocked and isinstance(command, BLOCKING):
            # The code has not advanced; this step is open already.
            continue
        if isinstance(command, StartServiceOperation):
            sequence, _ = allot(run, None, rebase)
            called = open_service_call(run, ctx, command, service, sequence)
            arm(run, operation_due(called))
            continue
        if reopened is not None and isinstance(command, OpenConditionWait):
            arm(run, operation_due(open_condition_wait(run, ctx, command, reopened, None)))
            reopened = None
            continue
        opened = apply_command(run, ctx, command, rebase)
        if opened is None:
            continue
        if opened.metadata is not None:
            join(run, opened)
        elif isinstance(command, SCHEDULABLE):
            ungrouped.append(opened)
        arm(run, operation_due(opened))
        if isinstance(opened, Activity):
            receipt.created_task_ids.append(activity_task_id(run, opened))
        elif isinstance(opened, Child):
            receipt.created_task_ids.append(first_task_id(opened.run_id))
    if run.continued_to_run_id is not None:
        receipt.created_task_ids.append(first_task_id(run.continued_to_run_id))
    if len(ungrouped) > 1 and not run.is_closed:
        join_ordered(run, ungrouped)


def _conditions_first(commands: Sequence[Command]) -> Sequence[Command]:
    """Order the conditions of a selection before its other members.

    A worker delivers a message to the last condition that was opened before it, unless a step is
    recorded between the two. The code never sees a message that went to a condition that lost.
    """
    if not any(map(_is_selected_condition, commands)):
        return commands
    first = next(at for at, command in enumerate(commands) if getattr(command, "path", None))
    group = sorted(commands[first:], key=_is_selected_condition, reverse=True)
    return [*commands[:first], *group]


def _is_selected_condition(command: Command) -> bool:
    return isinstance(command, OpenConditionWait) and bool(command.path)


def apply_command(run: Run, ctx: Context, command: Command, rebase: Rebase) -> Operation | None:
    """Record the events of a command. Returns the operation that it opens, if it opens one."""
    match command:
        case StartServiceOperation():
            raise AssertionError("service calls are opened with the plan of the catalogue")
        case ScheduleActivity():
            sequence, metadata = allot(run, command.path, rebase)
            return open_activity(run, ctx, command, sequence, metadata)
        case StartTimer():
            sequence, metadata = allot(run, command.path, rebase)
            return _open_timer(run, ctx, command, sequence, metadata)
        case StartChild():
            sequence, metadata = allot(run, command.path, rebase)
            return open_child(run, ctx, command, sequence, metadata)
        case OpenConditionWait():
            sequence, metadata = allot(run, command.path, rebase)
            return open_condition_wait(run, ctx, command, sequence, metadata)
        case OpenSignalWait():
            return open_signal_wait(run, ctx, command, allot(run, None, rebase)[0])
        case RecordSideEffect():
            result = {"sequence": allot(run, None, rebase)[0], "result": Raw(command.result)}
            written = None if command.stream is None else directive_members(command.stream)
            extra = {"payload_codec": run.codec, "workflow_stream": written}
            record(run, ctx, "SideEffectRecorded", {**result, **extra})
        case RecordVersionMarker():
            record(
                run,
                ctx,
                "VersionMarkerRecorded",
                {
                    "sequence": allot(run, None, rebase)[0],
                    "change_id": command.change_id,
                    "version": command.version,
                    "min_supported": command.min_supported,
                    "max_supported": command.max_supported,
                },
            )
        case UpsertSearchAttributes():
            _upsert_search_attributes(run, ctx, command, allot(run, None, rebase)[0])
        case UpsertMemo():
            _upsert_memo(run, ctx, command, allot(run, None, rebase)[0])
        case RecordLocalActivity():
            record_local_activity(run, ctx, command, allot(run, None, rebase)[0])
        case CancelSelectionOperation():
            _cancel_member(run, ctx, command)
        case CompleteUpdate() | FailUpdate():
            raise AssertionError("update outcomes are applied before other commands")
        case CompleteRun():
            close.complete_run(run, ctx, command)
        case FailRun():
            close.fail_run(run, ctx, command)
        case ContinueAsNew():
            close.continue_run(run, ctx, command)
        case _:
            assert_never(command)
    return None


def allot(run: Run, path: list[Metadata] | None, rebase: Rebase) -> tuple[int, Metadata | None]:
    """The sequence of the next step, and its group metadata."""
    sequence = run.next_sequence
    run.next_sequence = sequence + 1
    run.repeats = 0
    return rebase.seat(path, sequence) if path else (sequence, None)


def open_activity(
    run: Run, ctx: Context, command: ScheduleActivity, sequence: int, metadata: Metadata | None
) -> Activity:
    """Schedule an activity; workers that poll its queue may lease its first attempt."""
    activity = Activity(
        sequence=sequence,
        metadata=metadata,
        execution_id=ctx.ids.ulid(),
        activity_type=command.activity_type,
        queue=command.queue or run.queue,
        arguments=command.arguments,
        scheduled_at=ctx.now,
        available_at=ctx.now,
        retry=command.retry,
        timeouts=command.timeouts,
        cancellation_policy=command.cancellation_policy,
        session=command.session,
    )
    run.operations[sequence] = activity
    run.unsaved.operations.add(sequence)
    run.unsaved.ready[sequence] = True
    session = activity.session
    members = _Scheduled(
        sequence=sequence,
        activity_execution_id=activity.execution_id,
        activity_type=activity.activity_type,
        cancellation_policy=activity.cancellation_policy,
        activity=_ActivityCall(activity.queue, Raw(activity.arguments)),
        worker_session=None if session is None else {"session_id": session.session_id},
    )
    record(run, ctx, "ActivityScheduled", with_metadata(members, activity))
    return activity


class _ActivityCall(Struct):
    queue: str
    arguments: Raw


class _Scheduled(Struct, kw_only=True, omit_defaults=True):
    """The payload of `ActivityScheduled`."""

    sequence: int
    activity_execution_id: str
    activity_type: str
    cancellation_policy: str | None = None
    activity: _ActivityCall
    worker_session: dict[str, str] | None = None


def _open_timer(
    run: Run, ctx: Context, command: StartTimer, sequence: int, metadata: Metadata | None
) -> Timer:
    timer = Timer(
        sequence=sequence,
        metadata=metadata,
        timer_id=ctx.ids.ulid(),
        delay_seconds=command.delay_seconds,
        fire_at=ctx.now + command.delay_seconds * limits.SECOND,
    )
    run.operations[sequence] = timer
    run.unsaved.operations.add(sequence)
    members: dict[str, Any] = {
        "sequence": sequence,
        "timer_id": timer.timer_id,
        "delay_seconds": timer.delay_seconds,
        "fire_at": instant.text(timer.fire_at),
    }
    if metadata is not None and is_selected(metadata):
        # SDKs 2.x take a timer without `timer_kind`, as older servers recorded it, for the time-out
        # of a condition in the same selection that waits equally long.
        members["timer_kind"] = "sleep"
    record(run, ctx, "TimerScheduled", with_metadata(members, timer))
    return timer


def _upsert_search_attributes(
    run: Run, ctx: Context, command: UpsertSearchAttributes, sequence: int
) -> None:
    merged = merge(run.search_attributes, command.attributes)
    run.search_attributes = dict(sorted(merged.items()))
    record(
        run,
        ctx,
        "SearchAttributesUpserted",
        {
            "sequence": sequence,
            "attributes": command.attributes,
            "merged": run.search_attributes,
        },
    )


def _upsert_memo(run: Run, ctx: Context, command: UpsertMemo, sequence: int) -> None:
    run.memo = merge(run.memo, command.entries)
    record(
        run,
        ctx,
        "MemoUpserted",
        {
            "sequence": sequence,
            "entries": Raw(command.envelope),
            "merged": Raw(envelope_json(encode(run.memo, Frame(run.frame)))),
        },
    )


def _cancel_member(run: Run, ctx: Context, command: CancelSelectionOperation) -> None:
    """Cancel a losing member. Every replay repeats this; for an ended member it does nothing."""
    group = next((g for g in run.groups.values() if g.group_id == command.group_id), None)
    if group is None or group.mode is not GroupMode.SELECT:
        return
    member = next((m for m in group.members if m.base == command.member_base), None)
    if member is None or member.cancelled or member.failed or member.open == 0:
        return
    leaves = [run.operations.get(member.base + offset) for offset in range(member.size)]
    running = [leaf for leaf in leaves if leaf is not None]
    outcomes = [leaf.outcome for leaf in running if leaf.outcome is not None]
    if len(outcomes) == len(running) or any(outcome.failed for outcome in outcomes):
        # It ended while the worker decided; the acknowledged outcome stays.
        return
    member.cancelled = True
    for leaf in running:
        group.unrecorded -= 1
        _stop_operation(run, ctx, leaf)
    if group.unrecorded <= 0:
        run.groups.pop(group.base, None)
    record(
        run,
        ctx,
        "SelectionOperationCancelled",
        {
            "selection_group_id": command.group_id,
            "member_key": command.member_key,
            "member_index": command.member_index,
            "member_base_sequence": command.member_base,
            "member_size": command.member_size,
            "operation_kind": command.kind,
            "operation_identity": command.identity,
        },
    )
    request_task(run, ctx)


def _stop_operation(run: Run, ctx: Context, operation: Operation) -> None:
    """Stop an operation whose result is no longer needed."""
    if operation.outcome is not None:
        record_held(run, ctx, operation)
    elif isinstance(operation, Activity) and operation.state is READY:
        withdraw(run, operation.sequence)
    elif isinstance(operation, Child) and operation.cancellation_policy != "abandon":
        reason = "a selection of its parent was decided without it"
        run.unsaved.effects.append(CloseChild(operation.run_id, "request_cancel", reason))
    drop_operation(run, operation.sequence)

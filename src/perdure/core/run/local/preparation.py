"""Preparation of local activities: permission to run them, in the middle of a workflow task.

A worker commits what its code did so far, opens a local activity or a group with some in it, and
begins attempts, all under its one lease. Each request names the number of the call: the worker
counts the calls of its code, and must find them in history under these numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from perdure.core import limits
from perdure.core.rejection import (
    CancellationRequested,
    InvalidCommands,
    PreparedLocalConflict,
    PreparedLocalUnavailable,
    RunTimedOut,
)
from perdure.core.run import close
from perdure.core.run.activity import Reported
from perdure.core.run.claim import Answers, Checkpoint, Claim, LocalEnd, Opened
from perdure.core.run.command import (
    Cleanup,
    Command,
    PrepareLocalActivity,
    RecordSideEffect,
    RecordVersionMarker,
    ScheduleActivity,
    StartChild,
    StartTimer,
    UpsertMemo,
    UpsertSearchAttributes,
)
from perdure.core.run.command_limits import require_batch
from perdure.core.run.completion import TaskReport, allot, apply_command, check_steps
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm, operation_due
from perdure.core.run.group import Rebase, is_blocked, join
from perdure.core.run.lease import TaskState
from perdure.core.run.local.activity import (
    COLD_REPLAY,
    begin_attempt,
    claim_of,
    end_attempt_under_lease,
    failed,
    open_local,
    release_for_retry,
    schedule_retry,
)
from perdure.core.run.operation import LocalActivity
from perdure.core.run.state import Run, TaskKind, WorkflowTask, workflow_task_id
from perdure.core.run.status import RunStatus
from perdure.core.run.task import require_lease
from perdure.core.run.wait import close_wait_before

PREFIX = (RecordSideEffect, RecordVersionMarker, UpsertMemo, UpsertSearchAttributes)
"""Commands that a worker may commit before a local activity."""

MEMBERS = (PrepareLocalActivity, ScheduleActivity, StartTimer, StartChild)
"""Commands that a group with local activities may contain."""


class Checkpointed(NamedTuple):
    checkpoint: Checkpoint
    duplicate: bool


class Begun(NamedTuple):
    """An attempt that its worker may run, now or, as a duplicate, before."""

    local: LocalActivity
    lease_expires_at: int
    duplicate: bool


class Ended(NamedTuple):
    """The end of an attempt, recorded now or, as a duplicate, before."""

    end: LocalEnd
    duplicate: bool


def checkpoint(
    run: Run,
    ctx: Context,
    report: TaskReport,
    *,
    checkpoint_id: str,
    start: int,
    commands: Sequence[Command],
) -> Checkpointed:
    """Commit what the code did before a local activity."""
    earlier = find_checkpoint(run, report, checkpoint_id)
    if earlier is not None:
        return earlier
    task = require_claim(run, ctx, report)
    if not all(isinstance(command, PREFIX) for command in commands):
        raise InvalidCommands("only markers and upserts can be committed before a task ends")
    require_batch(ctx.bounds, commands)
    _require_next(run, start)
    check_steps(run, ctx, commands, start)
    _advance_to(run, ctx, task, start)
    rebase = Rebase()
    for command in commands:
        apply_command(run, ctx, command, rebase)
    recorded = Checkpoint(start, run.next_sequence, [])
    return _keep_checkpoint(run, ctx, task, checkpoint_id, recorded)


def checkpoint_group(
    run: Run,
    ctx: Context,
    report: TaskReport,
    *,
    checkpoint_id: str,
    start: int,
    commands: Sequence[Command | PrepareLocalActivity],
) -> Checkpointed:
    """Open a group with local activities in it, all its members at once."""
    earlier = find_checkpoint(run, report, checkpoint_id)
    if earlier is not None:
        return earlier
    task = require_claim(run, ctx, report)
    _check_group(commands, start)
    _require_next(run, start)
    for command in commands:
        if isinstance(command, PrepareLocalActivity):
            _require_permission(run, command.cleanup)
    check_steps(run, ctx, commands, start)
    _advance_to(run, ctx, task, start)
    rebase, activities = Rebase(), list[Opened]()
    for command in commands:
        if isinstance(command, PrepareLocalActivity):
            sequence, metadata = allot(run, command.path, rebase)
            opened = open_local(run, ctx, command, sequence, metadata)
            activities.append(Opened(sequence, opened.execution_id))
            join(run, opened)
            continue
        step = apply_command(run, ctx, command, rebase)
        assert step is not None, "every member of a group is a step"
        join(run, step)
        arm(run, operation_due(step))
    recorded = Checkpoint(start, run.next_sequence, activities)
    return _keep_checkpoint(run, ctx, task, checkpoint_id, recorded)


def prepare(
    run: Run,
    ctx: Context,
    report: TaskReport,
    *,
    sequence: int,
    nonce: str,
    command: PrepareLocalActivity,
) -> Begun:
    """Begin the next attempt of a local activity; opens it if it is a new call of the code."""
    task = require_claim(run, ctx, report)
    assert task.lease is not None
    local = _find_local(run, sequence, command)
    if local is not None and local.state is TaskState.LEASED:
        if (local.claim, local.nonce) == (claim_of(task), nonce) and not local.fenced:
            return Begun(local, task.lease.expires_at, duplicate=True)
        raise PreparedLocalConflict(f"attempt {local.attempt_id} of call {sequence} has not ended")
    _require_permission(run, command.cleanup)
    if local is None:
        if command.path:
            raise PreparedLocalConflict("the members of a group must be opened together")
        _require_next(run, sequence)
        check_steps(run, ctx, [command], sequence)
        _advance_to(run, ctx, task, sequence)
        local = open_local(run, ctx, command, *allot(run, None, Rebase()))
    elif local.state is TaskState.DELAYED:
        raise PreparedLocalConflict(f"the next attempt of call {sequence} is not due yet")
    begin_attempt(run, ctx, task, local, nonce)
    task.snapshot = run.history_count
    return Begun(local, task.lease.expires_at, duplicate=False)


def recover(
    run: Run,
    ctx: Context,
    report: TaskReport,
    *,
    sequence: int,
    command: PrepareLocalActivity,
) -> Ended:
    """End an attempt whose worker was lost, and schedule another one: its effects are unknown.

    As with any activity whose lease expired, the retry policy is not applied; but the number of
    recoveries is limited.
    """
    claim = Claim(report.number, report.attempt, report.owner)
    if run.answers is not None and run.answers.claim == claim:
        ends = run.answers.ends.values()
        earlier = next((e for e in ends if e.recovered and e.sequence == sequence), None)
        if earlier is not None:
            return Ended(earlier, duplicate=True)
    task = require_claim(run, ctx, report)
    local = _find_local(run, sequence, command)
    if local is None or local.state is not TaskState.LEASED or local.claim == claim:
        raise PreparedLocalConflict(f"call {sequence} has no attempt to recover")
    if run.cancellation is not None and run.cancellation.delivered is None:
        raise CancellationRequested("the code is asked to cancel itself")
    recovery = {
        "workflow_task_id": workflow_task_id(run, task),
        "workflow_task_attempt": task.attempt,
        "lease_owner": report.owner,
        "callback_stop_state": "unknown",
    }
    failure = Reported(
        message=f"the worker of attempt {local.attempt} was lost", exception_type="WorkerLost"
    )
    attempt_id, nonce = local.attempt_id, local.nonce
    created = None
    if local.attempt >= limits.LOCAL_ATTEMPTS_MAX:
        outcome = failed(ctx, local, failure._replace(non_retryable=True), recovery)
        event_type, event_id = outcome.event_type, end_attempt_under_lease(run, ctx, local, outcome)
    else:
        event = schedule_retry(ctx, local, failure, reason=COLD_REPLAY, recovery=recovery)
        event_type = event.event_type
        event_id, created = release_for_retry(run, ctx, task, local, event)
    end = LocalEnd(
        sequence=sequence,
        execution_id=local.execution_id,
        attempt_id=attempt_id,
        nonce=nonce,
        event_type=event_type,
        event_id=event_id,
        recorded_at=ctx.now,
        created=created,
        recovered=True,
    )
    answers_to(run, claim).keep_end(end)
    return Ended(end, duplicate=False)


def require_claim(run: Run, ctx: Context, report: TaskReport) -> WorkflowTask:
    """The leased task under which a worker may run local activities."""
    task = require_lease(run, ctx, number=report.number, owner=report.owner, attempt=report.attempt)
    if not task.prepares:
        raise PreparedLocalUnavailable(
            f"worker {report.owner} did not register for prepared local activities"
        )
    if task.kind is not TaskKind.PROGRESS:
        raise PreparedLocalConflict("an update task cannot run local activities")
    if close.overdue(run, ctx.now):
        raise RunTimedOut(f"run {run.run_id} has passed its deadline", run_status="failed")
    return task


def answers_to(run: Run, claim: Claim) -> Answers:
    """The answers under this lease; those of an earlier one are dropped."""
    if run.answers is None or run.answers.claim != claim:
        run.answers = Answers(claim)
    return run.answers


def find_checkpoint(run: Run, report: TaskReport, checkpoint_id: str) -> Checkpointed | None:
    """The earlier answer to this checkpoint under the same lease."""
    claim = Claim(report.number, report.attempt, report.owner)
    if run.answers is None or run.answers.claim != claim:
        return None
    earlier = run.answers.checkpoints.get(checkpoint_id)
    return None if earlier is None else Checkpointed(earlier, duplicate=True)


def _keep_checkpoint(
    run: Run, ctx: Context, task: WorkflowTask, checkpoint_id: str, recorded: Checkpoint
) -> Checkpointed:
    task.snapshot = run.history_count
    answers_to(run, claim_of(task)).keep_checkpoint(checkpoint_id, recorded)
    return Checkpointed(recorded, duplicate=False)


def _require_next(run: Run, sequence: int) -> None:
    """Require that the call is the next one by the worker's count."""
    last = run.next_sequence + run.repeats
    if not run.next_sequence <= sequence <= last or is_blocked(run):
        raise PreparedLocalConflict(
            f"call {sequence} is not the next one of the run, {run.next_sequence}",
            next_sequence=run.next_sequence,
        )


def _advance_to(run: Run, ctx: Context, task: WorkflowTask, sequence: int) -> None:
    """Advance to a new call of the code: close its open wait and use the worker's count."""
    close_wait_before(run, ctx, task, None)
    run.next_sequence = sequence
    if run.status is RunStatus.PENDING:
        run.status = RunStatus.WAITING


def _require_permission(run: Run, cleanup: Cleanup | None) -> None:
    """Refuse new work other than clean-up once the code is asked to cancel itself."""
    cancellation = run.cancellation
    if cancellation is not None and (cancellation.delivered is None or cleanup is None):
        raise CancellationRequested("the code is asked to cancel itself")
    if cleanup is None:
        return
    if cancellation is None or (cleanup.request_id, cleanup.event_id) != (
        cancellation.request_id,
        cancellation.delivered_event_id,
    ):
        raise PreparedLocalConflict("no cancellation was delivered that this clean-up belongs to")


def _find_local(run: Run, sequence: int, command: PrepareLocalActivity) -> LocalActivity | None:
    operation = run.operations.get(sequence)
    if operation is None and sequence >= run.next_sequence:
        return None
    if not isinstance(operation, LocalActivity) or operation.outcome is not None:
        raise PreparedLocalConflict(f"call {sequence} is not an open local activity")
    opened = (operation.activity_type, operation.cancellation_policy, operation.cleanup)
    if opened != (command.activity_type, command.cancellation_policy, command.cleanup is not None):
        raise PreparedLocalConflict(f"call {sequence} was opened with another activity")
    return operation


def _check_group(commands: Sequence[Command | PrepareLocalActivity], start: int) -> None:
    """Require exactly one group, with a local activity in it."""
    size = len(commands)
    if not 1 <= size <= limits.PREPARED_GROUP_MAX:
        raise InvalidCommands(f"a group has 1 to {limits.PREPARED_GROUP_MAX} members")
    if not any(isinstance(command, PrepareLocalActivity) for command in commands):
        raise InvalidCommands("no member of the group is a local activity")
    for index, command in enumerate(commands):
        if not isinstance(command, MEMBERS):
            raise InvalidCommands(f"member {index} cannot be in a group with local activities")
        outer = command.path[0] if command.path else {}
        claimed = (
            outer.get("parallel_group_base_sequence"),
            outer.get("parallel_group_size"),
            outer.get("parallel_group_index"),
            outer.get("parallel_group_mode"),
        )
        if claimed != (start, size, index, None):
            raise InvalidCommands(f"member {index} does not belong to this group")

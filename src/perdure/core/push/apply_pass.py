"""Application of a runner's reply to its run: all of its commands, or none."""

from collections.abc import Callable
from typing import Any, TypeAlias, assert_never

from msgspec import structs

from perdure.core import instant, limits
from perdure.core.intake.match import Match, equalities, index_of, read_match
from perdure.core.push.approval_step import ask_approval
from perdure.core.push.command import (
    AskApproval,
    AskModel,
    AwaitEvent,
    Broke,
    CallWorkflow,
    EmitEvent,
    ExtendPass,
    GiveScore,
    LogLine,
    Lost,
    PassReply,
    Progressed,
    Refused,
    ReportStep,
    Returned,
    SendWebhook,
    SkipStep,
    SleepUntil,
    StartSleep,
    StepCommand,
    StepError,
    Unreached,
)
from perdure.core.push.effect import (
    Asked,
    Called,
    Emitted,
    Listened,
    Posted,
    Scored,
    ScoredElsewhere,
)
from perdure.core.push.logs import engine_log, record_logs
from perdure.core.push.result import stored_result
from perdure.core.push.score import Score, judge
from perdure.core.push.start import trigger_of
from perdure.core.push.step import (
    CHILD,
    EMIT,
    INFER,
    NULL,
    RUN,
    SCORE,
    SKIP,
    SLEEP,
    WAIT,
    WEBHOOK,
    await_step,
    complete_step,
    fail_attempt,
    fail_step,
    find_step,
    is_held_back,
    new_step,
    push_of,
    refer_step,
    request_pass,
)
from perdure.core.push.usage import exhausted_cap, meter
from perdure.core.rejection import TooManyScores
from perdure.core.run import close
from perdure.core.run.command import CompleteRun, FailRun
from perdure.core.run.completion import TaskReport
from perdure.core.run.context import Context
from perdure.core.run.history import encode, raw, record
from perdure.core.run.lease import Lease, TaskState
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.state import WORKFLOW_TASK, Run, TaskReceipt, WorkflowTask
from perdure.core.run.status import RunStatus
from perdure.core.run.task import (
    delay_task,
    find_receipt,
    finish_task,
    release_task,
    require_lease,
    withdraw,
)


def apply_pass(
    run: Run,
    ctx: Context,
    report: TaskReport,
    reply: PassReply,
    *,
    executed_by: str,
    waits_out_backoffs: bool = False,
) -> TaskReceipt:
    """Apply a runner's reply. A repeated reply gets the recorded outcome."""
    recorded = find_receipt(run, number=report.number, owner=report.owner, attempt=report.attempt)
    if recorded is not None:
        if not _is_late_answer(run, recorded, reply):
            return recorded
        _lease_again(run, ctx, recorded)
    task = require_lease(run, ctx, number=report.number, owner=report.owner, attempt=report.attempt)
    assert task.lease is not None
    started_at = task.lease.granted_at
    push = push_of(run)
    if isinstance(reply, Unreached):
        return _release_pass(run, ctx, task, reply)
    push.executed_by, push.waits_out_backoffs = executed_by, waits_out_backoffs
    run.last_progress_at = ctx.now
    record_logs(run, ctx, reply.logs, _tries(run))
    match reply:
        case Broke() | Lost():
            return _retry_pass(run, ctx, task, reply)
        case Progressed():
            # Hold the lease until everything is applied, so that no step requests a pass early.
            steps_before = push.steps
            _progress(run, ctx, reply, started_at)
            if reply.has_ended and push.steps > steps_before and not _awaits_retry(run):
                push.is_fresh = True
            receipt = _finish(run, task)
            if not run.is_closed:
                park(run, ctx)
        case Returned():
            receipt = _finish(run, task)
            close.complete_run(run, ctx, CompleteRun(result=reply.result))
        case Refused():
            receipt = _finish(run, task)
            fail(run, ctx, reply.error)
        case _:
            assert_never(reply)
    return receipt


def _is_late_answer(run: Run, abandoned: TaskReceipt, reply: PassReply) -> bool:
    """Whether an abandoned attempt was answered after all, before the next attempt was leased."""
    task = run.task
    return (
        isinstance(reply, Progressed | Returned | Refused)
        and abandoned.outcome == "failed"
        and not run.is_closed
        and task is not None
        and (task.number, task.attempt) == (abandoned.number, abandoned.attempt)
        and task.state is not TaskState.LEASED
    )


def _lease_again(run: Run, ctx: Context, abandoned: TaskReceipt) -> None:
    task = run.task
    assert task is not None
    if task.state is TaskState.READY:
        withdraw(run, WORKFLOW_TASK)
    task.state = TaskState.LEASED
    task.lease = Lease(abandoned.owner, ctx.now, ctx.now + limits.PASS_LEASE_TIMEOUT)


def fail(run: Run, ctx: Context, error: StepError) -> None:
    """Fail a run with the error of a step or of its code."""
    close.fail_run(
        run, ctx, FailRun(message=error.message, exception=error.encoded, non_retryable=True)
    )


def error_of(message: str, reason: str | None = None) -> StepError:
    """An error that the engine raises; `reason` is a stable code for programs."""
    members = {"message": message} if reason is None else {"message": message, "reason": reason}
    return StepError(message, encode(members))


def _finish(run: Run, task: WorkflowTask) -> TaskReceipt:
    push = push_of(run)
    push.transport_failures = push.losses = 0
    return finish_task(run, task, "completed")


# Progress ---------------------------------------------------------------------------------------


def _progress(run: Run, ctx: Context, reply: Progressed, started_at: int) -> None:
    reported: set[str] = set()
    error = _extend(run, reply)
    if error is not None:
        fail(run, ctx, error)
        return
    for command in reply.commands:
        if command.step_id in reported:
            # The runner reported a step twice: the first report counts.
            continue
        reported.add(command.step_id)
        error = _apply(run, ctx, command, started_at)
        if error is not None:
            fail(run, ctx, error)
            return
    if run.history_count > ctx.bounds.history_events_max:
        close.exceed_history(run, ctx)


def _extend(run: Run, reply: Progressed) -> StepError | None:
    """Store the timeout of the next pass. A reply that only extends it again must double it."""
    push = push_of(run)
    before, push.pass_extension = push.pass_extension, None
    asked = [command.timeout for command in reply.commands if isinstance(command, ExtendPass)]
    if not asked:
        return None
    if before is not None and len(asked) == len(reply.commands) and max(asked) < 2 * before:
        return error_of("the runner asked for a longer pass again without using the last one")
    push.pass_extension, push.is_fresh = max(asked), True
    return None


def park(run: Run, ctx: Context) -> None:
    """After a pass: request the next one if a step is ready, else wait for the open steps."""
    push = push_of(run)
    if push.pause is not None:
        run.status = RunStatus.PAUSED
        return
    if push.is_fresh and not is_held_back(run):
        request_pass(run, ctx)
        return
    awaited = _awaited(run)
    if not awaited:
        fail(run, ctx, error_of("the runner returned no result and no step to wait for"))
        return
    if all(step.approval is not None for step in awaited):
        run.status = RunStatus.NEEDS_ATTENTION
    else:
        run.status = RunStatus.WAITING
    record(run, ctx, "RunParked", {"status": run.status.value})


def _awaits_retry(run: Run) -> bool:
    """Whether a step is in backoff. Other open steps need not delay the end of a run."""
    steps = run.operations.values()
    return any(isinstance(s, PushStep) and s.state is StepState.BACKOFF for s in steps)


def _awaited(run: Run) -> list[PushStep]:
    waits = (StepState.WAITING, StepState.BACKOFF)
    steps = run.operations.values()
    return [step for step in steps if isinstance(step, PushStep) and step.state in waits]


def _apply(run: Run, ctx: Context, command: StepCommand, started_at: int) -> StepError | None:
    """Apply one command. Returns the error that fails the run, if any."""
    step = find_step(run, command.step_id)
    if isinstance(command, ReportStep):
        return _report(run, ctx, step, command, started_at)
    if step is not None or isinstance(command, ExtendPass):
        # The step is open or finished: asking for it again does not restart it.
        return None
    if push_of(run).steps >= limits.STEPS_PER_RUN_MAX:
        return error_of(f"a run may have {limits.STEPS_PER_RUN_MAX} steps")
    _OPENING[type(command)](run, ctx, command)
    return None


def _report(
    run: Run, ctx: Context, step: PushStep | None, command: ReportStep, started_at: int
) -> StepError | None:
    if step is None:
        if push_of(run).steps >= limits.STEPS_PER_RUN_MAX:
            return error_of(f"a run may have {limits.STEPS_PER_RUN_MAX} steps")
        step = new_step(run, ctx, command.step_id, command.name, RUN)
    elif step.state is StepState.FINISHED or step.kind != RUN:
        return None
    else:
        step.attempt += 1
        push_of(run).current = step.name
    # Some runners send the retry policy of a step only with its result, so the last one is kept.
    step.retry = command.retry or step.retry
    _charge(run, ctx, step, command)
    if command.error is not None:
        return fail_attempt(run, ctx, step, command, started_at)
    details = {
        "started_at": instant.text(started_at),
        "input": raw(command.input),
        "ai": raw(command.ai),
        "usage": raw(command.usage),
    }
    if command.stored is None:
        complete_step(run, ctx, step, command.result or NULL, details)
    else:
        stored = command.stored
        reference = stored_result(run, stored.size_bytes, stored.sha256)
        refer_step(run, ctx, step, reference, details)
    return None


def _charge(run: Run, ctx: Context, step: PushStep, command: ReportStep) -> None:
    if command.metered is not None:
        meter(run, ctx, command.metered)
    elif command.usage not in (None, NULL):
        # The step has run: dropping its result would cost more than its missing usage.
        warning = "the usage that this step reported is not valid and is not counted"
        engine_log(run, ctx, step.name, step.attempt, warning)


def _skip(run: Run, ctx: Context, command: SkipStep) -> None:
    step = new_step(run, ctx, command.step_id, command.name, SKIP)
    complete_step(run, ctx, step, NULL, {"reason": raw(command.reason)})


def _sleep(run: Run, ctx: Context, command: StartSleep) -> None:
    step = new_step(run, ctx, command.step_id, command.name, SLEEP)
    step.fire_at = ctx.now + command.delay
    await_step(run, ctx, step, {})


def _sleep_until(run: Run, ctx: Context, command: SleepUntil) -> None:
    step = new_step(run, ctx, command.step_id, command.name, SLEEP)
    step.fire_at = command.until
    await_step(run, ctx, step, {})


def _wait(run: Run, ctx: Context, command: AwaitEvent) -> None:
    step = new_step(run, ctx, command.step_id, command.name, WAIT)
    step.event_name, step.event_filter = command.event_name, command.filter
    step.event_match = command.match
    index = index_of(_equalities(run, command))
    if command.timeout is not None:
        step.fire_at = ctx.now + command.timeout
    details = {
        "event_name": command.event_name,
        "filter": command.filter,
        "match": raw(command.match),
    }
    await_step(run, ctx, step, details)
    listened = Listened(run, step.sequence, command.event_name, begins=True)
    if index is not None:
        step.event_index = index.key
        listened = structs.replace(listened, index=index.key, paths=index.paths)
    run.unsaved.effects.append(listened)


def _equalities(run: Run, command: AwaitEvent) -> Match:
    """The members of an event that must equal given values for the wait to match."""
    if command.match is not None:
        return read_match(command.match)
    return {} if command.filter is None else equalities(command.filter, trigger_of(run))


def _call(run: Run, ctx: Context, command: CallWorkflow) -> None:
    step = new_step(run, ctx, command.step_id, command.name, CHILD)
    await_step(run, ctx, step, {"workflow": command.workflow, "app": command.app})
    run.unsaved.effects.append(Called(run, step.sequence, command))


def _emit(run: Run, ctx: Context, command: EmitEvent) -> None:
    step = new_step(run, ctx, command.step_id, command.name, EMIT)
    complete_step(run, ctx, step, NULL, {"event_name": command.event_name})
    run.unsaved.effects.append(Emitted(run, command))


def _post(run: Run, ctx: Context, command: SendWebhook) -> None:
    step = new_step(run, ctx, command.step_id, command.name, WEBHOOK)
    complete_step(run, ctx, step, NULL, {"url": command.url})
    run.unsaved.effects.append(Posted(run, command))


def _infer(run: Run, ctx: Context, command: AskModel) -> None:
    step = new_step(run, ctx, command.step_id, command.name, INFER)
    exhausted = exhausted_cap(push_of(run))
    if exhausted is not None:
        fail_step(run, ctx, step, error_of(f"the cap of the run is reached: {exhausted}"))
        return
    await_step(run, ctx, step, {"model": command.model})
    run.unsaved.effects.append(Asked(run, step.sequence, command))


def _score(run: Run, ctx: Context, command: GiveScore) -> None:
    step = new_step(run, ctx, command.step_id, command.name, SCORE)
    if command.run_id not in (None, run.run_id):
        await_step(run, ctx, step, {"run_id": command.run_id})
        run.unsaved.effects.append(ScoredElsewhere(run, step.sequence, command))
        return
    try:
        judge(run, command.judgement)
    except TooManyScores as refusal:
        fail_step(run, ctx, step, error_of(refusal.message))
        return
    complete_step(run, ctx, step, NULL)
    score = Score(
        run_id=run.run_id,
        judgement=command.judgement,
        created_at=ctx.now,
        scorer=run.workflow_type,
    )
    run.unsaved.effects.append(Scored(run, score))


Opening: TypeAlias = Callable[[Run, Context, Any], None]

_OPENING: dict[type, Opening] = {
    SkipStep: _skip,
    StartSleep: _sleep,
    SleepUntil: _sleep_until,
    AwaitEvent: _wait,
    CallWorkflow: _call,
    EmitEvent: _emit,
    SendWebhook: _post,
    AskModel: _infer,
    AskApproval: ask_approval,
    GiveScore: _score,
}
"""How each command opens its step. `_report` handles reports."""


# Failed passes ----------------------------------------------------------------------------------


def _release_pass(run: Run, ctx: Context, task: WorkflowTask, reply: Unreached) -> TaskReceipt:
    """No runner accepted the pass: release it, as if it had never been sent."""
    push = push_of(run)
    if push.pause is not None:
        push.is_fresh, run.status = True, RunStatus.PAUSED
        return finish_task(run, task, "unreached")
    assert task.lease is not None
    receipt = TaskReceipt(task.number, task.attempt, task.lease.owner, "unreached", [])
    run.last_task = receipt
    task.failure_message = reply.error.message
    release_task(run, ctx)
    return receipt


def _retry_pass(run: Run, ctx: Context, task: WorkflowTask, reply: Broke | Lost) -> TaskReceipt:
    push = push_of(run)
    if isinstance(reply, Broke) and not reply.is_charged:
        receipt = finish_task(run, task, "no_progress")
        if push.is_fresh:
            request_pass(run, ctx)
        else:
            park(run, ctx)
        return receipt
    push.errors += 1
    if isinstance(reply, Lost):
        push.losses += 1
        tries, is_last = push.losses, push.losses >= limits.PASS_LOSSES_MAX
    else:
        push.transport_failures += 1
        tries = push.transport_failures
        is_last = tries >= limits.PASS_TRIES_MAX
    delay = min(limits.PASS_BACKOFF << (tries - 1), limits.PASS_BACKOFF_MAX)
    record(
        run,
        ctx,
        "PassFailed",
        {
            "message": reply.error.message,
            "tries": tries,
            "runner": push.executed_by,
            "next_try_at": None if is_last else instant.text(ctx.now + delay),
        },
    )
    if is_last or push.pause is not None:
        receipt = finish_task(run, task, "failed")
        if is_last:
            fail(run, ctx, reply.error)
        else:
            # Resuming the run requests it again.
            push.is_fresh, run.status = True, RunStatus.PAUSED
        return receipt
    assert task.lease is not None
    receipt = TaskReceipt(task.number, task.attempt, task.lease.owner, "failed", [])
    run.last_task = receipt
    delay_task(run, ctx, task, delay)
    return receipt


# Logs -------------------------------------------------------------------------------------------


def _tries(run: Run) -> Callable[[LogLine], int]:
    """The attempt that a line belongs to: of the run for the root scope, else of the step."""
    attempts: dict[str, int] | None = None

    def attempt(line: LogLine) -> int:
        nonlocal attempts
        if line.scope == "@root":
            return push_of(run).attempt
        if attempts is None:
            steps = (s for s in run.operations.values() if isinstance(s, PushStep) and s.is_open)
            attempts = {step.name: step.attempt for step in steps}
        return attempts.get(line.scope, 0) + 1

    return attempt

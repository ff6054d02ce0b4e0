"""The steps of a push run: opening, retrying, finishing and cancelling them.

An open run keeps all its steps, because every pass needs them. Changes of steps are recorded at
once, even during a pass: the runner replays the memo that it was sent, not the history.
"""

from typing import Any

from perdure.core import instant
from perdure.core.external import Reference
from perdure.core.push.command import ReportStep, StepError
from perdure.core.push.effect import ApprovalMoved, Broken, Listened, Offloaded, ResultsGrew
from perdure.core.push.logs import engine_log
from perdure.core.push.result import is_stored_apart, member_of, recorded, reference_of
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.effect import CloseChild
from perdure.core.run.history import Raw, encode, raw, record
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.push import Push, StepRetry
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.core.run.task import request_task

RUN, SLEEP, WAIT, CHILD, EMIT, SKIP = "run", "sleep", "wait", "child", "emit", "skip"
WEBHOOK, INFER, APPROVAL, SCORE = "webhook", "infer", "approval", "score"
NULL = b"null"


def push_of(run: Run) -> Push:
    """The push state of a run that is a push run."""
    assert run.push is not None, f"run {run.run_id} is no push run"
    return run.push


def find_step(run: Run, step_id: str) -> PushStep | None:
    """A step by its hashed id."""
    if len(run.places) != len(run.operations):
        run.places = {o.identity: place for place, o in run.operations.items()}
    place = run.places.get(step_id)
    step = None if place is None else run.operations.get(place)
    assert step is None or isinstance(step, PushStep)
    return step


def new_step(run: Run, ctx: Context, step_id: str, name: str, kind: str) -> PushStep:
    """Open a new step at the next sequence."""
    push = push_of(run)
    step = PushStep(
        sequence=run.next_sequence, step_id=step_id, name=name, kind=kind, opened_at=ctx.now
    )
    find_step(run, step_id)
    run.next_sequence += 1
    run.operations[step.sequence] = step
    run.places[step_id] = step.sequence
    run.unsaved.operations.add(step.sequence)
    push.steps += 1
    push.current = name
    return step


def await_step(run: Run, ctx: Context, step: PushStep, details: dict[str, Any]) -> None:
    """Record a step that waits for the engine, at most until its deadline."""
    record(
        run,
        ctx,
        "StepOpened",
        {**identity(step), "fire_at": instant.text_or_none(step.fire_at), **details},
    )
    arm(run, step.fire_at)


def finish_step(
    run: Run,
    ctx: Context,
    step: PushStep,
    member: bytes,
    details: dict[str, Any],
    *,
    stored: Reference | None = None,
) -> None:
    """Record the result of a step, which every later pass receives. `member` is like `"data":…`."""
    keep_result(run, ctx, step, member, stored)
    run.unsaved.operations.add(step.sequence)
    record(run, ctx, "StepCompleted", {**identity(step), "attempt": step.attempt, **details})
    _stop_listening(run, step)
    request_pass(run, ctx)


def complete_step(
    run: Run, ctx: Context, step: PushStep, data: bytes, details: dict[str, Any] | None = None
) -> None:
    """Finish a step with a value. A large one is stored apart from the run."""
    if is_stored_apart(push_of(run), data):
        reference = reference_of(run, data)
        run.unsaved.effects.append(Offloaded(run, reference, data))
        refer_step(run, ctx, step, reference, details)
        return
    finish_step(run, ctx, step, b'"data":' + data, {"output": Raw(data), **(details or {})})


def refer_step(
    run: Run,
    ctx: Context,
    step: PushStep,
    reference: Reference,
    details: dict[str, Any] | None = None,
) -> None:
    """Finish a step with a value that is stored apart from the run."""
    members = {"output_ref": recorded(reference), **(details or {})}
    finish_step(run, ctx, step, member_of(reference), members, stored=reference)


def keep_result(
    run: Run, ctx: Context, step: PushStep, member: bytes, stored: Reference | None
) -> None:
    """Store the memo entry of a step, and add its size to the results of the run."""
    push = push_of(run)
    step.state, step.fire_at = StepState.FINISHED, None
    step.entry = b"%b:{%b}" % (encode(step.step_id), member)
    step.payload = stored
    push.memo_bytes += len(step.entry)
    before = push.result_bytes
    push.result_bytes += len(member.partition(b":")[2]) if stored is None else stored.size_bytes
    most = ctx.bounds.step_results_bytes_max
    if push.result_bytes <= most:
        warned_from = ctx.bounds.warns_from(most)
        if not before < warned_from <= push.result_bytes:
            return
        warning = f"step results use {push.result_bytes} of {most} bytes; above it the run fails"
        engine_log(run, ctx, step.name, step.attempt, warning)
    run.unsaved.effects.append(ResultsGrew(run, push.result_bytes, most))


def fail_step(run: Run, ctx: Context, step: PushStep, error: StepError) -> None:
    """Finish a step with an error that the code may catch."""
    finish_step(run, ctx, step, b'"error":' + error.encoded, {"error": Raw(error.encoded)})


def fail_attempt(
    run: Run, ctx: Context, step: PushStep, command: ReportStep, started_at: int
) -> StepError | None:
    """Record a failed attempt of a step. Returns the error if it was the last attempt."""
    push, error = push_of(run), command.error
    assert error is not None
    push.errors += 1
    policy = step.retry or push.retry
    run.unsaved.operations.add(step.sequence)
    details = {
        **identity(step),
        "attempt": step.attempt,
        "started_at": instant.text(started_at),
        "error": Raw(error.encoded),
        "input": raw(command.input),
    }
    if not command.is_retriable or step.attempt >= policy.attempts_max:
        step.state, step.fire_at = StepState.FINISHED, None
        record(run, ctx, "StepFailed", {**details, "will_retry": False})
        run.unsaved.effects.append(Broken(run, step, error))
        return error
    wait = command.retry_after
    delay = retry_delay(policy, step.attempt) if wait is None else wait
    step.state, step.fire_at = StepState.BACKOFF, ctx.now + delay
    next_at = instant.text(step.fire_at)
    record(run, ctx, "StepFailed", {**details, "will_retry": True, "next_attempt_at": next_at})
    arm(run, step.fire_at)
    return None


def retry_delay(policy: StepRetry, attempt: int) -> int:
    """How long to wait after a failed attempt; attempts count from 1."""
    delay = policy.initial_delay
    if policy.backoff == "linear":
        delay *= attempt
    elif policy.backoff == "exponential":
        delay <<= min(attempt - 1, 40)
    return delay if policy.max_delay is None else min(delay, policy.max_delay)


def cancel_open_steps(run: Run, ctx: Context) -> None:
    """Cancel the open steps of a closing run, with their children, approvals and event waits."""
    for _, step in sorted(run.operations.items()):
        if not isinstance(step, PushStep) or not step.is_open:
            continue
        if step.child_run_id is not None:
            reason = "the run that called it has closed"
            run.unsaved.effects.append(CloseChild(step.child_run_id, "request_cancel", reason))
        if step.approval is not None:
            dropped = ApprovalMoved(run, step.approval.approval_id, "cancelled")
            run.unsaved.effects.append(dropped)
        _stop_listening(run, step)
        record(run, ctx, "StepCancelled", {**identity(step), "attempt": step.attempt})


def _stop_listening(run: Run, step: PushStep) -> None:
    if step.event_name is not None:
        ended = Listened(run, step.sequence, step.event_name, begins=False, index=step.event_index)
        run.unsaved.effects.append(ended)


def request_pass(run: Run, ctx: Context) -> None:
    """Request a pass, because a step became ready that the last pass did not include."""
    push = push_of(run)
    push.is_fresh = True
    if push.pause is not None or is_held_back(run):
        return
    if run.status is not RunStatus.PENDING:
        run.status = RunStatus.RUNNING
    request_task(run, ctx)


def is_held_back(run: Run) -> bool:
    """Whether the next pass must wait for a backoff to end.

    Some runners answer only with a new step, and hang in a pass whose steps are all in backoff.
    """
    if not push_of(run).waits_out_backoffs:
        return False
    states = {step.state for step in run.operations.values() if isinstance(step, PushStep)}
    if StepState.WAITING in states or StepState.RUNNABLE in states:
        return False
    return StepState.BACKOFF in states


def identity(step: PushStep) -> dict[str, Any]:
    """The members that every event of a step has."""
    return {
        "index": step.sequence - 1,
        "step_id": step.step_id,
        "name": step.name,
        "kind": step.kind,
    }

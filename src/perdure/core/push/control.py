"""Operator control of push runs: pause, resume, and carrying finished steps into a new run."""

from typing import Any

from msgspec import Struct

from perdure.core.external import Reference
from perdure.core.push.result import recorded
from perdure.core.push.step import keep_result, new_step, push_of
from perdure.core.rejection import RunNotActive
from perdure.core.run.context import Context
from perdure.core.run.history import Raw, record
from perdure.core.run.lease import TaskState
from perdure.core.run.push import Pause
from perdure.core.run.state import WORKFLOW_TASK, Run
from perdure.core.run.status import RunStatus
from perdure.core.run.task import request_task, withdraw

MANUAL = "manual"
"""The pause reason of a run that a client paused."""


class Carried(Struct, frozen=True):
    """A finished step that a new run takes over: `member` is its memo entry."""

    step_id: str
    name: str
    kind: str
    member: bytes
    stored: Reference | None = None
    """Where the result is stored, if the memo only refers to it."""


def require_open(run: Run) -> None:
    """Refuse a command to a closed run."""
    if run.is_closed:
        raise RunNotActive(f"run {run.run_id} is closed", run_id=run.run_id)


def pause_run(run: Run, ctx: Context, *, reason: str, detail: str | None = None) -> bool:
    """Stop requesting passes of a run. The reply of a pass under way is still applied.

    Returns whether anything changed. A manual pause replaces a budget's, so that the end of the
    budget window does not resume the run.
    """
    require_open(run)
    push = push_of(run)
    if push.pause is not None and push.pause.reason in (reason, MANUAL):
        return False
    push.pause = Pause(reason, ctx.now, detail)
    task = run.task
    if task is not None and task.state is not TaskState.LEASED:
        if task.state is TaskState.READY:
            withdraw(run, WORKFLOW_TASK)
        run.task = None
    run.status = RunStatus.PAUSED
    record(run, ctx, "RunPaused", {"reason": reason, "detail": detail})
    return True


def resume_run(run: Run, ctx: Context) -> None:
    """Resume a paused run; its next pass includes the steps that became ready meanwhile."""
    push = push_of(run)
    if run.is_closed or push.pause is None:
        raise RunNotActive(f"run {run.run_id} is not paused", run_id=run.run_id)
    if push.meters is not None and push.pause.reason != MANUAL:
        # An explicit resume overrides the budget for the rest of the run.
        push.meters.is_waived = True
    release_run(run, ctx)


def release_run(run: Run, ctx: Context) -> None:
    """Continue a paused run because the cause of its pause is over."""
    push_of(run).pause = None
    run.status = RunStatus.PENDING
    record(run, ctx, "RunResumed", {})
    if run.task is None:
        request_task(run, ctx)


def carry_steps(run: Run, ctx: Context, carried: list[Carried]) -> None:
    """Give a new run the finished steps of an older one."""
    for finished in carried:
        step = new_step(run, ctx, finished.step_id, finished.name, finished.kind)
        keep_result(run, ctx, step, finished.member, finished.stored)
        record(
            run,
            ctx,
            "StepCompleted",
            {
                "index": step.sequence - 1,
                "step_id": finished.step_id,
                "name": finished.name,
                "kind": finished.kind,
                "attempt": 1,
                "carried": True,
                **_outcome(finished),
            },
        )


def _outcome(finished: Carried) -> dict[str, Any]:
    if finished.stored is not None:
        return {"output_ref": recorded(finished.stored)}
    name, _, value = finished.member.partition(b":")
    return {"output" if name == b'"data"' else "error": Raw(value)}

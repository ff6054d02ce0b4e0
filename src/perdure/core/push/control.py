"""What people do to push runs: pause them, let them go on, begin them once more."""

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
"""Why a run stands still that somebody paused."""


class Carried(Struct, frozen=True):
    """A finished step that a new run takes over: `member` is what its memo says."""

    step_id: str
    name: str
    kind: str
    member: bytes
    stored: Reference | None = None
    """Where the result is stored, if the memo only refers to it."""


def require_open(run: Run) -> None:
    """Refuse to command a run that is over."""
    if run.is_closed:
        raise RunNotActive(f"run {run.run_id} is over", run_id=run.run_id)


def pause_run(run: Run, ctx: Context, *, reason: str, detail: str | None = None) -> bool:
    """Let nobody work on a run any more. A pass under way is still taken in.

    Whether anything changed: a run that is paused stays so, but what somebody pauses by hand no
    window of a budget lets go on.
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
    """Let a paused run go on; what became ready meanwhile is seen at once."""
    push = push_of(run)
    if run.is_closed or push.pause is None:
        raise RunNotActive(f"run {run.run_id} is not paused", run_id=run.run_id)
    if push.meters is not None and push.pause.reason != MANUAL:
        # Somebody wants it to go on, whatever it costs.
        push.meters.is_waived = True
    release_run(run, ctx)


def release_run(run: Run, ctx: Context) -> None:
    """Let a paused run go on because what it was paused for is over."""
    push_of(run).pause = None
    run.status = RunStatus.PENDING
    record(run, ctx, "RunResumed", {})
    if run.task is None:
        request_task(run, ctx)


def carry_steps(run: Run, ctx: Context, carried: list[Carried]) -> None:
    """Give a new run the finished steps of an older one."""
    for one in carried:
        step = new_step(run, ctx, one.step_id, one.name, one.kind)
        keep_result(run, ctx, step, one.member, one.stored)
        record(
            run,
            ctx,
            "StepCompleted",
            {
                "index": step.sequence - 1,
                "step_id": one.step_id,
                "name": one.name,
                "kind": one.kind,
                "attempt": 1,
                "carried": True,
                **_outcome(one),
            },
        )


def _outcome(one: Carried) -> dict[str, Any]:
    if one.stored is not None:
        return {"output_ref": recorded(one.stored)}
    name, _, value = one.member.partition(b":")
    return {"output" if name == b'"data"' else "error": Raw(value)}

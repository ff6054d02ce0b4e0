"""Deadlines of push steps: retries, approval timeouts, sleeps and event waits."""

from perdure.core.push.approval_step import time_out_approval
from perdure.core.push.step import NULL, WAIT, complete_step, push_of, request_pass
from perdure.core.run.context import Context
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.state import Run


def fire_step(run: Run, ctx: Context, step: PushStep) -> None:
    """Apply the deadline of a step."""
    if step.state is StepState.BACKOFF:
        step.state, step.fire_at = StepState.RUNNABLE, None
        run.unsaved.operations.add(step.sequence)
        push_of(run).attempt += 1
        request_pass(run, ctx)
        return
    if step.approval is not None:
        time_out_approval(run, ctx, step)
        return
    complete_step(run, ctx, step, NULL, {"timed_out": True if step.kind == WAIT else None})

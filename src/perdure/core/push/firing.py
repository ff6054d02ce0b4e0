"""What happens to a step of a push run when its time has come."""

from perdure.core.push.asking import time_out_approval
from perdure.core.push.step import NULL, WAIT, become_fresh, complete_step, push_of
from perdure.core.run.moment import Moment
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.state import Run


def fire_step(run: Run, moment: Moment, step: PushStep) -> None:
    """The time of a step has come."""
    if step.state is StepState.BACKOFF:
        step.state, step.fire_at = StepState.RUNNABLE, None
        run.unsaved.operations.add(step.sequence)
        push_of(run).attempt += 1
        become_fresh(run, moment)
        return
    if step.approval is not None:
        time_out_approval(run, moment, step)
        return
    complete_step(run, moment, step, NULL, {"timed_out": True if step.kind == WAIT else None})

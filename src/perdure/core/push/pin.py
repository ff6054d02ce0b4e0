"""Pinned runs: only one runner may execute them, and it may never come back.

While a pass of a pinned run waits, the run is checked after each grace period until the runner
takes the pass or its registration shows that it is gone.
"""

from perdure.core.limits import PIN_GRACE
from perdure.core.push.effect import Pinned
from perdure.core.run.deadline import arm
from perdure.core.run.lease import TaskState
from perdure.core.run.state import Run


def check_pin(run: Run, now: int) -> None:
    """Schedule the check of a pinned run that has changed and whose pass waits."""
    push = run.push
    assert push is not None
    if push.pin_look_at is None and _waits(run):
        push.pin_look_at = now + PIN_GRACE
        arm(run, push.pin_look_at)


def fire_pin(run: Run, now: int) -> None:
    """The check is due: request one for the runner if the pass still waits."""
    push = run.push
    if push is None or push.pin_look_at is None or push.pin_look_at > now:
        return
    push.pin_look_at = None
    if _waits(run):
        run.unsaved.effects.append(Pinned(run))


def _waits(run: Run) -> bool:
    return run.task is not None and run.task.state is TaskState.READY

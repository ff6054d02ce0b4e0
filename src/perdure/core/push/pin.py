"""Pinned runs: only one runner will do, and it may be gone for good.

A run whose pass waits for its runner is looked at again after a grace, and again, until the runner
takes it or is known to be gone. Whether it is, the registrations tell.
"""

from perdure.core.limits import PIN_GRACE
from perdure.core.push.effect import Pinned
from perdure.core.run.deadline import arm
from perdure.core.run.lease import TaskState
from perdure.core.run.state import Run


def check_pin(run: Run, now: int) -> None:
    """Have a pinned run that has changed looked at later, if its pass waits by then."""
    push = run.push
    assert push is not None
    if push.pin_look_at is None and _waits(run):
        push.pin_look_at = now + PIN_GRACE
        arm(run, push.pin_look_at)


def fire_pin(run: Run, now: int) -> None:
    """The time of a run has come: ask for its runner, if that is what it waits for."""
    push = run.push
    if push is None or push.pin_look_at is None or push.pin_look_at > now:
        return
    push.pin_look_at = None
    if _waits(run):
        run.unsaved.effects.append(Pinned(run))


def _waits(run: Run) -> bool:
    return run.task is not None and run.task.state is TaskState.READY

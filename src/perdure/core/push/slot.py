"""Concurrency slots of push runs: requested before a pass, held while passes run.

Checked after every change of a run, so that no other rule has to handle slots.
"""

from perdure.core.limits import SLOT_RELOOK
from perdure.core.push.effect import LeavesSlot, WantsSlot
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.lease import TaskState
from perdure.core.run.state import WORKFLOW_TASK, Run
from perdure.core.run.task import withdraw


def needs_no_slot(run: Run) -> bool:
    """Whether no pass is needed now: the run is closed, parked, or delayed before a retry."""
    push, task = run.push, run.task
    if run.is_closed or task is None:
        return True
    return push is not None and push.has_slot and task.state is TaskState.DELAYED


def lacks_slot(run: Run) -> bool:
    """Whether passes of a run need a slot that it does not have."""
    return run.push is not None and run.push.slot is not None and not run.push.has_slot


def check_slot(run: Run, ctx: Context) -> WantsSlot | LeavesSlot | None:
    """The slot request or release of a changed run. A pass without a slot is held back."""
    push, task = run.push, run.task
    if push is None or push.slot is None:
        return None
    if needs_no_slot(run):
        return LeavesSlot(run) if push.has_slot or push.turn is not None else None
    assert task is not None
    if push.has_slot or task.state is not TaskState.READY:
        return None
    return WantsSlot(run, hold_back(run, ctx))


def hold_back(run: Run, ctx: Context) -> int:
    """Delay a ready pass; returns since when it has been ready."""
    task = run.task
    assert task is not None
    since = max(0, task.available_at)
    task.state = TaskState.DELAYED
    # A run that releases its slot admits this one; the deadline is a fallback.
    task.available_at = ctx.now + SLOT_RELOOK
    withdraw(run, WORKFLOW_TASK)
    arm(run, task.available_at)
    return since

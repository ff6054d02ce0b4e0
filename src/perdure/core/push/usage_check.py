"""Checks of budgets and token throttles before a pass.

Made after every change of a run, so that no other rule has to handle meters.
"""

from msgspec import structs

from perdure.core.push.control import pause_run
from perdure.core.push.effect import WantsMeter
from perdure.core.push.slot import hold_back
from perdure.core.run.context import Context
from perdure.core.run.lease import TaskState
from perdure.core.run.push import Meters
from perdure.core.run.state import Run
from perdure.core.run.task import hasten_task


def check_pace(run: Run, ctx: Context) -> WantsMeter | None:
    """The throttle request of a run that has not started. It is held back until the answer."""
    meters = meters_of(run)
    if meters is None or meters.is_paced or not _is_ready(run):
        return None
    return WantsMeter(run, hold_back(run, ctx))


def check_budget(run: Run, ctx: Context) -> WantsMeter | None:
    """The budget request of a run with a ready pass. The pass is held back until the answer."""
    meters, task = meters_of(run), run.task
    if meters is None or meters.budget is None or meters.is_waived or not _is_ready(run):
        return None
    assert task is not None
    return None if meters.cleared == task.number else WantsMeter(run, hold_back(run, ctx))


def _is_ready(run: Run) -> bool:
    task = run.task
    return not run.is_closed and task is not None and task.state is TaskState.READY


def meters_of(run: Run) -> Meters | None:
    """The meters of a run, if it has any."""
    return None if run.push is None else run.push.meters


def clear_pass(run: Run, ctx: Context) -> None:
    """Release the pass that was held back, and remember that it was cleared."""
    meters, task = meters_of(run), run.task
    assert meters is not None
    assert task is not None
    meters.cleared = task.number
    hasten_task(run, ctx, {})


def pause_for_budget(run: Run, ctx: Context, turn: str, detail: str) -> None:
    """Pause a run until the window of its budget has moved on."""
    meters = meters_of(run)
    assert meters is not None
    meters.turn = turn
    pause_run(run, ctx, reason="budget", detail=detail)


def once_more(meters: Meters | None) -> Meters | None:
    """A copy of a run's meters for another run that no throttle delays."""
    if meters is None:
        return None
    return Meters(budget=meters.budget, pace=meters.pace, is_paced=True)


def unhindered(meters: Meters | None) -> Meters | None:
    """A copy of a run's meters for a run that is charged and never stopped."""
    free = once_more(meters)
    return None if free is None else structs.replace(free, is_waived=True)

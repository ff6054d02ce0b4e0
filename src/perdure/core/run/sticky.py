"""Workers that keep the histories of runs: they are preferred, and nobody waits for them.

What a worker keeps is its own affair. It is told whether we expect it to have a history; the whole
history is offered all the same, so a wrong expectation costs nothing but time.
"""

from perdure.core.run.context import Context
from perdure.core.run.state import Run
from perdure.core.run.state_parts import StickyWorker

HIT_EXPECTED = "sticky_hit_expected"
COLD = "cold_replay"


def note_holder(run: Run, ctx: Context, worker_id: str, keeps_for: int | None) -> None:
    """The worker that completed a task says for how long it keeps the run, if it does."""
    held = keeps_for is not None and not run.is_closed
    run.holder = StickyWorker(worker_id, ctx.now + (keeps_for or 0)) if held else None


def find_holder(run: Run, now: int) -> str | None:
    """The worker that would be spared a replay."""
    holder = run.holder
    return None if holder is None or holder.until <= now else holder.worker_id


def replay_mode(run: Run, now: int, worker_id: str) -> str:
    """What a worker that keeps histories is told when it takes the next task."""
    return HIT_EXPECTED if find_holder(run, now) == worker_id else COLD

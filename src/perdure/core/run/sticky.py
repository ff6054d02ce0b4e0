"""Sticky workers: they cache histories of runs and are preferred, but no task waits for them.

The task says whether its worker is expected to have the history cached; the whole history is
offered in any case, so a wrong expectation costs only time.
"""

from perdure.core.run.context import Context
from perdure.core.run.state import Run
from perdure.core.run.state_parts import StickyWorker

HIT_EXPECTED = "sticky_hit_expected"
COLD = "cold_replay"


def note_sticky_worker(run: Run, ctx: Context, worker_id: str, keeps_for: int | None) -> None:
    """Note for how long the worker that completed a task caches the run, if it does."""
    held = keeps_for is not None and not run.is_closed
    run.holder = StickyWorker(worker_id, ctx.now + (keeps_for or 0)) if held else None


def find_sticky_worker(run: Run, now: int) -> str | None:
    """The worker that has the history cached, if any."""
    holder = run.holder
    return None if holder is None or holder.until <= now else holder.worker_id


def replay_mode(run: Run, now: int, worker_id: str) -> str:
    """The replay mode that is sent to a caching worker with the next task."""
    return HIT_EXPECTED if find_sticky_worker(run, now) == worker_id else COLD

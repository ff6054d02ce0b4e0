"""How the run of a standalone activity ends: with its activity, and without any code."""

from perdure.core.run.close import complete_run, fail_run
from perdure.core.run.command import CompleteRun, FailRun
from perdure.core.run.context import Context
from perdure.core.run.history import record_encoded
from perdure.core.run.operation import Held
from perdure.core.run.state import Run


def complete_host(run: Run, ctx: Context, outcome: Held, ending: CompleteRun) -> None:
    """The activity has a result, which is the run's."""
    record_encoded(run, ctx, outcome.event_type, outcome.payload)
    complete_run(run, ctx, ending)


def fail_host(run: Run, ctx: Context, outcome: Held, ending: FailRun, *, category: str) -> None:
    """The activity failed for good, and the run with it."""
    assert run.hosted is not None
    source = ("activity_execution", run.hosted.execution_id)
    record_encoded(run, ctx, outcome.event_type, outcome.payload)
    fail_run(run, ctx, ending, category=category, source=source)

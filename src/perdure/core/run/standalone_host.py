"""End of the run of a standalone activity, together with its activity."""

from perdure.core.run.close import complete_run, fail_run
from perdure.core.run.command import CompleteRun, FailRun
from perdure.core.run.context import Context
from perdure.core.run.history import record_encoded
from perdure.core.run.operation import Held
from perdure.core.run.state import Run


def complete_host(run: Run, ctx: Context, outcome: Held, ending: CompleteRun) -> None:
    """Complete the run with the result of its activity."""
    record_encoded(run, ctx, outcome.event_type, outcome.payload)
    complete_run(run, ctx, ending)


def fail_host(run: Run, ctx: Context, outcome: Held, ending: FailRun, *, category: str) -> None:
    """Fail the run after the last attempt of its activity failed."""
    assert run.hosted is not None
    source = ("activity_execution", run.hosted.execution_id)
    record_encoded(run, ctx, outcome.event_type, outcome.payload)
    fail_run(run, ctx, ending, category=category, source=source)

"""How long closed runs are kept, built from the settings."""

from collections.abc import Collection

from perdure.clock import Clock
from perdure.core.limits import SECOND
from perdure.core.run.state import Dialect
from perdure.dispatch.deadlines import DeadlineLoop
from perdure.engine.beat import Engine
from perdure.features.retention.loops import Retention, RunPruner
from perdure.features.retention.operations import LEFTOVER, ClearLeftover
from perdure.server.settings import Settings


def make_pruner(
    settings: Settings,
    engine: Engine,
    clock: Clock,
    deadlines: DeadlineLoop,
    namespaces: Collection[str],
) -> RunPruner:
    """Who removes closed runs that are older than the settings say."""
    # Also without a rule: somebody may have died over what there was to remove.
    deadlines.on_record(LEFTOVER.name, lambda key: ClearLeftover(key, relook=SECOND))
    rules: list[Retention] = []
    if settings.history_retention:
        rules.append(Retention(Dialect.PULL, settings.history_retention, lambda: namespaces))
    if settings.run_retention is not None:
        pushed = {settings.default_namespace}
        rules.append(Retention(Dialect.PUSH, settings.run_retention, lambda: pushed))
    return RunPruner(engine, clock, rules)

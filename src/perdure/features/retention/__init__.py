"""Retention: closed runs are removed when they are older than the settings allow."""

from collections.abc import Collection

from perdure.clock import Clock
from perdure.core.limits import SECOND
from perdure.core.run.state import Dialect
from perdure.engine.beat import Engine
from perdure.engine.registry import Extension
from perdure.features.feature import Feature, Kernel, Parts
from perdure.features.retention.loops import Retention, RunPruner
from perdure.features.retention.operations import LEFTOVER, ClearLeftover
from perdure.features.retention.routes import SystemRetention
from perdure.features.retention.settings import RetentionSettings
from perdure.protocols.durable_workflow.routes import ADMIN
from perdure.web.routing import Route


def make_pruner(
    settings: RetentionSettings, engine: Engine, clock: Clock, namespaces: Collection[str]
) -> RunPruner:
    """Removes the closed runs that are older than the settings allow."""
    rules: list[Retention] = []
    if settings.history_retention:
        rules.append(Retention(Dialect.PULL, settings.history_retention, lambda: namespaces))
    if settings.run_retention is not None:
        pushed = {settings.default_namespace}
        rules.append(Retention(Dialect.PUSH, settings.run_retention, lambda: pushed))
    return RunPruner(engine, clock, rules)


def _build(kernel: Kernel, settings: RetentionSettings) -> Parts:
    pruner = make_pruner(settings, kernel.engine, kernel.clock, kernel.namespaces)
    surface = kernel.control_surface
    system = SystemRetention(kernel.engine, pruner, surface, settings.history_retention)
    path = "/api/system/retention"
    return Parts(
        routes=[
            Route("GET", path, ADMIN, system.surface, system.show),
            Route("POST", f"{path}/pass", ADMIN, system.surface, system.enforce),
        ],
        loops=[("pruning", pruner)],
    )


FEATURE: Feature[RetentionSettings] = Feature(
    # Due also without a rule: a process may have died before it had removed everything.
    extension=Extension(
        name="retention",
        when_due={LEFTOVER.name: lambda key: ClearLeftover(key, relook=SECOND)},
    ),
    build=_build,
)

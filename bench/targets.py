"""What each store is hoped to reach on the reference machine; people judge the distance."""

from dataclasses import dataclass
from typing import Final

from bench.report import Target, at_least, at_most


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the common table; those of a single measure stand beside it."""

    workflow_rate: Target | None = None
    workflow_cpu: Target | None = None
    activity_rate: Target | None = None
    latency_p50: Target | None = None
    latency_p99: Target | None = None
    wide_group: Target | None = None
    parked_memory: Target | None = None
    parked_cpu: Target | None = None
    time_to_ready: Target | None = None
    idle_memory: Target | None = None
    workflow_bytes: Target | None = None


NO_TARGETS: Final = Targets()
SQLITE: Final = Targets(
    workflow_rate=at_least(1000),
    workflow_cpu=at_most(1.0),
    activity_rate=at_least(2500),
    latency_p50=at_most(4),
    latency_p99=at_most(15),
    wide_group=at_most(1000),
    parked_memory=at_most(150),
    parked_cpu=at_most(2),
    time_to_ready=at_most(1),
    idle_memory=at_most(100),
    workflow_bytes=at_most(6),
)
POSTGRESQL_ONE_PROCESS: Final = Targets(workflow_cpu=at_most(2.5), latency_p50=at_most(8))
POSTGRESQL: Final = Targets(
    workflow_rate=at_least(600), workflow_cpu=at_most(2.5), latency_p50=at_most(8)
)
"""Processor time of the server and of the database together."""

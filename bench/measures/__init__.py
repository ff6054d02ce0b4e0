"""The measurements, by letter: each starts its own servers and returns its figures."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from bench.measures import (
    fan_out,
    footprint,
    hints,
    history,
    idle_nodes,
    latency,
    long_run,
    parked,
    queries,
    throughput,
)
from bench.report import Figure
from bench.setup import Setup

Measure = Callable[[Setup], Awaitable[list[Figure]]]

MEASURES: Final[Mapping[str, Measure]] = {
    "a": throughput.measure_workflows,
    "b": throughput.measure_activities,
    "c": latency.measure,
    "d": fan_out.measure,
    "e": long_run.measure,
    "f": parked.measure,
    "g": footprint.measure,
    "h": history.measure,
    "k": queries.measure,
}

NODE_MEASURES: Final[Mapping[str, Measure]] = {
    "i": hints.measure,
    "j": idle_nodes.measure,
}
"""Those that start several nodes themselves, which only PostgreSQL allows."""

"""The measurements, by letter: each starts its own servers and returns its figures."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from bench.measures import (
    bare,
    fan_out,
    footprint,
    hints,
    history,
    idle_nodes,
    latency,
    long_run,
    parked,
    push_events,
    push_rates,
    push_waiting,
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
    "l": push_rates.measure_connect,
    "m": push_rates.measure_serve,
    "n": push_events.measure_ingest,
    "o": push_waiting.measure_wake,
    "p": push_events.measure_fan_out,
    "q": push_waiting.measure_long_run,
    "z": bare.measure,
}

NODE_MEASURES: Final[Mapping[str, Measure]] = {
    "i": hints.measure,
    "j": idle_nodes.measure,
}
"""Those that start several nodes themselves, which only PostgreSQL allows."""

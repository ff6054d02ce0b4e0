"""(c) how long one workflow with one activity takes on an otherwise idle server."""

import statistics
import time
from collections.abc import Sequence

from bench.client import Connection
from bench.report import Figure
from bench.setup import Setup
from bench.worker import Worker, sequence_of, working


async def measure(setup: Setup) -> list[Figure]:
    """From the start request to the acknowledged completion of the last workflow task."""
    count, repetitions = setup.pick(500, 100), setup.pick(5, 2)
    # Two pollers of each kind: one holds the task while the other is parked, as in the SDK, which
    # polls again before it has run what it got.
    async with setup.server() as server, working(server, sequence_of(1), pollers=2) as worker:
        connection = server.connect()
        try:
            await _latencies(connection, worker, count // 2)
            series = [await _latencies(connection, worker, count) for _ in range(repetitions)]
        finally:
            connection.close()
    assumed = setup.targets
    note = f"{repetitions} × {count} samples"
    return [
        Figure("c", "1 in flight, p50", "ms", _percentiles(series, 50), assumed.latency_p50, note),
        Figure("c", "1 in flight, p99", "ms", _percentiles(series, 99), assumed.latency_p99, note),
    ]


async def _latencies(connection: Connection, worker: Worker, count: int) -> list[float]:
    latencies = []
    for _ in range(count):
        started_at = time.perf_counter()
        await worker.run_workflow(connection)
        latencies.append(1e3 * (time.perf_counter() - started_at))
    return latencies


def _percentiles(series: Sequence[Sequence[float]], percent: int) -> tuple[float, ...]:
    return tuple(statistics.quantiles(one, n=100)[percent - 1] for one in series)

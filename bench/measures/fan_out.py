"""(d) how long a workflow takes that schedules all its activities in one completion."""

import time
from typing import Final

from bench.report import Figure, Target
from bench.setup import Setup
from bench.worker import fan_out_of, working

POLLERS: Final = 32


async def measure(setup: Setup) -> list[Figure]:
    """Parallel groups of 100 and of 1,000 activities, from start to completion."""
    return [
        await _measure_group(setup, 100),
        await _measure_group(setup, 1000, target=setup.targets.wide_group),
    ]


async def _measure_group(setup: Setup, size: int, *, target: Target | None = None) -> Figure:
    repetitions = setup.pick(7, 2)
    async with (
        setup.server() as server,
        working(server, fan_out_of(size), pollers=POLLERS) as worker,
    ):
        connection = server.connect()
        samples = []
        try:
            await worker.run_workflow(connection)
            for _ in range(repetitions):
                started_at = time.perf_counter()
                await worker.run_workflow(connection)
                samples.append(1e3 * (time.perf_counter() - started_at))
        finally:
            connection.close()
    return Figure("d", f"fan-out of {size:,} activities", "ms", tuple(samples), target)

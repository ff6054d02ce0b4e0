"""(h) how fast an operator can read a page of a long history."""

import time
from typing import Final

from bench import wire
from bench.report import Figure
from bench.setup import Setup
from bench.worker import fan_out_of, working

ACTIVITIES: Final = 500
PAGE_SIZE: Final = 1000
POLLERS: Final = 16


async def measure(setup: Setup) -> list[Figure]:
    """The first thousand events of a closed run, again and again."""
    readings = setup.pick(200, 20)
    async with (
        setup.server() as server,
        working(server, fan_out_of(ACTIVITIES), pollers=POLLERS) as worker,
    ):
        connection = server.connect()
        try:
            run = wire.decode_started(await worker.run_workflow(connection))
            request = wire.read_history(run, page_size=PAGE_SIZE)
            size = len(await connection.send(request))
            samples = []
            for _ in range(readings):
                started_at = time.perf_counter()
                await connection.send(request)
                samples.append(1e3 * (time.perf_counter() - started_at))
        finally:
            connection.close()
    note = f"{size / 1e3:,.0f} KB a page"
    return [Figure("h", f"history page of {PAGE_SIZE:,} events", "ms", tuple(samples), note=note)]

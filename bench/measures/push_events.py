"""(n) events a second, with nothing to start and with one run each; (p) one event for a hundred."""

import time

from bench.push import drained, flood, runner, send
from bench.report import Figure, at_least
from bench.runner import FAN_WIDTH
from bench.server import Server
from bench.setup import Setup

UNMATCHED = at_least(5000)


async def measure_ingest(setup: Setup) -> list[Figure]:
    """How fast events are taken."""
    repetitions = setup.pick(5, 2)
    count = setup.pick(10_000, 1000)
    async with setup.server() as server, runner(server):
        unmatched = [await _ingest(server, "bench.nobody", count) for _ in range(repetitions)]
        matched = []
        for _ in range(repetitions):
            matched.append(await _ingest(server, "bench.sink", count // 5))
            await _settle(server)
    return [
        Figure("n", "events that match nothing", "events/s", tuple(unmatched), UNMATCHED),
        Figure("n", "events that start a run", "events/s", tuple(matched)),
    ]


async def measure_fan_out(setup: Setup) -> list[Figure]:
    """From the event to the end of the last of its runs."""
    repetitions = setup.pick(20, 3)
    async with setup.server() as server, runner(server):
        connection = server.connect()
        taken = []
        try:
            for _ in range(repetitions):
                started_at = time.perf_counter()
                await send(connection, "bench.fan")
                await drained(connection)
                taken.append(1e3 * (time.perf_counter() - started_at))
        finally:
            connection.close()
    return [Figure("p", f"one event for {FAN_WIDTH} workflows, all ended", "ms", tuple(taken))]


async def _ingest(server: Server, name: str, count: int) -> float:
    started_at = time.perf_counter()
    await flood(server, name, count)
    return count / (time.perf_counter() - started_at)


async def _settle(server: Server) -> None:
    connection = server.connect()
    try:
        await drained(connection)
    finally:
        connection.close()

"""(l, m) how many runs and steps a second one runner process is given, connected and served."""

import time

from bench.push import drained, flood, listening, runner, send
from bench.report import Figure, at_least, at_most, known
from bench.server import Server
from bench.setup import Setup

RUNS = at_least(1000)
STEPS = at_least(3000)
LATENCY = at_most(5)
PERCENT = 50


async def measure_connect(setup: Setup) -> list[Figure]:
    """Over the runner's own WebSocket."""
    return await _measure(setup, "l", "connect")


async def measure_serve(setup: Setup) -> list[Figure]:
    """Over HTTP requests to the runner."""
    return await _measure(setup, "m", "serve")


async def _measure(setup: Setup, letter: str, over: str) -> list[Figure]:
    repetitions = setup.pick(5, 2)
    singles, tens = setup.pick(3000, 400), setup.pick(600, 100)
    async with setup.server() as server, runner(server, over=over):
        await _rate(server, "one", singles // 4)
        ones = [await _rate(server, "one", singles) for _ in range(repetitions)]
        steps = [await _rate(server, "ten", tens) for _ in range(repetitions)]
        waits = [await _median(server, setup.pick(300, 60)) for _ in range(repetitions)]
    assumed = over == "connect"
    return [
        Figure(
            letter,
            f"1-step push runs, {over}",
            "runs/s",
            tuple(rate for rate, _ in ones),
            RUNS if assumed else None,
        ),
        Figure(letter, f"server CPU per 1-step run, {over}", "ms", known(cpu for _, cpu in ones)),
        Figure(
            letter,
            f"10-step push runs, {over}",
            "steps/s",
            tuple(10 * rate for rate, _ in steps),
            STEPS if assumed else None,
        ),
        Figure(
            letter,
            f"1-step push run, one in flight, p50, {over}",
            "ms",
            tuple(waits),
            LATENCY if assumed else None,
        ),
    ]


async def _rate(server: Server, workflow: str, count: int) -> tuple[float, float | None]:
    """Runs per second from the first event to the last end, and the server's CPU for each."""
    connection = server.connect()
    try:
        before = server.read_usage()
        await flood(server, f"bench.{workflow}", count)
        await drained(connection, workflow)
        spent = server.read_usage().since(before)
    finally:
        connection.close()
    return count / spent.wall, spent.server_milliseconds_each(count)


async def _median(server: Server, count: int) -> float:
    connection = server.connect()
    latencies = []
    try:
        async with listening(server) as ends:
            for _ in range(count):
                started_at = time.perf_counter()
                accepted = await send(connection, "bench.one")
                assert accepted.runId is not None
                await ends.of(accepted.runId)
                latencies.append(1e3 * (time.perf_counter() - started_at))
    finally:
        connection.close()
    return sorted(latencies)[len(latencies) * PERCENT // 100]

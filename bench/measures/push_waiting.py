"""(o) how soon an event wakes a waiting run; (q) what a late step costs beside an early one."""

import statistics
import time

from bench.push import ended, runner, send
from bench.report import Figure, at_most
from bench.setup import Setup

WAKE = at_most(5)
RATIO = at_most(3)
SEEN = 50
"""How many steps at each end of a long run are compared."""


async def measure_wake(setup: Setup) -> list[Figure]:
    """From sending the event to the first line of code behind the wait."""
    repetitions, count = setup.pick(5, 2), setup.pick(100, 20)
    series = []
    async with setup.server() as server, runner(server):
        connection = server.connect()
        try:
            for repetition in range(repetitions):
                delays = []
                for number in range(count):
                    data = {"id": f"{repetition}-{number}"}
                    accepted = await send(connection, "bench.wait", data)
                    assert accepted.runId is not None
                    while True:
                        sent_at = time.perf_counter()
                        if (await send(connection, "bench.wake", data)).woke:
                            break
                    run = await ended(connection, accepted.runId)
                    delays.append(1e3 * (run.result - sent_at))
                series.append(statistics.median(delays))
        finally:
            connection.close()
    return [Figure("o", "event to woken run, p50", "ms", tuple(series), WAKE)]


async def measure_long_run(setup: Setup) -> list[Figure]:
    """Milliseconds per step, at the beginning and at the end of one run."""
    repetitions, steps = setup.pick(5, 2), 500
    early, late = [], []
    async with setup.server() as server, runner(server):
        connection = server.connect()
        try:
            for _ in range(repetitions):
                accepted = await send(connection, "bench.long", {"steps": steps})
                assert accepted.runId is not None
                moments = (await ended(connection, accepted.runId)).result
                early.append(1e3 * (moments[SEEN] - moments[0]) / SEEN)
                late.append(1e3 * (moments[-1] - moments[-1 - SEEN]) / SEEN)
        finally:
            connection.close()
    ratios = tuple(end / begin for begin, end in zip(early, late, strict=True))
    return [
        Figure("q", f"step of a push run, first {SEEN}", "ms", tuple(early)),
        Figure("q", f"step of a push run, last {SEEN} of {steps}", "ms", tuple(late)),
        Figure("q", "late step to early step", "×", ratios, RATIO),
    ]

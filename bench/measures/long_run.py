"""(e) what a step costs in a workflow with a long history, read in full or only its tail.

A server whose cost per step grows with the history is quadratic in the length of a run. `full` must
grow (the whole history is sent at each step); `tail` should not.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from bench.process import Spent
from bench.report import Figure, known
from bench.server import Server
from bench.setup import Setup
from bench.worker import FullHistory, History, Program, TailHistory, sequence_of, working

WARM_UP_STEPS: Final = 100
CELL_TIMEOUT: Final = 90.0
CELL_BUDGET: Final = 30.0

MODES: Final[tuple[tuple[str, Callable[[], History]], ...]] = (
    ("full", lambda: FullHistory(page_size=1000)),
    ("tail", TailHistory),
)


async def measure(setup: Setup) -> list[Figure]:
    """Cost per step of 100 to 2,000 sequential activities, for both ways of reading."""
    lengths = (100, 300) if setup.quick else (100, 500, 1000, 2000)
    repetitions = setup.pick(5, 2)
    figures: list[Figure] = []
    for mode, new_history in MODES:
        async with setup.server() as server:
            await _run_cell(server, sequence_of(WARM_UP_STEPS), new_history(), repetitions=1)
            for steps in lengths:
                runs = await _run_cell(
                    server, sequence_of(steps), new_history(), repetitions=repetitions
                )
                figures += _figures(runs, steps, mode=mode)
    return figures


async def _run_cell(
    server: Server, program: Program, history: History, *, repetitions: int
) -> list[Spent]:
    """As many repetitions as the budget allows; none when the first one exceeds the timeout."""
    runs: list[Spent] = []
    async with working(server, program, pollers=2, history=history) as worker:
        connection = server.connect()
        try:
            async with asyncio.timeout(CELL_TIMEOUT):
                while len(runs) < repetitions and sum(run.wall for run in runs) < CELL_BUDGET:
                    before = server.read_usage()
                    await worker.run_workflow(connection)
                    runs.append(server.read_usage().since(before))
        except TimeoutError:
            pass
        finally:
            connection.close()
    return runs


def _figures(runs: list[Spent], steps: int, *, mode: str) -> list[Figure]:
    note = f"n = {len(runs)}" if runs else f"not done in {CELL_TIMEOUT:g} s"
    label = f"{mode} history, {steps:,} steps"
    server_cpu = known(run.server_milliseconds_each(steps) for run in runs)
    wall = tuple(1e3 * run.wall / steps for run in runs)
    return [
        Figure("e", f"server CPU per step, {label}", "ms", server_cpu, note=note),
        Figure("e", f"wall per step, {label}", "ms", wall, note=note),
    ]

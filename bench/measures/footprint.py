"""(g) what a server takes: time to be ready, memory, and disk per workflow."""

import asyncio
from typing import Final

from bench.load import loading
from bench.process import resident_bytes
from bench.report import Figure, known
from bench.server import Store
from bench.setup import Setup
from bench.worker import sequence_of, working

IN_FLIGHT: Final = 64
POLLERS: Final = 32
WINDOW: Final = 1000
REST_SECONDS: Final = 1.0
MEGABYTE: Final = 1e6
KILOBYTE: Final = 1e3


async def measure(setup: Setup) -> list[Figure]:
    """Fresh starts, then ten thousand workflows, a clean stop, and a start on what is left."""
    fresh = [await _start_and_rest(setup) for _ in range(setup.pick(5, 2))]
    assumed = setup.targets
    figures = [
        Figure(
            "g", "time to ready", "s", tuple(ready for ready, _ in fresh), assumed.time_to_ready
        ),
        Figure("g", "RSS idle", "MB", known(rss for _, rss in fresh), assumed.idle_memory),
    ]
    async with setup.store() as store:
        figures += await _measure_growth(setup, store, setup.pick(10_000, 1000))
    return figures


async def _start_and_rest(setup: Setup) -> tuple[float, float | None]:
    async with setup.server() as server:
        await asyncio.sleep(REST_SECONDS)
        return server.seconds_to_ready, _megabytes(resident_bytes(server.pid))


async def _measure_growth(setup: Setup, store: Store, count: int) -> list[Figure]:
    async with setup.serving(store) as server:
        done = 0
        async with (
            working(server, sequence_of(1), pollers=POLLERS) as worker,
            loading(server, worker, in_flight=IN_FLIGHT) as load,
        ):
            for _ in range(count // WINDOW):
                done += (await load.window(WINDOW)).workflows
        await asyncio.sleep(REST_SECONDS)
        resident = _megabytes(resident_bytes(server.pid))
        seconds_to_stop = await server.stop()
    size = store.bytes_on_disk()
    async with setup.serving(store) as server:
        seconds_to_restart = server.seconds_to_ready
    label = f"after {done:,} workflows"
    assumed = setup.targets
    per_workflow = None if size is None else size / KILOBYTE / done
    return [
        Figure("g", f"RSS {label}", "MB", known([resident])),
        Figure("g", "database per workflow", "KB", known([per_workflow]), assumed.workflow_bytes),
        Figure("g", f"clean stop {label}", "s", (seconds_to_stop,)),
        Figure("g", f"time to ready {label}", "s", (seconds_to_restart,)),
    ]


def _megabytes(size: int | None) -> float | None:
    return None if size is None else size / MEGABYTE

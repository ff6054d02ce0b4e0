"""(a) workflows per second with one activity each; (b) activities per second, ten in sequence."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.load import Window, loading
from bench.measures.bare import REFERENCE_MICROSECONDS, bare_server
from bench.process import Spent
from bench.report import Figure, Target, known
from bench.setup import Setup
from bench.targets import NO_TARGETS, Targets
from bench.worker import sequence_of, working

FEW_POLLS: Final = 48
TURN_SECONDS: Final = 0.6
SETTLING_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Shape:
    """A steady load: activities per workflow, workflows in flight, completions per window.

    As many polls of each kind as workflows, so that every task finds one; or fewer, and tasks wait.
    """

    activities: int
    in_flight: int
    window_count: int
    polls: int | None = None


async def measure_workflows(setup: Setup) -> list[Figure]:
    """Seven requests each: a start, then polls and completions of three tasks."""
    return [
        *await _measure_level(setup, 64, count=3000, assumed=setup.targets),
        *await _measure_level(setup, 256, count=3000),
        *await _measure_level(setup, 8, count=1500),
    ]


async def _measure_level(
    setup: Setup,
    in_flight: int,
    *,
    count: int,
    assumed: Targets = NO_TARGETS,
) -> list[Figure]:
    windows = await _run(setup, Shape(1, in_flight, window_count=setup.pick(count, 300)))
    samples = _Samples.of([(window.workflows, window.spent) for window in windows])
    label = f"{in_flight} in flight"
    return [
        Figure("a", f"1-activity workflows, {label}", "wf/s", samples.rates, assumed.workflow_rate),
        *samples.cpu_figures("a", f"per workflow, {label}", assumed.workflow_cpu),
        Figure("a", f"client CPU per workflow, {label}", "ms", samples.client_cpu),
    ]


async def measure_activities(setup: Setup) -> list[Figure]:
    """Ten activities one after another, at levels that the target does not choose between.

    The rate of a server is what it does when more waits than it can do, so the target stands there.
    """
    return [
        *await _measure_sequences(setup, 256, assumed=setup.targets),
        *await _measure_sequences(setup, 64),
        *await _measure_sequences(setup, 256, polls=FEW_POLLS),
        *([] if setup.processes else await _measure_by_turns(setup, 256)),
    ]


async def _measure_by_turns(setup: Setup, in_flight: int) -> list[Figure]:
    """Activities and bare exchanges by turns of less than a second.

    A shared machine is half as fast again in one second as in the next. What an activity costs in
    bare exchanges of the same second says how fast the server would be on another machine.
    """
    exchanges, ratios, scaled = [], [], []
    async with (
        bare_server() as bare,
        setup.server() as server,
        working(server, sequence_of(10), pollers=in_flight) as worker,
        loading(server, worker, in_flight=in_flight),
    ):
        await asyncio.sleep(setup.pick(3, 1))
        turns: list[tuple[float, float | None]] = []
        for _ in range(setup.pick(40, 4) + 1):
            worker.may_send.clear()
            await asyncio.sleep(SETTLING_SECONDS)
            await bare.exchange(50)  # It has not run for a while, either.
            _, exchange = await bare.exchange(200)
            exchanges.append(exchange)
            worker.may_send.set()
            await asyncio.sleep(SETTLING_SECONDS)
            done, before = worker.activities_completed, server.read_usage()
            await asyncio.sleep(TURN_SECONDS)
            spent, done = server.read_usage().since(before), worker.activities_completed - done
            turns.append((done / spent.wall, spent.server_milliseconds_each(done)))
    for (rate, cost), earlier, later in zip(turns, exchanges, exchanges[1:], strict=False):
        if cost is not None and earlier is not None and later is not None:
            meanwhile = (earlier + later) / 2
            ratios.append(1e3 * cost / meanwhile)
            scaled.append(rate * meanwhile / REFERENCE_MICROSECONDS)
    level = f"{in_flight} in flight, by turns with z"
    return [
        Figure("b", f"server CPU per activity, {level}", "exchanges", tuple(ratios)),
        Figure(
            "b",
            f"activities if an exchange took {REFERENCE_MICROSECONDS:g} µs, {level}",
            "activities/s",
            tuple(scaled),
            setup.targets.activity_rate,
        ),
    ]


async def _measure_sequences(
    setup: Setup, in_flight: int, *, polls: int | None = None, assumed: Targets = NO_TARGETS
) -> list[Figure]:
    count = setup.pick(500, 100) * in_flight // 64
    windows = await _run(setup, Shape(10, in_flight, window_count=count, polls=polls))
    # Workflows of ten steps tend to march and to end together, so that a window of completed
    # workflows says little; the activities completed meanwhile are what was really done.
    samples = _Samples.of([(window.activities, window.spent) for window in windows])
    level = f"{in_flight} in flight" + (f", {polls} polls" if polls else "")
    return [
        Figure(
            "b",
            f"10-activity workflows, {level}",
            "activities/s",
            samples.rates,
            assumed.activity_rate,
        ),
        *samples.cpu_figures("b", f"per activity, {level}", None),
        Figure("b", f"client CPU per activity, {level}", "ms", samples.client_cpu),
    ]


async def _run(setup: Setup, shape: Shape) -> list[Window]:
    async with (
        setup.server() as server,
        working(
            server, sequence_of(shape.activities), pollers=shape.polls or shape.in_flight
        ) as worker,
        loading(server, worker, in_flight=shape.in_flight) as load,
    ):
        await load.window(shape.window_count)
        return [await load.window(shape.window_count) for _ in range(setup.pick(5, 2))]


@dataclass(frozen=True, slots=True)
class _Samples:
    rates: tuple[float, ...]
    server_cpu: tuple[float, ...]
    database_cpu: tuple[float, ...]
    client_cpu: tuple[float, ...]

    @staticmethod
    def of(windows: Sequence[tuple[int, Spent]]) -> "_Samples":
        """From how many were done in each window, and what that took."""
        return _Samples(
            rates=tuple(count / spent.wall for count, spent in windows),
            server_cpu=known(spent.server_milliseconds_each(count) for count, spent in windows),
            database_cpu=known(spent.database_milliseconds_each(count) for count, spent in windows),
            client_cpu=tuple(spent.client_milliseconds_each(count) for count, spent in windows),
        )

    def cpu_figures(self, bench: str, label: str, target: Target | None) -> list[Figure]:
        """The server's CPU, or the server's and the database's, whose sum is what counts."""
        server = Figure(bench, f"server CPU {label}", "ms", self.server_cpu)
        if not self.database_cpu:
            return [replace(server, target=target)]
        both = tuple(map(sum, zip(self.server_cpu, self.database_cpu, strict=True)))
        return [
            Figure(bench, f"server and database CPU {label}", "ms", both, target),
            server,
            Figure(bench, f"database CPU {label}", "ms", self.database_cpu),
        ]

"""The SDK's cache of histories, switched on."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import Worker

from tests.sdk import programs
from tests.sdk.cases.registry import case
from tests.sdk.sdk_harness import SHUTDOWN_TIMEOUT, Stage, working


def keeper(stage: Stage) -> Worker:
    return Worker(
        stage.client,
        task_queue=stage.queue,
        workflows=[programs.BY_NAME[name] for name in stage.known],
        activities=programs.ACTIVITIES,
        sticky_cache_capacity=10,
        shutdown_timeout=SHUTDOWN_TIMEOUT,
    )


@case("sticky-cache", "counting", worker=False)
async def sticky_cache(stage: Stage) -> None:
    """Two workers that keep histories; most replays begin where the worker was."""
    one, two = keeper(stage), keeper(stage)
    async with working(one), working(two):
        runs = [await stage.start("counting", 1, 6) for _ in range(4)]
        for run in runs:
            assert await run.result() == [1, 2, 3, 4, 5, 6, 7]
        metrics = [worker.sticky_cache_metrics() for worker in (one, two)]

    assert sum(metric["hit"] for metric in metrics) > 0, metrics


@case("sticky-cache-lost", "counting", "long-haul", worker=False)
async def sticky_cache_lost(stage: Stage) -> None:
    """A worker that kept the run is gone; another one replays it cold."""
    async with working(keeper(stage)):
        run = await stage.start("long-haul")
        await run.event("ConditionWaitOpened")
    await run.signal("go")
    async with working(keeper(stage)):
        assert await run.result() == 40

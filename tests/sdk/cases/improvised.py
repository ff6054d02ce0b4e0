"""Plans that nobody thought of: they must come to their end, and replay to the same one."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
import contextlib
import os
from random import Random
from typing import Any

from durable_workflow import DurableWorkflowError

from tests.sdk.cases.cancellation import cooperative
from tests.sdk.cases.registry import case
from tests.sdk.improvising import SEED, Oracle, make_plan, simplified
from tests.sdk.release import since
from tests.sdk.sdk_harness import GLANCE, Run, Stage, rest

PLANS = int(os.environ.get("PERDURE_PLANS", "40"))
"""More of them: `PERDURE_PLANS=100`."""


@case("improvised", "improvised")
async def improvised(stage: Stage) -> None:
    chance = Random(SEED)
    plans = [make_plan(chance) for _ in range(PLANS)]
    runs = [await stage.start("improvised", plan) for plan in plans]
    ends = asyncio.gather(*(run.result() for run in runs))
    # The gates of 0.4 break when they are true before they are reached.
    if since("2.0.0"):
        await _knock(chance, runs, ends)

    results = await ends

    oracle = Oracle()
    # Losers that were left may have children of their own to end.
    await asyncio.gather(*(rest(run) for run in runs))
    for plan, result in zip(plans, results, strict=True):
        assert oracle.foresees(plan, result), f"{plan} led to {result}"


@case("improvised-cancelled", "improvised", "improvised-tidy", worker=False)
async def improvised_cancelled(stage: Stage) -> None:
    """Asked to cancel itself anywhere, the code tidies up, once."""
    chance = Random(SEED)
    async with cooperative(stage):
        plans = [simplified(make_plan(chance)) for _ in range(PLANS)]
        tidying = [simplified(make_plan(chance, top=False)) for _ in plans]
        runs = [
            await stage.start("improvised-tidy", *both) for both in zip(plans, tidying, strict=True)
        ]
        ends = asyncio.gather(*(_cancelled(run, chance.random() * 2) for run in runs))
        await _knock(chance, runs, ends)
        results = await ends
        await asyncio.gather(*(rest(run) for run in runs))

    oracle = Oracle()
    for plan, tidy, result in zip(plans, tidying, results, strict=True):
        if isinstance(result, dict):
            done = plan[: len(result["told"])]
            good = oracle.foresees(done, result["told"]) and oracle.foresees(tidy, result["tidied"])
        else:
            good = oracle.foresees(plan, result)
        assert good, f"{plan} and {tidy} led to {result}"


async def _cancelled(run: Run, after: float) -> Any:
    await asyncio.sleep(after)
    with contextlib.suppress(DurableWorkflowError):
        await run.client.request_workflow_cancellation(run.workflow_id, reason="enough")
    return await run.result()


async def _knock(chance: Random, runs: list[Run], ends: "asyncio.Future[Any]") -> None:
    """Signals and updates, to runs that may be over."""
    while not ends.done():
        run = chance.choice(runs)
        with contextlib.suppress(DurableWorkflowError):
            if chance.random() < 0.5:
                await run.signal("knock")
            else:
                await run.client.update_workflow(run.workflow_id, "count")
        await asyncio.sleep(GLANCE / 4)

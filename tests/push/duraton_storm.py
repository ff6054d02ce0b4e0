"""Runs of the published SDK while their engine is killed: says when they began and how they end.

Runs in an environment that has the SDK and nothing of ours.
"""

import asyncio
import json
import sys
from typing import Any

import httpx
from duraton import define_workflow  # type: ignore[import-not-found]
from duraton.connect import Runner  # type: ignore[import-not-found]

from tests.support import absent  # noqa: F401 (what it does, it does when imported)

RUNS = 20
STEPS = 12
PATIENCE_SECONDS = 90.0


async def climb(ctx: Any) -> Any:
    total = 0
    for number in range(STEPS):
        total += await ctx.step.run(f"step {number}", lambda number=number: number)
        if number % 4 == 3:
            await ctx.step.sleep(f"rest {number}", 150)
    return [ctx.event.data["n"], total]


async def ended(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    while True:
        try:
            run: dict[str, Any] = (await http.get(f"/runs/{run_id}")).json()
            if run["status"] in ("succeeded", "failed", "cancelled"):
                steps = (await http.get(f"/runs/{run_id}/steps")).json()
                return {**run, "steps": [(step["name"], step["status"]) for step in steps]}
        except (httpx.HTTPError, KeyError):
            pass
        await asyncio.sleep(0.1)


async def main(url: str) -> None:
    runner = Runner(
        [define_workflow("climb", climb)],
        url=url,
        app="storm",
        runner="r1",
        reconnect_initial_ms=50,
        reconnect_max_ms=200,
    )
    async with runner, httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        while not (await http.get("/runners")).json():
            pass
        runs = []
        for number in range(RUNS):
            event = {"name": "climb", "data": {"n": number}}
            runs.append((await http.post("/events", json=event)).json()["runId"])
        print("begun", flush=True)
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = await asyncio.gather(*(ended(http, run_id) for run_id in runs))
        told = [(run["status"], run.get("result"), len(run["steps"])) for run in found]
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

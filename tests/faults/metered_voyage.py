"""Push runs that use up tokens within limits, two of them in each other's way.

`tight` runs find a slot, a throttle and a budget that are used up most of the time, and go on when
there is room. `wide` ones never reach a limit, and their windows forget nothing.
"""

from typing import Any

from tests.faults.push_voyage import Code, Json, PushVoyage, step_id

TOKENS = 10
"""What every call uses up."""
STEPS = ("draft", "ask")
RUNS = {"tight": 2, "wide": 1}
HOUR_MS = 3_600_000


def _limited(name: str, slots: int, tokens: int, window_ms: int) -> Json:
    return {
        "name": name,
        "concurrency": {"limit": slots},
        "budget": {"windowMs": window_ms, "maxTokens": tokens},
        "tokenThrottle": {"tokens": tokens, "perMs": window_ms},
        "cap": {"maxTokens": 1_000},
    }


class MeteredCode(Code):
    """A call of the runner's own, then one of the engine."""

    workflows = (_limited("tight", 1, TOKENS // 2, 200), _limited("wide", 2, 1_000, HOUR_MS))

    def found(self, context: Json, memo: Json) -> object:
        known = [name for name in STEPS if step_id(name) in memo]
        assert context["spent"]["tokens"] == TOKENS * len(known), "each call is counted once"
        if "draft" not in known:
            return [{**self.opcode({"op": "StepRun", "name": "draft"}), "usage": _used()}]
        if "ask" not in known:
            asked = {"messages": [{"role": "user", "content": "why?"}]}
            return [self.opcode({"op": "Infer", "name": "ask", "data": asked})]
        return "done"


def _used() -> Json:
    return {"model": "m-1", "tokensIn": TOKENS}


class MeteredVoyage(PushVoyage):
    """All of them, from their events to their ends."""

    async def play(self) -> Json:
        for name, number in RUNS.items():
            for n in range(number):
                await self.call("POST", "/events", {"name": name, "dedupeId": f"{name} {n}"})
        runs = await self.until("/runs", _are_over)
        steps = {run["id"]: await self.rows(f"/runs/{run['id']}/steps") for run in runs}
        flow = await self.call("GET", "/flow-state")
        spend = await self.call("GET", "/ai/spend")
        return {"runs": runs, "steps": steps, "flow": flow, "spend": spend}


def _are_over(runs: list[dict[str, Any]]) -> bool:
    return len(runs) == sum(RUNS.values()) and all("endedAt" in run for run in runs)

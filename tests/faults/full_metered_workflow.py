"""Push runs that use up tokens within limits, two of them in each other's way.

`tight` runs find a slot, a throttle and a budget that are used up most of the time, and go on when
there is room. `wide` ones never wait for any, and their windows forget nothing; but what each of
them may use is used up by its two calls, and it wants a third.
"""

from typing import Any

from tests.faults.full_push_workflow import Code, Json, PushVoyage, step_id

TOKENS = 10
"""What every call uses up."""
STEPS = ("draft", "ask")
BEYOND = "more"
"""The call that nobody may make."""
RUNS = {"tight": 2, "wide": 1}
HOUR_MS = 3_600_000


def _limited(name: str, slots: int, tokens: int, window_ms: int, *, cap: int) -> Json:
    return {
        "name": name,
        "concurrency": {"limit": slots},
        "budget": {"windowMs": window_ms, "maxTokens": tokens},
        "tokenThrottle": {"tokens": tokens, "perMs": window_ms},
        "cap": {"maxTokens": cap},
    }


class MeteredCode(Code):
    """A call of the runner's own, then one of the engine."""

    workflows = (
        _limited("tight", 1, TOKENS // 2, 200, cap=1_000),
        _limited("wide", 2, 1_000, HOUR_MS, cap=TOKENS * len(STEPS)),
    )

    def found(self, context: Json, memo: Json) -> object:
        calls = (*STEPS, BEYOND)
        known = [name for name in calls if "data" in memo.get(step_id(name), {})]
        assert context["spent"]["tokens"] == TOKENS * len(known), "each call is counted once"
        if "draft" not in known:
            return [{**self.opcode({"op": "StepRun", "name": "draft"}), "usage": _used()}]
        if "ask" not in known:
            return [self._ask("ask")]
        if context["workflow"] == "wide" and step_id(BEYOND) not in memo:
            return [self._ask(BEYOND)]
        return "done"

    def _ask(self, name: str) -> Json:
        asked = {"messages": [{"role": "user", "content": name}]}
        return self.opcode({"op": "Infer", "name": name, "data": asked})


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

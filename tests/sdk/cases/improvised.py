"""Plans that nobody thought of: they must come to their end, and replay to the same one."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
import contextlib
import os
from random import Random
from typing import Any

from durable_workflow import DurableWorkflowError

from tests.sdk.cases.registry import case
from tests.sdk.release import since
from tests.sdk.stage import GLANCE, Run, Stage

Plan = list[Any]

SEED = int(os.environ.get("PERDURE_SEED", "5"))
PLANS = int(os.environ.get("PERDURE_PLANS", "40"))
"""More of them, and others: `PERDURE_PLANS=100 PERDURE_SEED=6`."""


def _call(chance: Random, *, children: bool) -> Plan:
    calls: list[Plan] = [
        ["echo", chance.randrange(100), chance.choice([0, 0, 0.05, 0.2])],
        ["echo", chance.randrange(100), 0],
        ["flaky", chance.randrange(4)],
        ["sleep", chance.randrange(2)],
        ["fail"],
    ]
    if children:
        calls.append(["child", _plan(chance, top=False)])
    return chance.choice(calls)


def _list(chance: Random, *, nested: bool, children: bool) -> Plan:
    members = [_call(chance, children=children) for _ in range(chance.randint(1, 4))]
    if nested:
        members.insert(chance.randrange(2), _list(chance, nested=False, children=False))
    return ["list", members]


def _select(chance: Random) -> Plan:
    """Without children: one that is let go is closed from outside, with its code anywhere."""
    members: dict[str, Plan] = {}
    for key in "abc"[: chance.randint(1, 3)]:
        members[key] = chance.choice(
            [
                _call(chance, children=False),
                _list(chance, nested=chance.random() < 0.3, children=False),
                ["wait", 1],
            ]
        )
    return ["select", members, chance.choice(["await", "cancel", "leave"])]


def _plan(chance: Random, *, top: bool = True) -> Plan:
    """At most five steps; only the outermost plan has children, waits and further runs."""
    steps: Plan = []
    for _ in range(chance.randint(1, 5)):
        choices = [
            _call(chance, children=top),
            _list(chance, nested=since("2.0.0") and chance.random() < 0.3, children=top),
            chance.choice(
                [["effect", chance.randrange(9)], ["version", "x"], ["label", chance.randrange(9)]]
            ),
        ]
        if since("2.0.0"):
            choices += [_select(chance)] * 2
        if since("2.12.0"):
            choices.append(["local", chance.randrange(9)])
        if since("2.0.0") and top:
            choices.append(["gate", chance.choice([1, 2])])
        if top:
            choices.append(["continue"])
        steps.append(chance.choice(choices))
    return steps


@case("improvised", "improvised")
async def improvised(stage: Stage) -> None:
    chance = Random(SEED)
    plans = [_plan(chance) for _ in range(PLANS)]
    runs = [await stage.start("improvised", plan) for plan in plans]
    ends = asyncio.gather(*(run.result() for run in runs))
    # The gates of 0.4 break when they are true before they are reached.
    if since("2.0.0"):
        await _knock(chance, runs, ends)

    results = await ends

    for plan, result in zip(plans, results, strict=True):
        assert _fits_plan(_last_part(plan), result), f"{plan} led to {result}"


def _last_part(plan: Plan) -> Plan:
    """What the last run of a chain had to do."""
    cuts = (place for place, step in enumerate(plan, 1) if step[0] == "continue")
    return plan[max(cuts, default=0) :]


def _fits_plan(plan: Plan, told: Any) -> bool:
    return len(told) == len(plan) and all(map(_fits, plan, told))


def _fits(step: Plan, told: Any) -> bool:
    """Whether that can come of a step."""
    match step:
        case ["echo", value, _]:
            return bool(told == value)
        case ["effect" | "local", value]:
            return bool(told == value)
        case ["flaky", failures] if failures < 3:
            return isinstance(told, int) and told > failures
        case ["flaky" | "fail", *_]:
            return bool(told == "ActivityFailed")
        case ["version", _]:
            return bool(told == 2)
        case ["sleep" | "label", _]:
            return told is None
        case ["wait", _]:
            return told is False
        case ["gate", _]:
            return isinstance(told, bool)
        case ["child", plan]:
            return _fits_plan(plan, told)
        case ["list", members]:
            if any(_fits(member, "ActivityFailed") for member in members):
                return bool(told == "ActivityFailed")
            return len(told) == len(members) and all(map(_fits, members, told))
        case ["select", members, afterwards]:
            return _fits_selection(members, afterwards, told)
        case _:
            raise AssertionError(f"no step is like {step}")


def _fits_selection(members: dict[str, Plan], afterwards: str, told: Any) -> bool:
    (winner, value), *losers = told
    if afterwards == "leave":
        return not losers and _fits(members[winner], value)
    called_off = ["DurableOperationCancelled"] if afterwards == "cancel" else []
    return (
        sorted([winner, *(key for key, _ in losers)]) == sorted(members)
        and _fits(members[winner], value)
        and all(value in called_off or _fits(members[key], value) for key, value in losers)
    )


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

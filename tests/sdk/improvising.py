"""Plans that nobody thought of, and what can come of them."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import os
from random import Random
from typing import Any

from tests.sdk.release import since

Plan = list[Any]

SEED = int(os.environ.get("PERDURE_SEED", "5"))
"""Other plans: `PERDURE_SEED=6`."""
_FAILED = "ActivityFailed"
_CALLED_OFF = "DurableOperationCancelled"


def _call(chance: Random, *, children: bool) -> Plan:
    calls: list[Plan] = [
        ["echo", chance.randrange(100), chance.choice([0, 0, 0.05, 0.2])],
        ["echo", chance.randrange(100), 0],
        ["flaky", chance.randrange(4)],
        ["sleep", chance.randrange(2)],
        ["fail"],
    ]
    if children:
        calls.append(["child", make_plan(chance, top=False)])
    return chance.choice(calls)


def _list(chance: Random, *, nested: bool, children: bool) -> Plan:
    members = [_call(chance, children=children) for _ in range(chance.randint(1, 4))]
    if nested:
        members.insert(chance.randrange(2), _list(chance, nested=False, children=False))
    return ["list", members]


def _select(chance: Random, *, children: bool) -> Plan:
    """A child that is called off is closed from outside, with its code anywhere: not here."""
    afterwards = chance.choice(["await", "cancel", "leave"])
    children = children and afterwards != "cancel"
    members: dict[str, Plan] = {}
    for key in "abc"[: chance.randint(1, 3)]:
        members[key] = chance.choice(
            [
                _call(chance, children=children),
                _list(chance, nested=chance.random() < 0.3, children=children),
                ["wait", 1],
            ]
        )
    return ["select", members, afterwards]


def make_plan(chance: Random, *, top: bool = True) -> Plan:
    """At most five steps; only the outermost plan has children and further runs."""
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
            choices += [_select(chance, children=top)] * 2
        if since("2.12.0"):
            choices.append(["local", chance.randrange(9)])
        if since("2.0.0"):
            choices.append(["gate", chance.choice([1, 2])])
        if top:
            choices.append(["continue"])
        steps.append(chance.choice(choices))
    return steps


def simplified(plan: Plan) -> Plan:
    """The plan for code that is asked to cancel itself: in one run, and without activities.

    Its worker begins a process for each. Nor does it ever deliver behind a cancelled loser that
    had ended.
    """
    return [_idle(step) for step in plan if step[0] != "continue"]


def _idle(step: Plan) -> Plan:
    match step:
        case ["echo" | "flaky" | "fail", *_]:
            return ["sleep", len(step) % 2]
        case ["list", members]:
            return ["list", [_idle(member) for member in members]]
        case ["select", members, afterwards]:
            idle = {key: _idle(member) for key, member in members.items()}
            return ["select", idle, "await" if afterwards == "cancel" else afterwards]
        case ["child", plan]:
            return ["child", simplified(plan)]
        case _:
            return step


class Oracle:
    """Knows what can come of a plan.

    Where servers die an attempt may be lost. The next one is not counted against the code's
    policy, and may be the one that succeeds.
    """

    def __init__(self, *, is_stormy: bool = False) -> None:
        self._is_stormy = is_stormy

    def foresees(self, plan: Plan, result: Any) -> bool:
        """Whether a chain of runs with this plan can return `result`: its last run does."""
        cuts = (place for place, step in enumerate(plan, 1) if step[0] == "continue")
        return self._all(plan[max(cuts, default=0) :], result)

    def _all(self, steps: Plan, told: Any) -> bool:
        return len(told) == len(steps) and all(map(self._fits, steps, told))

    def _fits(self, step: Plan, told: Any) -> bool:
        match step:
            case ["echo", value, _]:
                return bool(told == value)
            case ["effect" | "local", value]:
                return bool(told == value)
            case ["flaky", failures] if failures >= 3 and told == _FAILED:
                return True
            case ["flaky", failures]:
                may_succeed = failures < 3 or self._is_stormy
                return isinstance(told, int) and told > failures and may_succeed
            case ["fail"]:
                return bool(told == _FAILED)
            case ["version", _]:
                return bool(told == 2)
            case ["sleep" | "label", _]:
                return told is None
            case ["wait", _]:
                return told is False
            case ["gate", _]:
                return isinstance(told, bool)
            case ["child", plan]:
                return self._all(plan, told)
            case ["list", members] if told == _FAILED:
                return any(self._fits(member, _FAILED) for member in members)
            case ["list", members]:
                return self._all(members, told)
            case ["select", members, afterwards]:
                return self._fits_selection(members, afterwards, told)
            case _:
                raise AssertionError(f"no step is like {step}")

    def _fits_selection(self, members: dict[str, Plan], afterwards: str, told: Any) -> bool:
        (winner, value), *losers = told
        if not self._fits(members[winner], value):
            return False
        if afterwards == "leave":
            return not losers
        gone = [_CALLED_OFF] if afterwards == "cancel" else []
        return sorted([winner, *(key for key, _ in losers)]) == sorted(members) and all(
            value in gone or self._fits(members[key], value) for key, value in losers
        )

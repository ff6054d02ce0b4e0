"""A program that does what a plan says: plans are made at random, so that nobody thought of them.

A plan is a list of steps, each a list of its kind and what belongs to it. `echo`, `fail`, `flaky`,
`sleep`, `child` and `wait` are single calls; `list` and `select` hold others.
"""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from collections.abc import Generator
from typing import Any

import durable_workflow
from durable_workflow import (
    ActivityFailed,
    ActivityRetryPolicy,
    ChildWorkflowFailed,
    WorkflowCancelled,
    workflow,
)

from tests.sdk.programs.steps import Context, Steps

Plan = list[Any]

# The 0.4 releases know no selections, so nothing of them is cancelled.
_CANCELLED = getattr(durable_workflow, "DurableOperationCancelled", ActivityFailed)
_FAILURES = (ActivityFailed, ChildWorkflowFailed, _CANCELLED)


@workflow.defn(name="improvised")
class Improvised:
    """Goes through its plan and tells what came of every step."""

    separator: int | None = None

    def __init__(self) -> None:
        self.knocks = 0
        self.gates = 0

    @workflow.signal("knock")
    def knock(self) -> None:
        self.knocks += 1

    @workflow.update("count")
    def count(self) -> int:
        self.knocks += 1
        return self.knocks

    def run(self, ctx: Context, plan: Plan) -> Steps:
        told: list[Any] = []
        for place, step in enumerate(plan):
            if step[0] == "continue":
                return (yield ctx.continue_as_new(plan[place + 1 :]))
            told.append((yield from self._try(ctx, step)))
        return told

    def _key(self, gate: int) -> str:
        """All gates have the same, so that nothing but their order tells them apart."""
        return "gate"

    def _try(self, ctx: Context, step: Plan) -> Generator[Any, Any, Any]:
        try:
            return (yield from self._take(ctx, step))
        except _FAILURES as failure:
            return type(failure).__name__

    def _take(self, ctx: Context, step: Plan) -> Generator[Any, Any, Any]:
        match step:
            case ["effect", number]:
                return (yield ctx.side_effect(lambda: number))
            case ["version", change]:
                return (yield ctx.get_version(change, 1, 2))
            case ["label", number]:
                return (yield ctx.upsert_search_attributes({"Number": number}))
            case ["local", number]:
                return (yield ctx.local_activity("echo", [number]))
            case ["gate", timeout]:
                self.gates += 1
                wanted = self.gates
                key = self._key(wanted)
                opened = yield ctx.wait_condition(
                    lambda: self.knocks >= wanted, key=key, timeout=timeout
                )
                yield from _separate(ctx, self.separator)
                return opened
            case ["select", members, afterwards]:
                return (yield from _select(ctx, members, afterwards, self.separator))
            case _:
                return (yield _call(ctx, step))


@workflow.defn(name="improvised-tidy")
class ImprovisedTidy(Improvised):
    """Tidies up by a plan as well, when it is asked to cancel itself.

    It then counts its calls, and cannot tell a gate that was open or a loser that it awaited from
    the call behind it.
    """

    separator = 0

    def _key(self, gate: int) -> str:
        return f"gate {gate}"

    def run(self, ctx: Context, plan: Plan, tidying: Plan | None = None) -> Steps:
        told: list[Any] = []
        try:
            for step in plan:
                told.append((yield from self._try(ctx, step)))
        except WorkflowCancelled:
            tidied = []
            with ctx.cancellation_shield():
                for step in tidying or []:
                    tidied.append((yield from self._try(ctx, step)))
            return {"told": told, "tidied": tidied}
        return told


def _call(ctx: Context, step: Plan) -> Any:
    match step:
        case ["echo", value, seconds]:
            return ctx.schedule_activity("echo-slowly", [value, seconds])
        case ["fail"]:
            return ctx.schedule_activity("charge", ["stolen"])
        case ["flaky", failures]:
            policy = ActivityRetryPolicy(max_attempts=3, backoff_seconds=[0])
            return ctx.schedule_activity("flaky", [failures], retry_policy=policy)
        case ["sleep", seconds]:
            return ctx.sleep(seconds)
        case ["child", plan]:
            return ctx.start_child_workflow("improvised", [plan])
        case ["wait", timeout]:
            return ctx.wait_condition(lambda: False, key="never", timeout=timeout)
        case ["list", members]:
            return [_call(ctx, member) for member in members]
        case _:
            raise AssertionError(f"no step is like {step}")


def _select(
    ctx: Context, members: dict[str, Plan], afterwards: str, separator: int | None
) -> Generator[Any, Any, Any]:
    first = yield ctx.select({key: _call(ctx, step) for key, step in members.items()})
    told: list[Any] = [
        [first.key, first.value if first.succeeded else type(first.failure).__name__]
    ]
    for key, handle in sorted(first.remaining().items()):
        if afterwards == "leave":
            break
        if afterwards == "cancel":
            yield handle.cancel()
        try:
            told.append([key, (yield handle)])
        except _FAILURES as failure:
            told.append([key, type(failure).__name__])
        yield from _separate(ctx, separator)
    return told


def _separate(ctx: Context, separator: int | None) -> Generator[Any, Any, None]:
    if separator is not None:
        yield ctx.side_effect(lambda: separator)


WORKFLOWS = (Improvised, ImprovisedTidy)
ACTIVITIES = ()

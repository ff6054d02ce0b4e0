"""Programs whose payloads are too large to travel inside of documents."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import activity, workflow

from tests.sdk.programs.steps import Context, Steps

LARGE = 100_000
"""Characters of a payload that no release sends inline where it may upload."""


@activity.defn(name="stamp")
def stamp(cargo: str) -> str:
    """The cargo, as large as before."""
    return cargo[::-1]


@workflow.defn(name="wagon")
class Wagon:
    """A child that returns what it was given."""

    def run(self, ctx: Context, cargo: str) -> Steps:
        return (yield ctx.schedule_activity("stamp", [cargo]))


@workflow.defn(name="freight")
class Freight:
    """Everything that a workflow can hand on, each time large."""

    def run(self, ctx: Context, cargo: str, legs: int) -> Steps:
        stamped = yield ctx.schedule_activity("stamp", [cargo])
        rolled = yield ctx.side_effect(lambda: "r" * LARGE)
        yield ctx.upsert_memo({f"label-{number}": "m" * 9_000 for number in range(6)})
        child = yield ctx.start_child_workflow("wagon", [stamped])
        if legs > 1:
            return ctx.continue_as_new(child, legs - 1)
        return {"cargo": child, "rolled": len(rolled)}


@workflow.defn(name="depot")
class Depot:
    """Takes large things in, and tells of them."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.closed = False

    @workflow.signal("deliver")
    def deliver(self, cargo: str) -> None:
        self.stored.append(cargo)

    @workflow.signal("close")
    def close(self) -> None:
        self.closed = True

    @workflow.query("inventory")
    def inventory(self, mark: str) -> dict[str, Any]:
        return {"mark": mark, "stored": self.stored}

    @workflow.update("swap")
    def swap(self, cargo: str) -> str:
        taken = self.stored[-1]
        self.stored[-1] = cargo
        return taken

    @swap.validator
    def check_swap(self, cargo: str) -> None:
        if cargo in self.stored:
            raise ValueError("it is here already")

    def run(self, ctx: Context, cargo: str) -> Steps:
        self.stored.append(cargo)
        yield ctx.wait_condition(lambda: self.closed, key="closed")
        return self.stored


WORKFLOWS = (Wagon, Freight, Depot)
ACTIVITIES = (stamp,)

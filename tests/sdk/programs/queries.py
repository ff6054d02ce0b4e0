"""A program that answers questions about what it has been told."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="ledger")
class Ledger:
    """Signals are entries, queries read them; closing returns the total."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.closed = False
        self.owner = ""

    @workflow.signal("enter")
    def enter(self, amount: int) -> None:
        self.entries.append(amount)

    @workflow.signal("close")
    def close(self) -> None:
        self.closed = True

    @workflow.query("total")
    def total(self) -> int:
        return sum(self.entries)

    @workflow.query("report")
    def report(self, title: str, least: int = 0) -> dict[str, Any]:
        kept = [amount for amount in self.entries if amount >= least]
        return {"title": title, "owner": self.owner, "entries": kept, "note": None}

    @workflow.query("nothing")
    def nothing(self) -> None:
        return None

    @workflow.query("broken")
    def broken(self) -> int:
        raise RuntimeError("the ledger is on fire")

    @workflow.query("strange")
    def strange(self) -> object:
        return object()

    def run(self, ctx: Context, owner: str) -> Steps:
        self.owner = owner
        yield ctx.schedule_activity("greet", [owner])
        yield ctx.wait_condition(lambda: self.closed, key="closed")
        return sum(self.entries)


WORKFLOWS = (Ledger,)
ACTIVITIES = ()

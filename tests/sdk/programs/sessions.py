"""Programs whose activities belong to one worker session."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import activity, workflow
from durable_workflow.worker_session import WorkerSessionOptions

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="workshop")
class Workshop:
    """Some steps at one bench, with a timer and an ordinary step between them; who did them."""

    def run(self, ctx: Context, steps: int, terms: dict[str, Any]) -> Steps:
        session = WorkerSessionOptions.from_wire(terms)
        retry = {"max_attempts": 5, "backoff_seconds": [0]}
        told = []
        for _ in range(steps):
            options = {"worker_session": session, "retry_policy": retry}
            told.append((yield ctx.schedule_activity("bench", [], **options)))
            yield ctx.schedule_activity("add-one", [1])
            yield ctx.sleep(0)
        return told


@workflow.defn(name="busy-workshop")
class BusyWorkshop:
    """Several steps at one bench at once."""

    def run(self, ctx: Context, steps: int, terms: dict[str, Any]) -> Steps:
        session = WorkerSessionOptions.from_wire(terms)
        return (
            yield [ctx.schedule_activity("bench", [], worker_session=session) for _ in range(steps)]
        )


@activity.defn(name="bench")
async def bench() -> str:
    """Who works here."""
    return activity.context().info.worker_id


WORKFLOWS = [Workshop, BusyWorkshop]
ACTIVITIES = [bench]

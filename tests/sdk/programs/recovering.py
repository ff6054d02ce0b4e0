"""Programs that fail where they need light, and are continued once there is some."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import uuid

from durable_workflow import ActivityFailed, activity, workflow

from tests.sdk.programs.activities import NoLuck
from tests.sdk.programs.beacons import beacon
from tests.sdk.programs.steps import Context, Steps


@activity.defn(name="look-around")
async def look_around(key: str) -> str:
    """Wait until somebody says go, then fail in the dark."""
    await beacon(f"{key}:go").wait()
    if not beacon(f"{key}:lit").is_set():
        raise NoLuck("it is dark")
    return "seen"


@workflow.defn(name="explorer")
class Explorer:
    """Steps of every kind before the one that fails, and some behind it."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @workflow.signal("hear")
    def hear(self, what: str) -> None:
        self.heard.append(what)

    @workflow.update("tell")
    def tell(self, what: str) -> int:
        self.heard.append(what)
        return len(self.heard)

    def run(self, ctx: Context, key: str) -> Steps:
        yield ctx.wait_condition(lambda: bool(self.heard), key="called")
        ticket = yield ctx.side_effect(lambda: uuid.uuid4().hex)
        first = yield ctx.schedule_activity("count-calls", [f"{key}:first"])
        try:
            yield ctx.schedule_activity("charge", ["stolen"])
            caught = False
        except ActivityFailed:
            caught = True
        yield ctx.sleep(0)
        child = yield ctx.start_child_workflow("greeter", ["child"])
        both = yield [
            ctx.schedule_activity("count-calls", [f"{key}:left"]),
            ctx.schedule_activity("count-calls", [f"{key}:right"]),
        ]
        seen = yield ctx.schedule_activity("look-around", [key])
        last = yield ctx.schedule_activity("echo", [ticket])
        return {
            "first": first,
            "caught": caught,
            "child": child,
            "both": both,
            "seen": seen,
            "same": last == ticket,
            "heard": self.heard,
        }


@workflow.defn(name="search-party")
class SearchParty:
    """A list of which one member fails."""

    def run(self, ctx: Context, key: str) -> Steps:
        before = yield ctx.schedule_activity("count-calls", [f"{key}:before"])
        found = yield [
            ctx.schedule_activity("echo", ["left"]),
            ctx.schedule_activity("look-around", [key]),
            ctx.schedule_activity("echo", ["right"]),
        ]
        return [before, *found]


@workflow.defn(name="careless-parent")
class CarelessParent:
    """Fails with its child, which fails in the dark."""

    def run(self, ctx: Context, key: str) -> Steps:
        before = yield ctx.schedule_activity("count-calls", [f"{key}:parent"])
        found = yield ctx.start_child_workflow("search-party", [key])
        return [before, *found]


WORKFLOWS = (Explorer, SearchParty, CarelessParent)
ACTIVITIES = (look_around,)

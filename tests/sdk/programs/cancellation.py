"""Programs that are asked to cancel themselves, and tidy up."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import WorkflowCancelled, workflow

from tests.sdk.programs.steps import Context, Steps

LONG = 3600


@workflow.defn(name="tidy")
class Tidy:
    """Stands somewhere for an hour; when it is asked to cancel, it tidies up and tells."""

    def __init__(self) -> None:
        self.nudges = 0

    @workflow.signal("nudge")
    def nudge(self) -> None:
        self.nudges += 1

    @workflow.query("nudges")
    def count(self) -> int:
        return self.nudges

    @workflow.update("nudged")
    def nudged(self) -> int:
        self.nudges += 1
        return self.nudges

    def run(self, ctx: Context, where: str, options: dict[str, Any]) -> Steps:
        before = yield ctx.side_effect(lambda: "before")
        try:
            stayed = yield from self.stand(ctx, where, options)
            return ["stayed", stayed]
        except WorkflowCancelled as cancelled:
            context = ctx.cancellation_context
            assert context is not None
            if cancelled.request_id != context.request_id:
                raise ValueError("another request") from None
            told = [before, context.reason, context.remaining() > 0, self.nudges]
        with ctx.cancellation_shield():
            yield ctx.sleep(0)
            told.append((yield ctx.local_activity("add-one", [1])))
            told.append((yield [ctx.sleep(0), ctx.start_child_workflow("counting", [1, 0])]))
        return told

    def stand(self, ctx: Context, where: str, options: dict[str, Any]) -> Steps:
        options = dict(options)
        match where:
            case "timer":
                return (yield ctx.sleep(LONG))
            case "condition":
                return (
                    yield ctx.wait_condition(
                        lambda: self.nudges > 99, key="nudged", timeout=options.get("timeout")
                    )
                )
            case "activity":
                return (yield ctx.schedule_activity("stay", [options.pop("key")], **options))
            case "child":
                kind = options.pop("kind", "timer")
                return (yield ctx.start_child_workflow("tidy", [kind, {}], **options))
            case "parallel":
                return (
                    yield [
                        ctx.sleep(LONG),
                        [ctx.sleep(0), ctx.start_child_workflow("tidy", ["timer", {}], **options)],
                        ctx.schedule_activity("echo", ["never"], queue="nobody-polls-this-queue"),
                    ]
                )
            case "select":
                return (
                    yield ctx.select(
                        {
                            "timer": ctx.sleep(LONG),
                            "child": ctx.start_child_workflow("tidy", ["timer", {}], **options),
                        }
                    )
                )
            case "handle":
                first = yield ctx.select({"quick": ctx.sleep(0), "slow": ctx.sleep(LONG)})
                return (yield first.handles["slow"])
            case "local":
                return (yield ctx.local_activity("stay-here", [options["key"]]))
            case "shield":
                with ctx.cancellation_shield():
                    gate = ctx.start_child_workflow("gate-keeper", [])
                    yield ctx.select({"gate": gate, "slow": ctx.sleep(LONG)})
                    yield ctx.wait_condition(lambda: self.nudges > 0, key="nudged")
                    yield ctx.side_effect(lambda: "behind the shield")
                return (yield ctx.sleep(LONG))
            case _:
                raise ValueError(where)


@workflow.defn(name="gate-keeper")
class GateKeeper:
    """Waits until somebody opens the gate."""

    def __init__(self) -> None:
        self.is_open = False

    @workflow.signal("open")
    def open(self) -> None:
        self.is_open = True

    def run(self, ctx: Context) -> Steps:
        yield ctx.wait_condition(lambda: self.is_open, key="gate")


@workflow.defn(name="careless-sleeper")
class CarelessSleeper:
    """Sleeps, and lets whatever comes come."""

    def run(self, ctx: Context) -> Steps:
        yield ctx.sleep(LONG)


@workflow.defn(name="stubborn-sleeper")
class StubbornSleeper:
    """Goes back to sleep when it is asked to cancel."""

    def run(self, ctx: Context) -> Steps:
        try:
            yield ctx.sleep(LONG)
        except WorkflowCancelled:
            yield ctx.sleep(LONG)


WORKFLOWS = (Tidy, GateKeeper, CarelessSleeper, StubbornSleeper)
ACTIVITIES = ()

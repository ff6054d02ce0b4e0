"""Programs that yield lists: results in order, mixed members, failures, nesting."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import ActivityFailed, workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="race")
class Race:
    """Three activities that finish in reverse order."""

    def run(self, ctx: Context) -> Steps:
        return (
            yield [
                ctx.schedule_activity("echo-slowly", ["first", 0.4]),
                ctx.schedule_activity("echo-slowly", ["second", 0.2]),
                ctx.schedule_activity("echo-slowly", ["third", 0.0]),
            ]
        )


@workflow.defn(name="mixed")
class Mixed:
    """An activity, a timer and a child in one list."""

    def run(self, ctx: Context) -> Steps:
        results = yield [
            ctx.schedule_activity("echo-slowly", ["activity", 0.2]),
            ctx.sleep(1),
            ctx.start_child_workflow("greeter", ["child"]),
        ]
        after = yield ctx.schedule_activity("echo", ["after"])
        return [*results, after]


@workflow.defn(name="unlucky")
class Unlucky:
    """A list whose middle member fails first."""

    def run(self, ctx: Context) -> Steps:
        try:
            yield [
                ctx.schedule_activity("echo-slowly", ["left", 0.3]),
                ctx.schedule_activity("charge", ["stolen"]),
                ctx.schedule_activity("echo", ["right"]),
            ]
        except ActivityFailed as failure:
            consolation = yield ctx.schedule_activity("echo", [str(failure)])
            return {"caught": consolation}
        return {"caught": None}


@workflow.defn(name="two-rounds")
class TwoRounds:
    """A list whose members depend on the list before it."""

    def run(self, ctx: Context, size: int) -> Steps:
        first = yield [
            ctx.schedule_activity("echo-slowly", [number, 0.05 * (size - number)])
            for number in range(size)
        ]
        second = yield [ctx.schedule_activity("add-one", [number]) for number in first]
        return second


@workflow.defn(name="nested")
class Nested:
    """Lists inside a list."""

    def run(self, ctx: Context) -> Steps:
        return (
            yield [
                [
                    ctx.schedule_activity("echo-slowly", ["a", 0.3]),
                    ctx.schedule_activity("echo-slowly", ["b", 0.1]),
                ],
                ctx.schedule_activity("echo", ["c"]),
                [ctx.sleep(0), [ctx.schedule_activity("echo-slowly", ["d", 0.2])]],
            ]
        )


@workflow.defn(name="fan-out")
class FanOut:
    """As many activities as wanted, in one list."""

    def run(self, ctx: Context, width: int) -> Steps:
        results = yield [ctx.schedule_activity("add-one", [number]) for number in range(width)]
        return sum(results)


@workflow.defn(name="gated-list")
class GatedList:
    """A list after a wait that was opened again: its numbers are no longer the code's."""

    def __init__(self) -> None:
        self.knocks = 0

    @workflow.signal("knock")
    def knock(self) -> None:
        self.knocks += 1

    def run(self, ctx: Context) -> Steps:
        yield ctx.wait_condition(lambda: self.knocks >= 3, key="knocks")
        return (
            yield [
                ctx.schedule_activity("echo-slowly", ["slow", 0.2]),
                ctx.schedule_activity("echo", ["quick"]),
            ]
        )


WORKFLOWS = (Race, Mixed, Unlucky, TwoRounds, Nested, FanOut, GatedList)
ACTIVITIES = ()

"""Programs that select the first of several operations. The 0.4 releases know no selections."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import ActivityFailed, DurableOperationCancelled, workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="hurry")
class Hurry:
    """An activity against a timer; the loser is awaited."""

    def run(self, ctx: Context, light: str, patience: int) -> Steps:
        first = yield ctx.select(
            {
                "work": ctx.schedule_activity("echo-after-light", ["done", light]),
                "alarm": ctx.sleep(patience),
            }
        )
        (loser,) = first.remaining().values()
        late = yield loser
        after = yield ctx.schedule_activity("echo", ["after"])
        return {"winner": first.key, "value": first.result(), "late": late, "after": after}


@workflow.defn(name="leave")
class Leave:
    """The winner is enough; the run ends while the loser still runs."""

    def run(self, ctx: Context) -> Steps:
        first = yield ctx.select([ctx.sleep(3600), ctx.schedule_activity("echo", ["quick"])])
        after = yield ctx.schedule_activity("echo", ["after"])
        return {"winner": first.key, "value": first.value, "after": after}


@workflow.defn(name="call-off")
class CallOff:
    """The loser is cancelled and then awaited."""

    def run(self, ctx: Context, loser: str) -> Steps:
        losers = {
            "timer": ctx.sleep(3600),
            "activity": ctx.schedule_activity("echo", ["never"], queue="nobody-polls-this-queue"),
        }
        first = yield ctx.select(
            {"winner": ctx.schedule_activity("echo", ["won"]), "loser": losers[loser]}
        )
        yield first.handles["loser"].cancel()
        try:
            yield first.handles["loser"]
        except DurableOperationCancelled as cancelled:
            after = yield ctx.schedule_activity("echo", ["after"])
            return {
                "value": first.value,
                "cancelled": [cancelled.member_key, cancelled.operation_kind],
                "after": after,
            }
        return {"value": first.value, "cancelled": None}


@workflow.defn(name="too-late")
class TooLate:
    """A cancel of an operation that has finished."""

    def run(self, ctx: Context, light: str) -> Steps:
        first = yield ctx.select(
            {
                "quick": ctx.schedule_activity("echo", ["quick"]),
                "late": ctx.schedule_activity("echo-after-light", ["late", light]),
            }
        )
        late = yield first.handles["late"]
        yield first.handles["late"].cancel()
        again = yield first.handles["late"]
        after = yield ctx.schedule_activity("echo", ["after"])
        return [first.value, late, again, after]


@workflow.defn(name="accident")
class Accident:
    """A member that fails before the other finishes."""

    def run(self, ctx: Context) -> Steps:
        first = yield ctx.select(
            {
                "pay": ctx.schedule_activity("charge", ["stolen"]),
                "alarm": ctx.sleep(3600),
            }
        )
        yield first.handles["alarm"].cancel()
        return {"winner": first.key, "succeeded": first.succeeded, "failure": str(first.failure)}


@workflow.defn(name="expiring")
class Expiring:
    """A condition that nobody satisfies against a longer timer."""

    def run(self, ctx: Context) -> Steps:
        first = yield ctx.select(
            {
                "answer": ctx.wait_condition(lambda: False, key="answer", timeout=1),
                "alarm": ctx.sleep(3600),
            }
        )
        yield first.handles["alarm"].cancel()
        after = yield ctx.schedule_activity("echo", ["after"])
        return {"winner": first.key, "value": first.value, "after": after}


@workflow.defn(name="equally-patient")
class EquallyPatient:
    """A condition against a timer that takes as long; both end, and the code goes on to others."""

    def run(self, ctx: Context) -> Steps:
        first = yield ctx.select(
            {
                "answer": ctx.wait_condition(lambda: False, key="answer", timeout=1),
                "alarm": ctx.sleep(1),
            }
        )
        (loser,) = first.remaining().values()
        yield loser
        after = yield ctx.schedule_activity("echo", ["after"])
        return {"winner": first.key, "after": after}


@workflow.defn(name="teams")
class Teams:
    """A list against a child that waits: a list wins when its last member is done."""

    def run(self, ctx: Context) -> Steps:
        first = yield ctx.select(
            {
                "team": [
                    ctx.schedule_activity("echo-slowly", ["a", 0.2]),
                    ctx.schedule_activity("echo", ["b"]),
                ],
                "child": ctx.start_child_workflow("approval", []),
            }
        )
        child = yield first.handles["child"]
        return {"winner": first.key, "value": first.value, "child": child}


@workflow.defn(name="broken-team")
class BrokenTeam:
    """A list of which a member has failed is called off before the others are done."""

    def __init__(self) -> None:
        self.called = False

    @workflow.signal("call")
    def call(self) -> None:
        self.called = True

    def run(self, ctx: Context, light: str) -> Steps:
        first = yield ctx.select(
            {
                "alarm": ctx.sleep(0),
                "team": [
                    ctx.schedule_activity("charge-after-light", ["stolen", light]),
                    ctx.sleep(3600),
                ],
            }
        )
        yield ctx.wait_condition(lambda: self.called, key="called")
        team = first.handles["team"]
        yield team.cancel()
        try:
            yield team
        except (ActivityFailed, DurableOperationCancelled) as failure:
            after = yield ctx.schedule_activity("echo", ["after"])
            return {"winner": first.key, "team": type(failure).__name__, "after": after}
        return {"winner": first.key}


@workflow.defn(name="busy-gates")
class BusyGates:
    """Two gates of one key, while the losers of a selection go on ending."""

    def __init__(self) -> None:
        self.knocks = 0

    @workflow.signal("knock")
    def knock(self) -> None:
        self.knocks += 1

    @workflow.update("knock-loudly")
    def knock_loudly(self) -> int:
        self.knocks += 1
        return self.knocks

    def run(self, ctx: Context, lights: list[str]) -> Steps:
        first = yield ctx.select(
            {
                "now": ctx.sleep(0),
                "later": [ctx.schedule_activity("echo-after-light", [n, n]) for n in lights],
            }
        )
        told = [first.key]
        for wanted in (2, 4):
            opened = yield ctx.wait_condition(
                lambda wanted=wanted: self.knocks >= wanted, key="gate", timeout=600
            )
            told.append([opened, self.knocks])
        told.append((yield ctx.schedule_activity("echo", ["after"])))
        return told


@workflow.defn(name="heard-meanwhile")
class HeardMeanwhile:
    """A signal that comes beside a condition of a selection counts for what the code waits for."""

    def __init__(self) -> None:
        self.knocks = 0

    @workflow.signal("knock")
    def knock(self) -> None:
        self.knocks += 1

    def run(self, ctx: Context, work: str) -> Steps:
        child = ctx.start_child_workflow("approval", [])
        first = yield ctx.select(
            {
                "work": child if work == "child" else ctx.sleep(1),
                "never": ctx.wait_condition(lambda: False, key="never", timeout=600),
            }
        )
        heard = self.knocks
        opened = yield ctx.wait_condition(lambda: self.knocks >= 1, key="gate", timeout=2)
        after = yield ctx.schedule_activity("echo", ["after"])
        return [first.key, heard, opened, after]


@workflow.defn(name="select-then-list")
class SelectThenList:
    """A list after a selection: the SDK guesses its numbers wrong, the server corrects them."""

    def run(self, ctx: Context) -> Steps:
        first = yield ctx.select([ctx.schedule_activity("echo", ["quick"]), ctx.sleep(10)])
        listed = yield [
            ctx.schedule_activity("echo-slowly", ["x", 0.2]),
            ctx.schedule_activity("echo", ["y"]),
        ]
        yield first.handles[1]
        return [first.value, *listed]


WORKFLOWS = (
    Hurry,
    Leave,
    CallOff,
    TooLate,
    Accident,
    Expiring,
    EquallyPatient,
    Teams,
    BrokenTeam,
    BusyGates,
    HeardMeanwhile,
    SelectThenList,
)
ACTIVITIES = ()

"""Programs for stormy weather: activities may be repeated, and no answer depends on how often."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import ActivityRetryPolicy, workflow

from tests.sdk.programs.steps import Context, Steps

# An attempt whose worker or server vanished was used up; a storm may use up many.
STUBBORN = ActivityRetryPolicy(max_attempts=100, backoff_seconds=[0])


@workflow.defn(name="trip")
class Trip:
    """Legs of one journey, one after the other."""

    def run(self, ctx: Context, legs: int) -> Steps:
        distance = 0
        for _ in range(legs):
            distance = yield ctx.schedule_activity("add-one", [distance], retry_policy=STUBBORN)
        return distance


@workflow.defn(name="convoy")
class Convoy:
    """A list of activities, a timer and a child, together."""

    def run(self, ctx: Context, width: int) -> Steps:
        members = [
            ctx.schedule_activity("add-one", [number], retry_policy=STUBBORN)
            for number in range(width)
        ]
        *numbers, _timer, child = yield [
            *members,
            ctx.sleep(1),
            ctx.start_child_workflow("trip", [2]),
        ]
        return [*numbers, child]


@workflow.defn(name="ferry")
class Ferry:
    """Leaves when every expected passenger is aboard; one may knock twice."""

    def __init__(self) -> None:
        self.aboard: set[str] = set()

    @workflow.signal("board")
    def board(self, passenger: str) -> None:
        self.aboard.add(passenger)

    def run(self, ctx: Context, expected: list[str]) -> Steps:
        yield ctx.wait_condition(lambda: self.aboard >= set(expected), key="full")
        return (yield ctx.schedule_activity("echo", [sorted(self.aboard)], retry_policy=STUBBORN))


@workflow.defn(name="stages")
class Stages:
    """A chain of runs with a timer in each."""

    def run(self, ctx: Context, left: int, passed: list[int]) -> Steps:
        yield ctx.sleep(0)
        stage = yield ctx.schedule_activity("add-one", [left], retry_policy=STUBBORN)
        if left == 0:
            return [*passed, stage]
        return ctx.continue_as_new(left - 1, [*passed, stage])


@workflow.defn(name="tollgate")
class Tollgate:
    """Opens when enough was paid. Whoever pays under one request id pays once."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    @workflow.update("pay")
    def pay(self, amount: int) -> int:
        self.paid.append(amount)
        return sum(self.paid)

    @pay.validator
    def check_pay(self, amount: int) -> None:
        if amount <= 0:
            raise ValueError("a toll is positive")

    def run(self, ctx: Context, payers: int) -> Steps:
        yield ctx.wait_condition(lambda: len(self.paid) >= payers, key="paid")
        total = yield ctx.schedule_activity("echo", [sum(self.paid)], retry_policy=STUBBORN)
        return [len(self.paid), total]


WORKFLOWS = (Trip, Convoy, Ferry, Stages, Tollgate)
ACTIVITIES = ()

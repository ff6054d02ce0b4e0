"""Programs of parents and children, and of chains that continue as new."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import ChildWorkflowFailed, ChildWorkflowRetryPolicy, workflow

from tests.sdk.programs.steps import Context, Steps


class Mood(Exception):
    """The failure of a child."""


@workflow.defn(name="parent")
class Parent:
    """Two children, one after the other."""

    def run(self, ctx: Context, name: str) -> Steps:
        greeting = yield ctx.start_child_workflow("greeter", [name])
        numbers = yield ctx.start_child_workflow("counting", [1, 2])
        return {"greeting": greeting, "numbers": numbers}


@workflow.defn(name="caring-parent")
class CaringParent:
    """A parent that catches whatever becomes of its child."""

    def run(self, ctx: Context, child: str, arguments: list[Any], options: dict[str, Any]) -> Steps:
        try:
            value = yield ctx.start_child_workflow(child, arguments, **options)
        except ChildWorkflowFailed as failure:
            return {
                "caught": type(failure).__name__,
                "message": str(failure),
                "class": failure.exception_class,
                "child": failure.child_workflow_type,
            }
        return {"value": value}


@workflow.defn(name="patient-parent")
class PatientParent:
    """A parent whose child is started again when it fails."""

    def run(self, ctx: Context, key: str) -> Steps:
        policy = ChildWorkflowRetryPolicy(max_attempts=3, backoff_seconds=[0, 1])
        return (yield ctx.start_child_workflow("moody", [key, 3], retry_policy=policy))


@workflow.defn(name="moody")
class Moody:
    """A child that fails until it was asked often enough."""

    def run(self, ctx: Context, key: str, patience: int) -> Steps:
        calls = yield ctx.schedule_activity("count-calls", [key])
        if calls < patience:
            raise Mood(f"not in the mood at call {calls}")
        return calls


@workflow.defn(name="guardian")
class Guardian:
    """A parent that says what becomes of its child when it closes first."""

    def run(self, ctx: Context, policy: str) -> Steps:
        return (yield ctx.start_child_workflow("approval", [], parent_close_policy=policy))


@workflow.defn(name="countdown")
class Countdown:
    """A chain of runs that carries its trail."""

    def run(self, ctx: Context, number: int, trail: list[int]) -> Steps:
        if number == 0:
            return trail
        following = yield ctx.schedule_activity("add-one", [number])
        return ctx.continue_as_new(number - 1, [*trail, following])


@workflow.defn(name="caterpillar")
class Caterpillar:
    """A run that continues as one of another type."""

    def run(self, ctx: Context, name: str) -> Steps:
        yield ctx.sleep(0)
        return ctx.continue_as_new(name, workflow_type="greeter")


@workflow.defn(name="postbox")
class Postbox:
    """One letter for each run of the chain; none may be lost between two runs."""

    def __init__(self) -> None:
        self.letters: list[str] = []

    @workflow.signal("post")
    def post(self, letter: str) -> None:
        self.letters.append(letter)

    def run(self, ctx: Context, wanted: int, delivered: list[str]) -> Steps:
        yield ctx.wait_condition(lambda: len(self.letters) > 0, key="letter")
        delivered = [*delivered, *self.letters]
        if len(delivered) >= wanted:
            return delivered
        return ctx.continue_as_new(wanted, delivered)


@workflow.defn(name="treadmill")
class Treadmill:
    """A chain without an end, for the time limit of the whole execution."""

    def run(self, ctx: Context, rounds: int) -> Steps:
        yield ctx.sleep(1)
        return ctx.continue_as_new(rounds + 1)


WORKFLOWS = (
    Parent,
    CaringParent,
    PatientParent,
    Moody,
    Guardian,
    Countdown,
    Caterpillar,
    Postbox,
    Treadmill,
)
ACTIVITIES = ()

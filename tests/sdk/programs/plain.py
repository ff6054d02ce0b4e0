"""Programs of plain activities: one, several, retried, timed out, heartbeating."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import ActivityFailed, ActivityRetryPolicy, workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="greeter")
class Greeter:
    """The quickstart program of the SDK's README."""

    def run(self, ctx: Context, name: str) -> Steps:
        result = yield ctx.schedule_activity("greet", [name])
        return result


@workflow.defn(name="counting")
class Counting:
    """Several activities, one after the other."""

    def run(self, ctx: Context, number: int, steps: int) -> Steps:
        numbers = [number]
        for _ in range(steps):
            numbers.append((yield ctx.schedule_activity("add-one", [numbers[-1]])))
        return numbers


@workflow.defn(name="lucky")
class Lucky:
    """An activity that needs several attempts; its failure is not caught."""

    def run(self, ctx: Context, failures: int, attempts: int) -> Steps:
        policy = ActivityRetryPolicy(max_attempts=attempts, backoff_seconds=[0, 1])
        attempt = yield ctx.schedule_activity("flaky", [failures], retry_policy=policy)
        return {"attempt": attempt}


@workflow.defn(name="careful")
class Careful:
    """One activity whose failure is caught and told."""

    def run(
        self, ctx: Context, activity_type: str, arguments: list[Any], options: dict[str, Any]
    ) -> Steps:
        try:
            value = yield ctx.schedule_activity(activity_type, arguments, **options)
        except ActivityFailed as failure:
            return {
                "failed": failure.activity_type,
                "message": str(failure),
                "type": failure.exception_type,
                "class": failure.exception_class,
                "non_retryable": failure.non_retryable,
                "known": failure.activity_execution_id is not None,
            }
        return {"value": value}


@workflow.defn(name="overtime")
class Overtime:
    """An attempt that reports after its deadline, while the run is still open."""

    def run(self, ctx: Context) -> Steps:
        value = yield ctx.schedule_activity(
            "stall",
            [1, 2.6],
            start_to_close_timeout=2,
            retry_policy=ActivityRetryPolicy(max_attempts=90, backoff_seconds=[0]),
        )
        yield ctx.sleep(1)
        return value


@workflow.defn(name="cancellable")
class Cancellable:
    """A long activity that looks for its cancellation."""

    def run(self, ctx: Context, key: str) -> Steps:
        result = yield ctx.schedule_activity("work-until-cancelled", [key], heartbeat_timeout=30)
        return result


@workflow.defn(name="sleeper")
class Sleeper:
    """Timers, one after the other."""

    def run(self, ctx: Context, naps: list[float]) -> Steps:
        for nap in naps:
            yield ctx.sleep(nap)
        return len(naps)


@workflow.defn(name="routed")
class Routed:
    """An activity and a child that belong to another queue."""

    def run(self, ctx: Context, elsewhere: str) -> Steps:
        here = yield ctx.schedule_activity("where-am-i", [])
        there = yield ctx.schedule_activity("where-am-i", [], queue=elsewhere)
        child = yield ctx.start_child_workflow("located", [], task_queue=elsewhere)
        return {"here": here, "there": there, "child": child}


@workflow.defn(name="located")
class Located:
    """Where an activity without a queue of its own runs."""

    def run(self, ctx: Context) -> Steps:
        return (yield ctx.schedule_activity("where-am-i", []))


@workflow.defn(name="diary")
class Diary:
    """More history than one page: notes, with an activity after every tenth."""

    def run(self, ctx: Context, notes: int) -> Steps:
        total = 0
        for number in range(1, notes + 1):
            total += yield ctx.side_effect(lambda number=number: number)
            if number % 10 == 0:
                total = yield ctx.schedule_activity("echo", [total])
        return total


class OutOfStock(Exception):
    """The failure of a program's own."""


@workflow.defn(name="shop")
class Shop:
    """A program that fails with an exception of its own."""

    def run(self, ctx: Context, item: str) -> Steps:
        yield ctx.schedule_activity("echo", [item])
        raise OutOfStock(f"no {item} left")


WORKFLOWS = (
    Greeter,
    Counting,
    Lucky,
    Careful,
    Overtime,
    Cancellable,
    Sleeper,
    Routed,
    Located,
    Diary,
    Shop,
)
ACTIVITIES = ()

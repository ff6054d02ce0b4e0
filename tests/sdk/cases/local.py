"""Local activities: done by the workflow's worker, told to the server, found again by replay."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import WorkflowFailed

from tests.sdk.cases.registry import case
from tests.sdk.programs.beacons import beacon
from tests.sdk.replaying import Event, kind
from tests.sdk.sdk_harness import Run, Stage


@case("local-activities", "local-errands")
async def local_activities(stage: Stage) -> None:
    run = await stage.start("local-errands", stage.name)
    await run.event("ConditionWaitOpened")
    await run.signal("pay")

    assert await run.result() == [1, 2, 3, 4, 5, 6], "each was run once, and found again"
    events = await run.history()
    assert [is_local(event) for event in activities(events, "ActivityCompleted")] == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    assert (await run.client.describe_workflow(run.workflow_id)).status == "completed"


@case("local-activity-retried", "local-careful")
async def local_activity_retried(stage: Stage) -> None:
    policy = {"max_attempts": 3, "backoff_seconds": [0, 1]}
    run = await careful(stage, "flaky", [2], retry_policy=policy)

    assert await run.result() == 3
    events = await run.history()
    started = activities(events, "ActivityStarted")
    assert [event["payload"]["attempt_number"] for event in started] == [1, 2, 3]
    retries = activities(events, "ActivityRetryScheduled")
    assert [event["payload"]["retry_backoff_seconds"] for event in retries] == [0, 1]
    assert {event["payload"]["message"] for event in retries} == {
        "no luck on attempt 1",
        "no luck on attempt 2",
    }


@case("local-activity-fails", "local-careful", "local-careless")
async def local_activity_fails(stage: Stage) -> None:
    run = await careful(stage, "flaky", [9], retry_policy={"max_attempts": 2})
    assert await run.result() == ["no luck on attempt 2", "NoLuck", False]

    policy = {"max_attempts": 5, "non_retryable_error_types": ["BadCard"]}
    run = await careful(stage, "charge", ["stolen"], retry_policy=policy)
    assert await run.result() == ["the card is stolen", "BadCard", True]
    assert len(activities(await run.history(), "ActivityStarted")) == 1

    run = await careful(stage, "nobody-has-this", [])
    message, exception_type, non_retryable = await run.result()
    assert "nobody-has-this" in message
    assert (exception_type, non_retryable) == ("NonRetryableError", True)

    run = await stage.start("local-careless", "flaky", [9])
    failure = await run.failure(WorkflowFailed)
    assert str(failure) == "no luck on attempt 1"


@case("local-activity-heartbeats", "local-careful")
async def local_activity_heartbeats(stage: Stage) -> None:
    run = await careful(stage, "beat", [4, 0.01, 0])

    assert await run.result() == 4
    beats = activities(await run.history(), "ActivityHeartbeatRecorded")
    assert [event["payload"]["progress"]["details"]["done"] for event in beats] == [1, 2, 3, 4]


@case("local-activity-times-out", "local-careful")
async def local_activity_times_out(stage: Stage) -> None:
    run = await careful(stage, "stall", [1, 1.2], start_to_close_timeout=1)

    message, exception_type, _ = await run.result()
    events = await run.history()
    (ended,) = activities(events, "ActivityTimedOut")
    assert ended["payload"]["timeout_kind"] == "start_to_close"
    assert (message, exception_type) == (
        ended["payload"]["message"],
        ended["payload"]["exception_type"],
    )

    # A busy machine may need more than the second attempt.
    policy = {"max_attempts": 99}
    run = await careful(stage, "stall", [1, 1.2], start_to_close_timeout=1, retry_policy=policy)
    assert (await run.result()).startswith("in time on attempt")


@case("local-activity-cancelled", "local-careful", worker=False)
async def local_activity_cancelled(stage: Stage) -> None:
    """A worker that is to stop ends what it does itself, and says so."""
    async with stage.worker():
        run = await careful(stage, "work-until-cancelled", [stage.name])
        await beacon(f"{stage.name}:working").wait()
    async with stage.worker():
        message, exception_type, non_retryable = await run.result()

    assert (exception_type, non_retryable) == ("ActivityCancelled", True)
    (ended,) = activities(await run.history(), "ActivityCancelled")
    assert ended["payload"]["message"] == message


@case("local-activity-closed-run", "local-careful")
async def local_activity_closed_run(stage: Stage) -> None:
    """The run is cancelled while its worker is busy: nothing of the work is told."""
    run = await careful(stage, "work-until-cancelled", [stage.name])
    await beacon(f"{stage.name}:working").wait()
    await run.client.cancel_workflow(run.workflow_id, reason="enough")

    assert await run.closed() == "cancelled"
    assert activities(await run.history()) == []


async def careful(stage: Stage, activity_type: str, arguments: list[Any], **options: Any) -> Run:
    return await stage.start("local-careful", activity_type, arguments, options)


def activities(events: list[Event], event_type: str = "Activity") -> list[Event]:
    """The events of activities, all or of one type."""
    return [event for event in events if kind(event).startswith(event_type)]


def is_local(event: Event) -> bool:
    payload = event["payload"]
    return (payload.get("execution_mode"), payload.get("local_activity")) == ("local", True)

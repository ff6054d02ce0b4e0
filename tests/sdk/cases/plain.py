"""Activities, retries, timeouts, heartbeats, timers, sizes and failures."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from datetime import datetime

import httpx
from durable_workflow import Worker, WorkflowCancelled, WorkflowFailed

from tests.sdk import programs
from tests.sdk.cases.registry import case
from tests.sdk.programs.beacons import beacon
from tests.sdk.replaying import Event, kind
from tests.sdk.sdk_harness import PATIENCE, SHUTDOWN_TIMEOUT, Run, Stage

ONE_ATTEMPT = {"max_attempts": 1, "backoff_seconds": [], "non_retryable_error_types": []}


@case("quickstart", "greeter", worker=False)
async def quickstart(stage: Stage) -> None:
    worker = Worker(
        stage.client,
        task_queue=stage.queue,
        workflows=[programs.plain.Greeter],
        activities=[programs.activities.greet],
        shutdown_timeout=SHUTDOWN_TIMEOUT,
    )
    run = await stage.start("greeter", "world")
    description = await worker.run_until(workflow_id=run.workflow_id, timeout=PATIENCE)

    assert description.status == "completed"
    assert await stage.client.get_result(run.handle) == "hello, world"
    assert await run.kinds() == [
        "StartAccepted",
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityCompleted",
        "WorkflowCompleted",
    ]


@case("sequential-activities", "counting")
async def sequential_activities(stage: Stage) -> None:
    run = await stage.start("counting", 1, 6)

    assert await run.result() == [1, 2, 3, 4, 5, 6, 7]


@case("retry-succeeds", "lucky")
async def retry_succeeds(stage: Stage) -> None:
    run = await stage.start("lucky", 2, 3)

    assert await run.result() == {"attempt": 3}
    events = await run.history()
    assert attempts(events) == [1, 2, 3]
    retries = [event["payload"] for event in events if kind(event) == "ActivityRetryScheduled"]
    assert [retry["retry_backoff_seconds"] for retry in retries] == [0, 1]
    assert seconds_between(events, "ActivityRetryScheduled", "ActivityStarted") >= 1


@case("retry-exhausted", "lucky")
async def retry_exhausted(stage: Stage) -> None:
    run = await stage.start("lucky", 9, 2)

    failure = await run.failure(WorkflowFailed)
    assert str(failure) == "no luck on attempt 2"
    assert failure.exception_class.endswith("activities.NoLuck")
    assert await run.status() == "failed"
    assert attempts(await run.history()) == [1, 2]


@case("retry-exhausted-caught", "careful")
async def retry_exhausted_caught(stage: Stage) -> None:
    run = await stage.start(
        "careful", "flaky", [9], {"retry_policy": {"max_attempts": 2, "backoff_seconds": [0]}}
    )

    told = await run.result()
    assert told == {
        "failed": "flaky",
        "message": "no luck on attempt 2",
        "type": "NoLuck",
        "class": told["class"],
        "non_retryable": False,
        "known": True,
    }
    assert told["class"].endswith("activities.NoLuck")


@case("non-retryable-type", "careful")
async def non_retryable_type(stage: Stage) -> None:
    policy = {"max_attempts": 5, "backoff_seconds": [0], "non_retryable_error_types": ["BadCard"]}
    run = await stage.start("careful", "charge", ["stolen"], {"retry_policy": policy})

    told = await run.result()
    assert (told["failed"], told["type"], told["message"]) == (
        "charge",
        "BadCard",
        "the card is stolen",
    )
    assert attempts(await run.history()) == [1]


@case("non-retryable-error", "careful")
async def non_retryable_error(stage: Stage) -> None:
    policy = {"max_attempts": 5, "backoff_seconds": [0]}
    run = await stage.start("careful", "charge", ["unreadable"], {"retry_policy": policy})

    told = await run.result()
    assert (told["type"], told["non_retryable"]) == ("NonRetryableError", True)
    assert attempts(await run.history()) == [1]


@case("no-retry-policy", "careful")
async def no_retry_policy(stage: Stage) -> None:
    run = await stage.start("careful", "flaky", [1], {})

    assert (await run.result())["message"] == "no luck on attempt 1"
    assert attempts(await run.history()) == [1]


@case("start-to-close-retried", "overtime")
async def start_to_close_retried(stage: Stage) -> None:
    run = await stage.start("overtime")

    assert (await run.result()).startswith("in time on attempt")
    events = await run.history()
    assert attempts(events)[:2] == [1, 2]
    assert [kind(event) for event in events].count("ActivityCompleted") == 1


@case("start-to-close-expired", "careful")
async def start_to_close_expired(stage: Stage) -> None:
    options = {"start_to_close_timeout": 1, "retry_policy": ONE_ATTEMPT}
    run = await stage.start("careful", "stall", [1, 1.5], options)

    assert (await run.result())["failed"] == "stall"
    assert await timeout_kind(run) == "start_to_close"


@case("heartbeat-timeout-retried", "careful")
async def heartbeat_timeout_retried(stage: Stage) -> None:
    options = {
        "heartbeat_timeout": 3,
        "start_to_close_timeout": 600,
        # A driver that is slow for a moment loses an attempt, and has others.
        "retry_policy": {"max_attempts": 90, "backoff_seconds": [0]},
    }
    light = stage.new_id()
    run = await stage.start("careful", "beat", [5, 0.8, 1, light], options)
    await run.event("ActivityRetryScheduled")
    # Now that it was given up, the first attempt ends, and nobody listens.
    beacon(light).set()

    assert await run.result() == {"value": 5}
    events = await run.history()
    assert attempts(events)[:2] == [1, 2]
    retries = [event["payload"] for event in events if kind(event) == "ActivityRetryScheduled"]
    assert {retry["timeout_kind"] for retry in retries} == {"heartbeat"}


@case("schedule-to-start-expired", "careful")
async def schedule_to_start_expired(stage: Stage) -> None:
    options = {
        "queue": f"{stage.queue}-of-nobody",
        "schedule_to_start_timeout": 1,
        "retry_policy": ONE_ATTEMPT,
    }
    run = await stage.start("careful", "echo", ["never"], options)

    assert (await run.result())["failed"] == "echo"
    assert await timeout_kind(run) == "schedule_to_start"


@case("schedule-to-close-expired", "careful")
async def schedule_to_close_expired(stage: Stage) -> None:
    options = {
        "schedule_to_close_timeout": 3,
        "retry_policy": {"max_attempts": 50, "backoff_seconds": [1]},
    }
    run = await stage.start("careful", "flaky", [99], options)

    assert (await run.result())["failed"] == "flaky"
    assert len(attempts(await run.history())) <= 4


@case("heartbeat-details", "careful")
async def heartbeat_details(stage: Stage) -> None:
    run = await stage.start("careful", "beat", [3, 0.05, 0], {"heartbeat_timeout": 10})

    assert await run.result() == {"value": 3}
    beats = [event for event in await run.history() if kind(event) == "ActivityHeartbeatRecorded"]
    assert [beat["payload"]["progress"]["details"]["done"] for beat in beats] == [1, 2, 3]


@case("cancel-reaches-activity", "cancellable")
async def cancel_reaches_activity(stage: Stage) -> None:
    key = stage.new_id()
    run = await stage.start("cancellable", key)
    await beacon(f"{key}:working").wait()

    await run.handle.cancel(reason="enough")

    await beacon(f"{key}:stopped").wait()
    assert str(await run.failure(WorkflowCancelled)) == "enough"


@case("timers", "sleeper")
async def timers(stage: Stage) -> None:
    run = await stage.start("sleeper", [0, 1, 0.4])

    assert await run.result() == 3
    events = await run.history()
    scheduled = [
        event["payload"]["delay_seconds"] for event in events if kind(event) == "TimerScheduled"
    ]
    assert scheduled == [0, 1, 1]
    assert seconds_between(events, "TimerScheduled", "TimerFired") >= 1


@case("routing", "routed", "located")
async def routing(stage: Stage) -> None:
    elsewhere = f"{stage.queue}-elsewhere"
    async with stage.worker(elsewhere):
        run = await stage.start("routed", elsewhere)

        assert await run.result() == {"here": stage.queue, "there": elsewhere, "child": elsewhere}


@case("fan-out-hundred", "fan-out")
async def fan_out_hundred(stage: Stage) -> None:
    run = await stage.start("fan-out", 100)

    assert await run.result() == sum(range(1, 101))
    assert (await run.kinds()).count("ActivityCompleted") == 100


@case("long-history", "diary")
async def long_history(stage: Stage) -> None:
    run = await stage.start("diary", 480)

    assert await run.result() == sum(range(1, 481))
    told = await run.kinds()
    assert told.count("SideEffectRecorded") == 480
    assert told.count("ActivityCompleted") == 48
    assert len(told) > 600


@case("result-too-large", "careful")
async def result_too_large(stage: Stage) -> None:
    retries = {"retry_policy": {"max_attempts": 5, "backoff_seconds": [0]}}
    run = await stage.start("careful", "repeat", ["word ", 2_000], retries)

    told = await run.result()
    assert (told["failed"], told["type"]) == ("repeat", "StructuralLimitExceeded")
    assert told["non_retryable"]
    assert "more than 1024" in told["message"]
    assert attempts(await run.history()) == [1]


@case("workflow-failure", "shop")
async def workflow_failure(stage: Stage) -> None:
    run = await stage.start("shop", "apples")

    failure = await run.failure(WorkflowFailed)
    assert str(failure) == "no apples left"
    assert failure.exception_class.endswith("plain.OutOfStock")
    told = (await run.history())[-1]["payload"]
    assert told["exception_type"] == "OutOfStock"


@case("plain-json-start", "greeter")
async def plain_json_start(stage: Stage) -> None:
    workflow_id = stage.new_id()
    headers = {"X-Durable-Workflow-Control-Plane-Version": "2", "X-Namespace": "default"}
    body = {
        "workflow_id": workflow_id,
        "workflow_type": "greeter",
        "task_queue": stage.queue,
        "input": ["plain world"],
    }
    async with httpx.AsyncClient(base_url=stage.client.base_url, headers=headers) as plain:
        response = await plain.post("/api/workflows", json=body)
    assert response.status_code == 201, response.text

    run = stage.adopt(Run(stage.client, stage.client.get_workflow_handle(workflow_id)))
    assert await run.result() == "hello, plain world"


def attempts(events: list[Event]) -> list[int]:
    """The numbers of the attempts, in order."""
    return [
        event["payload"]["attempt_number"] for event in events if kind(event) == "ActivityStarted"
    ]


async def timeout_kind(run: Run) -> str:
    """Which limit the run's activity exceeded."""
    (event,) = [event for event in await run.history() if kind(event) == "ActivityTimedOut"]
    return str(event["payload"]["timeout_kind"])


def seconds_between(events: list[Event], earlier: str, later: str) -> float:
    """From the last `earlier` to the last `later`, by the server's clock."""
    first, second = (
        [datetime.fromisoformat(event["recorded_at"]) for event in events if kind(event) == wanted][
            -1
        ]
        for wanted in (earlier, later)
    )
    return (second - first).total_seconds()

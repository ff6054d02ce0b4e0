"""Activities that the SDK's client starts by themselves, without a workflow."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
from typing import Any

from durable_workflow import WorkflowCancelled, WorkflowFailed, WorkflowTerminated
from durable_workflow.errors import InvalidArgument, ServerError

from tests.sdk.cases.registry import case
from tests.sdk.programs.beacons import beacon
from tests.sdk.sdk_harness import GLANCE, PATIENCE, Stage, complete_history, until

HOST_TYPE = "dw.standalone_activity"


async def start(stage: Stage, activity_type: str, *arguments: Any, **options: Any) -> Any:
    options.setdefault("activity_id", stage.new_id())
    return await stage.client.start_activity(
        activity_type=activity_type, task_queue=stage.queue, input=list(arguments), **options
    )


async def result(handle: Any) -> Any:
    return await handle.result(poll_interval=GLANCE, timeout=PATIENCE)


async def ending(handle: Any, expected: type[Exception]) -> Exception:
    try:
        returned = await result(handle)
    except expected as failure:
        return failure
    raise AssertionError(f"{handle.activity_id} returned {returned!r}")


async def told(stage: Stage, handle: Any) -> list[str]:
    events = await complete_history(stage.client, handle.activity_id, handle.workflow_run_id)
    return [str(event["event_type"]) for event in events]


@case("standalone-activity", worker=False)
async def standalone_activity(stage: Stage) -> None:
    handle = await start(stage, "greet", "you", business_key="k", activity_class="Greeting")
    assert (handle.workflow_type, handle.activity_type) == (HOST_TYPE, "greet")
    fresh = await handle.describe()
    assert (fresh.status, fresh.activity_status, fresh.attempt_count) == ("running", "pending", 0)
    assert fresh.workflow_run_id == handle.workflow_run_id
    assert fresh.activity_execution_id == handle.activity_execution_id
    assert handle.activity_id in await listed(stage, "running")

    async with stage.worker():
        assert await result(handle) == "hello, you"

    done = await handle.describe()
    assert (done.status, done.activity_status, done.attempt_count) == ("completed", "completed", 1)
    assert (done.result, done.business_key, done.activity_class) == ("hello, you", "k", "Greeting")
    assert (done.task_queue, done.namespace) == (stage.queue, "default")
    assert done.closed_at is not None
    assert handle.activity_id in await listed(stage, "completed")
    assert handle.activity_id not in await listed(stage, "running")
    assert await told(stage, handle) == [
        "StartAccepted",
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityCompleted",
        "WorkflowCompleted",
    ]
    workflows = await stage.client.list_workflows(page_size=200)
    assert handle.activity_id not in {run.workflow_id for run in workflows.executions}


@case("standalone-retries")
async def standalone_retries(stage: Stage) -> None:
    policy = {"max_attempts": 3, "backoff_seconds": [0]}
    lucky = await start(stage, "flaky", 2, retry_policy=policy)
    unlucky = await start(stage, "flaky", 9, retry_policy=policy)
    hopeless = await start(stage, "charge", "unreadable", retry_policy=policy)

    assert await result(lucky) == 3
    await ending(unlucky, WorkflowFailed)
    await ending(hopeless, WorkflowFailed)

    assert (await unlucky.describe()).attempt_count == 3
    assert (await hopeless.describe()).attempt_count == 1
    assert (await told(stage, unlucky))[-2:] == ["ActivityFailed", "WorkflowFailed"]
    assert unlucky.activity_id in await listed(stage, "failed")


@case("standalone-time-outs")
async def standalone_time_outs(stage: Stage) -> None:
    policy = {"max_attempts": 99, "backoff_seconds": [0]}
    late = await start(stage, "stall", 1, 3.0, start_to_close_timeout_seconds=1)
    light = stage.new_id()
    silent = await start(stage, "beat", 2, 0.05, 1, light, heartbeat_timeout_seconds=1)
    cured = await start(
        stage, "stall", 1, 3.0, start_to_close_timeout_seconds=1, retry_policy=policy
    )
    spent = await start(
        stage, "flaky", 99, schedule_to_close_timeout_seconds=1, retry_policy=_patient()
    )
    lost = await stage.client.start_activity(
        activity_type="greet",
        task_queue=f"{stage.queue}-nobody",
        input=["you"],
        schedule_to_start_timeout_seconds=1,
    )

    assert str(await result(cured)).startswith("in time on attempt")
    for handle in (late, silent, spent, lost):
        await ending(handle, WorkflowFailed)
    beacon(light).set()
    for handle in (late, silent, lost):
        assert (await told(stage, handle))[-2:] == ["ActivityTimedOut", "WorkflowFailed"]


def _patient() -> dict[str, Any]:
    return {"max_attempts": 99, "backoff_seconds": [3600]}


@case("standalone-cancelled")
async def standalone_cancelled(stage: Stage) -> None:
    key = stage.new_id()
    handle = await start(stage, "work-until-cancelled", key)
    await asyncio.wait_for(beacon(f"{key}:working").wait(), PATIENCE)
    beating = await until(handle.describe, lambda seen: seen.last_heartbeat_at is not None)
    assert beating.activity_status == "running"

    await handle.cancel(reason="enough")

    await asyncio.wait_for(beacon(f"{key}:stopped").wait(), PATIENCE)
    await ending(handle, WorkflowCancelled)
    assert (await handle.describe()).activity_status == "cancelled"

    waiting = await stage.client.start_activity(
        activity_type="greet", task_queue=f"{stage.queue}-nobody", input=["you"]
    )
    await stage.client.terminate_workflow(waiting.activity_id)
    await ending(waiting, WorkflowTerminated)


@case("standalone-duplicates", worker=False)
async def standalone_duplicates(stage: Stage) -> None:
    handle = await start(stage, "echo", 1)
    again = {"activity_id": handle.activity_id}
    await refused(start(stage, "echo", 2, **again), InvalidArgument)
    async with stage.worker():
        assert await result(handle) == 1
        second = await start(stage, "echo", 2, **again)
        assert second.workflow_run_id != handle.workflow_run_id
        assert await result(second) == 2

    workflow = await stage.client.start_workflow(
        workflow_type="greeter", workflow_id=stage.new_id(), task_queue="unused", input=[]
    )
    await refused(start(stage, "echo", 3, activity_id=workflow.workflow_id), InvalidArgument)
    await stage.client.terminate_workflow(workflow.workflow_id)
    unknown = stage.client.get_activity_handle("nobody-did-this")
    assert (await refused(unknown.describe(), ServerError)).status == 404


async def refused(asking: Any, expected: type[Exception]) -> Any:
    try:
        answer = await asking
    except expected as refusal:
        return refusal
    raise AssertionError(f"it was not refused: {answer!r}")


async def listed(stage: Stage, status: str) -> set[str]:
    found: set[str] = set()
    token = None
    while True:
        page = await stage.client.list_activities(
            status=status, page_size=50, next_page_token=token
        )
        found |= {activity.activity_id for activity in page.activities}
        token = page.next_page_token
        if token is None:
            return found

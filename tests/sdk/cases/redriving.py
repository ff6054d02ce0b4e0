"""Failed runs that go on in a new run."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import WorkflowFailed
from durable_workflow.errors import ServerError, WorkflowNotFound

from tests.sdk.cases.registry import case
from tests.sdk.programs.beacons import beacon
from tests.sdk.release import since
from tests.sdk.replaying import Event, kind
from tests.sdk.sdk_harness import Run, Stage


async def redrive(run: Run, run_id: str | None, **options: Any) -> str:
    """Continue a failed run as far as the release knows how; the new run's id."""
    assert run_id is not None
    if since("2.12.0"):
        done = await run.client.redrive_workflow(run.workflow_id, run_id, **options)
        assert (done.outcome, done.command_status) == ("redriven", "accepted")
        return str(done.run_id)
    path = f"/workflows/{run.workflow_id}/runs/{run_id}/redrive"
    answer = await run.client._request("POST", path, json=options, context=run.workflow_id)
    return str(answer["run_id"])


async def the_dark(stage: Stage, program: str, key: str) -> Run:
    """A run that has failed because it was dark."""
    run = await stage.start(program, key)
    beacon(f"{key}:go").set()
    await run.failure(WorkflowFailed)
    beacon(f"{key}:lit").set()
    return run


def types_of(events: list[Event]) -> list[str]:
    return [
        event["payload"]["activity_type"] for event in events if kind(event) == "ActivityStarted"
    ]


@case("redrive", "explorer", "greeter")
async def redrive_a_run(stage: Stage) -> None:
    key = stage.new_id()
    run = await stage.start("explorer", key)
    await run.signal("hear", "start")
    await run.event("ActivityScheduled", times=5)
    await run.signal("hear", "late")
    await run.event("SignalReceived", times=2)
    told = await run.client.update_workflow(
        run.workflow_id, "tell", args=["later"], wait_for="completed"
    )
    assert told["result"] == 3
    beacon(f"{key}:go").set()
    failure = await run.failure(WorkflowFailed)
    assert "dark" in str(failure)
    failed = (await run.history())[-1]["payload"]
    if since("2.12.0"):
        assert failed["failed_step_sequence"] > 1
        assert failed["failed_activity_execution_id"]

    beacon(f"{key}:lit").set()
    first, second = run.run_id, await redrive(run, run.run_id)

    assert second != first
    assert await run.result() == {
        "first": 1,
        "caught": True,
        "child": "hello, child",
        "both": [1, 1],
        "seen": "seen",
        "same": True,
        "heard": ["start", "late", "later"],
    }
    events = await run.history(second)
    reused = [e for e in events if "reused_from_run_id" in e["payload"]]
    assert {event["payload"]["reused_from_run_id"] for event in reused} == {first}
    assert len(reused) == 3
    runs = (await run.client.list_workflow_runs(run.workflow_id)).runs
    assert [(it.run_id, it.status) for it in runs] == [(first, "failed"), (second, "completed")]


@case("redrive-list", "search-party")
async def redrive_a_list(stage: Stage) -> None:
    key = stage.new_id()
    run = await the_dark(stage, "search-party", key)

    await redrive(run, run.run_id)

    assert await run.result() == [1, "left", "seen", "right"]


@case("redrive-child", "careless-parent", "search-party")
async def redrive_a_parent(stage: Stage) -> None:
    key = stage.new_id()
    run = await the_dark(stage, "careless-parent", key)

    await redrive(run, run.run_id)

    # The parent's child is a new one, which does everything anew.
    assert await run.result() == [1, 2, "left", "seen", "right"]


@case("redrive-again", "search-party")
async def redrive_again(stage: Stage) -> None:
    key = stage.new_id()
    run = await stage.start("search-party", key)
    beacon(f"{key}:go").set()
    await run.failure(WorkflowFailed)

    second = await redrive(run, run.run_id, request_id="try-2")
    assert await redrive(run, run.run_id, request_id="try-2") == second
    await run.failure(WorkflowFailed)
    assert await redrive(run, run.run_id, request_id="try-2") == second
    await refused(redrive(run, run.run_id), "historical_run_command_rejected")
    beacon(f"{key}:lit").set()
    await redrive(run, second)

    assert await run.result() == [1, "left", "seen", "right"]


@case("redrive-refused", "greeter", "sleeper")
async def redrive_refused(stage: Stage) -> None:
    done = await stage.start("greeter", "you")
    await done.result()
    await refused(redrive(done, done.run_id), "run_not_failed")
    sleeping = await stage.start("sleeper", [3600])
    await sleeping.event("TimerScheduled")
    await refused(redrive(sleeping, sleeping.run_id), "run_not_failed")
    await sleeping.handle.cancel()
    await refused(redrive(sleeping, sleeping.run_id), "run_not_failed")
    await refused(redrive(done, sleeping.run_id), "run_not_found")
    nobody = Run(stage.client, stage.client.get_workflow_handle(stage.new_id()))
    try:
        await redrive(nobody, done.run_id)
    except WorkflowNotFound:
        return
    raise AssertionError("a workflow that does not exist was continued")


async def refused(asking: Any, reason: str) -> None:
    told: Any = None
    try:
        await asking
    except ServerError as refusal:
        told = refusal.body
    assert isinstance(told, dict), "it was not refused"
    assert told["reason"] == reason, told

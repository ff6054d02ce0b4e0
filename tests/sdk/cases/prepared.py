"""Prepared local activities: the worker asks before it runs one, and the server keeps its attempts.

The SDK runs each of them in a process of its own.
"""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
import sys

from durable_workflow.workflow import CompleteWorkflow, replay

from tests.sdk import programs
from tests.sdk.cases.cancellation import PROCESS_PATIENCE, cooperative, request
from tests.sdk.cases.registry import case
from tests.sdk.replaying import decoded, kind, kinds
from tests.sdk.sdk_harness import Run, Stage

PREPARING = (
    "prepared_local_activities",
    "prepared_local_activity_groups",
    "prepared_local_activity_cancellation_policies",
)


@case("prepared-errands", "prepared-errands", worker=False)
async def prepared_errands(stage: Stage) -> None:
    """On a busy machine a process may begin too late; then the attempt is recovered."""
    other = f"{stage.queue}-other"
    async with cooperative(stage, *PREPARING), stage.worker(other):
        run = await stage.start("prepared-errands", other)
        await run.event("ConditionWaitOpened", patience=PROCESS_PATIENCE)
        await run.signal("pay", 4)
        await run.event("ConditionWaitOpened", times=2)
        paid = await run.client.query_workflow(run.workflow_id, "paid")
        assert paid["result"] == 4
        await run.signal("pay", 6)
        for turn in (3, 4):
            await run.event("ConditionWaitOpened", times=turn, patience=PROCESS_PATIENCE)
            await run.signal("pay", 1)
        told = await run.result(PROCESS_PATIENCE)

    attempt = told.pop(3)
    assert attempt >= 2
    assert told == [2, 3, [4, [None, "remote"], 3], ["the card is stolen", "BadCard"]]
    events = await run.history()
    local = [e["payload"] for e in events if e["payload"].get("local_activity")]
    assert {payload["execution_mode"] for payload in local} == {"local"}
    assert kinds(events).count("ActivityRetryScheduled") >= 1
    assert kinds(events).count("ActivityHeartbeatRecorded") >= 3
    assert kinds(events).count("ActivityFailed") == 1
    await require_counted(run, [other])


@case("prepared-cancelled", "prepared-tidy", worker=False)
async def prepared_cancelled(stage: Stage) -> None:
    """Local work is stopped, alone and in a list, and then the code tidies up with local work."""
    async with cooperative(stage, *PREPARING):
        for policy, alone in ((None, True), ("wait_cancellation_completed", False)):
            run = await stage.start("prepared-tidy", policy, alone)
            await run.event("ActivityHeartbeatRecorded", patience=PROCESS_PATIENCE)
            await request(run)

            assert await run.result(PROCESS_PATIENCE) == ["enough", 2]
            types = await run.kinds()
            asked = types.index("CooperativeCancellationRequested")
            assert asked < types.index("ActivityCancelled")
            await require_counted(run, [policy, alone])
            # The SDK's replayer takes no policies of local work.
            stage.runs.remove(run)


@case("prepared-killed", "local-careless", worker=False)
async def prepared_killed(stage: Stage) -> None:
    """A worker dies between leave and outcome; the next one recovers the attempt."""
    doomed = await another_worker(stage)
    try:
        run = await stage.start("local-careless", "stall", [1, 600.0])
        await run.event("ActivityStarted", patience=PROCESS_PATIENCE)
    finally:
        doomed.kill()
        await doomed.wait()
    async with cooperative(stage, *PREPARING):
        told = await run.result(PROCESS_PATIENCE)

    assert told.startswith("in time on attempt")
    events = await run.history()
    (first, *_) = [e["payload"] for e in events if kind(e) == "ActivityRetryScheduled"]
    assert first["retry_reason"] == "cold_replay"
    assert first["local_recovery"]["callback_stop_state"] == "unknown"
    await require_counted(run, ["stall", [1, 600.0]])


async def another_worker(stage: Stage) -> asyncio.subprocess.Process:
    """A worker in a process of its own, which can be killed."""
    options = ["--server", stage.client.base_url, "--queue", stage.queue]
    for capability in ("cooperative_cancellation", *PREPARING):
        options += ["--capability", capability]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.sdk.work", *options, stdout=asyncio.subprocess.DEVNULL
    )


async def require_counted(run: Run, arguments: list[object]) -> None:
    """A cold worker that counts the calls of the code finds each under its number."""
    events = await run.history()
    started = next(event for event in events if kind(event) == "WorkflowStarted")
    outcome = replay(
        programs.BY_NAME[started["payload"]["workflow_type"]],
        events,
        arguments,
        workflow_id=run.workflow_id,
        run_id=(await run.client.describe_workflow(run.workflow_id)).run_id,
        prepare_local_activities=True,
        prepare_local_activity_groups=True,
        local_activity_cancellation_policies=("try_cancel", "wait_cancellation_completed"),
    )
    (end,) = outcome.commands
    assert isinstance(end, CompleteWorkflow)
    assert end.result == decoded(events[-1]["payload"]["output"])

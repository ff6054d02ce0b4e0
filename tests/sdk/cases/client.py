"""What the SDK's client can ask of the server about a workflow, and tell it to do."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import durable_workflow
from durable_workflow import (
    SignalFailed,
    WorkflowAlreadyStarted,
    WorkflowCancelled,
    WorkflowNotFound,
    WorkflowTerminated,
)

from tests.sdk.cases.registry import case
from tests.sdk.release import since
from tests.sdk.replaying import kinds
from tests.sdk.sdk_harness import Run, Stage


@case("start-duplicates", "greeter", worker=False)
async def start_duplicates(stage: Stage) -> None:
    run = await stage.start("greeter", "once")

    await refused_duplicate(stage, run, "fail")
    same = await stage.start(
        "greeter", "twice", workflow_id=run.workflow_id, duplicate_policy="use-existing"
    )
    assert same.run_id == run.run_id

    async with stage.worker():
        assert await run.result() == "hello, once"
    await refused_duplicate(stage, run, "fail")
    await refused_duplicate(stage, run, "use-existing")


@case("cancel", "sleeper")
async def cancel(stage: Stage) -> None:
    run = await stage.start("sleeper", [3600])
    await run.event("TimerScheduled")

    await run.handle.cancel(reason="changed my mind")

    assert str(await run.failure(WorkflowCancelled)) == "changed my mind"
    assert await run.status() in ("cancelled", "canceled")
    assert (await run.kinds())[-1] == "WorkflowCancelled"


@case("terminate", "sleeper")
async def terminate(stage: Stage) -> None:
    run = await stage.start("sleeper", [3600])
    await run.event("TimerScheduled")

    await run.handle.terminate(reason="pulled the plug")

    assert str(await run.failure(WorkflowTerminated)) == "pulled the plug"
    assert await run.status() == "terminated"
    assert (await run.kinds())[-1] == "WorkflowTerminated"


@case("describe-and-list", "greeter", worker=False)
async def describe_and_list(stage: Stage) -> None:
    run = await stage.start("greeter", "listed")

    fresh = await run.handle.describe()
    assert (fresh.workflow_id, fresh.run_id, fresh.status) == (
        run.workflow_id,
        run.run_id,
        "pending",
    )
    assert (fresh.workflow_type, fresh.task_queue) == ("greeter", stage.queue)
    assert (fresh.namespace, fresh.input, fresh.output) == ("default", ["listed"], None)

    async with stage.worker():
        assert await run.result() == "hello, listed"

    done = await run.handle.describe()
    assert (done.status, done.output) == ("completed", "hello, listed")
    assert run.workflow_id in await listed(stage, "completed")
    assert run.workflow_id not in await listed(stage, "running")
    (only,) = (await run.handle.list_runs()).runs
    assert (only.run_id, only.run_number, only.status) == (run.run_id, 1, "completed")
    detail = await run.handle.describe_run()
    assert (detail.run_id, detail.is_current_run, detail.closed_reason) == (
        run.run_id,
        True,
        "completed",
    )
    assert detail.started_at is not None
    assert detail.closed_at is not None
    history = await run.handle.get_history()
    assert kinds(history["events"])[-1] == "WorkflowCompleted"


@case("history-pages", "counting")
async def history_pages(stage: Stage) -> None:
    run = await stage.start("counting", 0, 5)
    assert await run.result() == [0, 1, 2, 3, 4, 5]

    whole = (await run.handle.get_history())["events"]
    pages = []
    token = None
    while True:
        page = await run.handle.get_history(page_size=4, next_page_token=token)
        assert len(page["events"]) <= 4
        pages.extend(page["events"])
        token = page.get("next_page_token")
        if not token:
            break
    assert pages == whole


@case("retention", "greeter")
async def retention(stage: Stage) -> None:
    run = await stage.start("greeter", "kept")
    assert await run.result() == "hello, kept"

    status = await stage.client.retention_status()
    assert (status["namespace"], status["retention_days"]) == ("default", 30)
    assert run.run_id not in status["expired_run_ids"]
    done = await stage.client.retention_pass(run_ids=[run.run_id, "nobody"], limit=5)
    assert (done["processed"], done["pruned"], done["skipped"], done["failed"]) == (2, 0, 2, 0)
    told = {one["run_id"]: (one["outcome"], one["reason"]) for one in done["results"]}
    assert told == {
        run.run_id: ("skipped", "run_not_expired"),
        "nobody": ("skipped", "run_not_found"),
    }
    assert await run.status() == "completed"


@case("not-found", worker=False)
async def not_found(stage: Stage) -> None:
    unknown = stage.client.get_workflow_handle(stage.new_id())

    for ask in (unknown.describe, unknown.list_runs, unknown.cancel, unknown.terminate):
        try:
            await ask()
        except WorkflowNotFound:
            continue
        raise AssertionError(f"{ask.__name__} found a workflow that never was")


@case("signal-closed-run", "greeter")
async def signal_closed_run(stage: Stage) -> None:
    run = await stage.start("greeter", "closed")
    assert await run.result() == "hello, closed"

    try:
        await run.signal("approve", "too late")
    except SignalFailed:
        return
    raise AssertionError("a closed run took a signal")


@case("run-timeout", "sleeper")
async def run_timeout(stage: Stage) -> None:
    run = await stage.start("sleeper", [3600], run_timeout_seconds=1)

    await timed_out(run, "run_timeout")


@case("execution-timeout", "treadmill")
async def execution_timeout(stage: Stage) -> None:
    run = await stage.start("treadmill", 0, execution_timeout_seconds=3, run_timeout_seconds=3)

    await timed_out(run, "execution_timeout")


async def refused_duplicate(stage: Stage, run: Run, policy: str) -> None:
    """A second start of the run's id is refused."""
    try:
        await stage.start("greeter", "again", workflow_id=run.workflow_id, duplicate_policy=policy)
    except WorkflowAlreadyStarted:
        return
    raise AssertionError(f"a duplicate start was accepted under {policy!r}")


async def listed(stage: Stage, status: str) -> list[str]:
    """Every workflow id of the greeter in that status, from all pages."""
    ids: list[str] = []
    token: str | None = None
    while True:
        page = await stage.client.list_workflows(
            workflow_type="greeter", status=status, page_size=50, next_page_token=token
        )
        ids.extend(known.workflow_id for known in page.executions)
        token = page.next_page_token
        if not token:
            return ids


async def timed_out(run: Run, timeout_kind: str) -> None:
    """The run closes as failed, and its history tells which limit it exceeded."""
    if since("2.12.0"):
        await run.failure(durable_workflow.WorkflowTimedOut)
    else:
        assert await run.result() is None
    assert await run.status() == "failed"
    end = (await run.history())[-1]
    assert (end["event_type"], end["payload"]["timeout_kind"]) == ("WorkflowTimedOut", timeout_kind)

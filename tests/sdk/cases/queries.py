"""Queries: what they see, what they leave alone, and how they are refused."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
from typing import Any

import durable_workflow
from durable_workflow import QueryFailed, WorkflowNotFound

from tests.sdk import programs
from tests.sdk.cases.registry import case
from tests.sdk.release import since
from tests.sdk.sdk_harness import SHUTDOWN_TIMEOUT, Run, Stage, working


@case("query", "ledger")
async def query(stage: Stage) -> None:
    run = await opened(stage)
    told = await run.kinds()

    assert await ask(run, "total") == 0
    assert await ask(run, "report", "all") == {
        "title": "all",
        "owner": "ada",
        "entries": [],
        "note": None,
    }
    assert await ask(run, "nothing") is None

    assert await run.kinds() == told, "a query has written history"
    assert await closed(run) == 0


@case("query-sees-signals", "ledger")
async def query_sees_signals(stage: Stage) -> None:
    """Also those that no worker has come to yet."""
    run = await opened(stage)

    for number in range(1, 6):
        await run.signal("enter", number)
        assert await ask(run, "total") == sum(range(number + 1))

    assert (await ask(run, "report", "large", 4))["entries"] == [4, 5]
    assert await closed(run) == 15


@case("query-completed-run", "ledger")
async def query_completed_run(stage: Stage) -> None:
    run = await opened(stage)
    await run.signal("enter", 7)
    assert await closed(run) == 7

    assert await ask(run, "total") == 7
    assert (await ask(run, "report", "final"))["owner"] == "ada"
    assert (await run.kinds())[-1] == "WorkflowCompleted"


@case("query-unknown", "ledger")
async def query_unknown(stage: Stage) -> None:
    run = await opened(stage)

    assert await refusal(run, "colour") == (404, "rejected_unknown_query")
    try:
        await stage.client.query_workflow(f"nobody-{stage.name}", "total")
    except WorkflowNotFound:
        assert await closed(run) == 0
        return
    raise AssertionError("a query to nobody was answered")


@case("query-wrong-arguments", "ledger")
async def query_wrong_arguments(stage: Stage) -> None:
    """Workers of 2.x tell beforehand what their queries take; those of 0.4 find out."""
    run = await opened(stage)

    for arguments in ((), ("title", 1, "too many")):
        known = (422, "invalid_query_arguments"), (409, "query_rejected")
        assert await refusal(run, "report", *arguments) == known[0 if since("2.0.0") else 1]

    assert await closed(run) == 0


@case("query-fails", "ledger")
async def query_fails(stage: Stage) -> None:
    run = await opened(stage)

    message = ""
    try:
        await ask(run, "broken")
    except QueryFailed as failure:
        message = str(failure)
    assert "the ledger is on fire" in message
    assert await refusal(run, "broken") == (409, "query_rejected")
    assert await refusal(run, "strange") == (409, "query_result_encode_failed")

    assert await ask(run, "total") == 0
    assert await closed(run) == 0


@case("query-without-worker", "ledger", worker=False)
async def query_without_worker(stage: Stage) -> None:
    run = await stage.start("ledger", "ada")

    assert await refusal(run, "total") == (409, "query_worker_unavailable")

    async with stage.worker():
        await run.event("ConditionWaitOpened")
        assert await ask(run, "total") == 0
        assert await closed(run) == 0


@case("query-closed-run", "ledger")
async def query_closed_run(stage: Stage) -> None:
    run = await opened(stage)
    await run.handle.cancel(reason="enough")

    assert await refusal(run, "total") == (409, "run_not_active")


@case("query-many", "ledger")
async def query_many(stage: Stage) -> None:
    run = await opened(stage)
    await run.signal("enter", 1)

    totals = await asyncio.gather(*(ask(run, "total") for _ in range(25)))

    assert totals == [1] * 25
    assert await closed(run) == 1


@case("query-authority", "ledger", worker=False)
async def query_authority(stage: Stage) -> None:
    """A worker that insists on being told whether its query still matters."""
    worker = durable_workflow.Worker(
        stage.client,
        task_queue=stage.queue,
        workflows=[programs.BY_NAME["ledger"]],
        activities=programs.ACTIVITIES,
        shutdown_timeout=SHUTDOWN_TIMEOUT,
        require_query_task_authority=True,
    )
    async with working(worker):
        run = await opened(stage)
        await run.signal("enter", 3)
        assert await ask(run, "total") == 3
        assert await refusal(run, "broken") == (409, "query_rejected")
        assert await closed(run) == 3


async def opened(stage: Stage) -> Run:
    """A ledger that waits for entries."""
    run = await stage.start("ledger", "ada")
    await run.event("ConditionWaitOpened")
    return run


async def closed(run: Run) -> Any:
    """The total of a ledger that is told to close."""
    await run.signal("close")
    return await run.result()


async def ask(run: Run, name: str, *arguments: Any) -> Any:
    """The answer to a query."""
    told = await run.client.query_workflow(run.workflow_id, name, args=list(arguments))
    assert told["query_name"] == name
    assert told["workflow_id"] == run.workflow_id
    return told["result"]


async def refusal(run: Run, name: str, *arguments: Any) -> tuple[int | None, str | None]:
    """Status and reason of the SDK's own error for a query that must fail."""
    try:
        answer = await ask(run, name, *arguments)
    except QueryFailed as failure:
        return failure.status, failure.reason
    except durable_workflow.ServerError as failure:
        return failure.status, failure.reason()
    raise AssertionError(f"query {name} was answered with {answer!r}")

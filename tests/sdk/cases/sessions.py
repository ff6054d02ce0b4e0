"""Worker sessions: several activities for one worker, as the SDK schedules and holds them."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,no-any-return"

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from durable_workflow import ServerError, Worker

from tests.sdk import programs
from tests.sdk.cases.registry import case
from tests.sdk.release import since
from tests.sdk.sdk_harness import SHUTDOWN_TIMEOUT, Stage, until, working

if since("2.12.0"):
    from durable_workflow.worker_session import WorkerSessionOptions


@asynccontextmanager
async def able(stage: Stage, *capabilities: str, sessions: int = 10) -> AsyncIterator[Worker]:
    """A worker that tells what it can."""
    worker = Worker(
        stage.client,
        task_queue=stage.queue,
        workflows=[programs.BY_NAME[name] for name in stage.known],
        activities=programs.ACTIVITIES,
        capabilities=capabilities,
        max_concurrent_worker_sessions=sessions,
        shutdown_timeout=SHUTDOWN_TIMEOUT,
    )
    async with working(worker):
        yield worker


async def session_of(stage: Stage, session_id: str) -> dict[str, Any]:
    """What operators see of a session."""
    client = stage.client
    headers = {
        "Authorization": "Bearer perdure",
        "X-Durable-Workflow-Control-Plane-Version": "2",
    }
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers) as http:
        answer = await http.get(f"/api/worker-sessions/{session_id}")
    answer.raise_for_status()
    return dict(answer.json()["session"])


@case("session", "workshop", worker=False)
async def session(stage: Stage) -> None:
    async with able(stage), able(stage):
        run = await stage.start("workshop", 5, {"session_id": stage.name})
        told = await run.result()
        assert len(set(told)) == 1, "every step was done by one worker"
        assert len(told) == 5
        held = await session_of(stage, stage.name)
        assert (held["status"], held["lease_owner"]) == ("active", told[0])
    closed = await session_of(stage, stage.name)
    assert (closed["status"], closed["close_reason"]) == ("closed", "worker_shutdown")


@case("session-requirements", "workshop", worker=False)
async def session_requirements(stage: Stage) -> None:
    terms = {"session_id": stage.name, "requirements": ["gpu:a100"]}
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(able(stage))
        run = await stage.start("workshop", 3, terms)
        await run.event("ActivityScheduled")
        gifted = await stack.enter_async_context(able(stage, "gpu:a100"))
        assert await run.result() == [gifted.worker_id] * 3


@case("session-at-once", "busy-workshop", worker=False)
async def session_at_once(stage: Stage) -> None:
    terms = {"session_id": stage.name, "max_concurrent_activities": 2}
    async with able(stage), able(stage):
        run = await stage.start("busy-workshop", 8, terms)
        assert len(set(await run.result())) == 1


@case("session-verbs", "workshop", worker=False)
async def session_verbs(stage: Stage) -> None:
    async with able(stage) as worker, able(stage):
        held = worker.worker_session(WorkerSessionOptions(stage.name))

        async def create() -> str:
            try:
                return str((await held.create())["outcome"])
            except ServerError as refusal:
                if refusal.status != 412:
                    raise
                return ""  # not registered yet

        assert await until(create, bool) == "created"
        assert (await held.renew())["outcome"] == "heartbeat_recorded"
        run = await stage.start("workshop", 2, {"session_id": stage.name})
        assert await run.result() == [worker.worker_id] * 2
        assert (await held.close())["outcome"] == "closed"

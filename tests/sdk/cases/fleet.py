"""The fleet as operators see and steer it with the SDK's client: workers, builds, queues."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,no-any-return"

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from durable_workflow import Client, ServerError, Worker

from tests.sdk import programs
from tests.sdk.cases.registry import case
from tests.sdk.programs.beacons import beacon
from tests.sdk.sdk_harness import SHUTDOWN_TIMEOUT, Run, Stage, until, working

FRESH_POLLS = 8
"""Each on a connection of its own, so that they reach all nodes."""


@asynccontextmanager
async def built(stage: Stage, build_id: str | None) -> AsyncIterator[Worker]:
    """A worker of one build, which the server knows."""
    worker = Worker(
        stage.client,
        task_queue=stage.queue,
        workflows=[programs.BY_NAME[name] for name in stage.known],
        activities=programs.ACTIVITIES,
        build_id=build_id,
        shutdown_timeout=SHUTDOWN_TIMEOUT,
    )
    async with working(worker):
        await until(lambda: roster(stage), lambda ids: worker.worker_id in ids)
        yield worker


async def roster(stage: Stage, status: str | None = None) -> list[str]:
    found = await stage.client.list_workers(task_queue=stage.queue, status=status)
    return [worker.worker_id for worker in found.workers]


async def refused_everywhere(stage: Stage, worker: Worker) -> None:
    """Wait until every node tells the worker that it drains."""

    async def statuses() -> list[str | None]:
        return [await poll_status(stage, worker) for _ in range(FRESH_POLLS)]

    await until(statuses, lambda told: set(told) == {"draining"})


async def poll_status(stage: Stage, worker: Worker) -> str | None:
    """What a poll that takes nothing is told. It is for validations, of which there are none."""
    body = {"worker_id": worker.worker_id, "task_queue": stage.queue, "timeout_seconds": 0}
    headers = {"X-Durable-Workflow-Protocol-Version": "1.0"}
    async with _http(stage) as http:
        path = "/api/worker/update-validation-tasks/poll"
        answer = await http.post(path, json=body, headers=headers)
    return answer.json().get("poll_status")


async def availability(stage: Stage, run: Run) -> str | None:
    """Who is missing for the task that a run waits for."""
    headers = {"X-Durable-Workflow-Control-Plane-Version": "2"}
    async with _http(stage) as http:
        answer = await http.get(f"/api/workflows/{run.workflow_id}", headers=headers)
    return (answer.json()["next_cause"] or {}).get("staffing")


def _http(stage: Stage) -> httpx.AsyncClient:
    headers = {"Authorization": "Bearer perdure"}
    return httpx.AsyncClient(base_url=stage.client.base_url, headers=headers)


async def cohorts(client: Client, queue: str) -> dict[str | None, Any]:
    rollout = await client.list_task_queue_build_ids(queue)
    assert (rollout.namespace, rollout.task_queue) == ("default", queue)
    assert rollout.stale_after_seconds
    return {cohort.build_id: cohort for cohort in rollout.build_ids}


async def refusal(call: Any) -> ServerError:
    try:
        told = await call
    except ServerError as refused:
        return refused
    raise AssertionError(f"{told} was not refused")


@case("fleet-workers", "greeter", worker=False)
async def fleet_workers(stage: Stage) -> None:
    client = stage.client
    async with built(stage, "b1") as one, built(stage, None) as two:
        whole = await client.list_workers(task_queue=stage.queue)
        assert whole.namespace == "default"
        ids = [worker.worker_id for worker in whole.workers]
        assert ids == sorted([one.worker_id, two.worker_id])
        assert await roster(stage, "stale") == []
        told = await client.describe_worker(one.worker_id)
        assert (told.worker_id, told.task_queue) == (one.worker_id, stage.queue)
        assert (told.runtime, told.build_id, told.status) == ("python", "b1", "active")
        assert told.supported_workflow_types == ["greeter"]
        assert told.max_concurrent_workflow_tasks == one.max_concurrent_workflow_tasks
        assert told.task_slots is not None
        assert told.registered_at is not None

        gone = await client.deregister_worker(two.worker_id)
        assert (gone["worker_id"], gone["outcome"]) == (two.worker_id, "deregistered")
        assert await roster(stage) == [one.worker_id]
        unknown = await refusal(client.describe_worker(two.worker_id))
        assert (unknown.status, unknown.reason()) == (404, "worker_not_found")


@case("fleet-drain", "careful", worker=False)
async def fleet_drain(stage: Stage) -> None:
    client, light = stage.client, stage.name
    async with built(stage, "b1") as worker:
        run = await stage.start("careful", "echo-after-light", ["done", light], {})
        await run.event("ActivityStarted")

        state = await client.drain_task_queue_build_id(stage.queue, "b1")
        assert (state.build_id, state.drain_intent) == ("b1", "draining")
        assert state.drained_at is not None
        again = await client.drain_task_queue_build_id(stage.queue, "b1")
        assert again.drained_at == state.drained_at
        assert await roster(stage, "draining") == [worker.worker_id]
        await refused_everywhere(stage, worker)

        # What it has, it finishes; what follows waits.
        beacon(light).set()
        await run.event("ActivityCompleted")
        await until(lambda: availability(stage, run), lambda told: told == "draining")
        refused = await refusal(stage.start("careful", "echo", ["new"], {}))
        assert (refused.status, refused.reason()) == (409, "task_queue_draining")
        (cohort,) = (await cohorts(client, stage.queue)).values()
        assert (cohort.rollout_status, cohort.draining_worker_count) == ("draining", 1)
        assert await run.status() not in ("completed", "failed")

        resumed = await client.resume_task_queue_build_id(stage.queue, "b1")
        assert (resumed.drain_intent, resumed.drained_at) == ("active", None)

        # The same worker, which was refused all the time, goes on.
        assert await run.result() == {"value": "done"}
        assert await roster(stage) == [worker.worker_id]


@case("fleet-promote", "greeter", worker=False)
async def fleet_promote(stage: Stage) -> None:
    client, queue = stage.client, stage.queue
    blocked = await refusal(client.promote_task_queue_build_id(queue, "b2"))
    assert (blocked.status, blocked.reason()) == (409, "unknown_deployment")
    async with built(stage, "b1"), built(stage, "b2"):
        before = await stage.start("greeter", "before", build_id="b1")
        state = await client.promote_task_queue_build_id(queue, "b2")
        assert (state.build_id, state.new_start_selected) == ("b2", True)
        assert state.promoted_at is not None
        await client.drain_task_queue_build_id(queue, "b1")
        found = await cohorts(client, queue)
        assert list(found) == ["b2", "b1"]
        assert [cohort.new_start_selected for cohort in found.values()] == [True, False]
        await client.resume_task_queue_build_id(queue, "b1")

        async def pinned() -> str | None:
            """Another node may hear of the promotion a moment later."""
            run = await stage.start("greeter", "after")
            assert await run.result() == "hello, after"
            (known,) = (await client.list_workflow_runs(run.workflow_id)).runs
            return known.compatibility

        await until(pinned, lambda build: build == "b2")
        assert await before.result() == "hello, before"
        (known,) = (await client.list_workflow_runs(before.workflow_id)).runs
        assert known.compatibility == "b1"


@case("fleet-queues", "careful", worker=False)
async def fleet_queues(stage: Stage) -> None:
    client, light = stage.client, stage.name
    empty = await client.describe_task_queue(stage.queue)
    assert empty.stats is not None
    assert (empty.name, empty.stats["approximate_backlog_count"]) == (stage.queue, 0)
    waiting = await stage.start("careful", "echo-after-light", ["done", light], {})
    backlog = await client.describe_task_queue(stage.queue)
    assert backlog.stats is not None
    assert backlog.stats["workflow_tasks"]["ready_count"] == 1
    assert backlog.admission is not None
    assert backlog.admission.workflow_tasks.status == "no_active_workers"

    async with built(stage, "b1") as worker:
        await waiting.event("ActivityStarted")
        told = await client.describe_task_queue(stage.queue)
        assert told.pollers is not None
        assert [poller["worker_id"] for poller in told.pollers] == [worker.worker_id]
        assert told.current_leases is not None
        (lease,) = told.current_leases
        assert (lease["task_type"], lease["lease_owner"]) == ("activity", worker.worker_id)
        assert lease["workflow_id"] == waiting.workflow_id
        admission = told.admission.activity_tasks
        assert (admission.status, admission.leased_count) == ("accepting", 1)
        assert admission.configured_slot_count == worker.max_concurrent_activity_tasks
        listed = await client.list_task_queues()
        assert listed.namespace == "default"
        assert stage.queue in [queue.name for queue in listed.task_queues]
        beacon(light).set()
        assert await waiting.result() == {"value": "done"}

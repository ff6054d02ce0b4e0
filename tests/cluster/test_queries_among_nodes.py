"""Two real nodes on one PostgreSQL: a query asked at one is answered by a worker at the other."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from perdure.cluster import remote_queries as query_post
from perdure.server.assemble import Server
from perdure.server.settings import Settings
from perdure.web.server import Connections, listen
from tests.support.http import CONTROL_VERSION, WORKER_VERSION, Json, avro

PATIENCE_SECONDS = 90
GREETING = "can you hear me"


@dataclass(frozen=True, slots=True)
class Node:
    """One live server and a client of it."""

    server: Server
    client: httpx.AsyncClient

    async def control(self, path: str, body: Json) -> httpx.Response:
        return await self.client.post(f"/api{path}", json=body, headers={CONTROL_VERSION: "2"})

    async def worker(self, path: str, body: Json) -> httpx.Response:
        headers = {WORKER_VERSION: "1.20"}
        return await self.client.post(f"/api/worker{path}", json=body, headers=headers)

    async def ask(self, **members: Any) -> httpx.Response:
        return await self.control("/workflows/order-1/query/total", members)

    async def poll(self, worker_id: str = "w1") -> Json:
        body = {"worker_id": worker_id, "task_queue": "q", "timeout_seconds": 20}
        task = (await self.worker("/query-tasks/poll", body)).json()["task"]
        assert isinstance(task, dict)
        return task

    async def report(self, task: Json, verb: str, **members: Any) -> httpx.Response:
        lease = {name: task[name] for name in ("lease_owner", "query_task_attempt")}
        return await self.worker(f"/query-tasks/{task['query_task_id']}/{verb}", lease | members)

    async def history(self) -> Any:
        headers = {CONTROL_VERSION: "2"}
        described = (await self.client.get("/api/workflows/order-1", headers=headers)).json()
        path = f"/api/workflows/order-1/runs/{described['run_id']}/history"
        return (await self.client.get(path, headers=headers)).json()["events"]


@asynccontextmanager
async def a_node(url: str) -> AsyncIterator[Node]:
    server = Server(Settings(store=url, auth_driver="none"))
    await server.open()
    try:
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(server.engine.run())
            loops = [group.create_task(work, name=name) for name, work in server.loops()]
            listener = socket.create_server(("127.0.0.1", 0))
            connections = Connections(server.app)
            accepting = await listen(connections, listener)
            base = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx.AsyncClient(
                base_url=base, timeout=PATIENCE_SECONDS, trust_env=False
            ) as client:
                yield Node(server, client)
                accepting.close()
                server.drain()
            await connections.drain(PATIENCE_SECONDS)
            for loop in loops:
                loop.cancel()
            server.engine.stop()
            await beat
    finally:
        await server.close()


async def acquainted(one: Node, other: Node) -> None:
    """Wait until each node hears the other: what was told before is lost, and looked for later."""
    for teller, hearer in ((one, other), (other, one)):
        assert teller.server.cluster is not None
        assert hearer.server.cluster is not None
        while GREETING not in hearer.server.cluster.hints._remote:
            teller.server.cluster.hints.watching(GREETING)
            await asyncio.sleep(0)


async def parked(node: Node) -> None:
    """Wait until a query poll waits at a node."""
    while not node.server.query_broker.parked_count:  # noqa: ASYNC110 (nobody would tell us)
        await asyncio.sleep(0)


def played(url: str, story: Callable[[Node, Node], Awaitable[None]]) -> None:
    async def play() -> None:
        async with asyncio.timeout(2 * PATIENCE_SECONDS), a_node(url) as one, a_node(url) as other:
            await acquainted(one, other)
            await story(one, other)

    asyncio.run(play())


async def prepare(one: Node, other: Node) -> None:
    """A run that was started at one node, and a worker that registered at the other."""
    start = {
        "workflow_id": "order-1",
        "workflow_type": "Order",
        "task_queue": "q",
        "input": avro([]),
    }
    assert (await one.control("/workflows", start)).status_code == 201
    worker = {
        "worker_id": "w1",
        "task_queue": "q",
        "runtime": "python",
        "sdk_version": "durable-workflow-python/2.12.0",
        "supported_workflow_types": ["Order"],
        "capabilities": ["query_tasks"],
    }
    assert (await other.worker("/register", worker)).status_code == 201


@pytest.mark.parametrize("polls_first", [True, False])
@pytest.mark.parametrize("reported_at", ["home", "elsewhere"])
def test_a_query_asked_at_one_node_is_answered_by_a_worker_at_another(
    postgres_url: str, polls_first: bool, reported_at: str
) -> None:
    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)
        before = await one.history()
        polling = asyncio.ensure_future(other.poll())
        if polls_first:
            await parked(other)
        asking = asyncio.ensure_future(one.ask(input=avro(["x" * 300_000])))
        task = await polling
        assert task["query_arguments"] == avro(["x" * 300_000])
        assert task["history_events"] == before

        reporter = one if reported_at == "home" else other
        lease = {"lease_owner": "w1", "query_task_attempt": "1"}
        seen = await reporter.client.get(
            f"/api/worker/query-tasks/{task['query_task_id']}/status",
            params=lease,
            headers={WORKER_VERSION: "1.20"},
        )
        assert seen.json()["can_continue"] is True
        done = await reporter.report(task, "complete", result="y" * 1_000_000)
        assert done.status_code == 200, done.text

        answer = await asking
        assert answer.json()["result"] == "y" * 1_000_000
        assert await one.history() == before

    played(postgres_url, story)


def test_a_refusal_crosses_nodes_as_it_is(postgres_url: str) -> None:
    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)
        asking = asyncio.ensure_future(one.ask())
        task = await other.poll()
        stranger = await other.report({**task, "lease_owner": "w2"}, "complete", result=1)
        assert (stranger.status_code, stranger.json()["reason"]) == (409, "lease_owner_mismatch")
        assert stranger.json()["lease_owner"] == "w1"

        failure = {"message": "no such thing", "reason": "rejected_unknown_query"}
        assert (await other.report(task, "fail", failure=failure)).status_code == 200

        answer = await asking
        assert (answer.status_code, answer.json()["reason"]) == (404, "rejected_unknown_query")
        assert answer.json()["message"] == "no such thing"
        again = await other.report(task, "complete", result=1)
        assert (again.status_code, again.json()["reason"]) == (409, "query_task_not_leased")

    played(postgres_url, story)


def test_many_queries_at_both_nodes_are_all_answered_by_workers_at_both(postgres_url: str) -> None:
    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)

        async def work(node: Node) -> None:
            while True:
                task = await node.poll()
                (
                    await node.report(task, "complete", result=task["query_task_id"])
                ).raise_for_status()

        workers = [asyncio.ensure_future(work(node)) for node in (one, other, other)]
        asked = [asyncio.ensure_future((one, other)[n % 2].ask()) for n in range(100)]
        answers = await asyncio.gather(*asked)
        for worker in workers:
            worker.cancel()

        results = [answer.json()["result"] for answer in answers]
        assert len(set(results)) == 100
        homes = {result.partition("-")[2] for result in results}
        assert len(homes) == 2

    played(postgres_url, story)


def test_a_query_whose_node_is_gone_is_over(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_post, "REPLY_SECONDS", 0.2)

    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)
        async with a_node(postgres_url) as third:
            asking = asyncio.ensure_future(third.ask())
            task = await other.poll()
            third.server.drain()
            assert (await asking).json()["reason"] == "query_task_queue_unavailable"

        over = await other.report(task, "complete", result=1)

        assert (over.status_code, over.json()["reason"]) == (404, "query_task_not_found")

    played(postgres_url, story)

"""Two real nodes on one PostgreSQL: operators see the same fleet wherever they ask."""

import asyncio
from typing import Any

from perdure.core.fleet.rollout import EMPTY_ROLLOUT, drain
from tests.cluster.test_queries_among_nodes import Node, played, prepare
from tests.support.http import CONTROL_VERSION, Json

HEADERS = {CONTROL_VERSION: "2"}


async def get(node: Node, path: str) -> Json:
    answer = await node.client.get(f"/api{path}", headers=HEADERS)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


async def forget(node: Node) -> None:
    """Have a node know of no worker, as if it had heard nothing."""
    while not node.server.engine.workers:  # noqa: ASYNC110 (nobody would tell us)
        await asyncio.sleep(0)
    node.server.engine.workers.clear()


async def ids(node: Node) -> list[Any]:
    return [worker["worker_id"] for worker in (await get(node, "/workers"))["workers"]]


def test_a_worker_is_seen_and_sent_away_at_another_node_than_its_own(postgres_url: str) -> None:
    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)
        await forget(one)

        assert await ids(one) == ["w1"]
        await forget(one)
        assert (await get(one, "/workers/w1"))["task_queue"] == "q"
        gone = await one.client.delete("/api/workers/w1", headers=HEADERS)

        assert gone.status_code == 200, gone.text
        assert await ids(other) == []
        assert await ids(one) == []

    played(postgres_url, story)


def test_a_run_does_not_miss_a_worker_of_another_node(postgres_url: str) -> None:
    """Whoever says that nobody is there has asked."""

    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)
        await forget(one)

        cause = (await get(one, "/workflows/order-1"))["next_cause"]

        assert "staffing" not in cause

    played(postgres_url, story)


def test_a_start_is_not_refused_for_a_drain_that_is_over(postgres_url: str) -> None:
    """This node has not heard of the resume yet."""

    async def story(one: Node, other: Node) -> None:
        one.server.engine.rollouts.put(("default", "q"), drain(EMPTY_ROLLOUT, None, 1))
        start = {"workflow_id": "w", "workflow_type": "Order", "task_queue": "q"}
        job = {"activity_id": "a", "activity_type": "charge", "task_queue": "q"}

        assert (await one.control("/workflows", start)).status_code == 201
        one.server.engine.rollouts.put(("default", "q"), drain(EMPTY_ROLLOUT, None, 1))
        assert (await one.control("/activities", job)).status_code == 201

    played(postgres_url, story)

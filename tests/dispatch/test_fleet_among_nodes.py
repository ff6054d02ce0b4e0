"""Two real nodes on one PostgreSQL: operators see the same fleet wherever they ask."""

from typing import Any

from tests.dispatch.test_queries_among_nodes import Node, played, prepare
from tests.support.http import CONTROL_VERSION, Json

HEADERS = {CONTROL_VERSION: "2"}


async def get(node: Node, path: str) -> Json:
    answer = await node.client.get(f"/api{path}", headers=HEADERS)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


async def ids(node: Node) -> list[Any]:
    return [worker["worker_id"] for worker in (await get(node, "/workers"))["workers"]]


def test_a_worker_is_seen_and_sent_away_at_another_node_than_its_own(postgres_url: str) -> None:
    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)

        assert await ids(one) == ["w1"]
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
        one.server.engine.workers.clear()

        cause = (await get(one, "/workflows/order-1"))["next_cause"]

        assert "staffing" not in cause

    played(postgres_url, story)

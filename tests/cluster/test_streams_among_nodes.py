"""Two real nodes on one PostgreSQL: who follows a stream at one hears of appends at the other."""

import asyncio

from tests.cluster.test_queries_among_nodes import GREETING, Node, played, prepare
from tests.support.http import CONTROL_VERSION, Json, avro, unavro

HEADERS = {CONTROL_VERSION: "2"}


async def base_of(node: Node) -> str:
    run = (await node.client.get("/api/workflows/order-1", headers=HEADERS)).json()
    return f"/workflows/order-1/runs/{run['run_id']}/streams/log"


async def append(node: Node, base: str, *values: str) -> Json:
    items = [{"payload": avro(value), "idempotency_key": value} for value in values]
    answer = await node.control(f"{base}/items", {"items": items})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


async def tail(node: Node, base: str, first: int, seconds: int = 20) -> Json:
    query = f"?from={first}&wait_seconds={seconds}"
    answer = await node.client.get(f"/api{base}/items{query}", headers=HEADERS)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


async def waiting(node: Node, other: Node) -> None:
    """Wait until a reader waits at one node and the other has heard of it."""
    # Nobody would tell us.
    while not node.server.stream_readers.count or not _heard(other):  # noqa: ASYNC110
        await asyncio.sleep(0)


def _heard(node: Node) -> bool:
    assert node.server.cluster is not None
    return bool(node.server.cluster.hints._remote.keys() - {GREETING})


def test_a_tail_hears_what_is_appended_at_another_node(postgres_url: str) -> None:
    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)
        base = await base_of(one)
        await append(one, base, "first")
        following = asyncio.ensure_future(tail(one, base, 1))
        await waiting(one, other)
        looks = one.server.cluster.lookout._looks  # type: ignore[union-attr]

        assert (await append(other, base, "second"))["accepted_offsets"] == [1]
        page = await following

        assert [unavro(item["payload"]) for item in page["items"]] == ["second"]
        seen = one.server.cluster.lookout._looks  # type: ignore[union-attr]
        assert seen == looks, "a hint was enough"

    played(postgres_url, story)


def test_a_tail_hears_of_the_end_at_another_node(postgres_url: str) -> None:
    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)
        base = await base_of(one)
        await append(one, base, "first")
        following = asyncio.ensure_future(tail(one, base, 1))
        await waiting(one, other)
        await other.control(f"{base}/close", {})
        page = await following
        assert (page["items"], page["terminal"]) == ([], True)

    played(postgres_url, story)


def test_nodes_that_append_at_once_give_every_offset_once(postgres_url: str) -> None:
    async def story(one: Node, other: Node) -> None:
        await prepare(one, other)
        base = await base_of(one)
        names = [f"item-{number}" for number in range(30)]
        done = await asyncio.gather(
            *(append(node, base, name) for name in names for node in (one, other))
        )

        offsets = [body["accepted_offsets"][0] for body in done]
        assert sorted(set(offsets)) == list(range(30))
        assert offsets[::2] == offsets[1::2], "a key has one offset wherever it is appended"
        assert sum(body["accepted"] for body in done) == 30
        page = await tail(one, base, 0)
        stored = {unavro(item["payload"]): item["offset"] for item in page["items"]}
        assert stored == dict(zip(names, offsets[::2], strict=True))

    played(postgres_url, story)

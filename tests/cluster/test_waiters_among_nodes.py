"""Events and those who wait for them on several nodes: each is woken once, whoever goes on."""

import asyncio

import pytest

from perdure.core.limits import WAITERS_PER_PAGE_MAX
from perdure.engine.events import Ingested
from tests.cluster.among import Node, a_node, several
from tests.engine.ending import must_end
from tests.engine.waiting import Answer, Begin, Begun, a_wait, logged, send

COUNT = 2 * WAITERS_PER_PAGE_MAX + 5


async def woke(node: Node, ingested: Ingested) -> int:
    """How many an event has woken in the end."""
    async with asyncio.timeout(90):
        while (event := await logged(node, ingested.event_id)).continues:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return event.woke


@pytest.mark.parametrize("where", [None, "event.data.id == 1", "event.data.id > 0"])
def test_nodes_wake_everybody_once_whoever_goes_on(migrated_url: str, where: str | None) -> None:
    is_one = where is not None and "==" in where

    async def story() -> None:
        async with several(migrated_url) as (one, two):
            wait = Begun([a_wait(where=where)])
            await one.play(Begin(*[wait] * (COUNT - 100)))
            early = await two.play(Begin(*[wait] * 100))

            ingested = await send(one, {"id": 1})
            assert ingested.continues
            (late,) = await two.play(Begin(wait))
            assert await woke(two, ingested) == COUNT

            other = await send(two, {"id": 2})
            assert other.woke == (not is_one), late
            await one.play(Answer(early[0], a_wait(name="again", where=where)))
            last = await send(two, {"id": 1})
            assert last.woke == 1 + is_one

    with must_end(seconds=180):
        asyncio.run(story())


def test_what_a_node_leaves_undone_another_does(migrated_url: str) -> None:
    async def story() -> None:
        async with a_node(migrated_url) as one:
            await one.play(Begin(*[Begun([a_wait()])] * COUNT))
            ingested = await send(one)
            assert ingested.continues
        async with a_node(migrated_url) as two:
            assert await woke(two, ingested) == COUNT
            assert (await send(two)).woke == 0

    with must_end(seconds=180):
        asyncio.run(story())

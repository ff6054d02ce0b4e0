"""Runs that one node has removed are gone for all, also for those who remember them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.core.rejection import InstanceNotFound
from perdure.core.run.state import Dialect
from perdure.features.retention.loops import Retention, RunPruner
from perdure.features.retention.operations import ClearLeftover, Pruned, PruneOld
from perdure.store.interface import Instance
from tests.cluster.among import Node, several
from tests.engine.ending import must_end
from tests.engine.engine_harness import DONE, NAMESPACE, signal, start
from tests.engine.invariants import check_database
from tests.support.clock import SECOND
from tests.support.tables import every_row

ORDER = Instance(NAMESPACE, "order")
Story = Callable[[Node, Node], Coroutine[Any, Any, None]]


def play(url: str, story: Story) -> None:
    async def whole() -> None:
        async with several(url) as (one, two):
            await story(one, two)
        await check_database(url)

    with must_end(seconds=180):
        asyncio.run(whole())


def everything(node: Node, limit: int = 100) -> PruneOld:
    """A batch of whatever is closed."""
    now = node.server.engine._clock.now()
    return PruneOld(NAMESPACE, Dialect.PULL, before=now + 1, limit=limit)


async def closed(node: Node, *workflow_ids: str) -> None:
    await node.register()
    for workflow_id in workflow_ids:
        await node.start(workflow_id)
        await node.work(DONE)


def test_a_node_that_remembers_a_run_does_not_bring_it_back(postgres_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await closed(one, "order")
        pruned: Pruned = await two.play(everything(two))
        assert len(pruned.runs) == 1

        with pytest.raises(InstanceNotFound):
            await one.play(signal("order"))
        await one.start("order")
        await one.work(DONE)
        assert len(await one.server.store.read_instance(("default", "order"))) == 1  # type: ignore[arg-type]

    play(postgres_url, story)


def test_nodes_that_prune_at_once_take_every_run_once(postgres_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await closed(one, *(f"order-{number}" for number in range(12)))
        rule = Retention(Dialect.PULL, 0, lambda: {NAMESPACE})
        pruners = [RunPruner(node.engine, node.engine._clock, [rule]) for node in (one, two)]
        counts = await asyncio.gather(*(pruner.prune() for pruner in pruners for _ in range(3)))
        assert sum(counts) == 12

        rows = await every_row(postgres_url)
        kept = {"schema_version", "namespace", "worker"}
        assert {table for table, found in rows.items() if found} == kept

    play(postgres_url, story)


def test_a_node_that_dies_between_any_two_beats_leaves_the_rest_to_another(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.features.retention.operations.REMAINS_ROWS_MAX", 2)

    async def story(one: Node, two: Node) -> None:
        beats, was_done = 0, False
        while not was_done:
            await closed(one, "a", "b", "c")
            pruned: Pruned = await one.play(everything(one))
            assert pruned.leftover is not None
            for _ in range(beats):
                bite = ClearLeftover(pruned.leftover, relook=SECOND)
                await one.play(bite)
                was_done = bite.is_done
            # Nothing more is heard of the first one; the second does all that is left.
            rest = ClearLeftover(pruned.leftover, relook=SECOND)
            while not rest.is_done:
                rest = ClearLeftover(pruned.leftover, relook=SECOND)
                await two.play(rest)
            rows = await every_row(postgres_url)
            kept = {"schema_version", "namespace", "worker"}
            assert {table for table, found in rows.items() if found} == kept, beats
            beats += 1
        assert beats > 3

    play(postgres_url, story)


def test_a_start_in_the_same_moment_finds_the_run_or_its_absence(postgres_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        for _ in range(5):
            await closed(one, "order")
            await asyncio.gather(
                two.play(everything(two)), one.play(start("order")), return_exceptions=True
            )
            found = await one.server.store.read_instance(ORDER)
            if any(not run.is_closed for run in found):
                await one.work(DONE)
            await two.play(everything(two))

    play(postgres_url, story)

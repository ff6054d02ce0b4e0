"""A build that is drained at one node gets nothing more at any, with hints or without."""

import asyncio
from typing import Any

import pytest

from perdure.core.fleet.rollout import EMPTY_ROLLOUT, drain
from perdure.core.fleet.worker import Cohort
from perdure.core.rejection import TaskQueueDraining, UnknownDeployment, WorkerDraining
from perdure.dispatch.delivery import WorkflowDelivery
from perdure.engine.rollout_changes import ROLLOUT, DrainBuild, PromoteBuild, ResumeBuild
from tests.cluster.among import Node, several
from tests.cluster.test_among_others import every_way, play
from tests.cluster.test_lent_polls import borrower, lent
from tests.engine.engine_harness import NAMESPACE, PATIENCE, QUEUE, WORKFLOWS, start

B1 = Cohort(NAMESPACE, QUEUE, "b1")
B2 = Cohort(NAMESPACE, QUEUE, "b2")


async def heard(node: Node, cohorts: set[Cohort], hints: str) -> None:
    """Wait until a node knows which builds drain: it is told, or it looks."""
    if hints == "off":
        await node.idle()
        assert node.engine.rollouts.draining != cohorts, "somebody told"
        await node.look()
    await node.until(lambda: node.engine.rollouts.draining == cohorts)


async def refused(poll: "asyncio.Task[Any]") -> None:
    with pytest.raises(WorkerDraining):
        await asyncio.wait_for(poll, PATIENCE)


@every_way
def test_a_poll_that_is_parked_elsewhere_is_let_go_and_its_worker_goes_on_when_resumed(
    migrated_url: str, hints: str
) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register(build_id="b1")
        poll = await two.park()

        await one.play(DrainBuild(B1))

        await heard(two, {B1}, hints)
        await refused(poll)
        await refused(asyncio.ensure_future(two.poll(seconds=0)))
        await refused(asyncio.ensure_future(one.poll(seconds=0)))
        assert two.server.parked_polls.count == 0

        await two.play(ResumeBuild(B1))

        await heard(one, set(), hints)
        poll = await one.park()
        run_id = await one.start()
        task = await asyncio.wait_for(poll, PATIENCE)
        assert isinstance(task, WorkflowDelivery)
        assert task.run_id == run_id

    play(migrated_url, story, hints=hints)


def test_who_registers_after_a_drain_is_known_to_drain_where_nobody_told(
    migrated_url: str,
) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.play(DrainBuild(B1))
        await two.idle()
        assert not two.engine.rollouts.draining

        await two.register(build_id="b1")

        await refused(asyncio.ensure_future(two.poll(seconds=0)))

    play(migrated_url, story, hints="off")


def test_a_node_that_begins_later_knows(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.play(DrainBuild(B1))

        async with several(migrated_url, 1, hints="off") as (late,):
            assert late.engine.rollouts.draining == {B1}

    play(migrated_url, story, hints="off")


def test_a_task_that_is_ready_is_not_given_to_a_drained_build(migrated_url: str) -> None:
    """Whichever way a poll takes into the yard."""

    async def story(one: Node, two: Node) -> None:
        await one.register(build_id="b1")
        await one.register("w2")
        await one.play(DrainBuild(B1))
        run_id = await one.start()

        for poll_id in (None, "p1"):
            poll = one.poll_as(poll_id, seconds=0)
            await refused(asyncio.ensure_future(poll))

        assert (await one.take("w2")).run_id == run_id

    play(migrated_url, story)


def test_who_cannot_hear_looks_every_time(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        for number in range(3):
            cohort = Cohort(NAMESPACE, QUEUE, f"b{number}")
            await one.play(DrainBuild(cohort))
            await two.look()
            assert cohort in two.engine.rollouts.draining

    play(migrated_url, story, hints="off")


def test_who_may_have_missed_something_looks(migrated_url: str) -> None:
    """As after its connection broke; else a look at rollouts is only now and then."""

    async def story(one: Node, two: Node) -> None:
        # Whoever begins to listen may have missed something before.
        await two.until(lambda: two.lookout._missed)
        await two.look()
        assert two.server.cluster is not None

        async def deaf() -> None:
            """Somebody told, and nobody heard."""

        two.server.cluster.hints._refresh_rollouts = deaf
        await one.play(DrainBuild(B1))
        await two.look()
        assert not two.engine.rollouts.draining

        two.lookout.look_soon()
        await two.look()

        assert two.engine.rollouts.draining == {B1}

    play(migrated_url, story)


@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
def test_a_lent_poll_of_a_drained_build_is_not_used(migrated_url: str, *, near: bool) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register(build_id="b1")
        await one.register("w2")
        await two.look()
        poll = await lent(one, two, "p1")

        await one.play(DrainBuild(B1))
        assert borrower(one).count == 0
        run_id = await one.start()

        await refused(poll)
        task = await one.take("w2")
        assert task.run_id == run_id

    play(migrated_url, story, near=near)


def test_a_poll_that_a_node_still_lends_is_not_borrowed(migrated_url: str) -> None:
    """Its node has not heard of the drain."""

    async def story(one: Node, two: Node) -> None:
        await one.register(build_id="b1")
        await two.look()
        one.engine.rollouts.put((NAMESPACE, QUEUE), drain(EMPTY_ROLLOUT, "b1", 1))
        assert two.server.cluster is not None
        assert one.server.cluster is not None
        two.server.cluster.lender.wanted_by(one.server.cluster._node_id, WORKFLOWS, "")
        heard_before = dict(borrower(one)._heard)

        poll = asyncio.ensure_future(two.poll_as("p1", seconds=PATIENCE))
        await one.until(lambda: dict(borrower(one)._heard) != heard_before)

        assert borrower(one).count == 0
        poll.cancel()

    play(migrated_url, story)


def test_a_poll_in_the_hands_of_a_beat_is_let_go_when_it_comes_back(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register(build_id="b1")
        poll = await one.park()
        reserved = one.server.parked_polls.reserve(WORKFLOWS, "shop")
        assert reserved is not None
        await two.play(DrainBuild(B1))
        await heard(one, {B1}, "live")
        assert not poll.done()

        one.server.parked_polls.restore(reserved)

        assert one.server.parked_polls.count == 0
        await refused(poll)

    play(migrated_url, story)


def test_builds_that_are_drained_at_the_same_time_are_all_drained(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await asyncio.gather(
            *(
                node.play(DrainBuild(Cohort(NAMESPACE, QUEUE, f"b{number}-{slot}")))
                for number in range(10)
                for slot, node in enumerate((one, two))
            )
        )

        found = await ROLLOUT.read(one.server.store, NAMESPACE, QUEUE)
        assert found is not None
        assert len(found.draining) == 20
        for node in (one, two):
            await node.until(lambda n=node: len(n.engine.rollouts.draining) == 20)  # type: ignore[misc]

    play(migrated_url, story)


def test_a_start_is_refused_only_after_the_disk_was_asked(migrated_url: str) -> None:
    """A resume, or a worker of another build, that this node has not heard of."""

    async def story(one: Node, two: Node) -> None:
        await one.register(build_id="b1")
        await one.play(DrainBuild(B1))
        await two.look()
        with pytest.raises(TaskQueueDraining):
            await two.engine.submit_knowing_workers(start("refused"))

        await one.register("w2", build_id="b2")
        await two.engine.submit_knowing_workers(start("with w2"))
        await one.play(DrainBuild(B2))
        await two.look()
        await one.play(ResumeBuild(B1))
        await two.engine.submit_knowing_workers(start("resumed"))

    play(migrated_url, story, hints="off")


@every_way
def test_a_promoted_build_gets_the_starts_of_all_nodes(migrated_url: str, hints: str) -> None:
    async def story(one: Node, two: Node) -> None:
        with pytest.raises(UnknownDeployment):
            await two.engine.submit_knowing_workers(PromoteBuild(B1))
        await one.register(build_id="b1")
        await two.engine.submit_knowing_workers(PromoteBuild(B1))
        if hints == "off":
            await one.look()
        await one.until(lambda: bool(one.engine.rollouts))

        for node in (one, two):
            run_id = await node.start(f"order-{id(node)}")
            run = await node.server.store.read_run(run_id)
            assert run is not None
            assert run.build_id == "b1"

    play(migrated_url, story, hints=hints)

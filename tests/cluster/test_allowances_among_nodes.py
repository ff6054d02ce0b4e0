"""Limits of queues hold for all nodes together, whoever leases and whoever reports."""

import asyncio
from random import Random

import pytest

from perdure.core.fleet.quota import Allowance, Allowances
from perdure.dispatch.delivery import ActivityDelivery
from perdure.dispatch.polls import PollStatus
from tests.cluster.among import Node
from tests.cluster.test_among_others import play
from tests.engine.engine_harness import DONE, an_activity, completion, result

MOST = 3
RUNS = 12


class Tally:
    """What workers hold at one time, seen from their side."""

    def __init__(self) -> None:
        self.held = 0
        self.most = 0
        self.done = 0

    def take(self) -> None:
        self.held += 1
        self.most = max(self.most, self.held)

    def leave(self) -> None:
        self.held -= 1
        self.done += 1


async def make_work(node: Node) -> None:
    for number in range(RUNS):
        await node.start(f"order-{number}")
        await node.play(completion(await node.take(), an_activity()))


async def work(here: Node, there: Node, tally: Tally, die: Random) -> None:
    """Take activities at one node and report them at either."""
    while tally.done < RUNS:
        answer = await here.poll_as(None, "activity", seconds=1)
        if answer.delivery is None:
            assert answer.status in (PollStatus.THROTTLED, PollStatus.EMPTY)
            continue
        assert isinstance(answer.delivery, ActivityDelivery)
        tally.take()
        for _ in range(die.randrange(20)):
            await asyncio.sleep(0)
        # The lease ends with the commit, before anybody is told.
        tally.leave()
        await die.choice([here, there]).play(result(answer.delivery))


@pytest.mark.parametrize("odds", [0.0, 0.1])
def test_two_nodes_never_lease_more_than_may_be_and_finish_everything(
    migrated_url: str, odds: float
) -> None:
    async def story(one: Node, two: Node) -> None:
        die, tally = Random(7), Tally()
        await one.register()
        await make_work(one)
        await asyncio.gather(
            *(work(one, two, tally, die) for _ in range(4)),
            *(work(two, one, tally, die) for _ in range(4)),
        )
        assert tally.done == RUNS
        assert tally.most == MOST, "all of it was used, and no more"

    limit = Allowances({"activity": Allowance(leases_per_queue=MOST)})
    play(migrated_url, story, looks=True, allowances=limit, die=Random(3) if odds else None)


def test_a_lease_that_another_node_ended_makes_room(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register("w1")
        await one.register("w2")
        for workflow_id in ("a", "b"):
            await one.start(workflow_id)
            await one.play(completion(await one.take(), an_activity()))
        first = await one.take_activity("w2")
        waiting = await one.park("activity", "w2")
        await one.until(lambda: bool(one.server.parked_polls.shut))

        await two.play(result(first))
        second = await waiting
        assert second.run_id != first.run_id
        await two.play(result(second))
        for _ in range(2):
            await one.work(DONE)

    limit = Allowances({"activity": Allowance(leases_per_queue=1)})
    play(migrated_url, story, allowances=limit)

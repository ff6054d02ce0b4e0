"""Anything in any order on nodes that lend each other polls, while errands are lost, doubled, late:
no promise is broken."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from perdure.cluster.messages import TaskHandover, unpack
from perdure.dispatch.delivery import ActivityDelivery, Claim, WorkflowDelivery, claim_of
from tests.cluster.among import Node, several
from tests.cluster.test_random_conflicts import Weather
from tests.engine.ending import must_end
from tests.engine.engine_harness import NAMESPACE
from tests.engine.test_random_faults import WORKERS
from tests.support.clock import FakeClock

STEPS = 120
POLLS_MAX = 5


class Post(Weather):
    """The same weather, with polls that wait and a post that cannot be trusted."""

    def __init__(self, nodes: list[Node], clock: FakeClock, seed: int) -> None:
        super().__init__(nodes, clock, seed)
        self.polls: list[asyncio.Task[Any]] = []
        self.fates: Counter[str] = Counter()
        self._given: set[Claim] = set()
        self._late: list[tuple[Any, str, bytes]] = []
        self.is_fair = False
        for node in nodes:
            assert node.server.cluster is not None
            self._bribe(node.server.cluster.errands)

    def _bribe(self, errands: Any) -> None:
        carry = errands.carry

        def unreliable(node: str, errand: bytes) -> None:
            if isinstance(unpack(errand), TaskHandover):
                self.fates["sent"] += 1
            fate = "arrives" if self.is_fair else self.die.choice(["arrives"] * 4 + ["odd"])
            if fate == "odd":
                fate = self.die.choice(["lost", "doubled", "late"])
                self.fates[fate] += 1
            if fate == "late":
                self._late.append((carry, node, errand))
            elif fate != "lost":
                for _ in range(2 if fate == "doubled" else 1):
                    carry(node, errand)

        errands.carry = unreliable

    @property
    def has_seen_enough(self) -> bool:
        """Whether tasks were handed over and errands went wrong, in whatever time that takes."""
        kinds = ("sent", "lost", "doubled", "late")
        return len(self.started) >= 5 and all(self.fates[kind] for kind in kinds)

    async def step(self) -> None:
        await super().step()
        while len(self.polls) < POLLS_MAX:
            await self.poll()
        await self._let_go_on()
        self._reap()
        await self.die.choice([self._deliver_late, self._tick, self._hang_up, self._nothing])()

    async def poll(self) -> None:
        """A poll that waits at some node."""
        self._numbers += 1
        kind = self.die.choice(["workflow", "workflow", "activity"])
        polling = self.die.choice(self.nodes).poll_as(
            f"poll {self._numbers}", kind, self.die.choice(WORKERS), seconds=60
        )
        self.polls.append(asyncio.ensure_future(polling))
        await asyncio.sleep(0)

    async def wait(self) -> None:
        await self.clock.advance(seconds=self.die.choice([1, 1, 10, 61]))

    def _reap(self) -> None:
        for poll in [poll for poll in self.polls if poll.done()]:
            self.polls.remove(poll)
            delivery = poll.result().delivery
            if delivery is not None:
                claim = claim_of(delivery)
                assert claim not in self._given, "no lease is given to two polls"
                self._given.add(claim)
            if isinstance(delivery, WorkflowDelivery):
                self.tasks.append(delivery)
            elif isinstance(delivery, ActivityDelivery):
                self.attempts.append(delivery)

    async def _deliver_late(self) -> None:
        late, self._late = self._late, []
        for carry, node, errand in late:
            carry(node, errand)

    async def _tick(self) -> None:
        for node in self.nodes:
            assert node.server.cluster is not None
            node.server.cluster.borrower.tick()

    async def _hang_up(self) -> None:
        """A client goes away."""
        if self.polls:
            poll = self.polls.pop(self.die.randrange(len(self.polls)))
            poll.cancel()
            await asyncio.wait({poll})

    async def _nothing(self) -> None:
        """Nothing else happens."""

    async def settle(self) -> None:
        """All polls are let go, and the post is reliable again."""
        self.is_fair = True
        while self.polls:
            await self._hang_up()
        await self._deliver_late()
        for _ in range(4):
            await self._let_go_on()
            await self._tick()

    async def _let_go_on(self) -> None:
        """Time for what is under way: that of some questions to the database."""
        for _ in range(3):
            await asyncio.gather(*(node.lookout._store.read_clock() for node in self.nodes))


@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
@pytest.mark.parametrize("seed", range(2))
def test_no_errand_that_goes_wrong_breaks_a_promise(
    seed: int, migrated_url: str, *, near: bool
) -> None:
    async def whole() -> None:
        clock = FakeClock()
        async with several(migrated_url, 3, near=near, clock=clock) as nodes:
            for worker_id in WORKERS:
                await nodes[0].register(worker_id)
            for node in nodes:
                await node.look()
                assert (NAMESPACE, WORKERS[-1]) in node.engine.workers
            post = Post(nodes, clock, seed)
            number = 0
            while number < STEPS or not post.has_seen_enough:
                await post.step()
                if number % 10 == 0:
                    await post.check()
                number += 1
            await post.settle()
            await post.finish()
            await post.check()

    with must_end(seconds=180):
        random.seed(seed)
        asyncio.run(whole())

"""Anything in any order on two nodes that lose every tenth race: no promise is broken."""

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from perdure.core.run.state import Run
from perdure.dispatch.delivery import ActivityDelivery, WorkflowDelivery
from perdure.engine.operation import Operation
from perdure.engine.run_commands import SignalRun, StartWorkflow
from perdure.engine.updates import UpdateRun
from tests.cluster.among import LosingStore, Node, a_node
from tests.engine.ending import must_end
from tests.engine.engine_harness import DONE, completion, result
from tests.engine.invariants import check_database
from tests.engine.test_random_faults import WORKERS, Storm, outcome_of
from tests.store.nodes import session
from tests.support.clock import FakeClock

STEPS = 60

RAISING = """
    create function fail() returns trigger language plpgsql as $$
    begin
        if random() < 0.05 then
            raise exception 'injected' using errcode = '40001';
        elsif random() < 0.05 then
            raise exception 'injected' using errcode = '40P01';
        end if;
        return new;
    end $$;
    create trigger fail before insert on perdure.beat for each row execute function fail();
"""
"""The database itself refuses some commits: serialization failures and deadlocks."""


class Weather(Storm):
    """The storm of one node, over several: every step meets another one."""

    def __init__(self, nodes: list[Node], clock: FakeClock, seed: int) -> None:
        super().__init__(nodes[0], seed)
        self.nodes = nodes
        self.clock = clock
        self.started: set[str] = set()
        """Workflows whose start was acknowledged."""

    async def step(self) -> None:
        self.stage = self.die.choice(self.nodes)
        await super().step()

    async def decide(self) -> None:
        """One to four operations, each on a node of its own, at the same time."""
        wanted = [self._operation() for _ in range(self.die.randint(1, 4))]
        replies = await asyncio.gather(
            *(self.die.choice(self.nodes).play(operation) for operation in wanted),
            return_exceptions=True,
        )
        for operation, reply in zip(wanted, replies, strict=True):
            if not isinstance(reply, BaseException):
                self._note(operation, reply)

    def _note(self, operation: Operation, reply: Any) -> None:
        """Remember what was promised."""
        for instance in operation.instances():
            if isinstance(operation, UpdateRun):
                self.updates.setdefault(reply.run_id, set()).add(reply.update_id)
            elif isinstance(operation, SignalRun):
                self.signals.setdefault(instance.workflow_id, set()).add(reply.command_id)
            elif isinstance(operation, StartWorkflow):
                self.started.add(instance.workflow_id)

    async def wait(self) -> None:
        await self.clock.advance(seconds=self.die.choice([1, 10, 61, 301]))

    async def break_(self) -> None:
        """Somebody forgets what it knew, or looks around."""
        await self.die.choice([self._forget, self.stage_looks])()

    async def _forget(self) -> None:
        self.stage.server.cache.clear()

    async def stage_looks(self) -> None:
        assert isinstance(self.stage, Node)
        await self.stage.look()

    async def check(self) -> None:
        runs = await check_database(self.nodes[0].url)
        received = await self.received(runs)
        assert len(received) == len(set(received)), "a signal was received twice"
        assert self.started <= {run.workflow_id for run in runs}, "a start was lost"
        for workflow_id, acknowledged in self.signals.items():
            chain = [run for run in runs if run.workflow_id == workflow_id]
            if not chain[-1].is_closed:
                waiting = {waiting.command_id for waiting in chain[-1].inbox.values()}
                assert acknowledged <= waiting | set(received), "a signal was lost"
        for run in runs:
            await self._check_updates(run)

    async def finish(self) -> list[Run]:
        """Everybody looks, and a new worker does whatever there is, until all is over."""
        await self.nodes[0].register("last")
        for _ in range(300):
            runs = await check_database(self.nodes[0].url)
            if all(run.is_closed for run in runs):
                return runs
            served = False
            for node in self.nodes:
                await node.look()
                for kind in ("workflow", "activity"):
                    served |= await self._served(node, kind)
            if not served:
                await self.clock.advance(seconds=120)
        waiting = [run for run in runs if not run.is_closed]
        raise AssertionError(f"{len(waiting)} runs are stuck: {waiting[0]}")

    async def _served(self, node: Node, kind: str) -> bool:
        delivery = await node.poll(kind, "last", seconds=0)
        other = self.die.choice(self.nodes)
        if isinstance(delivery, WorkflowDelivery):
            await other.play(completion(delivery, *(outcome_of(delivery) or [DONE])))
        elif isinstance(delivery, ActivityDelivery):
            await other.play(result(delivery))
        return delivery is not None


@pytest.mark.parametrize("hints", ["garbled", "off"])
@pytest.mark.parametrize("where", ["in the store", "in the database"])
@pytest.mark.parametrize("seed", range(2))
def test_no_lost_race_breaks_a_promise(
    seed: int, where: str, hints: str, migrated_url: str
) -> None:
    async def whole() -> None:
        clock, die = FakeClock(), random.Random(seed)
        odds = 0.1 if where == "in the store" else 0.0
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(
                    a_node(migrated_url, clock=clock, hints=hints, die=die, odds=odds)
                )
                for _ in range(2)
            ]
            if where == "in the database":
                async with session(migrated_url) as other:
                    await other.execute(RAISING)
            for worker_id in WORKERS:
                await nodes[0].register(worker_id)
            weather = Weather(nodes, clock, seed)
            for number in range(STEPS):
                await weather.step()
                if number % 5 == 0:
                    await weather.check()
            await weather.finish()
            await weather.check()
            assert len(weather.started) >= 5
            if odds:
                stores = [node.server.store for node in nodes]
                assert sum(s.lost for s in stores if isinstance(s, LosingStore)) > 5

    with must_end(seconds=180):
        asyncio.run(whole())

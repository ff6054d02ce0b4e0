"""Anything in any order, on a disk that fails now and then: what must hold, holds after each step."""

import random
from pathlib import Path
from typing import Any

import pytest

from perdure.core.run.command import ContinueAsNew, OpenConditionWait
from perdure.core.run.state import ActivityTimeouts, RetryPolicy, Run
from perdure.dispatch.delivery import ActivityDelivery, WorkflowDelivery
from perdure.engine.operation import Operation
from tests.engine.ending import must_end
from tests.engine.faulty import disk_full
from tests.engine.invariants import check_disk
from tests.engine.stage import (
    DONE,
    Stage,
    a_child,
    a_timer,
    an_activity,
    cancel,
    completion,
    failure,
    heartbeat,
    play,
    renewal,
    result,
    signal,
    start,
    task_failure,
)

STEPS = 60
WORKERS = ("w1", "w2")


class Storm:
    """What two workers, some clients, time and a bad disk do, by the throw of a die."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.die = random.Random(seed)
        self.workflows: list[str] = []
        self.tasks: list[WorkflowDelivery] = []
        self.attempts: list[ActivityDelivery] = []
        self.signals: set[str] = set()
        """Signals that were acknowledged, by the ids of their commands."""
        self._numbers = 0

    async def step(self) -> None:
        await self.die.choice(
            [self.decide, self.decide, self.decide, self.poll, self.poll, self.wait, self.break_]
        )()

    async def decide(self) -> None:
        """One to four operations in one beat."""
        wanted = [self._operation() for _ in range(self.die.randint(1, 4))]
        replies = await self.stage.together(*wanted)
        for operation, reply in zip(wanted, replies, strict=True):
            if operation.name == "signal" and not isinstance(reply, Exception):
                self.signals.add(reply.command_id)

    def _operation(self) -> Operation:
        self._numbers += 1
        kinds = ["start", "start", "signal", "signal", "cancel"]
        kinds += ["task"] * 3 * bool(self.tasks) + ["attempt"] * 3 * bool(self.attempts)
        match self.die.choice(kinds) if self.workflows else "start":
            case "signal":
                request = {"request_id": f"r{self._numbers}", "digest": "d"}
                return signal(self.die.choice(self.workflows), **request)
            case "cancel" if self.die.random() < 0.3:
                return cancel(self.die.choice(self.workflows))
            case "task":
                return self._report()
            case "attempt":
                attempt = self.die.choice(self.attempts)
                return self.die.choice([result, result, failure, heartbeat])(attempt)
            case _:
                self.workflows.append(f"order-{self._numbers}")
                return start(self.workflows[-1])

    def _report(self) -> Operation:
        # Reports are drawn with replacement: they come twice, and late.
        task = self.die.choice(self.tasks)
        commands: list[list[Any]] = [
            [DONE],
            [ContinueAsNew()],
            [a_timer(self.die.choice([0, 5, 90]))],
            [an_activity(), an_activity(retry=RetryPolicy(2, [10]))],
            [an_activity(timeouts=ActivityTimeouts(start_to_close=30))],
            [a_child(parent_close_policy=self.die.choice(["terminate", "abandon"]))],
            [OpenConditionWait(key="k", timeout_seconds=60)],
        ]
        return self.die.choice(
            [
                lambda: completion(task, *self.die.choice(commands)),
                lambda: completion(task, *self.die.choice(commands)),
                lambda: completion(task, *self.die.choice(commands)),
                lambda: task_failure(task),
                lambda: renewal(task),
            ]
        )()

    async def poll(self) -> None:
        kind = self.die.choice(["workflow", "workflow", "activity"])
        delivery = await self.stage.poll(kind, self.die.choice(WORKERS), seconds=0)
        if isinstance(delivery, WorkflowDelivery):
            self.tasks.append(delivery)
        elif isinstance(delivery, ActivityDelivery):
            self.attempts.append(delivery)

    async def wait(self) -> None:
        await self.stage.clock.advance(seconds=self.die.choice([1, 10, 61, 301]))

    async def break_(self) -> None:
        """Something goes wrong next time, or is forgotten."""
        store = self.stage.store
        self.die.choice(
            [
                lambda: store.fail_commits(disk_full()),
                lambda: store.fail_commits(disk_full(), None, disk_full()),
                lambda: store.fail_after_commits(disk_full()),
                lambda: store.fail_loads(disk_full()),
                self.stage.server.cache.clear,
            ]
        )()

    async def finish(self) -> list[Run]:
        """The disk is well again, and a new worker does whatever there is, until all is over."""
        self.stage.store.heal()
        await self.stage.register("last")
        for _ in range(200):
            runs = await check_disk(self.stage.store)
            if all(run.is_closed for run in runs):
                return runs
            if not await self._serve():
                await self.stage.clock.advance(seconds=120)
        waiting = [run for run in runs if not run.is_closed]
        raise AssertionError(f"{len(waiting)} runs are stuck: {waiting[0]}")

    async def _serve(self) -> bool:
        waiting = bool(self.stage.ready())
        seconds = 3 if waiting else 0
        for kind in ("workflow", "activity"):
            if not self.stage.store.rows("select 1 from ready where kind = ?", kind):
                continue
            delivery = await self.stage.poll(kind, "last", seconds=seconds)
            if isinstance(delivery, WorkflowDelivery):
                await self.stage.play(completion(delivery, DONE))
            elif isinstance(delivery, ActivityDelivery):
                await self.stage.play(result(delivery))
            else:
                raise AssertionError(f"a ready {kind} task is not given to anybody")
        return waiting


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_events_and_faults_breaks_a_promise(seed: int, tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        for worker_id in WORKERS:
            await stage.register(worker_id)
        storm = Storm(stage, seed)
        for _ in range(STEPS):
            await storm.step()
            await check_disk(stage.store)
        runs = await storm.finish()

        received = [
            event["payload"]["workflow_command_id"]
            for run in runs
            for event in await stage.events(run.run_id)
            if event["event_type"] == "SignalReceived"
        ]
        assert len(received) == len(set(received)), "a signal was received twice"
        assert len(runs) >= 5

    with must_end(seconds=60):
        play(tmp_path / "perdure.db", story, deadlines=True)

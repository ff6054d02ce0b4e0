"""Anything in any order, on a disk that fails now and then: no promise is broken at any step."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.core.run.command import Command, CompleteUpdate, ContinueAsNew, OpenConditionWait
from perdure.core.run.inbox import Update
from perdure.core.run.operation import ActivityTimeouts, RetryPolicy
from perdure.core.run.state import Run
from perdure.dispatch.delivery import ActivityDelivery, WorkflowDelivery
from perdure.engine.operation import Operation
from perdure.engine.run_commands import SignalRun
from perdure.engine.updates import UpdateRun
from tests.engine.ending import must_end
from tests.engine.engine_harness import (
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
    release,
    renewal,
    result,
    signal,
    start,
    task_failure,
    update,
)
from tests.engine.faulty import disk_full
from tests.engine.invariants import check_disk

STEPS = 60
AttemptReport = Callable[[ActivityDelivery], Operation]
WORKERS = ("w1", "w2")


class Storm:
    """What two workers, some clients, time and a bad disk do, by the throw of a die."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.die = random.Random(seed)
        self.workflows: list[str] = []
        self.tasks: list[WorkflowDelivery] = []
        self.attempts: list[ActivityDelivery] = []
        self.signals: dict[str, set[str]] = {}
        """Signals that were acknowledged to a workflow, by the ids of their commands."""
        self.updates: dict[str, set[str]] = {}
        """Updates that were acknowledged to a run, by their ids."""
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
            if isinstance(operation, SignalRun) and not isinstance(reply, Exception):
                (instance,) = operation.instances()
                self.signals.setdefault(instance.workflow_id, set()).add(reply.command_id)
            elif isinstance(operation, UpdateRun) and not isinstance(reply, Exception):
                self.updates.setdefault(reply.run_id, set()).add(reply.update_id)

    async def check(self) -> None:
        """The disk is sound, and no open workflow has lost or doubled a signal."""
        runs = await check_disk(self.stage.store)
        received = await self.received(runs)
        assert len(received) == len(set(received)), "a signal was received or rejected twice"
        for workflow_id, acknowledged in self.signals.items():
            chain = [run for run in runs if run.workflow_id == workflow_id]
            waiting = {waiting.command_id for waiting in chain[-1].inbox.values()}
            assert acknowledged <= waiting | set(received), "a signal was lost"
        for run in runs:
            await self._check_updates(run)

    async def _check_updates(self, run: Run) -> None:
        ended: list[str] = [
            event["payload"]["update_id"]
            for event in await self.stage.events(run.run_id)
            if event["event_type"] in ("UpdateCompleted", "UpdateRejected")
        ]
        waiting = [m.command_id for m in run.inbox.values() if isinstance(m, Update)]
        waiting += [] if run.update is None else [run.update.update_id]
        known = [*ended, *waiting]
        assert len(known) == len(set(known)), "an update ended twice"
        assert self.updates.get(run.run_id, set()) <= set(known), "an update was lost"

    async def received(self, runs: list[Run]) -> list[str]:
        return [
            event["payload"]["workflow_command_id"]
            for run in runs
            for event in await self.stage.events(run.run_id)
            if event["event_type"] in ("SignalReceived", "SignalRejected")
        ]

    def _operation(self) -> Operation:
        self._numbers += 1
        kinds = ["start", "start", "signal", "signal", "update", "update", "cancel"]
        kinds += ["task"] * 3 * bool(self.tasks) + ["attempt"] * 3 * bool(self.attempts)
        match self.die.choice(kinds) if self.workflows else "start":
            case "signal":
                request = {"request_id": f"r{self._numbers}", "digest": "d"}
                return signal(self.die.choice(self.workflows), **request)
            case "update":
                request = {"request_id": f"r{self.die.randint(1, 9)}", "digest": "d"}
                return update(self.die.choice(self.workflows), **request)
            case "cancel" if self.die.random() < 0.3:
                return cancel(self.die.choice(self.workflows))
            case "task":
                return self._report()
            case "attempt":
                reports: list[AttemptReport] = [result, result, failure, heartbeat, release]
                return self.die.choice(reports)(self.die.choice(self.attempts))
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
        chosen = self.die.choice(commands)
        completing = completion(task, *(outcome_of(task) or chosen))
        return self.die.choice([completing] * 3 + [task_failure(task), renewal(task)])

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
        misses = 0
        for _ in range(300):
            runs = await check_disk(self.stage.store)
            if all(run.is_closed for run in runs):
                return runs
            served = [await self._serve(kind) for kind in ("workflow", "activity")]
            misses += "missed" in served
            assert misses < 4, f"ready tasks are not given to anybody: {self.stage.ready()}"
            if "done" not in served:
                await self.stage.clock.advance(seconds=120)
        waiting = [run for run in runs if not run.is_closed]
        raise AssertionError(f"{len(waiting)} runs are stuck: {waiting[0]}")

    async def _serve(self, kind: str) -> str:
        """Do one task if there is one. A hint may have been lost: then it comes with time."""
        if not self.stage.store.rows("select 1 from ready where kind = ?", kind):
            return "nothing"
        delivery = await self.stage.poll(kind, "last", seconds=2)
        if isinstance(delivery, WorkflowDelivery):
            await self.stage.play(completion(delivery, *(outcome_of(delivery) or [DONE])))
        elif isinstance(delivery, ActivityDelivery):
            await self.stage.play(result(delivery))
        return "missed" if delivery is None else "done"


def outcome_of(task: WorkflowDelivery) -> list[Command]:
    """What the task of an update must bring."""
    update_id = task.resume.get("workflow_update_id")
    return [] if update_id is None else [CompleteUpdate(update_id=str(update_id))]


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_events_and_faults_breaks_a_promise(seed: int, tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        for worker_id in WORKERS:
            await stage.register(worker_id)
        storm = Storm(stage, seed)
        for _ in range(STEPS):
            await storm.step()
            await storm.check()
        await storm.finish()
        await storm.check()
        assert len(storm.workflows) >= 5

    with must_end(seconds=180):
        play(tmp_path / "perdure.db", story, deadlines=True)

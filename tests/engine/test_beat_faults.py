"""A beat whose disk fails: nobody is answered, nobody loses a place, nothing happens twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure.core.rejection import DuplicateNotAllowed
from perdure.core.run.command import OpenConditionWait
from perdure.core.run.lease import TaskState
from perdure.core.run.status import RunStatus
from perdure.engine.claims import ClaimTasks
from perdure.engine.operation import Operation
from perdure.store.interface import Unavailable
from tests.engine.engine_harness import (
    ACTIVITIES,
    DONE,
    WORKFLOWS,
    Stage,
    a_timer,
    an_activity,
    cancel,
    completion,
    play,
    result,
    signal,
    start,
)
from tests.engine.faulty import disk_full
from tests.engine.invariants import check_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


# Failing before -----------------------------------------------------------------------------------


def test_after_a_failed_commit_each_operation_goes_alone(path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.store.fail_commits(disk_full())

        replies = await stage.together(*(start(f"order-{number}") for number in range(3)))

        assert all(reply.is_new for reply in replies)
        assert [len(changes.runs) for changes in stage.store.commits] == [3, 1, 1, 1]
        assert len(await check_disk(stage.store)) == 3

    play(path, story)


def test_after_a_failed_load_each_operation_goes_alone(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.start("a")
        await stage.start("b")
        stage.server.cache.clear()
        stage.store.fail_loads(disk_full())
        before = len(stage.store.commits)

        replies = await stage.together(signal("a"), signal("b"))

        assert [reply.outcome for reply in replies] == ["signal_received"] * 2
        assert len(stage.store.commits) == before + 2
        assert [len(run.inbox) for run in await check_disk(stage.store)] == [1, 1]

    play(path, story)


def test_only_those_whom_the_disk_refuses_again_are_refused(path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.store.fail_commits(disk_full(), None, disk_full(), None)

        first, second, third = await stage.together(start("a"), start("b"), start("c"))

        assert first.is_new
        assert third.is_new
        assert isinstance(second, Unavailable)
        assert {run.workflow_id for run in await check_disk(stage.store)} == {"a", "c"}

    play(path, story)


def test_a_disk_that_keeps_refusing_leaves_everything_as_it_was(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        task = await stage.take()
        before = await stage.events(run_id)
        stage.store.fail_commits(*(disk_full() for _ in range(4)))

        replies = await stage.together(completion(task, a_timer(5)), signal(), start("other"))

        assert [getattr(reply, "reason", None) for reply in replies] == ["storage_full"] * 3
        assert await stage.events(run_id) == before
        assert len(await check_disk(stage.store)) == 1

        again = await stage.together(completion(task, a_timer(5)), signal(), start("other"))

        assert [again[0].receipt.outcome, again[1].retained] == ["completed", False]
        assert len(await check_disk(stage.store)) == 2
        assert (await stage.types(run_id)).count("TimerScheduled") == 1
        assert (await stage.types(run_id)).count("SignalReceived") == 1

    play(path, story)


def test_a_busy_disk_refuses_the_beat_at_once(path: Path) -> None:
    """Each operation alone would wait for the same lock as long again."""

    async def story(stage: Stage) -> None:
        stage.store.fail_commits(Unavailable("storage_busy", "somebody else is writing"))

        replies = await stage.together(start("a"), start("b"))

        assert [getattr(reply, "reason", None) for reply in replies] == ["storage_busy"] * 2
        assert len(stage.store.commits) == 1
        await stage.together(start("a"), start("b"))
        assert len(await check_disk(stage.store)) == 2

    play(path, story)


def test_a_refused_worker_is_not_registered_in_memory_either(path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.store.fail_commits(disk_full())

        with pytest.raises(Unavailable):
            await stage.register()

        assert stage.engine.workers == {}
        await stage.register()
        assert len(stage.engine.workers) == 1

    play(path, story)


# Failing after ------------------------------------------------------------------------------------


def test_when_the_answer_of_the_disk_is_lost_repeated_reports_have_one_effect(path: Path) -> None:
    """The commit succeeded and said it had not: the beat goes again, each operation alone."""

    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        await stage.work(an_activity())
        attempt = await stage.take_activity()
        other = await stage.start("other")
        task = await stage.take()
        stage.store.fail_after_commits(disk_full())

        replies = await stage.together(
            completion(task, a_timer(60)),
            signal("other", request_id="r1", digest="d"),
            result(attempt),
        )

        assert replies[0].receipt.outcome == "completed"
        assert replies[1].retained
        assert (await stage.types(other)).count("TimerScheduled") == 1
        assert (await stage.types(other)).count("SignalReceived") == 1
        assert (await stage.types(run_id)).count("ActivityCompleted") == 1
        await check_disk(stage.store)

    play(path, story)


def test_a_single_report_whose_answer_was_lost_is_refused_and_may_be_repeated(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        task = await stage.take()
        stage.store.fail_after_commits(disk_full())

        with pytest.raises(Unavailable):
            await stage.play(completion(task, a_timer(60)))
        again = await stage.play(completion(task, a_timer(60)))

        assert again.receipt.outcome == "completed"
        assert (await stage.types(run_id)).count("TimerScheduled") == 1
        await check_disk(stage.store)

    play(path, story)


def test_a_run_whose_start_was_committed_and_refused_is_worked_on_all_the_same(path: Path) -> None:
    """The client asks again and hears that the run exists; so somebody must do it."""

    async def story(stage: Stage) -> None:
        await stage.register()
        stage.store.fail_after_commits(disk_full())
        with pytest.raises(Unavailable):
            await stage.play(start())
        with pytest.raises(DuplicateNotAllowed):
            await stage.play(start())

        delivery = await poll_for_minutes(stage)

        assert delivery is not None, "the task is ready on disk and no poll ever finds it"

    play(path, story, deadlines=True)


def test_a_lost_hint_costs_only_time(path: Path) -> None:
    """Nothing depends on a wake-up: a task that is ready on disk is found some day."""

    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        stage.server.parked_polls._ready._names.clear()

        delivery = await poll_for_minutes(stage)

        assert delivery is not None, "the task is ready on disk and no poll ever finds it"

    play(path, story, deadlines=True)


async def poll_for_minutes(stage: Stage) -> Any:
    """What a poll gets while five minutes pass."""
    poll = asyncio.ensure_future(stage.poll(seconds=2))
    for _ in range(5):
        await stage.idle()
        await stage.clock.advance(seconds=60)
    return await poll


# Pollers ------------------------------------------------------------------------------------------


def test_a_poller_of_a_failed_beat_keeps_its_place_and_gets_the_task_later(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        poll = await stage.park()
        stage.store.fail_commits(disk_full())

        with pytest.raises(Unavailable):
            await stage.play(start())
        await stage.idle()
        assert not poll.done()
        assert stage.server.parked_polls.count == 1

        run_id = await stage.start()

        delivery = await poll
        assert (delivery.run_id, delivery.attempt) == (run_id, 1)
        await check_disk(stage.store)

    play(path, story)


def test_a_poller_whose_client_left_during_a_failing_beat_is_not_put_back(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        poll = await stage.park()
        gate = stage.store.hold_commits()
        stage.store.fail_commits(disk_full())
        starting = asyncio.ensure_future(stage.play(start()))
        await stage.until(lambda: len(stage.store.commits) == 2)

        poll.cancel()
        await stage.idle()
        gate.set()

        with pytest.raises(Unavailable):
            await starting
        assert stage.server.parked_polls.count == 0

    play(path, story)


def test_pollers_of_a_failed_beat_keep_their_order(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register("patient")
        await stage.register("newcomer")
        longest = await stage.park(worker_id="patient")
        shortest = await stage.park(worker_id="newcomer")
        stage.store.fail_commits(*(disk_full() for _ in range(3)))
        await stage.together(start("a"), start("b"))

        await stage.start("c")

        assert (await stage.first_of(longest, shortest)).owner == "patient"

    play(path, story)


def test_a_waiting_task_is_found_again_after_its_claim_failed(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        stage.store.fail_commits(disk_full())

        delivery = await stage.take()

        assert (delivery.run_id, delivery.attempt) == (run_id, 1)

    play(path, story)


@pytest.mark.parametrize("fault", ["commit", "load"])
def test_a_waiting_task_is_found_again_when_more_pollers_than_tasks_waited(
    fault: str, path: Path
) -> None:
    """One ready task, two parked polls, and a disk that fails once.

    The claim has noticed that nothing else is ready before it failed; the task that it could not
    have is still there, and one of the two must get it without a further hint.
    """

    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        if fault == "commit":
            stage.store.fail_commits(disk_full())
        else:
            stage.server.cache.clear()
            stage.store.fail_loads(disk_full())

        polls = [asyncio.ensure_future(stage.poll()) for _ in range(2)]
        answer = await stage.first_of(*polls)

        assert stage.ready() == [], "a ready task waits, polls wait, and they do not meet"
        assert answer.run_id == run_id

    play(path, story)


def test_a_claim_that_fails_beside_others_is_repeated_alone(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        gate = stage.store.hold_commits()
        blocker = asyncio.ensure_future(stage.play(start("blocker", workflow_type="unknown")))
        await stage.until(lambda: len(stage.store.commits) == 3)
        polls = [asyncio.ensure_future(stage.poll()) for _ in range(2)]
        beside = asyncio.ensure_future(stage.play(start("beside", workflow_type="unknown")))
        await stage.idle()
        stage.store.fail_commits(None, disk_full())

        gate.set()
        await asyncio.gather(blocker, beside)
        answer = await stage.first_of(*polls)

        waiting = [task for task in stage.ready() if task[0] == run_id]
        assert waiting == [], "a ready task waits, polls wait, and they do not meet"
        assert answer.run_id == run_id

    play(path, story)


def test_a_broken_claim_does_not_close_its_queue(path: Path) -> None:
    """A run that cannot be loaded lies at the head of a queue: those behind it must be served."""

    async def story(stage: Stage) -> None:
        await stage.register()
        broken = await stage.start("broken")
        stage.server.cache.clear()
        stage.store._writer.execute("update run set state = x'c1' where run_id = ?", (broken,))
        polls = [asyncio.ensure_future(stage.poll()) for _ in range(2)]
        await stage.idle()

        fine = await stage.start("fine")

        answer = await stage.first_of(*polls)
        assert answer is not None
        assert answer.run_id == fine

    play(path, story)


def test_a_broken_claim_does_not_close_its_queue_for_tasks_that_wait(path: Path) -> None:
    """The same, with the healthy task already on disk: the broken one is in its way."""

    async def story(stage: Stage) -> None:
        await stage.register()
        broken = await stage.start("broken")
        stage.clock.jump(seconds=1)
        fine = await stage.start("fine")
        stage.server.cache.clear()
        stage.store._writer.execute("update run set state = x'c1' where run_id = ?", (broken,))

        delivery = await stage.poll(seconds=4)

        assert delivery is not None
        assert delivery.run_id == fine

    play(path, story)


def test_a_poll_that_waits_beside_a_broken_run_does_not_keep_the_engine_busy(path: Path) -> None:
    """Nothing but the broken run is ready: looking at it again and again brings nobody anything."""

    async def story(stage: Stage) -> None:
        await stage.register()
        broken = await stage.start("broken")
        stage.server.cache.clear()
        stage.store._writer.execute("update run set state = x'c1' where run_id = ?", (broken,))
        poll = await stage.park()

        await stage.idle()
        await stage.idle()

        poll.cancel()
        assert stage.store.looks <= 3

    play(path, story)


# A claim and its neighbours -----------------------------------------------------------------------


def test_a_run_that_is_claimed_and_cancelled_in_one_beat_harms_nobody(path: Path) -> None:
    """The claim leases the task to a parked poll, then a cancel behind it closes the run.

    What was committed must not be decided again, so the signal beside them is received once; and
    the poller, which got nothing, must not have lost its place.
    """

    async def story(stage: Stage) -> None:
        await stage.register()
        doomed = await stage.start("doomed")
        bystander = await waiting_run(stage, "bystander")
        await in_one_beat_with_a_claim(stage, cancel("doomed"), signal("bystander"))

        closed = await stage.load(doomed)
        assert closed.status is RunStatus.CANCELLED
        assert (await stage.types(bystander)).count("SignalReceived") == 1
        await check_disk(stage.store)

    play(path, story)


def test_the_poller_of_a_claim_that_came_to_nothing_is_served_next(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start("doomed")
        poll = await in_one_beat_with_a_claim(stage, cancel("doomed"))

        next_run = await stage.start("next")

        delivery = await asyncio.wait_for(poll, 90)
        assert delivery is not None
        assert delivery.run_id == next_run

    play(path, story)


async def waiting_run(stage: Stage, workflow_id: str) -> str:
    """A run of a worker of its own, parked on a timer."""
    await stage.register("other", workflow_types=["apart"])
    run_id = await stage.start(workflow_id, workflow_type="apart")
    await stage.work(a_timer(3600), worker_id="other")
    return run_id


async def in_one_beat_with_a_claim(stage: Stage, *operations: Operation) -> "asyncio.Task[Any]":
    """Have a poll claim what waits on disk, and play some operations behind it in the same beat."""
    gate = stage.store.hold_commits()
    before = len(stage.store.commits)
    blocker = asyncio.ensure_future(stage.play(start("blocker", workflow_type="unknown")))
    await stage.until(lambda: len(stage.store.commits) == before + 1)
    poll = asyncio.ensure_future(stage.poll(seconds=5))
    await stage.idle()
    names = [operation.name for operation, _ in stage.engine._inbox]
    assert names == [ClaimTasks.name], "the poll looks for what is ready"
    behind = asyncio.ensure_future(stage.together(*operations))
    await stage.idle()
    gate.set()
    await blocker
    await behind
    return poll


# Waking up ----------------------------------------------------------------------------------------


def test_the_second_life_of_a_store_knows_everything_that_was_acknowledged(path: Path) -> None:
    async def first_life(stage: Stage) -> None:
        await stage.register()
        await stage.start("leased")
        await stage.take()
        await stage.start("ready")

    async def second_life(stage: Stage) -> None:
        leased, ready = sorted(await check_disk(stage.store), key=lambda run: run.workflow_id)
        assert leased.task is not None
        assert leased.task.state is TaskState.LEASED
        assert (await stage.take()).run_id == ready.run_id

    play(path, first_life)
    play(path, second_life)


def test_an_evicted_run_is_loaded_as_it_was(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        await stage.work(OpenConditionWait(key="paid", timeout_seconds=60))
        await stage.play(signal())
        for _ in range(3):
            stage.server.cache.clear()
            await stage.work(OpenConditionWait(key="paid", timeout_seconds=60))
            stage.server.cache.clear()
            await stage.play(signal())
        stage.server.cache.clear()
        await stage.work(DONE)

        (run,) = await check_disk(stage.store)
        assert run.status is RunStatus.COMPLETED
        assert (await stage.types(run_id)).count("SignalReceived") == 4

    play(path, story)


def test_the_two_queues_of_a_worker_do_not_mix(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        await stage.work(an_activity())

        assert await stage.store.load_ready(WORKFLOWS, {"shop", "pay"}, 10) == []
        assert len(await stage.store.load_ready(ACTIVITIES, {"shop", "pay"}, 10)) == 1

    play(path, story)

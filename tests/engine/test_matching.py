"""A task that becomes ready meets a parked poller in the same beat."""

import asyncio
from pathlib import Path

import pytest

from perdure.core.run.lease import TaskState
from perdure.core.run.operation import Activity
from tests.engine.ending import must_end
from tests.engine.engine_harness import (
    DONE,
    Stage,
    a_child,
    an_activity,
    completion,
    play,
    result,
    start,
)
from tests.engine.invariants import check_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


def test_a_task_that_starts_into_a_parked_poll_is_written_already_leased(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        poll = await stage.park()
        before = len(stage.store.commits)

        run_id = await stage.start()
        delivery = await poll

        assert (delivery.run_id, delivery.owner, delivery.attempt) == (run_id, "w1", 1)
        assert len(stage.store.commits) == before + 1
        assert stage.ready() == []
        (run,) = await check_disk(stage.store)
        assert run.task is not None
        assert run.task.state is TaskState.LEASED

    play(path, story)


def test_an_activity_scheduled_into_a_parked_poll_is_written_already_leased(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        task = await stage.take()
        poll = await stage.park("activity")
        before = len(stage.store.commits)

        await stage.play(completion(task, an_activity()))
        delivery = await poll

        assert len(stage.store.commits) == before + 1
        assert stage.ready() == []
        run = await stage.load(run_id)
        activity = run.operations[1]
        assert isinstance(activity, Activity)
        assert activity.lease is not None
        assert activity.attempt_id == delivery.attempt_id
        assert (await stage.types(run_id))[-2:] == ["ActivityScheduled", "ActivityStarted"]

    play(path, story)


def test_a_result_that_wakes_a_run_with_a_parked_poll_is_one_transaction(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        await stage.work(an_activity())
        attempt = await stage.take_activity()
        poll = await stage.park()
        before = len(stage.store.commits)

        await stage.play(result(attempt))

        assert (await poll).run_id == run_id
        assert len(stage.store.commits) == before + 1
        assert stage.ready() == []

    play(path, story)


def test_a_child_meets_a_parked_poll_in_the_beat_of_its_parent(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        task = await stage.take()
        poll = await stage.park()
        before = len(stage.store.commits)

        await stage.play(completion(task, a_child()))

        assert (await poll).workflow_type == "ship"
        assert len(stage.store.commits) == before + 1
        await check_disk(stage.store)

    play(path, story)


def test_tasks_beyond_the_pollers_wait_on_disk_and_are_found(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        poll = await stage.park()
        replies = await stage.together(*(start(f"order-{number}") for number in range(3)))

        first = (await poll).run_id
        assert len(stage.ready()) == 2
        rest = {(await stage.take()).run_id for _ in range(2)}

        assert {first} | rest == {reply.run_id for reply in replies}
        assert stage.ready() == []

    play(path, story)


def test_the_longest_waiting_poller_that_knows_the_type_is_served(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register("stranger", workflow_types=["other"])
        for name in ("first", "second"):
            await stage.register(name)
        stranger = await stage.park(worker_id="stranger")
        first = await stage.park(worker_id="first")
        second = await stage.park(worker_id="second")

        await stage.start("a")
        assert (await first).owner == "first"
        assert not second.done()
        await stage.start("b")
        assert (await second).owner == "second"
        await stage.start("c")
        await stage.idle()
        assert not stranger.done()
        assert len(stage.ready()) == 1

    play(path, story)


def test_a_task_of_a_build_goes_to_workers_of_that_build_only(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register("old", build_id="b1")
        await stage.register("new", build_id="b2")
        old = await stage.park(worker_id="old")
        new = await stage.park(worker_id="new")

        await stage.start("pinned", build_id="b2")
        assert (await new).workflow_id == "pinned"
        await stage.start("free")
        assert (await old).workflow_id == "free"

    play(path, story)


def test_a_poll_whose_client_is_gone_gets_nothing(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        gone = await stage.park()
        gone.cancel()
        await stage.idle()

        run_id = await stage.start()

        assert stage.ready() == [(run_id, 0)]
        assert (await stage.take()).attempt == 1

    play(path, story)


def test_a_lease_whose_client_left_during_the_commit_goes_back_at_once(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        gone = await stage.park()
        gate = stage.store.hold_commits()
        starting = asyncio.ensure_future(stage.start())
        await stage.until(lambda: len(stage.store.commits) == 2)
        gone.cancel()
        await stage.idle()
        gate.set()
        run_id = await starting

        delivery = await stage.take()

        assert (delivery.run_id, delivery.attempt) == (run_id, 2)
        await stage.play(completion(delivery, DONE))
        await check_disk(stage.store)

    play(path, story)


def test_ten_thousand_hints_are_not_needed_to_empty_a_queue(path: Path) -> None:
    """Everything was ready before anybody polled; each poll finds one."""

    async def story(stage: Stage) -> None:
        await stage.together(*(start(f"order-{number}") for number in range(40)))
        await stage.register()

        polls = await asyncio.gather(*(stage.take() for _ in range(40)))

        assert len({delivery.run_id for delivery in polls}) == 40
        assert stage.ready() == []
        await check_disk(stage.store)

    play(path, story)


@pytest.mark.parametrize("cached", [True, False])
def test_a_large_plain_input_reaches_a_worker_of_the_old_frame(path: Path, cached: bool) -> None:
    """Plain JSON is encoded anew for the first worker that takes the task.

    By then a start event of more than a megabyte is on disk only, and must be found there.
    """
    plain = b'["' + b"x" * 1_200_000 + b'"]'

    async def story(stage: Stage) -> None:
        await stage.start("large", arguments=None, plain=plain)
        await stage.start("small", arguments=None, plain=b'["x"]')
        if not cached:
            stage.server.cache.clear()
        await stage.register(sdk_version="durable-workflow-python/0.4.106")

        deliveries = [await stage.poll(seconds=4) for _ in range(2)]

        taken = {delivery.workflow_id: delivery for delivery in deliveries if delivery is not None}
        assert set(taken) == {"large", "small"}
        assert len(taken["large"].arguments) > 1_200_000
        await check_disk(stage.store)

    with must_end(seconds=90):
        play(path, story)

"""The one loop in which time passes: in order, through failures, and asleep when nothing is due."""

from pathlib import Path

import apsw
import pytest

from tests.engine.engine_harness import Stage, a_timer, completion, play, signal
from tests.engine.faulty import disk_full
from tests.engine.invariants import check_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


async def asleep(stage: Stage, workflow_id: str, seconds: int) -> str:
    """A run that sleeps."""
    run_id = await stage.start(workflow_id)
    await stage.work(a_timer(seconds))
    return run_id


async def fired(stage: Stage, run_id: str) -> int:
    return (await stage.types(run_id)).count("TimerFired")


def test_timers_fire_when_they_are_due_and_not_before(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await asleep(stage, "order", 10)

        await stage.clock.advance(seconds=9.999)
        assert await fired(stage, run_id) == 0
        await stage.clock.advance(seconds=0.001)
        assert await fired(stage, run_id) == 1
        await stage.clock.advance(seconds=1000)
        assert await fired(stage, run_id) == 1
        await check_disk(stage.store)

    play(path, story, deadlines=True)


def test_what_is_due_together_fires_in_the_order_of_its_time(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        runs = {
            seconds: await asleep(stage, f"order-{seconds}", seconds) for seconds in (30, 10, 20)
        }
        before = len(stage.store.commits)

        await stage.clock.advance(seconds=60)

        order = [run.run_id for changes in stage.store.commits[before:] for run in changes.runs]
        assert order == [runs[10], runs[20], runs[30]]

    play(path, story, deadlines=True)


def test_more_than_one_batch_is_fired_in_one_go(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.dispatch.deadlines.DUE_PER_BEAT_MAX", 2)

    async def story(stage: Stage) -> None:
        await stage.register()
        runs = [await asleep(stage, f"order-{number}", 10) for number in range(5)]

        await stage.clock.advance(seconds=10)

        assert [await fired(stage, run_id) for run_id in runs] == [1] * 5

    play(path, story, deadlines=True)


def test_a_nearer_deadline_wakes_the_loop_earlier(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        far = await asleep(stage, "far", 20)
        near = await asleep(stage, "near", 5)

        await stage.clock.advance(seconds=5)

        assert (await fired(stage, near), await fired(stage, far)) == (1, 0)

    play(path, story, deadlines=True)


def test_a_timer_of_no_time_fires_at_once(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        task = await stage.take()
        poll = await stage.park()

        await stage.play(completion(task, a_timer(0)))

        assert (await poll).size.events == 4

    play(path, story, deadlines=True)


def test_an_overdue_timer_of_an_earlier_process_fires_at_the_start(path: Path) -> None:
    async def first_life(stage: Stage) -> None:
        await stage.register()
        await asleep(stage, "order", 10)

    async def second_life(stage: Stage) -> None:
        stage.clock.jump(seconds=100)
        await stage.clock.advance(seconds=0)
        (run,) = await check_disk(stage.store)
        assert await fired(stage, run.run_id) == 1

    play(path, first_life)
    play(path, second_life, deadlines=True)


# Failures -----------------------------------------------------------------------------------------


def test_a_disk_that_refuses_to_be_looked_at_is_looked_at_again_later(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await asleep(stage, "order", 10)
        stage.store.fail_looks_at_deadlines(disk_full(), disk_full())

        await stage.clock.advance(seconds=10)
        assert await fired(stage, run_id) == 0
        for _ in range(3):
            await stage.clock.advance(seconds=2)

        assert await fired(stage, run_id) == 1

    play(path, story, deadlines=True)


def test_a_commit_that_fails_postpones_what_is_due_and_fires_it_once(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        runs = [await asleep(stage, f"order-{number}", 10) for number in range(2)]
        stage.store.fail_commits(*(disk_full() for _ in range(5)))

        for _ in range(4):
            await stage.clock.advance(seconds=10)

        assert stage.store.refused == 5
        assert [await fired(stage, run_id) for run_id in runs] == [1, 1]
        await check_disk(stage.store)

    play(path, story, deadlines=True)


def test_a_timer_whose_commit_lost_its_answer_fires_once(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await asleep(stage, "order", 10)
        stage.store.fail_after_commits(disk_full())

        for _ in range(4):
            await stage.clock.advance(seconds=10)

        assert await fired(stage, run_id) == 1

    play(path, story, deadlines=True)


def test_a_run_that_cannot_be_fired_keeps_no_other_from_firing(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        broken = await asleep(stage, "broken", 5)
        fine = await asleep(stage, "fine", 10)
        stage.server.cache.clear()
        stage.store._writer.execute("update run set state = x'c1' where run_id = ?", (broken,))

        await stage.clock.advance(seconds=10)
        await stage.clock.advance(seconds=2)

        assert await fired(stage, fine) == 1

    play(path, story, deadlines=True)


def test_an_error_that_nobody_foresaw_does_not_end_time(path: Path) -> None:
    """The loop is a child of the server's task group: if it ends, the server ends."""

    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await asleep(stage, "order", 10)
        stage.store.fail_looks_at_deadlines(apsw.NoMemError("out of memory"))

        for _ in range(3):
            await stage.clock.advance(seconds=10)

        assert await fired(stage, run_id) == 1

    play(path, story, deadlines=True)


# Sleeping -----------------------------------------------------------------------------------------


def test_the_loop_sleeps_while_nothing_is_due(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await asleep(stage, "order", 3600)
        for number in range(5):
            await stage.play(signal(name=f"go-{number}"))
        looks = stage.store.dues

        await stage.idle()
        await stage.idle()

        assert stage.store.dues == looks

    play(path, story, deadlines=True)


def test_the_loop_does_not_spin_on_a_disk_that_refuses(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await asleep(stage, "order", 10)
        stage.store.fail_looks_at_deadlines(*(disk_full() for _ in range(1000)))
        looks = stage.store.dues

        await stage.clock.advance(seconds=10)
        await stage.idle()

        assert stage.store.dues - looks <= 3

    play(path, story, deadlines=True)


def test_the_loop_does_not_spin_on_a_run_that_cannot_be_fired(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        broken = await asleep(stage, "broken", 10)
        stage.server.cache.clear()
        stage.store._writer.execute("update run set state = x'c1' where run_id = ?", (broken,))
        looks = stage.store.dues

        await stage.clock.advance(seconds=10)
        await stage.idle()

        assert stage.store.dues - looks <= 3

    play(path, story, deadlines=True)


def test_the_loop_does_not_spin_on_a_deadline_whose_run_is_gone(path: Path) -> None:
    """Nothing of ours leaves such a row, but a restored or repaired file may have one."""

    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await asleep(stage, "order", 20)
        stage.store._writer.execute("insert into deadline values ('run', 'nobody', 1)")
        looks = stage.store.dues

        stage.clock.jump(seconds=10)
        stage.server.deadlines.arm(1)
        await stage.idle()
        spun = stage.store.dues - looks
        stage.store._writer.execute("delete from deadline where target = 'nobody'")
        await stage.clock.advance(seconds=10)

        assert spun <= 3
        assert await fired(stage, run_id) == 1

    play(path, story, deadlines=True)

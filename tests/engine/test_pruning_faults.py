"""Wherever a process dies while it prunes, the next one finishes, and nothing else is lost."""

import asyncio
from pathlib import Path

import pytest

from perdure.core.limits import FORGET_EVERY
from perdure.core.run.state import Dialect
from perdure.features.retention.loops import Retention, RunPruner
from perdure.store.interface import Unavailable
from tests.engine.engine_harness import DONE, NAMESPACE, Stage, a_stage, signal
from tests.engine.faulty import disk_full
from tests.engine.invariants import check_disk
from tests.support.clock import SECOND, FakeClock

DAY = 86_400
OLD = 5
OF_RUNS = ("run", "history", "receipt", "operation", "inbox", "ready")


@pytest.fixture(autouse=True)
def small_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.features.retention.loops.FORGET_PAUSE", 0)
    monkeypatch.setattr("perdure.features.retention.loops.RUNS_PRUNED_AT_ONCE_MAX", 2)
    monkeypatch.setattr("perdure.features.retention.operations.REMAINS_ROWS_MAX", 2)


async def prune(stage: Stage) -> int:
    rule = Retention(Dialect.PULL, 30 * DAY * SECOND, lambda: {NAMESPACE})
    return await RunPruner(stage.engine, stage.clock, [rule]).prune()


async def die_at(path: Path, clock: FakeClock, number: int, *, after: bool) -> bool:
    """A process that writes so many times while it prunes, and no more; whether it came to that."""
    async with a_stage(path, clock) as stage:
        fail = stage.store.fail_after_commits if after else stage.store.fail_commits
        fail(*([None] * number), *([disk_full()] * 50))
        try:
            await prune(stage)
        except Unavailable:
            return True
        return False


async def kept(stage: Stage) -> dict[str, int]:
    return {table: len(stage.store.rows(f"select * from {table}")) for table in OF_RUNS}


@pytest.mark.parametrize("after", [False, True], ids=["before-it-is-on-disk", "afterwards"])
def test_a_process_that_dies_while_it_prunes_leaves_nothing_behind(
    tmp_path: Path, after: bool
) -> None:
    async def story() -> None:
        number, has_died = 0, True
        while has_died:
            path, clock = tmp_path / f"{after}-{number}.db", FakeClock()
            async with a_stage(path, clock) as stage:
                await stage.register()
                for old in range(OLD):
                    await stage.start(f"old-{old}")
                    await stage.play(signal(f"old-{old}", request_id="r"))
                    await stage.work(DONE)
                before = await kept(stage)
                clock.jump(seconds=31 * DAY)
                await stage.register()
                await stage.start("young")
                await stage.work(DONE)
                young = {
                    table: count - before[table] for table, count in (await kept(stage)).items()
                }

            has_died = await die_at(path, clock, number, after=after)

            async with a_stage(path, clock, deadlines=True) as stage:
                while stage.store.rows("select kind from record where kind = 'leftover'"):
                    await clock.advance(seconds=31)
                await prune(stage)
                assert await kept(stage) == young, number
                assert [run.workflow_id for run in await check_disk(stage.store)] == ["young"]
            number += 1
        assert number > 5

    asyncio.run(story())


async def kept_runs(stage: Stage) -> int:
    return len(stage.store.rows("select * from run"))


def test_the_loop_waits_before_each_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.features.retention.loops.jitter", lambda most: 0)

    async def story() -> None:
        clock = FakeClock()
        async with a_stage(tmp_path / "perdure.db", clock) as stage:
            await stage.register()
            rule = Retention(Dialect.PULL, SECOND, lambda: {NAMESPACE})
            pruning = asyncio.ensure_future(RunPruner(stage.engine, clock, [rule]).run())
            for number in range(3):
                await stage.start(f"old-{number}")
                await stage.work(DONE)
                await stage.until(lambda: clock.sleepers > 0)
                clock.jump(seconds=FORGET_EVERY / SECOND - 1)
                await stage.idle()
                assert await kept_runs(stage) == 1
                await clock.advance(seconds=1)
                await stage.until(lambda: clock.sleepers > 0)
                assert await kept_runs(stage) == 0
            pruning.cancel()

    asyncio.run(story())


def test_there_is_a_pause_between_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.features.retention.loops.FORGET_PAUSE", SECOND)

    async def story() -> None:
        clock = FakeClock()
        async with a_stage(tmp_path / "perdure.db", clock) as stage:
            await stage.register()
            for number in range(6):
                await stage.start(f"old-{number}")
                await stage.work(DONE)
            clock.jump(seconds=31 * DAY)
            pruning = asyncio.ensure_future(prune(stage))
            await stage.until(lambda: clock.sleepers > 0)
            await stage.idle()
            assert await kept_runs(stage) == 4
            pruning.cancel()

    asyncio.run(story())

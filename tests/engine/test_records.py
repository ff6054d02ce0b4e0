"""Records in the beat: seen by all, changed together with runs, fired by the one clock."""

import asyncio
from pathlib import Path

import pytest
from msgspec import Struct

from perdure.core.rejection import InvalidRequest
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.store.interface import RecordKey, Unavailable
from tests.cluster.among import several
from tests.engine.engine_harness import NAMESPACE, Stage, play
from tests.engine.faulty import disk_full
from tests.support.clock import SECOND


class Tally(Struct):
    """Something to count with."""

    count: int


TALLY = RecordKind("tally", Tally)


class Add(Operation):
    """Count, up to a limit."""

    __slots__ = ("_due_at", "_limit", "_name")

    def __init__(self, name: str = "a", *, limit: int = 99, due_at: int | None = None) -> None:
        self._name = name
        self._limit = limit
        self._due_at = due_at

    def records(self) -> tuple[RecordKey, ...]:
        return (TALLY.key(NAMESPACE, self._name),)

    def decide(self, world: World) -> int:
        known = TALLY.find(world, NAMESPACE, self._name) or Tally(0)
        if known.count >= self._limit:
            raise InvalidRequest("count", "is enough")
        TALLY.put(world, NAMESPACE, self._name, Tally(known.count + 1), due_at=self._due_at)
        return known.count + 1


class Ring(Operation):
    """The tally is due: it counts once more and is due no more."""

    __slots__ = ("_key",)

    def __init__(self, key: RecordKey) -> None:
        self._key = key

    def records(self) -> tuple[RecordKey, ...]:
        return (self._key,)

    def decide(self, world: World) -> bool:
        record = world.find_record(self._key)
        known = TALLY.find(world, self._key.namespace, self._key.key)
        if record is None or known is None or record.due_at is None:
            return True
        if record.due_at <= world.ctx.now:
            TALLY.put(world, self._key.namespace, self._key.key, Tally(known.count + 100))
        return True


async def count(stage: Stage, name: str = "a") -> int | None:
    tally = await TALLY.read(stage.engine.store, NAMESPACE, name)
    return None if tally is None else tally.count


def test_operations_of_one_beat_see_what_the_others_left(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        replies = await stage.together(Add(), Add(), Add("b"), Add(limit=2), Add())
        assert replies[:3] == [1, 2, 1]
        assert isinstance(replies[3], InvalidRequest)
        assert replies[4] == 3
        assert (await count(stage), await count(stage, "b")) == (3, 1)
        assert len(stage.store.commits) == 1

    play(tmp_path / "perdure.db", story)


def test_what_a_commit_refused_was_never_counted(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.play(Add())
        stage.store.fail_commits(disk_full())
        with pytest.raises(Unavailable):
            await stage.play(Add())
        assert await count(stage) == 1
        assert await stage.play(Add()) == 2

    play(tmp_path / "perdure.db", story)


def test_a_record_rings_when_it_is_due(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.server.deadlines.on_record("tally", Ring)
        due_at = stage.clock.now() + 5 * SECOND
        await stage.play(Add(due_at=due_at))
        await stage.idle()
        assert await count(stage) == 1
        await stage.clock.advance(seconds=5)
        async with asyncio.timeout(90):
            while await count(stage) != 101:  # noqa: ASYNC110 (nobody would tell us)
                await asyncio.sleep(0)
        assert await stage.engine.store.find_next_due(0) is None

    play(tmp_path / "perdure.db", story, deadlines=True)


def test_a_record_of_an_unknown_kind_stays_due_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        due_at = stage.clock.now() + SECOND
        await stage.play(Add(due_at=due_at))
        stage.server.deadlines.on_record("other", Ring)
        await stage.clock.advance(seconds=2)
        await stage.idle()
        assert await count(stage) == 1
        assert await stage.engine.store.find_next_due(0) == due_at

    play(tmp_path / "perdure.db", story, deadlines=True)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_nodes_that_count_the_same_count_right(migrated_url: str, names: list[str]) -> None:
    async def story() -> None:
        async with several(migrated_url) as (one, two):
            adding = [
                node.engine.submit(Add(name))
                for _ in range(20)
                for node in (one, two)
                for name in names
            ]
            await asyncio.wait_for(asyncio.gather(*adding), 90)
            for name in names:
                assert await count(one, name) == 40

    asyncio.run(story())


def test_of_two_nodes_only_one_passes_the_limit(migrated_url: str) -> None:
    async def story() -> None:
        async with several(migrated_url) as (one, two):
            adding = [node.engine.submit(Add(limit=5)) for _ in range(10) for node in (one, two)]
            replies = await asyncio.gather(*adding, return_exceptions=True)
            assert sorted(reply for reply in replies if isinstance(reply, int)) == [1, 2, 3, 4, 5]
            refused = [reply for reply in replies if not isinstance(reply, int)]
            assert len(refused) == 15
            assert all(isinstance(reply, InvalidRequest) for reply in refused)

    asyncio.run(story())

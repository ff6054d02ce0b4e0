"""Streams in the beat: writers see each other, and a disk that refuses gives no offset away."""

from pathlib import Path

import pytest

from perdure.core.rejection import StreamClosed, StreamNotFound
from perdure.core.run.command import Command, RecordSideEffect
from perdure.core.run.stream import AppendItems, CloseStream, NewItem
from perdure.engine.streams import CompleteStreamingTask, WriteStream
from perdure.store.interface import Unavailable
from tests.engine.engine_harness import Stage, a_timer, play, report_of
from tests.engine.faulty import disk_full

DATA = "select item_offset, idempotency_key from stream_item order by item_offset"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


def appending(*keys: str | None) -> AppendItems:
    items = [NewItem(payload=b'"x"', idempotency_key=key) for key in keys]
    return AppendItems(stream_name="log", items=items)


def write(run_id: str, *keys: str | None) -> WriteStream:
    return WriteStream("default", run_id, appending(*keys))


def close(run_id: str) -> WriteStream:
    return WriteStream("default", run_id, CloseStream(stream_name="log"))


def test_writers_of_one_beat_see_each_other(path: Path) -> None:
    async def story(stage: Stage) -> None:
        run_id = await stage.start()
        before = len(stage.store.commits)

        early, first, second, ended, late, again = await stage.together(
            close(run_id),
            write(run_id, "a", None),
            write(run_id, "b", "a"),
            close(run_id),
            write(run_id, "c"),
            write(run_id, "b"),
        )

        assert isinstance(early, StreamNotFound)
        assert (first.offsets, second.offsets, second.accepted) == ([0, 1], [2, 0], 1)
        assert ended.stream.status == "closed"
        assert isinstance(late, StreamClosed)
        assert again.offsets == [2]
        assert len(stage.store.commits) == before + 1
        assert stage.store.rows(DATA) == [(0, "a"), (1, None), (2, "b")]

    play(path, story)


def test_a_refusing_disk_gives_no_offset_away(path: Path) -> None:
    async def story(stage: Stage) -> None:
        run_id = await stage.start()
        await stage.play(write(run_id, "a"))
        # Together, then each alone: the second of them is refused for good.
        stage.store.fail_commits(disk_full(), None, disk_full(), None)

        first, second, third = await stage.together(
            write(run_id, "b"), write(run_id, "c"), write(run_id, "d")
        )

        assert (first.offsets, third.offsets) == ([1], [2])
        assert isinstance(second, Unavailable)
        assert (await stage.play(write(run_id, "c"))).offsets == [3]
        assert stage.store.rows(DATA) == [(0, "a"), (1, "b"), (2, "d"), (3, "c")]

    play(path, story)


def test_who_repeats_an_append_whose_answer_was_lost_gets_its_offsets(path: Path) -> None:
    async def story(stage: Stage) -> None:
        run_id = await stage.start()
        stage.store.fail_after_commits(disk_full())

        # The beat takes it for refused, tries again by itself, and finds its own items.
        (written,) = await stage.together(write(run_id, "a", "b"))
        if isinstance(written, Unavailable):
            written = await stage.play(write(run_id, "a", "b"))

        assert written.offsets == [0, 1]
        assert stage.store.rows(DATA) == [(0, "a"), (1, "b")]

    play(path, story)


def test_a_completion_and_its_items_are_on_disk_together_or_not_at_all(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        task = await stage.take()
        effect = RecordSideEffect(result=b'"x"', stream=appending("a"))
        report = report_of(task)
        commands: list[Command] = [effect, a_timer(60)]

        def completing() -> CompleteStreamingTask:
            return CompleteStreamingTask("default", run_id, report, commands)

        stage.store.fail_commits(disk_full(), disk_full())
        (refused,) = await stage.together(completing())
        assert isinstance(refused, Unavailable)
        assert stage.store.rows(DATA) == []
        assert "SideEffectRecorded" not in await stage.types(run_id)
        stage.store.heal()

        await stage.play(completing())
        await stage.play(completing())
        assert stage.store.rows(DATA) == [(0, "a")]
        assert (await stage.types(run_id)).count("SideEffectRecorded") == 1

    play(path, story)

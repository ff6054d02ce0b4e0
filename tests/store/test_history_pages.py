"""History lies on disk in chunks, one per beat, and is read in pages of any size."""

from itertools import pairwise

import msgspec
import pytest

from perdure.core.payload import Frame
from perdure.core.run.state import Run
from perdure.core.run.task import lease_task
from perdure.store.interface import Store
from tests.store.building import a_run, ctx, with_events
from tests.store.keeping import Keep

CHUNKS = (3, 1, 5, 2)


def a_chunked_run(keep: Keep, store: Store) -> Run:
    """A run whose history of 2 + 11 events came in five beats."""
    run = a_run()
    keep.commit(store, run)
    for size in CHUNKS:
        keep.commit(store, with_events(run, size))
    return run


def test_a_history_is_the_sum_of_its_chunks(keep: Keep) -> None:
    with keep.opened() as store:
        run = a_chunked_run(keep, store)

        (loaded,) = keep.run(store.load_runs([run.run_id]))
        whole = keep.run(store.read_history(run.run_id, 0, 1000))

        assert loaded.events == whole == run.events
        assert sequences(whole) == list(range(1, 14))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 13, 14])
def test_pages_of_any_size_meet_without_gap_or_overlap(keep: Keep, size: int) -> None:
    with keep.opened() as store:
        run = a_chunked_run(keep, store)

        pages = [keep.run(store.read_history(run.run_id, at, size)) for at in range(0, 13, size)]

        assert [event for page in pages for event in page] == run.events
        assert all(len(page) == size for page, _ in pairwise(pages))


@pytest.mark.parametrize("after", range(15))
def test_a_page_starts_right_behind_its_cursor_in_the_middle_of_any_chunk(
    keep: Keep, after: int
) -> None:
    with keep.opened() as store:
        run = a_chunked_run(keep, store)

        assert keep.run(store.read_history(run.run_id, after, 4)) == run.events[after : after + 4]


def test_nothing_lies_behind_the_end_or_in_a_run_that_is_none(keep: Keep) -> None:
    with keep.opened() as store:
        run = a_chunked_run(keep, store)

        assert keep.run(store.read_history(run.run_id, 1_000_000, 10)) == []
        assert keep.run(store.read_history("nobody", 0, 10)) == []
        assert keep.run(store.read_last_events("nobody")) == []


def test_the_last_events_are_those_of_the_last_beat(keep: Keep) -> None:
    with keep.opened() as store:
        run = a_chunked_run(keep, store)

        assert keep.run(store.read_last_events(run.run_id)) == run.events[-CHUNKS[-1] :]


def test_two_histories_do_not_mix(keep: Keep) -> None:
    one, other = a_run("one"), a_run("other")
    with keep.opened() as store:
        keep.commit(store, one, other)
        keep.commit(store, with_events(one, 2), with_events(other, 3))

        for run in (one, other):
            assert keep.run(store.read_history(run.run_id, 0, 100)) == run.events


def test_the_start_is_rewritten_for_the_first_worker_and_nothing_else_is(keep: Keep) -> None:
    """Plain input is guessed to be for a new worker; an old one took the task."""
    run = a_run(plain=b'["hello"]')
    with keep.opened() as store:
        keep.commit(store, run)
        before = list(run.events)

        lease(run, Frame.WRAPPER)
        with_events(run, 2)
        keep.commit(store, run)

        (loaded,) = keep.run(store.load_runs([run.run_id]))
        assert loaded.events == run.events
        assert loaded.arguments == run.arguments
        assert loaded.events[0] == before[0]
        assert loaded.events[1] != before[1]
        assert sequences(keep.run(store.read_history(run.run_id, 0, 10))) == [1, 2, 3, 4]


def test_a_run_started_and_leased_in_one_beat_needs_no_rewriting(keep: Keep) -> None:
    run = a_run(plain=b'["hello"]')
    with keep.opened() as store:
        lease(run, Frame.WRAPPER)
        keep.commit(store, run)

        (loaded,) = keep.run(store.load_runs([run.run_id]))
        assert (loaded.events, loaded.arguments) == (run.events, run.arguments)


def lease(run: Run, frame: Frame) -> None:
    lease_task(run, ctx, owner="w1", timeout=60_000_000, frame=frame, runtime="python")


def sequences(events: list[bytes]) -> list[int]:
    return [msgspec.json.decode(event)["sequence"] for event in events]

"""Runs in memory: within a bound of bytes, the least recently used one goes first."""

import pytest

from perdure.core.limits import (
    CLOSED_RUNS_CACHED_MAX,
    RUN_HISTORY_CACHE_BYTES_MAX,
    RUN_OPENING_CACHE_BYTES_MAX,
)
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.engine.cache import RunCache
from perdure.engine.workflow_tasks import page_of
from tests.engine.ending import must_end


def a_run(run_id: str = "r", *events: int) -> Run:
    """A run whose history has events of these sizes."""
    run = Run(run_id, "default", run_id, "shop", "q", 1, 0)
    run.events = [b"x" * size for size in events]
    run.history_count = len(events)
    run.events_bytes = run.history_bytes = sum(events)
    return run


def test_the_least_recently_used_run_goes_first() -> None:
    cache = RunCache(bytes_max=35_000)
    for name in "abc":
        cache.keep(a_run(name, 5_000))
    assert cache.find("a") is not None

    cache.keep(a_run("d", 5_000))

    assert [cache.find(name) is not None for name in "abcd"] == [True, False, True, True]
    assert cache.bytes_held <= 35_000


def test_the_newest_run_stays_even_if_it_is_larger_than_the_bound() -> None:
    cache = RunCache(bytes_max=10_000)
    cache.keep(a_run("small", 10))
    cache.keep(a_run("large", 50_000))

    assert (cache.find("small"), len(cache)) == (None, 1)
    cache.drop("large")
    assert (cache.bytes_held, len(cache)) == (0, 0)


def test_a_run_that_is_kept_again_is_counted_once() -> None:
    cache = RunCache()
    run = a_run("r", 100)
    cache.keep(run)
    once = cache.bytes_held
    for _ in range(5):
        cache.keep(run)

    assert cache.bytes_held == once


def test_of_closed_runs_only_the_last_ones_stay() -> None:
    cache = RunCache()
    cache.keep(a_run("open"))
    for number in range(CLOSED_RUNS_CACHED_MAX + 2):
        closed = a_run(f"closed-{number}")
        closed.status = RunStatus.COMPLETED
        cache.keep(closed)
        if number == CLOSED_RUNS_CACHED_MAX:
            # Who was looked at again is one of the last.
            cache.keep(cached(cache, "closed-1"))

    kept = {name: cache.find(name) is not None for name in ("open", "closed-0", "closed-1")}
    assert kept == {"open": True, "closed-0": False, "closed-1": True}
    assert cache.find("closed-2") is None
    assert len(cache) == CLOSED_RUNS_CACHED_MAX + 1


def cached(cache: RunCache, run_id: str) -> Run:
    run = cache.find(run_id)
    assert run is not None
    return run


def test_dropping_what_is_not_there_does_nothing() -> None:
    cache = RunCache()
    cache.drop("nobody")
    cache.keep(a_run())
    cache.clear()
    assert (cache.bytes_held, len(cache)) == (0, 0)


def test_a_closed_run_keeps_neither_history_nor_arguments() -> None:
    cache = RunCache()
    run = a_run("r", 100, 100)
    run.status = RunStatus.COMPLETED

    cache.keep(run)

    assert (run.events, run.events_bytes, run.arguments) == ([], 0, b"null")


LARGE = RUN_HISTORY_CACHE_BYTES_MAX


@pytest.mark.parametrize(
    "events",
    [
        (100,) * 20_000,
        (10, LARGE),
        (LARGE, 10),
        (LARGE + 1,),
        (10, 10, LARGE + 1),
        (LARGE // 2,) * 5,
    ],
    ids=["many", "last-large", "first-large", "one-too-large", "last-too-large", "halves"],
)
def test_the_oldest_events_of_a_long_history_are_forgotten(events: tuple[int, ...]) -> None:
    """What is kept is a tail without a gap, whatever the events weigh."""
    cache, run = RunCache(), a_run("r", *events)
    before = list(run.events)

    with must_end(seconds=90):
        cache.keep(run)

    assert run.events_bytes == sum(map(len, run.events)) <= LARGE
    assert run.events == before[len(before) - len(run.events) :]
    assert run.events_first == len(before) - len(run.events) + 1


def test_the_first_page_of_a_long_history_is_kept_apart() -> None:
    """Otherwise every poll would read it from disk, however little its worker wants to see."""
    cache, run = RunCache(), a_run("r", *([1_000] * 2_000))
    before = [b"%d" % number + event for number, event in enumerate(run.events)]
    run.events = list(before)

    cache.keep(run)
    size = cache.bytes_held
    for number in range(2_000):
        record(run, number)
        cache.keep(run)

    kept = len(run.opening)
    assert run.events_first > kept > 1, "there is a gap between the two"
    assert run.opening == before[:kept]
    assert run.opening_bytes == sum(map(len, run.opening)) <= RUN_OPENING_CACHE_BYTES_MAX
    assert size > RUN_HISTORY_CACHE_BYTES_MAX // 2 + run.opening_bytes
    assert page_of(run, after=0, limit=1).events == before[:1]
    assert page_of(run, after=1, limit=kept - 1).events == before[1:kept]
    assert page_of(run, after=1, limit=kept).events is None, "only a whole page will do"

    run.status = RunStatus.COMPLETED
    cache.keep(run)
    assert (run.opening, run.opening_bytes) == ([], 0)


def record(run: Run, number: int) -> None:
    run.events.append(b"y%d" % number + b"x" * 1_000)
    run.events_bytes += len(run.events[-1])
    run.history_count += 1


def test_a_first_event_that_is_too_large_is_not_kept() -> None:
    cache, run = RunCache(), a_run("r", LARGE, 10, 10)

    cache.keep(run)

    assert run.opening == []
    assert page_of(run, after=0, limit=1).events is None

"""Who waits for the disk: the loop when that is short, else a thread."""

import asyncio
import threading
from collections.abc import Iterator

import apsw
import pytest

from perdure.store.sqlite.committer import (
    INLINE_RUNS_MAX,
    INLINE_SECONDS_MAX,
    Committer,
)

FAST = INLINE_SECONDS_MAX / 10
SLOW = INLINE_SECONDS_MAX * 10
LEARNING = 40
"""More commits than the committer remembers."""


class Disk:
    """Commits that take as long as they are told to, on a clock that nobody waits for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = FAST
        self.error: apsw.Error | None = None
        self.waited: list[bool] = []

    def execute(self, statements: str, /) -> object:
        assert statements == "commit"
        self.waited.append(threading.current_thread() is threading.main_thread())
        self.now += self.seconds
        if self.error is not None:
            raise self.error
        return None

    @property
    def loop_waited(self) -> bool:
        """Whether the last commit was waited for on the loop."""
        return self.waited[-1]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def committer(disk: Disk) -> Iterator[Committer]:
    committer = Committer(lambda: disk.now)
    yield committer
    committer.stop()


def commit(committer: Committer, disk: Disk, *, runs: int = 1, times: int = 1) -> None:
    async def all_of_them() -> None:
        for _ in range(times):
            await committer.commit(disk, runs=runs)

    asyncio.run(all_of_them())


def test_a_disk_that_nobody_knows_yet_is_waited_for_in_the_thread(
    committer: Committer, disk: Disk
) -> None:
    commit(committer, disk)
    assert not disk.loop_waited


def test_a_small_beat_on_a_fast_disk_is_committed_on_the_loop(
    committer: Committer, disk: Disk
) -> None:
    commit(committer, disk, times=LEARNING)
    commit(committer, disk, runs=INLINE_RUNS_MAX)
    assert disk.loop_waited


def test_a_large_beat_goes_to_the_thread_so_that_the_next_one_gathers(
    committer: Committer, disk: Disk
) -> None:
    commit(committer, disk, times=LEARNING)
    commit(committer, disk, runs=INLINE_RUNS_MAX + 1)
    assert not disk.loop_waited


def test_a_slow_disk_is_always_waited_for_in_the_thread(committer: Committer, disk: Disk) -> None:
    disk.seconds = SLOW
    commit(committer, disk, times=LEARNING)
    assert disk.waited == [False] * LEARNING


def test_a_disk_that_stalls_stops_the_loop_once_and_is_trusted_again_when_it_was_fast_for_long(
    committer: Committer, disk: Disk
) -> None:
    commit(committer, disk, times=LEARNING)
    disk.seconds = SLOW
    commit(committer, disk)
    assert disk.loop_waited, "nobody can know beforehand"

    commit(committer, disk)
    assert not disk.loop_waited

    disk.seconds = FAST
    commit(committer, disk)
    assert not disk.loop_waited, "one fast commit proves little"
    commit(committer, disk, times=LEARNING)
    assert disk.loop_waited


@pytest.mark.parametrize("learned", [0, LEARNING], ids=["thread", "loop"])
def test_a_refused_commit_is_an_error_for_whoever_asked(
    committer: Committer, disk: Disk, learned: int
) -> None:
    commit(committer, disk, times=learned)
    disk.error = apsw.FullError("disk full")

    with pytest.raises(apsw.FullError):
        commit(committer, disk)

    disk.error = None
    commit(committer, disk)

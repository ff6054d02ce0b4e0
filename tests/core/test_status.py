"""Statuses are data: what a run may become, and the coarse bucket that lists show."""

from itertools import pairwise, product

import pytest

from perdure.core.run.command import Command
from perdure.core.run.status import CLOSED, TRANSITIONS, RunStatus, StatusBucket, bucket
from tests.support.commands import complete_run, continue_as_new, fail_run, side_effect, timer
from tests.support.rule_harness import Story


def test_every_status_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(RunStatus)


@pytest.mark.parametrize("closed", sorted(CLOSED))
def test_a_closed_run_becomes_nothing_else(closed: RunStatus) -> None:
    assert TRANSITIONS[closed] == frozenset()


@pytest.mark.parametrize("status", sorted(set(RunStatus) - CLOSED))
def test_every_open_run_can_close_in_every_way(status: RunStatus) -> None:
    assert TRANSITIONS[status] >= CLOSED


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (RunStatus.PENDING, StatusBucket.RUNNING),
        (RunStatus.RUNNING, StatusBucket.RUNNING),
        (RunStatus.WAITING, StatusBucket.RUNNING),
        (RunStatus.PAUSED, StatusBucket.RUNNING),
        (RunStatus.NEEDS_ATTENTION, StatusBucket.RUNNING),
        (RunStatus.COMPLETED, StatusBucket.COMPLETED),
        (RunStatus.FAILED, StatusBucket.FAILED),
        (RunStatus.CANCELLED, StatusBucket.FAILED),
        (RunStatus.TERMINATED, StatusBucket.FAILED),
    ],
)
def test_the_bucket_of_a_status(status: RunStatus, expected: StatusBucket) -> None:
    assert bucket(status) is expected


ENDINGS = {
    "complete": RunStatus.COMPLETED,
    "fail": RunStatus.FAILED,
    "continue": RunStatus.COMPLETED,
    "cancel": RunStatus.CANCELLED,
    "terminate": RunStatus.TERMINATED,
    "time out": RunStatus.FAILED,
}


@pytest.mark.parametrize(("first", "ending"), list(product(["pending", "waiting"], ENDINGS)))
def test_runs_only_move_along_the_table(story: Story, first: str, ending: str) -> None:
    run = story.start(run_timeout_seconds=30)
    seen = [run.status]
    if first == "waiting":
        story.work(run, side_effect(), timer(1))
        seen.append(run.status)
        story.later(seconds=1)
    commands: dict[str, Command] = {
        "complete": complete_run(),
        "fail": fail_run(),
        "continue": continue_as_new(),
    }
    if ending in commands:
        story.work(run, commands[ending])
    elif ending == "time out":
        story.later(seconds=30)
    else:
        story.cancel(run) if ending == "cancel" else story.terminate(run)
    seen.append(run.status)

    assert seen[-1] is ENDINGS[ending]
    for before, after in pairwise(seen):
        assert after in TRANSITIONS[before]

"""While a worker replays a history nothing may enter it but that worker's own answer."""

from collections.abc import Callable, Mapping

import pytest

from perdure.core.run.completion import WAITING_FOR_HISTORY
from perdure.core.run.state import Run
from tests.support.commands import (
    Member,
    activity,
    child,
    complete_run,
    condition,
    continue_as_new,
    in_selection,
    retries,
    side_effect,
    timer,
)
from tests.support.rule_harness import Story

WORK: Mapping[str, Member] = {
    "clock": timer(1),
    "activity": activity(retry=retries(2), start_to_close=30),
    "timer": timer(20),
    "child": child(),
    "gate": condition(timeout=20),
}


@pytest.fixture
def run(story: Story) -> Run:
    """A run whose task is leased while losers of a selection are still at work."""
    run = story.start()
    story.work(run, *in_selection(WORK))
    story.later(seconds=1)
    story.lease(run)
    return run


def _completes(story: Story, run: Run) -> None:
    story.lease_activity(run, 2)
    story.complete_activity(run, 2)


def _fails_and_is_retried(story: Story, run: Run) -> None:
    story.lease_activity(run, 2)
    story.heartbeat(run, 2)
    story.fail_activity(run, 2)


def _times_out(story: Story, run: Run) -> None:
    story.lease_activity(run, 2)
    story.later(seconds=30)
    story.renew_task(run)


def _child_completes(story: Story, run: Run) -> None:
    story.work(story.child_of(run, 4), complete_run())


def _child_continues(story: Story, run: Run) -> None:
    story.work(story.child_of(run, 4), continue_as_new())


def _time_passes(story: Story, run: Run) -> None:
    story.later(seconds=20)
    story.renew_task(run)


OUTSIDE: list[tuple[Callable[[Story, Run], None], list[str]]] = [
    (_completes, ["ActivityStarted", "ActivityCompleted"]),
    (
        _fails_and_is_retried,
        ["ActivityStarted", "ActivityHeartbeatRecorded", "ActivityRetryScheduled"],
    ),
    (
        _times_out,
        ["ActivityStarted", "ActivityRetryScheduled", "TimerFired", "ConditionWaitTimedOut"],
    ),
    (_child_completes, ["ChildRunCompleted"]),
    (_child_continues, ["ChildRunStarted"]),
    (_time_passes, ["TimerFired", "ConditionWaitTimedOut"]),
]
NAMES = [case[0].__name__.strip("_").replace("_", " ") for case in OUTSIDE]


@pytest.mark.parametrize(("happens", "recorded"), OUTSIDE, ids=NAMES)
@pytest.mark.parametrize("ending", ["completed", "failed", "acknowledged", "expired"])
def test_what_happens_outside_enters_history_when_the_lease_ends(
    story: Story,
    run: Run,
    happens: Callable[[Story, Run], None],
    recorded: list[str],
    ending: str,
) -> None:
    before = list(run.events)

    happens(story, run)
    assert run.events == before

    answer: list[str] = []
    if ending == "completed":
        story.complete(run, side_effect())
        answer = ["SideEffectRecorded"]
    elif ending == "failed":
        story.fail_task(run)
    elif ending == "acknowledged":
        story.fail_task(run, failure_type=WAITING_FOR_HISTORY)
    else:
        story.clock.jump(seconds=60)
        story.fire()
    added = story.types(run, after=len(before))
    expected = [*answer, *recorded]
    # Time that passes until a lease expires brings more of the same.
    assert added[: len(expected) if ending == "expired" else None] == expected


@pytest.mark.parametrize(("happens", "recorded"), OUTSIDE, ids=NAMES)
def test_what_was_held_back_survives_a_crash(
    story: Story, run: Run, happens: Callable[[Story, Run], None], recorded: list[str]
) -> None:
    before = run.history_count
    happens(story, run)

    story.crash()
    run = story.runs[run.run_id]
    story.complete(run, side_effect())

    assert story.types(run, after=before + 1) == recorded


def test_nothing_lost_is_counted_twice(story: Story, run: Run) -> None:
    _completes(story, run)
    story.complete(run, side_effect())
    story.work(run)

    story.later(seconds=60)

    assert story.numbered(run).count(("ActivityCompleted", 2)) == 1


@pytest.mark.parametrize("command", ["cancel", "terminate"])
def test_a_stop_from_outside_is_not_held_back_and_lets_the_held_facts_in_first(
    story: Story, run: Run, command: str
) -> None:
    before = run.history_count
    _completes(story, run)

    story.cancel(run) if command == "cancel" else story.terminate(run)

    added = story.types(run, after=before)
    asked, ended = (
        ("CancelRequested", "WorkflowCancelled")
        if command == "cancel"
        else ("TerminateRequested", "WorkflowTerminated")
    )
    assert added == ["ActivityStarted", "ActivityCompleted", asked, "TimerCancelled", ended]

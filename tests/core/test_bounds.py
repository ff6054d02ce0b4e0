"""Bounds of a run: passed never, refused as a whole, and nothing is changed by the refusal."""

from collections.abc import Callable

import msgspec
import pytest

from perdure.core.bounds import Bounds
from perdure.core.payload import Frame
from perdure.core.rejection import CompletionTooLarge, InvalidCommands, StructuralLimitExceeded
from perdure.core.run.command import Command, LocalHeartbeat
from perdure.core.run.command_limits import event_count
from perdure.core.run.state import Run
from tests.support.commands import (
    activity,
    attributes,
    child,
    complete_run,
    complete_update,
    condition,
    continue_as_new,
    fail_run,
    in_selection,
    local_activity,
    memo,
    side_effect,
    signal_wait,
    timer,
    version_marker,
)
from tests.support.rule_harness import SDK_0_4, Story


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


@pytest.fixture
def tight(story: Story) -> None:
    """Bounds that a test can reach."""
    story.bounds = Bounds(
        commands_max=6,
        events_per_completion_max=9,
        pending_activities_max=3,
        pending_children_max=3,
        pending_timers_max=3,
    )


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(
    ("commands", "kind"),
    [
        ([side_effect()] * 7, "command_batch_size"),
        ([activity()] * 4, "pending_activity_count"),
        ([timer(1)] * 4, "pending_timer_count"),
        ([child()] * 4, "pending_child_count"),
        ([side_effect(), *[child()] * 4], "pending_child_count"),
        ([*[child()] * 3, *[condition(timeout=1)] * 2], "history_transaction_size"),
        ([local_activity(failures=4)], "history_transaction_size"),
    ],
    ids=[
        "commands",
        "activities",
        "timers",
        "children",
        "children after a marker",
        "events of few commands",
        "events of one command",
    ],
)
def test_a_completion_that_passes_a_bound_is_refused_as_a_whole(
    story: Story, run: Run, commands: list[Command], kind: str
) -> None:
    story.lease(run)

    with story.refused(CompletionTooLarge) as caught:
        story.complete(run, *commands)
    assert caught.value.details["limit_kind"] == kind
    details = caught.value.details
    current, configured = details["current_value"], details["configured_limit"]
    assert isinstance(current, int)
    assert isinstance(configured, int)
    assert current > configured


@pytest.mark.usefixtures("tight")
def test_what_is_open_already_counts(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"clock": timer(1), "a": activity(), "b": activity()}))
    story.later(seconds=1)
    story.lease(run)

    with story.refused(CompletionTooLarge):
        story.complete(run, activity(), activity())
    story.complete(run, activity())
    assert len(run.operations) == 3


@pytest.mark.usefixtures("tight")
def test_a_worker_that_could_not_advance_may_send_its_steps_again(story: Story, run: Run) -> None:
    """They are dropped and count for nothing; the refusal would have been repeated for ever."""
    story.work(run, activity(), activity())
    story.wake(run)
    story.lease(run)

    story.complete(run, activity(), activity())

    assert len(run.operations) == 2


@pytest.mark.usefixtures("tight")
def test_exactly_as_many_as_allowed_are_taken(story: Story, run: Run) -> None:
    story.work(run, *[activity()] * 3, *[timer(1)] * 3)

    assert len(run.operations) == 6


def test_a_history_has_an_end(story: Story, run: Run) -> None:
    story.bounds = Bounds(history_events_max=5)
    story.work(run, *[side_effect()] * 3, timer(1))

    assert story.types(run)[-1] == "WorkflowFailed"
    assert story.last(run)["exception_type"] == "HistoryLimitExceeded"
    assert "continue_as_new" in story.last(run)["message"]
    assert run.operations == {}


def test_a_run_that_ends_may_have_a_long_history(story: Story, run: Run) -> None:
    story.bounds = Bounds(history_events_max=5)
    story.work(run, *[side_effect()] * 4, complete_run())

    assert story.types(run)[-1] == "WorkflowCompleted"


@pytest.mark.parametrize("send", [Story.signal, Story.update], ids=["a signal", "an update"])
def test_a_history_that_is_full_takes_nothing_in_while_its_code_is_busy(
    story: Story, run: Run, send: Callable[[Story, Run], object]
) -> None:
    """No workflow task would end the run: signals are recorded beside an open activity."""
    story.work(run, activity())
    story.bounds = Bounds(history_events_max=run.history_count + 1)
    story.signal(run)

    with story.refused(StructuralLimitExceeded) as caught:
        send(story, run)
    assert caught.value.details == {
        "limit_kind": "history_event_count",
        "current_value": run.history_count,
        "configured_limit": run.history_count,
    }


# What one completion writes ---------------------------------------------------------------------


EVERY_COMMAND = [
    activity(),
    timer(1),
    child(),
    condition(),
    condition(timeout=5),
    signal_wait(),
    signal_wait(timeout=5),
    side_effect(),
    version_marker(),
    attributes(a=1),
    memo(a=1),
    local_activity(),
    local_activity("failed", failures=2),
    complete_run(),
    fail_run(),
    continue_as_new(),
]


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=lambda command: type(command).__name__)
def test_the_events_of_a_command_are_known_before_it_is_applied(
    story: Story, run: Run, command: Command
) -> None:
    story.lease(run)
    before = run.history_count

    story.complete(run, command)

    assert run.history_count - before == event_count(command)


def test_the_events_of_an_updates_outcome_are_known_before(story: Story, run: Run) -> None:
    story.work(run, condition())
    story.update(run)
    story.lease(run)
    before, outcome = run.history_count, complete_update(run)

    story.complete(run, outcome)

    assert run.history_count - before == event_count(outcome) == 2


def test_a_heartbeat_that_history_leaves_out_is_not_counted(story: Story, run: Run) -> None:
    told = local_activity()
    heartbeats = [LocalHeartbeat(elapsed) for elapsed in range(30)]
    (attempt,) = told.attempts
    attempts = [msgspec.structs.replace(attempt, heartbeats=heartbeats)]
    command = msgspec.structs.replace(told, attempts=attempts)
    story.lease(run)
    before = run.history_count

    story.complete(run, command)

    assert run.history_count - before == event_count(command) < len(heartbeats)


@pytest.mark.usefixtures("tight")
def test_exactly_as_many_events_as_allowed_are_written(story: Story, run: Run) -> None:
    story.lease(run)
    before = run.history_count

    story.complete(run, *[child()] * 3, *[side_effect()] * 3)

    assert run.history_count - before == 9


def test_steps_that_are_open_already_are_no_events_of_a_worker_that_repeats_them(
    story: Story, run: Run
) -> None:
    """As with a bound that was lowered meanwhile: it would be refused for ever."""
    story.work(run, *[child()] * 3)
    story.bounds = Bounds(events_per_completion_max=2)
    story.wake(run)
    story.lease(run)

    story.complete(run, *[child()] * 3)

    assert len(run.operations) == 3


# What grows by merging --------------------------------------------------------------------------


def test_a_memo_does_not_grow_without_end(story: Story, run: Run) -> None:
    """Each upsert is small, but their sum is written with every change of the run."""
    story.bounds = Bounds(memo_bytes_max=100)
    story.work(run, memo(a="x" * 60), condition())
    story.wake(run)
    story.lease(run)

    with story.refused(CompletionTooLarge) as caught:
        story.complete(run, side_effect(), memo(b="x" * 60))
    assert caught.value.details["limit_kind"] == "memo_size"
    story.complete(run, memo(a=None, b="x" * 60))
    assert run.memo == {"b": "x" * 60}


def test_search_attributes_do_not_grow_without_end(story: Story, run: Run) -> None:
    story.bounds = Bounds(search_attributes_max=2)
    story.work(run, attributes(a=1, b=2), condition())
    story.wake(run)
    story.lease(run)

    with story.refused(CompletionTooLarge) as caught:
        story.complete(run, side_effect(), attributes(c=3))
    assert caught.value.details["limit_kind"] == "search_attribute_count"
    story.complete(run, attributes(a=None, c=3))
    assert run.search_attributes == {"b": 2, "c": 3}


def test_a_memo_that_the_frame_of_the_run_cannot_carry_is_refused(story: Story) -> None:
    """A run of the 0.4 SDK speaks JSON, which has no bytes; this was an internal error."""
    run = story.start(plain=b"[]")
    story.lease(run, sdk_version=SDK_0_4)
    assert run.frame == Frame.WRAPPER.value

    with story.refused(InvalidCommands):
        story.complete(run, side_effect(), memo(photo=b"\x00\xff"))

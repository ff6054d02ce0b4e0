"""Bounds of a run: passed never, refused as a whole, and nothing is changed by the refusal."""

import pytest

from perdure.core import limits
from perdure.core.payload import Frame
from perdure.core.rejection import CompletionTooLarge, InvalidCommands
from perdure.core.run import completion
from perdure.core.run.command import Command
from perdure.core.run.state import Run
from tests.support.commands import (
    activity,
    attributes,
    child,
    complete_run,
    condition,
    in_selection,
    memo,
    side_effect,
    timer,
)
from tests.support.story import SDK_0_4, Story


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach."""
    monkeypatch.setattr(limits, "COMMANDS_PER_COMPLETION_MAX", 6)
    monkeypatch.setattr(completion, "_BOUND_MIN", 3)
    monkeypatch.setattr(
        completion, "_BOUNDS", tuple((*bound[:2], 3, bound[3]) for bound in completion._BOUNDS)
    )


def test_the_bounds_are_those_of_the_list() -> None:
    assert {name: most for _, _, most, name in completion._BOUNDS} == {
        "pending_activity_count": limits.PENDING_ACTIVITIES_MAX,
        "pending_child_count": limits.PENDING_CHILDREN_MAX,
        "pending_timer_count": limits.PENDING_TIMERS_MAX,
    }


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(
    ("commands", "kind"),
    [
        ([side_effect()] * 7, "command_batch_size"),
        ([activity()] * 4, "pending_activity_count"),
        ([timer(1)] * 4, "pending_timer_count"),
        ([child()] * 4, "pending_child_count"),
        ([side_effect(), *[child()] * 4], "pending_child_count"),
    ],
    ids=["commands", "activities", "timers", "children", "children after a marker"],
)
def test_a_completion_that_passes_a_bound_is_refused_as_a_whole(
    story: Story, run: Run, commands: list[Command], kind: str
) -> None:
    story.lease(run)

    with story.refused(CompletionTooLarge) as caught:
        story.complete(run, *commands)
    assert caught.value.details["limit_kind"] == kind
    assert isinstance(caught.value.details["current_value"], int)
    assert isinstance(caught.value.details["configured_limit"], int)


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


def test_a_history_has_an_end(story: Story, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 5)
    story.work(run, *[side_effect()] * 3, timer(1))

    assert story.types(run)[-1] == "WorkflowFailed"
    assert story.last(run)["exception_type"] == "HistoryLimitExceeded"
    assert "continue_as_new" in story.last(run)["message"]
    assert run.operations == {}


def test_a_run_that_ends_may_have_a_long_history(
    story: Story, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 5)
    story.work(run, *[side_effect()] * 4, complete_run())

    assert story.types(run)[-1] == "WorkflowCompleted"


# What grows by merging --------------------------------------------------------------------------


def test_a_memo_does_not_grow_without_end(
    story: Story, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each upsert is small, but their sum is written with every change of the run."""
    monkeypatch.setattr(limits, "MEMO_BYTES_MAX", 100)
    story.work(run, memo(a="x" * 60), condition())
    story.wake(run)
    story.lease(run)

    with story.refused(CompletionTooLarge) as caught:
        story.complete(run, side_effect(), memo(b="x" * 60))
    assert caught.value.details["limit_kind"] == "memo_size"
    story.complete(run, memo(a=None, b="x" * 60))
    assert run.memo == {"b": "x" * 60}


def test_search_attributes_do_not_grow_without_end(
    story: Story, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCH_ATTRIBUTES_MAX", 2)
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

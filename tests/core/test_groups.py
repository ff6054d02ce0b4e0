"""Parallel groups: one wake-up for all members, under the numbers that the server allotted."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from perdure.core.rejection import InvalidCommands
from perdure.core.run.command import Authored, Command
from perdure.core.run.lease import TaskState
from perdure.core.run.state import Run
from tests.support.commands import (
    activity,
    child,
    complete_run,
    condition,
    in_parallel,
    in_selection,
    retries,
    side_effect,
    timer,
)
from tests.support.rule_harness import Story

GROUP_FIELDS = (
    "parallel_group_id",
    "parallel_group_kind",
    "parallel_group_base_sequence",
    "parallel_group_size",
    "parallel_group_index",
)


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


def _group_of(payload: dict[str, Any]) -> list[Any]:
    return [payload[field] for field in GROUP_FIELDS]


# Groups of the 2.x SDK --------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations([1, 2, 3])), ids=str)
def test_a_group_wakes_its_run_once_when_all_members_ended(
    story: Story, run: Run, order: tuple[int, ...]
) -> None:
    story.work(run, *in_parallel(activity("a"), activity("b"), activity("c")))

    for sequence in order[:-1]:
        story.do_activity(run, sequence)
        assert run.task is None
    story.do_activity(run, order[-1])

    assert run.task is not None
    assert run.task.resume["workflow_sequence"] == order[-1]
    assert run.groups == {}
    ended = [e for e in story.history(run) if e.event_type == "ActivityCompleted"]
    assert [e.payload["sequence"] for e in ended] == list(order)


def test_a_failed_member_ends_like_any_other(story: Story, run: Run) -> None:
    story.work(run, *in_parallel(activity(), activity()))

    story.lease_activity(run, 1)
    story.fail_activity(run, 1)
    assert run.task is None
    story.do_activity(run, 2)

    assert run.task is not None


def test_every_event_of_a_member_carries_its_group(story: Story, run: Run) -> None:
    story.work(run, *in_parallel(activity(retry=retries(2)), timer(5), child(), activity("never")))
    story.lease_activity(run, 1)
    story.heartbeat(run, 1)
    story.fail_activity(run, 1)
    story.do_activity(run, 1)
    story.later(seconds=5)
    story.work(story.child_of(run, 3), complete_run())

    for event in story.history(run)[2:]:
        index = event.payload["sequence"] - 1
        entry = ["parallel-calls:1:4", "mixed", 1, 4, index]
        assert _group_of(event.payload) == entry
        (path,) = event.payload["parallel_group_path"]
        assert _group_of(path) == entry
    assert story.types(run, after=7) == [
        "ActivityStarted",
        "ActivityHeartbeatRecorded",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityCompleted",
        "TimerFired",
        "ChildRunCompleted",
    ]


@pytest.mark.parametrize("claimed", [1, 3, 4, 50], ids="claims {}".format)
def test_a_group_is_moved_to_the_numbers_it_was_given(story: Story, run: Run, claimed: int) -> None:
    story.work(run, side_effect(), timer(1))
    story.later(seconds=1)

    story.work(run, *in_parallel(activity("a"), activity("b"), base=claimed))

    scheduled = [e.payload for e in story.history(run) if e.event_type == "ActivityScheduled"]
    assert [_group_of(payload) for payload in scheduled] == [
        ["parallel-activities:3:2", "activity", 3, 2, 0],
        ["parallel-activities:3:2", "activity", 3, 2, 1],
    ]


def test_the_inner_groups_move_with_the_outer_one(story: Story, run: Run) -> None:
    story.work(run, side_effect(), *in_parallel(activity("a"), [timer(1), timer(2)], base=9))

    paths = [
        [_group_of(entry) for entry in event.payload["parallel_group_path"]]
        for event in story.history(run)[3:]
    ]
    assert paths == [
        [["parallel-calls:2:3", "mixed", 2, 3, 0]],
        [["parallel-calls:2:3", "mixed", 2, 3, 1], ["parallel-timers:3:2", "timer", 3, 2, 0]],
        [["parallel-calls:2:3", "mixed", 2, 3, 2], ["parallel-timers:3:2", "timer", 3, 2, 1]],
    ]
    assert _group_of(story.last(run)) == paths[-1][-1]


def test_a_nested_group_wakes_its_run_when_the_outermost_one_ended(story: Story, run: Run) -> None:
    story.work(run, *in_parallel([activity("a"), activity("b")], [activity("c")]))

    story.do_activity(run, 1)
    story.do_activity(run, 2)
    assert run.task is None
    story.do_activity(run, 3)

    assert run.task is not None


def _without(commands: Sequence[Command], index: int) -> list[Command]:
    return [command for position, command in enumerate(commands) if position != index]


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("kind", ["a list", "a selection"])
def test_a_group_that_is_not_complete_is_refused(
    story: Story, run: Run, kind: str, missing: int
) -> None:
    """Its run would wait for ever for a member that was not opened."""
    leaves: list[Authored] = [activity("a"), activity("b"), activity("c")]
    commands = in_parallel(*leaves) if kind == "a list" else in_selection(dict(enumerate(leaves)))
    story.lease(run)

    with story.refused(InvalidCommands):
        story.complete(run, *_without(commands, missing))


def test_a_group_with_more_members_than_it_says_is_refused(story: Story, run: Run) -> None:
    """It would wake its run before they ended."""
    commands = in_parallel(activity(), activity())
    for command in commands:
        for entry in getattr(command, "path", ()):
            entry["parallel_group_size"] = 1
    story.lease(run)

    with story.refused(InvalidCommands):
        story.complete(run, *commands)


def test_a_group_with_something_between_its_members_is_refused(story: Story, run: Run) -> None:
    first, second = in_parallel(activity(), activity())
    story.lease(run)

    with story.refused(InvalidCommands):
        story.complete(run, first, side_effect(), second)


# Lists of the 0.4 SDK, which sends no metadata ----------------------------------------------------


@pytest.mark.parametrize("order", list(permutations([1, 2, 3])), ids=str)
def test_outcomes_of_a_plain_list_enter_history_together_and_in_order(
    story: Story, run: Run, order: tuple[int, ...]
) -> None:
    story.work(run, activity("a"), activity("b"), activity("c"))

    for sequence in order[:-1]:
        story.do_activity(run, sequence)
    assert "ActivityCompleted" not in story.types(run)
    assert run.task is None
    story.do_activity(run, order[-1])

    assert story.numbered(run)[-3:] == [
        ("ActivityCompleted", 1),
        ("ActivityCompleted", 2),
        ("ActivityCompleted", 3),
    ]
    assert run.task is not None
    assert run.groups == {}


def test_a_plain_list_of_all_kinds(story: Story, run: Run) -> None:
    story.work(run, activity(), timer(5), child())

    story.work(story.child_of(run, 3), complete_run())
    story.later(seconds=5)
    assert story.types(run)[-1] == "ChildRunStarted"
    story.do_activity(run, 1)

    assert story.numbered(run)[-4:] == [
        ("ActivityStarted", 1),
        ("ActivityCompleted", 1),
        ("TimerFired", 2),
        ("ChildRunCompleted", 3),
    ]
    assert all("parallel_group_path" not in event.payload for event in story.history(run))


def test_signs_of_life_of_a_plain_list_do_not_wait(story: Story, run: Run) -> None:
    story.work(run, activity(retry=retries(2)), activity())

    story.lease_activity(run, 2)
    story.lease_activity(run, 1)
    story.fail_activity(run, 1)

    assert story.numbered(run)[-3:] == [
        ("ActivityStarted", 2),
        ("ActivityStarted", 1),
        ("ActivityRetryScheduled", 1),
    ]


def test_outcomes_of_a_plain_list_survive_a_crash(story: Story, run: Run) -> None:
    story.work(run, activity(), activity())
    story.do_activity(run, 2)

    story.crash()
    run = story.runs[run.run_id]
    story.do_activity(run, 1)

    assert story.numbered(run)[-2:] == [("ActivityCompleted", 1), ("ActivityCompleted", 2)]


def test_a_single_step_is_no_list(story: Story, run: Run) -> None:
    story.work(run, side_effect(), activity())

    assert run.groups == {}
    story.do_activity(run, 2)
    assert run.task is not None


def test_a_plain_list_keeps_its_order_when_it_ends_while_a_task_is_leased(
    story: Story, run: Run
) -> None:
    """A loser woke the run, so a worker replays it while both members start and end.

    What was held back first was let in first: the member that had started first ended first in
    history, and a worker that binds results by their order got them exchanged.
    """
    story.work(run, *in_selection({"fast": timer(0), "slow": activity()}))
    story.later(seconds=0)
    story.work(run, activity("a"), activity("b"))
    story.do_activity(run, 2)
    story.lease(run)

    story.lease_activity(run, 4)
    story.lease_activity(run, 3)
    story.complete_activity(run, 3)
    story.complete_activity(run, 4)
    story.complete(run)

    ended = [e for e in story.numbered(run) if e[0] == "ActivityCompleted"]
    assert ended[1:] == [("ActivityCompleted", 3), ("ActivityCompleted", 4)]


def test_a_closing_completion_leaves_no_group_behind(story: Story, run: Run) -> None:
    story.work(run, activity(), activity(), complete_run())

    assert run.groups == {}
    assert run.operations == {}
    assert not story.disk.ready[run.run_id]


# What a group does not touch --------------------------------------------------------------------


def test_members_are_leased_and_retried_one_by_one(story: Story, run: Run) -> None:
    story.work(run, *in_parallel(activity(retry=retries(2, 10)), activity()))
    story.lease_activity(run, 1)
    story.fail_activity(run, 1)

    assert story.activity(run, 1).state is TaskState.DELAYED
    assert story.activity(run, 2).state is TaskState.READY
    assert story.disk.ready[run.run_id] == {2}


def test_a_condition_after_a_group_is_a_step_of_its_own(story: Story, run: Run) -> None:
    story.work(run, *in_parallel(activity(), activity()))
    story.do_activity(run, 2)
    story.do_activity(run, 1)

    story.work(run, condition("gate"))

    assert run.wait == 3

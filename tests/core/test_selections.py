"""Durable selections: the first member wins, the others run on until they end or are cancelled."""

from collections.abc import Mapping

import pytest
from msgspec import structs

from perdure.core.run.command import Authored
from perdure.core.run.lease import TaskState
from perdure.core.run.state import WORKFLOW_TASK, Run
from perdure.core.run.status import RunStatus
from tests.support.commands import (
    Member,
    activity,
    cancel_member,
    child,
    complete_run,
    condition,
    continue_as_new,
    fail_run,
    in_parallel,
    in_selection,
    retries,
    side_effect,
    timer,
)
from tests.support.rule_harness import Event, Story, ref_of


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


def _resolved(story: Story, run: Run) -> list[Event]:
    return [e for e in story.history(run) if e.event_type == "SelectionResolved"]


def test_the_first_member_that_completes_wins(story: Story, run: Run) -> None:
    story.work(run, side_effect(), *in_selection({"slow": activity("a"), "fast": activity("b")}))

    story.do_activity(run, 3)

    deciding, resolved = story.history(run)[-2:]
    assert (deciding.event_type, resolved.event_type) == ("ActivityCompleted", "SelectionResolved")
    assert resolved.payload == {
        "selection_group_id": "select-calls:2:2",
        "selection_group_base_sequence": 2,
        "selection_group_size": 2,
        "member_key": "fast",
        "member_index": 1,
        "member_base_sequence": 3,
        "member_size": 1,
        "operation_kind": "activity",
        "operation_identity": deciding.payload["activity_execution_id"],
        "outcome": "completed",
        "resolution_event_id": deciding.id,
        "resolution_event_type": "ActivityCompleted",
    }
    assert run.task is not None


def test_a_member_that_fails_wins_too(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"slow": timer(60), "doomed": activity()}))

    story.lease_activity(run, 2)
    story.fail_activity(run, 2)

    resolved = story.last(run)
    assert (resolved["member_key"], resolved["outcome"]) == ("doomed", "failed")
    assert resolved["resolution_event_type"] == "ActivityFailed"


def test_an_attempt_that_is_retried_does_not_win(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"slow": timer(60), "doomed": activity(retry=retries(2))}))

    story.lease_activity(run, 2)
    story.fail_activity(run, 2)

    assert not _resolved(story, run)
    assert run.task is None


KINDS: list[tuple[str, Authored, str, str]] = [
    ("activity", activity(), "ActivityCompleted", "activity_execution_id"),
    ("timer", timer(5), "TimerFired", "timer_id"),
    ("child", child(), "ChildRunCompleted", "child_workflow_run_id"),
    ("condition", condition("gate", timeout=5), "ConditionWaitTimedOut", "condition_wait_id"),
]


@pytest.mark.parametrize(
    ("kind", "member", "ending", "identity"), KINDS, ids=[case[0] for case in KINDS]
)
def test_members_of_every_kind_keep_one_identity_and_their_path(
    story: Story, run: Run, kind: str, member: Authored, ending: str, identity: str
) -> None:
    story.work(run, *in_selection({"it": member, "other": activity("other")}))

    if kind == "activity":
        story.do_activity(run, 1)
    elif kind == "child":
        story.work(story.child_of(run, 1), complete_run())
    else:
        story.later(seconds=5)

    resolved = story.last(run)
    assert (resolved["member_key"], resolved["operation_kind"]) == ("it", kind)
    assert (resolved["outcome"], resolved["resolution_event_type"]) == ("completed", ending)
    events = [e for e in story.history(run) if e.payload.get("sequence") == 1]
    assert {e.payload[identity] for e in events} == {resolved["operation_identity"]}
    for event in events:
        (path,) = event.payload["parallel_group_path"]
        assert (path["parallel_group_mode"], path["selection_member_key"]) == ("select", "it")


@pytest.mark.parametrize("how", ["continues as new", "is retried"])
def test_a_child_keeps_the_identity_of_its_first_run(story: Story, run: Run, how: str) -> None:
    story.work(run, *in_selection({"it": child(retry=retries(2)), "other": timer(99)}))
    first = story.child_of(run, 1)

    story.work(first, continue_as_new() if how == "continues as new" else fail_run())
    second = story.child_of(run, 1)
    assert second is not first
    story.work(second, complete_run())

    events = [e for e in story.history(run) if e.payload.get("sequence") == 1]
    assert {e.payload["child_workflow_run_id"] for e in events} == {first.run_id}
    assert story.last(run)["operation_identity"] == first.run_id


def test_the_selection_is_decided_once(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"a": activity(), "b": activity(), "c": timer(1)}))
    story.do_activity(run, 2)
    story.do_activity(run, 1)
    story.later(seconds=1)

    assert [e.payload["member_key"] for e in _resolved(story, run)] == ["b"]
    assert run.groups == {}


def test_a_late_loser_wakes_the_run_again(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"fast": timer(1), "slow": activity()}))
    story.later(seconds=1)
    story.work(run)
    assert run.task is None

    story.do_activity(run, 2)

    assert run.task is not None
    assert run.task.resume["workflow_sequence"] == 2
    assert "parallel_group_path" in story.last(run, "ActivityCompleted")


def test_a_list_that_lost_wakes_the_run_with_its_first_failed_leaf(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"fast": timer(1), "pair": [activity("a"), activity("b")]}))
    story.later(seconds=1)
    story.work(run)

    story.lease_activity(run, 2)
    story.fail_activity(run, 2)

    assert run.task is not None
    assert run.task.resume["workflow_sequence"] == 2


def test_of_two_members_that_are_due_the_earlier_one_wins(story: Story, run: Run) -> None:
    """Nothing ran in between, as when the server was down."""
    story.work(run, *in_selection({"late": timer(30), "early": timer(10)}))

    story.clock.jump(seconds=60)
    story.fire()

    (resolved,) = _resolved(story, run)
    assert resolved.payload["member_key"] == "early"


def test_losers_do_not_keep_the_code_from_going_on(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"fast": timer(1), "slow": activity()}))
    story.later(seconds=1)

    story.work(run, activity("next"))

    assert story.numbered(run)[-1] == ("ActivityScheduled", 3)
    assert set(run.operations) == {2, 3}


def test_steps_are_dropped_while_the_winner_is_not_known(story: Story, run: Run) -> None:
    commands = in_selection({"fast": timer(9), "slow": activity()})
    story.work(run, *commands)
    story.wake(run)
    story.lease(run)

    story.complete(run, *commands)

    assert set(run.operations) == {1, 2}
    assert run.next_sequence == 3


# Members that are lists ---------------------------------------------------------------------------


def _with_list() -> Mapping[str, Member]:
    return {"pair": [activity("a"), activity("b")], "clock": timer(60)}


def test_a_list_wins_when_all_its_leaves_completed(story: Story, run: Run) -> None:
    story.work(run, *in_selection(_with_list()))

    story.do_activity(run, 2)
    assert not _resolved(story, run)
    assert run.task is None
    story.do_activity(run, 1)

    deciding = story.history(run)[-2]
    resolved = story.last(run)
    assert resolved["resolution_event_id"] == deciding.id
    assert deciding.payload["sequence"] == 1
    assert (resolved["operation_kind"], resolved["operation_identity"]) == ("group", "group:1:2")
    assert (resolved["member_base_sequence"], resolved["member_size"]) == (1, 2)


def test_a_list_wins_with_its_first_failed_leaf(story: Story, run: Run) -> None:
    story.work(run, *in_selection(_with_list()))

    story.lease_activity(run, 2)
    story.fail_activity(run, 2)

    assert (story.last(run)["member_key"], story.last(run)["outcome"]) == ("pair", "failed")
    story.work(run)
    story.do_activity(run, 1)
    assert len(_resolved(story, run)) == 1


def test_a_selection_is_moved_to_the_numbers_it_was_given(story: Story, run: Run) -> None:
    story.work(run, side_effect(), timer(1))
    story.later(seconds=1)

    story.work(run, *in_selection({"clock": timer(60), "pair": [activity(), activity()]}, base=1))

    clock, first, second = [e.payload["parallel_group_path"] for e in story.history(run)[-3:]]
    assert [path[0]["parallel_group_id"] for path in (clock, first, second)] == [
        "select-calls:3:3"
    ] * 3
    assert [path[0]["selection_member_base_sequence"] for path in (clock, first, second)] == [
        3, 4, 4,
    ]  # fmt: skip
    assert [path[1]["parallel_group_id"] for path in (first, second)] == [
        "parallel-activities:4:2"
    ] * 2


# Cancelling a member ----------------------------------------------------------------------------


def _decided(story: Story, run: Run, members: Mapping[str, Member]) -> None:
    """A selection that its timer has won."""
    story.work(run, *in_selection({"clock": timer(1), **members}))
    story.later(seconds=1)
    story.lease(run)


def test_cancelling_a_loser_records_it_lets_it_go_and_wakes_the_run(story: Story, run: Run) -> None:
    _decided(story, run, {"slow": activity()})
    command = cancel_member(run, "slow")

    story.complete(run, command)

    assert story.history(run)[-1].event_type == "SelectionOperationCancelled"
    assert story.last(run) == {
        "selection_group_id": "select-calls:1:2",
        "member_key": "slow",
        "member_index": 1,
        "member_base_sequence": 2,
        "member_size": 1,
        "operation_kind": "activity",
        "operation_identity": story.last(run, "ActivityScheduled")["activity_execution_id"],
    }
    assert (run.operations, run.groups) == ({}, {})
    assert run.task is not None
    assert story.disk.ready[run.run_id] == {WORKFLOW_TASK}


def test_a_cancel_takes_no_number(story: Story, run: Run) -> None:
    _decided(story, run, {"slow": activity()})

    story.complete(run, cancel_member(run, "slow"), activity("next"))

    assert story.numbered(run)[-2:] == [
        ("SelectionOperationCancelled", None),
        ("ActivityScheduled", 3),
    ]


def test_a_repeated_cancel_does_nothing_and_wakes_no_worker(story: Story, run: Run) -> None:
    """Every later replay sends it again; waking would never end."""
    _decided(story, run, {"slow": activity(), "other": timer(60)})
    command = cancel_member(run, "slow")
    story.complete(run, command)
    before = story.types(run)
    story.work(run, command, activity("next"))

    assert story.types(run) == [*before, "ActivityScheduled"]
    assert run.task is None


def test_cancelling_a_member_that_ended_does_nothing(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"clock": timer(1), "slow": activity(), "other": timer(60)}))
    story.later(seconds=1)
    story.do_activity(run, 2)
    command = cancel_member(run, "slow")

    story.work(run, command)

    assert "SelectionOperationCancelled" not in story.types(run)
    assert run.task is None


def test_cancelling_a_member_of_no_known_selection_does_nothing(story: Story, run: Run) -> None:
    _decided(story, run, {"slow": activity()})
    command = cancel_member(run, "slow")
    story.complete(run, command)

    story.work(run, structs.replace(command, group_id="select-calls:99:2"), timer(5))

    assert story.types(run).count("SelectionOperationCancelled") == 1
    assert run.task is None


def test_the_worker_of_a_cancelled_activity_is_told_to_stop(story: Story, run: Run) -> None:
    _decided(story, run, {"slow": activity()})
    story.lease_activity(run, 2)
    ref = ref_of(run, 2)

    story.complete(run, cancel_member(run, "slow"))

    view = story.heartbeat(run, 2, ref=ref)
    assert (view.can_continue, view.reason) == (False, "activity_not_running")


def test_cancelling_a_child_cancels_its_run(story: Story, run: Run) -> None:
    """The code gets a cancellation error and no longer waits for the child."""
    _decided(story, run, {"slow": child()})
    started = story.child_of(run, 2)

    story.complete(run, cancel_member(run, "slow"))

    assert started.status is RunStatus.CANCELLED
    assert story.types(run)[-1] == "SelectionOperationCancelled"


def test_a_child_that_is_to_be_abandoned_runs_on(story: Story, run: Run) -> None:
    _decided(story, run, {"slow": child(cancellation_policy="abandon")})
    started = story.child_of(run, 2)

    story.complete(run, cancel_member(run, "slow"))

    assert started.status is RunStatus.PENDING
    assert run.operations == {}


def test_cancelling_a_list_lets_all_its_leaves_go(story: Story, run: Run) -> None:
    _decided(story, run, {"pair": [activity("a"), activity("b")]})
    command = cancel_member(run, "pair")

    story.complete(run, command)

    assert story.last(run)["operation_identity"] == "group:2:2"
    assert (run.operations, run.groups) == ({}, {})
    assert story.disk.ready[run.run_id] == {WORKFLOW_TASK}


def test_a_list_may_be_cancelled_when_some_of_its_leaves_ended(story: Story, run: Run) -> None:
    _decided(story, run, {"pair": [activity("a"), activity("b")]})
    story.complete(run)
    story.do_activity(run, 2)
    story.wake(run)

    story.work(run, cancel_member(run, "pair"))

    assert story.types(run)[-1] == "SelectionOperationCancelled"
    assert (run.operations, run.groups) == ({}, {})


def test_a_member_that_completed_before_the_cancel_came_has_completed(
    story: Story, run: Run
) -> None:
    """The result was acknowledged while the worker decided to cancel; it must not be lost."""
    _decided(story, run, {"slow": activity(), "other": timer(60)})
    command = cancel_member(run, "slow")
    story.lease_activity(run, 2)
    story.complete_activity(run, 2)

    story.complete(run, command)

    assert story.numbered(run)[-2:] == [("ActivityStarted", 2), ("ActivityCompleted", 2)]
    assert "SelectionOperationCancelled" not in story.types(run)
    assert run.task is not None


def test_results_of_a_cancelled_list_are_recorded_before_it_is_cancelled(
    story: Story, run: Run
) -> None:
    _decided(story, run, {"pair": [activity("a"), activity("b")]})
    command = cancel_member(run, "pair")
    story.lease_activity(run, 3)
    story.complete_activity(run, 3)

    story.complete(run, command)

    assert story.numbered(run)[-3:] == [
        ("ActivityStarted", 3),
        ("ActivityCompleted", 3),
        ("SelectionOperationCancelled", None),
    ]
    assert (run.operations, run.groups) == ({}, {})


@pytest.mark.parametrize("seen", [True, False], ids=["before", "meanwhile"])
def test_a_list_with_a_failed_leaf_has_ended_and_is_not_cancelled(
    story: Story, run: Run, seen: bool
) -> None:
    """The code has its failure, or gets it; with a marker every replay would differ."""
    _decided(story, run, {"pair": [activity("a"), activity("b")]})
    command = cancel_member(run, "pair")
    if seen:
        story.complete(run)
    story.lease_activity(run, 2)
    story.fail_activity(run, 2)
    if seen:
        story.lease(run)

    story.complete(run, command)

    assert story.types(run)[-1] == "ActivityFailed"
    assert (run.task is None) is seen, "a cancel that does nothing wakes nobody"
    story.do_activity(run, 3)
    assert story.types(run)[-1] == "ActivityCompleted"
    assert (run.operations, run.groups) == ({}, {})


# Conditions in a selection ------------------------------------------------------------------------


def test_a_signal_does_not_wake_a_selection(story: Story, run: Run) -> None:
    """No command exists by which a worker could say that the condition is true."""
    story.work(run, *in_selection({"gate": condition(timeout=60), "work": activity()}))

    story.signal(run)

    assert story.types(run)[-1] == "SignalReceived"
    assert run.task is None


def test_a_selected_condition_is_not_the_wait_that_the_next_completion_settles(
    story: Story, run: Run
) -> None:
    story.work(run, *in_selection({"gate": condition(timeout=60), "clock": timer(1)}))
    assert run.wait is None
    story.later(seconds=1)

    story.work(run, activity())

    assert "ConditionWaitSatisfied" not in story.types(run)
    assert set(run.operations) == {1, 3}


def test_the_first_outcome_that_came_wins_also_when_both_were_held_back(
    story: Story, run: Run
) -> None:
    """The member that had started first won, although the other one completed first."""
    story.work(run, *in_selection({"clock": timer(1), "loser": activity()}))
    story.later(seconds=1)
    story.work(run, *in_selection({"a": activity("a"), "b": activity("b")}))
    story.do_activity(run, 2)
    story.lease(run)
    story.lease_activity(run, 3)
    story.lease_activity(run, 4)
    story.complete_activity(run, 4)
    story.complete_activity(run, 3)

    story.complete(run)

    assert [e.payload["member_key"] for e in _resolved(story, run)] == ["clock", "b"]


def test_a_list_after_a_selection_is_an_ordinary_group(story: Story, run: Run) -> None:
    _decided(story, run, {"slow": activity()})

    story.complete(run, *in_parallel(activity("a"), activity("b"), base=1))
    story.do_activity(run, 3)
    assert run.task is None
    story.do_activity(run, 4)

    assert run.task is not None
    assert story.activity(run, 2).state is TaskState.READY


@pytest.mark.parametrize("alone", [True, False])
def test_a_timer_beside_a_condition_says_that_it_is_none_of_its_own(
    story: Story, run: Run, alone: bool
) -> None:
    """SDKs of 2.x guess the owner of a timer by its length if its kind is absent."""
    member: Member = timer(5) if alone else [timer(5), activity()]
    story.work(run, *in_selection({"answer": condition(timeout=5), "alarm": member}))

    scheduled = [e.payload for e in story.history(run) if e.event_type == "TimerScheduled"]

    assert [one["timer_kind"] for one in scheduled] == ["condition_timeout", "sleep"]
    story.later(seconds=5)
    fired = [e.payload for e in story.history(run) if e.event_type == "TimerFired"]
    assert [one["timer_id"] for one in fired] == [scheduled[1]["timer_id"]]


def test_a_timer_elsewhere_has_no_kind(story: Story, run: Run) -> None:
    story.work(run, *in_parallel(timer(5), activity()))

    scheduled = next(e for e in story.history(run) if e.event_type == "TimerScheduled")
    assert "timer_kind" not in scheduled.payload


def test_history_tells_of_the_conditions_of_a_selection_first(story: Story, run: Run) -> None:
    """A message that came behind the opening of one would be lost with it when another wins."""
    members: dict[str | int, Member] = {
        "clock": timer(9),
        "team": [activity("a"), condition("both")],
        "gate": condition("gate", timeout=60),
    }

    story.work(run, side_effect(), *in_selection(members, base=7))

    assert story.numbered(run, after=2) == [
        ("SideEffectRecorded", 1),
        ("ConditionWaitOpened", 4),
        ("ConditionWaitOpened", 5),
        ("TimerScheduled", 5),
        ("TimerScheduled", 2),
        ("ActivityScheduled", 3),
    ]
    (group,) = run.groups.values()
    told = sorted((m.key, m.base, m.size, m.open) for m in group.members)
    assert told == [("clock", 2, 1, 1), ("gate", 5, 1, 1), ("team", 3, 2, 2)]
    assert run.next_sequence == 6
    for event in story.history(run)[3:]:
        path = event.payload["parallel_group_path"]
        assert path[0]["parallel_group_id"] == "select-calls:2:4"
        assert path[0]["parallel_group_index"] == event.payload["sequence"] - 2


def test_a_selection_whose_condition_stands_last_is_decided_as_any_other(
    story: Story, run: Run
) -> None:
    story.work(run, *in_selection({"clock": timer(9), "gate": condition("gate", timeout=60)}))
    story.signal(run)
    story.later(seconds=9)

    (resolved,) = _resolved(story, run)
    assert (resolved.payload["member_key"], resolved.payload["member_base_sequence"]) == (
        "clock",
        1,
    )
    story.work(run, timer(1))
    assert story.numbered(run)[-1] == ("TimerScheduled", 3)

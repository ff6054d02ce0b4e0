"""Condition waits: the code alone knows whether they are true, and says so by what it does next."""

import pytest

from perdure.core.run.command import Command, OpenConditionWait
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from tests.support.commands import (
    activity,
    cancel_member,
    complete_run,
    complete_update,
    condition,
    continue_as_new,
    fail_run,
    fail_update,
    in_selection,
    side_effect,
    timer,
)
from tests.support.rule_harness import Story


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


def test_opening_a_wait_records_what_the_command_said(story: Story, run: Run) -> None:
    story.work(run, condition("paid", fingerprint="sha256:1"))

    wait_id = story.last(run)["condition_wait_id"]
    assert story.types(run, after=2) == ["ConditionWaitOpened"]
    assert story.last(run) == {
        "sequence": 1,
        "condition_wait_id": wait_id,
        "condition_key": "paid",
        "condition_definition_fingerprint": "sha256:1",
    }
    assert run.wait == 1


def test_a_wait_without_a_key_invents_none(story: Story, run: Run) -> None:
    story.work(run, condition(None))

    assert set(story.last(run)) == {"sequence", "condition_wait_id"}


def test_a_timeout_is_a_timer_under_the_number_of_its_wait(story: Story, run: Run) -> None:
    story.work(
        run,
        condition("paid", timeout=30),
    )

    opened, scheduled = story.history(run)[2:]
    assert opened.payload["timeout_seconds"] == 30
    assert scheduled.event_type == "TimerScheduled"
    assert scheduled.payload == {
        "sequence": 1,
        "timer_id": scheduled.payload["timer_id"],
        "delay_seconds": 30,
        "fire_at": "2026-01-01T00:00:30.000000Z",
        "timer_kind": "condition_timeout",
        "condition_wait_id": opened.payload["condition_wait_id"],
        "condition_key": "paid",
    }
    assert run.next_sequence == 2


# Settled by the next completion -----------------------------------------------------------------


def test_the_same_question_again_supersedes_the_wait_without_a_word(story: Story, run: Run) -> None:
    story.work(run, condition("gate", timeout=30))
    story.later(seconds=20)
    story.signal(run)

    story.work(run, condition("gate", timeout=30))

    assert story.numbered(run, after=2) == [
        ("ConditionWaitOpened", 1),
        ("TimerScheduled", 1),
        ("SignalReceived", None),
        ("ConditionWaitOpened", 2),
        ("TimerScheduled", 2),
    ]
    first, second = (
        e.payload["condition_wait_id"]
        for e in story.history(run)
        if e.event_type == "ConditionWaitOpened"
    )
    assert first != second
    assert set(run.operations) == {2}


def test_every_opening_has_its_full_timeout(story: Story, run: Run) -> None:
    story.work(run, condition("gate", timeout=30))
    story.later(seconds=20)
    story.signal(run)
    story.work(run, condition("gate", timeout=30))

    story.later(seconds=29)
    assert "ConditionWaitTimedOut" not in story.types(run)
    story.later(seconds=1)

    timed_out = [e for e in story.numbered(run) if e[0] == "ConditionWaitTimedOut"]
    assert timed_out == [("ConditionWaitTimedOut", 2)]


MOVED_ON: dict[str, list[Command]] = {
    "another key": [condition("other")],
    "another fingerprint": [condition("gate", fingerprint="sha256:2")],
    "another step": [activity()],
    "a marker": [side_effect()],
    "a marker and the same question": [side_effect(), condition("gate", fingerprint="sha256:1")],
    "the same question in a selection": in_selection(
        {"gate": condition("gate", fingerprint="sha256:1"), "clock": timer(60)}
    ),
    "a result": [complete_run()],
    "a failure": [fail_run()],
    "a new run": [continue_as_new()],
}


@pytest.mark.parametrize("commands", MOVED_ON.values(), ids=MOVED_ON)
def test_code_that_moved_on_found_its_condition_true(
    story: Story, run: Run, commands: list[Command]
) -> None:
    story.work(run, condition("gate", fingerprint="sha256:1"))
    opened = story.last(run)
    sent = story.signal(run, "open")
    received = story.last(run)
    story.lease(run)
    before = run.history_count

    story.complete(run, *commands)

    satisfied = story.history(run)[before]
    assert satisfied.event_type == "ConditionWaitSatisfied"
    assert satisfied.payload == {
        "sequence": 1,
        "condition_wait_id": opened["condition_wait_id"],
        "condition_key": "gate",
        "condition_definition_fingerprint": "sha256:1",
        "workflow_signal_id": received["signal_id"],
        "signal_name": "open",
    }
    assert received["workflow_command_id"] == sent.command_id
    assert 1 not in run.operations


def test_a_satisfied_wait_takes_its_timer_along(story: Story, run: Run) -> None:
    story.work(run, condition("gate", timeout=30))
    scheduled = story.last(run)
    story.signal(run)

    story.work(run, timer(99))

    satisfied, cancelled, following = story.history(run)[-3:]
    assert satisfied.event_type == "ConditionWaitSatisfied"
    assert satisfied.payload["timer_id"] == scheduled["timer_id"]
    assert satisfied.payload["timeout_seconds"] == 30
    assert cancelled.event_type == "TimerCancelled"
    assert cancelled.payload == {**scheduled, "cancelled_at": "2026-01-01T00:00:00.000000Z"}
    assert following.event_type == "TimerScheduled"
    story.later(seconds=60)
    assert "ConditionWaitTimedOut" not in story.types(run)


def test_a_completion_without_a_step_leaves_the_wait_open(story: Story, run: Run) -> None:
    story.work(run, condition("gate"))
    story.signal(run)

    story.work(run)

    assert story.types(run)[-1] == "SignalReceived"
    assert run.wait == 1
    story.signal(run)
    assert run.task is not None


# Timing out -------------------------------------------------------------------------------------


def test_a_wait_that_times_out_is_recorded_and_wakes_the_run(story: Story, run: Run) -> None:
    story.work(run, condition("gate", timeout=30))
    opened, scheduled = (e.payload for e in story.history(run)[2:])

    story.later(seconds=30)

    assert story.types(run)[-1] == "ConditionWaitTimedOut"
    assert story.last(run) == {
        "sequence": 1,
        "condition_wait_id": opened["condition_wait_id"],
        "condition_key": "gate",
        "timer_id": scheduled["timer_id"],
        "timeout_seconds": 30,
    }
    assert run.wait is None
    assert run.task is not None
    assert run.task.resume["condition_wait_id"] == opened["condition_wait_id"]


def test_a_timeout_of_no_length_is_over_at_once(story: Story, run: Run) -> None:
    story.work(run, condition("gate", timeout=0))
    story.later(seconds=0)

    assert story.types(run, after=2) == [
        "ConditionWaitOpened",
        "TimerScheduled",
        "ConditionWaitTimedOut",
    ]


def test_code_goes_on_after_a_timeout_without_satisfying_anything(story: Story, run: Run) -> None:
    story.work(run, condition("gate", timeout=5))
    story.later(seconds=5)

    story.work(run, condition("gate", timeout=5))

    assert story.numbered(run)[-3:] == [
        ("ConditionWaitTimedOut", 1),
        ("ConditionWaitOpened", 2),
        ("TimerScheduled", 2),
    ]


@pytest.mark.parametrize(
    ("following", "ending"),
    [(condition("gate", timeout=30), None), (timer(1), "ConditionWaitSatisfied")],
    ids=["asked again", "moved on"],
)
def test_a_timeout_that_came_while_the_worker_decided_never_happened(
    story: Story, run: Run, following: Command, ending: str | None
) -> None:
    """Time-outs of superseded waits produce no event, and a satisfied wait has not timed out."""
    story.work(run, condition("gate", timeout=30))
    story.later(seconds=20)
    story.signal(run)
    story.lease(run)
    story.later(seconds=15)

    story.complete(run, following)

    types = story.types(run)
    assert "ConditionWaitTimedOut" not in types
    assert ending is None or ending in types
    assert run.task is None


def test_a_timeout_that_came_while_the_worker_said_nothing_counts(story: Story, run: Run) -> None:
    story.work(run, condition("gate", timeout=30))
    story.later(seconds=20)
    story.signal(run)
    story.lease(run)
    story.later(seconds=15)

    story.complete(run)

    assert story.types(run)[-1] == "ConditionWaitTimedOut"
    assert run.task is not None


def test_a_watchdog_loop_is_kept_alive_by_its_pings(story: Story, run: Run) -> None:
    watch = condition("ping", timeout=10)
    story.work(run, watch)
    for _ in range(5):
        story.later(seconds=9)
        story.signal(run, "ping")
        story.work(run, watch)

    assert "ConditionWaitTimedOut" not in story.types(run)
    story.later(seconds=10)
    assert story.numbered(run)[-1] == ("ConditionWaitTimedOut", 6)
    story.work(run, complete_run())
    assert run.status is RunStatus.COMPLETED


def test_a_wait_is_the_same_after_a_crash(story: Story, run: Run) -> None:
    story.work(run, condition("gate", timeout=30))
    story.crash()
    run = story.runs[run.run_id]
    wait = run.operations[1]
    assert run.wait == 1

    story.signal(run)
    story.work(run, OpenConditionWait(key="gate", timeout_seconds=30))

    assert wait.sequence not in run.operations
    assert "ConditionWaitSatisfied" not in story.types(run)


# Beside losers of a selection -------------------------------------------------------------------


GATE = condition("gate", timeout=30)


@pytest.fixture
def overtaken(story: Story, run: Run) -> Run:
    """Its code waits for a condition, and a loser that it left running has begun since."""
    _leave_loser(story, run)
    story.lease_activity(run, 2)
    return run


def _leave_loser(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"clock": timer(1), "slow": activity()}))
    story.later(seconds=1)
    story.work(run, GATE)
    story.later(seconds=9)


def _opened(story: Story, run: Run) -> list[int | None]:
    return [number for kind, number in story.numbered(run) if kind == "ConditionWaitOpened"]


def test_a_loser_that_ends_changes_nothing_for_code_at_a_condition(
    story: Story, overtaken: Run
) -> None:
    story.complete_activity(overtaken, 2)

    assert story.types(overtaken)[-1] == "ActivityCompleted"
    assert overtaken.task is None, "its code has nothing to look at"
    story.later(seconds=20)
    assert "ConditionWaitTimedOut" not in story.types(overtaken)
    story.later(seconds=1)
    assert story.numbered(overtaken)[-1] == ("ConditionWaitTimedOut", 3)


def test_a_message_behind_something_of_a_loser_has_an_opening_of_its_own(
    story: Story, overtaken: Run
) -> None:
    """Workers would take it for one of before the condition, and find others of its openings."""
    before = overtaken.history_count
    story.signal(overtaken)

    assert story.numbered(overtaken, after=before) == [
        ("ConditionWaitOpened", 4),
        ("TimerScheduled", 4),
        ("SignalReceived", None),
    ]
    first, second = (e for e in story.history(overtaken) if e.payload.get("delay_seconds") == 30)
    assert first.payload["fire_at"] == second.payload["fire_at"], "its time-out goes on"
    assert first.payload["condition_wait_id"] != second.payload["condition_wait_id"]
    assert first.payload["timer_id"] != second.payload["timer_id"]
    assert overtaken.wait == 4
    assert set(overtaken.operations) == {2, 4}


def test_an_opening_for_a_message_keeps_its_time_out_and_survives_a_crash(
    story: Story, overtaken: Run
) -> None:
    story.signal(overtaken)
    story.crash()
    run = story.runs[overtaken.run_id]
    story.work(run)

    story.later(seconds=20)
    assert "ConditionWaitTimedOut" not in story.types(run)
    story.later(seconds=1)
    assert story.numbered(run)[-1] == ("ConditionWaitTimedOut", 4)


def test_that_a_condition_was_overtaken_survives_a_crash(story: Story, overtaken: Run) -> None:
    story.crash()
    run = story.runs[overtaken.run_id]
    story.signal(run)

    assert _opened(story, run) == [3, 4]


def test_a_message_right_behind_its_opening_needs_no_other(story: Story, run: Run) -> None:
    _leave_loser(story, run)
    story.signal(run)

    assert story.types(run)[-1] == "SignalReceived"
    assert _opened(story, run) == [3]


def test_code_that_asks_again_after_a_message_opens_once_more(story: Story, overtaken: Run) -> None:
    story.signal(overtaken)
    story.work(overtaken, GATE)
    assert _opened(story, overtaken) == [3, 4, 5]

    story.signal(overtaken)
    assert _opened(story, overtaken) == [3, 4, 5], "nothing of the loser came in between"
    story.work(overtaken, timer(1))
    assert ("ConditionWaitSatisfied", 5) in story.numbered(overtaken)


def test_a_wait_that_has_its_opening_for_messages_gets_no_other(
    story: Story, overtaken: Run
) -> None:
    story.signal(overtaken)
    story.work(overtaken)
    story.signal(overtaken)

    assert _opened(story, overtaken) == [3, 4]


def test_a_request_to_cancel_passes_over_the_opening_before_a_message(
    story: Story, overtaken: Run
) -> None:
    story.signal(overtaken)
    story.work(overtaken)
    story.request_cancellation(overtaken)

    assert story.numbered(overtaken)[-2:] == [
        ("TimerCancelled", 3),
        ("CooperativeCancellationRequested", None),
    ]


def test_an_update_is_applied_behind_an_opening_of_its_own(story: Story, overtaken: Run) -> None:
    story.update(overtaken)
    story.work(overtaken, complete_update(overtaken))

    assert story.numbered(overtaken)[-4:] == [
        ("ConditionWaitOpened", 4),
        ("TimerScheduled", 4),
        ("UpdateApplied", None),
        ("UpdateCompleted", None),
    ]


def test_an_update_that_fails_opens_nothing(story: Story, overtaken: Run) -> None:
    story.update(overtaken)
    story.work(overtaken, fail_update(overtaken))

    assert _opened(story, overtaken) == [3]


def test_what_was_held_back_during_a_task_overtakes_too(story: Story, run: Run) -> None:
    _leave_loser(story, run)
    story.signal(run, "a")
    story.lease(run)
    story.lease_activity(run, 2)
    story.complete(run, GATE)
    story.signal(run, "b")

    assert story.types(run)[-4:] == [
        "ActivityStarted",
        "ConditionWaitOpened",
        "TimerScheduled",
        "SignalReceived",
    ]
    assert _opened(story, run) == [3, 4, 5]


def test_a_condition_that_has_no_name_is_not_opened_twice_from_here(story: Story, run: Run) -> None:
    """Workers put openings together by key and fingerprint; without either they are two waits."""
    story.work(run, *in_selection({"clock": timer(1), "slow": activity()}))
    story.later(seconds=1)
    story.work(run, condition(None))
    story.lease_activity(run, 2)
    story.signal(run)

    assert _opened(story, run) == [3]


def test_code_that_received_nothing_cannot_have_advanced(story: Story, run: Run) -> None:
    """Letting go of a loser brings the code back to a condition that is as it was."""
    select = in_selection({"clock": timer(1), "slow": activity()})
    story.work(run, *select)
    story.later(seconds=1)
    story.work(run, cancel_member(run, "slow"), GATE)
    assert run.task is not None
    story.later(seconds=20)
    before = run.history_count

    story.work(run, GATE)

    assert run.history_count == before
    story.later(seconds=10)
    assert story.numbered(run)[-1] == ("ConditionWaitTimedOut", 3)


def test_a_condition_of_before_this_rule_is_opened_again_as_ever(story: Story, run: Run) -> None:
    story.work(run, GATE)
    run.operations[1].quiet = False  # type: ignore[union-attr]
    run.unsaved.operations.add(1)
    story.wake(run)

    story.work(run, GATE)

    assert _opened(story, run) == [1, 2]

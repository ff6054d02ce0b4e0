"""Condition waits: the code alone knows whether they are true, and says so by what it does next."""

import pytest

from perdure.core.run.command import Command, OpenConditionWait
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from tests.support.commands import (
    activity,
    complete_run,
    condition,
    continue_as_new,
    fail_run,
    in_selection,
    side_effect,
    timer,
)
from tests.support.story import Story


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

"""Signals: durable at once, seen one at a time, and never before the first task is done."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from perdure.core.bounds import Bounds
from perdure.core.payload import Frame, encode
from perdure.core.rejection import (
    HistoricalRunCommandRejected,
    InboxFull,
    RunNotActive,
)
from perdure.core.run import undelivered
from perdure.core.run.command import Command
from perdure.core.run.redrive import read_prefix
from perdure.core.run.reframe import envelope_json
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.engine.redrive import RedriveRun
from perdure.engine.run_commands import CommandTarget
from perdure.store.interface import Instance
from tests.support.commands import (
    ARGUMENTS,
    activity,
    child,
    complete_run,
    complete_update,
    condition,
    continue_as_new,
    fail_run,
    in_parallel,
    in_selection,
    side_effect,
    signal_wait,
    timer,
)
from tests.support.rule_harness import Story, report_of


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


def _received(story: Story, run: Run) -> list[str]:
    return [
        e.payload["signal_name"] for e in story.history(run) if e.event_type == "SignalReceived"
    ]


# The inbox --------------------------------------------------------------------------------------


def test_an_accepted_signal_is_on_disk_before_it_is_in_history(story: Story, run: Run) -> None:
    sent = story.signal(run, "approve")

    assert "SignalReceived" not in story.types(run)
    story.crash()
    (kept,) = story.runs[run.run_id].inbox.values()
    assert (kept.name, kept.command_id, kept.arguments) == ("approve", sent.command_id, ARGUMENTS)


def test_nothing_but_the_start_precedes_the_first_completion(story: Story, run: Run) -> None:
    story.signal(run, "early")
    story.lease(run)
    story.signal(run, "later")

    story.complete(run, condition("gate"))

    assert story.types(run) == [
        "StartAccepted",
        "WorkflowStarted",
        "ConditionWaitOpened",
        "SignalReceived",
    ]
    assert _received(story, run) == ["early"]


def test_what_is_recorded_of_a_signal(story: Story, run: Run) -> None:
    story.work(run, condition("gate"))

    sent = story.signal(run, "approve")

    assert story.last(run) == {
        "workflow_command_id": sent.command_id,
        "signal_id": story.last(run)["signal_id"],
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
        "signal_name": "approve",
        "arguments": msgspec.json.decode(ARGUMENTS),
        "payload_codec": "avro",
    }


def test_a_signal_without_arguments_has_none(story: Story, run: Run) -> None:
    story.work(run, condition("gate"))

    story.signal(run, "approve", None)

    assert "arguments" not in story.last(run)


def test_a_condition_sees_one_signal_per_task(story: Story, run: Run) -> None:
    story.work(run, condition("gate"))
    for name in ("a", "b", "c"):
        story.signal(run, name)
    assert _received(story, run) == ["a"]
    assert run.task is not None
    assert run.task.resume["signal_name"] == "a"

    seen = [_received(story, run)]
    while run.inbox:
        story.work(run, condition("gate"))
        seen.append(_received(story, run))

    assert seen == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert run.task is not None


PARKED: dict[str, list[Command]] = {
    "an activity": [activity()],
    "a timer": [timer(60)],
    "a child": [child()],
    "a list": in_parallel(activity(), timer(60)),
    "a list of the 0.4 SDK": [timer(60), timer(61)],
    "a selection": in_selection({"a": activity(), "gate": condition()}),
}


@pytest.mark.parametrize("commands", PARKED.values(), ids=PARKED)
def test_a_run_parked_on_plain_work_records_signals_and_sleeps_on(
    story: Story, run: Run, commands: list[Command]
) -> None:
    story.work(run, *commands)

    for name in ("a", "b"):
        story.signal(run, name)

    assert _received(story, run) == ["a", "b"]
    assert run.task is None
    assert not run.inbox


def test_a_run_with_nothing_open_is_woken(story: Story, run: Run) -> None:
    story.work(run, side_effect())

    story.signal(run, "go")

    assert run.task is not None


def test_outcomes_that_were_held_back_enter_before_signals(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"fast": timer(1), "slow": activity()}))
    story.later(seconds=1)
    story.lease(run)
    story.signal(run, "go")
    story.lease_activity(run, 2)
    story.complete_activity(run, 2)

    story.complete(run, condition("gate"))

    assert story.types(run)[-5:] == [
        "ConditionWaitOpened",
        "ActivityStarted",
        "ActivityCompleted",
        "ConditionWaitOpened",
        "SignalReceived",
    ]
    assert not run.inbox


def test_a_lease_that_ends_leaves_signals_waiting_for_the_same_task(story: Story, run: Run) -> None:
    story.work(run, condition("gate"))
    story.signal(run, "a")
    story.lease(run)
    story.signal(run, "b")

    story.later(seconds=60)

    assert _received(story, run) == ["a"]
    assert len(run.inbox) == 1


# Refusing ---------------------------------------------------------------------------------------


def test_a_closed_run_takes_no_signals(story: Story, run: Run) -> None:
    story.work(run, complete_run())

    with story.refused(RunNotActive):
        story.signal(run)


def test_a_signal_for_a_run_that_was_continued_is_refused(story: Story, run: Run) -> None:
    story.work(run, continue_as_new())

    with story.refused(HistoricalRunCommandRejected):
        story.signal(run)


# What was accepted and never shown ----------------------------------------------------------------


def _time_out(story: Story, run: Run) -> None:
    story.later(seconds=101)


ENDS: dict[str, tuple[Callable[[Story, Run], object], str]] = {
    "completed": (lambda story, run: story.complete(run, complete_run()), "WorkflowCompleted"),
    "failed": (lambda story, run: story.complete(run, fail_run()), "WorkflowFailed"),
    "cancelled": (lambda story, run: story.cancel(run), "WorkflowCancelled"),
    "terminated": (lambda story, run: story.terminate(run), "WorkflowTerminated"),
    "timed_out": (_time_out, "WorkflowTimedOut"),
}


@pytest.mark.parametrize("reason", ENDS)
def test_a_close_says_which_signals_it_rejects(story: Story, reason: str) -> None:
    run = story.start(run_timeout_seconds=100)
    story.lease(run)
    sent = [story.signal(run, "approve"), story.signal(run, "ship", None)]
    end, ending = ENDS[reason]

    end(story, run)

    told = [e.payload for e in story.history(run) if e.event_type == "SignalRejected"]
    assert [(p["workflow_command_id"], p["signal_name"]) for p in told] == [
        (sent[0].command_id, "approve"),
        (sent[1].command_id, "ship"),
    ]
    assert told[0]["arguments"] == msgspec.json.decode(ARGUMENTS)
    assert "arguments" not in told[1]
    assert {p["closed_reason"] for p in told} == {reason}
    assert not [p for p in told if "sequence" in p], "no step of the code"
    assert story.types(run)[-1] == ending, "the end stays the last event"
    assert run.inbox == {}
    story.crash()
    run = story.runs[run.run_id]
    assert run.inbox == {}
    assert run.rejected is not None
    assert run.rejected.count == 2
    assert [s.name for s in run.rejected.first] == ["approve", "ship"]


def test_a_close_without_waiting_signals_says_nothing_of_them(story: Story, run: Run) -> None:
    story.work(run, activity())
    story.signal(run)
    story.do_activity(run, 1)

    story.work(run, complete_run())

    assert "SignalRejected" not in story.types(run)
    assert run.rejected is None


def test_arguments_of_rejected_signals_have_a_bound(
    story: Story, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undelivered, "REJECTED_SIGNALS_BYTES_MAX", len(ARGUMENTS))
    monkeypatch.setattr(undelivered, "REJECTED_SIGNALS_SHOWN_MAX", 1)
    story.lease(run)
    story.signal(run)
    story.signal(run)

    story.complete(run, complete_run())

    told = [e.payload for e in story.history(run) if e.event_type == "SignalRejected"]
    assert "arguments" in told[0]
    assert "arguments" not in told[1]
    assert told[1]["arguments_bytes"] == len(ARGUMENTS)
    assert run.rejected is not None
    assert (run.rejected.count, len(run.rejected.first)) == (2, 1)


def test_a_repeat_of_a_rejected_signal_is_refused(story: Story, run: Run) -> None:
    story.lease(run)
    sent = story.signal(run, request_id="r1", digest="d-n")
    assert story.signal(run, request_id="r1", digest="d-n").retained
    story.complete(run, complete_run())

    for _ in range(2):
        with story.refused(RunNotActive) as caught:
            story.signal(run, request_id="r1", digest="d-n")
        assert caught.value.details["command_id"] == sent.command_id
        assert caught.value.details["retained"] is True
        story.crash()


def test_a_repeat_of_a_signal_that_the_code_saw_is_retained(story: Story, run: Run) -> None:
    sent = story.signal(run, request_id="r1", digest="d-n")
    story.work(run, condition())
    story.work(run, complete_run())

    again = story.signal(run, request_id="r1", digest="d-n")

    assert (again.command_id, again.retained) == (sent.command_id, True)


def test_a_signal_accepted_and_rejected_in_one_beat_is_told_so(story: Story, run: Run) -> None:
    story.lease(run)
    story.hold()
    story.signal(run, request_id="r1", digest="d-n")
    story.complete(run, complete_run())
    story.commit()

    with story.refused(RunNotActive):
        story.signal(run, request_id="r1", digest="d-n")


def test_a_signal_that_went_on_to_the_next_run_is_rejected_by_its_close(
    story: Story, run: Run
) -> None:
    story.lease(run)
    story.signal(run, request_id="r1", digest="d-n")
    story.complete(run, continue_as_new())
    following = story.successor_of(run)
    assert "SignalRejected" not in story.types(run)
    assert story.signal(run, request_id="r1", digest="d-n").retained

    story.terminate(following)

    assert "SignalRejected" in story.types(following)
    with story.refused(RunNotActive):
        story.signal(run, request_id="r1", digest="d-n")


def test_a_redriven_run_has_accepted_what_the_failed_one_rejected(story: Story, run: Run) -> None:
    story.lease(run)
    sent = story.signal(run, request_id="r1", digest="d-n")
    story.complete(run, fail_run())
    target = CommandTarget(instance=Instance(run.namespace, run.workflow_id))

    story.decide(RedriveRun(target, read_prefix(run.run_id, list(run.events))))

    again = story.signal(run, request_id="r1", digest="d-n")
    assert (again.command_id, again.retained) == (sent.command_id, True)
    (redriven,) = (r for r in story.runs.values() if r.redriven_from_run_id == run.run_id)
    assert "SignalRejected" not in story.types(redriven)
    story.work(redriven, complete_run())
    with story.refused(RunNotActive):
        story.signal(run, request_id="r1", digest="d-n")


def test_an_inbox_has_an_end(story: Story, run: Run) -> None:
    story.bounds = Bounds(pending_signals_max=3)
    for _ in range(3):
        story.signal(run)

    with story.refused(InboxFull) as caught:
        story.signal(run)
    assert caught.value.details == {
        "limit_kind": "pending_signal_count",
        "current_value": 3,
        "configured_limit": 3,
    }


def test_signals_kept_for_a_later_wait_have_an_end_too(story: Story, run: Run) -> None:
    """They lie in the run's row, which every change of the run writes anew."""
    story.bounds = Bounds(pending_signals_max=3)
    story.lease(run, runtime="php")
    story.complete(run, activity())
    for _ in range(3):
        story.signal(run)

    with story.refused(InboxFull):
        story.signal(run)


# One more task for what comes late ----------------------------------------------------------------


@pytest.fixture
def patient(story: Story) -> Run:
    """A run whose code gets more tasks when signals wait as it closes."""
    return story.start(late_signal_tasks_max=2)


def test_code_that_closes_at_a_condition_sees_what_came_late(story: Story, patient: Run) -> None:
    story.work(patient, condition())
    story.signal(patient, "go")
    story.lease(patient)
    for name in ("a", "b"):
        story.signal(patient, name)
    before = patient.history_count

    done = story.complete(patient, side_effect(), complete_run())

    assert done.receipt.late_signals == 2
    assert story.types(patient, after=before) == ["SignalReceived", "SignalReceived"]
    assert patient.status is RunStatus.WAITING
    story.crash()
    patient = story.runs[patient.run_id]
    story.work(patient, complete_run())
    assert story.types(patient)[-2:] == ["ConditionWaitSatisfied", "WorkflowCompleted"]
    assert patient.rejected is None


def test_a_condition_that_is_asked_again_keeps_what_came_late(story: Story, patient: Run) -> None:
    """Or a replay would show it all but the first of them only at the next opening."""
    story.work(patient, condition())
    story.signal(patient, "go")
    story.lease(patient)
    story.signal(patient, "late")
    story.complete(patient, complete_run())
    before = patient.history_count

    story.work(patient, condition())

    assert story.types(patient, after=before) == ["TimerCancelled", "ConditionWaitOpened"]
    bound = story.last(patient, "TimerCancelled")
    assert bound["timer_kind"] == "condition_timeout"
    assert "sequence" not in bound, "no call of the code has ended"
    opened = [e for e in story.history(patient) if e.event_type == "ConditionWaitOpened"]
    assert bound["condition_wait_id"] == opened[0].payload["condition_wait_id"]


@pytest.mark.parametrize("ending", [complete_run, fail_run])
def test_code_that_closes_elsewhere_is_asked_again(
    story: Story, patient: Run, ending: Callable[[], Command]
) -> None:
    story.work(patient, activity())
    story.do_activity(patient, 1)
    story.lease(patient)
    story.signal(patient, "late")

    story.complete(patient, ending())

    assert story.types(patient)[-1] == "SignalReceived"
    story.work(patient, ending())
    assert patient.is_closed
    assert "SignalRejected" not in story.types(patient)


def test_a_held_close_is_repeated_with_the_same_answer(story: Story, patient: Run) -> None:
    story.lease(patient)
    report = report_of(patient)
    story.signal(patient)
    first = story.complete(patient, complete_run())

    again = story.complete(patient, complete_run(), report=report)

    assert again.receipt == first.receipt
    assert not patient.is_closed


def test_tasks_for_late_signals_have_an_end(story: Story, patient: Run) -> None:
    for _ in range(2):
        story.lease(patient)
        story.signal(patient)
        story.complete(patient, complete_run())
        assert not patient.is_closed
    story.lease(patient)
    story.signal(patient)

    story.complete(patient, complete_run())

    assert patient.is_closed
    assert story.types(patient).count("SignalRejected") == 1


def test_code_that_went_on_gets_all_tasks_for_late_signals_again(
    story: Story, patient: Run
) -> None:
    for number in (1, 2):
        for _ in range(2):
            story.lease(patient)
            story.signal(patient)
            story.complete(patient, complete_run())
            assert not patient.is_closed
        story.work(patient, activity())
        story.do_activity(patient, number)


def test_nothing_of_a_held_close_counts_but_the_outcome_of_an_update(
    story: Story, patient: Run
) -> None:
    story.work(patient, condition())
    sent = story.update(patient)
    story.lease(patient)
    story.signal(patient, "late")

    story.complete(patient, complete_update(patient), complete_run())

    assert not patient.is_closed
    assert story.last(patient, "UpdateCompleted")["update_id"] == sent.update_id
    assert story.types(patient)[-1] == "SignalReceived"
    story.work(patient, complete_run())
    assert patient.is_closed


def test_an_update_that_waits_before_a_late_signal_keeps_its_turn(
    story: Story, patient: Run
) -> None:
    story.work(patient, condition())
    story.signal(patient, "go")
    story.lease(patient)
    story.update(patient)
    story.signal(patient, "late")

    story.complete(patient, complete_run())

    assert story.types(patient)[-1] == "SignalReceived"
    assert not patient.is_closed
    story.work(patient, condition())
    story.work(patient, complete_update(patient))
    story.work(patient, complete_run())
    assert patient.is_closed
    assert not {"SignalRejected", "UpdateRejected"} & {*story.types(patient)}


def test_code_that_was_asked_to_cancel_closes_although_signals_wait(
    story: Story, patient: Run
) -> None:
    story.work(patient, condition())
    story.request_cancellation(patient)
    story.lease_validation(patient)
    story.signal(patient, "late")

    story.complete(patient, complete_run())

    assert patient.is_closed
    assert "SignalRejected" in story.types(patient)


@pytest.mark.parametrize("verb", ["cancel", "terminate", "continue"])
def test_who_stops_or_continues_a_run_does_not_wait_for_signals(
    story: Story, patient: Run, verb: str
) -> None:
    story.lease(patient)
    story.signal(patient)

    if verb == "cancel":
        story.cancel(patient)
    elif verb == "terminate":
        story.terminate(patient)
    else:
        story.complete(patient, continue_as_new())
        assert story.successor_of(patient).late_signal_tasks_max == 2

    assert patient.is_closed


def test_the_server_may_be_told_to_give_more_tasks(story: Story, run: Run) -> None:
    story.bounds = Bounds(late_signal_tasks_max=1)
    stubborn = story.start("order-2", late_signal_tasks_max=0)
    for each in (run, stubborn):
        story.lease(each)
        story.signal(each)

        story.complete(each, complete_run())

    assert not run.is_closed
    assert stubborn.is_closed


# Many signals in one task -------------------------------------------------------------------------


def _behind(story: Story, run: Run, count: int) -> int:
    """Sends signals while a task is leased; how many of them the next task shows."""
    story.lease(run)
    for number in range(count):
        story.signal(run, f"s{number}")
    before = run.history_count
    story.complete(run, condition())
    return story.types(run, after=before).count("SignalReceived")


def test_a_task_carries_as_many_signals_as_it_is_allowed_to(story: Story) -> None:
    run = story.start(signals_per_task_max=3)
    assert _behind(story, run, 7) == 3
    before = run.history_count

    story.work(run, condition())

    assert story.types(run, after=before) == [
        "TimerCancelled",
        "ConditionWaitOpened",
        *["SignalReceived"] * 3,
    ]
    before = run.history_count
    story.work(run, condition())
    assert story.types(run, after=before)[-1] == "SignalReceived"
    before = run.history_count
    story.work(run, complete_run())
    assert story.types(run, after=before) == ["ConditionWaitSatisfied", "WorkflowCompleted"]


def test_a_ready_task_takes_signals_until_a_worker_has_it(story: Story) -> None:
    run = story.start(signals_per_task_max=3)
    story.work(run, condition())
    for _ in range(5):
        story.signal(run)

    assert _received(story, run) == ["approve"] * 3
    story.lease(run)
    story.signal(run)
    assert len(run.inbox) == 3


def test_an_update_ends_the_signals_of_a_task(story: Story) -> None:
    run = story.start(signals_per_task_max=9)
    story.work(run, condition())
    story.signal(run, "a")
    story.update(run)
    story.signal(run, "b")

    assert _received(story, run) == ["a"]
    assert "UpdateAccepted" not in story.types(run)


def test_code_of_other_languages_sees_one_signal_per_task(story: Story) -> None:
    run = story.start(signals_per_task_max=9)
    story.lease(run, runtime="php")
    for name in "ab":
        story.signal(run, name)

    story.complete(run, condition())

    assert _received(story, run) == ["a"]


def test_the_server_may_be_told_how_many_signals_a_task_carries(story: Story, run: Run) -> None:
    story.bounds = Bounds(signals_per_task_max=2)

    assert _behind(story, run, 3) == 2


# Signal waits -----------------------------------------------------------------------------------


def test_a_signal_wait_is_ended_by_its_signal(story: Story, run: Run) -> None:
    story.work(run, signal_wait("approve"))
    opened = story.last(run)
    assert opened == {
        "sequence": 1,
        "signal_wait_id": opened["signal_wait_id"],
        "signal_name": "approve",
    }

    sent = story.signal(run, "approve")
    received = story.last(run)
    assert received["signal_wait_id"] == opened["signal_wait_id"]
    story.work(run, activity())

    applied = story.history(run)[-2]
    assert applied.event_type == "SignalApplied"
    assert applied.payload == {
        "workflow_command_id": sent.command_id,
        "signal_id": received["signal_id"],
        "signal_name": "approve",
        "signal_wait_id": opened["signal_wait_id"],
        "sequence": 1,
        "value": msgspec.json.decode(ARGUMENTS),
    }
    assert set(run.operations) == {2}


@pytest.mark.parametrize("frame", list(Frame))
@pytest.mark.parametrize(
    ("arguments", "value"),
    [(None, True), ([], True), (["one"], "one"), ([None], None), ([1, 2], [1, 2])],
    ids=repr,
)
def test_a_signal_wait_returns_what_its_signal_carried(
    story: Story, frame: Frame, arguments: list[Any] | None, value: Any
) -> None:
    sdk = "durable-workflow-python/0.4.106" if frame is Frame.WRAPPER else "2.0.0"
    run = story.start(plain=b"[]")
    story.lease(run, sdk_version=sdk, runtime="php")
    story.complete(run, signal_wait("approve"))
    sent = None if arguments is None else envelope_json(encode(arguments, frame))
    story.signal(run, "approve", sent)

    story.work(run, activity())

    applied = story.last(run, "SignalApplied")["value"]
    assert applied == {"codec": "avro", "blob": encode(value, frame)}


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"codec":"avro","external_storage":{"uri":"s3://b/k"}}',
        b'{"codec":"avro","blob":"no payload"}',
        envelope_json(encode({"not": "a list"}, Frame.VALUE)),
    ],
)
def test_arguments_that_the_server_cannot_read_are_handed_on(
    story: Story, run: Run, arguments: bytes
) -> None:
    story.work(run, signal_wait("approve"))
    story.signal(run, "approve", arguments)

    story.work(run, activity())

    assert story.last(run, "SignalApplied")["value"] == msgspec.json.decode(arguments)


def test_a_signal_is_applied_also_when_the_worker_answers_nothing(story: Story, run: Run) -> None:
    """The run would wait for a signal that it has got."""
    story.work(run, signal_wait("approve"))
    story.signal(run, "approve")

    story.work(run)

    assert story.types(run)[-1] == "SignalApplied"
    assert run.operations == {}


def test_a_signal_wait_does_not_see_other_signals(story: Story, run: Run) -> None:
    story.work(run, signal_wait("approve"))

    sent = story.signal(run, "reject")

    assert story.last(run)["signal_wait_id"] == f"signal-command:{sent.command_id}"
    assert run.task is None
    story.signal(run, "approve")
    story.work(run, signal_wait("reject"))
    assert story.last(run)["signal_wait_id"] == f"signal-command:{sent.command_id}"


def test_a_signal_that_came_before_its_wait_is_kept_for_it(story: Story, run: Run) -> None:
    story.lease(run, runtime="php")
    story.complete(run, timer(5))
    sent = story.signal(run, "approve")
    story.later(seconds=5)

    story.work(run, signal_wait("approve"))

    assert story.last(run)["signal_wait_id"] == f"signal-command:{sent.command_id}"
    assert run.task is not None
    assert run.task.resume["workflow_command_id"] == sent.command_id
    story.work(run, complete_run())
    assert story.types(run)[-2:] == ["SignalApplied", "WorkflowCompleted"]


def test_a_signal_that_woke_an_idle_run_is_kept_for_its_wait(story: Story, run: Run) -> None:
    """The code asks for the signal only now, after the server had shown it."""
    story.lease(run, runtime="php")
    story.complete(run, side_effect())
    story.signal(run, "approve")

    story.work(run, signal_wait("approve"))

    assert run.task is not None
    story.work(run, complete_run())
    assert "SignalApplied" in story.types(run)


def test_a_signal_wait_times_out(story: Story, run: Run) -> None:
    story.work(run, signal_wait("approve", timeout=30))
    opened, scheduled = (e.payload for e in story.history(run)[2:])
    assert scheduled["timer_kind"] == "signal_timeout"

    story.later(seconds=30)

    assert story.types(run)[-1] == "TimerFired"
    assert story.last(run) == {**scheduled, "fired_at": "2026-01-01T00:00:30.000000Z"}
    assert scheduled["signal_wait_id"] == opened["signal_wait_id"]
    assert run.operations == {}
    assert run.task is not None


def test_a_signal_stops_the_timeout_of_its_wait(story: Story, run: Run) -> None:
    story.work(run, signal_wait("approve", timeout=30))
    story.signal(run, "approve")
    story.later(seconds=60)

    story.work(run, complete_run())

    assert story.types(run)[-3:] == ["TimerCancelled", "SignalApplied", "WorkflowCompleted"]

"""Validated updates: nothing is accepted that the code has not approved."""

from collections.abc import Callable
from typing import Any

import pytest

from perdure.core import limits
from perdure.core.fleet.worker import Worker
from perdure.core.limits import SECOND
from perdure.core.rejection import (
    Rejection,
    TaskNotFound,
    TaskNotLeased,
    UpdateRejected,
    UpdateValidationDuplicate,
    UpdateValidationLeaseExpired,
    UpdateValidationNotFound,
    UpdateValidationNotLeased,
    UpdateValidationStale,
    UpdateValidationUnsupported,
    UpdateValidatorIncompatible,
    UpdateValidatorUnavailable,
)
from perdure.core.run.cause import next_cause
from perdure.core.run.completion import TaskReport
from perdure.core.run.state import Run, TaskKind
from perdure.core.run.task import task_name
from tests.support.commands import activity, complete_run, complete_update, condition, timer
from tests.support.rule_harness import Story, report_of, validator, worker

TIMEOUT = limits.UPDATE_VALIDATION_TIMEOUT / SECOND
LEASE = limits.UPDATE_VALIDATION_LEASE_TIMEOUT / SECOND


@pytest.fixture
def run(story: Story) -> Run:
    run = story.start()
    story.work(run, condition())
    return run


def _kind(run: Run) -> TaskKind | None:
    return None if run.task is None else run.task.kind


def _ask(story: Story, run: Run, **target: Any) -> str:
    return story.update(run, "add", workers=[validator()], **target).update_id


# Verdicts ---------------------------------------------------------------------------------------


def test_an_update_is_judged_before_anything_enters_history(story: Story, run: Run) -> None:
    before = run.history_count
    sent = story.update(run, "add", workers=[validator()])

    assert sent.accepted_at is None
    assert run.history_count == before
    assert _kind(run) is TaskKind.VALIDATION
    assert story.look_at_update(run, sent.update_id).status == "validating"

    story.lease_validation(run)
    story.approve(run)

    assert story.types(run, after=before) == ["UpdateAccepted"]
    assert _kind(run) is TaskKind.UPDATE
    assert story.look_at_update(run, sent.update_id).status == "accepted"


def test_a_rejected_update_leaves_no_event_and_a_reason(story: Story, run: Run) -> None:
    update_id = _ask(story, run)
    before = run.history_count

    story.lease_validation(run)
    story.reject(run, "update_validator_rejected")

    assert run.history_count == before
    assert (run.task, run.inbox, run.updates_open) == (None, {}, 0)
    view = story.look_at_update(run, update_id)
    assert view.status == "rejected"
    assert view.refusal is not None
    assert view.refusal.reason == "update_validator_rejected"


def test_only_the_updates_that_the_code_validates_are_judged(story: Story, run: Run) -> None:
    story.update(run, "close", workers=[validator()])

    assert _kind(run) is TaskKind.UPDATE


def test_messages_wait_behind_an_update_that_is_judged(story: Story, run: Run) -> None:
    _ask(story, run)
    story.signal(run, "later")
    assert "SignalReceived" not in story.types(run)

    story.lease_validation(run)
    story.reject(run, "update_validator_rejected")

    assert story.types(run)[-1] == "SignalReceived"


def test_a_validator_sees_what_was_sent_before_its_update(story: Story) -> None:
    run = story.start()
    story.signal(run, "unlock")
    _ask(story, run)
    assert _kind(run) is TaskKind.PROGRESS

    story.work(run, condition())
    assert story.types(run)[-1] == "SignalReceived"
    assert _kind(run) is TaskKind.PROGRESS
    story.work(run, condition())

    assert _kind(run) is TaskKind.VALIDATION


def test_history_stands_still_while_a_validator_looks_at_it(story: Story) -> None:
    run = story.start()
    story.work(run, timer(5))
    _ask(story, run)
    story.lease_validation(run)
    before = run.history_count

    story.later(seconds=5)
    assert run.history_count == before

    story.approve(run)
    assert story.types(run, after=before) == ["UpdateAccepted", "TimerFired"]
    assert _kind(run) is TaskKind.PROGRESS, "the code goes on first"
    story.work(run, condition())
    assert _kind(run) is TaskKind.UPDATE


def test_a_validation_without_a_lease_is_replaced_by_a_task_for_the_code(story: Story) -> None:
    run = story.start()
    story.work(run, timer(5))
    _ask(story, run)
    assert task_name(run) != "order"

    story.later(seconds=5)

    assert _kind(run) is TaskKind.PROGRESS
    assert task_name(run) == "order"
    story.work(run, condition())
    assert _kind(run) is TaskKind.VALIDATION


def test_who_can_take_a_validation_is_in_its_name(story: Story, run: Run) -> None:
    _ask(story, run)

    assert task_name(run) == "order\x1fadd"


# Repeats, latecomers, strangers -----------------------------------------------------------------


def test_a_repeated_verdict_gets_the_same_answer(story: Story, run: Run) -> None:
    _ask(story, run)
    story.lease_validation(run)
    report = report_of(run)
    assert story.approve(run, report).outcome == "approved"

    with story.unchanged():
        assert story.approve(run, report).outcome == "approved"
    with story.refused(UpdateValidationDuplicate):
        story.reject(run, "update_validator_rejected", report)


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"owner": "w9"}, UpdateValidationStale),
        ({"attempt": 2}, UpdateValidationStale),
        ({"number": 99}, UpdateValidationNotFound),
        ({"number": 0}, UpdateValidationNotFound),
        ({"number": 1}, UpdateValidationNotLeased),
    ],
)
def test_a_stranger_has_no_word(
    story: Story, run: Run, wrong: dict[str, str | int], refusal: type[Rejection]
) -> None:
    _ask(story, run)
    story.lease_validation(run)
    right = report_of(run)
    told = {"number": right.number, "owner": right.owner, "attempt": right.attempt, **wrong}
    report = TaskReport(**told)  # type: ignore[arg-type]  # a mixture on purpose

    with story.refused(refusal):
        story.approve(run, report)
    with story.refused(refusal):
        story.reject(run, "update_validator_rejected", report)


def test_a_validation_and_a_workflow_task_are_not_taken_for_each_other(
    story: Story, run: Run
) -> None:
    _ask(story, run)
    story.lease_validation(run)
    judging = report_of(run)

    with story.refused(TaskNotFound):
        story.complete(run, complete_run(), report=judging)
    story.approve(run, judging)
    with story.refused(TaskNotLeased):
        story.complete(run, complete_run(), report=judging)
    story.lease(run)
    with story.refused(UpdateValidationNotFound):
        story.approve(run, report_of(run))


def test_a_word_after_the_lease_is_late(story: Story, run: Run) -> None:
    _ask(story, run)
    story.lease_validation(run)
    story.clock.jump(seconds=LEASE)

    with story.refused(UpdateValidationLeaseExpired):
        story.approve(run)


def test_a_verdict_on_a_closed_run_comes_too_late(story: Story, run: Run) -> None:
    update_id = _ask(story, run)
    story.lease_validation(run)
    report = report_of(run)
    story.cancel(run)

    with story.refused(UpdateValidationNotLeased):
        story.approve(run, report)
    assert story.look_at_update(run, update_id).status == "rejected"


# Lost validators --------------------------------------------------------------------------------


def test_a_validation_whose_worker_is_silent_goes_to_another(story: Story, run: Run) -> None:
    _ask(story, run)
    story.lease_validation(run, "silent")

    story.later(seconds=LEASE)

    task = story.lease_validation(run, "other")
    assert task.attempt == 2
    story.approve(run)
    assert _kind(run) is TaskKind.UPDATE


def test_a_validation_that_no_worker_takes_is_refused_in_time(story: Story, run: Run) -> None:
    update_id = _ask(story, run)
    story.signal(run, "behind")

    story.later(seconds=TIMEOUT - 1)
    assert _kind(run) is TaskKind.VALIDATION
    story.later(seconds=1)

    refusal = story.look_at_update(run, update_id).refusal
    assert refusal is not None
    assert refusal.reason == "update_validation_task_not_claimed"
    assert story.types(run)[-1] == "SignalReceived", "those behind it go on"
    assert story.disk.ready[run.run_id] == {0}


def test_what_a_worker_keeps_too_long_is_refused_in_time(story: Story, run: Run) -> None:
    update_id = _ask(story, run)
    story.later(seconds=TIMEOUT - 1)
    story.lease_validation(run, "slow")
    report = report_of(run)

    story.later(seconds=1)

    refusal = story.look_at_update(run, update_id).refusal
    assert refusal is not None
    assert refusal.reason == "update_validation_execution_timeout"
    assert "slow" in refusal.message
    assert run.task is None
    with story.refused(UpdateValidationNotLeased):
        story.approve(run, report)


def test_what_a_lost_worker_had_is_refused_in_time(story: Story, run: Run) -> None:
    update_id = _ask(story, run)
    story.lease_validation(run, "lost")

    story.later(seconds=TIMEOUT)

    refusal = story.look_at_update(run, update_id).refusal
    assert refusal is not None
    assert refusal.reason == "update_validator_worker_lost"


def test_one_that_waits_behind_others_is_refused_in_time_as_well(story: Story, run: Run) -> None:
    first, second = _ask(story, run), _ask(story, run)
    story.later(seconds=1)
    third = _ask(story, run)
    story.later(seconds=TIMEOUT - 1)

    statuses = [story.look_at_update(run, i).status for i in (first, second, third)]
    assert statuses == ["rejected", "rejected", "validating"]
    story.lease_validation(run)
    story.approve(run)
    assert run.update is not None
    assert run.update.update_id == third


# Request ids ------------------------------------------------------------------------------------


def test_a_repeat_finds_the_update_that_is_being_judged(story: Story, run: Run) -> None:
    update_id = _ask(story, run, request_id="r", digest="d-n")

    again = story.update(run, "add", workers=[validator()], request_id="r", digest="d-n")

    assert (again.update_id, again.retained) == (update_id, True)
    assert len(run.inbox) == 1


def test_who_was_refused_may_ask_again_under_the_same_id(story: Story, run: Run) -> None:
    refused = _ask(story, run, request_id="r", digest="d-n")
    story.lease_validation(run)
    story.reject(run, "update_validator_rejected")

    again = _ask(story, run, request_id="r", digest="d-n")
    assert again != refused
    story.lease_validation(run)
    story.approve(run)
    story.work(run, complete_update(run))

    assert _ask(story, run, request_id="r", digest="d-n") == again


# Who is there to judge --------------------------------------------------------------------------


def _without_capability() -> Worker:
    told = validator()
    told.capabilities = []
    return told


def _of_build(build_id: str) -> Worker:
    told = validator("other")
    told.build_id = build_id
    return told


def _without_report() -> Worker:
    told = worker("old")
    told.workflow_types = ["order"]
    return told


def test_without_workers_the_report_of_the_last_one_is_used(story: Story, run: Run) -> None:
    _seen_by_a_validator(story, run)

    with story.refused(UpdateValidatorUnavailable) as refusal:
        story.update(run, "add")
    assert refusal.value.details["retryable"] is True
    assert _kind(run) is None
    story.update(run, "close")
    assert _kind(run) is TaskKind.UPDATE


def _seen_by_a_validator(story: Story, run: Run) -> None:
    story.signal(run)
    story.lease_validation(run)
    story.complete(run, activity())
    assert run.validators == ["add"]


def test_a_worker_that_cannot_be_asked_is_none(story: Story, run: Run) -> None:
    with story.refused(UpdateValidationUnsupported):
        story.update(run, "add", workers=[_without_capability()])


def test_workers_that_do_not_tell_cannot_stand_in(story: Story, run: Run) -> None:
    _seen_by_a_validator(story, run)

    with story.refused(UpdateValidatorIncompatible):
        story.update(run, "add", workers=[_without_report()])


def test_a_run_of_one_build_is_judged_by_no_other(story: Story) -> None:
    run = story.start(build_id="blue")
    story.work(run, condition())
    _seen_by_a_validator(story, run)

    with story.refused(UpdateValidatorIncompatible):
        story.update(run, "add", workers=[_of_build("green")])
    story.update(run, "add", workers=[_of_build("blue")])
    assert _kind(run) is TaskKind.VALIDATION
    assert task_name(run) == "order\x1fadd@blue"


def test_the_newest_word_of_the_workers_counts(story: Story, run: Run) -> None:
    _seen_by_a_validator(story, run)

    story.update(run, "add", workers=[validator("w1", "close")])

    assert _kind(run) is TaskKind.UPDATE


def test_an_update_that_came_before_every_worker_is_judged_in_its_turn(story: Story) -> None:
    run = story.start()
    sent = story.update(run, "add")
    assert sent.accepted_at is not None

    story.lease_validation(run)
    story.complete(run, condition())

    assert _kind(run) is TaskKind.VALIDATION
    assert "UpdateAccepted" not in story.types(run)
    story.later(seconds=TIMEOUT)
    assert story.look_at_update(run, sent.update_id).status == "rejected"


def test_an_update_that_came_before_every_worker_keeps_its_answer(story: Story) -> None:
    run = story.start()
    sent = story.update(run, "add", request_id="r", digest="d-n")
    story.lease_validation(run)
    story.complete(run, condition())
    story.later(seconds=1)
    story.lease_validation(run)

    story.approve(run)

    assert story.look_at_update(run, sent.update_id).accepted_at == sent.accepted_at
    assert story.update(run, "add", request_id="r", digest="d-n").update_id == sent.update_id


def test_an_update_that_no_worker_reports_is_unknown(story: Story, run: Run) -> None:
    with story.refused(UpdateRejected) as refusal:
        story.update(run, "subtract", workers=[validator()])
    assert refusal.value.details["rejection_reason"] == "unknown_update"

    story.update(run, "subtract", workers=[validator(), _without_report()])


# Why it is not moving ---------------------------------------------------------------------------


def test_a_validation_is_the_cause_of_its_run(story: Story, run: Run) -> None:
    update_id = _ask(story, run)

    def cause() -> tuple[str, str | None, str | None, str | None]:
        told = next_cause(run)
        assert told is not None
        return told.kind, told.name, told.update_id, told.owner

    assert cause() == ("update_validation", "add", update_id, None)
    story.lease_validation(run, "w4")
    assert cause() == ("update_validation", "add", update_id, "w4")


@pytest.mark.parametrize("end", [Story.cancel, Story.terminate])
def test_a_run_that_is_stopped_refuses_what_is_being_judged(
    story: Story, run: Run, end: Callable[[Story, Run], None]
) -> None:
    update_id = _ask(story, run)
    story.lease_validation(run)

    end(story, run)

    assert story.look_at_update(run, update_id).status == "rejected"
    assert story.types(run)[-1] in ("WorkflowCancelled", "WorkflowTerminated")
    assert story.last(run, "UpdateRejected")["update_id"] == update_id

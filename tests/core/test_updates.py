"""Updates: a task of their own, one outcome, and nothing overtaken on the way."""

from typing import Any

import msgspec
import pytest

from perdure.core import limits
from perdure.core.bounds import Bounds
from perdure.core.rejection import (
    HistoricalRunCommandRejected,
    InboxFull,
    InstanceNotFound,
    InvalidCommands,
    RequestIdConflict,
    UpdateRejected,
)
from perdure.core.run.cause import next_cause
from perdure.core.run.command import Command, CompleteUpdate, FailUpdate
from perdure.core.run.completion import WAITING_FOR_HISTORY
from perdure.core.run.inbox import Update
from perdure.core.run.state import Run, TaskKind
from perdure.engine.run_commands import CommandTarget
from perdure.engine.updates import UpdateRun
from perdure.store.interface import Instance
from tests.support.commands import (
    ARGUMENTS,
    RESULT,
    activity,
    child,
    complete_run,
    complete_update,
    condition,
    continue_as_new,
    fail_run,
    fail_update,
    in_selection,
    side_effect,
    signal_wait,
    timer,
)
from tests.support.rule_harness import Story, report_of


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


def _kind(run: Run) -> TaskKind | None:
    return None if run.task is None else run.task.kind


# Taken, accepted, answered ----------------------------------------------------------------------


def test_an_update_is_on_disk_before_it_is_in_history(story: Story, run: Run) -> None:
    sent = story.update(run, "add")

    assert "UpdateAccepted" not in story.types(run)
    story.crash()
    (kept,) = story.runs[run.run_id].inbox.values()
    assert isinstance(kept, Update)
    assert (kept.name, kept.update_id, kept.arguments) == ("add", sent.update_id, ARGUMENTS)
    assert story.look_at_update(run, sent.update_id).status == "accepted"


def test_nothing_but_the_start_precedes_the_first_completion(story: Story, run: Run) -> None:
    story.update(run)
    assert _kind(run) is TaskKind.PROGRESS

    story.work(run, condition())

    assert story.types(run, after=2) == ["ConditionWaitOpened", "UpdateAccepted"]
    assert _kind(run) is TaskKind.UPDATE


def test_what_is_recorded_of_an_update_that_completes(story: Story, run: Run) -> None:
    story.work(run, condition())
    sent = story.update(run, "add")
    story.work(run, complete_update(run))

    told = [e for e in story.history(run) if e.event_type.startswith("Update")]
    identity = {
        "workflow_command_id": sent.update_id,
        "update_id": sent.update_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
        "update_name": "add",
        "payload_codec": "avro",
    }
    arguments = {"arguments": msgspec.json.decode(ARGUMENTS)}
    assert [(e.event_type, e.payload) for e in told] == [
        ("UpdateAccepted", {**identity, **arguments}),
        ("UpdateApplied", {**identity, **arguments}),
        ("UpdateCompleted", {**identity, "result": msgspec.json.decode(RESULT)}),
    ]


def test_a_failed_update_is_never_applied_and_does_not_wake_the_code(
    story: Story, run: Run
) -> None:
    story.work(run, condition())
    sent = story.update(run)

    story.work(run, fail_update(run))

    assert story.types(run)[-2:] == ["UpdateAccepted", "UpdateCompleted"]
    told = story.last(run)
    assert (told["message"], told["exception_type"]) == ("no such entry", "KeyError")
    assert told["failure_category"] == "application"
    assert told["failure_id"]
    assert run.task is None
    assert story.look_at_update(run, sent.update_id).status == "failed"


def test_the_task_of_an_update_tells_its_worker_what_to_do(story: Story, run: Run) -> None:
    story.work(run, condition())
    sent = story.update(run)

    assert run.task is not None
    assert run.task.resume == {
        "workflow_wait_kind": "update",
        "open_wait_id": f"update:{sent.update_id}",
        "resume_source_kind": "workflow_update",
        "resume_source_id": sent.update_id,
        "workflow_update_id": sent.update_id,
        "workflow_command_id": sent.update_id,
    }


@pytest.mark.parametrize(
    ("steps", "woken"),
    [
        ([condition()], True),
        ([activity()], False),
        ([timer()], False),
        ([child()], False),
        ([signal_wait()], False),
        ([activity(), activity()], False),
        (in_selection({"a": activity(), "b": timer()}), False),
        ([side_effect()], True),
    ],
    ids=["condition", "activity", "timer", "child", "signal", "list", "selection", "nothing"],
)
def test_the_code_is_woken_afterwards_only_if_it_can_look(
    story: Story, run: Run, steps: list[Command], woken: bool
) -> None:
    story.work(run, *steps)
    story.update(run)
    assert _kind(run) is TaskKind.UPDATE

    story.work(run, complete_update(run))

    assert _kind(run) is (TaskKind.PROGRESS if woken else None)
    if run.task is not None:
        assert run.task.resume == {}, "it is an ordinary task"


def test_a_wait_that_an_update_satisfied_is_closed_by_the_task_after_it(
    story: Story, run: Run
) -> None:
    story.work(run, condition("gate", timeout=60))
    story.update(run)
    story.work(run, complete_update(run))
    assert run.wait == 1, "the update itself leaves the wait open"
    before = run.history_count

    story.work(run, activity())

    assert story.types(run, after=before) == [
        "ConditionWaitSatisfied",
        "TimerCancelled",
        "ActivityScheduled",
    ]


def test_updates_take_no_sequence(story: Story, run: Run) -> None:
    story.work(run, condition())
    story.update(run)
    story.work(run, complete_update(run))
    story.work(run, activity())

    assert story.last(run, "ActivityScheduled")["sequence"] == 2


# Order ------------------------------------------------------------------------------------------


def test_signals_and_updates_are_handed_over_one_by_one_in_their_order(
    story: Story, run: Run
) -> None:
    story.signal(run, "one")
    story.update(run, "two")
    story.update(run, "three")
    story.signal(run, "four")

    seen = []
    story.work(run, condition())
    for _ in range(4):
        task = run.task
        assert task is not None
        seen.append("update" if task.kind is TaskKind.UPDATE else task.resume["signal_name"])
        if task.kind is TaskKind.UPDATE:
            story.work(run, complete_update(run))
        story.work(run, condition())

    assert seen == ["one", "update", "update", "four"]
    told = story.history(run)
    assert [e.payload["update_name"] for e in told if e.event_type == "UpdateAccepted"] == [
        "two",
        "three",
    ]
    assert run.inbox == {}


def test_an_update_steps_back_when_the_code_can_go_on(story: Story, run: Run) -> None:
    """Its handler sees what every later replay will show it."""
    story.work(run, timer(60))
    sent = story.update(run)
    assert _kind(run) is TaskKind.UPDATE

    story.later(seconds=60)

    assert _kind(run) is TaskKind.PROGRESS
    story.work(run, condition())
    assert _kind(run) is TaskKind.UPDATE
    story.work(run, complete_update(run))
    assert story.types(run, after=2) == [
        "TimerScheduled",
        "UpdateAccepted",
        "TimerFired",
        "ConditionWaitOpened",
        "UpdateApplied",
        "UpdateCompleted",
    ]
    assert story.look_at_update(run, sent.update_id).status == "completed"


def test_an_update_that_a_worker_has_does_not_step_back(story: Story, run: Run) -> None:
    story.work(run, timer(60))
    story.update(run)
    story.later(seconds=30)
    story.lease(run)
    story.later(seconds=30)
    assert _kind(run) is TaskKind.UPDATE
    assert "TimerFired" not in story.types(run)

    story.complete(run, complete_update(run))

    assert story.types(run)[-3:] == ["UpdateApplied", "UpdateCompleted", "TimerFired"]
    assert _kind(run) is TaskKind.PROGRESS


def test_an_update_whose_worker_was_lost_steps_back_then(story: Story, run: Run) -> None:
    story.work(run, timer(30))
    story.update(run)
    story.lease(run, "lost")

    story.later(seconds=limits.WORKFLOW_LEASE_TIMEOUT / limits.SECOND)

    assert story.types(run)[-1] == "TimerFired"
    assert _kind(run) is TaskKind.PROGRESS


def test_an_update_that_a_beat_takes_back_leaves_no_stale_offer(story: Story, run: Run) -> None:
    """Its task was on disk for pollers; the one that replaces it is leased in the same beat."""
    story.work(run, timer(60))
    story.update(run)
    story.clock.jump(seconds=60)
    story.hold()
    story.fire()
    story.lease(run)
    story.commit()

    assert story.disk.ready[run.run_id] == set()


# Wrong answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "commands",
    [
        [],
        [condition()],
        [complete_run()],
        [CompleteUpdate(update_id="other")],
        [FailUpdate(update_id="other", message="x")],
    ],
    ids=["nothing", "a step", "an end", "another id", "another failure"],
)
def test_the_task_of_an_update_must_bring_its_outcome(
    story: Story, run: Run, commands: list[Command]
) -> None:
    story.work(run, condition())
    story.update(run)
    story.lease(run)

    with story.refused(InvalidCommands):
        story.complete(run, *commands)


def test_one_outcome_is_enough(story: Story, run: Run) -> None:
    story.work(run, condition())
    story.update(run)
    story.lease(run)

    with story.refused(InvalidCommands):
        story.complete(run, complete_update(run), fail_update(run))


def test_other_tasks_bring_no_outcome(story: Story, run: Run) -> None:
    story.work(run, timer(60))
    story.update(run)
    early = complete_update(run)
    story.later(seconds=60)
    story.lease(run)

    with story.refused(InvalidCommands):
        story.complete(run, early)


def test_an_outcome_may_come_with_the_end_of_the_run(story: Story, run: Run) -> None:
    story.work(run, condition())
    sent = story.update(run)

    story.work(run, complete_update(run), complete_run())

    assert story.types(run)[-4:] == [
        "UpdateApplied",
        "UpdateCompleted",
        "ConditionWaitSatisfied",
        "WorkflowCompleted",
    ]
    assert story.look_at_update(run, sent.update_id).status == "completed"


def test_a_repeated_outcome_gets_the_recorded_answer(story: Story, run: Run) -> None:
    story.work(run, condition())
    story.update(run)
    story.lease(run)
    report, outcome = report_of(run), complete_update(run)
    first = story.complete(run, outcome, report=report)

    with story.unchanged():
        assert story.complete(run, outcome, report=report) == first


def test_a_failed_task_comes_again_for_the_same_update(story: Story, run: Run) -> None:
    story.work(run, condition())
    sent = story.update(run)
    story.lease(run)

    story.fail_task(run, "cannot replay", failure_type="NonDeterministicReplayError")
    story.later(seconds=1)

    story.lease(run)
    assert run.task is not None
    assert (run.task.kind, run.task.attempt) == (TaskKind.UPDATE, 2)
    assert run.task.resume["workflow_update_id"] == sent.update_id


def test_waiting_for_history_is_no_answer_to_an_update(story: Story, run: Run) -> None:
    """Taken for one, it would leave an update that is never handed to a worker again."""
    story.work(run, condition())
    story.update(run)
    story.lease(run)

    assert story.fail_task(run, failure_type=WAITING_FOR_HISTORY).receipt.outcome == "failed"

    story.later(seconds=1)
    assert _kind(run) is TaskKind.UPDATE


# Who may ask ------------------------------------------------------------------------------------


def test_a_closed_run_takes_no_update(story: Story, run: Run) -> None:
    story.work(run, complete_run())

    with story.refused(UpdateRejected) as refusal:
        story.update(run)
    assert refusal.value.details["rejection_reason"] == "run_not_active"


def test_a_run_that_is_not_the_newest_takes_no_update(story: Story, run: Run) -> None:
    story.work(run, continue_as_new())

    with story.refused(HistoricalRunCommandRejected):
        story.update(run)


def test_a_workflow_that_never_was_takes_no_update(story: Story) -> None:
    target = CommandTarget(instance=Instance("default", "nobody"))

    with story.refused(InstanceNotFound):
        story.decide(UpdateRun(target, name="add", arguments=None))


def test_there_is_an_end_to_open_updates(story: Story, run: Run) -> None:
    story.bounds = Bounds(pending_updates_max=2)
    story.work(run, condition())
    story.update(run)
    story.update(run)

    with story.refused(InboxFull) as refusal:
        story.update(run)
    assert refusal.value.details["limit_kind"] == "pending_update_count"
    assert refusal.value.details["current_value"] == 2
    story.signal(run)

    story.work(run, complete_update(run))
    story.update(run)


def test_open_updates_leave_all_the_room_for_signals(story: Story, run: Run) -> None:
    story.bounds = Bounds(pending_signals_max=2)
    story.work(run, condition())
    for _ in range(3):
        story.update(run)
    story.signal(run)
    story.signal(run)

    with story.refused(InboxFull) as refusal:
        story.signal(run)
    assert refusal.value.details["limit_kind"] == "pending_signal_count"


# Repeats ----------------------------------------------------------------------------------------


def test_a_repeated_request_finds_the_first_update(story: Story, run: Run) -> None:
    first = story.update(run, request_id="r", digest="d-n")

    with story.unchanged():
        again = story.update(run, request_id="r", digest="d-n")

    assert (first.update_id, first.retained) == (again.update_id, False)
    assert again.retained
    story.work(run, complete_run())
    assert story.update(run, request_id="r", digest="d-n").update_id == first.update_id


@pytest.mark.parametrize(
    ("other", "conflict"),
    [
        ({"digest": "e-n"}, ["arguments"]),
        ({"digest": "e-m"}, ["name"]),
        ({"run_id": "01zzz"}, ["run_id"]),
        ({"run_id": "01zzz", "digest": "e-n"}, ["run_id", "arguments"]),
        ({"run_id": None, "digest": "e-n"}, ["arguments"]),
    ],
)
def test_a_request_id_stands_for_one_intent(
    story: Story, run: Run, other: dict[str, Any], conflict: list[str]
) -> None:
    first = story.update(run, request_id="r", digest="d-n")

    with story.refused(RequestIdConflict) as refusal:
        story.update(run, **{"request_id": "r", "digest": "d-n", **other})

    details = refusal.value.details
    assert details["conflict"] == conflict
    assert (details["retained_command_id"], details["retained_command_type"]) == (
        first.update_id,
        "update",
    )


def test_a_signal_may_have_the_same_request_id(story: Story, run: Run) -> None:
    story.update(run, request_id="r")
    story.signal(run)

    assert len(run.inbox) == 2


# The end of the run -----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "terminate", "time out"])
def test_a_run_that_is_stopped_tells_what_became_of_its_updates(story: Story, verb: str) -> None:
    run = story.start(run_timeout_seconds=100)
    story.work(run, condition())
    accepted, waiting = story.update(run), story.update(run)

    if verb == "time out":
        story.later(seconds=100)
    else:
        (story.cancel if verb == "cancel" else story.terminate)(run)

    assert run.is_closed
    told = story.types(run)
    assert told.index("UpdateCompleted") < told.index("UpdateRejected") < len(told) - 1
    failure = story.last(run, "UpdateCompleted")
    assert failure["update_id"] == accepted.update_id
    assert failure["failure_id"]
    assert "UpdateApplied" not in told
    assert story.last(run, "UpdateRejected")["update_id"] == waiting.update_id
    assert story.look_at_update(run, accepted.update_id).status == "failed"
    assert story.look_at_update(run, waiting.update_id).status == "rejected"
    assert run.updates_open == 0


@pytest.mark.parametrize("ending", [complete_run(), fail_run(), continue_as_new()])
def test_code_that_ends_lets_waiting_updates_go(story: Story, run: Run, ending: Command) -> None:
    story.lease(run)
    sent = story.update(run)
    story.signal(run)

    story.complete(run, ending)

    assert story.last(run, "UpdateRejected")["update_id"] == sent.update_id
    assert run.updates_open == 0
    if run.continued_to_run_id is not None:
        successor = story.successor_of(run)
        assert [type(m).__name__ for m in successor.inbox.values()] == ["Signal"]
        assert successor.updates_open == 0


def test_code_that_ends_beside_an_accepted_update_fails_it(story: Story, run: Run) -> None:
    """It stepped back for the task in which the code ended."""
    story.work(run, timer(60))
    sent = story.update(run)
    story.later(seconds=60)

    story.work(run, complete_run())

    assert story.types(run)[-2:] == ["UpdateCompleted", "WorkflowCompleted"]
    assert story.look_at_update(run, sent.update_id).status == "failed"


def test_only_the_last_outcomes_are_kept_with_the_run(story: Story, run: Run) -> None:
    story.work(run, activity())
    sent = []
    for _ in range(limits.ENDED_UPDATES_KEPT + 1):
        sent.append(story.update(run).update_id)
        story.work(run, complete_update(run))

    assert story.look_at_update(run, sent[0]).status == "unknown"
    assert [story.look_at_update(run, update_id).status for update_id in sent[1:]] == [
        "completed"
    ] * limits.ENDED_UPDATES_KEPT
    view = story.look_at_update(run, sent[-1])
    assert view.event is not None
    assert sent[-1].encode() in view.event


# Why it is not moving ---------------------------------------------------------------------------


def test_an_open_update_is_the_cause_of_its_run(story: Story, run: Run) -> None:
    story.work(run, condition())
    sent = story.update(run)

    cause = next_cause(run)
    assert cause is not None
    assert (cause.kind, cause.name, cause.update_id) == ("update", "add", sent.update_id)
    assert "no worker of queue orders that knows order took it" in cause.text

    story.lease(run, "w7")
    cause = next_cause(run)
    assert cause is not None
    assert (cause.owner, cause.attempt) == ("w7", 1)
    assert "worker w7 works on update add until" in cause.text

    story.fail_task(run, "boom")
    cause = next_cause(run)
    assert cause is not None
    assert (cause.kind, cause.last_failure) == ("update", "boom")
    assert "next try at" in cause.text

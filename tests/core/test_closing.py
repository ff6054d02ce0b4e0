"""Closing: what is written last, what is dropped, and what the next run of a chain inherits."""

from collections.abc import Callable

import msgspec
import pytest

from perdure.core.limits import SECOND
from perdure.core.rejection import RunNotActive
from perdure.core.run.lease import TaskState
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.engine.claims import FireDue
from tests.support.clock import START
from tests.support.commands import (
    ARGUMENTS,
    RESULT,
    activity,
    child,
    complete_run,
    condition,
    continue_as_new,
    fail_run,
    in_parallel,
    in_selection,
    signal_wait,
    timer,
)
from tests.support.rule_harness import Story

WORK = in_parallel(activity("a"), timer(500), child(policy="terminate"), activity("b"))


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


# From outside -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "asked", "ended", "status"),
    [
        ("cancel", "CancelRequested", "WorkflowCancelled", RunStatus.CANCELLED),
        ("terminate", "TerminateRequested", "WorkflowTerminated", RunStatus.TERMINATED),
    ],
)
def test_a_stop_is_recorded_from_the_wish_to_the_end(
    story: Story, run: Run, verb: str, asked: str, ended: str, status: RunStatus
) -> None:
    story.work(run, *WORK)
    story.lease_activity(run, 4)
    attempt_id = story.activity(run, 4).attempt_id
    before = run.history_count

    story.cancel(run, "too late") if verb == "cancel" else story.terminate(run, "too late")

    assert story.numbered(run, after=before) == [
        (asked, None),
        ("ActivityCancelled", 1),
        ("ActivityCancelled", 4),
        ("TimerCancelled", 2),
        ("ParentClosePolicyApplied", None),
        (ended, None),
    ]
    wish, _, cancelled, _, _, end = (e.payload for e in story.history(run)[before:])
    assert (wish["command_type"], wish["reason"]) == (verb, "too late")
    assert cancelled["activity_attempt_id"] == attempt_id
    assert cancelled["workflow_command_id"] == wish["workflow_command_id"]
    assert end["workflow_command_id"] == wish["workflow_command_id"]
    assert end["message"] == f"Workflow {status.value}: too late"
    assert (end["reason"], end["closed_reason"]) == ("too late", status.value)
    assert (run.status, run.closed_reason, run.closed_at) == (status, status.value, START)


def test_cancelled_members_of_a_group_keep_their_group(story: Story, run: Run) -> None:
    """Queries replay closed histories, and bind the results of a list by these members."""
    story.work(run, *WORK)

    story.cancel(run)

    for event in story.history(run):
        if event.event_type in ("ActivityCancelled", "TimerCancelled"):
            assert event.payload["parallel_group_id"] == "parallel-calls:1:4"
            assert len(event.payload["parallel_group_path"]) == 1


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_a_stop_without_a_reason(story: Story, run: Run, verb: str) -> None:
    story.cancel(run) if verb == "cancel" else story.terminate(run)

    payload = story.last(run)
    assert "reason" not in payload
    assert payload["message"] == f"Workflow {run.status.value}."


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_a_closed_run_cannot_be_stopped(story: Story, run: Run, verb: str) -> None:
    story.work(run, complete_run())

    with story.refused(RunNotActive):
        story.cancel(run) if verb == "cancel" else story.terminate(run)


# Deadlines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeouts", "kind", "seconds"),
    [
        ({"run_timeout_seconds": 60}, "run_timeout", 60),
        ({"execution_timeout_seconds": 60}, "execution_timeout", 60),
        ({"run_timeout_seconds": 30, "execution_timeout_seconds": 60}, "run_timeout", 30),
        ({"run_timeout_seconds": 60, "execution_timeout_seconds": 60}, "execution_timeout", 60),
    ],
    ids=["run", "execution", "the earlier one", "both"],
)
def test_a_run_past_its_deadline_fails(
    story: Story, run: Run, timeouts: dict[str, int], kind: str, seconds: int
) -> None:
    run = story.start("order-2", **timeouts)
    story.work(run, *WORK)
    before = run.history_count

    story.later(seconds=seconds - 1)
    assert not run.is_closed
    story.later(seconds=1)

    assert story.types(run, after=before) == [
        "ActivityCancelled",
        "ActivityCancelled",
        "TimerCancelled",
        "ParentClosePolicyApplied",
        "WorkflowTimedOut",
    ]
    payload = story.last(run)
    assert payload["timeout_kind"] == kind
    assert payload["message"] == f"Workflow passed its {kind.replace('_', ' ')} of {seconds} s."
    assert (run.status, run.closed_reason) == (RunStatus.FAILED, "timed_out")


def test_a_deadline_reaches_a_run_whose_task_is_leased(story: Story, run: Run) -> None:
    run = story.start("order-2", run_timeout_seconds=30)
    story.lease(run)

    story.later(seconds=30)

    assert run.closed_reason == "timed_out"


# What is left -----------------------------------------------------------------------------------

ENDINGS: dict[str, Callable[[Story, Run], object]] = {
    "completed": lambda story, run: story.complete(run, complete_run()),
    "failed": lambda story, run: story.complete(run, fail_run()),
    "continued": lambda story, run: story.complete(run, continue_as_new()),
    "cancelled": lambda story, run: story.cancel(run),
    "terminated": lambda story, run: story.terminate(run),
    "timed_out": lambda story, run: story.later(seconds=55),
}


@pytest.mark.parametrize("reason", ENDINGS)
def test_a_closed_run_holds_nothing_and_shows_nothing(story: Story, reason: str) -> None:
    run = story.start("order-2", run_timeout_seconds=55)
    story.work(run, *in_selection({"clock": timer(1), "a": activity(), "c": child()}))
    story.later(seconds=1)
    story.lease(run)
    story.signal(run)

    ENDINGS[reason](story, run)

    assert run.closed_reason == reason
    assert run.is_closed
    assert (run.operations, run.groups, run.inbox, run.unapplied) == ({}, {}, {}, [])
    assert (run.task, run.wait, run.due_at, run.releasing) == (None, None, None, [])
    assert story.disk.ready[run.run_id] == set()
    assert story.disk.due_at[run.run_id] is None
    story.crash()
    assert story.runs[run.run_id].operations == {}


@pytest.mark.parametrize("reason", ENDINGS)
def test_a_closed_run_gets_no_further_events(story: Story, reason: str) -> None:
    run = story.start("order-2", run_timeout_seconds=55)
    story.work(run, *in_selection({"clock": timer(1), "a": timer(60), "c": child()}))
    started = story.child_of(run, 3)
    story.later(seconds=1)
    story.lease(run)
    ENDINGS[reason](story, run)
    before = list(run.events)

    story.later(seconds=1000)
    if not started.is_closed:
        story.work(started, complete_run())

    assert run.events == before


def test_firing_a_closed_run_does_nothing(story: Story, run: Run) -> None:
    """A deadline that was read before the run closed may still come."""
    story.work(run, complete_run())

    with story.unchanged():
        story.decide(FireDue(run.run_id))


def test_firing_early_does_nothing(story: Story, run: Run) -> None:
    story.work(run, timer(60), activity(schedule_to_start=30))

    with story.unchanged():
        story.decide(FireDue(run.run_id))


# The next run of a chain --------------------------------------------------------------------------


def test_a_continued_run_hands_over_what_it_has(story: Story) -> None:
    run = story.start(
        business_key="customer-7",
        memo={"note": "gift"},
        search_attributes={"region": "north"},
        execution_timeout_seconds=100,
        run_timeout_seconds=60,
        priority=1,
        fairness_key="tenant",
        fairness_weight=3,
        build_id="build-1",
    )
    story.later(seconds=20)
    story.work(run, continue_as_new())

    successor = story.successor_of(run)
    assert successor.workflow_id == run.workflow_id
    assert (successor.run_number, successor.workflow_type) == (2, "order")
    assert successor.arguments == ARGUMENTS
    for name in (
        "queue", "business_key", "memo", "search_attributes", "priority", "fairness_key",
        "fairness_weight", "build_id", "frame",
    ):  # fmt: skip
        assert getattr(successor, name) == getattr(run, name)
    assert successor.execution_deadline_at == START + 100 * SECOND
    assert successor.run_deadline_at == START + 80 * SECOND
    assert successor.task is not None
    assert successor.task.state is TaskState.READY
    assert (run.status, run.closed_reason) == (RunStatus.COMPLETED, "continued")
    story.later(seconds=60)
    assert successor.closed_reason == "timed_out"


def test_a_continued_run_may_change_its_type_queue_and_arguments(story: Story, run: Run) -> None:
    story.work(run, continue_as_new(arguments=RESULT, queue="other", workflow_type="order-v2"))

    successor = story.successor_of(run)
    assert (successor.workflow_type, successor.queue) == ("order-v2", "other")
    assert story.last(successor)["input"] == msgspec.json.decode(RESULT)


def test_unseen_signals_go_to_the_next_run_in_their_order(story: Story, run: Run) -> None:
    story.work(run, condition("gate"))
    for name in ("seen", "a", "b"):
        story.signal(run, name)
    story.work(run, continue_as_new())
    successor = story.successor_of(run)

    assert [signal.name for signal in successor.inbox.values()] == ["a", "b"]
    story.crash()
    successor = story.runs[successor.run_id]
    story.signal(successor, "c")
    story.work(successor, condition("gate"))
    story.work(successor, condition("gate"))
    story.work(successor, condition("gate"))

    received = [e.payload for e in story.history(successor) if e.event_type == "SignalReceived"]
    assert [payload["signal_name"] for payload in received] == ["a", "b", "c"]
    assert received[0]["workflow_run_id"] == successor.run_id


def test_the_waits_of_the_old_run_end_with_it(story: Story, run: Run) -> None:
    story.work(run, signal_wait("approve"))
    story.signal(run, "approve")

    story.work(run, continue_as_new())

    assert story.types(run)[-2:] == ["SignalApplied", "WorkflowContinuedAsNew"]
    assert story.successor_of(run).inbox == {}


def test_a_second_start_of_the_id_still_finds_the_chain(story: Story, run: Run) -> None:
    story.work(run, continue_as_new())
    successor = story.successor_of(run)

    story.cancel(successor)

    assert successor.status is RunStatus.CANCELLED

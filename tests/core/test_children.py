"""Children: a run of their own, an outcome for their parent, and what becomes of both."""

import msgspec
import pytest

from perdure.core.limits import SECOND
from perdure.core.run.child import child_closed
from perdure.core.run.context import Context
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import Child
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.identity import IdSource
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
    retries,
    timer,
)
from tests.support.rule_harness import Story


@pytest.fixture
def run(story: Story) -> Run:
    return story.start(memo={"note": "gift"}, search_attributes={"region": "north"}, priority=2)


def test_a_child_is_a_run_of_its_own(story: Story, run: Run) -> None:
    story.work(run, child("shipment", queue="trucks", run_timeout_seconds=60))

    started = story.child_of(run, 1)
    assert (started.workflow_type, started.queue, started.priority) == ("shipment", "trucks", 2)
    assert started.workflow_id not in ("", run.workflow_id)
    assert started.memo == run.memo
    assert started.search_attributes == run.search_attributes
    assert started.task is not None
    assert started.task.state is TaskState.READY
    assert story.types(started) == ["WorkflowStarted"]
    payload = story.last(started)
    assert payload["input"] == msgspec.json.decode(ARGUMENTS)
    assert payload["parent_workflow_instance_id"] == run.workflow_id
    assert payload["parent_workflow_run_id"] == run.run_id
    assert payload["parent_sequence"] == 1
    assert payload["child_call_id"] == payload["workflow_link_id"] == started.run_id


def test_a_completed_child_gives_its_parent_the_result(story: Story, run: Run) -> None:
    story.work(run, child("shipment"))
    started = story.child_of(run, 1)

    story.work(started, complete_run(RESULT))

    assert story.types(run)[-1] == "ChildRunCompleted"
    assert story.last(run) == {
        "sequence": 1,
        "workflow_link_id": started.run_id,
        "child_call_id": started.run_id,
        "child_workflow_instance_id": started.workflow_id,
        "child_workflow_run_id": started.run_id,
        "child_workflow_type": "shipment",
        "child_run_number": 1,
        "child_status": "completed",
        "closed_reason": "completed",
        "closed_at": "2026-01-01T00:00:00.000000Z",
        "output": msgspec.json.decode(RESULT),
        "payload_codec": "avro",
    }
    assert run.task is not None
    assert run.task.resume["child_workflow_run_id"] == started.run_id
    assert run.operations == {}


def test_a_child_without_a_result_gives_null(story: Story, run: Run) -> None:
    story.work(run, child())

    story.work(story.child_of(run, 1), complete_run(None))

    assert story.last(run)["output"] is None


def test_a_failed_child_tells_its_parent_why(story: Story, run: Run) -> None:
    story.work(run, child())
    started = story.child_of(run, 1)

    story.work(started, fail_run("lost", exception_type="Lost"))

    payload = story.last(run)
    assert story.types(run)[-1] == "ChildRunFailed"
    assert (payload["message"], payload["exception_type"]) == ("lost", "Lost")
    assert (payload["exception_class"], payload["child_status"]) == ("Lost", "failed")
    assert payload["failure_category"] == "application"
    assert run.task is not None


@pytest.mark.parametrize(
    ("ending", "event", "message"),
    [
        ("cancel", "ChildRunCancelled", "Workflow cancelled: enough"),
        ("terminate", "ChildRunTerminated", "Workflow terminated: enough"),
        ("time out", "ChildRunFailed", "Workflow passed its run timeout of 60 s."),
    ],
)
def test_a_child_that_is_stopped_tells_its_parent(
    story: Story, run: Run, ending: str, event: str, message: str
) -> None:
    story.work(run, child(run_timeout_seconds=60))
    started = story.child_of(run, 1)

    if ending == "cancel":
        story.cancel(started, "enough")
    elif ending == "terminate":
        story.terminate(started, "enough")
    else:
        story.later(seconds=60)

    assert story.types(run)[-1] == event
    assert story.last(run)["message"] == message
    assert run.task is not None


def test_a_group_waits_for_all_its_children(story: Story, run: Run) -> None:
    story.work(run, *in_parallel(child("a"), child("b")))

    story.work(story.child_of(run, 2), complete_run())
    assert run.task is None
    story.work(story.child_of(run, 1), fail_run())

    assert run.task is not None


# Retrying ---------------------------------------------------------------------------------------


def test_a_failed_child_is_tried_again_under_the_same_id(story: Story, run: Run) -> None:
    story.work(run, child(retry=retries(2, 10)))
    first = story.child_of(run, 1)
    story.work(first, fail_run())

    again = story.child_of(run, 1)
    assert (again.workflow_id, again.run_number) == (first.workflow_id, 2)
    assert again.continued_from_run_id is None
    payload = story.last(run)
    assert story.types(run)[-1] == "ChildRunStarted"
    assert payload["child_workflow_run_id"] == again.run_id
    assert payload["child_call_id"] == first.run_id
    assert payload["child_run_number"] == payload["retry_attempt"] == 2
    assert payload["retry_of_child_workflow_run_id"] == first.run_id
    assert payload["retry_backoff_seconds"] == 10
    assert story.last(again)["retry_attempt"] == 2
    assert story.last(again)["input"] == msgspec.json.decode(ARGUMENTS)
    assert run.task is None
    assert story.disk.ready[again.run_id] == set()
    story.later(seconds=10)
    story.work(again, complete_run())
    assert story.types(run)[-1] == "ChildRunCompleted"
    assert story.last(run)["child_workflow_run_id"] == again.run_id


def test_children_are_tried_as_often_as_their_policy_says(story: Story, run: Run) -> None:
    story.work(run, child(retry=retries(3)))

    for _ in range(3):
        story.work(story.child_of(run, 1), fail_run())

    types = story.types(run, after=2)
    assert types.count("ChildRunStarted") == 3
    assert types[-1] == "ChildRunFailed"


@pytest.mark.parametrize("why", ["said so", "by its type", "cancelled", "execution deadline"])
def test_some_children_are_not_tried_again(story: Story, run: Run, why: str) -> None:
    policy = retries(5, non_retryable=["Fatal"])
    story.work(run, child(retry=policy, execution_timeout_seconds=60))
    started = story.child_of(run, 1)

    if why == "said so":
        story.work(started, fail_run(non_retryable=True))
    elif why == "by its type":
        story.work(started, fail_run(exception_type="Fatal"))
    elif why == "cancelled":
        story.cancel(started)
    else:
        story.later(seconds=60)

    assert story.types(run)[-1] in ("ChildRunFailed", "ChildRunCancelled")
    assert story.types(run).count("ChildRunStarted") == 1


def test_the_execution_deadline_spans_all_tries_and_the_run_deadline_none(
    story: Story, run: Run
) -> None:
    story.work(run, child(retry=retries(5), execution_timeout_seconds=100, run_timeout_seconds=30))
    first = story.child_of(run, 1)

    story.later(seconds=30)

    again = story.child_of(run, 1)
    assert again is not first
    assert again.execution_deadline_at == first.execution_deadline_at
    assert again.run_deadline_at == story.clock.now() + 30 * SECOND
    story.later(seconds=70)
    assert story.types(run)[-1] == "ChildRunFailed"


def test_the_run_deadline_of_a_further_try_begins_behind_its_backoff(
    story: Story, run: Run
) -> None:
    """With a backoff longer than the time-out every try but the first was over before it began."""
    policy = retries(2, 60)
    story.work(run, child(retry=policy, execution_timeout_seconds=300, run_timeout_seconds=30))
    first = story.child_of(run, 1)

    story.work(first, fail_run())

    again = story.child_of(run, 1)
    assert again.run_deadline_at == story.clock.now() + 90 * SECOND
    assert again.execution_deadline_at == first.execution_deadline_at
    story.later(seconds=80)
    story.work(again, complete_run())
    assert story.types(run)[-1] == "ChildRunCompleted"


# Chains -----------------------------------------------------------------------------------------


def test_a_parent_waits_for_the_end_of_the_chain(story: Story, run: Run) -> None:
    story.work(run, child())
    first = story.child_of(run, 1)
    story.work(first, continue_as_new())

    second = story.child_of(run, 1)
    assert second.continued_from_run_id == first.run_id
    payload = story.last(run)
    assert story.types(run)[-1] == "ChildRunStarted"
    assert (payload["child_workflow_run_id"], payload["child_run_number"]) == (second.run_id, 2)
    assert payload["child_call_id"] == first.run_id
    assert run.task is None
    story.work(second, continue_as_new())
    story.work(story.child_of(run, 1), complete_run())

    assert story.types(run).count("ChildRunCompleted") == 1
    assert run.task is not None


def test_a_link_of_the_chain_that_is_over_tells_the_parent_nothing(story: Story, run: Run) -> None:
    story.work(run, child())
    first = story.child_of(run, 1)
    story.work(first, continue_as_new())

    with story.unchanged():
        child_closed(run, Context(story.clock.now(), IdSource(story.clock.now, 2)), first, RESULT)


# The parent closes first ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["completes", "fails", "is cancelled", "is terminated"])
@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (None, RunStatus.PENDING),
        ("abandon", RunStatus.PENDING),
        ("request_cancel", RunStatus.CANCELLED),
        ("terminate", RunStatus.TERMINATED),
    ],
)
def test_the_policy_says_what_becomes_of_an_open_child(
    story: Story, run: Run, ending: str, policy: str | None, status: RunStatus
) -> None:
    story.work(run, child(policy=policy))
    started = story.child_of(run, 1)

    if ending == "completes":
        story.wake(run)
        story.work(run, complete_run())
    elif ending == "fails":
        story.wake(run)
        story.work(run, fail_run())
    elif ending == "is cancelled":
        story.cancel(run)
    else:
        story.terminate(run)

    assert started.status is status
    applied = [e for e in story.history(run) if e.event_type == "ParentClosePolicyApplied"]
    assert [e.payload["policy"] for e in applied] == (
        [] if status is RunStatus.PENDING else [policy]
    )
    assert story.types(run)[-1].startswith("Workflow"), "the terminal event is the last one"


def test_a_closing_parent_reaches_the_grandchildren(story: Story, run: Run) -> None:
    story.work(run, child(policy="terminate"))
    middle = story.child_of(run, 1)
    story.work(middle, child(policy="request_cancel"))
    last = story.child_of(middle, 1)

    story.terminate(run)

    assert (middle.status, last.status) == (RunStatus.TERMINATED, RunStatus.CANCELLED)


def test_the_policy_reaches_the_newest_run_of_a_chain(story: Story, run: Run) -> None:
    story.work(run, child(policy="terminate"))
    story.work(story.child_of(run, 1), continue_as_new())
    newest = story.child_of(run, 1)

    story.terminate(run)

    assert newest.status is RunStatus.TERMINATED


def test_continuing_as_new_does_not_apply_the_policy(story: Story, run: Run) -> None:
    story.work(run, child(policy="terminate"))
    started = story.child_of(run, 1)
    story.wake(run)

    story.work(run, continue_as_new())

    assert started.status is RunStatus.PENDING


def test_a_child_that_outlives_its_parent_ends_without_a_word(story: Story, run: Run) -> None:
    story.work(run, child())
    started = story.child_of(run, 1)
    story.cancel(run)
    before = story.types(run)

    story.work(started, complete_run())

    assert story.types(run) == before
    assert started.status is RunStatus.COMPLETED


def test_a_child_that_ended_is_left_alone(story: Story, run: Run) -> None:
    story.work(run, child(policy="terminate"))
    started = story.child_of(run, 1)
    story.work(started, complete_run())

    story.terminate(run)

    assert started.status is RunStatus.COMPLETED
    assert "ParentClosePolicyApplied" not in story.types(run)


def test_a_child_that_ended_while_its_parent_was_replayed_is_left_alone(
    story: Story, run: Run
) -> None:
    """Its outcome waits for the replay to end; the policy finds no child to close."""
    story.work(run, child(policy="terminate"), condition("done"))
    story.signal(run)
    story.lease(run)
    story.work(story.child_of(run, 1), complete_run())

    story.complete(run, complete_run())

    assert run.status is RunStatus.COMPLETED
    assert "ParentClosePolicyApplied" not in story.types(run)


def test_a_family_is_the_same_after_a_crash(story: Story, run: Run) -> None:
    story.work(run, child(retry=retries(2)))
    story.work(story.child_of(run, 1), fail_run())
    story.crash()
    run = story.runs[run.run_id]
    operation = run.operations[1]
    assert isinstance(operation, Child)
    assert (operation.attempt, operation.run_number) == (2, 2)

    story.work(story.child_of(run, 1), timer(1))
    story.later(seconds=1)
    story.work(story.child_of(run, 1), condition())
    story.cancel(story.child_of(run, 1))

    assert story.types(run)[-1] == "ChildRunCancelled"
    story.work(run, activity())
    assert story.numbered(run)[-1] == ("ActivityScheduled", 2)

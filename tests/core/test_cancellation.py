"""Cooperative cancellation: a request, the call at which it is delivered, and what follows."""

from typing import Any

import msgspec
import pytest

from perdure.core.limits import SECOND
from perdure.core.rejection import (
    AttemptNotFound,
    CancellationAlreadyDelivered,
    CancellationRequestNotFound,
    CooperativeCancellationUnavailable,
    InvalidCancellationBoundary,
    LeaseOwnerMismatch,
    RunNotActive,
    StaleAttempt,
    TaskNotLeased,
)
from perdure.core.run.cause import next_cause
from perdure.core.run.command import Command
from perdure.core.run.completion import WAITING_FOR_HISTORY
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.core.run.task import task_name
from tests.support.commands import (
    activity,
    child,
    complete_run,
    condition,
    continue_as_new,
    fail_run,
    in_parallel,
    in_selection,
    local_activity,
    retries,
    side_effect,
    timer,
)
from tests.support.rule_harness import Story, ref_of, report_of

WAIT = "wait_cancellation_completed"
DELIVERED = "CooperativeCancellationDelivered"
REQUESTED = "CooperativeCancellationRequested"


def waiting_run(story: Story, *commands: Command) -> Run:
    """A run that was asked to cancel itself while its code waits at these commands."""
    run = story.start()
    if commands:
        story.work(run, *commands)
    else:
        story.lease(run)
        story.fail_task(run, failure_type=WAITING_FOR_HISTORY)
    story.request_cancellation(run)
    story.lease_validation(run)
    return run


# The request --------------------------------------------------------------------------------------


def test_a_request_wakes_the_run_under_a_name_that_only_capable_workers_know(story: Story) -> None:
    run = story.start()
    story.work(run, timer(3600))

    told = story.request_cancellation(run, reason="enough", seconds=60)

    assert story.types(run)[-1] == REQUESTED
    payload = story.last(run)
    assert payload["workflow_command_id"] == told.observation.request_id
    assert payload["cleanup_deadline_at"] == "2026-01-01T00:01:00.000000Z"
    context = payload["cancellation"]
    assert context["lineage"] == [
        {
            "request_id": told.observation.request_id,
            "workflow_instance_id": "order-1",
            "workflow_run_id": run.run_id,
        }
    ]
    assert context["root_request_id"] == context["request_id"] == told.observation.request_id
    assert run.task is not None
    assert task_name(run) != "order"


def test_a_second_request_finds_the_first_also_when_the_run_is_over(story: Story) -> None:
    run = story.start()
    first = story.request_cancellation(run, seconds=60)
    with story.unchanged():
        again = story.request_cancellation(run, reason="really", seconds=3600)
    assert (again.observation, again.duplicate) == (first.observation, True)

    story.later(seconds=60)

    assert run.status is RunStatus.CANCELLED
    with story.unchanged():
        assert story.request_cancellation(run).observation == first.observation


def test_a_closed_run_that_was_never_asked_refuses(story: Story) -> None:
    run = story.start()
    story.work(run, complete_run())
    with story.refused(RunNotActive):
        story.request_cancellation(run)


def test_a_request_waits_while_a_worker_replays(story: Story) -> None:
    run = story.start()
    story.lease(run)

    story.request_cancellation(run)
    assert story.types(run)[-1] == "WorkflowStarted"
    story.complete(run, timer(60))

    assert story.types(run)[-2:] == ["TimerScheduled", REQUESTED]
    assert run.task is not None


def test_nothing_enters_history_between_a_request_and_the_worker_that_sees_it(
    story: Story,
) -> None:
    run = story.start()
    story.work(run, *in_selection({"work": activity(), "alarm": timer(3600)}))
    story.lease_activity(run, 1)
    story.request_cancellation(run)

    story.complete_activity(run, 1)
    assert story.types(run)[-1] == REQUESTED

    story.lease_validation(run)
    assert story.deliver_cancellation(run, "parallel", 1, span=2).waiting is None
    assert "SelectionResolved" not in story.types(run)
    assert story.types(run)[-3:] == ["ActivityCompleted", "TimerCancelled", DELIVERED]


def test_a_worker_that_does_not_deliver_lets_the_others_in(story: Story) -> None:
    run = story.start()
    story.work(run, *in_selection({"work": activity(), "alarm": timer(3600)}))
    story.lease_activity(run, 1)
    story.request_cancellation(run)
    story.complete_activity(run, 1)

    story.lease_validation(run)
    story.fail_task(run, failure_type=WAITING_FOR_HISTORY)

    assert story.types(run)[-2:] == ["ActivityCompleted", "SelectionResolved"]
    assert run.task is not None


def test_what_the_code_did_before_the_call_brings_it_back(story: Story) -> None:
    """A worker commits markers first; only another task lets it deliver behind them."""
    run = story.start()
    story.request_cancellation(run)
    story.lease_validation(run)
    story.complete(run, side_effect(), local_activity())

    assert run.task is not None
    story.lease_validation(run)
    story.deliver_cancellation(run, "timer", 3)
    assert run.next_sequence == 4


def test_a_request_that_was_not_delivered_goes_on_with_the_chain(story: Story) -> None:
    run = story.start()
    story.lease(run)
    told = story.request_cancellation(run)
    story.complete(run, continue_as_new())

    successor = story.successor_of(run)
    assert successor.cancellation is not None
    assert successor.cancellation.request_id == told.observation.request_id
    assert story.types(successor)[-1] == REQUESTED
    lineage = story.last(successor)["cancellation"]["lineage"]
    assert [entry["workflow_run_id"] for entry in lineage] == [successor.run_id]


def test_plain_input_is_read_before_the_request_is_recorded(story: Story) -> None:
    run = story.start(plain=b'["a"]')
    story.request_cancellation(run)
    assert story.types(run) == ["StartAccepted", "WorkflowStarted"]

    story.lease(run, sdk_version="durable-workflow-python/0.4.106")
    story.complete(run, timer(60))

    assert story.types(run)[-1] == REQUESTED


# The delivery -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commands", "kind", "event_types"),
    [
        ([timer(3600)], "timer", ["TimerCancelled"]),
        ([activity()], "activity", ["ActivityCancelled"]),
        ([activity(cancellation_policy=WAIT)], "activity", ["ActivityCancelled"]),
        ([condition()], "condition", []),
        ([condition(timeout=60)], "condition", ["TimerCancelled"]),
        ([child()], "child", []),
        ([child(cancellation_policy="try_cancel")], "child", []),
    ],
)
def test_the_code_is_interrupted_where_it_stands(
    story: Story, commands: list[Command], kind: str, event_types: list[str]
) -> None:
    run = waiting_run(story, *commands)
    before = run.history_count

    assert story.deliver_cancellation(run, kind, 1).waiting is None

    assert story.types(run, after=before) == [*event_types, DELIVERED]
    story.complete(run, timer(5))
    assert story.numbered(run)[-1] == ("TimerScheduled", 2)
    story.later(seconds=5)
    story.lease_validation(run)
    story.complete(run, complete_run())
    assert run.status is RunStatus.COMPLETED


def test_a_delivery_says_where_and_takes_the_numbers_of_its_call(story: Story) -> None:
    run = waiting_run(story)
    story.deliver_cancellation(run, "parallel", 1, span=7)

    assert run.cancellation is not None
    assert story.last(run) == {
        "workflow_command_id": run.cancellation.request_id,
        "workflow_instance_id": "order-1",
        "workflow_run_id": run.run_id,
        "sequence": 1,
        "call_kind": "parallel",
        "sequence_span": 7,
        "operation_sequence_span": 1,
    }
    story.complete(run, timer(5))
    assert story.last(run)["sequence"] == 8


def test_repeating_a_delivery_changes_nothing_and_another_call_is_refused(story: Story) -> None:
    run = waiting_run(story, timer(3600))
    first = story.deliver_cancellation(run, "timer", 1)
    with story.unchanged():
        assert story.deliver_cancellation(run, "timer", 1) == first
    with story.refused(CancellationAlreadyDelivered):
        story.deliver_cancellation(run, "timer", 2)


def test_a_wait_that_was_opened_again_is_interrupted_at_its_last_opening(story: Story) -> None:
    run = story.start()
    story.work(run, condition())
    for _ in range(3):
        story.signal(run)
        story.work(run, condition())
    story.request_cancellation(run)

    assert story.numbered(run)[-4:] == [
        ("TimerCancelled", 1),
        ("TimerCancelled", 2),
        ("TimerCancelled", 3),
        (REQUESTED, None),
    ]
    story.lease_validation(run)
    with story.refused(InvalidCancellationBoundary):
        story.deliver_cancellation(run, "condition", 1)
    story.deliver_cancellation(run, "condition", 4)
    assert run.wait is None


def test_a_wait_that_the_code_has_passed_is_satisfied_before_the_next_call(story: Story) -> None:
    """Behind a shield the code passes its wait, and is interrupted at the call that follows."""
    run = waiting_run(story, condition())
    story.deliver_cancellation(run, "timer", 2)
    assert story.types(run)[-2:] == ["ConditionWaitSatisfied", DELIVERED]


def test_an_interrupted_list_cancels_what_is_open_and_keeps_what_ended(story: Story) -> None:
    run = story.start()
    story.work(run, *in_parallel(activity(), timer(3600), [child(), activity()]))
    story.do_activity(run, 1)
    story.request_cancellation(run)
    story.lease_validation(run)
    before = run.history_count

    story.deliver_cancellation(run, "parallel", 1, span=4)

    assert story.numbered(run, after=before) == [
        ("TimerCancelled", 2),
        ("ActivityCancelled", 4),
        (DELIVERED, 1),
    ]
    assert run.groups == {}
    assert [operation.detached for operation in run.operations.values()] == [True]


def reopened(story: Story) -> Run:
    """Its worker knows of requests; its code asked three times for a condition."""
    run = story.start()
    for _ in range(3):
        story.lease_validation(run)
        story.complete(run, condition(timeout=30))
        story.signal(run)
    story.lease_validation(run)
    return run


def test_earlier_openings_of_a_satisfied_wait_are_told_to_be_over(story: Story) -> None:
    """The SDK would deliver a later request at the first opening that has no end."""
    run = reopened(story)
    story.complete(run, timer(3600))

    assert story.numbered(run)[-5:] == [
        ("ConditionWaitSatisfied", 3),
        ("TimerCancelled", 3),
        ("TimerCancelled", 1),
        ("TimerCancelled", 2),
        ("TimerScheduled", 4),
    ]
    story.request_cancellation(run)
    story.lease_validation(run)
    story.deliver_cancellation(run, "timer", 4)


def test_earlier_openings_of_a_wait_that_timed_out_are_told_to_be_over(story: Story) -> None:
    run = reopened(story)
    story.complete(run, condition(timeout=30))
    story.later(seconds=30)

    assert story.numbered(run)[-4:] == [
        ("ConditionWaitTimedOut", 4),
        ("TimerCancelled", 1),
        ("TimerCancelled", 2),
        ("TimerCancelled", 3),
    ]


def test_a_capable_worker_that_finds_a_wait_open_makes_it_its_own(story: Story) -> None:
    run = story.start()
    for _ in range(2):
        story.work(run, condition(timeout=30))
        story.signal(run)
    story.work(run, condition(timeout=30))
    story.wake(run)
    story.lease_validation(run)
    story.complete(run, condition(timeout=30))
    story.crash()
    run = story.runs[run.run_id]
    story.later(seconds=30)

    assert story.numbered(run)[-3:] == [
        ("ConditionWaitTimedOut", 3),
        ("TimerCancelled", 1),
        ("TimerCancelled", 2),
    ]


def test_a_wait_that_was_opened_once_is_over_with_its_end(story: Story) -> None:
    run = story.start()
    story.lease_validation(run)
    story.complete(run, condition(timeout=30))
    story.later(seconds=30)

    assert story.types(run)[-1] == "ConditionWaitTimedOut"


def test_the_wait_for_a_loser_is_interrupted_and_takes_a_number(story: Story) -> None:
    run = story.start()
    story.work(run, *in_selection({"quick": activity(), "slow": timer(3600)}))
    story.do_activity(run, 1)
    story.work(run)
    story.request_cancellation(run)
    story.lease_validation(run)

    story.deliver_cancellation(run, "selection_handle", 3, operation=(2, 1))

    assert story.types(run)[-2:] == ["TimerCancelled", DELIVERED]
    assert (run.next_sequence, run.groups, run.operations) == (4, {}, {})


def test_the_loser_may_be_the_first_of_its_selection(story: Story) -> None:
    """What began with it is decided; it is not."""
    run = story.start()
    slow = [timer(3600), activity(), timer(3600)]
    story.work(run, *in_selection({"slow": slow, "quick": activity()}))
    story.do_activity(run, 4)
    story.work(run)
    story.request_cancellation(run)
    story.lease_validation(run)

    story.deliver_cancellation(run, "selection_handle", 5, operation=(1, 3))

    assert story.types(run)[-4:] == [
        "TimerCancelled",
        "ActivityCancelled",
        "TimerCancelled",
        DELIVERED,
    ]
    assert (run.next_sequence, run.groups, run.operations) == (6, {}, {})


def test_a_loser_that_ended_before_the_request_is_not_interrupted(story: Story) -> None:
    run = story.start()
    story.work(run, *in_selection({"late": activity(), "quick": activity()}))
    story.do_activity(run, 2)
    story.work(run)
    story.do_activity(run, 1)
    story.request_cancellation(run)
    story.lease_validation(run)
    with story.refused(InvalidCancellationBoundary):
        story.deliver_cancellation(run, "selection_handle", 3, operation=(1, 1))


@pytest.mark.parametrize(
    "call",
    [
        {"call_kind": "timer", "sequence": 2},
        {"call_kind": "timer", "sequence": 3},
        {"call_kind": "activity", "sequence": 1},
        {"call_kind": "condition", "sequence": 1},
        {"call_kind": "local_activity", "sequence": 1},
        {"call_kind": "service_operation", "sequence": 1},
        {"call_kind": "parallel", "sequence": 1},
        {"call_kind": "parallel", "sequence": 1, "span": 2},
        {"call_kind": "selection_handle", "sequence": 1, "operation": (1, 1)},
        {"call_kind": "selection_handle", "sequence": 2, "operation": (2, 1)},
    ],
)
def test_a_call_at_which_the_code_cannot_stand_is_refused(
    story: Story, call: dict[str, Any]
) -> None:
    run = waiting_run(story, timer(3600))
    with story.refused(InvalidCancellationBoundary):
        story.deliver_cancellation(run, **call)


def test_what_ended_before_the_request_stands(story: Story) -> None:
    run = story.start()
    story.work(run, activity())
    story.do_activity(run, 1)
    story.request_cancellation(run)
    story.lease_validation(run)
    with story.refused(InvalidCancellationBoundary):
        story.deliver_cancellation(run, "activity", 1)
    story.deliver_cancellation(run, "timer", 2)


def test_a_list_with_a_failure_from_before_the_request_is_not_interrupted(story: Story) -> None:
    run = story.start()
    story.work(run, *in_parallel(activity(), timer(3600)))
    story.lease_activity(run, 1)
    story.fail_activity(run, 1)
    story.request_cancellation(run)
    story.lease_validation(run)
    with story.refused(InvalidCancellationBoundary):
        story.deliver_cancellation(run, "parallel", 1, span=2)


def test_only_the_worker_of_the_task_delivers_and_only_one_that_was_asked(story: Story) -> None:
    run = story.start()
    story.work(run, timer(3600))
    story.request_cancellation(run)
    with story.refused(TaskNotLeased):
        story.deliver_cancellation(run, "timer", 1)
    story.lease(run)
    with story.refused(CooperativeCancellationUnavailable):
        story.deliver_cancellation(run, "timer", 1)
    with story.refused(CancellationRequestNotFound):
        story.deliver_cancellation(run, "timer", 1, request_id="another")


def test_an_update_is_no_place_to_deliver(story: Story) -> None:
    run = story.start()
    story.work(run, condition())
    story.update(run)
    story.lease_validation(run)
    story.request_cancellation(run)
    with story.refused(InvalidCancellationBoundary):
        story.deliver_cancellation(run, "condition", 1)


# Work that is stopped or detached -----------------------------------------------------------------


def test_the_worker_of_a_cancelled_activity_is_informed_and_confirms_the_stop(story: Story) -> None:
    run = story.start()
    story.work(run, activity(retry=retries(5)))
    story.lease_activity(run, 1, "w7")
    ref = ref_of(run, 1)
    story.request_cancellation(run)
    story.lease_validation(run)
    with story.refused(AttemptNotFound):
        story.acknowledge_stop(run, ref)
    story.deliver_cancellation(run, "activity", 1)

    view = story.ask_activity(ref)
    assert (view.can_continue, view.cancel_requested) == (False, True)
    assert view.reason == "cancellation_requested"
    assert view.acknowledgement is not None
    assert view.acknowledgement.is_stopped is False
    with story.refused(StaleAttempt):
        story.complete_activity(run, 1, ref=ref)
    with story.refused(LeaseOwnerMismatch):
        story.acknowledge_stop(run, msgspec.structs.replace(ref, owner="w8"))
    assert story.acknowledge_stop(run, ref).duplicate is False
    with story.unchanged():
        assert story.acknowledge_stop(run, ref).duplicate is True
    view = story.ask_activity(ref)
    assert view.acknowledgement is not None
    assert view.acknowledgement.is_stopped is True


def test_the_code_may_wait_until_an_activity_has_stopped(story: Story) -> None:
    run = story.start()
    story.work(run, activity(cancellation_policy=WAIT, retry=retries(5)))
    story.lease_activity(run, 1)
    ref = ref_of(run, 1)
    story.request_cancellation(run)
    story.lease_validation(run)
    report = report_of(run)

    told = story.deliver_cancellation(run, "activity", 1)

    assert told.waiting == "cancellation_waiting_for_activity"
    assert run.task is None
    with story.unchanged():
        assert story.deliver_cancellation(run, "activity", 1, report=report) == told
    with story.refused(TaskNotLeased):
        story.complete(run, complete_run(), report=report)
    assert not story.heartbeat(run, 1).can_continue
    story.acknowledge_stop(run, ref)
    assert story.types(run)[-1] == "ActivityCancelled"
    story.lease_validation(run)
    assert story.deliver_cancellation(run, "activity", 1).waiting is None


@pytest.mark.parametrize(
    ("end", "event_type"),
    [
        ("completes", "ActivityCompleted"),
        ("fails", "ActivityFailed"),
        ("is silent", "ActivityCancelled"),
    ],
)
def test_an_activity_that_is_waited_for_has_no_further_attempt(
    story: Story, end: str, event_type: str
) -> None:
    run = story.start()
    story.work(run, activity(cancellation_policy=WAIT, retry=retries(5)))
    story.lease_activity(run, 1)
    story.request_cancellation(run, seconds=3600)
    story.lease_validation(run)
    story.deliver_cancellation(run, "activity", 1)

    if end == "completes":
        story.complete_activity(run, 1)
    elif end == "fails":
        story.fail_activity(run, 1)
    else:
        story.later(seconds=301)

    assert story.types(run)[-1] == event_type
    assert run.task is not None


def test_an_abandoned_activity_continues_and_wakes_no_worker(story: Story) -> None:
    policy = {"cancellation_policy": "abandon", "schedule_to_close": 600}
    run = story.start()
    story.work(run, activity(**policy))  # type: ignore[arg-type]  # a time-out among them
    story.lease_activity(run, 1)
    story.request_cancellation(run)
    story.lease_validation(run)
    story.deliver_cancellation(run, "activity", 1)
    story.complete(run, condition())

    assert story.heartbeat(run, 1).can_continue
    story.complete_activity(run, 1)

    assert story.types(run)[-1] == "ActivityCompleted"
    assert run.task is None
    assert run.wait == 2


def test_the_request_reaches_a_child_with_the_budget_of_its_parent(story: Story) -> None:
    run = waiting_run(story, child(cancellation_policy="try_cancel"))
    started = story.child_of(run, 1)
    story.deliver_cancellation(run, "child", 1)

    asked, passed = run.cancellation, started.cancellation
    assert asked is not None
    assert passed is not None
    assert (passed.deadline_at, passed.requested_at) == (asked.deadline_at, asked.requested_at)
    assert passed.root_request_id == asked.request_id != passed.request_id
    lineage = story.last(started, REQUESTED)["cancellation"]["lineage"]
    assert [entry["request_id"] for entry in lineage] == [asked.request_id, passed.request_id]


def test_the_code_may_wait_until_a_child_has_tidied_up(story: Story) -> None:
    run = waiting_run(
        story, *in_selection({"child": child(cancellation_policy=WAIT), "t": timer(9)})
    )
    started = story.child_of(run, 1)

    told = story.deliver_cancellation(run, "parallel", 1, span=2)
    assert told.waiting == "cancellation_waiting_for_child"
    story.lease_validation(started)
    story.complete(started, complete_run())

    assert story.types(run)[-1] == "ChildRunCompleted"
    story.lease_validation(run)
    assert story.deliver_cancellation(run, "parallel", 1, span=2).waiting is None
    assert "SelectionResolved" not in story.types(run)


def test_a_parent_may_ask_its_children_to_cancel_when_it_closes(story: Story) -> None:
    run = story.start()
    story.work(run, child(policy="request_cancellation"))
    started = story.child_of(run, 1)
    story.cancel(run)

    assert started.status is RunStatus.PENDING
    assert story.types(started)[-1] == REQUESTED
    assert story.last(started)["cancellation"]["source"] == "parent_close"


# The end ------------------------------------------------------------------------------------------


def test_a_request_that_the_code_does_not_catch_cancels_the_run(story: Story) -> None:
    run = waiting_run(story, timer(3600))
    story.deliver_cancellation(run, "timer", 1)
    story.complete(run, fail_run(exception_type="WorkflowCancelled"))

    assert run.status is RunStatus.CANCELLED
    assert story.types(run)[-1] == "WorkflowCancelled"
    assert story.last(run)["reason"] == "enough"
    assert "CancelRequested" not in story.types(run)


def test_a_failure_that_only_looks_like_a_cancellation_is_one(story: Story) -> None:
    run = story.start()
    story.work(run, fail_run(exception_type="WorkflowCancelled"))
    assert run.status is RunStatus.FAILED


@pytest.mark.parametrize("delivered", [True, False])
def test_the_deadline_of_the_clean_up_ends_the_run_and_is_its_cause(
    story: Story, delivered: bool
) -> None:
    run = waiting_run(story, activity())
    if delivered:
        story.deliver_cancellation(run, "activity", 1)
    asked = run.cancellation
    assert asked is not None
    cause = next_cause(run)
    assert cause is not None
    assert cause.request_id == asked.request_id
    assert cause.until is not None
    assert cause.until <= asked.deadline_at == story.clock.now() + 60 * SECOND

    story.later(seconds=60)

    assert run.status is RunStatus.CANCELLED
    assert "deadline" in story.last(run)["reason"]
    assert story.last(run)["workflow_command_id"] == asked.request_id


def test_a_run_that_only_waits_is_ended_by_its_deadline(story: Story) -> None:
    run = waiting_run(story, timer(3600))
    story.deliver_cancellation(run, "timer", 1)
    story.complete(run, condition())
    cause = next_cause(run)
    assert cause is not None
    assert (cause.kind, cause.until) == ("condition", story.clock.now() + 60 * SECOND)

"""Each command of a worker, and exactly the events that it becomes."""

from typing import Any

import msgspec
import pytest

from perdure.core.payload import decode
from perdure.core.rejection import InvalidCommands
from perdure.core.run.command import Command, RecordVersionMarker
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from tests.support.commands import (
    ARGUMENTS,
    RESULT,
    activity,
    attributes,
    child,
    complete_run,
    condition,
    continue_as_new,
    fail_run,
    in_parallel,
    local_activity,
    memo,
    side_effect,
    signal_wait,
    timer,
    version_marker,
)
from tests.support.rule_harness import Story

JSON_ARGUMENTS = msgspec.json.decode(ARGUMENTS)
JSON_RESULT = msgspec.json.decode(RESULT)


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


def _new(story: Story, run: Run) -> list[tuple[str, dict[str, Any]]]:
    return [(event.event_type, event.payload) for event in story.history(run)[2:]]


def test_schedule_activity(story: Story, run: Run) -> None:
    story.work(run, activity("charge", queue="cards", cancellation_policy="try_cancel"))

    assert _new(story, run) == [
        (
            "ActivityScheduled",
            {
                "sequence": 1,
                "activity_execution_id": story.activity(run, 1).execution_id,
                "activity_type": "charge",
                "cancellation_policy": "try_cancel",
                "activity": {"queue": "cards", "arguments": JSON_ARGUMENTS},
            },
        )
    ]


def test_an_activity_without_options_records_none(story: Story, run: Run) -> None:
    story.work(run, activity("charge"))

    assert set(story.last(run)) == {
        "sequence",
        "activity_execution_id",
        "activity_type",
        "activity",
    }
    assert story.last(run)["activity"]["queue"] == "orders"


def test_start_timer_and_its_firing(story: Story, run: Run) -> None:
    story.work(run, timer(90))
    story.later(seconds=90)

    timer_id = story.last(run, "TimerScheduled")["timer_id"]
    scheduled = {
        "sequence": 1,
        "timer_id": timer_id,
        "delay_seconds": 90,
        "fire_at": "2026-01-01T00:01:30.000000Z",
    }
    assert _new(story, run) == [
        ("TimerScheduled", scheduled),
        ("TimerFired", {**scheduled, "fired_at": "2026-01-01T00:01:30.000000Z"}),
    ]


def test_a_timer_of_no_length_is_scheduled_and_fires(story: Story, run: Run) -> None:
    story.work(run, timer(0))
    story.later(seconds=0)

    assert story.numbered(run, after=2) == [("TimerScheduled", 1), ("TimerFired", 1)]
    assert run.task is not None


def test_a_timer_never_fires_early(story: Story, run: Run) -> None:
    story.work(run, timer(10))

    story.later(seconds=9.999999)

    assert story.types(run)[-1] == "TimerScheduled"


def test_start_child_workflow(story: Story, run: Run) -> None:
    story.work(
        run,
        child(
            "shipment",
            policy="terminate",
            cancellation_policy="abandon",
            execution_timeout_seconds=600,
            run_timeout_seconds=60,
        ),
    )

    started = story.child_of(run, 1)
    identity = {
        "sequence": 1,
        "workflow_link_id": started.run_id,
        "child_call_id": started.run_id,
        "child_workflow_instance_id": started.workflow_id,
        "child_workflow_run_id": started.run_id,
        "child_workflow_type": "shipment",
        "child_run_number": 1,
        "parent_close_policy": "terminate",
        "cancellation_policy": "abandon",
    }
    assert _new(story, run) == [
        ("ChildWorkflowScheduled", identity),
        (
            "ChildRunStarted",
            {
                **identity,
                "child_status": "pending",
                "execution_timeout_seconds": 600,
                "run_timeout_seconds": 60,
                "execution_deadline_at": "2026-01-01T00:10:00.000000Z",
                "run_deadline_at": "2026-01-01T00:01:00.000000Z",
            },
        ),
    ]


def test_a_child_never_carries_its_parents_type(story: Story, run: Run) -> None:
    """Replay compares `workflow_type` first and would take it for a changed program."""
    story.work(run, child("shipment"))

    for event in story.history(run)[2:]:
        assert "workflow_type" not in event.payload
        assert "parent_close_policy" not in event.payload


def test_record_side_effect(story: Story, run: Run) -> None:
    story.work(run, side_effect("wwHioz3/VYAiNwQA"))

    payload = {"sequence": 1, "result": "wwHioz3/VYAiNwQA", "payload_codec": "avro"}
    assert _new(story, run) == [("SideEffectRecorded", payload)]


def test_record_version_marker(story: Story, run: Run) -> None:
    story.work(run, version_marker("tax", 2))

    payload = {
        "sequence": 1, "change_id": "tax", "version": 2, "min_supported": 1, "max_supported": 3,
    }  # fmt: skip
    assert _new(story, run) == [("VersionMarkerRecorded", payload)]


def test_upsert_search_attributes_merges_and_forgets(story: Story) -> None:
    run = story.start(search_attributes={"region": "north", "stage": "new"})

    story.work(run, attributes(stage="paid", amount=7, region=None))

    assert _new(story, run) == [
        (
            "SearchAttributesUpserted",
            {
                "sequence": 1,
                "attributes": {"stage": "paid", "amount": 7, "region": None},
                "merged": {"amount": 7, "stage": "paid"},
            },
        )
    ]
    assert run.search_attributes == {"amount": 7, "stage": "paid"}


def test_upsert_memo_merges_and_forgets(story: Story) -> None:
    run = story.start(memo={"note": "gift", "wrap": True})

    story.work(run, memo(note=None, colour="red"))

    ((event_type, payload),) = _new(story, run)
    assert event_type == "MemoUpserted"
    assert set(payload) == {"sequence", "entries", "merged"}
    for name in ("entries", "merged"):
        assert set(payload[name]) == {"codec", "blob"}
    assert decode(payload["entries"]["blob"]) == {"note": None, "colour": "red"}
    assert decode(payload["merged"]["blob"]) == {"wrap": True, "colour": "red"} == run.memo


def test_a_memo_may_become_empty(story: Story) -> None:
    run = story.start(memo={"note": "gift"})

    story.work(run, memo(note=None))

    assert decode(story.last(run)["merged"]["blob"]) == {}


@pytest.mark.parametrize(
    ("result", "output"), [(RESULT, JSON_RESULT), (None, None)], ids=["a result", "none is null"]
)
def test_complete_workflow(story: Story, run: Run, result: bytes | None, output: Any) -> None:
    story.work(run, complete_run(result))

    assert _new(story, run) == [("WorkflowCompleted", {"output": output, "payload_codec": "avro"})]
    assert (run.status, run.closed_reason) == (RunStatus.COMPLETED, "completed")


def test_fail_workflow(story: Story, run: Run) -> None:
    story.work(run, fail_run("sold out", exception_type="SoldOut", non_retryable=True))

    assert run.failure is not None
    assert _new(story, run) == [
        (
            "WorkflowFailed",
            {
                "failure_id": run.failure.failure_id,
                "source_kind": "workflow_run",
                "source_id": run.run_id,
                "failure_category": "application",
                "non_retryable": True,
                "exception_type": "SoldOut",
                "exception_class": "SoldOut",
                "message": "sold out",
            },
        )
    ]
    assert (run.status, run.closed_reason) == (RunStatus.FAILED, "failed")


def test_continue_as_new(story: Story, run: Run) -> None:
    story.work(run, side_effect(), continue_as_new())

    successor = story.successor_of(run)
    assert _new(story, run)[1:] == [
        (
            "WorkflowContinuedAsNew",
            {
                "sequence": 2,
                "continued_to_run_id": successor.run_id,
                "continued_to_run_number": 2,
                "closed_reason": "continued",
            },
        )
    ]
    assert story.types(successor) == ["WorkflowStarted"]
    assert story.last(successor)["continued_from_run_id"] == run.run_id


# Numbers ----------------------------------------------------------------------------------------


def test_sequences_run_on_over_commands_and_tasks_without_gaps(story: Story, run: Run) -> None:
    story.work(run, side_effect(), version_marker(), memo(a=1), timer(1))
    story.later(seconds=1)
    story.work(run, attributes(a=1), condition("gate", timeout=5))
    story.later(seconds=5)
    story.work(run, *in_parallel(activity(), child(), base=99))

    opened = [
        (event.event_type, event.payload["sequence"])
        for event in story.history(run)[2:]
        if event.payload.get("timer_kind") is None and event.event_type != "ChildRunStarted"
    ]
    assert opened == [
        ("SideEffectRecorded", 1),
        ("VersionMarkerRecorded", 2),
        ("MemoUpserted", 3),
        ("TimerScheduled", 4),
        ("TimerFired", 4),
        ("SearchAttributesUpserted", 5),
        ("ConditionWaitOpened", 6),
        ("ConditionWaitTimedOut", 6),
        ("ActivityScheduled", 7),
        ("ChildWorkflowScheduled", 8),
    ]


def test_the_first_completed_task_makes_a_pending_run_wait(story: Story, run: Run) -> None:
    completed = story.work(run, timer(5))

    assert completed.run_status == "waiting"
    assert run.status is RunStatus.WAITING


# Re-emissions -----------------------------------------------------------------------------------

OPEN: dict[str, list[Command]] = {
    "an activity": [activity()],
    "a timer": [timer(500)],
    "a child": [child()],
    "a list of the 2.x SDK": in_parallel(activity(), timer(500)),
    "a list of the 0.4 SDK": [activity(), activity()],
    "a signal wait": [signal_wait("approve")],
}
REPEATED: list[Command] = [activity("x"), timer(9), child("x"), condition("x"), signal_wait("x")]


@pytest.mark.parametrize("opened", OPEN.values(), ids=OPEN)
def test_steps_of_a_worker_that_could_not_advance_are_dropped(
    story: Story, run: Run, opened: list[Command]
) -> None:
    story.work(run, *opened)
    before, sequences = story.types(run), run.next_sequence
    story.wake(run)
    story.lease(run)

    completed = story.complete(run, *opened, *REPEATED)

    assert story.types(run) == before
    assert run.next_sequence == sequences
    assert completed.receipt.created_task_ids == []
    assert run.task is None


def test_what_is_no_step_is_kept_also_when_the_code_could_not_advance(
    story: Story, run: Run
) -> None:
    story.work(run, activity())
    story.wake(run)
    story.lease(run)

    story.complete(run, side_effect(), activity())

    assert story.numbered(run, after=3) == [("SideEffectRecorded", 2)]


@pytest.mark.parametrize(
    ("commands", "refusal"),
    [
        ([complete_run(), fail_run()], "once"),
        ([complete_run(), timer(1)], "last"),
        (
            [
                side_effect(),
                RecordVersionMarker(change_id="x", version=4, min_supported=1, max_supported=3),
            ],
            "range",
        ),
    ],
    ids=["two endings", "an ending before the end", "a version outside its range"],
)
def test_commands_that_make_no_sense_are_refused_as_a_whole(
    story: Story, run: Run, commands: list[Command], refusal: str
) -> None:
    story.lease(run)

    with story.refused(InvalidCommands) as caught:
        story.complete(run, *commands)
    assert refusal in caught.value.message


def test_local_work_is_a_step_of_its_own(story: Story, run: Run) -> None:
    story.work(run, condition())
    story.signal(run, "approve")
    story.work(run, local_activity(), local_activity("timed_out", failures=1), timer(5))

    assert story.numbered(run, after=4) == [
        ("ConditionWaitSatisfied", 1),
        ("ActivityScheduled", 2),
        ("ActivityStarted", 2),
        ("ActivityHeartbeatRecorded", 2),
        ("ActivityCompleted", 2),
        ("ActivityScheduled", 3),
        ("ActivityStarted", 3),
        ("ActivityHeartbeatRecorded", 3),
        ("ActivityRetryScheduled", 3),
        ("ActivityStarted", 3),
        ("ActivityHeartbeatRecorded", 3),
        ("ActivityTimedOut", 3),
        ("TimerScheduled", 4),
    ]
    assert list(run.operations) == [4]

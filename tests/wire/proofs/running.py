"""Tasks, steps and their policies."""

import base64
import gzip
import json
import zlib
from typing import Any

from perdure.core import limits
from tests.support.http import (
    Json,
    Wire,
    avro,
    complete_workflow,
    continue_as_new,
    fail_workflow,
    schedule_activity,
    start_child,
    start_timer,
    unavro,
    wait_for_condition,
    wait_for_signal,
)
from tests.wire.proofs import proves


def last_event(wire: Wire, kind: str, workflow_id: str = "order-1") -> Json:
    """What the newest event of a kind says."""
    found = [event for event in wire.events(workflow_id) if event["event_type"] == kind]
    assert found, wire.event_types(workflow_id)
    payload = found[-1]["payload"]
    assert isinstance(payload, dict)
    return payload


def task_with(wire: Wire, events: int, **poll: Any) -> Json:
    """A leased task with a history of so many events."""
    wire.register()
    markers = [{"type": "record_side_effect", "result": "blob"} for _ in range(events - 4)]
    wire.run_to(*markers, start_timer(1))
    wire.advance(seconds=1)
    task = wire.take(**poll)
    assert task["total_history_events"] == events
    return task


# Workflow tasks -----------------------------------------------------------------------------------


@proves("cluster.workflow_tasks", "command.complete_workflow")
def a_worker_takes_a_run_and_completes_it(wire: Wire) -> None:
    wire.register()
    wire.run_to(complete_workflow("shipped"))
    assert wire.describe()["status"] == "completed"
    assert wire.describe()["output"] == "shipped"


@proves("command.fail_workflow")
def a_worker_fails_a_run(wire: Wire) -> None:
    wire.register()
    wire.run_to(fail_workflow("sold out"))
    assert wire.describe()["status"] == "failed"
    assert last_event(wire, "WorkflowFailed")["message"] == "sold out"


@proves("cluster.continue_as_new", "command.continue_as_new")
def a_run_goes_on_as_another(wire: Wire) -> None:
    wire.register()
    first = wire.run_to(continue_as_new())
    task = wire.take()
    assert task["run_id"] != first["run_id"]
    assert unavro(task["arguments"]) == ["again"]


@proves("server.long_poll_timeout")
def an_empty_poll_waits_as_long_as_was_said(wire: Wire) -> None:
    told = wire.register()["server_capabilities"]["long_poll_timeout"]
    poll = wire.park("/workflow-tasks/poll", {"worker_id": "w1", "task_queue": "q"})
    wire.advance(seconds=told - 1)
    assert poll.is_waiting
    wire.advance(seconds=2)
    assert poll.answer().ok()["task"] is None


@proves("server.poll_status")
def a_poll_says_how_it_ended(wire: Wire) -> None:
    wire.register()
    assert wire.poll()["poll_status"] == "empty"
    wire.start()
    assert wire.poll(timeout_seconds=5)["poll_status"] == "leased"


@proves("server.workflow_task_poll_request_idempotency")
def a_repeated_poll_gets_the_same_task(wire: Wire) -> None:
    wire.register()
    wire.start()
    first = wire.take(poll_request_id="once")
    again = wire.take(poll_request_id="once")
    assert (again["task_id"], again["workflow_task_attempt"]) == (first["task_id"], 1)
    assert wire.poll(poll_request_id="other")["task"] is None


@proves("server.history_page_size_default")
def a_long_history_begins_with_a_page_of_the_said_size(wire: Wire) -> None:
    size = limits.HISTORY_PAGE_SIZE_DEFAULT
    task = task_with(wire, size + 1)
    assert len(task["history_events"]) == size
    told = wire.poll()["server_capabilities"]["history_page_size_default"]
    assert told == size


@proves("server.history_page_size_max")
def a_page_may_be_as_large_as_said_and_no_larger(wire: Wire) -> None:
    told = wire.register()["server_capabilities"]["history_page_size_max"]
    task = task_with(wire, told + 1, history_page_size=told)
    assert len(task["history_events"]) == told
    larger = wire.report(
        task, "history", next_history_page_token="MA==", history_page_size=told + 1
    )
    larger.invalid("history_page_size")


@proves("server.history_compression")
def a_history_comes_packed_to_those_who_ask(wire: Wire) -> None:
    told = wire.register()["server_capabilities"]["history_compression"]
    task = task_with(wire, told["compression_threshold"], accept_history_encoding="gzip")
    plain = wire.events()
    for encoding in told["supported_encodings"]:
        page = wire.report(
            task, "history", next_history_page_token="MA==", accept_history_encoding=encoding
        ).ok()
        assert page["history_events_encoding"] == encoding
        packed = base64.b64decode(page["history_events_compressed"])
        content = gzip.decompress(packed) if encoding == "gzip" else zlib.decompress(packed, -15)
        events = json.loads(content)
        assert [event["event_type"] for event in events] == [
            event["event_type"] for event in plain[: len(events)]
        ]


@proves("server.response_compression", "cluster.response_compression")
def an_answer_comes_packed_to_those_who_ask(wire: Wire) -> None:
    told = wire.call("GET", "/api/cluster/info").ok()["capabilities"]["response_compression"]
    assert told
    for encoding in told:
        answer = wire.call("GET", "/api/cluster/info", headers={"Accept-Encoding": encoding})
        assert answer.headers["content-encoding"] == encoding
        assert answer.ok()["capabilities"]["response_compression"] == told


# Activities ---------------------------------------------------------------------------------------


@proves("cluster.activity_tasks", "command.schedule_activity")
def an_activity_is_done_and_its_result_reaches_the_run(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity(arguments=avro(["card"])))
    attempt = wire.take("activity")
    assert unavro(attempt["arguments"]) == ["card"]
    wire.report_attempt(attempt, "complete", result=avro("paid")).ok()
    events = wire.take()["history_events"]
    assert events[-1]["event_type"] == "ActivityCompleted"
    assert "paid" in str(unavro({"codec": "avro", "blob": _blob(events[-1]["payload"]["result"])}))


def _blob(result: Any) -> str:
    blob = result["blob"] if isinstance(result, dict) else result
    assert isinstance(blob, str)
    return blob


@proves("server.activity_timeouts", "cluster.activity_timeouts")
def an_attempt_that_takes_too_long_is_given_up(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity(start_to_close_timeout=5))
    wire.take("activity")
    wire.advance(seconds=6)
    assert "ActivityTimedOut" in wire.event_types()


@proves("server.activity_retry_policy", "cluster.activity_retry_policy")
def a_failed_attempt_is_tried_again(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity(retry_policy={"max_attempts": 2, "backoff_seconds": [10]}))
    failure = {"message": "declined"}
    wire.report_attempt(wire.take("activity"), "fail", failure=failure).ok()
    assert wire.poll("activity")["task"] is None
    wire.advance(seconds=10)
    again = wire.take("activity")
    assert again["attempt_number"] == 2
    wire.report_attempt(again, "fail", failure=failure).ok()
    assert "ActivityFailed" in wire.event_types()


@proves("server.non_retryable_failures", "cluster.non_retryable_failures")
def a_failure_that_says_so_is_final(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity(retry_policy={"max_attempts": 5}))
    failure = {"message": "no such card", "non_retryable": True}
    wire.report_attempt(wire.take("activity"), "fail", failure=failure).ok()
    assert "ActivityFailed" in wire.event_types()


@proves("server.activity_lease_renewal")
def a_lease_is_renewed_without_a_word_about_progress(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity())
    attempt = wire.take("activity")
    wire.advance(seconds=100)
    renewed = wire.report_attempt(attempt, "renew-lease").ok()
    assert renewed["lease_renewed"] is True
    assert renewed["lease_expires_at"] > attempt["lease_expires_at"]


# Children -----------------------------------------------------------------------------------------


def end_of_child(wire: Wire, **policy: Any) -> None:
    """A child that fails once."""
    wire.register()
    wire.run_to(start_child(**policy))
    wire.complete(wire.take(), fail_workflow())


@proves("cluster.child_workflows", "command.start_child_workflow")
def a_child_runs_and_its_parent_learns_of_it(wire: Wire) -> None:
    wire.register()
    wire.run_to(start_child())
    child = wire.take()
    assert child["workflow_type"] == "Child"
    wire.complete(child, complete_workflow("grown"))
    assert "ChildRunCompleted" in [e["event_type"] for e in wire.take()["history_events"]]


@proves("server.child_workflow_retry_policy", "cluster.child_workflow_retry_policy")
def a_child_that_fails_is_started_again(wire: Wire) -> None:
    end_of_child(wire, retry_policy={"max_attempts": 2, "backoff_seconds": [5]})
    assert wire.poll()["task"] is None
    wire.advance(seconds=5)
    again = wire.take()
    assert again["workflow_type"] == "Child"
    wire.complete(again, fail_workflow())
    assert "ChildRunFailed" in wire.event_types()


@proves("server.child_workflow_timeouts", "cluster.child_workflow_timeouts")
def a_child_that_takes_too_long_is_given_up(wire: Wire) -> None:
    wire.register()
    wire.run_to(start_child(run_timeout_seconds=5))
    wire.advance(seconds=6)
    ends = {"ChildRunTimedOut", "ChildRunFailed"}
    assert ends & set(wire.event_types())


@proves("server.parent_close_policy", "cluster.parent_close_policy")
def a_child_ends_with_its_parent_if_its_policy_says_so(wire: Wire) -> None:
    wire.register()
    wire.run_to(
        start_child(parent_close_policy="terminate"), start_child(parent_close_policy="abandon")
    )
    wire.control("POST", "/workflows/order-1/terminate", {}).ok()
    children = [
        run
        for run in wire.control("GET", "/workflows?workflow_type=Child").ok()["workflows"]
        if run["workflow_id"] != "order-1"
    ]
    assert sorted(run["status"] == "terminated" for run in children) == [False, True]


# Time, waits and markers --------------------------------------------------------------------------


@proves("command.start_timer")
def a_timer_fires(wire: Wire) -> None:
    wire.register()
    wire.run_to(start_timer(30))
    wire.advance(seconds=30)
    assert "TimerFired" in [event["event_type"] for event in wire.take()["history_events"]]


@proves("command.open_condition_wait")
def a_condition_is_looked_at_when_its_time_is_over(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition(timeout_seconds=5))
    assert wire.poll()["task"] is None
    wire.advance(seconds=5)
    assert "ConditionWaitOpened" in [e["event_type"] for e in wire.take()["history_events"]]


@proves("command.open_signal_wait", "cluster.signals")
def a_signal_reaches_the_run_that_waits_for_it(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_signal("pay"))
    assert wire.poll()["task"] is None
    wire.signal("pay", input=avro([7]))
    events = wire.take()["history_events"]
    assert "SignalReceived" in [event["event_type"] for event in events]


@proves("command.record_side_effect")
def a_side_effect_is_recorded_as_it_was(wire: Wire) -> None:
    wire.register()
    blob = avro("dice")["blob"]
    wire.run_to({"type": "record_side_effect", "result": blob}, start_timer(1))
    assert last_event(wire, "SideEffectRecorded")["result"] == blob


@proves("command.record_version_marker")
def a_version_is_recorded(wire: Wire) -> None:
    wire.register()
    marker = {"change_id": "tax", "version": 2, "min_supported": 1, "max_supported": 3}
    wire.run_to({"type": "record_version_marker", **marker}, start_timer(1))
    assert last_event(wire, "VersionMarkerRecorded")["version"] == 2


@proves("cluster.search_attributes", "command.upsert_search_attributes")
def search_attributes_are_set_and_shown(wire: Wire) -> None:
    wire.register()
    wire.run_to(
        {"type": "upsert_search_attributes", "attributes": {"paid": True}},
        start_timer(1),
        search_attributes={"city": "Oslo"},
    )
    assert wire.describe()["search_attributes"] == {"city": "Oslo", "paid": True}


@proves("server.workflow_memo_updates", "command.upsert_memo")
def a_memo_is_set_and_shown(wire: Wire) -> None:
    wire.register()
    entries = avro({"note": "fragile"})
    wire.run_to({"type": "upsert_memo", "entries": entries}, start_timer(1), memo={"kept": 1})
    assert wire.describe()["memo"] == {"kept": 1, "note": "fragile"}


@proves("command.cancel_selection_operation")
def a_member_of_a_selection_is_cancelled(wire: Wire) -> None:
    wire.register()
    wire.run_to(
        _member("fast", 0, schedule_activity()),
        _member("slow", 1, start_timer(1_000)),
    )
    wire.report_attempt(wire.take("activity"), "complete", result=avro(1)).ok()
    task = wire.take()
    timer = next(e for e in task["history_events"] if e["event_type"] == "TimerScheduled")
    wire.complete(
        task,
        {
            "type": "cancel_selection_operation",
            "selection_group_id": "select-calls:1:2",
            "member_key": "slow",
            "member_index": 1,
            "member_base_sequence": 2,
            "member_size": 1,
            "operation_kind": "timer",
            "operation_identity": timer["payload"]["timer_id"],
        },
    )
    assert "SelectionOperationCancelled" in wire.event_types()


def _member(key: str, index: int, command: Json) -> Json:
    entry = {
        "parallel_group_id": "select-calls:1:2",
        "parallel_group_kind": "mixed",
        "parallel_group_base_sequence": 1,
        "parallel_group_size": 2,
        "parallel_group_index": index,
        "parallel_group_mode": "select",
        "selection_member_key": key,
        "selection_member_index": index,
        "selection_member_base_sequence": 1 + index,
        "selection_member_size": 1,
        "selection_member_kind": "activity" if "activity_type" in command else "timer",
    }
    return {**command, "parallel_group_path": [entry]}

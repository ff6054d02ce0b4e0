"""Standalone activities: jobs of one activity, each in a run that has no code."""

from typing import Any

import pytest

from perdure.core.payload import Frame, frame_of
from tests.support.http import (
    Answer,
    Json,
    Wire,
    avro,
    complete_workflow,
    start_child,
    unavro,
)

HOST_TYPE = "dw.standalone_activity"
RETRY = {"max_attempts": 2, "backoff_seconds": [10]}
FAILURE: Json = {"message": "declined", "type": "Declined"}


def ask(wire: Wire, activity_id: str | None = "job-1", /, **members: Any) -> Answer:
    body = {"activity_type": "charge", "task_queue": "q", "input": avro([1]), **members}
    if activity_id is not None:
        body = {"activity_id": activity_id, **body}
    return wire.control("POST", "/activities", body)


def start(wire: Wire, activity_id: str = "job-1", **members: Any) -> Json:
    return ask(wire, activity_id, **members).ok(201)


def look(wire: Wire, activity_id: str = "job-1") -> Json:
    return wire.control("GET", f"/activities/{activity_id}").ok()


def listed(wire: Wire, query: str = "") -> list[str]:
    found = wire.control("GET", f"/activities{query}").ok()
    assert found["activity_count"] == len(found["activities"])
    return [activity["activity_id"] for activity in found["activities"]]


# From start to end --------------------------------------------------------------------------------


def test_an_activity_is_done_by_a_worker_and_its_result_is_shown(wire: Wire) -> None:
    wire.register()
    started = start(wire, business_key="invoice 7", activity_class="App\\Charge")
    assert (started["activity_id"], started["workflow_id"]) == ("job-1", "job-1")
    assert (started["workflow_type"], started["activity_type"]) == (HOST_TYPE, "charge")
    assert (started["status"], started["activity_status"]) == ("running", "pending")
    assert (started["namespace"], started["task_queue"]) == ("default", "q")
    assert (started["business_key"], started["activity_class"]) == ("invoice 7", "App\\Charge")
    assert "control_plane" not in started

    task = wire.take("activity")
    assert (task["workflow_id"], task["run_id"]) == ("job-1", started["workflow_run_id"])
    assert task["activity_execution_id"] == started["activity_execution_id"]
    assert unavro(task["arguments"]) == [1]
    assert look(wire)["activity_status"] == "running"
    done = wire.report_attempt(task, "complete", result=avro({"paid": 1})).ok()
    assert done["next_task_id"] is None

    seen = look(wire)
    assert (seen["status"], seen["activity_status"], seen["attempt_count"]) == (
        "completed",
        "completed",
        1,
    )
    assert unavro(seen["result"]) == {"paid": 1}
    assert (seen["closed_reason"], seen["next_cause"]) == ("completed", None)
    assert seen["closed_at"] is not None
    assert wire.event_types("job-1") == [
        "StartAccepted",
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityCompleted",
        "WorkflowCompleted",
    ]
    scheduled, ended = wire.events("job-1")[2], wire.events("job-1")[-1]
    assert scheduled["payload"]["sequence"] == 1
    assert unavro(ended["payload"]["output"]) == {"paid": 1}
    assert wire.poll()["poll_status"] == "empty", "a run without code had a workflow task"


def test_without_an_id_each_start_is_an_activity_of_its_own(wire: Wire) -> None:
    first, second = ask(wire, None).ok(201), ask(wire, None).ok(201)

    assert first["activity_id"] != second["activity_id"]
    assert set(listed(wire)) == {first["activity_id"], second["activity_id"]}


def test_a_failure_without_a_policy_ends_the_activity(wire: Wire) -> None:
    wire.register()
    started = start(wire)

    wire.report_attempt(wire.take("activity"), "fail", failure=FAILURE).ok()

    seen = look(wire)
    assert (seen["status"], seen["activity_status"], seen["result"]) == ("failed", "failed", None)
    assert seen["failure"]["message"] == "declined"
    failed, ended = wire.events("job-1")[-2:]
    assert failed["event_type"] == "ActivityFailed"
    assert ended["event_type"] == "WorkflowFailed"
    assert ended["payload"]["source_kind"] == "activity_execution"
    assert ended["payload"]["source_id"] == started["activity_execution_id"]
    assert ended["payload"]["failure_category"] == "activity"
    assert ended["payload"]["exception_type"] == "Declined"
    assert ended["payload"]["exception"]["message"] == "declined"


def test_a_retry_waits_for_its_backoff_and_says_so(wire: Wire) -> None:
    wire.register()
    start(wire, retry_policy=RETRY)
    task = wire.take("activity")
    failed = wire.report_attempt(task, "fail", failure=FAILURE).ok()
    assert failed["next_task_id"] == task["task_id"]

    seen = look(wire)
    assert (seen["status"], seen["activity_status"]) == ("running", "pending")
    assert seen["next_cause"]["kind"] == "activity"
    assert seen["next_cause"]["last_failure"] == "declined"
    assert wire.poll("activity")["poll_status"] == "empty"

    wire.advance(seconds=11)
    again = wire.take("activity")
    assert again["attempt_number"] == 2
    wire.report_attempt(again, "complete", result=avro("ok")).ok()
    seen = look(wire)
    assert [attempt["status"] for attempt in seen["attempts"]] == ["failed", "completed"]
    assert seen["attempts"][0]["message"] == "declined"
    assert seen["current_attempt_id"] == again["activity_attempt_id"]
    assert (seen["attempt_count"], unavro(seen["result"])) == (2, "ok")


def test_retries_end_with_the_policy_and_with_hopeless_failures(wire: Wire) -> None:
    wire.register()
    start(wire, retry_policy={"max_attempts": 2})
    for _ in range(2):
        wire.report_attempt(wire.take("activity"), "fail", failure=FAILURE).ok()
    assert (look(wire)["status"], look(wire)["attempt_count"]) == ("failed", 2)

    start(
        wire, "job-2", retry_policy={"max_attempts": 9, "non_retryable_error_types": ["Declined"]}
    )
    wire.report_attempt(wire.take("activity"), "fail", failure=FAILURE).ok()
    assert (look(wire, "job-2")["status"], look(wire, "job-2")["attempt_count"]) == ("failed", 1)


@pytest.mark.parametrize(
    ("timeouts", "leased", "kind"),
    [
        ({"schedule_to_start_timeout_seconds": 5}, False, "schedule_to_start"),
        ({"schedule_to_close_timeout_seconds": 5}, False, "schedule_to_close"),
        ({"schedule_to_close_timeout_seconds": 5}, True, "schedule_to_close"),
        ({"start_to_close_timeout_seconds": 5}, True, "start_to_close"),
        ({"heartbeat_timeout_seconds": 5}, True, "heartbeat"),
    ],
)
def test_every_time_out_ends_the_activity(
    wire: Wire, timeouts: Json, leased: bool, kind: str
) -> None:
    wire.register()
    started = start(wire, **timeouts)
    for name in ("schedule_to_start", "schedule_to_close"):
        shown = started[f"{name}_deadline_at"]
        assert (shown is not None) == (f"{name}_timeout_seconds" in timeouts)
    if leased:
        task = wire.take("activity")

    wire.advance(seconds=6)

    seen = look(wire)
    assert (seen["status"], seen["closed_reason"]) == ("failed", "failed")
    timed_out, ended = wire.events("job-1")[-2:]
    assert (timed_out["event_type"], timed_out["payload"]["timeout_kind"]) == (
        "ActivityTimedOut",
        kind,
    )
    assert ended["payload"]["failure_category"] == "timeout"
    assert wire.poll("activity")["poll_status"] == "empty"
    if leased:
        wire.report_attempt(task, "complete").refused(409, "run_closed")


def test_an_attempt_that_times_out_is_tried_again(wire: Wire) -> None:
    wire.register()
    start(wire, start_to_close_timeout_seconds=5, retry_policy={"max_attempts": 2})
    late = wire.take("activity")
    wire.advance(seconds=6)

    again = wire.take("activity")
    wire.report_attempt(late, "complete", result=avro("late")).refused(409, "stale_attempt")
    wire.report_attempt(again, "complete", result=avro("in time")).ok()

    seen = look(wire)
    assert unavro(seen["result"]) == "in time"
    assert [attempt["status"] for attempt in seen["attempts"]] == ["expired", "completed"]


def test_heartbeats_keep_an_attempt_alive_and_are_shown(wire: Wire) -> None:
    wire.register()
    start(wire, heartbeat_timeout_seconds=5)
    task = wire.take("activity")
    assert look(wire)["last_heartbeat_at"] is None
    for _ in range(3):
        wire.advance(seconds=4)
        assert wire.report_attempt(task, "heartbeat", message="on it").ok()["can_continue"]

    beating = look(wire)["last_heartbeat_at"]
    assert beating is not None
    wire.report_attempt(task, "complete").ok()
    seen = look(wire)
    assert (seen["status"], seen["result"], seen["last_heartbeat_at"]) == (
        "completed",
        None,
        beating,
    )


def test_the_work_of_a_worker_that_vanished_is_done_by_another(wire: Wire) -> None:
    wire.register()
    wire.register("w2")
    start(wire)
    wire.take("activity")

    wire.advance(seconds=301)

    again = wire.take("activity", "w2")
    assert again["attempt_number"] == 2
    wire.report_attempt(again, "complete", result=avro(2)).ok()
    seen = look(wire)
    assert [attempt["status"] for attempt in seen["attempts"]] == ["expired", "completed"]


def test_a_worker_that_says_goodbye_leaves_its_activity_to_others(wire: Wire) -> None:
    wire.register()
    wire.register("w2")
    start(wire)
    wire.take("activity")

    wire.worker("/registrations/w1", method="DELETE").ok()

    assert wire.take("activity", "w2")["attempt_number"] == 2


def test_an_activity_outlives_the_server(wire: Wire) -> None:
    wire.register()
    start(wire, retry_policy=RETRY, heartbeat_timeout_seconds=60)
    task = wire.take("activity")
    wire.restart()

    wire.report_attempt(task, "complete", result=avro("kept")).ok()

    wire.restart()
    assert unavro(look(wire)["result"]) == "kept"


# Cancelling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])
@pytest.mark.parametrize("leased", [False, True])
def test_it_is_stopped_through_the_workflow_routes(
    wire: Wire, verb: str, status: str, leased: bool
) -> None:
    wire.register()
    start(wire)
    if leased:
        task = wire.take("activity")

    wire.control("POST", f"/workflows/job-1/{verb}", {"reason": "enough"}).ok()

    seen = look(wire)
    assert (seen["status"], seen["activity_status"]) == (status, "cancelled")
    assert seen["attempt_count"] == int(leased)
    assert "ActivityCancelled" in wire.event_types("job-1")
    assert wire.poll("activity")["poll_status"] == "empty"
    if leased:
        beat = wire.report_attempt(task, "heartbeat").ok()
        assert (beat["can_continue"], beat["cancel_requested"]) == (False, True)
        wire.report_attempt(task, "complete").refused(409, f"run_{status}")
    wire.control("POST", f"/workflows/job-1/{verb}").refused(409, "run_not_active")


# Repeats ------------------------------------------------------------------------------------------


def test_a_report_that_comes_twice_is_answered_twice(wire: Wire) -> None:
    wire.register()
    start(wire)
    task = wire.take("activity")
    first = wire.report_attempt(task, "complete", result=avro(1)).ok()

    with wire.nothing_changes():
        assert wire.report_attempt(task, "complete", result=avro(1)).ok() == first
        wire.report_attempt(task, "fail", failure=FAILURE).refused(409, "run_closed")


def test_an_id_that_is_still_running_is_refused(wire: Wire) -> None:
    start(wire)

    with wire.nothing_changes():
        body = ask(wire).invalid("activity_id")

    assert "running" in body["message"]


def test_a_finished_id_may_be_started_again(wire: Wire) -> None:
    wire.register()
    first = start(wire)
    wire.report_attempt(wire.take("activity"), "complete", result=avro(1)).ok()

    second = start(wire)

    assert second["workflow_run_id"] != first["workflow_run_id"]
    assert (look(wire)["run_number"], look(wire)["status"]) == (2, "running")
    wire.report_attempt(wire.take("activity"), "complete", result=avro(2)).ok()
    assert unavro(look(wire)["result"]) == 2
    runs = wire.control("GET", "/workflows/job-1/runs").ok()["runs"]
    assert [run["run_id"] for run in runs] == [first["workflow_run_id"], second["workflow_run_id"]]


def test_an_id_of_a_workflow_is_refused_open_or_closed(wire: Wire) -> None:
    wire.register()
    wire.start("job-1")
    with wire.nothing_changes():
        assert "workflow" in ask(wire).invalid("activity_id")["message"]

    wire.complete(wire.take(), complete_workflow())

    with wire.nothing_changes():
        ask(wire).invalid("activity_id")


def test_a_workflow_cannot_take_the_id_of_an_activity(wire: Wire) -> None:
    wire.register()
    start(wire)
    wanted = {"workflow_type": "Order", "workflow_id": "job-1"}
    for _ in ("open", "closed"):
        with wire.nothing_changes():
            for policy in ("fail", "use-existing"):
                body = {**wanted, "duplicate_policy": policy}
                wire.control("POST", "/workflows", body).refused(409, "duplicate_not_allowed")
        task = wire.poll("activity")["task"]
        if task is not None:
            wire.report_attempt(task, "complete").ok()


@pytest.mark.parametrize("activity_id", ["job-1", None])
def test_a_repeated_request_finds_its_activity_also_after_its_end(
    wire: Wire, activity_id: str | None
) -> None:
    wire.register()
    first = ask(wire, activity_id, request_id="r1").ok(201)
    assert first["retained"] is False

    for _ in ("open", "closed"):
        with wire.nothing_changes():
            again = ask(wire, activity_id, request_id="r1").ok()
        assert again["retained"] is True
        assert again["activity_id"] == first["activity_id"]
        assert again["workflow_run_id"] == first["workflow_run_id"]
        task = wire.poll("activity")["task"]
        if task is not None:
            wire.report_attempt(task, "complete").ok()
    with wire.nothing_changes():
        conflict = ask(wire, activity_id, request_id="r1", activity_type="ship")
        conflict.refused(409, "request_id_conflict")


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activity_type", None),
        ("activity_type", ""),
        ("activity_type", "x" * 256),
        ("activity_id", ""),
        ("activity_id", "a b"),
        ("activity_id", "a/b"),
        ("activity_id", "x" * 129),
        ("activity_id", 5),
        ("activity_class", "x" * 256),
        ("task_queue", "x" * 256),
        ("business_key", "x" * 256),
        ("request_id", "x" * 256),
        ("input", "text"),
        ("input", 5),
        ("retry_policy", 3),
        ("start_to_close_timeout_seconds", 0),
        ("schedule_to_start_timeout_seconds", -1),
        ("schedule_to_close_timeout_seconds", "soon"),
        ("heartbeat_timeout_seconds", 1.5),
        ("start_to_close_timeout", 5),
        ("schedule_to_start_timeout", 5),
        ("schedule_to_close_timeout", 5),
        ("heartbeat_timeout", None),
    ],
)
def test_a_field_that_does_not_fit_is_refused_by_its_name(
    shared_wire: Wire, field: str, value: Any
) -> None:
    with shared_wire.nothing_changes():
        ask(shared_wire, None, **{field: value}).invalid(field)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"max_attempts": 0}, "retry_policy.max_attempts"),
        ({"max_attempts": 1, "backoff_seconds": [-1]}, "retry_policy.backoff_seconds.0"),
        ({"non_retryable_error_types": [5]}, "retry_policy.non_retryable_error_types.0"),
    ],
)
def test_a_retry_policy_must_make_sense(shared_wire: Wire, policy: Json, field: str) -> None:
    with shared_wire.nothing_changes():
        ask(shared_wire, None, retry_policy=policy).invalid(field)


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ("heartbeat", "start_to_close"),
        ("start_to_close", "schedule_to_close"),
        ("schedule_to_start", "schedule_to_close"),
    ],
)
def test_time_outs_must_fit_into_each_other(shared_wire: Wire, shorter: str, longer: str) -> None:
    timeouts = {f"{shorter}_timeout_seconds": 11, f"{longer}_timeout_seconds": 10}
    with shared_wire.nothing_changes():
        ask(shared_wire, None, **timeouts).invalid(f"{shorter}_timeout_seconds")


def test_the_type_of_a_host_is_kept_for_activities(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    with wire.nothing_changes():
        wire.control("POST", "/workflows", {"workflow_type": HOST_TYPE}).invalid("workflow_type")
        for command in (
            start_child(HOST_TYPE),
            {"type": "continue_as_new", "workflow_type": HOST_TYPE},
        ):
            refused = wire.report(task, "complete", commands=[command])
            refused.invalid("commands.0.workflow_type")


def test_an_activity_takes_neither_signals_nor_updates_nor_queries(wire: Wire) -> None:
    wire.register()
    start(wire)
    with wire.nothing_changes():
        wire.control("POST", "/workflows/job-1/signal/go").refused(404, "unknown_signal")
        wire.update("add", "job-1").refused(409, "update_rejected")
        message = {"message_id": "m1", "input": avro([1])}
        sent = wire.control("POST", "/workflows/job-1/message-streams/in/messages", message)
        sent.refused(404, "unknown_signal")
        wire.control("POST", "/workflows/job-1/request-cancellation", {}).refused(
            409, "cooperative_cancellation_unavailable"
        )
        asked = wire.control("POST", "/workflows/job-1/query/how")
        asked.refused(409, "query_worker_unavailable")
    actions = wire.describe("job-1")["actions"]
    assert [name for name, can in actions.items() if can] == ["can_cancel", "can_terminate"]


def test_what_is_no_activity_is_not_found(wire: Wire) -> None:
    wire.start("order-1")
    wire.control("GET", "/activities/order-1").refused(404, "activity_not_found")
    wire.control("GET", "/activities/unknown").refused(404, "activity_not_found")


def test_a_namespace_is_a_wall(wire: Wire) -> None:
    wire.register()
    start(wire)
    wire.server.namespaces.known.add("other")
    other = {"X-Namespace": "other"}

    wire.control("GET", "/activities/job-1", headers=other).refused(404, "activity_not_found")
    assert wire.control("GET", "/activities", headers=other).ok()["activities"] == []
    theirs = {"activity_type": "charge", "activity_id": "job-1", "task_queue": "q"}
    wire.control("POST", "/activities", theirs, headers=other).ok(201)
    assert wire.take("activity")["namespace"] == "default"
    assert wire.poll("activity")["poll_status"] == "empty"


# Lists --------------------------------------------------------------------------------------------


def test_activities_have_a_list_of_their_own(wire: Wire) -> None:
    wire.register()
    wire.start("order-1")
    for number in range(3):
        start(wire, f"job-{number}")
        wire.advance(seconds=1)
    done = wire.take("activity")
    wire.report_attempt(done, "complete").ok()
    failed = wire.take("activity")
    wire.report_attempt(failed, "fail", failure=FAILURE).ok()

    assert listed(wire) == ["job-2", "job-1", "job-0"]
    assert listed(wire, "?status=completed") == [done["workflow_id"]]
    assert listed(wire, "?status=failed") == [failed["workflow_id"]]
    assert listed(wire, "?status=running") == ["job-2"]
    workflows = wire.control("GET", "/workflows").ok()["workflows"]
    assert [run["workflow_id"] for run in workflows] == ["order-1"]
    hosts = wire.control("GET", f"/workflows?workflow_type={HOST_TYPE}").ok()["workflows"]
    assert [run["workflow_id"] for run in hosts] == ["job-2", "job-1", "job-0"]


def test_a_list_comes_in_pages(wire: Wire) -> None:
    for number in range(5):
        start(wire, f"job-{number}")
        wire.advance(seconds=1)

    seen: list[str] = []
    token = ""
    while True:
        page = wire.control("GET", f"/activities?page_size=2&next_page_token={token}").ok()
        seen += [activity["activity_id"] for activity in page["activities"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert seen == ["job-4", "job-3", "job-2", "job-1", "job-0"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page_size=0", "page_size"),
        ("page_size=201", "page_size"),
        ("page_size=x", "page_size"),
        ("status=cancelled", "status"),
        ("next_page_token=!", "next_page_token"),
    ],
)
def test_a_list_that_cannot_be_had_is_refused(shared_wire: Wire, query: str, field: str) -> None:
    shared_wire.control("GET", f"/activities?{query}").invalid(field)


# Plain JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sdk_version", "frame"),
    [
        ("durable-workflow-python/2.12.0", Frame.VALUE),
        ("durable-workflow-python/0.4.106", Frame.WRAPPER),
    ],
)
def test_plain_input_reaches_a_worker_in_its_own_frame(
    wire: Wire, sdk_version: str, frame: Frame
) -> None:
    start(wire, input=["a", {"b": 2}])
    wire.register(sdk_version=sdk_version)

    task = wire.take("activity")

    assert frame_of(task["arguments"]["blob"]) is frame
    assert unavro(task["arguments"]) == ["a", {"b": 2}]
    wire.report_attempt(task, "complete", result={"plain": True}).ok()
    result = look(wire)["result"]
    assert (frame_of(result["blob"]), unavro(result)) == (frame, {"plain": True})


def test_an_activity_without_input_has_no_arguments(wire: Wire) -> None:
    wire.register()
    wire.control("POST", "/activities", {"activity_type": "ship", "task_queue": "q"}).ok(201)

    assert unavro(wire.take("activity")["arguments"]) == []

"""Bounds that an operator chose, each of them reached: a typed refusal, and nothing is changed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core import limits
from perdure.core.bounds import Bounds
from tests.support.http import (
    Answer,
    Json,
    Wire,
    a_wire,
    avro,
    complete_update,
    complete_workflow,
    continue_as_new,
    local_activity,
    local_attempt,
    local_call,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
    wait_for_signal,
)
from tests.support.services import execute, offer, start_operation
from tests.support.uploads import outside

SMALL = Bounds(
    payload_bytes_max=2_000,
    memo_bytes_max=100,
    search_attributes_max=3,
    search_attribute_key_length_max=8,
    search_attribute_value_bytes_max=20,
    search_attributes_bytes_max=45,
    operation_name_bytes_max=8,
    commands_max=6,
    events_per_completion_max=10,
    pending_activities_max=3,
    pending_children_max=2,
    pending_timers_max=3,
    pending_signals_max=3,
    pending_updates_max=2,
    history_events_max=40,
    history_page_size_default=3,
    history_page_size_max=5,
    continue_as_new_events=30,
    continue_as_new_bytes=20_000,
    warning_percent=70,
)
LARGE = avro(["x" * 2_000])
"""An envelope with a blob that is too large."""
EFFECT = {"type": "record_side_effect", "result": avro("x")}


@pytest.fixture
def wire(wire_settings: dict[str, Any], tmp_path: Path) -> Iterator[Wire]:
    with a_wire(tmp_path, bounds=SMALL, **wire_settings) as wire:
        yield wire


@pytest.fixture
def task(wire: Wire) -> Json:
    """A task of a new run, leased."""
    wire.register(capabilities=["cooperative_cancellation", "prepared_local_activities"])
    wire.start()
    return wire.take()


def exceeded(answer: Answer, status: int, kind: str, value: int, most: int) -> Json:
    """The refusal of what would pass a structural limit."""
    body = answer.refused(status, "structural_limit_exceeded")
    told = (body["limit_kind"], body["current_value"], body["configured_limit"])
    assert told == (kind, value, most)
    return body


def start(wire: Wire, **members: Any) -> Answer:
    body = {"workflow_id": "order-1", "workflow_type": "Order", "task_queue": "q", **members}
    return wire.control("POST", "/workflows", body)


def send(wire: Wire, path: str, **members: Any) -> Answer:
    return wire.control("POST", f"/workflows/order-1/{path}", members)


# What is in force -------------------------------------------------------------------------------


def test_cluster_info_tells_the_bounds_in_force(wire: Wire) -> None:
    info = wire.control("GET", "/cluster/info").ok()

    assert info["limits"] == {
        "max_payload_bytes": limits.BODY_BYTES_MAX,
        "max_memo_bytes": 100,
        "max_search_attributes": 3,
        "max_search_attribute_key_length": 8,
        "max_search_attribute_value_bytes": 20,
        "max_operation_name_length": 8,
        "max_pending_activities": 3,
        "max_pending_children": 2,
    }
    assert info["structural_limits"] == {
        "pending_activity_count": 3,
        "pending_child_count": 2,
        "pending_timer_count": 3,
        "pending_signal_count": 3,
        "pending_update_count": 2,
        "pending_message_count": limits.PENDING_MESSAGES_MAX,
        "pending_message_bytes": limits.PENDING_MESSAGES_BYTES_MAX,
        "message_stream_count": limits.MESSAGE_STREAMS_MAX,
        "command_batch_size": 6,
        "payload_size_bytes": 2_000,
        "memo_size_bytes": 100,
        "search_attribute_size_bytes": 45,
        "history_transaction_size": 10,
        "history_event_count": 40,
        "continue_as_new_event_threshold": 30,
        "continue_as_new_size_bytes_threshold": 20_000,
        "continue_as_new_fan_out_threshold": 200,
        "warning_threshold_percent": 70,
    }


def test_workers_are_told_the_pages_in_force(wire: Wire) -> None:
    told = wire.register()["server_capabilities"]

    assert (told["history_page_size_default"], told["history_page_size_max"]) == (3, 5)


def test_a_payload_cannot_be_larger_than_its_body(tmp_path: Path) -> None:
    with a_wire(tmp_path, body_bytes_max=5_000, bounds=Bounds()) as wire:
        told = wire.control("GET", "/cluster/info").ok()["structural_limits"]

    assert told["payload_size_bytes"] == 5_000


def test_sdks_upload_whatever_may_not_come_in_a_body(wire: Wire) -> None:
    namespace = wire.control("GET", "/cluster/info").ok()["namespace"]

    assert namespace["external_payload_storage"]["threshold_bytes"] == 2_000


# Completions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commands", "kind", "value", "most"),
    [
        ([EFFECT] * 7, "command_batch_size", 7, 6),
        ([schedule_activity()] * 4, "pending_activity_count", 4, 3),
        ([start_child()] * 3, "pending_child_count", 3, 2),
        ([start_timer(1)] * 4, "pending_timer_count", 4, 3),
        ([local_activity()] * 4, "history_transaction_size", 12, 10),
        ([wait_for_signal(timeout_seconds=9)] * 6, "history_transaction_size", 12, 10),
    ],
)
def test_a_completion_that_passes_a_bound_is_refused(
    wire: Wire, task: Json, commands: list[Json], kind: str, value: int, most: int
) -> None:
    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=commands)

    body = exceeded(answer, 422, kind, value, most)
    assert (body["outcome"], body["recorded"]) == ("rejected", False)
    assert (body["task_id"], body["workflow_task_attempt"]) == (task["task_id"], 1)
    wire.complete(task, complete_workflow())


def test_a_completion_may_be_as_large_as_its_bounds(wire: Wire, task: Json) -> None:
    wire.complete(task, *[schedule_activity()] * 3, *[start_timer(60)] * 3)

    assert wire.event_types()[2:] == ["ActivityScheduled"] * 3 + ["TimerScheduled"] * 3


@pytest.mark.parametrize(
    ("upsert", "kind", "value", "most"),
    [
        ({"type": "upsert_memo", "entries": avro({"b": "x" * 60})}, "memo_size", 145, 100),
        (
            {"type": "upsert_search_attributes", "attributes": {"c": 1, "d": 1}},
            "search_attribute_count",
            4,
            3,
        ),
        (
            {"type": "upsert_search_attributes", "attributes": {"c": "x" * 20}},
            "search_attribute_size",
            61,
            45,
        ),
    ],
)
def test_what_upserts_add_up_to_has_a_bound(
    wire: Wire, upsert: Json, kind: str, value: int, most: int
) -> None:
    wire.register()
    wire.start(memo={"a": "x" * 70}, search_attributes={"a": "x" * 20, "b": 1})
    task = wire.take()

    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=[upsert, complete_workflow()])

    exceeded(answer, 422, kind, value, most)


def test_a_checkpoint_has_the_bounds_of_a_completion(wire: Wire, task: Json) -> None:
    with wire.nothing_changes():
        answer = wire.report(
            task,
            "local-activities/checkpoint",
            checkpoint_id="c1",
            start_sequence=1,
            commands=[EFFECT] * 7,
        )

    exceeded(answer, 422, "command_batch_size", 7, 6)


# What clients send ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"memo": {"a": "x" * 100}}, "memo"),
        ({"search_attributes": {"a": 1, "b": 2, "c": 3, "d": 4}}, "search_attributes"),
        ({"search_attributes": {"a" * 9: 1}}, "search_attributes"),
        ({"search_attributes": {"a": "x" * 21}}, "search_attributes.a"),
        ({"search_attributes": dict.fromkeys("abc", "x" * 20)}, "search_attributes"),
    ],
)
def test_a_start_that_passes_a_bound_is_refused(wire: Wire, members: Json, field: str) -> None:
    with wire.nothing_changes():
        start(wire, **members).invalid(field)

    start(wire, memo={"a": "x" * 92}, search_attributes={"a" * 8: "x" * 20, "b": 1, "c": 2}).ok(201)


@pytest.mark.parametrize("kind", ["signal", "update", "query"])
def test_a_name_that_is_too_long_is_refused(wire: Wire, kind: str) -> None:
    wire.start()

    with wire.nothing_changes():
        send(wire, f"{kind}/{'n' * 9}").invalid(f"{kind}_name")

    assert send(wire, f"{kind}/{'n' * 8}").reason != "validation_failed"


def test_signals_that_nobody_reads_come_to_an_end(wire: Wire) -> None:
    wire.start()
    for _ in range(3):
        wire.signal("pay")

    with wire.nothing_changes():
        answer = send(wire, "signal/pay")
        body = exceeded(answer, 429, "pending_signal_count", 3, 3)
    # SDKs repeat a 429, and nothing else below 500.
    assert answer.headers["retry-after"] == str(body["retry_after_seconds"])
    assert body["retryable"] is True


def test_updates_without_an_outcome_come_to_an_end(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition())
    for _ in range(2):
        wire.update("add").ok(202)

    with wire.nothing_changes():
        exceeded(wire.update("add"), 429, "pending_update_count", 2, 2)
    task = wire.take()
    wire.complete(task, complete_update(task))
    wire.update("add").ok(202)


# Histories --------------------------------------------------------------------------------------


def test_a_history_that_is_too_long_ends_its_run(wire: Wire) -> None:
    wire.register()
    wire.start()
    while not wire.describe()["is_terminal"]:
        wire.complete(wire.take(), *[local_activity()] * 3, wait_for_condition())
        send(wire, "signal/go")

    assert wire.describe()["status"] == "failed"
    assert wire.describe()["failure"]["exception_type"] == "HistoryLimitExceeded"
    assert "more than 40 events" in wire.describe()["error"]


def test_a_history_that_is_full_takes_no_signals_beside_a_busy_code(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity())
    while wire.describe()["history_events"] < 40:
        wire.signal("pay")

    with wire.nothing_changes():
        exceeded(send(wire, "signal/pay"), 409, "history_event_count", 40, 40)
        exceeded(send(wire, "update/add"), 409, "history_event_count", 40, 40)
        appended = send(wire, "message-streams/orders/messages", message_id="m1")
        exceeded(appended, 409, "history_event_count", 40, 40)


def test_pages_are_as_large_as_chosen(wire: Wire) -> None:
    wire.register()
    wire.run_to(*[EFFECT] * 5, start_timer(1))
    wire.advance(seconds=1)
    task = wire.take()
    token = {"next_history_page_token": "MA=="}

    assert len(task["history_events"]) == 3
    assert len(wire.report(task, "history", **token).ok()["history_events"]) == 3
    largest = wire.report(task, "history", history_page_size=5, **token).ok()
    assert len(largest["history_events"]) == 5
    wire.report(task, "history", history_page_size=6, **token).invalid("history_page_size")
    poll = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0, "history_page_size": 6}
    wire.worker("/workflow-tasks/poll", poll).invalid("history_page_size")
    path = f"/workflows/order-1/runs/{task['run_id']}/history?page_size="
    assert len(wire.control("GET", f"{path}5").ok()["events"]) == 5
    assert len(wire.control("GET", path).ok()["events"]) == 5
    wire.control("GET", f"{path}6").invalid("page_size")


# Payloads ---------------------------------------------------------------------------------------


def standalone(wire: Wire, **members: Any) -> Answer:
    return wire.control("POST", "/activities", {"activity_type": "charge", **members})


PAYLOADS: dict[str, Callable[[Wire, Any], Answer]] = {
    "start": lambda wire, value: start(wire, workflow_id="order-2", input=value),
    "signal": lambda wire, value: send(wire, "signal/pay", input=value),
    "update": lambda wire, value: send(wire, "update/add", input=value),
    "message": lambda wire, value: send(
        wire, "message-streams/orders/messages", message_id="m1", input=value
    ),
    "activity": lambda wire, value: standalone(wire, input=value),
    "service call": lambda wire, value: execute(wire, arguments=value, wait_for="accepted"),
}


@pytest.mark.parametrize("way", PAYLOADS)
@pytest.mark.parametrize("value", [LARGE, ["x" * 2_000]], ids=["an envelope", "plain"])
def test_an_input_that_is_too_large_is_refused(wire: Wire, way: str, value: Any) -> None:
    wire.register()
    offer(wire)
    wire.start()
    size = len(LARGE["blob"]) if value is LARGE else 2_004

    with wire.nothing_changes():
        answer = PAYLOADS[way](wire, value)

    exceeded(answer, 409, "payload_size", size, 2_000)
    assert PAYLOADS[way](wire, avro(["x" * 1_000])).status in (200, 201, 202)


@pytest.mark.parametrize("way", sorted(PAYLOADS.keys() - {"message"}))
def test_an_input_that_was_uploaded_may_be_larger(wire: Wire, way: str) -> None:
    wire.register()
    offer(wire)
    wire.start()

    assert PAYLOADS[way](wire, outside(wire, ["x" * 2_000])).status in (200, 201, 202)


LARGE_COMMANDS = {
    "arguments": [
        schedule_activity(arguments=LARGE),
        start_child(arguments=LARGE),
        {**continue_as_new(), "arguments": LARGE},
        start_operation(request_payload=LARGE),
        local_activity(arguments=LARGE),
    ],
    "result": [
        {"type": "record_side_effect", "result": LARGE},
        {"type": "record_side_effect", "result": LARGE["blob"]},
        {"type": "complete_workflow", "result": LARGE},
        local_activity(result=LARGE),
    ],
    "envelope": [{"type": "upsert_memo", "entries": avro({"a": "x" * 2_000})}],
}


@pytest.mark.parametrize(
    ("member", "command"),
    [(member, command) for member, commands in LARGE_COMMANDS.items() for command in commands],
)
def test_a_command_that_carries_too_much_is_refused(
    wire: Wire, task: Json, member: str, command: Json
) -> None:
    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=[EFFECT, command])

    body = answer.refused(422, "structural_limit_exceeded")
    assert (body["limit_kind"], body["configured_limit"]) == ("payload_size", 2_000)
    assert body["current_value"] >= len(LARGE["blob"])
    assert f"commands.1.{member}" in body["message"]
    assert (body["outcome"], body["recorded"]) == ("rejected", False)


def test_small_commands_may_be_a_large_body(wire: Wire, task: Json) -> None:
    wire.complete(task, *[schedule_activity(arguments=avro(["x" * 1_000]))] * 3)


def test_a_payload_may_be_exactly_as_large_as_its_bound(wire: Wire, task: Json) -> None:
    wire.complete(
        task, {"type": "complete_workflow", "result": {"codec": "avro", "blob": "x" * 2_000}}
    )


def test_an_updates_result_that_is_too_large_is_refused(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition())
    wire.update("add").ok(202)
    task = wire.take()

    with wire.nothing_changes():
        answer = wire.report(
            task, "complete", commands=[{**complete_update(task), "result": LARGE}]
        )

    exceeded(answer, 422, "payload_size", len(LARGE["blob"]), 2_000)


@pytest.mark.parametrize("result", [LARGE, "x" * 2_001], ids=["an envelope", "plain"])
def test_a_result_that_is_too_large_fails_its_activity(wire: Wire, result: Any) -> None:
    """Who is only refused lets the lease run out, and all is done again, for ever."""
    wire.register()
    wire.run_to(schedule_activity(retry_policy={"max_attempts": 5}))
    task = wire.take("activity")
    size = len(LARGE["blob"]) if result is LARGE else 2_001

    for _ in range(2):
        answer = wire.report_attempt(task, "complete", result=result)
        body = exceeded(answer, 422, "payload_size", size, 2_000)
        assert (body["outcome"], body["recorded"]) == ("failed", True)
        assert body["activity_attempt_id"] == task["activity_attempt_id"]

    resumed = wire.take()
    failed = wire.report(resumed, "history", next_history_page_token="NA==").ok()
    (event,) = failed["history_events"]
    told = event["payload"]
    assert event["event_type"] == "ActivityFailed"
    assert (told["failure_category"], told["non_retryable"]) == ("structural_limit", True)
    assert told["exception_type"] == "StructuralLimitExceeded"
    assert (
        told["structural_limit_kind"],
        told["structural_limit_value"],
        told["structural_limit_configured"],
    ) == ("payload_size", size, 2_000)


def test_a_result_that_is_too_large_and_comes_too_late_is_refused_as_any_other(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity())
    task = wire.take("activity")
    wire.report_attempt(task, "complete", result=avro(1)).ok()

    with wire.nothing_changes():
        wire.report_attempt(task, "complete", result=LARGE).refused(409, "stale_attempt")


def test_a_standalone_activity_fails_by_its_result(wire: Wire) -> None:
    wire.register()
    standalone(wire, activity_id="job-1", task_queue="q").ok(201)

    wire.report_attempt(wire.take("activity"), "complete", result=LARGE)

    told = wire.control("GET", "/activities/job-1").ok()
    assert (told["status"], told["failure"]["failure_category"]) == ("failed", "structural_limit")


def test_a_prepared_local_activity_fails_by_its_result(wire: Wire, task: Json) -> None:
    asked = {"sequence": 1, "worker_attempt_id": "n" * 64}
    begun = wire.report(task, "local-activities/prepare", descriptor=local_call(), **asked).ok()
    path = f"local-activities/{begun['activity_attempt_id']}/outcome"

    for _ in range(2):
        report = {"outcome": "completed", "result": LARGE, "payload_codec": "avro"}
        answer = wire.report(task, path, report=report)
        body = exceeded(answer, 422, "payload_size", len(LARGE["blob"]), 2_000)
        assert (body["outcome"], body["recorded"]) == ("failed", True)

    (*_, failed) = wire.events()
    assert failed["event_type"] == "ActivityFailed"
    assert failed["payload"]["failure_category"] == "structural_limit"
    wire.complete(task, complete_workflow())


def test_leave_is_not_given_for_too_much(wire: Wire, task: Json) -> None:
    asked = {"sequence": 1, "worker_attempt_id": "n" * 64}
    with wire.nothing_changes():
        answer = wire.report(
            task, "local-activities/prepare", descriptor=local_call(arguments=LARGE), **asked
        )

    exceeded(answer, 422, "payload_size", len(LARGE["blob"]), 2_000)


def test_heartbeats_of_a_local_activity_are_events(wire: Wire, task: Json) -> None:
    beats = [{"elapsed_ms": 6_000 * number} for number in range(9)]
    command = local_activity(attempts=[local_attempt(heartbeats=beats)])

    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=[command])

    exceeded(answer, 422, "history_transaction_size", 12, 10)

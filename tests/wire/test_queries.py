"""Queries over the wire: asked on one plane, answered on the other, and never written down."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.machine import raise_file_limit
from perdure.core.payload import Frame
from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Answer,
    Json,
    Parked,
    Wire,
    a_wire,
    avro,
    complete_workflow,
    continue_as_new,
    fail_workflow,
    schedule_activity,
    start_timer,
    unavro,
    wait_for_condition,
)

QUERIES = ["query_tasks"]
TOTAL = {"name": "total", "parameters": []}
REPORT = {
    "name": "report",
    "parameters": [
        {"name": "title", "position": 0, "required": True, "variadic": False},
        {
            "name": "least",
            "position": 1,
            "required": False,
            "default_available": True,
            "default": 7,
        },
    ],
}
CONTRACTS = {"Order": {"queries": ["report", "total"], "query_contracts": [REPORT, TOTAL]}}


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    """A server with one worker that answers queries, and one run that waits."""
    with a_wire(tmp_path) as wire:
        wire.register(capabilities=QUERIES)
        wire.run_to(wait_for_condition())
        yield wire


def ask(
    wire: Wire,
    name: str = "total",
    *,
    workflow_id: str = "order-1",
    run_id: str | None = None,
    headers: dict[str, str] | None = None,
    **members: Any,
) -> Parked:
    """A query that is on the desk, or refused already."""
    path = f"/api/workflows/{workflow_id}" + (f"/runs/{run_id}" if run_id else "")
    before = wire.server.desk.open_count
    sent = {CONTROL_VERSION: "2", **(headers or {})}
    asked = wire.call_later("POST", f"{path}/query/{name}", members, headers=sent)
    wire.until(lambda: wire.server.desk.open_count > before or not asked.is_waiting)
    return asked


def park(wire: Wire, worker_id: str = "w1", **members: Any) -> Parked:
    """A query poll that waits."""
    before = wire.server.desk.parked_count
    body = {"worker_id": worker_id, "task_queue": "q", **members}
    headers = {WORKER_VERSION: "1.20"}
    poll = wire.call_later("POST", "/api/worker/query-tasks/poll", body, headers=headers)
    wire.until(lambda: wire.server.desk.parked_count > before or not poll.is_waiting)
    return poll


def report(wire: Wire, task: Json, verb: str, **members: Any) -> Answer:
    body = {
        "lease_owner": task["lease_owner"],
        "query_task_attempt": task["query_task_attempt"],
        **members,
    }
    return wire.worker(f"/query-tasks/{task['query_task_id']}/{verb}", body)


def status(wire: Wire, task: Json, **changed: Any) -> Answer:
    claim = {**task, **changed}
    lease = f"lease_owner={claim['lease_owner']}&query_task_attempt={claim['query_task_attempt']}"
    return wire.worker(f"/query-tasks/{claim['query_task_id']}/status?{lease}", method="GET")


# The way there and back ---------------------------------------------------------------------------


def test_a_query_is_answered_by_a_worker_and_leaves_no_trace(wire: Wire) -> None:
    with wire.nothing_changes():
        asked = ask(wire, input=avro(["EUR"]))
        task = wire.take("query")
        told = report(wire, task, "complete", result={"sum": 3}, result_envelope=avro({"sum": 3}))
        answer = asked.answer()

    assert told.ok() | {"protocol_version": "", "server_capabilities": {}} == {
        "query_task_id": task["query_task_id"],
        "query_task_attempt": 1,
        "outcome": "completed",
        "status": 200,
        "protocol_version": "",
        "server_capabilities": {},
    }
    body = answer.ok()
    run_id = wire.describe()["run_id"]
    expected = {
        "workflow_id": "order-1",
        "run_id": run_id,
        "target_scope": "instance",
        "query_name": "total",
        "result": {"sum": 3},
        "result_envelope": avro({"sum": 3}),
        "reason": None,
    }
    assert expected.items() <= body.items()
    block = body["control_plane"]
    assert block["operation"] == "query"
    assert (block["operation_name"], block["operation_name_field"]) == ("total", "query_name")


def test_a_query_task_has_everything_that_a_worker_needs(wire: Wire) -> None:
    ask(wire, input=avro(["EUR"]))

    polled = wire.poll("query", timeout_seconds=5)

    task = polled["task"]
    expected = {
        "query_task_attempt": 1,
        "workflow_id": "order-1",
        "run_id": wire.describe()["run_id"],
        "namespace": "default",
        "workflow_type": "Order",
        "query_name": "total",
        "payload_codec": "avro",
        "workflow_arguments": avro([]),
        "query_arguments": avro(["EUR"]),
        "run_status": "waiting",
        "last_history_sequence": 3,
        "total_history_events": 3,
        "task_queue": "q",
        "lease_owner": "w1",
        "lease_expires_at": "2026-01-01T00:00:40.000000Z",
        "query_admitted_at": "2026-01-01T00:00:00.000000Z",
        "query_deadline_at": "2026-01-01T00:00:40.000000Z",
        "server_time": "2026-01-01T00:00:00.000000Z",
    }
    assert expected.items() <= task.items()
    assert task["query_task_id"] == task["query_task_id"].upper()
    assert task["history_events"] == wire.events()
    assert polled["poll_status"] == "leased"
    assert polled["lease"] == {"owner": "w1", "expires_at": task["lease_expires_at"]}


def test_a_parked_poll_is_woken_by_a_query_and_a_query_waits_for_a_poll(wire: Wire) -> None:
    poll = park(wire)
    first = ask(wire)
    woken = poll.answer().ok()["task"]
    second, third = ask(wire, "second"), ask(wire, "third")

    tasks = [woken, wire.take("query"), wire.take("query")]

    assert [task["query_name"] for task in tasks] == ["total", "second", "third"]
    for task in reversed(tasks):
        report(wire, task, "complete", result=task["query_name"]).ok()
    for asked, name in zip((first, second, third), ("total", "second", "third"), strict=True):
        assert asked.answer().ok()["result"] == name


@pytest.mark.parametrize(
    ("sent", "result", "envelope"),
    [
        ({"result": [1, None]}, [1, None], None),
        ({"result_envelope": avro({"a": 1})}, {"a": 1}, avro({"a": 1})),
        (
            {"result": None, "result_envelope": avro("x", Frame.WRAPPER)},
            "x",
            avro("x", Frame.WRAPPER),
        ),
        ({"result_envelope": avro(b"\xff")}, None, avro(b"\xff")),
        ({"result": 0.1, "result_envelope": None}, 0.1, None),
        (
            {"result_envelope": {"codec": "avro", "external_storage": {"uri": "x"}}},
            None,
            {"codec": "avro", "external_storage": {"uri": "x"}},
        ),
        ({}, None, None),
    ],
    ids=["json", "envelope", "0.4 envelope", "bytes", "number", "reference", "nothing"],
)
def test_a_result_may_be_json_or_an_envelope_or_both(
    wire: Wire, sent: Json, result: Any, envelope: Json | None
) -> None:
    asked = ask(wire)
    report(wire, wire.take("query"), "complete", **sent).ok()

    body = asked.answer().ok()
    assert (body["result"], body["result_envelope"]) == (result, envelope)


@pytest.mark.parametrize("frame", list(Frame))
def test_plain_arguments_arrive_in_the_frame_of_the_worker(tmp_path: Path, frame: Frame) -> None:
    release = "2.12.0" if frame is Frame.VALUE else "0.4.106"
    with a_wire(tmp_path) as wire:
        sdk = f"durable-workflow-python/{release}"
        wire.register(capabilities=QUERIES, sdk_version=sdk)
        wire.start(input=["started", 1])

        ask(wire, input=["asked", {"a": [1]}])
        task = wire.take("query")

    assert task["query_arguments"] == avro(["asked", {"a": [1]}], frame)
    assert task["workflow_arguments"] == avro(["started", 1], frame)


@pytest.mark.parametrize("frame", list(Frame))
def test_arguments_in_an_envelope_pass_byte_for_byte(wire: Wire, frame: Frame) -> None:
    ask(wire, input=avro(["EUR", 1], frame))
    assert wire.take("query")["query_arguments"] == avro(["EUR", 1], frame)


def test_a_query_without_arguments_says_so(wire: Wire) -> None:
    ask(wire)
    assert wire.take("query")["query_arguments"] == {"codec": "avro", "blob": None}


# What a query sees --------------------------------------------------------------------------------


def test_signals_that_wait_their_turn_are_shown_behind_the_history(wire: Wire) -> None:
    wire.signal("pay", input=avro([1]))
    held = wire.take()
    wire.signal("pay", input=avro([2]))
    wire.signal("ship")

    ask(wire)
    shown = wire.take("query")["history_events"]

    recorded = wire.events()
    assert shown[: len(recorded)] == recorded
    waiting = shown[len(recorded) :]
    assert [(event["event_type"], event["payload"]["signal_name"]) for event in waiting] == [
        ("SignalReceived", "pay"),
        ("SignalReceived", "ship"),
    ]
    assert [event["sequence"] for event in shown] == list(range(1, len(shown) + 1))
    assert unavro(waiting[0]["payload"]["arguments"]) == [2]
    assert len({event["id"] for event in shown}) == len(shown)

    wire.complete(held, wait_for_condition())
    payloads = [e["payload"] for e in wire.events() if e["event_type"] == "SignalReceived"]
    assert waiting[0]["payload"] == payloads[1]


def test_a_long_history_is_delivered_whole(wire: Wire) -> None:
    """Also what memory no longer holds: workers ask for no pages of a query."""
    text = "x" * 100_000
    wire.start("long")
    for _ in range(15):
        wire.signal("pay", "long", input=avro([text]))
        wire.complete(wire.take(), wait_for_condition())

    ask(wire, workflow_id="long")
    task = wire.take("query")

    assert task["history_events"] == wire.events("long")
    assert len(task["history_events"]) == task["total_history_events"] > 30


def test_a_completed_run_answers_from_its_whole_history(wire: Wire) -> None:
    wire.start("done", input=avro(["in"]))
    wire.complete(wire.take(), complete_workflow("out"))
    with wire.nothing_changes():
        asked = ask(wire, workflow_id="done")
        task = wire.take("query")
        report(wire, task, "complete", result=1).ok()

    assert asked.answer().ok()["result"] == 1
    assert task["run_status"] == "completed"
    assert task["workflow_arguments"] == avro(["in"])
    assert task["history_events"] == wire.events("done")
    assert task["history_events"][-1]["event_type"] == "WorkflowCompleted"


def test_a_completed_run_still_answers_after_a_restart(wire: Wire) -> None:
    wire.start("done", input=avro(["in"]))
    wire.complete(wire.take(), complete_workflow("out"))
    wire.restart()

    ask(wire, workflow_id="done")

    task = wire.take("query")
    assert task["workflow_arguments"] == avro(["in"])
    assert task["history_events"] == wire.events("done")


@pytest.mark.parametrize("end", ["cancel", "terminate", "fail"])
def test_a_run_that_ended_badly_is_not_asked(wire: Wire, end: str) -> None:
    wire.start("over")
    if end == "fail":
        wire.complete(wire.take(), fail_workflow())
    else:
        wire.control("POST", f"/workflows/over/{end}", {}).ok()

    body = ask(wire, workflow_id="over").answer().refused(409, "run_not_active")

    assert body["is_terminal"] is True
    assert body["run_status"] == wire.describe("over")["status"]
    assert body["control_plane"]["operation"] == "query"
    assert (body["result"], body["query_name"]) == (None, "total")


def test_a_query_may_name_the_newest_run_and_no_other(wire: Wire) -> None:
    first = wire.start("chain")["run_id"]
    wire.complete(wire.take(), continue_as_new())
    second = wire.describe("chain")["run_id"]

    asked = ask(wire, workflow_id="chain", run_id=second)
    task = wire.take("query")
    report(wire, task, "complete", result=2).ok()
    body = asked.answer().ok()
    assert (task["run_id"], body["run_id"], body["target_scope"]) == (second, second, "run")

    refused = ask(wire, workflow_id="chain", run_id=first).answer()
    body = refused.refused(409, "historical_run_command_rejected")
    assert body["current_run_id"] == second
    ask(wire, workflow_id="chain", run_id="01jzzz").answer().refused(404, "run_not_found")


# Who may answer -----------------------------------------------------------------------------------


def test_a_query_that_nobody_can_answer_is_refused_at_once(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        wire.start()
        ask(wire).answer().refused(409, "query_worker_unavailable")
        wire.register("silent")
        wire.register("elsewhere", task_queue="other", capabilities=QUERIES)
        wire.register("ignorant", supported_workflow_types=["Child"], capabilities=QUERIES)
        body = ask(wire).answer().refused(409, "query_worker_unavailable")
        assert body["result"] is None

        wire.register(capabilities=QUERIES)
        assert ask(wire).is_waiting


def test_a_worker_that_polls_for_queries_need_not_say_so(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        wire.register()
        wire.start()
        poll = park(wire)
        ask(wire)
        assert poll.answer().ok()["task"]["query_name"] == "total"


def test_a_worker_that_went_silent_is_not_waited_for_unless_it_polls(wire: Wire) -> None:
    wire.advance(seconds=61)
    ask(wire).answer().refused(409, "query_worker_unavailable")

    poll = park(wire)
    ask(wire)
    assert poll.answer().ok()["task"]["query_name"] == "total"


def test_a_query_goes_to_the_build_of_its_run(wire: Wire) -> None:
    wire.start("pinned", build_id="blue")
    refused = ask(wire, workflow_id="pinned").answer()
    refused.refused(409, "query_worker_incompatible")

    wire.register("green", build_id="green", capabilities=QUERIES)
    wire.register("blue", build_id="blue", capabilities=QUERIES)
    green, blue = park(wire, "green"), park(wire, "blue")
    ask(wire, workflow_id="pinned")
    assert blue.answer().ok()["task"]["workflow_id"] == "pinned"
    ask(wire)
    assert green.answer().ok()["task"]["workflow_id"] == "order-1"


def test_a_query_goes_to_a_worker_that_knows_its_type(wire: Wire) -> None:
    wire.register("other", supported_workflow_types=["Child"], capabilities=QUERIES)
    other, able = park(wire, "other"), park(wire)

    ask(wire)

    assert able.answer().ok()["task"]["lease_owner"] == "w1"
    assert other.is_waiting


def test_describe_tells_whether_a_query_would_find_a_worker(wire: Wire) -> None:
    wire.start("done")
    wire.complete(wire.take(), complete_workflow())
    wire.start("over")
    wire.control("POST", "/workflows/over/cancel", {}).ok()
    able = {
        name: wire.describe(name)["actions"]["can_query"] for name in ("order-1", "done", "over")
    }
    assert able == {"order-1": True, "done": True, "over": False}

    wire.worker("/registrations/w1", None, method="DELETE").ok()
    assert wire.describe()["actions"]["can_query"] is False


# Polls --------------------------------------------------------------------------------------------


def test_a_poll_that_finds_nothing_is_empty(wire: Wire) -> None:
    assert wire.poll("query")["poll_status"] == "empty"
    wire.register("activities", supported_workflow_types=[])
    answer = wire.poll("query", "activities")
    assert (answer["task"], answer["poll_status"]) == (None, "no_workflow_capability")


def test_a_poll_must_be_of_a_registered_worker_on_its_queue_and_build(wire: Wire) -> None:
    def poll(worker_id: str, queue: str = "q", **members: Any) -> Answer:
        body = {"worker_id": worker_id, "task_queue": queue, "timeout_seconds": 0, **members}
        return wire.worker("/query-tasks/poll", body)

    poll("nobody").refused(412, "worker_not_registered")
    poll("w1", "other").refused(409, "task_queue_mismatch")
    wire.register("built", build_id="blue")
    poll("built", build_id="green").refused(409, "build_id_mismatch")
    wire.worker("/query-tasks/poll", {"task_queue": "q"}).invalid("worker_id")
    wire.worker("/registrations/built", None, method="DELETE").ok()
    poll("built").refused(412, "worker_not_registered")


def test_a_poll_that_is_repeated_gets_what_it_was_given(wire: Wire) -> None:
    ask(wire)
    first = wire.take("query", poll_request_id="p1")
    again = wire.take("query", poll_request_id="p1")
    assert again == first

    report(wire, first, "complete", result=1).ok()
    assert wire.poll("query", poll_request_id="p1")["task"] is None


def test_a_poll_whose_client_left_takes_nothing(wire: Wire) -> None:
    stream = wire.stream()
    body = b'{"worker_id":"w1","task_queue":"q"}'
    head = b"POST /api/worker/query-tasks/poll HTTP/1.1\r\nHost: x\r\n"
    head += b"X-Durable-Workflow-Protocol-Version: 1.20\r\nContent-Type: application/json\r\n"
    stream.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    wire.until(lambda: wire.server.desk.parked_count == 1)
    stream.close()
    wire.until(lambda: wire.server.desk.parked_count == 0)

    ask(wire)
    assert wire.take("query")["query_task_attempt"] == 1


def test_polls_beyond_the_bound_are_told_when_to_come_again(tmp_path: Path) -> None:
    with a_wire(tmp_path, query_polls_max=1) as wire:
        wire.register()
        park(wire)
        answer = wire.worker("/query-tasks/poll", {"worker_id": "w1", "task_queue": "q"})
        body = answer.refused(429, "long_poll_capacity_exhausted")
        expected = {
            "poll_status": "long_poll_capacity_exhausted",
            "task": None,
            "task_kind": "query_task",
            "task_queue": "q",
            "retryable": True,
            "retry_after_seconds": 1,
        }
        assert expected.items() <= body.items()
        assert wire.poll("workflow")["task"] is None, "other polls have their own room"


def test_a_worker_that_registers_anew_gets_nothing_by_an_earlier_poll(wire: Wire) -> None:
    poll = park(wire)
    wire.register(capabilities=QUERIES)
    assert poll.answer().ok()["task"] is None


# Refusals by the worker ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "status_code", "reason"),
    [
        ("rejected_unknown_query", 404, "rejected_unknown_query"),
        ("invalid_query_arguments", 422, "invalid_query_arguments"),
        ("query_rejected", 409, "query_rejected"),
        ("query_workflow_state_unavailable", 409, "query_workflow_state_unavailable"),
        ("query_workflow_type_not_registered", 409, "query_workflow_type_not_registered"),
        ("query_payload_decode_failed", 409, "query_payload_decode_failed"),
        ("query_result_encode_failed", 409, "query_result_encode_failed"),
        ("query_result_completion_failed", 409, "query_result_completion_failed"),
        ("payload_too_large", 409, "query_rejected"),
        (None, 409, "query_rejected"),
    ],
)
def test_a_failure_of_the_worker_is_told_to_the_asker(
    wire: Wire, told: str | None, status_code: int, reason: str
) -> None:
    asked = ask(wire)
    task = wire.take("query")
    failure = {"message": "no way", "type": "Boom", "stack_trace": "…"}
    if told is not None:
        failure["reason"] = told
    with wire.nothing_changes():
        reported = report(wire, task, "fail", failure=failure).ok()
        body = asked.answer().refused(status_code, reason)

    assert (reported["outcome"], reported["reason"]) == ("failed", told or "query_rejected")
    assert (body["message"], body["failure_type"], body["result"]) == ("no way", "Boom", None)
    assert body.get("failure_reason") == (told if reason != told else None)


def test_validation_errors_of_the_worker_are_passed_on(wire: Wire) -> None:
    asked = ask(wire)
    errors = {"currency": ["is required"]}
    failure = {
        "message": "no",
        "reason": "invalid_query_arguments",
        "validation_errors": errors,
    }
    report(wire, wire.take("query"), "fail", failure=failure).ok()
    body = asked.answer().refused(422, "invalid_query_arguments")
    assert body["validation_errors"] == errors


# What workers told beforehand ---------------------------------------------------------------------


def test_a_query_that_no_worker_knows_is_refused_without_one(wire: Wire) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=CONTRACTS)
    ask(wire, "colour").answer().refused(404, "rejected_unknown_query")

    wire.register("untold", capabilities=QUERIES)
    assert ask(wire, "colour").is_waiting, "a worker that told nothing may know it"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (avro([]), ["title"]),
        (avro(["a", 1, 2]), ["arguments"]),
        (avro([], Frame.WRAPPER), ["title"]),
        ([], ["title"]),
        (["a", 1, 2], ["arguments"]),
        ({"least": 1}, ["title"]),
        ({"title": "a", "colour": 1}, ["colour"]),
    ],
)
def test_arguments_that_do_not_fit_are_refused_without_a_worker(
    wire: Wire, arguments: Any, named: list[str]
) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=CONTRACTS)
    body = ask(wire, "report", input=arguments).answer().refused(422, "invalid_query_arguments")
    assert list(body["validation_errors"]) == named


@pytest.mark.parametrize(
    ("arguments", "arrived"),
    [
        (["a"], ["a"]),
        (["a", 1], ["a", 1]),
        ({"least": 1, "title": "a"}, ["a", 1]),
        ({"title": "a"}, ["a", 7]),
        (avro(["a"]), ["a"]),
    ],
)
def test_arguments_that_fit_arrive_in_their_order(
    wire: Wire, arguments: Any, arrived: list[Any]
) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=CONTRACTS)
    ask(wire, "report", input=arguments)
    assert unavro(wire.take("query")["query_arguments"]) == arrived


def test_a_payload_that_cannot_be_read_is_refused_when_it_must_be_matched(wire: Wire) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=CONTRACTS)
    broken = {"codec": "avro", "blob": "wwHioz3/VYAiNw=="}
    ask(wire, "report", input=broken).answer().invalid("input.blob")
    # One by reference is the worker's to read.
    stored = {"codec": "avro", "external_storage": {"uri": "x"}}
    assert ask(wire, "report", input=stored).is_waiting


@pytest.mark.parametrize(
    "contracts",
    [
        {"Order": None},
        {"Order": []},
        {"Order": {"queries": "total"}},
        {"Order": {"queries": ["report"], "query_contracts": [None, {"name": "report"}]}},
        {
            "Order": {
                "queries": ["report"],
                "query_contracts": [{"name": "report", "parameters": [1]}],
            }
        },
        {"Child": {"queries": []}},
    ],
)
def test_contracts_that_make_no_sense_say_nothing(wire: Wire, contracts: Json) -> None:
    wire.register(capabilities=QUERIES, workflow_command_contracts=contracts)
    assert ask(wire, "report").is_waiting


# Bad requests -------------------------------------------------------------------------------------


def test_a_bad_question_is_refused_and_changes_nothing(wire: Wire) -> None:
    with wire.nothing_changes():
        ask(wire, workflow_id="nobody").answer().refused(404, "instance_not_found")
        ask(wire, "x" * 257).answer().invalid("query_name")
        ask(wire, "a%01b").answer().invalid("query_name")
        ask(wire, input=3).answer().invalid("input")
        ask(wire, input={"codec": "json", "blob": "W10="}).answer().invalid("input.codec")
        ask(wire, input={"codec": "avro", "blob": None}).answer().invalid("input.blob")
        ask(wire, input={"codec": "avro", "blob": 3}).answer().invalid("input.blob")
        ask(wire, headers={"X-Namespace": "nowhere"}).answer().refused(404, "namespace_not_found")
    assert wire.server.desk.open_count == 0


def test_an_unknown_id_is_not_asked_in_another_namespace(wire: Wire) -> None:
    wire.server.namespaces.known.add("other")
    elsewhere = {"X-Namespace": "other"}
    ask(wire, headers=elsewhere).answer().refused(404, "instance_not_found")

    asked = ask(wire)
    task = wire.take("query")
    lease = {"lease_owner": "w1", "query_task_attempt": 1}
    for verb, members in (
        ("complete", {"result": 1}),
        ("fail", {"failure": {"message": "no"}}),
    ):
        path = f"/query-tasks/{task['query_task_id']}/{verb}"
        refused = wire.worker(path, {**lease, **members}, headers=elsewhere)
        refused.refused(404, "query_task_not_found")
    assert asked.is_waiting


def test_an_answer_that_is_too_large_is_refused_and_may_be_replaced(tmp_path: Path) -> None:
    with a_wire(tmp_path, body_bytes_max=2_000) as wire:
        wire.register(capabilities=QUERIES)
        wire.start()
        assert ask(wire, input=["x" * 3_000]).answer().refused(413, "payload_too_large")
        asked = ask(wire)
        task = wire.take("query")
        report(wire, task, "complete", result="x" * 3_000).refused(413, "payload_too_large")
        report(wire, task, "fail", failure={"message": "too large"}).ok()
        asked.answer().refused(409, "query_rejected")


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("complete", {"query_task_attempt": 1}, "lease_owner"),
        ("complete", {"lease_owner": "w1"}, "query_task_attempt"),
        ("complete", {"lease_owner": "w1", "query_task_attempt": 0}, "query_task_attempt"),
        (
            "complete",
            {"lease_owner": "w1", "query_task_attempt": 1, "result_envelope": {"blob": "x"}},
            "result_envelope",
        ),
        (
            "complete",
            {
                "lease_owner": "w1",
                "query_task_attempt": 1,
                "result_envelope": {"codec": "json", "blob": "x"},
            },
            "result_envelope.codec",
        ),
        ("fail", {"lease_owner": "w1", "query_task_attempt": 1}, "failure"),
        ("fail", {"lease_owner": "w1", "query_task_attempt": 1, "failure": {}}, "failure.message"),
    ],
)
def test_a_bad_report_is_refused_and_the_query_goes_on(
    wire: Wire, verb: str, body: Json, field: str
) -> None:
    asked = ask(wire)
    task = wire.take("query")
    wire.worker(f"/query-tasks/{task['query_task_id']}/{verb}", body).invalid(field)
    assert asked.is_waiting
    report(wire, task, "complete", result=1).ok()
    assert asked.answer().ok()["result"] == 1


# Leases -------------------------------------------------------------------------------------------


def test_only_the_holder_of_the_lease_may_answer(wire: Wire) -> None:
    asked = ask(wire)
    task = wire.take("query")
    stranger = {**task, "lease_owner": "w2"}
    refused = report(wire, stranger, "complete", result=0)
    body = refused.refused(409, "lease_owner_mismatch")
    assert (body["lease_owner"], body["outcome"]) == ("w1", "rejected")
    later = {**task, "query_task_attempt": 2}
    body = report(wire, later, "complete", result=0).refused(409, "query_task_attempt_mismatch")
    assert body["current_attempt"] == 1
    unknown = {**task, "query_task_id": "01ZZZ"}
    report(wire, unknown, "complete", result=0).refused(404, "query_task_not_found")
    assert asked.is_waiting


def test_a_report_that_is_repeated_gets_the_same_answer(wire: Wire) -> None:
    asked = ask(wire)
    task = wire.take("query")
    first = report(wire, task, "complete", result=1).ok()
    assert report(wire, task, "complete", result=1).ok() == first
    assert asked.answer().ok()["result"] == 1
    report(wire, task, "fail", failure={"message": "no"}).refused(409, "query_task_not_leased")

    failed = ask(wire)
    task = wire.take("query")
    first = report(wire, task, "fail", failure={"message": "no"}).ok()
    assert report(wire, task, "fail", failure={"message": "no"}).ok() == first
    failed.answer().refused(409, "query_rejected")

    wire.advance(seconds=181)
    report(wire, task, "fail", failure={"message": "no"}).refused(404, "query_task_not_found")


@pytest.mark.parametrize("taken", [False, True])
def test_a_query_that_is_not_answered_in_time_is_refused(wire: Wire, taken: bool) -> None:
    asked = ask(wire)
    task = wire.take("query") if taken else None
    wire.advance(seconds=39)
    assert asked.is_waiting
    with wire.nothing_changes():
        wire.advance(seconds=2)
        body = asked.answer().refused(504, "query_worker_timeout")

    assert body["query_task_status"] == ("leased" if taken else "pending")
    assert body["result"] is None
    assert body["control_plane"]["operation"] == "query"
    if task is not None:
        for _ in range(2):
            report(wire, task, "complete", result=1).refused(409, "query_task_timed_out")
    assert wire.poll("query")["task"] is None


def test_a_lease_that_ends_before_the_deadline_makes_room_for_the_next(tmp_path: Path) -> None:
    with a_wire(tmp_path, query_lease_timeout=10_000_000) as wire:
        wire.register(capabilities=QUERIES)
        wire.start()
        asked = ask(wire)
        lost = wire.take("query")
        assert lost["lease_expires_at"] == "2026-01-01T00:00:10.000000Z"
        wire.advance(seconds=11)
        report(wire, lost, "complete", result=1).refused(409, "lease_expired")
        second = wire.take("query")
        assert second["query_task_id"] == lost["query_task_id"]
        assert second["query_task_attempt"] == 2
        report(wire, lost, "complete", result=1).refused(409, "query_task_attempt_mismatch")
        wire.advance(seconds=22)
        third = wire.take("query")
        assert third["lease_expires_at"] == third["query_deadline_at"]
        report(wire, third, "complete", result=3).ok()
        assert asked.answer().ok()["result"] == 3


def test_a_worker_that_says_goodbye_leaves_its_query_to_others(wire: Wire) -> None:
    wire.register("w2", capabilities=QUERIES)
    asked = ask(wire)
    lost = wire.take("query")
    poll = park(wire, "w2")
    wire.worker("/registrations/w1", None, method="DELETE").ok()

    task = poll.answer().ok()["task"]

    assert (task["query_task_id"], task["query_task_attempt"]) == (lost["query_task_id"], 2)
    report(wire, lost, "complete", result=1).refused(409, "lease_owner_mismatch")
    report(wire, task, "complete", result=2).ok()
    assert asked.answer().ok()["result"] == 2


def test_an_asker_that_leaves_takes_its_question_along(wire: Wire) -> None:
    stream = wire.stream()
    head = b"POST /api/workflows/order-1/query/total HTTP/1.1\r\nHost: x\r\n"
    stream.send(head + b"X-Durable-Workflow-Control-Plane-Version: 2\r\n\r\n")
    wire.until(lambda: wire.server.desk.open_count == 1)
    task = wire.take("query")
    stream.close()
    wire.until(lambda: wire.server.desk.open_count == 0)

    assert status(wire, task).ok()["can_continue"] is False
    report(wire, task, "complete", result=1).refused(409, "query_task_not_leased")


# Authority ----------------------------------------------------------------------------------------


def test_a_worker_may_ask_whether_its_query_still_matters(wire: Wire) -> None:
    asked = ask(wire)
    task = wire.take("query")
    wire.advance(seconds=3)

    with wire.nothing_changes():
        seen = status(wire, task).ok()

    expected = {
        "query_task_id": task["query_task_id"],
        "query_task_attempt": 1,
        "lease_owner": "w1",
        "lease_expires_at": task["lease_expires_at"],
        "query_admitted_at": task["query_admitted_at"],
        "query_deadline_at": task["query_deadline_at"],
        "query_task_status": "leased",
        "can_continue": True,
        "reason": None,
        "server_time": "2026-01-01T00:00:03.000000Z",
    }
    assert expected.items() <= seen.items()
    report(wire, task, "complete", result=1).ok()
    over = status(wire, task).ok()
    assert (over["can_continue"], over["query_task_status"]) == (False, "completed")
    asked.answer().ok()


def test_nobody_else_is_told_about_a_query(wire: Wire) -> None:
    ask(wire)
    task = wire.take("query")
    status(wire, task, lease_owner="w2").refused(409, "lease_owner_mismatch")
    status(wire, task, query_task_attempt=2).refused(409, "query_task_attempt_mismatch")
    status(wire, task, query_task_id="nothing").refused(404, "query_task_not_found")
    status(wire, task, lease_owner="").invalid("lease_owner")
    status(wire, task, query_task_attempt="x").invalid("query_task_attempt")
    wire.advance(seconds=41)
    over = status(wire, task).ok()
    assert (over["can_continue"], over["reason"]) == (False, "query_task_timed_out")


# Bounds and ends ----------------------------------------------------------------------------------


def test_only_so_many_queries_wait_on_one_queue(tmp_path: Path) -> None:
    with a_wire(tmp_path, queries_pending_max=2) as wire:
        wire.register(capabilities=QUERIES)
        wire.register("elsewhere", task_queue="other", capabilities=QUERIES)
        wire.start()
        wire.start("order-2", task_queue="other")
        first, second = ask(wire), ask(wire)
        body = ask(wire).answer().refused(429, "query_task_queue_full")
        assert (body["max_pending_per_queue"], body["result"]) == (2, None)
        assert ask(wire, workflow_id="order-2").is_waiting, "another queue has its own room"

        wire.take("query")
        third = ask(wire)
        assert first.is_waiting
        assert second.is_waiting
        assert third.is_waiting


def test_a_stopping_server_lets_nobody_wait(wire: Wire) -> None:
    wire.register("idle", supported_workflow_types=["Child"])
    poll = park(wire, "idle")
    pending, leased = ask(wire, "one"), ask(wire, "two")
    wire.take("query")

    wire.server.drain()

    for asked in (pending, leased):
        body = asked.answer().refused(503, "query_task_queue_unavailable")
        assert (body["retryable"], body["retry_after_seconds"]) == (True, 1)
    ask(wire).answer().refused(503, "query_task_queue_unavailable")
    assert poll.answer().ok()["task"] is None
    assert wire.poll("query")["task"] is None


def test_a_thousand_queries_at_once_are_all_answered_or_refused(tmp_path: Path) -> None:
    """More than may wait: the rest hear so. Nobody is left without a word."""
    raise_file_limit()
    with a_wire(tmp_path, queries_pending_max=900) as wire:
        wire.register(capabilities=QUERIES)
        wire.run_to(wait_for_condition())
        with wire.nothing_changes():
            answers = wire.run(ask_a_thousand(wire))
        assert wire.server.desk.open_count == 0

    assert len(answers) == 1_000
    results = {
        number: answer.ok()["result"] for number, answer in answers.items() if answer.status == 200
    }
    assert results == {number: f"q{number}" for number in results}
    assert len(results) >= 900
    for number in answers.keys() - results.keys():
        answers[number].refused(429, "query_task_queue_full")


async def ask_a_thousand(wire: Wire) -> dict[int, Answer]:
    """All of them are under way before a worker polls for the first."""
    answers: dict[int, Answer] = {}

    async def ask_one(number: int) -> None:
        path = f"/api/workflows/order-1/query/q{number}"
        answers[number] = await send_alone(wire.port, path, {}, f"{CONTROL_VERSION}: 2")

    async def work() -> None:
        async def send(path: str, body: Json) -> Json:
            place = f"/api/worker/query-tasks/{path}"
            return (await send_alone(wire.port, place, body, f"{WORKER_VERSION}: 1.20")).ok()

        poll = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0}
        while len(answers) < 1_000:
            task = (await send("poll", poll))["task"]
            if task is not None:
                done = {"lease_owner": "w1", "query_task_attempt": 1, "result": task["query_name"]}
                await send(f"{task['query_task_id']}/complete", done)

    async with asyncio.TaskGroup() as group:
        for number in range(1_000):
            group.create_task(ask_one(number))
        await wire.loop.turn_until(lambda: wire.server.desk.open_count + len(answers) == 1_000)
        for _ in range(4):
            group.create_task(work())
    return answers


async def send_alone(port: int, path: str, body: Json, version: str) -> Answer:
    """One call on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{version}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    told, _, told_content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return Answer(int(told.split(b" ")[1]), {}, told_content)


def test_queries_do_not_disturb_the_work_of_a_run(wire: Wire) -> None:
    wire.start("busy")
    task = wire.take()
    asked = ask(wire, workflow_id="busy")
    query = wire.take("query")
    wire.complete(task, schedule_activity(), start_timer(60))
    report(wire, query, "complete", result=1).ok()
    assert asked.answer().ok()["result"] == 1
    assert wire.event_types("busy").count("ActivityScheduled") == 1

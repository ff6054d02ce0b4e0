"""Queries are asked on one plane, answered on the other, and never written down."""

from pathlib import Path
from typing import Any

import pytest

from perdure.core.payload import Frame
from tests.support.http import (
    Json,
    Wire,
    a_wire,
    avro,
    complete_workflow,
    continue_as_new,
    fail_workflow,
    unavro,
    wait_for_condition,
)
from tests.wire.queries.asking import QUERIES, ask, park, report

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

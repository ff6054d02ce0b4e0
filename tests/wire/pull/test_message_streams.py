"""Message streams over the wire: what is answered, and every way to be refused."""

from typing import Any

import pytest

from perdure.core import limits
from tests.support.http import (
    Answer,
    Json,
    Wire,
    avro,
    complete_workflow,
    contract_of,
    unavro,
    wait_for_condition,
    wait_for_signal,
)
from tests.support.uploads import outside

RESERVED = "__durable_workflow_message_stream"


@pytest.fixture
def waiting(wire: Wire) -> Json:
    """A run whose code waits for a message."""
    wire.register()
    started = wire.start()
    told = {"message_stream_waits": [{"stream_name": "orders", "after_position": 0}]}
    waits = wait_for_condition("message-stream:orders:0")
    wire.report(wire.take(), "complete", commands=[waits], **told).ok()
    return started


def append(wire: Wire, stream: str = "orders", workflow_id: str = "order-1", **body: Any) -> Answer:
    path = f"/workflows/{workflow_id}/message-streams/{stream}/messages"
    return wire.control("POST", path, body)


def test_a_message_is_accepted_with_its_position(wire: Wire, waiting: Json) -> None:
    body = append(wire, message_id="m-1", input=avro(["two coffees"])).ok(202)

    assert body.pop("control_plane")["operation"] == "append_message"
    command_id = body.pop("command_id")
    assert len(command_id) == 26
    assert body == {
        "accepted": True,
        "workflow_id": "order-1",
        "run_id": waiting["run_id"],
        "workflow_type": "Order",
        "stream_name": "orders",
        "message_id": "m-1",
        "position": 1,
        "outcome": "message_accepted",
        "command_status": "accepted",
        "command_source": "control_plane",
        "target_scope": "instance",
        "duplicate": False,
        "intent_verified": True,
    }
    task = wire.take()
    assert (task["signal_name"], task["workflow_command_id"]) == (RESERVED, command_id)
    (told,) = unavro(task["history_events"][-1]["payload"]["arguments"])
    assert (told["position"], unavro(told["payload_envelope"])) == (1, ["two coffees"])


def test_a_repeated_message_changes_nothing(wire: Wire, waiting: Json) -> None:
    first = append(wire, message_id="m-1", input=avro([1])).ok(202)

    with wire.nothing_changes():
        again = append(wire, message_id="m-1", input=avro([1])).ok(202)
        other = append(wire, message_id="m-1", input=avro([2])).ok(202)

    assert (again["position"], again["command_id"]) == (1, first["command_id"])
    assert (again["duplicate"], again["intent_verified"]) == (True, True)
    assert (other["position"], other["intent_verified"]) == (1, False)


def test_describe_says_which_message_is_waited_for(wire: Wire, waiting: Json) -> None:
    told = wire.describe()

    assert told["wait_kind"] == "message_stream"
    assert told["wait_reason"] == "waits for a message of stream orders behind position 0"
    assert told["next_cause"]["name"] == "orders"


def test_input_may_be_absent_or_plain(wire: Wire, waiting: Json) -> None:
    append(wire, message_id="none").ok(202)
    append(wire, message_id="plain", input=["two", {"cups": 2}]).ok(202)

    task = wire.take()
    (told,) = unavro(task["history_events"][-1]["payload"]["arguments"])
    assert unavro(told["payload_envelope"]) == []
    waits = wait_for_condition("message-stream:orders:1")
    read = {"message_stream_cursors": [{"stream_name": "orders", "through_position": 1}]}
    wire.report(task, "complete", commands=[waits], **read).ok()
    (told,) = unavro(wire.take()["history_events"][-1]["payload"]["arguments"])
    assert unavro(told["payload_envelope"]) == ["two", {"cups": 2}]


@pytest.mark.parametrize("name", ["", "a b", "caf%C3%A9", "a%2Fb", "n" * 129, "a%0A"])
def test_a_stream_is_named_portably(wire: Wire, waiting: Json, name: str) -> None:
    with wire.nothing_changes():
        answer = append(wire, name, message_id="m")
    if name:
        answer.refused(400, "invalid_stream_name")
    else:
        answer.refused(404, "not_found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "message_id"),
        ({"message_id": ""}, "message_id"),
        ({"message_id": "m" * 256}, "message_id"),
        ({"message_id": 7}, "message_id"),
        ({"message_id": "m", "input": "text"}, "input"),
        ({"message_id": "m", "input": avro("no list")}, "input"),
        ({"message_id": "m", "input": {"codec": "json", "blob": "[]"}}, "input.codec"),
        ({"message_id": "m", "input": {"codec": "avro", "blob": 7}}, "input.blob"),
        ({"message_id": "m", "input": [2**70]}, "input"),
        (
            {"message_id": "m", "input": {"codec": "avro", "external_storage": {"size": 2**70}}},
            "input",
        ),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(
    wire: Wire, waiting: Json, body: Json, field: str
) -> None:
    with wire.nothing_changes():
        append(wire, **body).invalid(field)


def test_nobody_and_closed_runs_take_no_message(wire: Wire, waiting: Json) -> None:
    append(wire, workflow_id="nobody", message_id="m").refused(404, "instance_not_found")
    append(wire, message_id="m", input=avro([1])).ok(202)
    wire.complete(wire.take(), complete_workflow())

    with wire.nothing_changes():
        append(wire, message_id="n").refused(409, "run_not_active")
        assert append(wire, message_id="m", input=avro([1])).ok(202)["duplicate"]


def test_another_namespace_has_no_such_workflow(wire: Wire, waiting: Json) -> None:
    path = "/workflows/order-1/message-streams/orders/messages"
    body = {"message_id": "m"}
    with wire.nothing_changes():
        answer = wire.control("POST", path, body, headers={"X-Namespace": "other"})
    answer.refused(404, "namespace_not_found")


def test_too_many_messages_are_refused(
    wire: Wire, waiting: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PENDING_MESSAGES_MAX", 1)
    append(wire, message_id="m").ok(202)

    body = append(wire, message_id="n").refused(429, "structural_limit_exceeded")
    assert (body["limit_kind"], body["configured_limit"]) == ("pending_message_count", 1)


@pytest.mark.parametrize(
    "told",
    [
        {"message_stream_cursors": [{"stream_name": "a b", "through_position": 0}]},
        {"message_stream_cursors": [{"stream_name": "orders", "through_position": -1}]},
        {"message_stream_cursors": [{"stream_name": "orders"}]},
        {"message_stream_waits": [{"stream_name": "n" * 129, "after_position": 0}]},
        {"message_stream_waits": [{"stream_name": "orders", "after_position": "x"}]},
        {"message_stream_waits": "orders"},
    ],
)
def test_a_completion_tells_of_streams_in_their_form(wire: Wire, waiting: Json, told: Json) -> None:
    append(wire, message_id="m").ok(202)
    task = wire.take()
    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=[complete_workflow()], **told)
    answer.refused(422, "validation_failed")


def test_a_completion_cannot_have_read_what_nobody_sent(wire: Wire, waiting: Json) -> None:
    append(wire, message_id="m").ok(202)
    task = wire.take()
    told = {"message_stream_cursors": [{"stream_name": "orders", "through_position": 2}]}
    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=[complete_workflow()], **told)
    answer.refused(409, "invalid_commands")
    wire.report(task, "complete", commands=[complete_workflow()]).ok()


def test_the_reserved_name_is_nobodys(wire: Wire, waiting: Json) -> None:
    with wire.nothing_changes():
        for base in ("/workflows/order-1", f"/workflows/order-1/runs/{waiting['run_id']}"):
            answer = wire.control("POST", f"{base}/signal/{RESERVED}", {"input": avro([])})
            answer.invalid("signal_name")
        contract = contract_of("Order", signals={RESERVED: 1})
        body = {
            "worker_id": "w2",
            "task_queue": "q",
            "runtime": "python",
            "workflow_command_contracts": contract,
        }
        answer = wire.worker("/register", body)
        answer.invalid("workflow_command_contracts.Order.signals")
    append(wire, message_id="m").ok(202)
    task = wire.take()
    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=[wait_for_signal(RESERVED)])
        answer.invalid("commands.0.signal_name")


def test_an_id_may_be_any_text(wire: Wire, waiting: Json) -> None:
    for position, message_id in enumerate(["a\0b", "\x1f", "\U0001f600", "a/b"], start=1):
        for _ in range(2):
            body = append(wire, message_id=message_id).ok(202)
            assert (body["message_id"], body["position"]) == (message_id, position)


def test_messages_survive_a_restart(wire: Wire, waiting: Json) -> None:
    append(wire, message_id="m-1", input=avro([1])).ok(202)
    append(wire, message_id="m-2", input=avro([2])).ok(202)
    wire.restart()

    assert append(wire, message_id="m-1", input=avro([1])).ok(202)["duplicate"]
    assert append(wire, message_id="m-3").ok(202)["position"] == 3


def test_discovery_tells_of_message_streams(wire: Wire) -> None:
    info = wire.call("GET", "/api/cluster/info").ok()

    assert info["capabilities"]["message_streams"] is True
    assert info["worker_protocol"]["server_capabilities"]["message_streams"] is True
    assert info["structural_limits"]["pending_message_count"] == limits.PENDING_MESSAGES_MAX


def test_a_message_that_was_uploaded_reaches_the_code(wire: Wire, waiting: Json) -> None:
    append(wire, message_id="m", input=outside(wire, ["n" * 500])).ok(202)

    (told,) = unavro(wire.take()["history_events"][-1]["payload"]["arguments"])
    assert unavro(told["payload_envelope"]) == ["n" * 500]


def test_a_message_names_only_what_was_uploaded(wire: Wire, waiting: Json) -> None:
    envelope = outside(wire, [1])
    envelope["external_payload"]["reference_id"] = "ep_" + "0" * 26
    with wire.nothing_changes():
        append(wire, message_id="m", input=envelope).refused(404, "external_payload_not_found")

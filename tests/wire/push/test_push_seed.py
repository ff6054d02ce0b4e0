"""The examples of the protocol's reference, sent byte for byte, as `curl -d` sends them."""

import json
from typing import Any

import pytest

from tests.support.http import Answer, Json, Wire
from tests.support.runner import rows, settled, step_id, steps
from tests.wire.push.test_push_serve import ServedRunner

REGISTER = b"""{
"app": "order-app",
"runner": "node-7",
"url": "http://localhost:6773/invoke",
"runtime": "bun",
"language": "typescript",
"version": "0.1.0",
"protocolVersion": 1,
"workflows": [
{
"name": "order.created",
"retry": { "maxAttempts": 3 },
"concurrency": { "limit": 5, "key": "accountId" }
}
]
}"""
EVENT = (
    b'{ "name": "order.created", "app": "order-app", "runner": "node-7", '
    b'"dedupeId": "evt-A1", "data": { "orderId": "A1" } }'
)
OPCODE = (
    b'{ "op": "StepRun", "id": "9f2b8c...", "name": "charge", "data": { "chargeId": "ch_A1" } }'
)
LOG = (
    b'{ "level": "info", "message": "charging card", "fields": { "amount": 4200 }, '
    b'"scope": "charge", "index": 0, "tsMs": 1718900000000 }'
)
GATES = ("skipped", "dropped", "debounced", "batched", "deduped")


@pytest.fixture
def served(wire: Wire) -> Any:
    runner = ServedRunner(wire)
    yield runner
    runner.close()


def curl(wire: Wire, path: str, data: bytes) -> Answer:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "*/*"}
    return wire.call("POST", path, content=data, headers=form)


def test_the_registration_of_the_reference_is_taken_as_it_is(wire: Wire) -> None:
    told = curl(wire, "/register", REGISTER).ok()

    assert (told["app"], told["runner"], told["protocolVersion"]) == ("order-app", "node-7", 1)
    [runner] = rows(wire, "/runners?app=order-app")
    expected = {
        "runnerId": "node-7",
        "url": "http://localhost:6773/invoke",
        "live": True,
        "runtime": "bun",
        "language": "typescript",
        "version": "0.1.0",
    }
    assert {name: runner[name] for name in expected} == expected
    [workflow] = rows(wire, "/workflows")
    assert (workflow["name"], workflow["maxAttempts"]) == ("order.created", 3)
    assert workflow["flowControl"]["concurrency"] == {"limit": 5, "key": "accountId"}


def test_the_run_of_the_reference_goes_as_it_says(wire: Wire, served: ServedRunner) -> None:
    port = str(served.port).encode()
    curl(wire, "/register", REGISTER.replace(b"localhost:6773", b"127.0.0.1:" + port)).ok()

    told = curl(wire, "/events", EVENT).ok(202)

    run_id = told["runId"]
    assert told["woke"] == 0
    assert [told[gate] for gate in GATES] == [False] * 5
    [triggered] = told["triggered"]
    assert (triggered["workflow"], triggered["runId"]) == ("order.created", run_id)
    first = served.next()
    assert first.line == "POST /invoke HTTP/1.1"
    assert first.headers["content-type"] == "application/json"
    assert first.headers["x-durablex-protocol"] == "1"
    assert first.body["event"] == {"name": "order.created", "data": {"orderId": "A1"}}
    assert first.body["steps"] == {}
    context: Json = first.body["ctx"]
    traceparent = context.pop("traceparent")
    assert context.pop("passTimeoutMs") == 300_000
    assert len(traceparent.split("-")) == 4
    assert context == {
        "runId": run_id,
        "workflow": "order.created",
        "attempt": 1,
        "app": "order-app",
        "runner": "node-7",
    }

    first.answer_bytes(206, b'{ "opcodes": [%b], "logs": [%b] }' % (OPCODE, LOG))
    second = served.next()
    # The engine takes the id for what it is: a key that the runner made.
    assert second.body["steps"] == {"9f2b8c...": {"data": {"chargeId": "ch_A1"}}}
    second.answer_bytes(200, b'{ "data": { "ok": true }, "logs": [] }')

    run = settled(wire, run_id, "succeeded")
    assert run["result"] == {"ok": True}
    [step] = steps(wire, run_id)
    assert (step["name"], step["output"]) == ("charge", {"chargeId": "ch_A1"})
    [line] = rows(wire, f"/runs/{run_id}/logs")
    assert (line["level"], line["message"], line["scope"]) == ("info", "charging card", "charge")
    assert line["fields"] == {"amount": 4200}
    again = curl(wire, "/events", EVENT).ok(202)
    assert (again["deduped"], "runId" in again) == (True, False)
    assert len(rows(wire, "/events?app=order-app&name=order.created")) == 1


def test_a_failed_run_is_found_and_driven_again_as_it_says(
    wire: Wire, served: ServedRunner
) -> None:
    port = str(served.port).encode()
    curl(wire, "/register", REGISTER.replace(b"localhost:6773", b"127.0.0.1:" + port)).ok()
    run_id = curl(wire, "/events", EVENT).ok(202)["runId"]
    error = {"message": "card declined"}
    opcode = {"op": "StepRun", "id": step_id("charge"), "name": "charge", "error": error}
    served.next().answer(206, {"opcodes": [{**opcode, "retriable": False}], "logs": []})
    settled(wire, run_id, "failed")

    [failed] = rows(wire, "/runs?status=failed")
    assert failed["error"]["message"] == "card declined"
    again = wire.call("POST", f"/runs/{run_id}/replay").ok()
    assert again["replayOf"] == run_id
    invoke = served.next()
    assert invoke.body["ctx"]["runId"] == again["id"]
    assert json.loads(invoke.content)["steps"] == {}
    invoke.answer(200, {"data": None, "logs": []})
    settled(wire, again["id"], "succeeded")

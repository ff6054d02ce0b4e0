"""External payloads may be named wherever an envelope may stand, and nowhere else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.core import limits
from perdure.server.settings import sqlite_path
from tests.support.http import (
    CONTROL_VERSION,
    Json,
    Wire,
    a_wire,
    avro,
    complete_workflow,
    contract_of,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
)
from tests.support.uploads import HOUR, fetch, outside, unknown, upload

# Wherever an envelope may stand -------------------------------------------------------------------


def test_a_reference_goes_through_a_whole_life_as_it_is(wire: Wire) -> None:
    wire.register(capabilities=["query_tasks"])
    given, charged, paid = (outside(wire, [name]) for name in ("given", "charged", "paid"))
    wire.start(input=given)
    task = wire.take()
    assert task["arguments"] == given
    wire.complete(task, schedule_activity(arguments=charged))
    attempt = wire.take("activity")
    assert attempt["arguments"] == charged
    wire.report_attempt(attempt, "complete", result=paid).ok()
    dice, told, asked, answered = (outside(wire, name) for name in ("d", "t", "a", "b"))
    wire.complete(wire.take(), {"type": "record_side_effect", "result": dice}, wait_for_condition())
    wire.signal("poke", input=told)
    wire.complete(wire.take(), wait_for_condition())
    waiting = wire.update_later(wait_for="completed", input=asked)
    update = wire.take()
    wire.complete(
        update,
        {"type": "complete_update", "update_id": update["workflow_update_id"], "result": answered},
    )
    body = waiting.answer().ok()
    assert (body["result"], body["result_envelope"]) == (None, answered)
    wire.complete(wire.take(), wait_for_condition())
    _ask(wire, outside(wire, ["question"]), outside(wire, "answer"))
    wire.signal("go")
    last = outside(wire, ["on"])
    wire.complete(wire.take(), {"type": "continue_as_new", "arguments": last})
    successor = wire.take()
    assert successor["arguments"] == last
    small, end = outside(wire, ["small"]), outside(wire, "end")
    wire.complete(successor, start_child(arguments=small))
    child = wire.take()
    assert child["arguments"] == small
    wire.complete(child, {"type": "complete_workflow", "result": end})
    wire.complete(wire.take(), {"type": "complete_workflow", "result": end})
    assert wire.describe()["output_envelope"] == end

    # Whatever anything durable named is there for good; what a query said is not.
    wire.advance(seconds=HOUR + 1)
    wire.advance(seconds=HOUR + 1)
    named = (given, charged, paid, dice, told, asked, answered, last, small, end)
    for envelope in named:
        assert fetch(wire, envelope["external_payload"]).status == 200
    assert len(wire.stored()["payload"]) == len(named)
    runs = wire.control("GET", "/workflows").ok()["workflows"]
    text = str([wire.events(run["workflow_id"], run["run_id"]) for run in runs])
    for envelope in named:
        assert str(envelope) in text


def _ask(wire: Wire, question: Json, answer: Json) -> None:
    asked = wire.call_later(
        "POST",
        "/api/workflows/order-1/query/total",
        {"input": question},
        headers={CONTROL_VERSION: "2"},
    )
    task = wire.take("query")
    assert task["query_arguments"] == question
    lease = {name: task[name] for name in ("lease_owner", "query_task_attempt")}
    body = {**lease, "result": None, "result_envelope": answer}
    wire.worker(f"/query-tasks/{task['query_task_id']}/complete", body).ok()
    told = asked.answer().ok()
    assert (told["result"], told["result_envelope"]) == (None, answer)


def test_memo_entries_that_were_uploaded_are_shown(wire: Wire) -> None:
    wire.register()
    entries = outside(wire, {"note": "n" * 500})
    wire.run_to({"type": "upsert_memo", "entries": entries}, start_timer(1))
    assert wire.describe()["memo"] == {"note": "n" * 500}
    event = next(e for e in wire.events() if e["event_type"] == "MemoUpserted")
    assert "external_payload" not in str(event)


def test_details_of_a_failure_may_be_uploaded(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity())
    details = outside(wire, {"log": "l" * 500})
    failure = {"message": "no", "details": details}
    wire.report_attempt(wire.take("activity"), "fail", failure=failure).ok()
    wire.advance(seconds=HOUR + 1)
    assert fetch(wire, details["external_payload"]).status == 200


def test_what_is_handed_to_another_namespace_can_be_fetched_there(wire: Wire) -> None:
    """A call of a service takes its payload along, and brings one back."""
    wire.server.namespaces.known.add("bank")
    bank = {"X-Namespace": "bank"}
    service = "/service-endpoints/billing/services/cards"
    binding = {
        "handler_binding_kind": "workflow_run",
        "handler_binding": {"workflow_type": "Child", "task_queue": "q"},
    }
    for path, body in (
        ("/service-endpoints/billing", {}),
        (service, {}),
        (f"{service}/operations/charge", binding),
    ):
        wire.control("PUT", path, body, headers=bank).ok(201)
    worker = {
        "worker_id": "b1",
        "task_queue": "q",
        "runtime": "python",
        "supported_workflow_types": ["Child"],
    }
    wire.worker("/register", worker, headers=bank).ok(201)
    wire.register()
    asked = outside(wire, ["asked"])
    wire.start()
    call = {
        "type": "start_service_operation",
        "endpoint_name": "billing",
        "service_name": "cards",
        "operation_name": "charge",
        "payload_codec": "avro",
        "request_payload": asked,
        "metadata": {"caller_sdk_language": "sdk-python"},
        "mode_override": "sync",
        "wait_for": "completed",
        "namespace": "bank",
    }
    fetch(wire, asked["external_payload"], **bank).refused(404, "external_payload_not_found")
    wire.complete(wire.take(), call)

    poll = {"worker_id": "b1", "task_queue": "q", "timeout_seconds": 5}
    handler = wire.worker("/workflow-tasks/poll", poll, headers=bank).ok()["task"]
    assert handler["arguments"] == asked
    assert fetch(wire, asked["external_payload"], **bank).status == 200
    blob = avro("answered")["blob"].encode()
    answered: Json = {"codec": "avro", "external_payload": upload(wire, blob, **bank)}
    report: Json = {
        "lease_owner": "b1",
        "workflow_task_attempt": handler["workflow_task_attempt"],
        "commands": [{"type": "complete_workflow", "result": answered}],
    }
    wire.worker(f"/workflow-tasks/{handler['task_id']}/complete", report, headers=bank).ok()

    ended = wire.take()["history_events"][-1]["payload"]
    assert ended["response_payload"] == answered
    wire.advance(seconds=HOUR + 1)
    assert fetch(wire, answered["external_payload"]).content == blob
    assert len(wire.stored()["payload"]) == 2


# What cannot be named -----------------------------------------------------------------------------


def make_start(wire: Wire) -> Callable[[Json], Any]:
    return lambda envelope: wire.control(
        "POST", "/workflows", {"workflow_type": "Order", "input": envelope}
    )


def make_standalone(wire: Wire) -> Callable[[Json], Any]:
    return lambda envelope: wire.control(
        "POST", "/activities", {"activity_type": "charge", "task_queue": "q", "input": envelope}
    )


def make_signal(wire: Wire) -> Callable[[Json], Any]:
    wire.start()
    return lambda envelope: wire.control(
        "POST", "/workflows/order-1/signal/poke", {"input": envelope}
    )


def make_update(wire: Wire) -> Callable[[Json], Any]:
    wire.start()
    return lambda envelope: wire.update(input=envelope)


def make_query(wire: Wire) -> Callable[[Json], Any]:
    wire.register(capabilities=["query_tasks"])
    wire.run_to(wait_for_condition())
    return lambda envelope: wire.control(
        "POST", "/workflows/order-1/query/total", {"input": envelope}
    )


def make_activity(verb: str) -> Callable[[Wire], Callable[[Json], Any]]:
    def make(wire: Wire) -> Callable[[Json], Any]:
        wire.register()
        wire.run_to(schedule_activity())
        attempt = wire.take("activity")
        if verb == "complete":
            return lambda envelope: wire.report_attempt(attempt, verb, result=envelope)
        return lambda envelope: wire.report_attempt(
            attempt, verb, failure={"message": "no", "details": envelope}
        )

    return make


def make_command(member: str, **command: Any) -> Callable[[Wire], Callable[[Json], Any]]:
    def make(wire: Wire) -> Callable[[Json], Any]:
        wire.register()
        wire.start()
        task = wire.take()
        return lambda envelope: wire.report(
            task, "complete", commands=[{**command, member: envelope}]
        )

    return make


def make_answer(wire: Wire) -> Callable[[Json], Any]:
    wire.register(capabilities=["query_tasks"])
    wire.run_to(wait_for_condition())
    headers = {CONTROL_VERSION: "2"}
    wire.call_later("POST", "/api/workflows/order-1/query/total", {}, headers=headers)
    task = wire.take("query")
    lease = {name: task[name] for name in ("lease_owner", "query_task_attempt")}
    path = f"/query-tasks/{task['query_task_id']}/complete"
    return lambda envelope: wire.worker(path, {**lease, "result_envelope": envelope})


PLACES: dict[str, Callable[[Wire], Callable[[Json], Any]]] = {
    "start": make_start,
    "standalone activity": make_standalone,
    "signal": make_signal,
    "update": make_update,
    "query": make_query,
    "query result": make_answer,
    "activity result": make_activity("complete"),
    "activity failure": make_activity("fail"),
    "result": make_command("result", type="complete_workflow"),
    "activity": make_command("arguments", type="schedule_activity", activity_type="charge"),
    "child": make_command("arguments", type="start_child_workflow", workflow_type="Child"),
    "continue": make_command("arguments", type="continue_as_new"),
    "side effect": make_command("result", type="record_side_effect"),
    "memo": make_command("entries", type="upsert_memo"),
}

every_place = pytest.mark.parametrize("place", PLACES)


@every_place
def test_a_reference_to_nothing_is_refused_wherever_it_stands(wire: Wire, place: str) -> None:
    send = PLACES[place](wire)
    known = outside(wire, {"known": 1})
    lying = {**known["external_payload"], "sha256": "0" * 64}
    longer = {**known["external_payload"], "size_bytes": 7}
    with wire.nothing_changes():
        body = send(unknown(wire)).refused(404, "external_payload_not_found")
        assert body["reference_id"] == "ep_" + "0" * 26
        assert body["retryable"] is False
        for wrong in (lying, longer):
            answer = send({"codec": "avro", "external_payload": wrong})
            answer.refused(422, "external_payload_integrity_mismatch")


@pytest.mark.parametrize("place", [place for place in PLACES if place != "activity failure"])
@pytest.mark.parametrize(
    "changed",
    [
        {"schema": "other"},
        {"reference_id": "ep_short"},
        {"reference_id": 7},
        {"codec": "json"},
        {"size_bytes": -1},
        {"size_bytes": "5"},
        {"size_bytes": limits.EXTERNAL_PAYLOAD_BYTES_MAX + 1},
        {"sha256": "X" * 64},
        {"expires_at": "tomorrow"},
    ],
    ids=str,
)
def test_a_malformed_reference_is_refused_wherever_it_stands(
    tmp_path: Path, place: str, changed: Json
) -> None:
    """But for the details of a failure: they may be anything, and what is no reference is data."""
    with a_wire(tmp_path) as wire:
        send = PLACES[place](wire)
        with wire.nothing_changes():
            body = send(unknown(wire, **changed)).refused(422, "validation_failed")
            (field,) = body["errors"]
            assert field.endswith(".external_payload")


@every_place
def test_nobody_names_what_another_namespace_uploaded(tmp_path: Path, place: str) -> None:
    with a_wire(tmp_path) as wire:
        send = PLACES[place](wire)
        _add_namespace(wire, "other")
        blob = avro({"secret": 1})["blob"].encode()
        foreign = upload(wire, blob, **{"X-Namespace": "other"})
        fetch(wire, foreign).refused(404, "external_payload_not_found")
        with wire.nothing_changes():
            answer = send({"codec": "avro", "external_payload": foreign})
            answer.refused(404, "external_payload_not_found")
        assert upload(wire, blob)["reference_id"] != foreign["reference_id"]


def _add_namespace(wire: Wire, name: str) -> None:
    wire.close()
    file = apsw.Connection(str(sqlite_path(wire._settings.store)))
    file.execute("insert into namespace (name) values (?)", (name,))
    file.close()
    wire.open()


def test_a_refused_operation_keeps_nothing(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    envelope = outside(wire, "late")
    commands = [{"type": "complete_workflow", "result": envelope}]
    with wire.nothing_changes():
        wire.report(task, "complete", commands=commands, workflow_task_attempt=7).refused(
            409, "workflow_task_attempt_mismatch"
        )
    wire.advance(seconds=HOUR + 1)
    fetch(wire, envelope["external_payload"]).refused(410, "external_payload_expired")


def test_a_repeated_report_with_a_reference_gets_its_answer_again(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity())
    attempt = wire.take("activity")
    paid = outside(wire, "paid")
    first = wire.report_attempt(attempt, "complete", result=paid).ok()
    wire.advance(seconds=HOUR * 30)
    again = wire.report_attempt(attempt, "complete", result=paid).ok()
    assert again["outcome"] == first["outcome"] == "completed"


def test_what_only_resembles_a_reference_is_data(wire: Wire) -> None:
    wire.register()
    memo = {"external_payload": "not one", "more": {"codec": "avro", "external_payload": {"a": 1}}}
    wire.start(memo=memo)
    assert wire.describe()["memo"] == memo


def test_a_reference_that_is_spelled_with_escapes_is_refused(wire: Wire) -> None:
    known = outside(wire, ["known"])
    text = json.dumps({"workflow_type": "Order", "input": known})
    escaped = text.replace('"external_payload"', '"external\\u005fpayload"').encode()
    headers = {CONTROL_VERSION: "2", "Content-Type": "application/json"}
    with wire.nothing_changes():
        answer = wire.call("POST", "/api/workflows", content=escaped, headers=headers)
        answer.invalid("input.external_payload")


def test_there_is_an_end_to_references_in_one_request(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXTERNAL_PAYLOADS_PER_REQUEST_MAX", 1)
    wire.register()
    wire.start()
    task = wire.take()
    commands = [schedule_activity(arguments=outside(wire, [number])) for number in range(2)]
    with wire.nothing_changes():
        wire.report(task, "complete", commands=commands).invalid("external_payload")


def test_arguments_that_were_uploaded_are_not_counted(wire: Wire) -> None:
    """Their worker will say what is wrong, as with everything that is large."""
    wire.register(workflow_command_contracts=contract_of("Order", signals={"poke": 2}))
    wire.run_to(wait_for_condition())
    wire.signal("poke", input=outside(wire, ["one"]))


def test_a_result_is_shown_by_its_reference(wire: Wire) -> None:
    wire.register()
    end = outside(wire, "end")
    wire.run_to({**complete_workflow(), "result": end})
    view = wire.describe()
    assert (view["output"], view["output_envelope"]) == (None, end)

"""External payloads are kept while anything durable names them."""

import json
from typing import Any

import pytest

from perdure.core import limits
from perdure.core.limits import SECOND
from perdure.protocols.durable_workflow.transport import UPLOAD_PATH
from tests.support.http import (
    CONTROL_VERSION,
    Json,
    Wire,
    schedule_activity,
    wait_for_condition,
)
from tests.support.uploads import BLOB, HOUR, fetch, outside, post, upload


def test_what_nobody_names_is_forgotten_and_that_is_remembered_for_a_day(wire: Wire) -> None:
    reference = upload(wire, BLOB)
    wire.advance(seconds=HOUR - 1)
    assert fetch(wire, reference).status == 200
    wire.advance(seconds=2)
    assert wire.stored()["payload"] == []
    body = fetch(wire, reference).refused(410, "external_payload_expired")
    assert body["reference_id"] == reference["reference_id"]
    wire.advance(seconds=limits.GONE_PAYLOAD_REMEMBERED / SECOND)
    fetch(wire, reference).refused(404, "external_payload_not_found")
    assert wire.stored()["record"] == []
    assert wire.stored()["deadline"] == []


def test_what_is_uploaded_again_has_time_anew(wire: Wire) -> None:
    reference = upload(wire, BLOB)
    wire.advance(seconds=HOUR - 1)
    assert upload(wire, BLOB) == reference
    wire.advance(seconds=HOUR - 1)
    assert fetch(wire, reference).status == 200
    wire.advance(seconds=2)
    fetch(wire, reference).refused(410, "external_payload_expired")
    assert upload(wire, BLOB) == reference
    assert fetch(wire, reference).content == BLOB


def test_a_loose_payload_outlives_the_server_and_is_forgotten_in_time(wire: Wire) -> None:
    reference = upload(wire, BLOB)
    wire.restart()
    assert fetch(wire, reference).content == BLOB
    wire.advance(seconds=HOUR + 1)
    fetch(wire, reference).refused(410, "external_payload_expired")


def test_an_expired_payload_cannot_be_named_even_before_anybody_looked(wire: Wire) -> None:
    envelope = outside(wire, ["late"])
    wire.jump(seconds=HOUR + 1)
    body = {"workflow_type": "Order", "workflow_id": "late", "input": envelope}
    wire.control("POST", "/workflows", body).refused(410, "external_payload_expired")
    wire.control("GET", "/workflows/late").refused(404, "instance_not_found")


def test_uploads_beyond_the_bound_wait_until_some_are_used(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOSE_PAYLOADS_MAX", 2)
    first = outside(wire, ["a"])
    outside(wire, ["b"])
    with wire.nothing_changes():
        body = post(wire, BLOB).refused(503, "storage_pressure")
    assert (body["storage_state"], body["retryable"]) == ("draining", True)
    wire.start(input=first)
    upload(wire, BLOB)
    monkeypatch.setattr(limits, "LOOSE_PAYLOADS_BYTES_MAX", 10)
    monkeypatch.setattr(limits, "LOOSE_PAYLOADS_MAX", 1_000)
    post(wire, BLOB + b"=").refused(503, "storage_pressure")


def context_of(of: str, task: Json, **changed: Any) -> dict[str, str]:
    """What a worker says of the report that an upload is for."""
    attempt = "activity_attempt_id" if of == "activity" else f"{of}_task_attempt"
    told = {
        "schema": "durable-workflow.v2.payload-completion-context.v1",
        "kind": of,
        "task_id": task["query_task_id" if of == "query" else "task_id"],
        "attempt": task[attempt],
        "lease_owner": task["lease_owner"],
        "operation": "complete",
        "slot": ["result"],
        **changed,
    }
    return {"X-Durable-Workflow-Payload-Completion": json.dumps(told, separators=(",", ":"))}


@pytest.mark.parametrize("kind", ["workflow", "activity", "query"])
def test_work_in_hand_may_be_finished_though_others_must_wait(
    wire: Wire, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.register(capabilities=["query_tasks"])
    wire.run_to(schedule_activity(), wait_for_condition())
    if kind == "query":
        headers = {CONTROL_VERSION: "2"}
        wire.call_later("POST", "/api/workflows/order-1/query/total", {}, headers=headers)
    elif kind == "workflow":
        wire.signal("go")
    task = wire.take(kind)
    for letter in ("a", "b"):
        outside(wire, [letter])
    monkeypatch.setattr(limits, "LOOSE_PAYLOADS_MAX", 2)

    with wire.nothing_changes():
        body = post(wire, BLOB).refused(503, "storage_pressure")
        assert (body["retryable"], body["request_admitted"]) == (True, False)
        for changed in (
            {"lease_owner": "w2"},
            {"attempt": "nonsense"},
            {"attempt": 7},
            {"task_id": "nonsense"},
            {"task_id": f"{'0' * 26}-{kind[0]}1"},
            {"kind": "other"},
            {"schema": "other"},
            {"padding": "x" * 5_000},
        ):
            answer = post(wire, BLOB, **context_of(kind, task, **changed))
            answer.refused(503, "storage_pressure")
        for header in ("", "{", "[]", "5"):
            name = "X-Durable-Workflow-Payload-Completion"
            post(wire, BLOB, **{name: header}).refused(503, "storage_pressure")
    upload(wire, BLOB, **context_of(kind, task))
    upload(wire, BLOB + b"=", **context_of(kind, task))
    with wire.nothing_changes():
        answer = post(wire, BLOB + b"==", **context_of(kind, task))
        answer.refused(503, "storage_pressure")


def test_uploads_that_wait_for_the_disk_have_a_bound(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TAKEN_PAYLOADS_BYTES_MAX", 1)
    upload(wire, BLOB)
    payloads = next(r for r in wire.server.app.router.routes if r.path == UPLOAD_PATH)
    transport: Any = payloads.handler.__self__  # type: ignore[attr-defined]  # a bound method
    assert transport._upload_bytes == 0
    transport._upload_bytes = 1
    post(wire, BLOB).refused(503, "storage_pressure")

"""Queries that are refused: by the worker, or because they make no sense."""

from pathlib import Path

import pytest

from tests.support.http import (
    Json,
    Wire,
    a_wire,
)
from tests.wire.queries.asking import QUERIES, ask, report

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
    assert wire.server.query_broker.open_count == 0


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

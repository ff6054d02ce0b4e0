"""The tasks that queries are for workers: polled, leased, and given up."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.http import (
    Answer,
    Wire,
    a_wire,
)
from tests.wire.queries.asking import QUERIES, ask, park, report, status

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
    head = b"POST /api/worker/query-tasks/poll HTTP/1.1\r\nHost: localhost\r\n"
    head += b"X-Durable-Workflow-Protocol-Version: 1.20\r\nContent-Type: application/json\r\n"
    stream.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    wire.until(lambda: wire.server.query_broker.parked_count == 1)
    stream.close()
    wire.until(lambda: wire.server.query_broker.parked_count == 0)

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
    head = b"POST /api/workflows/order-1/query/total HTTP/1.1\r\nHost: localhost\r\n"
    stream.send(head + b"X-Durable-Workflow-Control-Plane-Version: 2\r\n\r\n")
    wire.until(lambda: wire.server.query_broker.open_count == 1)
    task = wire.take("query")
    stream.close()
    wire.until(lambda: wire.server.query_broker.open_count == 0)

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

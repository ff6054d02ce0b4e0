"""Refusals after which a worker comes again by itself: their shapes are exact or not given."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from perdure.dispatch.polls import Polling
from perdure.engine.beat import Engine
from perdure.store.interface import Unavailable
from tests.support.http import WORKER_VERSION, Answer, Json, Wire, a_wire

POLLS = {
    "workflow": ("poll_workflow_task", "workflow_task"),
    "activity": ("poll_activity_task", "activity_task"),
    "query": ("poll_query_task", "query_task"),
    "update-validation": ("poll_update_validation_task", "workflow_task"),
}
every_poll = pytest.mark.parametrize("kind", POLLS)


def poll(wire: Wire, kind: str, **members: Any) -> Answer:
    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 5, **members}
    return wire.worker(f"/{kind}-tasks/poll", body)


@pytest.fixture
def away(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Wire:
    """A server whose database went away after a worker registered."""
    wire.register()

    async def gone(*_: object, **__: object) -> NoReturn:
        raise Unavailable("storage_unavailable", "PostgreSQL went away", 2)

    def gone_at_once(*_: object) -> NoReturn:
        raise Unavailable("storage_unavailable", "PostgreSQL went away", 2)

    monkeypatch.setattr(Polling, "poll", gone)
    monkeypatch.setattr(Polling, "begin", gone_at_once)
    monkeypatch.setattr(Engine, "find_worker", gone)
    monkeypatch.setattr(Engine, "submit", gone_at_once)
    return wire


def unavailable(answer: Answer, **members: Any) -> Json:
    body = answer.refused(503, "backend_unavailable")
    expected = {
        "outcome": "unknown",
        "retryable": True,
        "retry_after_seconds": 2,
        "storage_reason": "storage_unavailable",
        **members,
    }
    assert expected.items() <= body.items(), body
    assert answer.headers["retry-after"] == "2"
    return body


@every_poll
def test_a_poll_is_told_to_come_again_with_the_same_id(away: Wire, kind: str) -> None:
    unavailable(
        poll(away, kind, poll_request_id="p1"),
        operation=POLLS[kind][0],
        worker_id="w1",
        task_queue="q",
        task=None,
        poll_status="backend_unavailable",
        poll_request_id="p1",
        retry_same_poll_request_id=True,
    )


@every_poll
def test_a_poll_without_an_id_is_told_to_come_again_without_one(away: Wire, kind: str) -> None:
    told = unavailable(poll(away, kind), task=None, poll_status="backend_unavailable")
    assert "poll_request_id" not in told
    assert "retry_same_poll_request_id" not in told


def test_signs_of_life_are_told_to_come_again(away: Wire) -> None:
    worker = {"worker_id": "w1", "task_queue": "q", "runtime": "python"}
    unavailable(
        away.worker("/register", worker),
        operation="register_worker",
        worker_id="w1",
        task_queue="q",
    )
    unavailable(
        away.worker("/heartbeat", {"worker_id": "w1"}),
        operation="heartbeat_worker",
        worker_id="w1",
        task_queue=None,
    )
    token = "0" * 32
    unavailable(
        away.worker("/registrations/w1/deregister", {"registration_token": token}),
        operation="deregister_worker",
        worker_id="w1",
        registration_token=token,
    )
    task_id = "0" * 26 + "-w1"
    lease = {"lease_owner": "w1", "workflow_task_attempt": 1}
    unavailable(
        away.worker(f"/workflow-tasks/{task_id}/heartbeat", lease),
        operation="heartbeat_workflow_task",
        worker_id="w1",
        task_queue=None,
        task_id=task_id,
        **lease,
    )


def test_reports_get_a_plain_refusal(away: Wire) -> None:
    """Their workers know by themselves that a report may be repeated."""
    path = f"/workflow-tasks/{'0' * 26}-w1/complete"
    body = {"lease_owner": "w1", "workflow_task_attempt": 1, "commands": []}
    answer = away.worker(path, body)
    assert answer.refused(503, "storage_unavailable")["retryable"] is True
    answer = away.control("POST", "/workflows", {"workflow_type": "Order"})
    assert answer.refused(503, "storage_unavailable")["retryable"] is True


@every_poll
def test_a_poll_beyond_the_bound_is_told_when_to_come_again(tmp_path: Path, kind: str) -> None:
    with a_wire(tmp_path, query_polls_max=1, polls_max=0) as wire:
        wire.register(capabilities=["query_tasks", "update_validation_tasks"])
        body = {"worker_id": "w1", "task_queue": "q"}
        headers = {WORKER_VERSION: "1.20"}
        wire.call_later("POST", "/api/worker/query-tasks/poll", body, headers=headers)
        wire.until(lambda: wire.server.query_broker.parked_count == 1)
        with wire.nothing_changes():
            answer = poll(wire, kind)
            told = answer.refused(429, "long_poll_capacity_exhausted")
    expected = {
        "poll_status": "long_poll_capacity_exhausted",
        "task": None,
        "task_kind": POLLS[kind][1],
        "task_queue": "q",
        "retryable": True,
    }
    assert expected.items() <= told.items()
    assert 1 <= told["retry_after_seconds"] <= 60
    assert answer.headers["retry-after"] == str(told["retry_after_seconds"])

"""Asking queries and answering them, as clients and workers do."""

from typing import Any

from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Answer,
    Json,
    Parked,
    Wire,
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
    before = wire.server.query_broker.open_count
    sent = {CONTROL_VERSION: "2", **(headers or {})}
    asked = wire.call_later("POST", f"{path}/query/{name}", members, headers=sent)
    wire.until(lambda: wire.server.query_broker.open_count > before or not asked.is_waiting)
    return asked


def park(wire: Wire, worker_id: str = "w1", **members: Any) -> Parked:
    """A query poll that waits."""
    before = wire.server.query_broker.parked_count
    body = {"worker_id": worker_id, "task_queue": "q", **members}
    headers = {WORKER_VERSION: "1.20"}
    poll = wire.call_later("POST", "/api/worker/query-tasks/poll", body, headers=headers)
    wire.until(lambda: wire.server.query_broker.parked_count > before or not poll.is_waiting)
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

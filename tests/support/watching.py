"""Looking at runs of a server process from outside: every look waits for news."""

import base64
from collections.abc import Callable
from time import monotonic
from typing import Any

import httpx

from tests.support.server import ServerProcess

Json = dict[str, Any]

HEADERS = {"Authorization": "Bearer perdure", "X-Durable-Workflow-Control-Plane-Version": "2"}
PATIENCE = 180.0
"""Longer than any story takes: reaching it is a failure."""


def call(server: ServerProcess, method: str, path: str, body: Any = None) -> Json:
    """A call of the control plane that succeeds."""
    url = f"{server.url}/api{path}"
    answer = httpx.request(method, url, json=body, headers=HEADERS, timeout=60)
    answer.raise_for_status()
    told: Json = answer.json()
    return told


def start(
    server: ServerProcess, workflow_id: str, workflow_type: str, queue: str, *arguments: Any
) -> None:
    body = {
        "workflow_id": workflow_id,
        "workflow_type": workflow_type,
        "task_queue": queue,
        "input": list(arguments),
    }
    call(server, "POST", "/workflows", body)


def history(server: ServerProcess, workflow_id: str) -> list[Json]:
    run_id = call(server, "GET", f"/workflows/{workflow_id}")["run_id"]
    told = call(server, "GET", f"/workflows/{workflow_id}/runs/{run_id}/history")
    events: list[Json] = told["events"]
    return events


def the_end(server: ServerProcess, workflow_id: str) -> Json:
    """The run when it is over."""
    return until(server, workflow_id, lambda told: bool(told["is_terminal"]))


def until(server: ServerProcess, workflow_id: str, enough: Callable[[Json], bool]) -> Json:
    """The run when enough has happened."""
    path = f"/workflows/{workflow_id}"
    patient_until = monotonic() + PATIENCE
    while not enough(told := call(server, "GET", path)):
        assert monotonic() < patient_until, told
        token = base64.b64encode(str(told["history_events"]).encode()).decode()
        news = f"{path}/runs/{told['run_id']}/history?wait_new_event=1&next_page_token={token}"
        call(server, "GET", news)
    return told

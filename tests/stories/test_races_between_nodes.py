"""Requests for the same thing that reach two nodes at once: one is first, and all are told."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import ServerProcess

HEADERS = {"X-Durable-Workflow-Control-Plane-Version": "2"}
AT_ONCE = 24
ENDPOINT = "/service-endpoints/race"
SERVICE = f"{ENDPOINT}/services/s"
OPERATION = f"{SERVICE}/operations/o"
HANDLED = {
    "handler_binding_kind": "workflow_run",
    "handler_binding": {"workflow_type": "X", "task_queue": "nobody"},
}


@pytest.fixture
def server(postgres_url: str, tmp_path: Path) -> ServerProcess:
    return ServerProcess(postgres_url, log_path=tmp_path / "log", processes=2)


def race(server: ServerProcess, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
    """All of them at once, each on a connection of its own, so that both nodes get some."""

    async def send(method: str, path: str, body: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=f"{server.url}/api", headers=HEADERS, timeout=90, trust_env=False
        ) as client:
            return await client.request(method, path, json=body)

    async def send_all() -> list[httpx.Response]:
        return list(await asyncio.gather(*(send(*request) for request in requests)))

    return asyncio.run(send_all())


def test_whatever_is_asked_twice_at_once_is_done_once(server: ServerProcess) -> None:
    activity = {"activity_type": "a", "task_queue": "nobody"}
    workflow = {"workflow_type": "w", "workflow_id": "mixed", "task_queue": "nobody"}
    call = {"arguments": [1], "wait_for": "accepted", "idempotency_key": "k"}
    with server:
        for path, body in ((ENDPOINT, {}), (SERVICE, {}), (OPERATION, HANDLED)):
            (made,) = race(server, ("PUT", path, body))
            assert made.status_code == 201, made.text

        called = race(server, *[("POST", f"{OPERATION}/execute", call)] * AT_ONCE)
        named = {**activity, "activity_id": "job"}
        started = race(server, *[("POST", "/activities", named)] * AT_ONCE)
        retained = {**activity, "request_id": "r"}
        repeated = race(server, *[("POST", "/activities", retained)] * AT_ONCE)
        mixed = race(
            server,
            *[
                ("POST", "/activities", {**activity, "activity_id": "mixed"}),
                ("POST", "/workflows", workflow),
            ]
            * (AT_ONCE // 2),
        )

    assert {answer.status_code for answer in called} == {200}
    assert len({answer.json()["service_call_id"] for answer in called}) == 1
    assert Counter(answer.status_code for answer in started) == {201: 1, 422: AT_ONCE - 1}
    assert Counter(answer.status_code for answer in repeated) == {201: 1, 200: AT_ONCE - 1}
    assert len({answer.json()["workflow_run_id"] for answer in repeated}) == 1
    assert Counter(answer.status_code for answer in mixed)[201] == 1
    assert {answer.status_code for answer in mixed} <= {201, 409, 422}

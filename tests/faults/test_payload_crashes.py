"""A server that is killed between an upload and what names it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.http import CONTROL_VERSION, WORKER_VERSION, avro, schedule_activity
from tests.support.postgres import Cluster
from tests.support.server import STORES, ServerProcess
from tests.support.uploads import UPLOAD, headers_of

BLOB = avro(["large" * 20_000])["blob"].encode()
Json = dict[str, Any]


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """Two processes where the store allows it: every call may reach another node."""
    if request.param == "sqlite":
        server = ServerProcess(tmp_path / "perdure.db")
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        url = cluster.fresh_database()
        server = ServerProcess(url, log_path=tmp_path / "log", processes=2)
    with server:
        yield server


def call(server: ServerProcess, method: str, path: str, body: Json | None = None) -> Json:
    headers = {CONTROL_VERSION: "2", WORKER_VERSION: "1.20"}
    url = f"{server.url}/api{path}"
    answer = httpx.request(method, url, json=body, headers=headers, timeout=90, trust_env=False)
    assert answer.status_code < 300, answer.text
    decoded: Json = answer.json()
    return decoded


def upload(server: ServerProcess) -> Json:
    headers = {"Content-Type": "application/octet-stream", **headers_of(BLOB)}
    answer = httpx.post(server.url + UPLOAD, content=BLOB, headers=headers, trust_env=False)
    assert answer.status_code == 201, answer.text
    return {"codec": "avro", "external_payload": answer.json()["reference"]}


def fetched(server: ServerProcess, envelope: Json) -> bytes:
    path = f"{UPLOAD}/{envelope['external_payload']['reference_id']}"
    answer = httpx.get(server.url + path, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.content


def take(server: ServerProcess, kind: str) -> Json:
    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 15}
    task = call(server, "POST", f"/worker/{kind}-tasks/poll", body)["task"]
    assert isinstance(task, dict)
    return task


def test_an_acknowledged_upload_outlives_a_kill_and_can_still_be_named(
    server: ServerProcess,
) -> None:
    worker = {
        "worker_id": "w1",
        "task_queue": "q",
        "runtime": "python",
        "supported_workflow_types": ["Order"],
        "supported_activity_types": ["charge"],
    }
    call(server, "POST", "/worker/register", worker)
    given = upload(server)
    server.restart()

    assert fetched(server, given) == BLOB
    start = {"workflow_id": "o", "workflow_type": "Order", "task_queue": "q", "input": given}
    call(server, "POST", "/workflows", start)
    server.restart()

    task = take(server, "workflow")
    assert task["arguments"] == given
    lease = {name: task[name] for name in ("lease_owner", "workflow_task_attempt")}
    commands = [schedule_activity(arguments=given)]
    path = f"/worker/workflow-tasks/{task['task_id']}/complete"
    call(server, "POST", path, {**lease, "commands": commands})
    attempt = take(server, "activity")
    result = upload(server)
    server.restart()

    lease = {name: attempt[name] for name in ("lease_owner", "activity_attempt_id")}
    path = f"/worker/activity-tasks/{attempt['task_id']}/complete"
    for _ in range(2):
        call(server, "POST", path, {**lease, "result": result})
    server.restart()

    history = call(server, "GET", f"/workflows/o/runs/{task['run_id']}/history")["events"]
    assert history[-1]["event_type"] == "ActivityCompleted"
    assert fetched(server, result) == BLOB

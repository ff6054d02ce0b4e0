"""The owner of a worker session dies in the middle of its steps: another capable one goes on."""

import base64
import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sdk.catalogue import RELEASES
from tests.support.sdk import SdkProcess
from tests.support.server import ServerProcess

RELEASE = RELEASES[-1]
QUEUE = "workshop"
SHORT_LEASES = {"DW_WORKFLOW_TASK_TIMEOUT": "2", "DW_ACTIVITY_TASK_TIMEOUT": "2"}
HEADERS = {"Authorization": "Bearer perdure", "X-Durable-Workflow-Control-Plane-Version": "2"}


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> ServerProcess:
    if request.param == "sqlite":
        return ServerProcess(tmp_path / "perdure.db", env=SHORT_LEASES)
    url: str = request.getfixturevalue("postgres_url")
    return ServerProcess(url, log_path=tmp_path / "log", processes=2, env=SHORT_LEASES)


def a_worker(server: ServerProcess, *options: str) -> SdkProcess:
    where = ("--server", server.url, "--queue", QUEUE)
    return SdkProcess(RELEASE, "tests.sdk.work", *where, *options)


def call(server: ServerProcess, method: str, path: str, body: Any = None) -> dict[str, Any]:
    url = f"{server.url}/api{path}"
    answer = httpx.request(method, url, json=body, headers=HEADERS, timeout=60)
    answer.raise_for_status()
    told: dict[str, Any] = answer.json()
    return told


def test_a_capable_worker_takes_over_from_a_dead_one_and_an_incapable_one_does_not(
    server: ServerProcess,
) -> None:
    terms = {"session_id": "bench", "requirements": ["gpu"], "lease_seconds": 3}
    with server:
        with a_worker(server, "--hold", "activity", "--capability", "gpu") as doomed:
            body = {
                "workflow_id": "made",
                "workflow_type": "workshop",
                "task_queue": QUEUE,
                "input": [3, terms],
            }
            call(server, "POST", "/workflows", body)
            doomed.expect("holding activity")
            first = call(server, "GET", "/worker-sessions/bench")["session"]
            assert first["status"] == "active"
            doomed.kill()
        with a_worker(server) as incapable:
            # It does work, on this very queue, before anybody else is there.
            body = {**body, "workflow_id": "other", "workflow_type": "greeter", "input": ["you"]}
            call(server, "POST", "/workflows", body)
            said = list(takewhile(lambda line: line != "ended activity greet", incapable.lines()))
            with a_worker(server, "--capability", "gpu") as capable:
                capable.expect("ended activity bench")
                second = call(server, "GET", "/worker-sessions/bench")["session"]
                assert second["lease_owner"] != first["lease_owner"]
                assert second["ttl_expires_at"] == first["ttl_expires_at"]
                for _ in range(2):
                    capable.expect("ended activity bench")
                told = the_end(server)
        said += incapable.lines()

    assert told["status"] == "completed", json.dumps(told)
    assert told["output"] == [second["lease_owner"]] * 3
    assert "began activity greet" in said
    assert not any("activity bench" in line for line in said), said


def the_end(server: ServerProcess) -> dict[str, Any]:
    """The run when it is over; every round waits for news of it."""
    for _ in range(50):
        told = call(server, "GET", "/workflows/made")
        if told["is_terminal"]:
            return told
        news = f"/workflows/made/runs/{told['run_id']}/history?wait_new_event=1&next_page_token="
        token = base64.b64encode(str(told["history_events"]).encode()).decode()
        call(server, "GET", news + token)
    raise AssertionError(told)

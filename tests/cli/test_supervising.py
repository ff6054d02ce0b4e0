"""`perdure serve --processes`: one port, several processes, none of which matters."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.store.nodes import session
from tests.support.server import ServerProcess

PATIENCE_SECONDS = 90
HEADERS = {
    "X-Durable-Workflow-Protocol-Version": "1.20",
    "X-Durable-Workflow-Control-Plane-Version": "2",
}


@pytest.fixture
def server(migrated_url: str, tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(migrated_url, log_path=tmp_path / "log", processes=2)
    with server:
        yield server


def children(server: ServerProcess) -> set[int]:
    """The processes that serve."""
    path = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    return {int(word) for word in path.read_text().split()}


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def ask(server: ServerProcess, path: str = "/api/health") -> httpx.Response:
    """On a new connection: the system chooses who gets it."""
    return httpx.get(
        server.url + path, headers=HEADERS, timeout=PATIENCE_SECONDS, trust_env=False, verify=False
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < give_up_at, what
        pause.wait(0.02)  # Nobody would tell us.


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_port_serves_the_same(
    processes: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = tmp_path / "db" if processes == 1 else request.getfixturevalue("migrated_url")
    log = tmp_path / "log"
    env = {"PERDURE_DURABLEX_PORT": "0"}
    with ServerProcess(store, log_path=log, processes=processes, env=env) as server:
        told = [line for line in log.read_text().splitlines() if "for Durablex" in line]
        assert len(told) == 1
        second = told[0].rpartition(" ")[2]
        assert second != server.url
        sent = httpx.post(second + "/events", json={"name": "paid"}, trust_env=False)
        assert sent.status_code == 202
        for url in (second, server.url):
            seen = httpx.get(f"{url}/events/{sent.json()['eventId']}", trust_env=False)
            assert seen.json()["name"] == "paid"
            assert httpx.get(url + "/api/health", trust_env=False).status_code == 200
    assert server.exit_code == 0


def test_a_process_that_dies_is_replaced_and_the_port_keeps_answering(
    server: ServerProcess,
) -> None:
    before = children(server)
    assert len(before) == 2

    for victim in before:
        os.kill(victim, signal.SIGKILL)
        # Whoever knocks meanwhile waits; nobody is turned away.
        for _ in range(10):
            try:
                answer = ask(server)
                assert answer.status_code == 200, (answer.text, server.log_path.read_text())
            except (httpx.RemoteProtocolError, httpx.ReadError):
                # It had taken our connection, and died with it.
                continue

    wait_until(lambda: len(children(server) - before) == 2, "the dead were not replaced")
    assert {ask(server).status_code for _ in range(10)} == {200}
    wait_until(lambda: not any(map(is_alive, before)), "the dead are not buried")


def test_what_one_process_took_the_other_tells(server: ServerProcess) -> None:
    start = {"workflow_type": "Order", "task_queue": "q"}
    for number in range(8):
        answer = httpx.post(
            f"{server.url}/api/workflows",
            json={**start, "workflow_id": f"order-{number}"},
            headers=HEADERS,
            timeout=PATIENCE_SECONDS,
            trust_env=False,
            verify=False,
        )
        assert answer.status_code == 201
    for number in range(8):
        assert ask(server, f"/api/workflows/order-{number}").json()["status"] == "pending"


def test_processes_end_with_their_supervisor(server: ServerProcess) -> None:
    alive = children(server)
    assert len(alive) == 2
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, alive)), "somebody lives on")
    with pytest.raises(httpx.ConnectError):
        ask(server)
    server.kill()
    server.start()
    assert ask(server).status_code == 200


def test_sigterm_answers_who_waits_and_ends_everybody(server: ServerProcess) -> None:
    worker = {
        "worker_id": "w1",
        "task_queue": "q",
        "runtime": "python",
        "supported_workflow_types": ["Order"],
        "supported_activity_types": [],
    }
    httpx.post(
        f"{server.url}/api/worker/register",
        json=worker,
        headers=HEADERS,
        timeout=PATIENCE_SECONDS,
        trust_env=False,
        verify=False,
    ).raise_for_status()
    alive = children(server)
    polls = [parked(server) for _ in range(6)]

    server.stop()

    for poll in polls:
        with poll:
            pieces = []
            while piece := poll.recv(65_536):
                pieces.append(piece)
        head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert json.loads(body)["poll_status"] == "empty"
    assert not any(map(is_alive, alive))
    assert "Traceback" not in server.log_path.read_text()


def parked(server: ServerProcess) -> socket.socket:
    """A poll that a process has begun to answer."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(PATIENCE_SECONDS)
    content = json.dumps({"worker_id": "w1", "task_queue": "q", "timeout_seconds": 60}).encode()
    head = (
        "POST /api/worker/workflow-tasks/poll HTTP/1.1\r\nHost: localhost\r\n"
        "X-Durable-Workflow-Protocol-Version: 1.20\r\nContent-Type: application/json\r\n"
        f"Expect: 100-continue\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode())
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(content)
    return connection


def test_processes_that_cannot_start_say_why_once(migrated_url: str, tmp_path: Path) -> None:
    async def spoil() -> None:
        async with session(migrated_url) as other:
            await other.execute("insert into perdure.schema_version values (999, 999)")

    asyncio.run(spoil())
    server = ServerProcess(migrated_url, log_path=tmp_path / "log", processes=2)
    with pytest.raises(RuntimeError):
        server.start()
    assert server.exit_code == 2
    (sentence,) = server.log_path.read_text().splitlines()
    assert sentence.startswith("perdure: the store has schema 999")

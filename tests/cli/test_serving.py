"""`perdure serve` and `perdure dev` as processes: how they start, refuse and stop."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from websockets.sync.client import connect

from perdure import __version__
from perdure.cli.main import _parser, main

PATIENCE_SECONDS = 90
LISTENING = "perdure listening on "
KINDS = ("workflow", "activity")


def environment(**given: str) -> dict[str, str]:
    """Ours, without any setting that the machine may have."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DW_", "PERDURE_"))}
    return {**kept, **given}


def run(*arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "perdure", *arguments],
        capture_output=True,
        text=True,
        env=environment(**settings),
        timeout=PATIENCE_SECONDS,
    )


def refused(finished: "subprocess.CompletedProcess[str]") -> str:
    """The one sentence with which a command refused to start."""
    assert finished.returncode == 2, finished
    assert finished.stdout == ""
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("perdure: ")
    return lines[0].removeprefix("perdure: ")


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The one sentence with which a command refuses, told in this process: that is quicker."""

    def run_briefly(work: Coroutine[Any, Any, None]) -> None:
        async def briefly() -> None:
            await asyncio.wait_for(work, PATIENCE_SECONDS)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(briefly())

    def refuse(*arguments: str, **settings: str) -> str:
        monkeypatch.setattr("perdure.cli.main.uvloop.run", run_briefly)
        monkeypatch.setattr("os.environ", environment(**settings))
        code = main(arguments)
        told = capsys.readouterr()
        finished = subprocess.CompletedProcess(arguments, code, told.out, told.err)
        return refused(finished)

    return refuse


class Running:
    """A server that listens."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def running(*arguments: str, **settings: str) -> Iterator[Running]:
    """A command that serves until it is told to stop."""
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**settings),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line.startswith(LISTENING), (line, process.poll() and process.stderr.read())
        yield Running(process, line.removeprefix(LISTENING).strip())
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/perdure.db"


# Refusals -----------------------------------------------------------------------------------------


def test_the_version_is_printed() -> None:
    finished = run("--version")
    assert (finished.returncode, finished.stdout.strip()) == (0, f"perdure {__version__}")


def test_serve_refuses_to_stand_open_by_accident(store: str, tmp_path: Path) -> None:
    sentence = refused(run("serve", "--port", "0", "--store", store))
    assert "no credentials" in sentence
    assert "DW_AUTH_TOKEN" in sentence
    assert "DW_AUTH_DRIVER=none" in sentence
    assert list(tmp_path.iterdir()) == [], "nothing is created before the refusal"


@pytest.mark.parametrize(
    "settings",
    [
        {"DW_AUTH_TOKEN": ""},
        {"DW_AUTH_DRIVER": "token"},
        {"DW_AUTH_DRIVER": "token", "DW_WORKER_TOKEN": "", "DW_ADMIN_TOKEN": ""},
        {"DW_PRINCIPAL_TOKENS": "[]"},
        {"DW_PRINCIPAL_TOKENS": "{}"},
        {"DW_AUTH_TOKEN": "x", "DW_AUTH_BACKWARD_COMPATIBLE": "false"},
        {"DW_AUTH_DRIVER": "signature", "DW_AUTH_TOKEN": "x"},
        {"DW_SIGNATURE_KEY": "x"},
    ],
)
def test_an_empty_token_is_no_credential(
    refusal: Callable[..., str], settings: dict[str, str], store: str
) -> None:
    assert "no credentials" in refusal("serve", "--port", "0", "--store", store, **settings)


def test_serve_refuses_a_driver_that_it_does_not_know(
    refusal: Callable[..., str], store: str
) -> None:
    sentence = refusal("serve", "--store", store, DW_AUTH_DRIVER="oidc")
    assert "DW_AUTH_DRIVER" in sentence


def test_serve_refuses_what_it_is_not_and_with_strictness_what_it_does_not_know(
    refusal: Callable[..., str], store: str
) -> None:
    told = refusal("serve", "--store", store, DW_AUTH_TOKEN="x", DW_AUTH_PROVIDER="App\\\\Door")
    assert told.startswith("DW_AUTH_PROVIDER cannot be set")
    strict = {"DW_AUTH_TOKEN": "x", "DW_ENV_AUDIT_STRICT": "1"}
    told = refusal("serve", "--store", store, **strict, DW_SERVER_KEY="s3cret")
    assert told.startswith("DW_SERVER_KEY has no effect")
    assert "s3cret" not in told


def test_serve_refuses_a_bound_that_it_could_not_bear(
    refusal: Callable[..., str], store: str
) -> None:
    told = refusal("serve", "--store", store, DW_V2_LIMIT_PENDING_TIMERS="1000000")
    assert told == "DW_V2_LIMIT_PENDING_TIMERS is a number from 1 to 5000, not '1000000'"


def test_a_variable_that_has_no_effect_is_told_once_when_the_server_starts(store: str) -> None:
    with running(
        "dev", "--port", "0", "--store", store, DW_SERVER_KEY="s3cret", DW_NOSUCH="s3cret"
    ) as server:
        assert server.stop() == 0
        assert server.process.stderr is not None
        told = server.process.stderr.read()
    lines = [line for line in told.splitlines() if "no effect" in line]
    assert len(lines) == 2
    assert "DW_NOSUCH" in lines[0]
    assert "DW_SERVER_KEY" in lines[1]
    assert "s3cret" not in told


@pytest.mark.parametrize(
    "bad",
    [
        "mysql://user:s3cret@host/db",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/x.db",
        "perdure.db",
        "mysql://x",
    ],
)
def test_a_store_that_makes_no_sense_is_refused_without_repeating_it(
    refusal: Callable[..., str], bad: str
) -> None:
    sentence = refusal("dev", "--port", "0", "--store", bad)
    assert "sqlite:///" in sentence
    assert "s3cret" not in sentence


def test_a_database_that_is_not_there_is_refused_without_its_password(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.postgres.connection.PATIENCE_SECONDS", 0.1)
    sentence = refusal("dev", "--port", "0", "--store", "postgresql://user:s3cret@127.0.0.1:1/db")
    assert "cannot be reached" in sentence
    assert "s3cret" not in sentence


def test_several_processes_need_a_shared_store(refusal: Callable[..., str], store: str) -> None:
    sentence = refusal("dev", "--port", "0", "--store", store, "--processes", "2")
    assert "PostgreSQL" in sentence


def test_one_port_cannot_be_taken_twice(refusal: Callable[..., str], store: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    sentence = refusal("dev", "--port", port, "--durablex-port", port, "--store", store)
    assert "cannot listen" in sentence


def test_the_second_port_has_a_number_that_clients_know() -> None:
    parsed = _parser().parse_args(["serve", "--durablex-port"])
    assert parsed.durablex_port == 6770
    assert _parser().parse_args(["serve"]).durablex_port is None


@pytest.mark.parametrize("port", ["65536", "-1", "http", ""])
def test_a_port_that_makes_no_sense_is_refused(
    port: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dev", f"--port={port}", "--store", store])
    assert ended.value.code == 2
    assert "a port must be a number from 0 to 65535" in capsys.readouterr().err


def test_a_port_in_the_environment_that_makes_no_sense_is_refused(
    refusal: Callable[..., str], store: str
) -> None:
    assert "PERDURE_PORT" in refusal("dev", "--store", store, PERDURE_PORT="65536")


def test_a_port_that_is_taken_is_refused_with_one_sentence(store: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        sentence = refused(run("dev", "--port", port, "--store", store))
    assert "cannot listen" in sentence


@pytest.mark.parametrize("kind", ["a directory", "no database"])
def test_a_file_that_cannot_be_a_store_is_refused_with_one_sentence(
    refusal: Callable[..., str], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.db"
    if kind == "a directory":
        path.mkdir()
    else:
        path.write_bytes(b"this is a text, and a long one" * 100)
    assert "x.db" in refusal("dev", "--port", "0", "--store", f"sqlite:///{path}")


def test_a_folder_that_cannot_be_made_is_not_a_matter_of_listening(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    sentence = refusal("dev", "--port", "0", "--store", f"sqlite:///{tmp_path}/file/x.db")
    assert "cannot listen" not in sentence


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dance"])
    assert ended.value.code == 2
    assert "dance" in capsys.readouterr().err


# Life ---------------------------------------------------------------------------------------------


def call(
    server: Running, method: str, path: str, body: dict[str, Any] | None = None, token: str = ""
) -> httpx.Response:
    headers = {
        "X-Durable-Workflow-Protocol-Version": "1.20",
        "X-Durable-Workflow-Control-Plane-Version": "2",
    }
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.request(
        method,
        f"{server.url}/api{path}",
        json=body,
        headers=headers,
        timeout=PATIENCE_SECONDS,
        trust_env=False,
        verify=False,
    )


def test_serve_asks_for_the_configured_tokens(store: str) -> None:
    with running(
        "serve", "--port", "0", "--store", store, DW_OPERATOR_TOKEN="op", DW_WORKER_TOKEN="wo"
    ) as server:
        assert call(server, "GET", "/workflows").status_code == 401
        assert call(server, "GET", "/workflows", token="wo").status_code == 403
        assert call(server, "GET", "/workflows", token="op").status_code == 200
        assert server.stop() == 0


def test_serve_may_stand_open_on_purpose(store: str) -> None:
    with running("serve", "--port", "0", "--store", store, DW_AUTH_DRIVER="none") as server:
        assert call(server, "GET", "/workflows").status_code == 200
        assert server.stop(signal.SIGINT) == 0


def test_the_bounds_of_the_environment_are_those_in_force(store: str) -> None:
    chosen = {"DW_V2_LIMIT_PENDING_SIGNALS": "2", "DW_MAX_SEARCH_ATTRIBUTES": "3"}
    with running("dev", "--port", "0", "--store", store, **chosen) as server:
        info = call(server, "GET", "/cluster/info").json()
        assert info["structural_limits"]["pending_signal_count"] == 2
        assert info["limits"]["max_search_attributes"] == 3
        start = {"workflow_id": "a", "workflow_type": "Order", "task_queue": "q"}
        assert call(server, "POST", "/workflows", start).status_code == 201
        sent = [call(server, "POST", "/workflows/a/signal/go", {}) for _ in range(3)]
        assert [answer.status_code for answer in sent] == [202, 202, 429]
        assert sent[-1].json()["configured_limit"] == 2
        assert server.stop() == 0


def test_dev_asks_for_nothing_and_listens_on_this_machine_only(store: str) -> None:
    with running("dev", "--port", "0", "--store", store, DW_AUTH_TOKEN="ignored") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert call(server, "GET", "/health").json()["status"] == "serving"
        assert call(server, "GET", "/workflows").status_code == 200
        assert server.stop() == 0


def test_a_second_process_on_the_same_file_is_refused_with_one_sentence(store: str) -> None:
    with running("dev", "--port", "0", "--store", store) as server:
        sentence = refused(run("dev", "--port", "0", "--store", store))
        assert "perdure.db.lock is held by another perdure" in sentence
        assert str(server.process.pid) in sentence
        assert call(server, "GET", "/health").status_code == 200
        server.process.kill()
        server.process.wait(PATIENCE_SECONDS)
        with running("dev", "--port", "0", "--store", store) as successor:
            assert call(successor, "GET", "/health").status_code == 200


def test_sigterm_answers_parked_polls_and_ends_within_seconds(store: str) -> None:
    with running("dev", "--port", "0", "--store", store) as server:
        worker = {
            "worker_id": "w1",
            "task_queue": "q",
            "runtime": "python",
            "supported_workflow_types": ["Order"],
            "supported_activity_types": ["charge"],
        }
        assert call(server, "POST", "/worker/register", worker).status_code == 201
        polled = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 60}
        answers = [parked(server, f"/api/worker/{k}-tasks/poll", polled) for k in KINDS]

        code = server.stop()

        assert code == 0
        for answer in answers:
            head, _, body = answer.result(PATIENCE_SECONDS).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in head.lower()
            assert json.loads(body)["poll_status"] == "empty"
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def parked(server: Running, path: str, body: dict[str, Any]) -> "Future[bytes]":
    """A poll that has certainly arrived, and everything that comes back."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(PATIENCE_SECONDS)
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Durable-Workflow-Protocol-Version: 1.20\r\n"
        f"Content-Type: application/json\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode())
    # The server asks for the body, so it has the head; another request behind the body shows
    # that the body was read, too.
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(content)
    assert call(server, "GET", "/health").status_code == 200
    answer: Future[bytes] = Future()

    def read() -> None:
        with connection:
            pieces = []
            while piece := connection.recv(65_536):
                pieces.append(piece)
            answer.set_result(b"".join(pieces))

    threading.Thread(target=read, daemon=True).start()
    return answer


def test_what_was_acknowledged_survives_a_kill(store: str) -> None:
    with running("dev", "--port", "0", "--store", store) as server:
        start = {"workflow_id": "kept", "workflow_type": "Order"}
        assert call(server, "POST", "/workflows", start).status_code == 201
        server.process.kill()
        server.process.wait(PATIENCE_SECONDS)
    with running("dev", "--port", "0", "--store", store) as server:
        assert call(server, "GET", "/workflows/kept").json()["status"] == "pending"
        assert server.stop() == 0


def test_a_server_that_stops_says_so_until_what_it_began_has_ended(store: str) -> None:
    order = {"name": "order", "triggers": [{"event": "order"}]}
    with running("dev", "--store", store, "--port", "0") as server:
        with connect(server.url.replace("http", "ws") + "/connect") as socket:
            socket.recv()
            payload = {"app": "shop", "protocolVersion": 1, "workflows": [order]}
            socket.send(json.dumps({"type": "runner.register", "payload": payload}))
            while not httpx.get(f"{server.url}/runners").json():
                pass
            httpx.post(f"{server.url}/events", json={"name": "order"}).raise_for_status()
            asked = json.loads(socket.recv())
            server.process.send_signal(signal.SIGTERM)
            ready = httpx.get(f"{server.url}/readyz")
            while ready.status_code == 200:
                ready = httpx.get(f"{server.url}/readyz")
            assert (ready.status_code, ready.json()["draining"]) == (503, True)
            told = httpx.get(f"{server.url}/api/ready")
            assert (told.status_code, told.json()["status"]) == (503, "not_ready")
            assert httpx.get(f"{server.url}/healthz").status_code == 200
            refused = httpx.get(f"{server.url}/runs")
            assert (refused.status_code, refused.json()["reason"]) == (503, "server_stopping")
            result = {"status": 200, "body": {"data": "done", "logs": []}}
            answer = {"type": "invoke.result", "id": asked["id"], "payload": result}
            socket.send(json.dumps(answer))
        assert server.process.wait(PATIENCE_SECONDS) == 0
    with running("dev", "--store", store, "--port", "0") as server:
        (run,) = httpx.get(f"{server.url}/runs").json()
        assert run["status"] == "succeeded"

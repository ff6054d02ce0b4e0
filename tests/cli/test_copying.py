"""`perdure copy` as a command, and a server that goes on where the one on the source stopped."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.cli.main import main
from perdure.store.copies import TABLES, Compared
from tests.cli.test_serving import Running, call, environment, refused, run, running
from tests.support.http import (
    avro,
    complete_workflow,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
    wait_for_signal,
)
from tests.support.uploads import UPLOAD, headers_of

Json = dict[str, Any]


class QueueWorkers:
    """A client and a worker of one server."""

    def __init__(self, server: Running) -> None:
        self._server = server

    def ask(self, method: str, path: str, body: Json | None = None, status: int = 200) -> Json:
        answer = call(self._server, method, path, body)
        assert answer.status_code == status, answer.text
        decoded: Json = answer.json()
        return decoded

    def register(self) -> None:
        worker = {
            "worker_id": "w1",
            "task_queue": "q",
            "runtime": "python",
            "supported_workflow_types": ["Order", "Child"],
            "supported_activity_types": ["charge"],
        }
        self.ask("POST", "/worker/register", worker, 201)

    def put_out(self, workflow_id: str) -> None:
        run_id = self.ask("GET", f"/workflows/{workflow_id}")["run_id"]
        items = {"items": [{"payload": avro("item")}]}
        self.ask("POST", f"/workflows/{workflow_id}/runs/{run_id}/streams/s/items", items)

    def hold_session(self) -> None:
        session = {"worker_id": "w1", "session_id": "s"}
        self.ask("POST", "/worker/sessions", session, 201)

    def start(self, workflow_id: str) -> None:
        body = {"workflow_id": workflow_id, "workflow_type": "Order", "task_queue": "q"}
        self.ask("POST", "/workflows", {**body, "input": avro([workflow_id])}, 201)

    def take(self, kind: str = "workflow") -> Json:
        poll = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 15}
        task = self.ask("POST", f"/worker/{kind}-tasks/poll", poll)["task"]
        assert isinstance(task, dict)
        return task

    def complete(self, task: Json, *commands: Json) -> None:
        body = {name: task[name] for name in ("lease_owner", "workflow_task_attempt")}
        path = f"/worker/workflow-tasks/{task['task_id']}/complete"
        self.ask("POST", path, {**body, "commands": list(commands)})

    def complete_activity(self, task: Json) -> None:
        body = {name: task[name] for name in ("lease_owner", "activity_attempt_id")}
        path = f"/worker/activity-tasks/{task['task_id']}/complete"
        self.ask("POST", path, {**body, "result": avro("paid")})

    def run_to(self, workflow_id: str, *commands: Json) -> None:
        self.start(workflow_id)
        self.complete(self.take(), *commands)

    def signal(self, workflow_id: str, name: str, status: int = 202) -> Json:
        body = {"input": avro([name]), "request_id": f"{workflow_id} {name}"}
        return self.ask("POST", f"/workflows/{workflow_id}/signal/{name}", body, status)

    def event_types(self, workflow_id: str) -> list[str]:
        run_id = self.ask("GET", f"/workflows/{workflow_id}")["run_id"]
        path = f"/workflows/{workflow_id}/runs/{run_id}/history"
        return [event["event_type"] for event in self.ask("GET", path)["events"]]

    def statuses(self) -> dict[str, str]:
        listed = self.ask("GET", "/workflows?page_size=100")["workflows"]
        return {workflow["workflow_id"]: workflow["status"] for workflow in listed}


def served(store: str) -> Any:
    return running("dev", "--port", "0", "--store", store)


def copied(source: str, target: str) -> list[str]:
    """The lines that a copy which held has printed."""
    finished = run("copy", "--from", source, "--to", target)
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout.splitlines()


@pytest.mark.parametrize(
    ("source_kind", "target_kind"), [("sqlite", "postgres"), ("postgres", "sqlite")]
)
def test_open_runs_go_on_to_their_end_on_the_copy(
    source_kind: str, target_kind: str, tmp_path: Path, postgres_url: str
) -> None:
    places = {"sqlite": f"sqlite:///{tmp_path}/perdure.db", "postgres": postgres_url}
    source, target = places[source_kind], places[target_kind]
    with served(source) as server:
        crew = QueueWorkers(server)
        hand = set_out(crew)
        reference = upload(server)
        before = {workflow_id: crew.event_types(workflow_id) for workflow_id in crew.statuses()}
        assert server.stop() == 0

    lines = copied(source, target)

    assert lines[-1] == "perdure: copied; both stores hold the same"
    assert [line.split()[0] for line in lines[1:-1]] == list(TABLES)
    rows = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in lines[1:-1]}
    assert all(rows[table] > 0 for table in TABLES), rows
    with served(target) as server:
        crew = QueueWorkers(server)
        assert fetched(server, reference) == PAYLOAD
        after = {workflow_id: crew.event_types(workflow_id) for workflow_id in before}
        assert {i: types[: len(before[i])] for i, types in after.items()} == before
        arrive(crew, hand)
        assert set(crew.statuses().values()) == {"completed"}
        assert server.stop() == 0


PAYLOAD = avro(["large" * 1_000])["blob"].encode()


def upload(server: Running) -> str:
    """The id of a payload that nothing names yet."""
    headers = {"Content-Type": "application/octet-stream", **headers_of(PAYLOAD)}
    url = f"{server.url}{UPLOAD}"
    answer = httpx.post(url, content=PAYLOAD, headers=headers, trust_env=False)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["reference"]["reference_id"])


def fetched(server: Running, reference_id: str) -> bytes:
    answer = httpx.get(f"{server.url}{UPLOAD}/{reference_id}", trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.content


@dataclass(frozen=True, slots=True)
class Hand:
    """What client and worker have in their hands while the server is away."""

    attempt: Json
    task: Json
    child_id: str
    signalled: Json


def set_out(crew: QueueWorkers) -> Hand:
    """Runs in every state."""
    crew.register()
    crew.hold_session()
    crew.run_to("closed", complete_workflow())
    crew.run_to("working", schedule_activity())
    attempt = crew.take("activity")
    crew.run_to("queued", schedule_activity())
    crew.put_out("queued")
    crew.run_to("timed", start_timer(2))
    crew.run_to("parent", start_child())
    child = crew.take()
    crew.complete(child, wait_for_condition("go"))
    crew.run_to("listening", wait_for_signal("pay"))
    crew.start("replaying")
    task = crew.take()
    signalled = crew.signal("replaying", "early")
    crew.start("fresh")
    return Hand(attempt, task, child["workflow_id"], signalled)


def arrive(crew: QueueWorkers, hand: Hand) -> None:
    """Everything that was begun is done, by the same worker, with the leases that it had."""
    again = crew.signal("replaying", "early")
    assert again["command_id"] == hand.signalled["command_id"], "the first answer still counts"
    crew.complete_activity(hand.attempt)
    crew.complete(hand.task, complete_workflow())
    crew.signal(hand.child_id, "go")
    crew.signal("listening", "pay")
    crew.complete_activity(crew.take("activity"))
    while set(crew.statuses().values()) != {"completed"}:
        crew.complete(crew.take(), complete_workflow())


# Refusals -----------------------------------------------------------------------------------------


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The one sentence with which a copy refuses."""

    def refuse(source: str, target: str) -> str:
        monkeypatch.setattr("os.environ", environment())
        code = main(["copy", "--from", source, "--to", target])
        told = capsys.readouterr()
        assert (code, told.out) == (2, "")
        (line,) = told.err.strip().splitlines()
        return line.removeprefix("perdure: ")

    return refuse


@pytest.mark.parametrize("bad", ["mysql://user:s3cret@host/db", "perdure.db", "sqlite:///"])
@pytest.mark.parametrize("is_source", [True, False])
def test_a_store_that_makes_no_sense_is_refused_without_repeating_it(
    refusal: Callable[..., str], bad: str, is_source: bool, tmp_path: Path
) -> None:
    good = f"sqlite:///{tmp_path}/perdure.db"
    sentence = refusal(bad, good) if is_source else refusal(good, bad)
    assert "sqlite:///" in sentence
    assert "s3cret" not in sentence
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_not_copied_onto_itself(refusal: Callable[..., str], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/perdure.db"
    assert "the same store" in refusal(store, f"sqlite:///{tmp_path}/../{tmp_path.name}/perdure.db")
    assert "the same store" in refusal("postgresql://u@h/d", "postgresql://u@h/d")


def test_a_database_that_is_not_there_is_refused_without_its_password(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("perdure.store.postgres.connection.PATIENCE_SECONDS", 0.1)
    sentence = refusal("postgresql://user:s3cret@127.0.0.1:1/db", f"sqlite:///{tmp_path}/x.db")
    assert sentence.startswith("--from: the store cannot be reached")
    assert "s3cret" not in sentence


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_that_is_served_is_refused(
    refusal: Callable[..., str], kind: str, tmp_path: Path, postgres_url: str
) -> None:
    store = f"sqlite:///{tmp_path}/perdure.db" if kind == "sqlite" else postgres_url
    other = f"sqlite:///{tmp_path}/other.db"
    with served(store) as server:
        sentence = refusal(store, other)
        assert sentence.startswith("--from: ")
        assert "held by another perdure" in sentence or "servers are connected" in sentence
        assert QueueWorkers(server).ask("GET", "/health")["status"] == "serving"


def test_both_stores_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["copy", "--from", "sqlite:///./x.db"])
    assert ended.value.code == 2
    assert "--to" in capsys.readouterr().err


def test_a_copy_that_differs_is_told_and_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row is lost on the way, as if the disk had not kept it."""
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    with served(source) as server:
        QueueWorkers(server).start("order")
        server.stop()
    taken: list[str] = []

    def lose(table: str, *sides: Any) -> Compared:
        taken.append(table)
        source_rows, source_digest, target_rows, target_digest, *_ = sides
        lost = 1 if table == "ready" else 0
        return Compared(table, source_rows, source_digest, target_rows - lost, target_digest)

    monkeypatch.setattr("perdure.store.copies.Compared", lose)

    code = main(["copy", "--from", source, "--to", target])

    told = capsys.readouterr()
    assert (code, taken) == (1, list(TABLES))
    assert told.err == "perdure: the copy differs from its source and cannot be served\n"
    assert sum(line.startswith("  in --to") for line in told.out.splitlines()) == 1
    assert "did not finish" in refused(run("dev", "--port", "0", "--store", target))

"""The database goes away and comes back: whoever asks meanwhile is answered at once and truly."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.store.interface import Unavailable
from perdure.store.postgres import connection as line
from perdure.store.sqlite.store import SqliteStore
from tests.store.refusing import refusing_commits
from tests.support.http import WORKER_VERSION, Answer, Json, Parked, Wire, a_wire, contract_of
from tests.support.proxy import Proxy, executing

KINDS = ("workflow", "activity", "query", "update-validation")
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def proxy(migrated_url: str) -> Iterator[Proxy]:
    with Proxy(migrated_url) as proxy:
        yield proxy


@pytest.fixture
def wire(tmp_path: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """A server on a database behind a proxy. Whoever waits for it to come back, waits for ever."""
    monkeypatch.setattr(line, "PATIENCE_SECONDS", 3600.0)
    with a_wire(tmp_path, store=proxy.url) as wire:
        register(wire)
        yield wire
        monkeypatch.setattr(line, "PATIENCE_SECONDS", -1.0)


def poll(wire: Wire, kind: str, timeout_seconds: int = 0) -> Answer:
    return wire.worker(f"/{kind}-tasks/poll", poll_body(timeout_seconds))


def poll_body(timeout_seconds: int) -> Json:
    return {
        "worker_id": "w1",
        "task_queue": "q",
        "timeout_seconds": timeout_seconds,
        "poll_request_id": "p1",
    }


def park(wire: Wire, kind: str) -> Parked:
    path, headers = f"/api/worker/{kind}-tasks/poll", {WORKER_VERSION: "1.20"}
    parked = wire.call_later("POST", path, poll_body(60), headers=headers)
    wire.until(lambda: wire.server.parked_polls.count + wire.server.query_broker.parked_count > 0)
    return parked


def register(wire: Wire) -> None:
    """A worker that polls for tasks of every kind."""
    wire.register(
        capabilities=["query_tasks", "update_validation_tasks"],
        workflow_command_contracts=contract_of("Order", updates={"add": 1}, validators=["add"]),
    )


def look(wire: Wire) -> None:
    wire.run(wire.server.store_watch.look())


def last_for(wire: Wire, *, seconds: float) -> None:
    """Trouble goes on for a while, and the server sees that."""
    look(wire)
    wire.clock.jump(seconds=seconds)
    look(wire)


def unavailable(answer: Answer, reason: str = "storage_unavailable") -> None:
    body = answer.refused(503, "backend_unavailable")
    told = {
        "poll_status": "backend_unavailable",
        "task": None,
        "storage_reason": reason,
        "retryable": True,
        "retry_same_poll_request_id": True,
        "poll_request_id": "p1",
    }
    assert told.items() <= body.items(), body


def health(wire: Wire) -> dict[str, tuple[int, Any]]:
    """What the routes for load balancers say, of both planes."""
    answers = {path: wire.call("GET", path) for path in ("/api/health", "/api/ready", "/readyz")}
    return {
        "/api/health": (
            answers["/api/health"].status,
            answers["/api/health"].body.get("storage", {}).get("reason"),
        ),
        "/api/ready": (
            answers["/api/ready"].status,
            answers["/api/ready"].body["checks"]["database"].get("reason"),
        ),
        "/readyz": (answers["/readyz"].status, answers["/readyz"].body.get("reason")),
    }


ALL_WELL = dict.fromkeys(("/api/health", "/api/ready", "/readyz"), (200, None))


def all_down(reason: str) -> dict[str, tuple[int, Any]]:
    return dict.fromkeys(ALL_WELL, (503, reason))


def test_a_poll_with_no_time_is_told_at_once_that_the_database_is_away(
    wire: Wire, proxy: Proxy
) -> None:
    """Nothing is known of the outage when the first poll comes; it looks and finds out."""
    with proxy.outage():
        unavailable(poll(wire, "workflow"))
        for kind in KINDS:
            unavailable(poll(wire, kind))


@every_kind
def test_polls_do_not_wait_for_a_database_that_stays_away(
    wire: Wire, proxy: Proxy, kind: str
) -> None:
    parked = park(wire, kind)
    with proxy.outage():
        look(wire)
        assert parked.is_waiting
        last_for(wire, seconds=2)
        waiting = [
            poller for poller in wire.server.parked_polls.awaiting() if not poller.answer.done()
        ]
        assert not waiting
        assert wire.server.query_broker.parked_count == 0
        unavailable(parked.answer())
        unavailable(poll(wire, kind, timeout_seconds=60))
    look(wire)
    assert poll(wire, kind).ok()["poll_status"] == "empty"


@every_kind
def test_a_poll_outlives_a_restart_of_the_database(wire: Wire, proxy: Proxy, kind: str) -> None:
    with proxy.outage():
        look(wire)
        parked = park(wire, kind)
        last_for(wire, seconds=1)
    look(wire)
    wire.clock.jump(seconds=60)
    look(wire)
    assert parked.is_waiting


def test_a_poll_whose_time_is_up_while_the_database_is_away_is_not_called_empty(
    wire: Wire, proxy: Proxy
) -> None:
    parked = wire.park("/workflow-tasks/poll", poll_body(1))
    with proxy.outage():
        look(wire)
        unavailable(parked.answer())


def test_health_and_readiness_are_told_at_once_in_both_directions(wire: Wire, proxy: Proxy) -> None:
    assert health(wire) == ALL_WELL
    with proxy.outage():
        assert health(wire) == all_down("storage_unavailable")
        assert storage_in_cluster_info(wire) == {
            "status": "unavailable",
            "reason": "storage_unavailable",
        }
        assert wire.call("GET", "/healthz").status == 200
    look(wire)
    assert health(wire) == ALL_WELL
    assert storage_in_cluster_info(wire) == {"status": "ok"}


def storage_in_cluster_info(wire: Wire) -> Any:
    return wire.control("GET", "/cluster/info").ok()["storage"]


def test_a_database_that_does_not_answer_is_not_called_healthy(
    wire: Wire, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and says nothing, as behind a firewall that forgot them."""
    monkeypatch.setattr("perdure.dispatch.store_watch.ANSWER_SECONDS", 0.05)
    monkeypatch.setattr("perdure.dispatch.store_watch.CHECK_SECONDS", 0.2)
    trap = proxy.hold(executing("select 1"))
    assert wire.call("GET", "/api/health").status == 503
    look(wire)
    unavailable(poll(wire, "workflow"))
    trap.release()
    look(wire)
    assert health(wire) == ALL_WELL


def test_requests_are_refused_at_once_when_the_database_is_away_for_long(
    wire: Wire, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy.outage():
        look(wire)
        monkeypatch.setattr(line, "PATIENCE_SECONDS", 0.0)
        answer = wire.control("POST", "/workflows", {"workflow_type": "Order"})
        assert answer.refused(503, "storage_unavailable")["retryable"] is True


def test_the_log_has_one_line_when_trouble_begins_and_one_when_it_ends(
    wire: Wire, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        told = [r for r in caplog.records if r.name == "perdure.dispatch.store_watch"]
        return [record.getMessage().split(" (")[0] for record in told]

    with caplog.at_level(logging.WARNING), proxy.outage():
        for _ in range(5):
            last_for(wire, seconds=1)
        assert lines() == ["the store cannot be used"]
        last_for(wire, seconds=600)
        assert lines() == ["the store cannot be used"] * 2
    look(wire)
    assert lines()[2:] == ["the store can be used again after 605 s"]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with proxy.outage():
                look(wire)
            look(wire)
        assert len(lines()) == 3, "it fails and works by turns"
        wire.clock.jump(seconds=60)
        with proxy.outage():
            look(wire)
        look(wire)
        assert len(lines()) == 5


# A disk that is full ----------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Wire]:
    with a_wire(tmp_path) as wire:
        register(wire)
        yield wire


def store_of(wire: Wire) -> SqliteStore:
    store = wire.server.store
    assert isinstance(store, SqliteStore)
    return store


def test_a_full_disk_is_reported_until_it_takes_writes_again(disk: Wire) -> None:
    assert health(disk) == ALL_WELL
    with refusing_commits(store_of(disk), apsw.FullError("database or disk is full")):
        answer = disk.control("POST", "/workflows", {"workflow_type": "Order"})
        assert answer.refused(503, "storage_full")["retryable"] is True
        for _ in range(3):
            assert health(disk) == all_down("storage_full")
            look(disk)
        assert storage_in_cluster_info(disk)["reason"] == "storage_full"
        for kind in KINDS:
            unavailable(poll(disk, kind), "storage_full")
    look(disk)
    assert health(disk) == ALL_WELL
    assert poll(disk, "workflow").ok()["poll_status"] == "empty"


def test_a_write_that_works_ends_the_trouble(disk: Wire) -> None:
    with refusing_commits(store_of(disk), apsw.FullError("database or disk is full")):
        disk.control("POST", "/workflows", {"workflow_type": "Order"}).refused(503, "storage_full")
    disk.start()
    assert health(disk) == ALL_WELL


def test_a_busy_disk_is_not_a_broken_one(disk: Wire) -> None:
    with refusing_commits(store_of(disk), apsw.BusyError("database is locked")):
        disk.control("POST", "/workflows", {"workflow_type": "Order"}).refused(503, "storage_busy")
        assert health(disk) == ALL_WELL


def test_a_probe_leaves_nothing_behind(disk: Wire) -> None:
    with refusing_commits(store_of(disk), apsw.FullError("database or disk is full")):
        disk.control("POST", "/workflows", {"workflow_type": "Order"}).refused(503, "storage_full")
    with disk.nothing_changes():
        look(disk)
    assert health(disk) == ALL_WELL


def test_polls_without_an_id_are_told_to_come_again_too(disk: Wire) -> None:
    """Some clients send none, and end for ever at a refusal that does not look like this one."""
    with refusing_commits(store_of(disk), apsw.FullError("database or disk is full")):
        disk.control("POST", "/workflows", {"workflow_type": "Order"}).refused(503, "storage_full")
        body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0}
        for kind in KINDS:
            answer = disk.call(
                "POST", f"/api/worker/{kind}-tasks/poll", body, headers={WORKER_VERSION: "1.13"}
            )
            told = answer.refused(503, "backend_unavailable")
            assert told["task"] is None
            assert told["poll_status"] == "backend_unavailable"
            assert told["retryable"] is True
            assert "poll_request_id" not in told


def test_a_poll_with_no_time_that_waits_for_a_look_is_let_go_when_the_look_is_in_vain(
    wire: Wire, proxy: Proxy
) -> None:
    trap = proxy.hold(executing("skip locked"))
    polled = wire.call_later(
        "POST",
        "/api/worker/workflow-tasks/poll",
        poll_body(0),
        headers={WORKER_VERSION: "1.20"},
    )
    wire.until(lambda: wire.server.parked_polls.count == 1)
    (poller,) = wire.server.parked_polls.awaiting()
    wire.server.store.health.failed(Unavailable("storage_unavailable", "it is away"))
    assert poller.answer.done()
    unavailable(polled.answer())
    trap.release()

"""Operators look at workers, and send them away."""

from typing import Any

import pytest

from perdure.core import limits
from tests.support.http import Json, Wire, schedule_activity


def listed(wire: Wire, query: str = "") -> list[str]:
    answer = wire.control("GET", f"/workers{query}").ok()
    return [worker["worker_id"] for worker in answer["workers"]]


def described(wire: Wire, worker_id: str = "w1") -> Json:
    return wire.control("GET", f"/workers/{worker_id}").ok()


def heartbeat(wire: Wire, worker_id: str = "w1", **members: Any) -> Json:
    return wire.worker("/heartbeat", {"worker_id": worker_id, **members}).ok()


# Listing ------------------------------------------------------------------------------------------


def test_workers_are_listed_in_the_order_of_their_ids(wire: Wire) -> None:
    for worker_id in ("w2", "w10", "w1"):
        wire.register(worker_id)

    body = wire.control("GET", "/workers").ok()

    assert [worker["worker_id"] for worker in body["workers"]] == ["w1", "w10", "w2"]
    assert body["namespace"] == "default"
    assert body["worker_count"] == 3
    assert body["is_truncated"] is False
    assert body["stale_after_seconds"] == 60


def test_nobody_is_an_empty_list(wire: Wire) -> None:
    assert listed(wire) == []


def test_a_queue_chooses_its_workers(wire: Wire) -> None:
    wire.register("here")
    wire.register("there", task_queue="other")

    assert listed(wire, "?task_queue=q") == ["here"]
    assert listed(wire, "?task_queue=other") == ["there"]
    assert listed(wire, "?task_queue=nowhere") == []
    assert listed(wire, "?task_queue=") == ["here", "there"]


def test_who_was_not_heard_of_lately_is_listed_if_asked_for(wire: Wire) -> None:
    wire.register("silent")
    wire.advance(seconds=40)
    wire.register("alive")
    wire.advance(seconds=30)

    assert listed(wire) == ["alive"]
    assert listed(wire, "?status=active") == ["alive"]
    assert listed(wire, "?status=stale") == ["silent"]
    assert described(wire, "silent")["status"] == "stale"

    heartbeat(wire, "silent")

    assert listed(wire) == ["alive", "silent"]
    assert listed(wire, "?status=stale") == []


def test_a_status_that_no_worker_can_have_is_refused(wire: Wire) -> None:
    body = wire.control("GET", "/workers?status=asleep").invalid("status")

    assert "active" in body["errors"]["status"][0]


def test_a_list_ends_somewhere_and_says_so(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKERS_LISTED_MAX", 2)
    for worker_id in ("c", "a", "b"):
        wire.register(worker_id)

    body = wire.control("GET", "/workers").ok()

    assert [worker["worker_id"] for worker in body["workers"]] == ["a", "b"]
    assert body["worker_count"] == 3
    assert body["is_truncated"] is True


# Describing ---------------------------------------------------------------------------------------


def test_a_worker_is_described_as_it_registered_and_as_it_last_reported(wire: Wire) -> None:
    wire.register(
        build_id="b1",
        supported_workflow_types=["Order"],
        supported_activity_types=["charge"],
        workflow_definition_fingerprints={"Order": "sha256:1"},
        workflow_command_contracts={"Order": {"signals": ["pay"]}},
        capabilities=["query_tasks"],
        max_concurrent_workflow_tasks=4,
        max_concurrent_activity_tasks=8,
        max_concurrent_worker_sessions=2,
        task_slots={"workflow_available": 4},
        heartbeat_interval_seconds=15,
    )
    registered_at = described(wire)["registered_at"]
    wire.advance(seconds=5)
    told = {"workflow_available": 1, "activity_available": 99}
    heartbeat(wire, task_slots=told, process_metrics={"cpu_percent": 2.5, "host": "box"})

    body = described(wire)

    expected = {
        "worker_id": "w1",
        "namespace": "default",
        "task_queue": "q",
        "runtime": "python",
        "sdk_version": "durable-workflow-python/2.12.0",
        "build_id": "b1",
        "status": "active",
        "supported_workflow_types": ["Order"],
        "supported_activity_types": ["charge"],
        "workflow_definition_fingerprints": {"Order": "sha256:1"},
        "workflow_command_contracts": {"Order": {"signals": ["pay"]}},
        "capabilities": ["query_tasks"],
        "max_concurrent_workflow_tasks": 4,
        "max_concurrent_activity_tasks": 8,
        "max_concurrent_worker_sessions": 2,
        "process_metrics": {"cpu_percent": 2.5, "host": "box"},
        "heartbeat_interval_seconds": 15,
        "registered_at": registered_at,
        "stale_after_seconds": 60,
    }
    assert expected.items() <= body.items()
    assert body["task_slots"] == {
        "workflow_available": 1,
        "workflow_capacity": 4,
        # Never more than it has.
        "activity_available": 8,
        "activity_capacity": 8,
        "session_available": None,
        "session_capacity": 2,
    }
    assert registered_at < body["last_heartbeat_at"] == body["updated_at"]
    [one] = wire.control("GET", "/workers").ok()["workers"]
    assert one.items() <= body.items()


def test_a_worker_that_is_not_there_is_not_found(wire: Wire) -> None:
    body = wire.control("GET", "/workers/nobody").refused(404, "worker_not_found")

    assert body["worker_id"] == "nobody"


def test_a_worker_id_may_hold_a_slash(wire: Wire) -> None:
    wire.register("box/7")

    assert described(wire, "box%2F7")["worker_id"] == "box/7"


def test_a_namespace_is_a_wall(wire: Wire) -> None:
    other = {"X-Namespace": "other"}
    wire.server.namespaces.known.add("other")
    wire.register("mine")

    body = wire.control("GET", "/workers", headers=other).ok()

    assert (body["namespace"], body["workers"]) == ("other", [])
    wire.control("GET", "/workers/mine", headers=other).refused(404, "worker_not_found")


# Removing -----------------------------------------------------------------------------------------


def test_a_removed_worker_is_gone_and_what_it_held_is_free(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    wire.run_to(schedule_activity())
    attempt = wire.take("activity")
    wire.start("order-2")
    task = wire.take()

    body = wire.control("DELETE", "/workers/w1").ok()

    assert body["worker_id"] == "w1"
    assert body["outcome"] == "deregistered"
    assert body["recovered_workflow_task_count"] == 1
    assert listed(wire) == ["w2"]
    wire.control("GET", "/workers/w1").refused(404, "worker_not_found")
    assert wire.take(worker_id="w2")["task_id"] == task["task_id"]
    assert wire.take("activity", "w2")["activity_execution_id"] == attempt["activity_execution_id"]
    wire.worker(
        "/workflow-tasks/poll", {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0}
    ).refused(412, "worker_not_registered")


def test_removing_twice_changes_nothing_and_a_stranger_is_not_found(wire: Wire) -> None:
    wire.register()
    first = wire.control("DELETE", "/workers/w1").ok()

    with wire.nothing_changes():
        assert wire.control("DELETE", "/workers/w1").ok() == first
        wire.control("DELETE", "/workers/w2").refused(404, "worker_not_found")


def test_a_removed_worker_may_register_again(wire: Wire) -> None:
    wire.register()
    wire.control("DELETE", "/workers/w1").ok()

    wire.register()

    assert listed(wire) == ["w1"]


def test_registrations_outlive_the_server(wire: Wire) -> None:
    wire.register(build_id="b1")

    wire.restart()

    assert described(wire)["build_id"] == "b1"

"""Operators look at queues: what waits, who is there, and who holds what."""

from typing import Any

import pytest

from perdure.core import limits
from tests.support.http import Json, Parked, Wire, schedule_activity
from tests.wire.queries.asking import ask

NOTHING = {
    "approximate_backlog_count": 0,
    "approximate_backlog_age": None,
    "approximate_backlog_age_seconds": None,
    "is_capped": False,
    "workflow_tasks": {"ready_count": 0, "leased_count": 0, "expired_lease_count": 0},
    "activity_tasks": {"ready_count": 0, "leased_count": 0, "expired_lease_count": 0},
    "pollers": {
        "active_count": 0,
        "draining_count": 0,
        "stale_count": 0,
        "stale_after_seconds": 60,
    },
}


def describe(wire: Wire, name: str = "q") -> Json:
    return wire.control("GET", f"/task-queues/{name}").ok()


def stats(wire: Wire, name: str = "q") -> Any:
    return describe(wire, name)["stats"]


def admission(wire: Wire, kind: str = "workflow") -> Any:
    return describe(wire)["admission"][f"{kind}_tasks"]


def listed(wire: Wire) -> list[str]:
    return [queue["name"] for queue in wire.control("GET", "/task-queues").ok()["task_queues"]]


def drain(wire: Wire, build_id: str | None, queue: str = "q") -> None:
    wire.control("POST", f"/task-queues/{queue}/build-ids/drain", {"build_id": build_id}).ok()


# What waits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nowhere", "a%2Fb", "%00", "%C3%BC", "x" * 255])
def test_a_queue_that_nobody_has_heard_of_is_empty(wire: Wire, name: str) -> None:
    body = describe(wire, name)

    assert body["stats"] == NOTHING
    assert body["pollers"] == body["current_leases"] == []
    assert body["admission"]["workflow_tasks"]["status"] == "no_active_workers"
    assert body["admission"]["query_tasks"]["status"] == "accepting"


def test_a_name_that_no_queue_can_have_is_refused(wire: Wire) -> None:
    wire.control("GET", f"/task-queues/{'x' * 256}").invalid("task_queue")


def test_ready_tasks_are_counted_with_the_age_of_the_oldest(wire: Wire) -> None:
    wire.start("a", priority=7)
    wire.advance(seconds=40)
    wire.start("b", priority=1)
    wire.start("c", task_queue="other")
    wire.advance(seconds=5)

    found = stats(wire)

    assert found["approximate_backlog_count"] == 2
    assert found["approximate_backlog_age"] == "45s"
    assert found["approximate_backlog_age_seconds"] == 45
    assert found["workflow_tasks"]["ready_count"] == 2
    assert found["activity_tasks"]["ready_count"] == 0
    assert found["is_capped"] is False
    assert stats(wire, "other")["approximate_backlog_age_seconds"] == 5


def test_activities_wait_on_their_own_queue_those_of_sessions_too(wire: Wire) -> None:
    wire.register()
    session = {"session_id": "s1"}
    wire.run_to(
        schedule_activity(),
        schedule_activity(queue="elsewhere"),
        schedule_activity(worker_session=session),
    )

    assert stats(wire)["activity_tasks"]["ready_count"] == 2
    assert stats(wire, "elsewhere")["activity_tasks"]["ready_count"] == 1


def test_what_is_not_ready_yet_does_not_count(wire: Wire) -> None:
    wire.start(start_delay_seconds=60)

    assert stats(wire)["approximate_backlog_count"] == 0


def test_counting_ends_somewhere_and_says_so(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READY_COUNTED_MAX", 3)
    monkeypatch.setattr(limits, "READY_COUNTED_LISTED_MAX", 2)
    for number in range(4):
        wire.start(f"order-{number}")
    wire.start("other", task_queue="other")

    body, whole = describe(wire), wire.control("GET", "/task-queues").ok()

    assert body["count_limit"] == 3
    assert body["stats"]["approximate_backlog_count"] == 3
    assert body["stats"]["is_capped"] is True
    assert whole["count_limit"] == 2
    found = {queue["name"]: queue["stats"] for queue in whole["task_queues"]}
    assert [found[name]["approximate_backlog_count"] for name in ("q", "other")] == [2, 1]
    assert [found[name]["is_capped"] for name in ("q", "other")] == [True, False]


# Who is there -------------------------------------------------------------------------------------


def test_workers_of_a_queue_are_its_pollers(wire: Wire) -> None:
    wire.register("silent", build_id="b0")
    wire.advance(seconds=61)
    wire.register("w2", build_id="b2", max_concurrent_workflow_tasks=4)
    wire.register("w1", build_id="b1", max_concurrent_activity_tasks=8)
    wire.register("elsewhere", task_queue="other")
    drain(wire, "b2")

    body = describe(wire)

    pollers = {poller["worker_id"]: poller for poller in body["pollers"]}
    assert list(pollers) == ["silent", "w1", "w2"]
    assert [poller["status"] for poller in body["pollers"]] == ["stale", "active", "draining"]
    assert [poller["is_stale"] for poller in body["pollers"]] == [True, False, False]
    counts = {"active_count": 1, "draining_count": 1, "stale_count": 1, "stale_after_seconds": 60}
    assert body["stats"]["pollers"] == counts
    expected = {
        "runtime": "python",
        "sdk_version": "durable-workflow-python/2.12.0",
        "build_id": "b1",
        "supported_workflow_types": ["Order", "Child"],
        "supported_activity_types": ["charge", "ship"],
        "max_concurrent_workflow_tasks": 100,
        "max_concurrent_activity_tasks": 8,
        "last_heartbeat_at": "2026-01-01T00:01:01.000000Z",
        "heartbeat_expires_at": "2026-01-01T00:02:01.000000Z",
    }
    assert expected.items() <= pollers["w1"].items()


def test_slots_say_whether_more_can_be_done(wire: Wire) -> None:
    assert admission(wire)["status"] == "no_active_workers"
    slots = {"max_concurrent_workflow_tasks": 1, "max_concurrent_activity_tasks": 0}
    wire.register("w1", build_id="b1", **slots)
    wire.start("a")
    wire.start("b")

    assert admission(wire) == {
        "status": "accepting",
        "budget_source": "worker_registration.max_concurrent_workflow_tasks",
        "active_worker_count": 1,
        "configured_slot_count": 1,
        "leased_count": 0,
        "ready_count": 2,
        "available_slot_count": 1,
    }
    assert admission(wire, "activity")["status"] == "no_slots"

    wire.take()

    found = admission(wire)
    assert (found["status"], found["available_slot_count"]) == ("saturated", 0)
    assert (found["leased_count"], found["ready_count"]) == (1, 1)
    wire.register("w2")
    assert admission(wire)["status"] == "accepting"
    drain(wire, None)
    assert admission(wire)["status"] == "saturated"
    drain(wire, "b1")
    assert admission(wire)["status"] == "no_active_workers"
    assert admission(wire)["leased_count"] == 1, "who drains still holds it"


def test_queries_that_wait_are_counted(wire: Wire) -> None:
    wire.register(capabilities=["query_tasks"])
    wire.start()
    asked: list[Parked] = [ask(wire), ask(wire)]

    assert admission(wire, "query") == {
        "status": "accepting",
        "budget_source": "server.query_tasks.max_pending_per_queue",
        "max_pending_per_queue": limits.QUERIES_PENDING_MAX,
        "approximate_pending_count": 2,
        "remaining_pending_capacity": limits.QUERIES_PENDING_MAX - 2,
    }
    assert all(query.is_waiting for query in asked)


# Who holds what -----------------------------------------------------------------------------------


def test_leases_are_shown_with_their_owners(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    started = wire.run_to(schedule_activity())
    attempt = wire.take("activity", "w2")
    second = wire.start("order-2")
    task = wire.take()

    body = describe(wire)

    assert body["current_leases"] == [
        {
            "task_id": task["task_id"],
            "task_type": "workflow",
            "workflow_id": "order-2",
            "run_id": second["run_id"],
            "lease_owner": "w1",
            "lease_expires_at": task["lease_expires_at"],
            "is_expired": False,
            "workflow_task_attempt": 1,
        },
        {
            "task_id": attempt["task_id"],
            "task_type": "activity",
            "workflow_id": "order-1",
            "run_id": started["run_id"],
            "lease_owner": "w2",
            "lease_expires_at": attempt["lease_expires_at"],
            "is_expired": False,
            "activity_attempt_id": attempt["activity_attempt_id"],
            "attempt_number": 1,
        },
    ]
    for kind in ("workflow_tasks", "activity_tasks"):
        counts = {"ready_count": 0, "leased_count": 1, "expired_lease_count": 0}
        assert body["stats"][kind] == counts
    assert describe(wire, "other")["current_leases"] == []


def test_a_lease_that_has_ended_is_told_until_somebody_notices(wire: Wire) -> None:
    wire.register()
    wire.start()
    wire.take()
    wire.jump(seconds=61)

    body = describe(wire)

    assert [lease["is_expired"] for lease in body["current_leases"]] == [True]
    assert body["stats"]["workflow_tasks"]["expired_lease_count"] == 1


def test_a_validation_is_shown_under_its_own_id(wire: Wire) -> None:
    wire.register_validator()
    wire.start()
    wire.complete(wire.take(), {"type": "open_condition_wait"})
    wire.update_later("add", input=[1])
    task = wire.take_validation()

    [lease] = describe(wire)["current_leases"]

    assert lease["task_id"] == task["update_validation_task_id"]


def test_leases_are_shown_up_to_a_bound(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASES_LISTED_MAX", 1)
    monkeypatch.setattr(limits, "LEASES_COUNTED_MAX", 2)
    wire.register()
    for number in range(3):
        wire.start(f"order-{number}")
        wire.take()

    body = describe(wire)

    assert len(body["current_leases"]) == 1
    assert body["stats"]["workflow_tasks"] == {"ready_count": 0, "leased_count": 2}
    assert body["stats"]["is_capped"] is True


# Listing ------------------------------------------------------------------------------------------


def test_queues_are_listed_by_name_with_what_is_on_them(wire: Wire) -> None:
    assert listed(wire) == []
    wire.register()
    wire.start()
    wire.take()
    wire.start("waiting", task_queue="work")
    drain(wire, "b1", queue="drained")

    body = wire.control("GET", "/task-queues").ok()

    assert body["namespace"] == "default"
    assert body["is_truncated"] is False
    found = {queue["name"]: queue for queue in body["task_queues"]}
    assert list(found) == ["drained", "q", "work"]
    assert all(queue["namespace"] == "default" for queue in found.values())
    assert found["q"]["stats"]["workflow_tasks"] == {"ready_count": 0, "leased_count": 1}
    assert found["q"]["admission"]["workflow_tasks"]["status"] == "accepting"
    assert found["work"]["stats"]["workflow_tasks"] == {"ready_count": 1, "leased_count": 0}
    assert found["work"]["admission"]["workflow_tasks"]["status"] == "no_active_workers"
    assert found["drained"]["stats"]["approximate_backlog_count"] == 0


def test_a_queue_that_nobody_uses_any_more_is_not_listed(wire: Wire) -> None:
    wire.register()
    wire.control("DELETE", "/workers/w1").ok()

    assert listed(wire) == []


def test_a_list_of_queues_ends_somewhere_and_says_so(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TASK_QUEUES_LISTED_MAX", 2)
    for queue in ("d", "b", "c"):
        wire.start(f"order-{queue}", task_queue=queue)
    wire.register(task_queue="a")

    body = wire.control("GET", "/task-queues").ok()

    assert [queue["name"] for queue in body["task_queues"]] == ["a", "b"]
    assert body["is_truncated"] is True


def test_a_queue_may_have_any_name(wire: Wire) -> None:
    for number, queue in enumerate(["a/b", "ü", "x\x00y", '"]}', "x" * 255]):
        wire.register(f"w{number}", task_queue=queue)
        wire.start(f"order-{number}", task_queue=queue)

    body = wire.control("GET", "/task-queues").ok()

    assert [queue["name"] for queue in body["task_queues"]] == sorted(
        ["a/b", "ü", "x\x00y", '"]}', "x" * 255]
    )
    assert stats(wire, "a%2Fb")["approximate_backlog_count"] == 1


def test_a_namespace_is_a_wall(wire: Wire) -> None:
    other = {"X-Namespace": "other"}
    wire.server.namespaces.known.add("other")
    wire.register()
    wire.start()
    wire.take()
    wire.run_to(schedule_activity(), workflow_id="order-2")
    wire.take("activity")
    wire.start("waiting")
    drain(wire, "b1")

    body = wire.control("GET", "/task-queues/q", headers=other).ok()

    assert body["stats"] == NOTHING
    assert body["pollers"] == body["current_leases"] == []
    assert wire.control("GET", "/task-queues", headers=other).ok()["task_queues"] == []

    # A worker of the same name there holds nothing of what the one here does.
    worker = {"worker_id": "w1", "task_queue": "q", "runtime": "python"}
    wire.worker("/register", worker, headers=other).ok(201)
    body = wire.control("GET", "/task-queues/q", headers=other).ok()
    assert [poller["worker_id"] for poller in body["pollers"]] == ["w1"]
    assert body["current_leases"] == []
    for kind in ("workflow_tasks", "activity_tasks"):
        assert body["stats"][kind] == NOTHING[kind]


@pytest.mark.parametrize(("queues", "is_truncated"), [(2, False), (3, True)])
def test_a_list_of_ready_tasks_alone_says_whether_it_is_whole(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, queues: int, is_truncated: bool
) -> None:
    monkeypatch.setattr(limits, "TASK_QUEUES_LISTED_MAX", 2)
    for queue in "abc"[:queues]:
        wire.start(f"order-{queue}", task_queue=queue)

    body = wire.control("GET", "/task-queues").ok()

    assert [queue["name"] for queue in body["task_queues"]] == ["a", "b"]
    assert body["is_truncated"] is is_truncated


@pytest.mark.parametrize("activity_first", [True, False])
def test_the_age_is_that_of_the_oldest_task_of_either_kind(
    wire: Wire, activity_first: bool
) -> None:
    wire.register()
    if activity_first:
        wire.run_to(schedule_activity())
        wire.advance(seconds=20)
        wire.start("order-2")
    else:
        wire.start("order-1")
        task = wire.take()
        wire.start("order-2")
        wire.advance(seconds=20)
        wire.complete(task, schedule_activity())
    wire.advance(seconds=10)

    found = stats(wire)

    assert found["approximate_backlog_age_seconds"] == 30
    assert found["approximate_backlog_age"] == "30s"

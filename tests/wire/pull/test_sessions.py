"""Worker sessions over the wire: who owns one, who is refused, and what becomes of it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.http import (
    WORKER_VERSION,
    Answer,
    Json,
    Parked,
    Wire,
    a_wire,
    avro,
    complete_workflow,
    schedule_activity,
)

OLD = {WORKER_VERSION: "1.7"}


def create(wire: Wire, worker_id: str = "w1", session_id: str = "s", **terms: Any) -> Answer:
    return wire.worker("/sessions", {"worker_id": worker_id, "session_id": session_id, **terms})


def heartbeat(wire: Wire, worker_id: str = "w1", session_id: str = "s", **members: Any) -> Answer:
    return wire.worker(f"/sessions/{session_id}/heartbeat", {"worker_id": worker_id, **members})


def close(wire: Wire, worker_id: str = "w1", session_id: str = "s", **members: Any) -> Answer:
    body = {"worker_id": worker_id, **members}
    return wire.worker(f"/sessions/{session_id}", body, method="DELETE")


def shown(wire: Wire, session_id: str = "s") -> Json:
    session = wire.control("GET", f"/worker-sessions/{session_id}").ok()["session"]
    assert isinstance(session, dict)
    return session


def in_session(session_id: str = "s", *, activity_type: str = "charge", **terms: Any) -> Json:
    command = schedule_activity(worker_session={"session_id": session_id, **terms})
    return {**command, "activity_type": activity_type}


def poll(wire: Wire, worker_id: str = "w1") -> Json | None:
    task = wire.poll("activity", worker_id)["task"]
    assert task is None or isinstance(task, dict)
    return task


def keep_alive(wire: Wire, *worker_ids: str) -> None:
    for worker_id in worker_ids:
        wire.worker("/heartbeat", {"worker_id": worker_id}).ok()


def finish(wire: Wire, task: Json) -> None:
    wire.report_attempt(task, "complete", result=avro(1)).ok()


# Verbs --------------------------------------------------------------------------------------------


def test_a_worker_creates_a_session_keeps_it_and_closes_it(wire: Wire) -> None:
    wire.register(capabilities=["gpu"])

    made = create(wire, requirements=["gpu"], lease_seconds=10, ttl_seconds=100).ok(201)
    assert (made["admitted"], made["outcome"], made["reason"]) == (True, "created", None)
    session = made["session"]
    assert session["status"] == "active"
    assert session["lease_owner"] == "w1"
    assert session["queue"] == "q"
    assert session["requirements"] == ["gpu"]
    assert session["holder"]["worker_id"] == "w1"
    assert session["active_activity_count"] == 0

    again = create(wire, requirements=["gpu"]).ok(200)
    assert again["outcome"] == "reused"
    wire.advance(seconds=9)
    kept = heartbeat(wire).ok()
    assert kept["outcome"] == "heartbeat_recorded"
    assert kept["session"]["lease_expires_at"] > session["lease_expires_at"]
    assert kept["session"]["ttl_expires_at"] == session["ttl_expires_at"]

    assert close(wire, reason="done").ok()["outcome"] == "closed"
    with wire.nothing_changes():
        assert close(wire).ok()["outcome"] == "already_closed"
    assert shown(wire)["status"] == "closed"
    assert shown(wire)["close_reason"] == "done"


def test_a_lease_is_never_longer_than_the_life_of_the_session(wire: Wire) -> None:
    wire.register()
    session = create(wire, lease_seconds=500, ttl_seconds=50).ok(201)["session"]
    assert session["lease_expires_at"] == session["ttl_expires_at"]


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"session_id": ""}, "session_id"),
        ({"session_id": "s" * 256}, "session_id"),
        ({"session_id": " "}, "session_id"),
        ({"requirements": "gpu"}, "requirements"),
        ({"requirements": [""]}, "requirements.0"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"ttl_seconds": -1}, "ttl_seconds"),
        ({"max_concurrent_activities": 0}, "max_concurrent_activities"),
        ({"create_if_missing": "perhaps"}, "create_if_missing"),
        ({"worker_id": None}, "worker_id"),
    ],
)
def test_terms_that_make_no_sense_are_refused(wire: Wire, terms: Json, field: str) -> None:
    wire.register()
    with wire.nothing_changes():
        create(wire, **terms).invalid(field)


def test_sessions_need_a_registered_worker_of_the_queue(wire: Wire) -> None:
    with wire.nothing_changes():
        create(wire).refused(412, "worker_not_registered")
    wire.register()
    with wire.nothing_changes():
        create(wire, queue="other").refused(409, "session_queue_mismatch")


def test_older_protocols_have_no_sessions(wire: Wire) -> None:
    wire.register()
    body = {"worker_id": "w1", "session_id": "s"}
    with wire.nothing_changes():
        for method, path in (
            ("POST", "/sessions"),
            ("POST", "/sessions/s/heartbeat"),
            ("DELETE", "/sessions/s"),
        ):
            refusal = wire.worker(path, body, method=method, headers=OLD)
            told = refusal.refused(409, "worker_sessions_unavailable")
            assert told["minimum_protocol_version"] == "1.8"
            assert told["requested_version"] == "1.7"


def test_a_command_of_an_older_protocol_cannot_use_sessions(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    body = {
        "lease_owner": "w1",
        "workflow_task_attempt": task["workflow_task_attempt"],
        "commands": [in_session()],
    }
    with wire.nothing_changes():
        refusal = wire.worker(f"/workflow-tasks/{task['task_id']}/complete", body, headers=OLD)
        refusal.refused(409, "worker_sessions_unavailable")


def test_every_refusal_of_the_verbs_has_its_reason_and_changes_nothing(wire: Wire) -> None:
    wire.register("w1", capabilities=["gpu"])
    wire.register("w2", max_concurrent_worker_sessions=1)
    create(wire, "w1", "taken").ok(201)
    create(wire, "w1", "gone").ok(201)
    close(wire, "w1", "gone").ok()
    create(wire, "w2", "only").ok(201)

    with wire.nothing_changes():
        told = create(wire, "w2", "new", requirements=["gpu", "fast"])
        missing = told.refused(409, "session_requirements_not_met")
        assert missing["missing_requirements"] == ["gpu", "fast"]
        assert missing["admitted"] is False
        create(wire, "w2", "new", create_if_missing=False).refused(409, "session_missing")
        create(wire, "w2", "taken").refused(409, "session_owned_by_another_worker")
        create(wire, "w1", "gone").refused(409, "session_closed")
        create(wire, "w2", "second").refused(409, "worker_session_limit_exceeded")
        heartbeat(wire, "w1", "unknown").refused(404, "session_not_found")
        heartbeat(wire, "w2", "taken").refused(409, "session_owner_mismatch")
        heartbeat(wire, "w1", "gone").refused(409, "session_not_active")
        close(wire, "w1", "unknown").refused(404, "session_not_found")
        close(wire, "w2", "taken").refused(409, "session_owner_mismatch")
        wire.control("GET", "/worker-sessions/unknown").refused(404, "worker_session_not_found")


def test_a_session_expires_with_its_lease_and_is_taken_over(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    create(wire, "w1", lease_seconds=5).ok(201)
    wire.advance(seconds=5)
    assert (shown(wire)["status"], shown(wire)["failure_reason"]) == ("expired", "lease_expired")
    heartbeat(wire, "w1").refused(409, "session_not_active")

    taken = create(wire, "w2").ok()
    assert taken["outcome"] == "reacquired"
    assert taken["session"]["lease_owner"] == "w2"
    heartbeat(wire, "w1").refused(409, "session_owner_mismatch")


@pytest.mark.parametrize("who", ["stored", "asked"])
def test_a_session_that_forbids_it_is_not_taken_over(wire: Wire, who: str) -> None:
    wire.register()
    forbidden: Json = {"allow_reacquire_after_failure": False}
    create(wire, lease_seconds=5, **(forbidden if who == "stored" else {})).ok(201)
    wire.advance(seconds=5)
    refusal = create(wire, **(forbidden if who == "asked" else {}))
    refusal.refused(409, "session_reacquire_disallowed")


def test_a_session_outlived_is_over_for_good(wire: Wire) -> None:
    wire.register()
    create(wire, lease_seconds=5, ttl_seconds=20).ok(201)
    for _ in range(3):
        wire.advance(seconds=4)
        heartbeat(wire).ok()
    wire.advance(seconds=8)
    assert (shown(wire)["status"], shown(wire)["failure_reason"]) == ("expired", "ttl_expired")
    create(wire).refused(409, "session_closed")


def test_how_long_a_worker_may_be_silent_can_be_set(tmp_path: Path) -> None:
    with a_wire(tmp_path, worker_stale_after=20_000_000, worker_heartbeat_interval=7) as wire:
        told = wire.register("w1")
        create(wire, "w1", lease_seconds=500).ok(201)
        wire.advance(seconds=20)
        assert shown(wire)["status"] == "active"
        wire.advance(seconds=1)
        assert shown(wire)["failure_reason"] == "worker_heartbeat_stale"
        info = wire.call("GET", "/api/cluster/info").ok()
    cadence = {"heartbeat_interval_seconds": 7, "stale_after_seconds": 20}
    assert cadence.items() <= told.items()
    status = info["worker_protocol"]["server_capabilities"]["worker_status"]
    assert cadence.items() <= status.items()


def test_a_silent_owner_orphans_its_session(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    create(wire, "w1", lease_seconds=500).ok(201)
    wire.advance(seconds=40)
    keep_alive(wire, "w2")
    wire.advance(seconds=30)
    assert shown(wire)["status"] == "orphaned"
    assert shown(wire)["failure_reason"] == "worker_heartbeat_stale"
    assert create(wire, "w2").ok()["outcome"] == "reacquired"


def test_operators_see_every_session_and_count_them(wire: Wire) -> None:
    wire.register()
    create(wire, session_id="a").ok(201)
    create(wire, session_id="b").ok(201)
    create(wire, session_id="c", lease_seconds=1).ok(201)
    close(wire, session_id="b").ok()
    wire.advance(seconds=2)

    told = wire.control("GET", "/worker-sessions").ok()

    assert told["namespace"] == "default"
    assert told["metrics"] == {
        "total": 3,
        "active": 1,
        "closed": 1,
        "expired": 1,
        "failed": 0,
        "orphaned": 0,
    }
    assert {session["session_id"]: session["status"] for session in told["sessions"]} == {
        "a": "active",
        "b": "closed",
        "c": "expired",
    }


def test_a_session_that_is_over_is_forgotten_after_a_day(wire: Wire) -> None:
    wire.register()
    create(wire).ok(201)
    close(wire).ok()
    wire.advance(seconds=86_400)
    wire.control("GET", "/worker-sessions/s").refused(404, "worker_session_not_found")


# Activities ---------------------------------------------------------------------------------------


def test_the_first_activity_makes_the_session_and_the_others_follow(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    wire.run_to(in_session(), in_session(activity_type="ship"))

    first = wire.take("activity", "w1")
    assert first["worker_session"]["session_id"] == "s"
    assert first["worker_session"]["max_concurrent_activities"] == 1
    assert shown(wire)["lease_owner"] == "w1"
    assert shown(wire)["active_activity_count"] == 1
    assert poll(wire, "w2") is None
    assert poll(wire, "w1") is None, "one at a time"

    finish(wire, first)
    assert poll(wire, "w2") is None, "another worker owns the session"
    second = wire.take("activity", "w1")
    assert second["activity_type"] == "ship"
    finish(wire, second)
    assert wire.event_types().count("ActivityCompleted") == 2


def test_a_parked_owner_gets_the_next_activity_at_once(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    wire.run_to(in_session(), in_session(activity_type="ship"))
    first = wire.take("activity", "w1")
    stranger = park(wire, "w2")
    owner = park(wire, "w1")
    finish(wire, first)
    task = owner.answer().ok()["task"]
    assert task["activity_type"] == "ship"
    assert stranger.is_waiting


def park(wire: Wire, worker_id: str, queue: str = "q") -> Parked:
    body = {"worker_id": worker_id, "task_queue": queue, "timeout_seconds": 10}
    return wire.park("/activity-tasks/poll", body)


def test_a_session_may_run_several_at_once(wire: Wire) -> None:
    wire.register()
    terms: Json = {"max_concurrent_activities": 2}
    wire.run_to(*(in_session(**terms) for _ in range(3)))
    first, second = wire.take("activity"), wire.take("activity")
    assert poll(wire) is None
    finish(wire, first)
    third = wire.take("activity")
    assert len({task["task_id"] for task in (first, second, third)}) == 3


def test_an_incapable_worker_gets_nothing_and_leaves_no_session(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2", capabilities=["gpu:a100"])
    wire.run_to(in_session(requirements=["gpu:a100"]))
    with wire.nothing_changes():
        assert poll(wire, "w1") is None
    wire.control("GET", "/worker-sessions/s").refused(404, "worker_session_not_found")
    assert wire.take("activity", "w2")["worker_session"]["requirements"] == ["gpu:a100"]


def test_an_older_worker_gets_no_activity_of_a_session(wire: Wire) -> None:
    wire.register()
    wire.run_to(in_session())
    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0}
    assert wire.worker("/activity-tasks/poll", body, headers=OLD).ok()["task"] is None
    assert poll(wire) is not None


def test_a_worker_with_no_room_for_sessions_gets_nothing(wire: Wire) -> None:
    wire.register(max_concurrent_worker_sessions=1)
    wire.run_to(in_session("a"), in_session("b"))
    first = wire.take("activity")
    assert poll(wire) is None
    finish(wire, first)
    assert poll(wire) is None, "the session is still held"
    close(wire, session_id=first["worker_session"]["session_id"]).ok()
    assert wire.take("activity")["worker_session"] != first["worker_session"]


def test_a_task_that_nobody_may_have_keeps_nobody_waiting(wire: Wire) -> None:
    wire.register()
    wire.run_to(*(in_session(requirements=["gpu"]) for _ in range(20)), schedule_activity())
    assert wire.take("activity").get("worker_session") is None


def test_the_work_of_a_dead_owner_is_taken_over(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    wire.run_to(
        {
            **in_session(lease_seconds=20),
            "heartbeat_timeout": 5,
            "retry_policy": {"max_attempts": 3, "backoff_seconds": [1]},
        }
    )
    lost = wire.take("activity", "w1")
    other = park(wire, "w2")
    wire.advance(seconds=7)
    assert other.is_waiting, "the session still belongs to w1"
    wire.advance(seconds=14)
    task = other.answer().ok()["task"]
    assert task["attempt_number"] == 2
    assert shown(wire)["lease_owner"] == "w2"
    wire.report_attempt(lost, "complete", result=avro(1)).refused(409, "stale_attempt")
    finish(wire, task)


def test_heartbeats_of_an_activity_keep_its_session(wire: Wire) -> None:
    wire.register()
    wire.run_to(in_session(lease_seconds=10))
    task = wire.take("activity")
    for _ in range(4):
        wire.advance(seconds=8)
        keep_alive(wire, "w1")
        assert wire.report_attempt(task, "heartbeat").ok()["can_continue"] is True
    told = wire.report_attempt(task, "status").ok()["worker_session"]
    assert (told["status"], told["lease_owner"]) == ("active", "w1")
    assert told["lease_expires_at"] == shown(wire)["lease_expires_at"]


def test_a_lost_session_refuses_the_heartbeats_of_its_activity(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    wire.run_to(in_session(lease_seconds=5))
    task = wire.take("activity", "w1")
    wire.advance(seconds=6)
    with wire.nothing_changes():
        wire.report_attempt(task, "heartbeat").refused(409, "session_not_active")
    create(wire, "w2").ok()
    with wire.nothing_changes():
        wire.report_attempt(task, "heartbeat").refused(409, "session_owner_mismatch")
        wire.report_attempt(task, "renew-lease").refused(409, "session_owner_mismatch")
    finish(wire, task)


def test_activities_of_a_closed_session_wait_and_say_so(wire: Wire) -> None:
    wire.register()
    create(wire).ok(201)
    close(wire).ok()
    wire.run_to(in_session())
    assert poll(wire) is None
    cause = wire.describe()["next_cause"]
    assert cause["kind"] == "activity"
    assert "session s" in cause["text"]


def test_a_session_survives_the_server(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    wire.run_to(in_session(), in_session(activity_type="ship"))
    first = wire.take("activity", "w1")
    wire.restart()
    assert poll(wire, "w2") is None
    finish(wire, first)
    assert poll(wire, "w2") is None
    second = wire.take("activity", "w1")
    finish(wire, second)
    wire.complete(wire.take(), complete_workflow(1))


def test_sessions_of_one_namespace_are_unknown_in_another(wire: Wire) -> None:
    wire.register()
    create(wire).ok(201)
    answer = wire.control("GET", "/worker-sessions/s", headers={"X-Namespace": "other"})
    answer.refused(404, "namespace_not_found")


def test_sessions_of_two_queues_are_handed_out_to_the_workers_of_each(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2", task_queue="other")
    parked = park(wire, "w1"), park(wire, "w2", "other")

    wire.run_to(in_session("here"), {**in_session("there"), "queue": "other"})

    tasks = [each.answer().ok()["task"] for each in parked]
    assert [task["worker_session"]["session_id"] for task in tasks] == ["here", "there"]
    assert [shown(wire, each)["lease_owner"] for each in ("here", "there")] == ["w1", "w2"]

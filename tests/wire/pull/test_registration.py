"""Workers introduce themselves, show signs of life and say goodbye."""

import re
from typing import Any

import pytest

from tests.support.http import Json, Wire, schedule_activity

PROCESS = {"host": "box", "process_id": 7, "process_started_at": "2026-01-01T00:00:00Z"}
FINGERPRINT = "sha256:" + "0" * 64


def worker(**members: Any) -> Json:
    return {"worker_id": "w1", "task_queue": "q", "runtime": "python", **members}


# Registering --------------------------------------------------------------------------------------


def test_a_registration_is_201_and_tells_the_worker_its_cadence(wire: Wire) -> None:
    body = wire.worker(
        "/register",
        worker(
            sdk_version="durable-workflow-python/2.12.0",
            build_id="b1",
            supported_workflow_types=["Order"],
            supported_activity_types=[],
            workflow_definition_fingerprints={"Order": FINGERPRINT},
            workflow_command_contracts={"Order": {"signals": ["pay"]}},
            capabilities=["query_tasks"],
            capability_manifest={"memo_upserts": {"supported": True}},
            max_concurrent_workflow_tasks=10,
            task_slots={"workflow_available": 10, "activity_available": 10},
            process_metrics={**PROCESS, "memory_bytes": 1_000, "cpu_percent": 1.5},
            heartbeat_interval_seconds=15,
        ),
    ).ok(201)

    expected = {
        "worker_id": "w1",
        "registered": True,
        "namespace": "default",
        "task_queue": "q",
        "runtime": "python",
        "build_id": "b1",
        "status": "active",
        "heartbeat_interval_seconds": 15,
        "stale_after_seconds": 60,
        "protocol_version": "1.20",
    }
    assert expected.items() <= body.items()
    assert re.fullmatch("[0-9a-f]{32}", body["registration_token"])


def test_a_worker_without_an_id_or_a_cadence_gets_them(shared_wire: Wire) -> None:
    body = shared_wire.worker("/register", {"task_queue": "q", "runtime": "go"}).ok(201)
    assert re.fullmatch("[0-9A-HJKMNP-TV-Z]{26}", body["worker_id"])
    assert body["heartbeat_interval_seconds"] == 30


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_queue", None),
        ("task_queue", ""),
        ("task_queue", "x" * 256),
        ("runtime", None),
        ("runtime", ""),
        ("worker_id", "x" * 256),
        ("worker_id", 5),
        ("sdk_version", "x" * 65),
        ("build_id", "x" * 256),
        ("supported_workflow_types", "Order"),
        ("supported_activity_types", {"a": 1}),
        ("workflow_definition_fingerprints", ["x"]),
        ("capabilities", "x"),
        ("max_concurrent_workflow_tasks", -1),
        ("max_concurrent_activity_tasks", "many"),
        ("task_slots", [1]),
        ("process_metrics", "x"),
        ("heartbeat_interval_seconds", 0),
        ("heartbeat_interval_seconds", 3601),
    ],
)
def test_a_registration_that_makes_no_sense_is_refused_by_field(
    shared_wire: Wire, field: str, value: Any
) -> None:
    with shared_wire.nothing_changes():
        shared_wire.worker("/register", worker(**{field: value})).invalid(field)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"supported_workflow_types": ["Order", ""]}, "supported_workflow_types.1"),
        ({"supported_activity_types": ["x" * 256]}, "supported_activity_types.0"),
        ({"capabilities": ["a", 5]}, "capabilities.1"),
        ({"task_slots": {"workflow_available": -1}}, "task_slots.workflow_available"),
        ({"task_slots": {"session_available": "all"}}, "task_slots.session_available"),
        ({"process_metrics": {"cpu_percent": -0.1}}, "process_metrics.cpu_percent"),
        ({"process_metrics": {"host": "x" * 256}}, "process_metrics.host"),
        ({"process_metrics": {"process_started_at": 5}}, "process_metrics.process_started_at"),
    ],
)
def test_members_of_lists_are_refused_by_their_place(
    shared_wire: Wire, members: Json, field: str
) -> None:
    with shared_wire.nothing_changes():
        shared_wire.worker("/register", worker(**members)).invalid(field)


def test_a_registration_may_be_repeated_and_replaces_the_first(wire: Wire) -> None:
    first = wire.register(supported_workflow_types=["Other"])
    wire.start()
    assert wire.poll()["poll_status"] == "empty"

    second = wire.register(supported_workflow_types=["Order"])

    assert second["registration_token"] != first["registration_token"]
    assert wire.take()["workflow_type"] == "Order"
    assert len(wire.stored()["worker"]) == 1


def test_a_live_worker_may_not_change_a_definition(wire: Wire) -> None:
    wire.register(workflow_definition_fingerprints={"Order": FINGERPRINT})

    with wire.nothing_changes():
        body = wire.worker(
            "/register", worker(workflow_definition_fingerprints={"Order": "sha256:other"})
        ).refused(409, "workflow_definition_changed")

    assert body["workflow_type"] == "Order"
    assert body["remediation"]
    # The same one, another type and an omitted one are all fine, and the first stays known.
    wire.register(workflow_definition_fingerprints={"Order": FINGERPRINT})
    wire.register(workflow_definition_fingerprints={"Child": "sha256:child"})
    wire.worker(
        "/register", worker(workflow_definition_fingerprints={"Order": "sha256:other"})
    ).refused(409, "workflow_definition_changed")


def test_the_definition_of_a_type_that_a_worker_no_longer_has_may_change(wire: Wire) -> None:
    """It has it still if it does not say what it has."""
    other = {"workflow_definition_fingerprints": {"Order": "sha256:other"}}
    wire.register(workflow_definition_fingerprints={"Order": FINGERPRINT})

    wire.register(supported_workflow_types=None)
    wire.worker("/register", worker(**other)).refused(409, "workflow_definition_changed")

    wire.register(supported_workflow_types=["Child"])
    wire.worker("/register", worker(**other)).ok(201)


def test_a_worker_that_was_long_silent_may_come_back_with_another_definition(wire: Wire) -> None:
    wire.register(workflow_definition_fingerprints={"Order": FINGERPRINT})
    wire.advance(seconds=61)
    wire.register(workflow_definition_fingerprints={"Order": "sha256:other"})


def test_another_process_under_a_known_id_frees_what_the_first_one_held(wire: Wire) -> None:
    wire.register(process_metrics=PROCESS)
    wire.run_to(schedule_activity())
    attempt = wire.take("activity")
    wire.start("order-2")
    task = wire.take()

    wire.register(process_metrics={**PROCESS, "process_id": 8})

    assert wire.take()["task_id"] == task["task_id"]
    again = wire.take("activity")
    assert again["task_id"] == attempt["task_id"]
    assert again["attempt_number"] == 2
    wire.report_attempt(attempt, "complete").refused(409, "stale_attempt")


@pytest.mark.parametrize("told", [{}, {"process_metrics": {"host": "box"}}])
def test_a_process_that_does_not_say_which_it_is_frees_them_too(wire: Wire, told: Json) -> None:
    wire.register(**told)
    wire.start()
    wire.take()

    wire.register(**told)

    assert wire.take()["workflow_id"] == "order-1"


def test_the_same_process_keeps_what_it_holds(wire: Wire) -> None:
    wire.register(process_metrics=PROCESS)
    wire.start()
    task = wire.take()

    wire.register(process_metrics=PROCESS)

    assert wire.poll()["poll_status"] == "empty"
    wire.report(task, "heartbeat").ok()


def test_registrations_survive_a_restart(wire: Wire) -> None:
    wire.register()
    wire.start()
    wire.restart()
    assert wire.take()["workflow_id"] == "order-1"


# Signs of life ------------------------------------------------------------------------------------


def test_a_heartbeat_is_acknowledged(wire: Wire) -> None:
    wire.register()

    body = wire.worker(
        "/heartbeat",
        {
            "worker_id": "w1",
            "task_slots": {"workflow_available": 3},
            "process_metrics": PROCESS,
            "heartbeat_interval_seconds": 20,
        },
    ).ok()

    assert (body["worker_id"], body["acknowledged"]) == ("w1", True)
    assert (body["heartbeat_interval_seconds"], body["stale_after_seconds"]) == (20, 60)
    kept = wire.worker("/heartbeat", {"worker_id": "w1"}).ok()
    assert kept["heartbeat_interval_seconds"] == 20
    known = wire.server.engine.workers["default", "w1"]
    assert (known.task_slots, known.process_metrics) == ({"workflow_available": 3}, PROCESS)


def test_heartbeats_keep_a_worker_alive(wire: Wire) -> None:
    wire.register(workflow_definition_fingerprints={"Order": FINGERPRINT})
    for _ in range(3):
        wire.advance(seconds=50)
        wire.worker("/heartbeat", {"worker_id": "w1"}).ok()
    wire.worker(
        "/register", worker(workflow_definition_fingerprints={"Order": "sha256:other"})
    ).refused(409, "workflow_definition_changed")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "worker_id"),
        ({"worker_id": ""}, "worker_id"),
        ({"worker_id": "w1", "task_slots": 5}, "task_slots"),
        (
            {"worker_id": "w1", "task_slots": {"activity_available": -1}},
            "task_slots.activity_available",
        ),
        (
            {"worker_id": "w1", "process_metrics": {"memory_bytes": "much"}},
            "process_metrics.memory_bytes",
        ),
        ({"worker_id": "w1", "heartbeat_interval_seconds": 0}, "heartbeat_interval_seconds"),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(
    shared_wire: Wire, body: Json, field: str
) -> None:
    with shared_wire.nothing_changes():
        shared_wire.worker("/heartbeat", body).invalid(field)


def test_a_heartbeat_of_a_stranger_is_404(wire: Wire) -> None:
    wire.register("gone")
    wire.worker("/registrations/gone", method="DELETE").ok()
    with wire.nothing_changes():
        for worker_id in ("stranger", "gone"):
            body = wire.worker("/heartbeat", {"worker_id": worker_id})
            assert body.refused(404, "worker_not_registered")["worker_id"] == worker_id


# Goodbyes -----------------------------------------------------------------------------------------


def test_a_goodbye_frees_what_the_worker_held_at_once(wire: Wire) -> None:
    wire.register()
    wire.register("w2")
    wire.run_to(schedule_activity())
    attempt = wire.take("activity")
    wire.start("order-2")
    task = wire.take()

    body = wire.worker("/registrations/w1", method="DELETE").ok()

    assert (body["worker_id"], body["outcome"]) == ("w1", "deregistered")
    assert body["recovered_workflow_task_count"] == 1
    assert wire.take(worker_id="w2")["task_id"] == task["task_id"]
    assert wire.take("activity", worker_id="w2")["task_id"] == attempt["task_id"]
    wire.report(task, "complete", commands=[]).refused(409, "lease_owner_mismatch")


def test_a_goodbye_may_be_repeated(wire: Wire) -> None:
    wire.register()
    wire.start()
    wire.take()
    first = wire.worker("/registrations/w1", method="DELETE").ok()

    with wire.nothing_changes():
        again = wire.worker("/registrations/w1", method="DELETE").ok()

    assert again == first


def test_a_worker_that_said_goodbye_must_register_before_it_polls(wire: Wire) -> None:
    wire.register()
    wire.worker("/registrations/w1", method="DELETE").ok()
    polled = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0}
    wire.worker("/workflow-tasks/poll", polled).refused(412, "worker_not_registered")
    wire.register()
    wire.worker("/workflow-tasks/poll", polled).ok()


def test_a_fenced_goodbye_needs_the_token_of_the_registration(wire: Wire) -> None:
    old = wire.register()["registration_token"]
    new = wire.register()["registration_token"]
    path = "/registrations/w1/deregister"

    with wire.nothing_changes():
        for token in (old, "0" * 32):
            refusal = wire.worker(path, {"registration_token": token})
            assert refusal.refused(409, "worker_registration_replaced")["worker_id"] == "w1"
        wire.worker(path, {}).invalid("registration_token")
        wire.worker(path, {"registration_token": ""}).invalid("registration_token")

    body = wire.worker(path, {"registration_token": new}).ok()
    assert (body["worker_id"], body["outcome"]) == ("w1", "deregistered")
    assert body["registration_token"] == new
    with wire.nothing_changes():
        assert wire.worker(path, {"registration_token": new}).ok() == body
        wire.worker(path, {"registration_token": old}).refused(409, "worker_registration_replaced")


def test_a_goodbye_of_a_stranger_is_404(shared_wire: Wire) -> None:
    with shared_wire.nothing_changes():
        body = shared_wire.worker("/registrations/nobody", method="DELETE")
        assert body.refused(404, "worker_not_found")["worker_id"] == "nobody"
        token = {"registration_token": "0" * 32}
        shared_wire.worker("/registrations/nobody/deregister", token).refused(
            404, "worker_not_found"
        )


def test_the_id_of_a_worker_may_hold_a_slash(wire: Wire) -> None:
    wire.register("host/7")
    body = wire.worker("/registrations/host%2F7", method="DELETE").ok()
    assert body["worker_id"] == "host/7"


def test_a_goodbye_is_forgotten_after_its_receipt_has_expired(wire: Wire) -> None:
    wire.register()
    wire.worker("/registrations/w1", method="DELETE").ok()

    wire.advance(seconds=601)
    wire.until(lambda: not wire.server.engine.workers)

    assert not wire.stored()["worker"]
    wire.worker("/registrations/w1", method="DELETE").refused(404, "worker_not_found")

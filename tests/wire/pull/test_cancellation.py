"""Cooperative cancellation over the wire: who asks, who may deliver, and what each is told."""

from typing import Any

import pytest

from tests.support.http import (
    WORKER_VERSION,
    Answer,
    Json,
    Wire,
    complete_workflow,
    fail_workflow,
    local_activity,
    schedule_activity,
    start_timer,
)

CAPABLE: Json = {"capabilities": ["cooperative_cancellation"]}


def ask(wire: Wire, workflow_id: str = "order-1", **members: Any) -> Answer:
    return wire.control("POST", f"/workflows/{workflow_id}/request-cancellation", members)


def deliver(wire: Wire, task: Json, **members: Any) -> Answer:
    request_id = task["cancellation_request"]["request_id"]
    call = {"request_id": request_id, "sequence": 1, "call_kind": "timer", **members}
    return wire.report(task, "deliver-cancellation", **call)


@pytest.fixture
def task(wire: Wire) -> Json:
    """The task of a run that was asked to cancel while it sleeps."""
    wire.register(**CAPABLE)
    wire.run_to(start_timer(3600))
    ask(wire, reason="enough").ok(202)
    return wire.take()


# Asking -------------------------------------------------------------------------------------------


def test_a_request_is_answered_with_its_identity_and_its_deadline(wire: Wire) -> None:
    started = wire.start()
    told = ask(wire, reason="enough", cleanup_timeout_seconds=90).ok(202)

    assert (told["accepted"], told["duplicate"]) == (True, False)
    assert (told["workflow_id"], told["run_id"]) == ("order-1", started["run_id"])
    request = told["cancellation_request"]
    assert request["history_refresh_page_token"] == "MA=="
    assert request["requested_at"] < request["cleanup_deadline_at"]
    with wire.nothing_changes():
        again = ask(wire, cleanup_timeout_seconds=1).ok(200)
    assert again["duplicate"] is True
    assert again["cancellation_request"] == request
    described = wire.describe()["cancellation"]
    assert described["status"] == "requested"
    assert described["cleanup_deadline_at"] == request["cleanup_deadline_at"]


def test_a_request_may_name_the_run(wire: Wire) -> None:
    run_id = wire.start()["run_id"]
    path = f"/workflows/order-1/runs/{run_id}/request-cancellation"
    assert wire.control("POST", path, {}).ok(202)["run_id"] == run_id
    other = wire.control("POST", "/workflows/order-1/runs/nowhere/request-cancellation", {})
    other.refused(404, "run_not_found")


@pytest.mark.parametrize("seconds", [0, -1, 3601, "soon", 1.5])
def test_a_deadline_that_makes_no_sense_is_refused(wire: Wire, seconds: object) -> None:
    wire.start()
    with wire.nothing_changes():
        ask(wire, cleanup_timeout_seconds=seconds).invalid("cleanup_timeout_seconds")
        ask(wire, reason="x" * 1001).invalid("reason")


def test_nobody_and_nothing_can_be_asked(wire: Wire) -> None:
    wire.register()
    wire.run_to(complete_workflow())
    with wire.nothing_changes():
        ask(wire, "nowhere").refused(404, "instance_not_found")
        ask(wire).refused(409, "run_not_active")


def test_a_standalone_activity_has_no_code_that_could_be_asked(wire: Wire) -> None:
    body = {"activity_id": "a-1", "activity_type": "charge", "task_queue": "q"}
    wire.control("POST", "/activities", body).ok(201)
    with wire.nothing_changes():
        ask(wire, "a-1").refused(409, "cooperative_cancellation_unavailable")


# Workers ------------------------------------------------------------------------------------------


def test_only_workers_that_registered_for_it_get_tasks_of_such_a_run(wire: Wire) -> None:
    wire.register("old")
    wire.register("new", **CAPABLE)
    wire.start()
    wire.complete(wire.take(worker_id="old"), start_timer(3600))
    ask(wire).ok(202)

    assert wire.poll(worker_id="old")["task"] is None
    task = wire.take(worker_id="new")
    deliver(wire, task).ok()
    wire.complete(task, start_timer(1))
    wire.advance(seconds=1)
    assert wire.poll(worker_id="old")["task"] is None
    assert "cancellation_request" in wire.take(worker_id="new")


def test_a_task_that_waits_already_is_withdrawn_from_the_others(wire: Wire) -> None:
    wire.register("old")
    wire.register("new", **CAPABLE)
    wire.start()
    ask(wire).ok(202)
    assert wire.poll(worker_id="old")["task"] is None
    assert wire.take(worker_id="new")["cancellation_request"]


def test_a_worker_that_waits_is_woken(wire: Wire) -> None:
    wire.register(**CAPABLE)
    wire.run_to(start_timer(3600))
    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 10}
    parked = wire.park("/workflow-tasks/poll", body)
    ask(wire).ok(202)
    assert parked.answer().ok()["task"]["cancellation_request"]


def test_a_worker_of_an_older_protocol_is_refused_by_name(wire: Wire, task: Json) -> None:
    old = {WORKER_VERSION: "1.19"}
    named = {"request_id": task["cancellation_request"]["request_id"]}
    lease = {"lease_owner": "w1", "workflow_task_attempt": 1}
    attempt = {"lease_owner": "w1", "activity_attempt_id": "A-1", **named}
    with wire.nothing_changes():
        for path, body in (
            ("/register", {"worker_id": "w9", "task_queue": "q", "runtime": "python", **CAPABLE}),
            (
                f"/workflow-tasks/{task['task_id']}/deliver-cancellation",
                {**lease, **named, "sequence": 1, "call_kind": "timer"},
            ),
            (f"/activity-tasks/{task['run_id']}-a1/acknowledge-cancellation", attempt),
        ):
            answer = wire.call("POST", f"/api/worker{path}", body, headers=old)
            told = answer.refused(409, "cooperative_cancellation_unavailable")
            assert told["required_version"] == "1.20"


def test_the_lease_of_a_worker_that_was_never_asked_cannot_deliver(wire: Wire) -> None:
    wire.register("old")
    wire.start()
    task = wire.take(worker_id="old")
    asked = ask(wire).ok(202)
    renewed = wire.report(task, "heartbeat").ok()
    assert "cancellation_request" not in renewed, "it would take that for a mistake"
    with wire.nothing_changes():
        told = deliver(wire, {**task, "cancellation_request": asked["cancellation_request"]})
        told.refused(409, "cooperative_cancellation_unavailable")
    wire.complete(task, start_timer(60))
    assert wire.event_types()[-1] == "CooperativeCancellationRequested"


def test_heartbeats_tell_of_a_request_and_the_history_grows_under_the_lease(wire: Wire) -> None:
    wire.register(**CAPABLE)
    wire.start()
    task = wire.take()
    asked = ask(wire).ok(202)["cancellation_request"]
    renewed = wire.report(task, "heartbeat").ok()
    assert renewed["cancellation_request"] == asked

    deliver(wire, renewed | task | {"cancellation_request": asked}, call_kind="local_activity").ok()

    page = wire.report(task, "history", next_history_page_token=asked["history_refresh_page_token"])
    types = [event["event_type"] for event in page.ok()["history_events"]]
    assert types[-2:] == ["CooperativeCancellationRequested", "CooperativeCancellationDelivered"]
    wire.complete(task, local_activity(), complete_workflow())
    sequences = [event["payload"].get("sequence") for event in wire.events()]
    assert sequences[-2] == 2


# Delivering ---------------------------------------------------------------------------------------


def test_a_delivery_is_told_back_and_may_be_repeated(wire: Wire, task: Json) -> None:
    told = deliver(wire, task).ok()
    assert (
        told.items()
        >= {
            "delivered": True,
            "reason": None,
            "claim_released": False,
            "task_id": task["task_id"],
            "workflow_run_id": task["run_id"],
            "request_id": task["cancellation_request"]["request_id"],
            "sequence": 1,
            "call_kind": "timer",
            "sequence_span": 1,
            "operation_sequence": None,
            "operation_sequence_span": 1,
        }.items()
    )
    with wire.nothing_changes():
        assert deliver(wire, task).ok() == told
        deliver(wire, task, sequence=2).refused(409, "cancellation_already_delivered")
    assert wire.describe()["cancellation"]["status"] == "delivered"


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"request_id": ""}, "request_id"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": None}, "sequence"),
        ({"call_kind": "nap"}, "call_kind"),
        ({"sequence_span": 2}, "sequence_span"),
        ({"call_kind": "parallel", "sequence_span": 1001}, "sequence_span"),
        ({"operation_sequence": 1}, "operation_sequence"),
        ({"operation_sequence_span": 2}, "operation_sequence"),
        ({"call_kind": "selection_handle"}, "operation_sequence"),
        ({"call_kind": "selection_handle", "operation_sequence": 1}, "operation_sequence"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(
    wire: Wire, task: Json, members: Json, field: str
) -> None:
    with wire.nothing_changes():
        deliver(wire, task, **members).invalid(field)


def test_a_delivery_is_refused_by_reason(wire: Wire, task: Json) -> None:
    with wire.nothing_changes():
        deliver(wire, task, sequence=2).refused(409, "invalid_cancellation_boundary")
        deliver(wire, task, call_kind="child").refused(409, "invalid_cancellation_boundary")
        deliver(wire, task, request_id="x").refused(404, "cancellation_request_not_found")
        deliver(wire, task, lease_owner="w2").refused(409, "lease_owner_mismatch")
        deliver(wire, task, workflow_task_attempt=2).refused(409, "workflow_task_attempt_mismatch")
        deliver(wire, {**task, "task_id": "x"}).refused(404, "task_not_found")
    wire.complete(task)
    with wire.nothing_changes():
        deliver(wire, task).refused(409, "task_not_leased")


def test_a_policy_that_waits_gives_the_task_back(wire: Wire) -> None:
    wire.register(**CAPABLE)
    wire.run_to(schedule_activity(cancellation_policy="wait_cancellation_completed"))
    attempt = wire.take("activity")
    ask(wire).ok(202)
    task = wire.take()

    told = deliver(wire, task, call_kind="activity").ok()
    assert (told["delivered"], told["claim_released"]) == (False, True)
    assert told["reason"] == "cancellation_waiting_for_activity"
    assert {told[name] for name in ("request_id", "sequence", "call_kind", "sequence_span")} == {
        None
    }
    assert deliver(wire, task, call_kind="activity").ok() == told
    wire.report(task, "complete", commands=[]).refused(409, "task_not_leased")

    status = wire.report_attempt(attempt, "status").ok()
    assert (status["can_continue"], status["cancel_requested"]) == (False, True)
    receipt = status["cancellation_acknowledgement"]
    assert receipt["callback_state"] == "unknown"
    request_id = task["cancellation_request"]["request_id"]
    done = wire.report_attempt(attempt, "acknowledge-cancellation", request_id=request_id).ok()
    assert (done["acknowledged"], done["duplicate"], done["reason"]) == (True, False, None)
    assert done["history_event_id"]
    again = wire.report_attempt(attempt, "acknowledge-cancellation", request_id=request_id).ok()
    assert again["duplicate"] is True
    status = wire.report_attempt(attempt, "status").ok()
    assert status["cancellation_acknowledgement"]["callback_state"] == "stopped"

    deliver(wire, wire.take(), call_kind="activity").ok()
    types = wire.event_types()
    assert types[-2:] == ["ActivityCancelled", "CooperativeCancellationDelivered"]


def test_an_acknowledgement_is_refused_by_reason(wire: Wire) -> None:
    wire.register(**CAPABLE)
    wire.run_to(schedule_activity())
    attempt = wire.take("activity")

    def acknowledge(**members: Any) -> Answer:
        return wire.report_attempt(attempt, "acknowledge-cancellation", **members)

    with wire.nothing_changes():
        acknowledge(request_id="x").refused(404, "cancellation_request_not_found")
        acknowledge(request_id="").invalid("request_id")
        acknowledge(request_id="x" * 256).invalid("request_id")
    request_id = ask(wire).ok(202)["cancellation_request"]["request_id"]
    with wire.nothing_changes():
        acknowledge(request_id=request_id).refused(404, "attempt_not_found")
    deliver(wire, wire.take(), call_kind="activity").ok()
    with wire.nothing_changes():
        wrong = acknowledge(request_id=request_id, lease_owner="w2")
        wrong.refused(409, "lease_owner_mismatch")
        wire.report_attempt(attempt, "complete").refused(409, "stale_attempt")
    assert acknowledge(request_id=request_id).ok()["acknowledged"] is True


# The end ------------------------------------------------------------------------------------------


def test_the_deadline_closes_the_run_and_describe_says_so(wire: Wire, task: Json) -> None:
    cause = wire.describe()["next_cause"]
    assert cause["request_id"] == task["cancellation_request"]["request_id"]
    deliver(wire, task).ok()
    wire.complete(task, start_timer(3600))
    assert (
        wire.describe()["next_cause"]["until"]
        == task["cancellation_request"]["cleanup_deadline_at"]
    )

    wire.advance(seconds=300)

    described = wire.describe()
    assert described["status"] == "cancelled"
    assert described["cancellation"]["status"] == "deadline_expired"
    assert wire.events()[-1]["payload"]["reason"].endswith("(enough)")


def test_a_request_survives_a_restart(wire: Wire, task: Json) -> None:
    deliver(wire, task).ok()
    wire.restart()
    assert wire.describe()["cancellation"]["status"] == "delivered"
    wire.complete(task, fail_workflow(exception_type="WorkflowCancelled"))
    assert wire.describe()["status"] == "cancelled"
    assert ask(wire).ok(200)["cancellation_request"] == task["cancellation_request"]


def test_a_cancel_by_force_needs_no_patience(wire: Wire, task: Json) -> None:
    wire.control("POST", "/workflows/order-1/cancel", {}).ok()
    assert wire.describe()["status"] == "cancelled"
    with wire.nothing_changes():
        deliver(wire, task).refused(409, "run_closed")

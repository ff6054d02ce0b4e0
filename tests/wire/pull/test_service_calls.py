"""Service operations that are called from outside."""

from typing import Any

import pytest

from tests.support.http import (
    Wire,
    avro,
    complete_workflow,
    continue_as_new,
    fail_workflow,
    unavro,
)
from tests.support.services import (
    BINDING,
    BY_ACTIVITY,
    ENDPOINT,
    OPERATION,
    SERVICE,
    call_of,
    execute,
    execute_later,
    offer,
    take_handler,
)


def test_a_call_waits_for_the_run_that_handles_it(wire: Wire) -> None:
    wire.register()
    offer(wire)
    parked = execute_later(wire, business_key="k", memo={"who": "me"})

    task = take_handler(wire)
    assert unavro(task["arguments"]) == [1]
    assert wire.describe(task["workflow_id"])["memo"] == {"who": "me"}
    assert parked.is_waiting
    wire.complete(task, complete_workflow({"paid": True}))

    done = parked.answer().ok()
    assert (done["accepted"], done["status"], done["outcome"]) == (True, "completed", "completed")
    assert done["result"] == {"paid": True}
    assert done["operation_name"] == "charge"
    assert done["handler_run_id"] == task["run_id"]
    assert call_of(wire, done["service_call_id"])["result"] == {"paid": True}


def test_a_call_may_be_handled_by_one_activity(wire: Wire) -> None:
    wire.register()
    offer(wire, BY_ACTIVITY)
    parked = execute_later(wire, arguments=["plain"])

    task = wire.take("activity")
    assert unavro(task["arguments"]) == ["plain"]
    wire.report_attempt(task, "complete", result=avro(42)).ok()

    assert parked.answer().ok()["result"] == 42
    listed = wire.control("GET", "/activities").ok()["activities"]
    assert [it["activity_type"] for it in listed] == ["charge"]


def test_a_call_goes_on_through_a_chain_of_runs(wire: Wire) -> None:
    wire.register()
    offer(wire)
    parked = execute_later(wire)
    wire.complete(take_handler(wire), continue_as_new())

    wire.complete(take_handler(wire), complete_workflow("at last"))

    assert parked.answer().ok()["result"] == "at last"


def test_a_caller_need_not_wait(wire: Wire) -> None:
    wire.register()
    offer(wire)
    for members in ({"wait_for": "accepted"}, {"mode_override": "async"}):
        taken = execute(wire, **members).ok()
        assert (taken["status"], taken["outcome"], taken["accepted"]) == (
            "started",
            "accepted",
            True,
        )
        assert "result" not in taken
        wire.complete(take_handler(wire), complete_workflow("later"))
        seen = call_of(wire, taken["service_call_id"])
        assert (seen["status"], seen["result"]) == ("completed", "later")


def test_an_operation_may_be_asynchronous_by_itself(wire: Wire) -> None:
    offer(wire, operation_mode="async")

    taken = execute(wire).ok()

    assert (taken["status"], taken["operation_mode"]) == ("started", "async")


def test_who_waits_too_long_is_told_and_may_ask_again(wire: Wire) -> None:
    wire.register()
    offer(wire)
    parked = execute_later(wire, wait_timeout_seconds=1, idempotency_key="k1")
    wire.jump(seconds=2)

    late = parked.answer().ok()

    assert (late["status"], late["outcome"], late["wait_timed_out"]) == (
        "started",
        "timed_out",
        True,
    )
    again = execute_later(wire, idempotency_key="k1")
    wire.complete(take_handler(wire), complete_workflow("done"))
    done = again.answer().ok()
    assert (done["service_call_id"], done["result"]) == (late["service_call_id"], "done")


@pytest.mark.parametrize(
    ("end", "status", "outcome"),
    [("fail", "failed", "handler_failed"), ("cancel", "cancelled", "cancelled")],
)
def test_a_call_that_ends_badly_is_a_conflict_with_its_story(
    wire: Wire, end: str, status: str, outcome: str
) -> None:
    wire.register()
    offer(wire)
    parked = execute_later(wire)
    task = take_handler(wire)
    if end == "fail":
        wire.complete(task, fail_workflow("no money", exception_type="Broke"))
    else:
        wire.control("POST", f"/workflows/{task['workflow_id']}/cancel", {"reason": "x"}).ok()

    body = parked.answer().refused(409, "service_call_failed")

    assert (body["status"], body["outcome"], body["accepted"]) == (status, outcome, True)
    assert body["service_call_id"]
    if end == "fail":
        assert (body["message"], body["service_error_type"]) == ("no money", "Broke")


def test_a_handler_that_passes_its_deadline_times_the_call_out(wire: Wire) -> None:
    handler = {"workflow_type": "Child", "task_queue": "q", "run_timeout_seconds": 5}
    offer(wire, {**BINDING, "handler_binding": handler})
    taken = execute(wire, wait_for="accepted").ok()

    wire.advance(seconds=6)

    seen = call_of(wire, taken["service_call_id"])
    assert (seen["status"], seen["outcome"]) == ("failed", "timed_out")


def test_a_call_is_cancelled_once(wire: Wire) -> None:
    wire.register()
    offer(wire)
    taken = execute(wire, wait_for="accepted").ok()
    task = take_handler(wire)
    path = f"{OPERATION}/service-calls/{taken['service_call_id']}/cancel"

    stopped = wire.control("POST", path, {"reason": "changed my mind"}).ok()

    assert (stopped["status"], stopped["outcome"], stopped["duplicate"]) == (
        "cancelled",
        "cancelled",
        False,
    )
    assert wire.describe(task["workflow_id"])["status"] == "cancelled"
    with wire.nothing_changes():
        assert wire.control("POST", path, {}).ok()["duplicate"] is True
        wire.report(task, "complete", commands=[]).refused(409, "run_closed")


def test_a_repeated_key_finds_the_first_call(wire: Wire) -> None:
    wire.register()
    offer(wire)
    first = execute(wire, wait_for="accepted", idempotency_key="k1").ok()
    assert first["retained"] is False

    for restart in (False, True):
        if restart:
            wire.restart()
        with wire.nothing_changes():
            again = execute(wire, wait_for="accepted", idempotency_key="k1").ok()
        assert (again["service_call_id"], again["retained"]) == (first["service_call_id"], True)
    with wire.nothing_changes():
        other = execute(wire, arguments=avro([2])["blob"], idempotency_key="k1")
        body = other.refused(409, "service_call_rejected")
    assert (body["outcome"], body["rejection_reason"]) == (
        "rejected_conflict",
        "idempotency_key_conflict",
    )
    wire.complete(take_handler(wire), complete_workflow("once"))
    assert execute(wire, idempotency_key="k1").ok()["result"] == "once"
    assert wire.poll()["poll_status"] == "empty"


def test_a_handler_may_be_given_an_id_that_is_free(wire: Wire) -> None:
    wire.start("taken")
    offer(wire)
    given = execute(wire, wait_for="accepted", target_workflow_instance_id="mine").ok()
    assert given["handler_workflow_id"] == "mine"

    for used in ("mine", "taken"):
        with wire.nothing_changes():
            refused = execute(wire, target_workflow_instance_id=used)
            body = refused.refused(409, "service_call_rejected")
        assert (body["outcome"], body["rejection_reason"]) == (
            "dispatch_failed",
            "duplicate_not_allowed",
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arguments", 5),
        ("arguments", {"codec": "json", "blob": "x"}),
        ("payload_codec", "json"),
        ("mode_override", "later"),
        ("wait_for", "ever"),
        ("wait_timeout_seconds", 0),
        ("idempotency_key", "x" * 256),
        ("idempotency_key", "a\nb"),
        ("target_workflow_instance_id", "a b"),
        ("target_workflow_run_id", "r"),
        ("duplicate_start_policy", "use-existing"),
        ("queue", "x" * 256),
        ("business_key", 5),
        ("memo", [1]),
        ("search_attributes", {"": 1}),
    ],
)
def test_a_field_that_does_not_fit_is_refused_by_its_name(
    shared_wire: Wire, field: str, value: Any
) -> None:
    offer(shared_wire)
    with shared_wire.nothing_changes():
        answer = execute(shared_wire, **{field: value})
        body = answer.refused(422, "validation_failed")
    assert next(iter(body["errors"])).startswith(field)


def test_what_is_not_offered_cannot_be_called(wire: Wire) -> None:
    offer(wire)
    wire.server.namespaces.known.add("other")
    with wire.nothing_changes():
        for path in (
            f"{SERVICE}/operations/refund",
            f"{ENDPOINT}/services/x/operations/charge",
            "/service-endpoints/x/services/cards/operations/charge",
            "/service-endpoints/billing%2Fcards/services/charge/operations/x",
        ):
            body = wire.control("POST", f"{path}/execute", {}).refused(409, "service_call_rejected")
            assert (body["outcome"], body["accepted"]) == ("rejected_not_found", False)
        elsewhere = wire.control(
            "POST", f"{OPERATION}/execute", {}, headers={"X-Namespace": "other"}
        )
        assert elsewhere.refused(409, "service_call_rejected")["status"] == "failed"
        path = f"{OPERATION}/service-calls/unknown"
        wire.control("GET", path).refused(404, "service_call_not_found")
        wire.control("POST", f"{path}/cancel").refused(404, "service_call_not_found")


def test_calls_are_listed_and_forgotten_after_a_week(wire: Wire) -> None:
    wire.register()
    offer(wire)
    taken = []
    for number in range(3):
        key = f"k{number}"
        taken.append(execute(wire, wait_for="accepted", idempotency_key=key).ok())
        wire.advance(seconds=1)
    calls = [it["service_call_id"] for it in taken]
    first = wire.control("GET", f"{OPERATION}/service-calls?page_size=2").ok()
    assert [it["service_call_id"] for it in first["service_calls"]] == [calls[2], calls[1]]
    token = first["next_page_token"]
    rest = wire.control("GET", f"{OPERATION}/service-calls?page_size=2&next_page_token={token}")
    assert [it["service_call_id"] for it in rest.ok()["service_calls"]] == [calls[0]]

    with wire.nothing_changes():
        wire.control("DELETE", OPERATION).refused(409, "operation_has_service_calls")
    for _ in calls:
        wire.complete(take_handler(wire), complete_workflow())
    wire.advance(seconds=31 * 86_400)
    assert wire.control("GET", f"{OPERATION}/service-calls").ok()["service_calls"] == []
    wire.control("DELETE", OPERATION).ok()
    assert wire.stored()["record"] == [
        row for row in wire.stored()["record"] if "service_call" not in row
    ]

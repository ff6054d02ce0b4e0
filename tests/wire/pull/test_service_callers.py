"""Service operations that runs call."""

from typing import Any

import pytest

from tests.support.http import (
    Json,
    Wire,
    avro,
    complete_workflow,
    fail_workflow,
    schedule_activity,
    unavro,
)
from tests.support.services import (
    BINDING,
    ENDPOINT,
    OPERATION,
    SERVICE,
    a_caller,
    call_of,
    offer,
    start_operation,
    take_handler,
)


def test_a_run_waits_for_its_call_and_gets_the_result(wire: Wire) -> None:
    a_caller(wire, idempotency_key="mine")
    started = wire.events()[-1]
    assert started["event_type"] == "ServiceCallStarted"
    told = started["payload"]
    assert (told["sequence"], told["operation_mode"], told["wait_for"]) == (1, "sync", "completed")
    assert (told["endpoint_name"], told["service_name"]) == ("billing", "cards")
    assert told["service_call"]["idempotency_key"] == "mine"
    assert unavro(told["request_payload"]) == [7]
    cause = wire.describe()["next_cause"]
    assert (cause["kind"], cause["name"]) == ("service_call", "billing/cards/charge")

    handler = take_handler(wire)
    assert unavro(handler["arguments"]) == [7]
    wire.complete(handler, complete_workflow("paid"))

    task = wire.take()
    assert (task["workflow_wait_kind"], task["workflow_sequence"]) == ("service_operation", 1)
    ended = task["history_events"][-1]
    assert ended["event_type"] == "ServiceCallCompleted"
    assert unavro(ended["payload"]["response_payload"]) == "paid"
    assert ended["payload"]["service_call"]["status"] == "completed"
    wire.complete(task, complete_workflow())
    call = call_of(wire, told["service_call_id"])
    assert (call["status"], call["caller_workflow_instance_id"]) == ("completed", "order-1")
    seen = wire.control("GET", "/workflows/order-1/nexus-operations").ok()
    assert (seen["operation_count"], seen["operations"][0]["status"]) == (1, "completed")
    run_id = seen["run_id"]
    assert wire.control("GET", f"/workflows/order-1/runs/{run_id}/nexus-operations").ok() == seen


@pytest.mark.parametrize(
    "members", [{"wait_for": "accepted"}, {"mode_override": "async", "wait_for": "accepted"}]
)
def test_a_run_may_go_on_as_soon_as_its_call_is_taken_up(wire: Wire, members: Json) -> None:
    a_caller(wire, **members)
    tasks = [wire.take(), wire.take()]
    caller = next(task for task in tasks if task["workflow_type"] == "Order")
    handler = next(task for task in tasks if task["workflow_type"] == "Child")
    assert caller["history_events"][-1]["event_type"] == "ServiceCallStarted"

    wire.complete(handler, complete_workflow("too late to matter"))
    wire.complete(caller, schedule_activity())

    assert wire.event_types()[-1] == "ActivityScheduled"
    assert wire.event_types().count("ServiceCallCompleted") == 0


@pytest.mark.parametrize("end", ["fail", "cancel", "cancel call"])
def test_a_call_that_ends_badly_is_raised_in_its_caller(wire: Wire, end: str) -> None:
    a_caller(wire)
    handler = take_handler(wire)
    call_id = wire.events()[-1]["payload"]["service_call_id"]
    if end == "fail":
        wire.complete(handler, fail_workflow("no money", exception_type="Broke"))
    elif end == "cancel":
        wire.control("POST", f"/workflows/{handler['workflow_id']}/cancel").ok()
    else:
        wire.control("POST", f"{OPERATION}/service-calls/{call_id}/cancel").ok()

    ended = wire.take()["history_events"][-1]

    name = "ServiceCallFailed" if end == "fail" else "ServiceCallCancelled"
    assert ended["event_type"] == name
    assert ended["payload"]["exception_type"]
    assert ended["payload"]["message"]
    if end == "fail":
        assert ended["payload"]["service_call"]["service_error_type"] == "Broke"


def test_a_call_of_what_is_not_offered_fails_in_the_code_and_nowhere_else(wire: Wire) -> None:
    wire.register()
    for wait_for in ("completed", "accepted"):
        wire.start(wait_for)
        command = start_operation(wait_for=wait_for, namespace="nowhere")
        wire.complete(wire.take(), command)

        task = wire.take()

        ended = task["history_events"][-1]
        assert ended["event_type"] == "ServiceCallFailed"
        assert ended["payload"]["service_call"]["outcome"] == "rejected_not_found"
        assert ended["payload"]["service_call"]["accepted"] is False
        wire.complete(task, complete_workflow())


def test_a_call_crosses_namespaces(wire: Wire) -> None:
    wire.server.namespaces.known.add("bank")
    bank = {"X-Namespace": "bank"}
    for path, body in ((ENDPOINT, {}), (SERVICE, {}), (OPERATION, BINDING)):
        wire.control("PUT", path, body, headers=bank).ok(201)
    registration = {
        "worker_id": "b1",
        "task_queue": "q",
        "runtime": "python",
        "sdk_version": "durable-workflow-python/2.12.0",
        "supported_workflow_types": ["Child"],
    }
    wire.worker("/register", registration, headers=bank).ok(201)
    wire.register()
    wire.start()
    wire.complete(wire.take(), start_operation(namespace="Bank"))

    poll = {"worker_id": "b1", "task_queue": "q", "timeout_seconds": 1}
    handler = wire.worker("/workflow-tasks/poll", poll, headers=bank).ok()["task"]
    assert handler["workflow_type"] == "Child"
    body = {
        "lease_owner": "b1",
        "workflow_task_attempt": handler["workflow_task_attempt"],
        "commands": [complete_workflow("from the bank")],
    }
    wire.worker(f"/workflow-tasks/{handler['task_id']}/complete", body, headers=bank).ok()

    ended = wire.take()["history_events"][-1]
    assert unavro(ended["payload"]["response_payload"]) == "from the bank"
    assert ended["payload"]["service_call"]["target_namespace"] == "bank"
    listed = wire.control("GET", "/workflows").ok()["workflows"]
    assert [run["workflow_id"] for run in listed] == ["order-1"]


def test_a_caller_waits_only_so_long(wire: Wire) -> None:
    a_caller(wire, wait_timeout_seconds=10)
    handler = take_handler(wire)
    wire.advance(seconds=11)

    ended = wire.take()["history_events"][-1]

    assert ended["event_type"] == "ServiceCallFailed"
    assert ended["payload"]["service_call"]["outcome"] == "timed_out"
    wire.complete(handler, complete_workflow("too late"))
    assert wire.event_types()[-1] == "ServiceCallFailed"


def test_runs_that_share_a_key_share_a_call(wire: Wire) -> None:
    a_caller(wire, idempotency_key="shared")
    wire.start("order-2")
    second = next(task for task in (wire.take(), wire.take()) if task["workflow_id"] == "order-2")
    handler_run = None
    wire.complete(second, start_operation(idempotency_key="shared"))
    ids = {
        wire.events(workflow_id)[-1]["payload"]["service_call_id"]
        for workflow_id in ("order-1", "order-2")
    }
    assert len(ids) == 1
    call = call_of(wire, ids.pop())
    handler_run = call["handler_run_id"]
    wire.advance(seconds=61)
    handler = take_handler(wire)
    assert handler["run_id"] == handler_run
    wire.complete(handler, complete_workflow("for both"))

    for workflow_id in ("order-1", "order-2"):
        ended = wire.events(workflow_id)[-1]["payload"]
        assert unavro(ended["response_payload"]) == "for both"
    wire.start("order-3")
    while (task := wire.take())["workflow_id"] != "order-3":
        wire.complete(task, complete_workflow())
    wire.complete(task, start_operation(idempotency_key="shared"))
    ended = wire.events("order-3")[-1]["payload"]
    assert unavro(ended["response_payload"]) == "for both"
    wire.start("order-4")
    while (task := wire.take())["workflow_id"] != "order-4":
        wire.complete(task, complete_workflow())
    other = start_operation(idempotency_key="shared", request_payload=avro([8])["blob"])
    wire.complete(task, other)
    refused = wire.events("order-4")[-1]["payload"]["service_call"]
    assert refused["outcome"] == "rejected_conflict"


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_a_call_that_nobody_waits_for_any_more_is_stopped(wire: Wire, verb: str) -> None:
    a_caller(wire)
    handler = take_handler(wire)

    wire.control("POST", f"/workflows/order-1/{verb}").ok()

    assert wire.describe(handler["workflow_id"])["status"] == "cancelled"
    wire.report(handler, "complete", commands=[]).refused(409, "run_closed")


def test_a_call_that_was_only_begun_outlives_its_caller(wire: Wire) -> None:
    a_caller(wire, wait_for="accepted")
    tasks = [wire.take(), wire.take()]
    handler = next(task for task in tasks if task["workflow_type"] == "Child")

    wire.control("POST", "/workflows/order-1/terminate").ok()

    wire.complete(handler, complete_workflow("still done"))
    assert wire.describe(handler["workflow_id"])["status"] == "completed"


def test_a_repeated_completion_calls_once(wire: Wire) -> None:
    wire.register()
    offer(wire)
    wire.start()
    task = wire.take()
    first = wire.complete(task, start_operation())

    with wire.nothing_changes():
        assert wire.complete(task, start_operation()) == first

    take_handler(wire)
    assert wire.poll()["poll_status"] == "empty"


def test_a_call_outlives_the_server(wire: Wire) -> None:
    a_caller(wire)
    wire.restart()
    handler = take_handler(wire)
    wire.restart()
    wire.complete(handler, complete_workflow("kept"))
    wire.restart()

    ended = wire.take()["history_events"][-1]
    assert unavro(ended["payload"]["response_payload"]) == "kept"


def test_a_failed_run_calls_again_when_it_is_continued(wire: Wire) -> None:
    a_caller(wire)
    wire.complete(take_handler(wire), fail_workflow("no money"))
    failing = wire.take()
    wire.complete(failing, fail_workflow("gave up"))

    wire.control("POST", f"/workflows/order-1/runs/{failing['run_id']}/redrive", {}).ok(202)

    task = wire.take()
    names = [event["event_type"] for event in task["history_events"]]
    assert names == ["StartAccepted", "WorkflowStarted"]
    wire.complete(task, start_operation())
    wire.complete(take_handler(wire), complete_workflow("better"))
    assert wire.event_types()[-1] == "ServiceCallCompleted"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint_name", ""),
        ("service_name", None),
        ("operation_name", "x" * 256),
        ("request_payload", 5),
        ("payload_codec", "json"),
        ("mode_override", "later"),
        ("wait_for", "ever"),
        ("wait_timeout_seconds", 0),
        ("idempotency_key", "\x00"),
        ("target_workflow_instance_id", "a b"),
        ("target_workflow_run_id", "r"),
        ("duplicate_start_policy", "use-existing"),
        ("memo", ["a"]),
    ],
)
def test_a_command_that_does_not_fit_is_refused_by_its_member(
    wire: Wire, field: str, value: Any
) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    with wire.nothing_changes():
        refused = wire.report(task, "complete", commands=[start_operation(**{field: value})])
        body = refused.refused(422, "validation_failed")
    assert next(iter(body["errors"])).startswith("commands.0")


def test_calls_are_made_one_at_a_time(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    with wire.nothing_changes():
        both = [start_operation(), start_operation()]
        wire.report(task, "complete", commands=both).refused(409, "invalid_commands")

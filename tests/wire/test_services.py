"""Service operations: the catalogue, calls from outside and from runs, and what handles them."""

from typing import Any

import pytest

from tests.support.http import (
    CONTROL_VERSION,
    Answer,
    Json,
    Parked,
    Wire,
    avro,
    complete_workflow,
    continue_as_new,
    fail_workflow,
    schedule_activity,
    unavro,
)

ENDPOINT = "/service-endpoints/billing"
SERVICE = f"{ENDPOINT}/services/cards"
OPERATION = f"{SERVICE}/operations/charge"
BINDING: Json = {
    "handler_binding_kind": "workflow_run",
    "handler_binding": {"workflow_type": "Child", "task_queue": "q"},
}
BY_ACTIVITY: Json = {
    "handler_binding_kind": "activity_execution",
    "handler_binding": {"activity_type": "charge", "task_queue": "q"},
}


def offer(wire: Wire, binding: Json = BINDING, **members: Any) -> None:
    """One operation that can be called."""
    for path in (ENDPOINT, SERVICE):
        answer = wire.control("PUT", path, {})
        assert answer.status in (200, 201), answer.content
    answer = wire.control("PUT", OPERATION, {**binding, **members})
    assert answer.status in (200, 201), answer.content


def execute(wire: Wire, **members: Any) -> Answer:
    body = {"arguments": avro([1])["blob"], "payload_codec": "avro", **members}
    return wire.control("POST", f"{OPERATION}/execute", body)


def execute_later(wire: Wire, **members: Any) -> Parked:
    """A call whose caller is left waiting at the server."""
    waiting = wire.server.update_waiters.count
    parked = wire.call_later(
        "POST",
        f"/api{OPERATION}/execute",
        {"arguments": avro([1])["blob"], "wait_for": "completed", **members},
        headers={CONTROL_VERSION: "2"},
    )
    wire.until(lambda: wire.server.update_waiters.count > waiting or not parked.is_waiting)
    return parked


def call_of(wire: Wire, call_id: str) -> Json:
    return wire.control("GET", f"{OPERATION}/service-calls/{call_id}").ok()


def start_operation(**members: Any) -> Json:
    return {
        "type": "start_service_operation",
        "endpoint_name": "billing",
        "service_name": "cards",
        "operation_name": "charge",
        "payload_codec": "avro",
        "request_payload": avro([7])["blob"],
        "metadata": {"caller_sdk_language": "sdk-python"},
        "mode_override": "sync",
        "wait_for": "completed",
        **members,
    }


def a_caller(wire: Wire, **members: Any) -> Json:
    """A run that has called the operation; its first task."""
    wire.register()
    offer(wire)
    wire.start()
    task = wire.take()
    wire.complete(task, start_operation(**members))
    return task


def take_handler(wire: Wire) -> Json:
    task = wire.take()
    assert task["workflow_type"] == "Child", task
    return task


# The catalogue ------------------------------------------------------------------------------------


def test_an_operation_is_offered_described_listed_and_removed(wire: Wire) -> None:
    wire.control("PUT", "/service-endpoints/Billing", {"description": "money"}).ok(201)
    wire.control("PUT", SERVICE, {}).ok(201)
    made = wire.control("PUT", OPERATION, {**BINDING, "operation_mode": "async"}).ok(201)
    assert (made["endpoint_name"], made["service_name"], made["operation_name"]) == (
        "billing",
        "cards",
        "charge",
    )
    assert made["handler_binding"] == {"workflow_type": "Child", "task_queue": "q"}
    assert (made["handler_binding_kind"], made["operation_mode"]) == ("workflow_run", "async")
    assert wire.control("GET", OPERATION).ok() == made
    assert wire.control("GET", ENDPOINT).ok()["description"] == "money"

    wire.control("PUT", "/service-endpoints/archive", {}).ok(201)
    listed = wire.control("GET", "/service-endpoints").ok()
    assert [it["name"] for it in listed["endpoints"]] == ["archive", "billing"]
    assert [it["name"] for it in wire.control("GET", f"{ENDPOINT}/services").ok()["services"]] == [
        "cards"
    ]
    operations = wire.control("GET", f"{SERVICE}/operations").ok()["operations"]
    assert [it["name"] for it in operations] == ["charge"]

    with wire.nothing_changes():
        wire.control("DELETE", ENDPOINT).refused(409, "endpoint_has_services")
        wire.control("DELETE", SERVICE).refused(409, "service_has_operations")
    for path in (OPERATION, SERVICE, ENDPOINT):
        wire.control("DELETE", path).ok()
        wire.control("GET", path).refused(404, "service_entry_not_found")
        wire.control("DELETE", path).refused(404, "service_entry_not_found")


def test_a_list_comes_in_pages(wire: Wire) -> None:
    for number in range(3):
        endpoint = f"/service-endpoints/e{number}"
        wire.control("PUT", endpoint, {}).ok(201)
        wire.control("PUT", f"{endpoint}/services/s", {}).ok(201)
    first = wire.control("GET", "/service-endpoints?page_size=2").ok()
    assert [it["name"] for it in first["endpoints"]] == ["e0", "e1"]
    token = first["next_page_token"]
    rest = wire.control("GET", f"/service-endpoints?page_size=2&next_page_token={token}").ok()
    assert [it["name"] for it in rest["endpoints"]] == ["e2"]
    assert rest["next_page_token"] is None


def test_what_stands_further_down_is_passed_over(wire: Wire) -> None:
    for endpoint in ("a", "a-b", "a.b", "a0", "b"):
        wire.control("PUT", f"/service-endpoints/{endpoint}", {}).ok(201)
        for service in ("s", "t"):
            wire.control("PUT", f"/service-endpoints/{endpoint}/services/{service}", {}).ok(201)

    for size in (1, 2, 3, 50):
        seen: list[str] = []
        token = ""
        while token is not None:
            query = f"?page_size={size}&next_page_token={token}"
            page = wire.control("GET", f"/service-endpoints{query}").ok()
            seen += [it["name"] for it in page["endpoints"]]
            token = page["next_page_token"]
        assert seen == ["a", "a-b", "a.b", "a0", "b"], size


def test_putting_the_same_twice_changes_nothing_and_something_else_does(wire: Wire) -> None:
    offer(wire)
    with wire.nothing_changes():
        wire.control("PUT", OPERATION, BINDING).ok(200)
        wire.control("PUT", ENDPOINT, {}).ok(200)

    wire.advance(seconds=1)
    changed = wire.control("PUT", OPERATION, BY_ACTIVITY).ok(200)

    assert changed["handler_binding"] == {"activity_type": "charge", "task_queue": "q"}
    assert changed["updated_at"] > changed["created_at"]


@pytest.mark.parametrize(
    ("field", "members"),
    [
        ("handler_binding_kind", {"handler_binding_kind": None}),
        ("handler_binding_kind", {"handler_binding_kind": "invocable_http"}),
        ("handler_binding", {"handler_binding": None}),
        ("handler_binding.workflow_type", {"handler_binding": {"activity_type": "charge"}}),
        (
            "handler_binding.workflow_type",
            {"handler_binding": {"workflow_type": "dw.standalone_activity"}},
        ),
        (
            "handler_binding.run_timeout_seconds",
            {
                "handler_binding": {
                    "workflow_type": "Child",
                    "run_timeout_seconds": 2,
                    "execution_timeout_seconds": 1,
                }
            },
        ),
        ("operation_mode", {"operation_mode": "sync_with_durable_reference"}),
        ("cancellation_policy", {"cancellation_policy": {}}),
        ("retry_policy", {"retry_policy": None}),
        ("description", {"description": "x" * 1001}),
    ],
)
def test_a_binding_that_makes_no_sense_is_refused(
    shared_wire: Wire, field: str, members: Json
) -> None:
    shared_wire.control("PUT", ENDPOINT, {})
    shared_wire.control("PUT", SERVICE, {})
    with shared_wire.nothing_changes():
        shared_wire.control("PUT", OPERATION, {**BINDING, **members}).invalid(field)


def test_names_and_parents_are_checked(wire: Wire) -> None:
    with wire.nothing_changes():
        wire.control("PUT", "/service-endpoints/a%20b", {}).invalid("endpoint")
        wire.control("PUT", "/service-endpoints/a%2Fb", {}).invalid("endpoint")
        wire.control("PUT", f"/service-endpoints/{'x' * 129}", {}).invalid("endpoint")
        wire.control("PUT", SERVICE, {}).refused(404, "service_entry_not_found")
        wire.control("PUT", OPERATION, BINDING).refused(404, "service_entry_not_found")
        wire.control("GET", f"{ENDPOINT}/services").refused(404, "service_entry_not_found")
        wire.control("GET", f"{SERVICE}/operations").refused(404, "service_entry_not_found")


# Calls from outside -------------------------------------------------------------------------------


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
        ("memo", []),
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


# Calls of runs ------------------------------------------------------------------------------------


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
        ("memo", []),
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

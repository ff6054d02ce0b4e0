"""One service operation, and who offers and calls it."""

from typing import Any

from tests.support.http import (
    CONTROL_VERSION,
    Answer,
    Json,
    Parked,
    Wire,
    avro,
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

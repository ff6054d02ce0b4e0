"""Service operations: a run calls one, and a run of another type handles the call."""

from tests.support.http import Wire, avro, complete_workflow, unavro
from tests.wire.proofs import proves
from tests.wire.proofs.running import last_event


@proves("command.start_service_operation")
def a_run_calls_an_operation_and_gets_its_result(wire: Wire) -> None:
    path = "/service-endpoints/e"
    handler = {"workflow_type": "Child", "task_queue": "q"}
    wire.control("PUT", path, {}).ok(201)
    wire.control("PUT", f"{path}/services/s", {}).ok(201)
    binding = {"handler_binding_kind": "workflow_run", "handler_binding": handler}
    wire.control("PUT", f"{path}/services/s/operations/o", binding).ok(201)
    wire.register()
    wire.run_to(
        {
            "type": "start_service_operation",
            "endpoint_name": "e",
            "service_name": "s",
            "operation_name": "o",
            "request_payload": avro([1])["blob"],
            "payload_codec": "avro",
            "mode_override": "sync",
            "wait_for": "completed",
        }
    )
    wire.complete(wire.take(), complete_workflow("done"))
    ended = last_event(wire, "ServiceCallCompleted")
    assert unavro(ended["response_payload"]) == "done"

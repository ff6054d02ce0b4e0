"""Streams of input and of output."""

from tests.support.http import Wire, avro, complete_workflow, unavro, wait_for_condition
from tests.wire.proofs import proves


@proves("cluster.message_streams", "server.message_streams")
def a_message_is_given_its_position_and_reaches_the_code(wire: Wire) -> None:
    wire.register(capabilities=["message_streams"])
    wire.run_to(wait_for_condition("message-stream:orders:0"))
    path = "/workflows/order-1/message-streams/orders/messages"
    body = {"message_id": "m-1", "input": avro(["two coffees"])}
    for _ in range(2):
        assert wire.control("POST", path, body).ok(202)["position"] == 1
    task = wire.take()
    (told,) = unavro(task["history_events"][-1]["payload"]["arguments"])
    assert unavro(told["payload_envelope"]) == ["two coffees"]
    read = [{"stream_name": "orders", "through_position": 1}]
    wire.report(task, "complete", commands=[complete_workflow()], message_stream_cursors=read).ok()

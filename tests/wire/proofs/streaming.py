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


@proves("cluster.workflow_streams", "server.workflow_streams")
def items_are_given_offsets_and_read_to_the_end(wire: Wire) -> None:
    run_id = wire.start()["run_id"]
    path = f"/workflows/order-1/runs/{run_id}/streams/log"
    item = {"payload": avro("one"), "idempotency_key": "k"}
    for expected in ((1, 0), (0, 1)):
        body = wire.control("POST", f"{path}/items", {"items": [item]}).ok()
        assert (body["accepted_offsets"], body["accepted"], body["deduped"]) == ([0], *expected)
    wire.control("POST", f"{path}/close", {}).ok()
    page = wire.control("GET", f"{path}/items?from=0&wait_seconds=5").ok()
    assert (unavro(page["items"][0]["payload"]), page["terminal"]) == ("one", True)
    wire.control("POST", f"{path}/items", {"items": [{}]}).refused(409, "stream_closed")

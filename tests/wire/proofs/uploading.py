"""External payloads."""

from tests.support.http import Wire, complete_workflow
from tests.support.uploads import fetch, outside
from tests.wire.proofs import proves


@proves("server.runtime_external_payload_transport")
def a_payload_is_uploaded_named_and_fetched(wire: Wire) -> None:
    info = wire.call("GET", "/api/cluster/info").ok()
    assert info["namespace"]["external_payload_storage"]["status"] == "available"
    wire.register()
    envelope = outside(wire, ["large"])
    wire.start(input=envelope)
    task = wire.take()
    assert task["arguments"] == envelope
    assert fetch(wire, task["arguments"]["external_payload"]).status == 200
    wire.complete(task, complete_workflow())

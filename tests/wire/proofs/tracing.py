"""Traces."""

from tests.support.http import Wire
from tests.wire.proofs import proves


@proves("server.observability_context")
def the_trace_of_a_start_is_told_to_its_worker(wire: Wire) -> None:
    wire.register()
    trace = {
        "schema": "durable-workflow.trace-context",
        "version": 1,
        "carrier": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    }
    wire.start(observability_context=trace)
    assert wire.take()["observability_context"] == trace

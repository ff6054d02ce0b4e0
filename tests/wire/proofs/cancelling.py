"""Cooperative cancellation."""

from tests.support.http import Wire, complete_workflow, start_timer
from tests.wire.proofs import proves


@proves("server.cooperative_cancellation")
def the_code_of_a_run_is_asked_to_cancel_itself(wire: Wire) -> None:
    wire.register(capabilities=["cooperative_cancellation"])
    wire.run_to(start_timer(3600))
    asked = wire.control("POST", "/workflows/order-1/request-cancellation", {}).ok(202)
    task = wire.take()
    assert task["cancellation_request"] == asked["cancellation_request"]
    delivered = wire.report(
        task,
        "deliver-cancellation",
        request_id=asked["cancellation_request"]["request_id"],
        sequence=1,
        call_kind="timer",
    ).ok()
    assert delivered["delivered"] is True
    wire.complete(task, complete_workflow("tidied"))
    assert wire.describe()["output"] == "tidied"

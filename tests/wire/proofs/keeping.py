"""Retention: a closed run that is old enough can be removed, and is gone."""

from tests.support.http import Wire, complete_workflow
from tests.wire.proofs import proves


@proves("cluster.history_retention")
def an_old_run_is_removed_by_a_pass(wire: Wire) -> None:
    wire.register()
    run_id = wire.start()["run_id"]
    wire.complete(wire.take(), complete_workflow())
    wire.jump(seconds=31 * 86_400)
    assert wire.control("GET", "/system/retention").ok()["expired_run_ids"] == [run_id]
    assert wire.control("POST", "/system/retention/pass", {}).ok()["pruned"] == 1
    wire.control("GET", "/workflows/order-1").refused(404, "instance_not_found")

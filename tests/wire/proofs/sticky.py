"""Workers that keep histories."""

from tests.support.http import Wire, start_timer
from tests.wire.proofs import proves


@proves("server.sticky_execution")
def the_worker_that_keeps_a_history_is_told_that_it_has_it(wire: Wire) -> None:
    wire.register(capabilities=["sticky_execution"])
    wire.start()
    task = wire.take()
    kept = {name: task[name] for name in ("workflow_id", "run_id")}
    claim = {**kept, "worker_id": "w1", "ttl_seconds": 60}
    wire.report(task, "complete", commands=[start_timer(1)], sticky_cache=claim).ok()
    wire.advance(seconds=1)
    assert wire.take()["sticky_replay_mode"] == "sticky_hit_expected"

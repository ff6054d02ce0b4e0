"""Worker sessions."""

from tests.support.http import Wire, avro, schedule_activity
from tests.wire.proofs import proves


@proves("cluster.worker_sessions", "server.worker_sessions")
def activities_of_a_session_go_to_its_owner(wire: Wire) -> None:
    wire.register("w1")
    wire.register("w2")
    command = schedule_activity(worker_session={"session_id": "s"})
    wire.run_to(command, command)
    first = wire.take("activity", "w1")
    wire.report_attempt(first, "complete", result=avro(1)).ok()
    assert wire.poll("activity", "w2")["task"] is None
    assert wire.take("activity", "w1")["worker_session"]["session_id"] == "s"
    assert wire.control("GET", "/worker-sessions").ok()["metrics"]["active"] == 1


@proves("server.worker_session_verbs")
def a_worker_creates_keeps_and_closes_a_session(wire: Wire) -> None:
    wire.register()
    wire.worker("/sessions", {"worker_id": "w1", "session_id": "s"}).ok(201)
    wire.worker("/sessions/s/heartbeat", {"worker_id": "w1"}).ok()
    wire.worker("/sessions/s", {"worker_id": "w1"}, method="DELETE").ok()
    session = wire.control("GET", "/worker-sessions/s").ok()["session"]
    assert session["status"] == "closed"

"""Local activities: work that the worker did itself is recorded as it was."""

from tests.support.http import Wire, avro, start_timer
from tests.wire.proofs import proves
from tests.wire.proofs.running import last_event


@proves("server.local_activities", "command.record_local_activity")
def local_work_is_recorded(wire: Wire) -> None:
    wire.register()
    attempt = {"attempt_id": "a" * 64, "attempt_number": 1, "outcome": "completed"}
    wire.run_to(
        {
            "type": "record_local_activity",
            "activity_type": "charge",
            "execution_mode": "local",
            "arguments": avro(["card"]),
            "outcome": "completed",
            "result": avro("paid"),
            "attempts": [{**attempt, "duration_ms": 3, "heartbeats": []}],
        },
        start_timer(1),
    )
    assert last_event(wire, "ActivityCompleted")["activity_type"] == "charge"
    assert wire.poll("activity")["task"] is None

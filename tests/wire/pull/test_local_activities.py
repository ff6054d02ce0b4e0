"""What a worker tells of the work it did itself: taken as a whole, or refused as a whole."""

from typing import Any

import pytest

from tests.support.http import (
    Json,
    Wire,
    avro,
    complete_workflow,
    local_activity,
    local_attempt,
    wait_for_condition,
)


@pytest.fixture
def task(wire: Wire) -> Json:
    """The first task of a run, leased by a worker that does work itself."""
    wire.register(
        capabilities=["local_activities"],
        capability_manifest={
            "local_activities": {"supported": True, "minimum_protocol_version": "1.18"},
            "worker_sessions": {"supported": False, "reason": "none"},
            "sticky_execution": {"supported": False, "reason": "none"},
        },
    )
    wire.start()
    return wire.take()


def failed(number: int = 1, **members: Any) -> Json:
    return local_attempt(
        number,
        "failed",
        **{"message": "no", "exception_type": "NoLuck", "non_retryable": False, **members},
    )


def test_every_attempt_of_local_work_is_told(wire: Wire, task: Json) -> None:
    retried = failed(retry_reason="failure", backoff_seconds=2)
    beaten = local_attempt(
        2, heartbeats=[{"elapsed_ms": 5, "details": {"done": 1}}, {"elapsed_ms": 9}]
    )
    policy = {"max_attempts": 3, "backoff_seconds": [2], "non_retryable_error_types": ["BadCard"]}
    wire.complete(
        task,
        local_activity(
            attempts=[retried, beaten],
            retry_policy=policy,
            start_to_close_timeout=10,
            schedule_to_close_timeout=60,
            heartbeat_timeout=5,
        ),
        complete_workflow(),
    )

    events = wire.events()[2:]
    assert [event["event_type"] for event in events] == [
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityHeartbeatRecorded",
        "ActivityHeartbeatRecorded",
        "ActivityCompleted",
        "WorkflowCompleted",
    ]
    for event in events[:-1]:
        payload = event["payload"]
        assert payload["sequence"] == 1
        assert payload["activity_type"] == "charge"
        assert payload["workflow_task_id"] == task["task_id"]
        assert (payload["execution_mode"], payload["local_activity"]) == ("local", True)
    scheduled, _, again, _, beat, silent, completed = (event["payload"] for event in events[:-1])
    assert scheduled["activity"] == {
        "arguments": avro([1]),
        "retry_policy": policy,
        "start_to_close_timeout": 10,
        "schedule_to_close_timeout": 60,
        "heartbeat_timeout": 5,
    }
    assert (again["retry_reason"], again["retry_backoff_seconds"]) == ("failure", 2)
    assert beat["progress"] == {"details": {"done": 1}}
    assert "progress" not in silent
    assert completed["result"] == avro("done")
    assert completed["activity_attempt_id"] == beaten["attempt_id"]


def test_nobody_else_gets_to_see_local_work(wire: Wire, task: Json) -> None:
    done = wire.complete(task, local_activity(), wait_for_condition())

    assert done["created_task_ids"] == []
    assert wire.poll("activity")["task"] is None
    assert wire.describe()["next_cause"]["kind"] == "condition"
    assert wire.events()[-1]["payload"]["sequence"] == 2


@pytest.mark.parametrize(
    ("outcome", "members", "event_type"),
    [
        ("failed", {}, "ActivityFailed"),
        ("timed_out", {"timeout_kind": "heartbeat"}, "ActivityTimedOut"),
        ("cancelled", {"non_retryable": True}, "ActivityCancelled"),
    ],
)
def test_what_the_code_saw_of_a_failure_is_what_replay_will_see(
    wire: Wire, task: Json, outcome: str, members: Json, event_type: str
) -> None:
    failure = {"message": "no", "exception_type": "NoLuck", "non_retryable": False, **members}
    attempt = local_attempt(1, outcome, **failure)
    wire.complete(task, local_activity(outcome, attempts=[attempt], **failure))

    event = wire.events()[-1]
    assert event["event_type"] == event_type
    assert failure.items() <= event["payload"].items()
    assert "exception_class" not in event["payload"]


def test_heartbeats_of_local_work_do_not_flood_its_history(wire: Wire, task: Json) -> None:
    beats = [{"elapsed_ms": 100 * n} for n in range(1000)]
    wire.complete(task, local_activity(attempts=[local_attempt(heartbeats=beats)]))

    assert wire.event_types().count("ActivityHeartbeatRecorded") == 10 + 19


def test_a_repeated_completion_tells_local_work_once(wire: Wire, task: Json) -> None:
    first = wire.complete(task, local_activity(), wait_for_condition())
    with wire.nothing_changes():
        assert wire.complete(task, local_activity(), wait_for_condition()) == first


def test_a_worker_keeps_its_task_while_it_works(wire: Wire, task: Json) -> None:
    for _ in range(4):
        wire.advance(seconds=40)
        renewed = wire.report(task, "heartbeat").ok()
        assert renewed["renewed"] is True
        assert (renewed["task_id"], renewed["lease_owner"]) == (task["task_id"], "w1")
        assert renewed["workflow_task_attempt"] == task["workflow_task_attempt"]
    wire.complete(task, local_activity(), complete_workflow())


def test_work_of_a_worker_that_lost_its_task_is_not_taken(wire: Wire, task: Json) -> None:
    wire.advance(seconds=61)
    again = wire.take()
    with wire.nothing_changes():
        wire.report(task, "heartbeat").refused(409, "workflow_task_attempt_mismatch")
        late = wire.report(task, "complete", commands=[local_activity(), complete_workflow()])
        late.refused(409, "workflow_task_attempt_mismatch")
    wire.complete(again, local_activity(), complete_workflow())
    assert wire.event_types().count("ActivityCompleted") == 1


def without(command: Json, name: str) -> Json:
    return {key: value for key, value in command.items() if key != name}


def at(path: str) -> str:
    return f"commands.0.{path}"


TOO_MANY_BEATS = [{"elapsed_ms": 1}] * 600
TIMED_OUT = {"message": "late", "exception_type": "T", "timeout_kind": "heartbeat"}


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (local_activity(activity_type=""), at("activity_type")),
        (local_activity(outcome="perhaps"), at("outcome")),
        (local_activity(execution_mode="remote"), at("execution_mode")),
        (local_activity(attempts=[]), at("attempts")),
        (local_activity(attempts=None), at("attempts")),
        (local_activity(attempts=[local_attempt(2)]), at("attempts.0.attempt_number")),
        (local_activity(attempts=[local_attempt(0)]), at("attempts.0.attempt_number")),
        (local_activity(attempts=[local_attempt(), local_attempt(2)]), at("attempts.0.outcome")),
        (local_activity(attempts=[local_attempt(attempt_id="")]), at("attempts.0.attempt_id")),
        (local_activity(attempts=[failed()]), at("outcome")),
        (local_activity(attempts=[failed(message=None)]), at("attempts.0.message")),
        (
            local_activity(attempts=[failed(timeout_kind="heartbeat")]),
            at("attempts.0.timeout_kind"),
        ),
        (
            local_activity(attempts=[local_attempt(1, "timed_out", message="late")]),
            at("attempts.0.timeout_kind"),
        ),
        (
            local_activity(
                "timed_out", attempts=[local_attempt(1, "timed_out", **TIMED_OUT)], message="late"
            ),
            at("outcome"),
        ),
        (local_activity("failed", attempts=[failed()], exception_type="NoLuck"), at("message")),
        (without(local_activity(), "result"), at("result")),
        (local_activity(result={"codec": "json", "blob": "x"}), at("result.codec")),
        (
            local_activity(
                "failed",
                attempts=[failed()],
                message="no",
                exception_type="NoLuck",
                result=avro(1),
            ),
            at("result"),
        ),
        (local_activity(arguments=[1]), at("arguments")),
        (
            local_activity(
                attempts=[
                    failed(heartbeats=TOO_MANY_BEATS),
                    local_attempt(2, heartbeats=TOO_MANY_BEATS),
                ]
            ),
            at("attempts"),
        ),
        (
            local_activity(attempts=[local_attempt(heartbeats=[{"elapsed_ms": -1}])]),
            at("attempts.0.heartbeats.0.elapsed_ms"),
        ),
        (local_activity(retry_policy={"max_attempts": 101}), at("retry_policy.max_attempts")),
        (
            local_activity(start_to_close_timeout=9, schedule_to_close_timeout=8),
            at("start_to_close_timeout"),
        ),
        (
            local_activity(heartbeat_timeout=9, start_to_close_timeout=8),
            at("heartbeat_timeout"),
        ),
        (local_activity(queue="other"), at("queue")),
        (local_activity(worker_session={"session_id": "s"}), at("worker_session")),
        (local_activity(schedule_to_start_timeout=1), at("schedule_to_start_timeout")),
        (local_activity(cancellation_policy="try_cancel"), at("cancellation_policy")),
        (local_activity(parallel_group_path=[]), at("parallel_group_path")),
    ],
)
def test_a_story_that_contradicts_itself_is_refused(
    wire: Wire, task: Json, command: Json, field: str
) -> None:
    with wire.nothing_changes():
        wire.report(task, "complete", commands=[command, complete_workflow()]).invalid(field)

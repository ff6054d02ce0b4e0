"""Prepared local activities over the wire: every answer as the SDK checks it, every refusal."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.http import (
    WORKER_VERSION,
    Answer,
    Json,
    Wire,
    avro,
    complete_workflow,
    fail_workflow,
    local_call,
    schedule_activity,
)

ABLE = ["cooperative_cancellation", "prepared_local_activities"]
NONCE = "n" * 64
EFFECT = {"type": "record_side_effect", "result": avro("x")}
DONE = {"outcome": "completed", "result": avro("done"), "payload_codec": "avro"}
FAILED = {"outcome": "failed", "message": "no luck", "exception_type": "NoLuck"}


def say(wire: Wire, task: Json, verb: str, **members: Any) -> Answer:
    return wire.report(task, f"local-activities/{verb}", **members)


def prepare(wire: Wire, task: Json, sequence: int = 1, **members: Any) -> Answer:
    asked = {"sequence": sequence, "worker_attempt_id": NONCE, "descriptor": local_call(**members)}
    return say(wire, task, "prepare", **asked)


def member(index: int, size: int = 2, **members: Any) -> Json:
    """One of a list that begins with the run's first call."""
    entry = {
        "parallel_group_id": f"parallel-activities:1:{size}",
        "parallel_group_kind": "activity",
        "parallel_group_base_sequence": 1,
        "parallel_group_size": size,
        "parallel_group_index": index,
    }
    command = members or local_call(type="prepare_local_activity")
    return {**command, "parallel_group_path": [entry]}


@pytest.fixture
def task(wire: Wire) -> Json:
    wire.register(capabilities=ABLE)
    wire.start()
    return wire.take()


@pytest.fixture
def attempt(wire: Wire, task: Json) -> str:
    begun = prepare(wire, task, start_to_close_timeout=50, heartbeat_timeout=20).ok()
    return str(begun["activity_attempt_id"])


# Answers ------------------------------------------------------------------------------------------


def test_the_whole_way_and_every_answer_again(wire: Wire, task: Json) -> None:
    claim = {
        "workflow_task_id": task["task_id"],
        "workflow_task_attempt": 1,
        "lease_owner": "w1",
        "history_refresh_page_token": "MA==",
        "reason": None,
    }
    base = {"checkpoint_id": "c1", "start_sequence": 1, "commands": [EFFECT]}
    for duplicate in (False, True):
        told = say(wire, task, "checkpoint", **base).ok()
        assert told | claim == told
        assert (
            told
            | {
                "checkpointed": True,
                "duplicate": duplicate,
                "checkpoint_id": "c1",
                "task_id": task["task_id"],
                "workflow_run_id": task["run_id"],
                "start_sequence": 1,
                "next_sequence": 2,
            }
            == told
        )

    begun: Json = {}
    for duplicate in (False, True):
        told = prepare(wire, task, 2, start_to_close_timeout=50).ok()
        assert (told["prepared"], told["duplicate"]) == (True, duplicate)
        begun = begun or told
        assert told | {"duplicate": False, "server_time": begun["server_time"]} == begun
    assert begun | claim == begun
    assert (begun["worker_attempt_id"], begun["attempt_number"]) == (NONCE, 1)
    assert begun["server_time"] < begun["start_to_close_deadline_at"] < begun["lease_expires_at"]
    assert (begun["schedule_to_close_deadline_at"], begun["heartbeat_deadline_at"]) == (None, None)
    assert begun["cancellation_cleanup"] is None

    attempt_id = begun["activity_attempt_id"]
    wire.advance(seconds=10)
    watched = say(wire, task, f"{attempt_id}/control", renew_lease=True).ok()
    assert (watched["active"], watched["renewed"], watched["stop_required"]) == (True, True, False)
    assert watched["lease_expires_at"] > begun["lease_expires_at"]
    assert watched["start_to_close_deadline_at"] == begun["start_to_close_deadline_at"]
    assert (watched["heartbeat_recorded"], watched["heartbeat_history_event_id"]) == (False, None)
    beaten = say(wire, task, f"{attempt_id}/heartbeat", progress={"details": {"done": 1}}).ok()
    assert (beaten["active"], beaten["heartbeat_recorded"]) == (True, True)
    assert beaten["renewed"] is False
    assert beaten["heartbeat_history_event_id"] == wire.events()[-1]["id"]
    assert wire.events()[-1]["payload"]["progress"] == {"details": {"done": 1}}

    for duplicate in (False, True):
        ended = say(wire, task, f"{attempt_id}/outcome", report=DONE).ok()
        assert ended | claim == ended
        assert (
            ended
            | {
                "recorded": True,
                "duplicate": duplicate,
                "workflow_run_id": task["run_id"],
                "worker_attempt_id": NONCE,
                "event_type": "ActivityCompleted",
                "claim_released": False,
                "created_task_ids": [],
                "event_id": wire.events()[-1]["id"],
            }
            == ended
        )
    wire.complete(task, complete_workflow("ok"))
    assert wire.describe()["output"] == "ok"


def test_a_retry_and_a_recovery_give_the_task_back(wire: Wire, task: Json) -> None:
    policy = {"max_attempts": 3, "backoff_seconds": [5]}
    attempt_id = prepare(wire, task, retry_policy=policy).ok()["activity_attempt_id"]
    for duplicate in (False, True):
        failed = say(wire, task, f"{attempt_id}/outcome", report=FAILED).ok()
        assert (failed["event_type"], failed["duplicate"], failed["claim_released"]) == (
            "ActivityRetryScheduled",
            duplicate,
            True,
        )
        assert len(failed["created_task_ids"]) == 1
    assert wire.poll()["task"] is None
    wire.advance(seconds=5)
    again = wire.take()
    assert again["task_id"] == failed["created_task_ids"][0]
    assert again["workflow_wait_kind"] == "local_activity"
    lost = prepare(wire, again, retry_policy=policy).ok()
    wire.restart()
    wire.advance(seconds=60)

    after = wire.take()
    asked = {"sequence": 1, "descriptor": local_call(retry_policy=policy)}
    for duplicate in (False, True):
        found = say(wire, after, "recover", **asked).ok()
        assert (found["recovered"], found["duplicate"]) == (True, duplicate)
        assert found["callback_stop_state"] == "unknown"
        assert found["activity_attempt_id"] == lost["activity_attempt_id"]
        assert found["event_id"] == wire.events()[-1]["id"]
    wire.register("other")
    assert wire.poll(worker_id="other")["task"] is None, "it does not ask before it runs any"
    last = wire.take()
    begun = prepare(wire, last, retry_policy=policy).ok()
    assert begun["attempt_number"] == 3
    say(wire, last, f"{begun['activity_attempt_id']}/outcome", report=DONE).ok()
    wire.complete(last, complete_workflow())


def test_a_list_is_opened_with_all_its_members(wire: Wire, task: Json) -> None:
    commands = [member(0), member(1, **schedule_activity())]
    body = {"checkpoint_id": "g1", "start_sequence": 1, "commands": commands}
    opened = say(wire, task, "checkpoint-group", **body).ok()
    with wire.nothing_changes():
        again = say(wire, task, "checkpoint-group", **body).ok()
    assert again == {**opened, "duplicate": True}
    (local,) = opened["local_activities"]
    begun = prepare(wire, task, parallel_group_path=member(0)["parallel_group_path"]).ok()
    assert begun["activity_execution_id"] == local["activity_execution_id"]
    wire.report_attempt(wire.take("activity"), "complete", result=avro(1)).ok()
    say(wire, task, f"{begun['activity_attempt_id']}/outcome", report=DONE).ok()
    wire.complete(task)
    wire.complete(wire.take(), complete_workflow())


def test_work_is_stopped_and_the_clean_up_has_a_deadline(
    wire: Wire, task: Json, attempt: str
) -> None:
    asked = wire.control("POST", "/workflows/order-1/request-cancellation", {}).ok(202)
    request = asked["cancellation_request"]
    told = say(wire, task, f"{attempt}/control", renew_lease=True).ok()
    assert (told["active"], told["stop_required"], told["fenced"]) == (False, True, True)
    assert told["reason"] == "cancellation_requested"
    assert told["cancellation_request"]["request_id"] == request["request_id"]
    assert told["cancellation_history_event_id"] == wire.events()[-1]["id"]
    with wire.nothing_changes():
        say(wire, task, f"{attempt}/outcome", report=DONE).refused(409, "cancellation_requested")
        prepare(wire, task, 2).refused(409, "cancellation_requested")
    named = {"request_id": request["request_id"]}
    for duplicate in (False, True):
        stopped = say(wire, task, f"{attempt}/acknowledge-cancellation", **named).ok()
        assert (stopped["acknowledged"], stopped["duplicate"]) == (True, duplicate)
        assert stopped["history_event_id"]
    call = {**named, "sequence": 1, "call_kind": "local_activity"}
    wire.report(task, "deliver-cancellation", **call).ok()
    delivered = wire.events()[-1]
    cleanup = {**named, "delivery_history_event_id": delivered["id"]}

    begun = prepare(wire, task, 2, cancellation_cleanup=cleanup).ok()

    assert begun["cancellation_cleanup"] == {
        **cleanup,
        "root_request_id": request["request_id"],
        "cleanup_deadline_at": request["cleanup_deadline_at"],
    }
    assert begun["heartbeat_deadline_at"] == request["cleanup_deadline_at"]
    wire.complete(task, fail_workflow("x", exception_type="WorkflowCancelled"))


# Refusals -----------------------------------------------------------------------------------------


def everything(attempt_id: str) -> dict[str, Json]:
    call = {"sequence": 1, "descriptor": local_call()}
    return {
        "checkpoint": {"checkpoint_id": "c", "start_sequence": 2, "commands": [EFFECT]},
        "checkpoint-group": {"checkpoint_id": "g", "start_sequence": 1, "commands": [member(0, 1)]},
        "prepare": {**call, "worker_attempt_id": NONCE},
        "recover": call,
        f"{attempt_id}/control": {"renew_lease": True},
        f"{attempt_id}/heartbeat": {"progress": {}},
        f"{attempt_id}/outcome": {"report": DONE},
        f"{attempt_id}/acknowledge-cancellation": {"request_id": "r"},
    }


def refused_everywhere(
    wire: Wire, task: Json, attempt_id: str, status: int, reason: str, skip: str = "-"
) -> None:
    with wire.nothing_changes():
        for verb, body in everything(attempt_id).items():
            if skip not in verb:
                say(wire, task, verb, **body).refused(status, reason)


def test_strangers_and_latecomers_are_refused(wire: Wire, task: Json, attempt: str) -> None:
    asked = "acknowledge"
    stranger, old = {**task, "lease_owner": "w2"}, {**task, "workflow_task_attempt": 2}
    nowhere = {**task, "task_id": "nowhere"}
    refused_everywhere(wire, stranger, attempt, 409, "lease_owner_mismatch", asked)
    refused_everywhere(wire, old, attempt, 409, "workflow_task_attempt_mismatch", asked)
    refused_everywhere(wire, nowhere, attempt, 404, "task_not_found")
    with wire.nothing_changes():
        body = {"request_id": "r"}
        say(wire, task, f"{attempt}/acknowledge-cancellation", **body).refused(
            404, "cancellation_request_not_found"
        )
    wire.control("POST", "/workflows/order-1/terminate", {}).ok()
    refused_everywhere(wire, task, attempt, 409, "run_closed", asked)


def test_a_lease_that_is_over_is_over(wire: Wire, task: Json, attempt: str) -> None:
    wire.advance(seconds=60)
    refused_everywhere(wire, task, attempt, 409, "task_not_leased", "acknowledge")


def test_workers_of_older_protocols_and_others_are_refused(wire: Wire, task: Json) -> None:
    lease = {"lease_owner": "w1", "workflow_task_attempt": 1}
    unavailable = "prepared_local_activities_unavailable"
    with wire.nothing_changes():
        for verb, body in everything("A-1").items():
            path = f"/workflow-tasks/{task['task_id']}/local-activities/{verb}"
            answer = wire.worker(path, {**lease, **body}, headers={WORKER_VERSION: "1.19"})
            assert answer.refused(409, unavailable)["required_version"] == "1.20"
        told = {"worker_id": "w9", "task_queue": "q", "runtime": "python", "capabilities": ABLE}
        wire.worker("/register", told, headers={WORKER_VERSION: "1.19"}).refused(
            409, "cooperative_cancellation_unavailable"
        )
    wire.complete(task, complete_workflow())
    wire.register("plain", capabilities=ABLE[:1])
    wire.start("order-2")
    plain = wire.take(worker_id="plain")
    with wire.nothing_changes():
        prepare(wire, plain).refused(409, unavailable)


BAD: list[tuple[str, Callable[[Json], Json], str]] = [
    ("checkpoint", lambda b: {**b, "commands": []}, "commands"),
    ("checkpoint", lambda b: {**b, "commands": [schedule_activity()]}, "commands.0.type"),
    ("checkpoint", lambda b: {**b, "start_sequence": 0}, "start_sequence"),
    ("checkpoint", lambda b: {**b, "checkpoint_id": ""}, "checkpoint_id"),
    ("checkpoint-group", lambda b: {**b, "commands": [EFFECT]}, "commands.0.type"),
    ("checkpoint-group", lambda b: {**b, "commands": [member(0)] * 101}, "commands"),
    ("prepare", lambda b: {**b, "sequence": "one"}, "sequence"),
    ("prepare", lambda b: {**b, "worker_attempt_id": "x" * 256}, "worker_attempt_id"),
    ("prepare", lambda b: {**b, "descriptor": None}, "descriptor"),
    ("recover", lambda b: {"sequence": 1}, "descriptor"),
    ("control", lambda b: {"renew_lease": "perhaps"}, "renew_lease"),
    ("heartbeat", lambda b: {"progress": {"details": "much"}}, "progress.details"),
    ("outcome", lambda b: {}, "report"),
    ("outcome", lambda b: {"report": {"outcome": "lost"}}, "report.outcome"),
    ("outcome", lambda b: {"report": {"outcome": "failed"}}, "report.message"),
    ("outcome", lambda b: {"report": {**FAILED, "result": avro(1)}}, "report.result"),
    ("outcome", lambda b: {"report": {**DONE, "result": {"codec": "avro"}}}, "report.result"),
    ("acknowledge", lambda b: {}, "request_id"),
]


@pytest.mark.parametrize(("verb", "spoil", "field"), BAD)
def test_bodies_that_make_no_sense_change_nothing(
    wire: Wire, task: Json, attempt: str, verb: str, spoil: Callable[[Json], Json], field: str
) -> None:
    known = everything(attempt)
    path = next(name for name in known if name == verb or f"/{verb}" in name)
    with wire.nothing_changes():
        say(wire, task, path, **spoil(known[path])).invalid(field)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"queue": "q"}, "queue"),
        ({"schedule_to_start_timeout": 1}, "schedule_to_start_timeout"),
        ({"cancellation_scope_id": "s"}, "cancellation_scope_id"),
        ({"cancellation_policy": "abandon"}, "cancellation_policy"),
        ({"retry_policy": {"max_attempts": 101}}, "retry_policy.max_attempts"),
        ({"start_to_close_timeout": 9, "schedule_to_close_timeout": 1}, "start_to_close_timeout"),
        ({"arguments": {"codec": "json", "blob": "x"}}, "arguments"),
        ({"cancellation_cleanup": {"request_id": "r", "scope_id": "s"}}, "cancellation_cleanup"),
    ],
)
def test_what_is_not_for_local_activities_is_refused(
    wire: Wire, task: Json, members: Json, field: str
) -> None:
    with wire.nothing_changes():
        errors = prepare(wire, task, **members).refused(422, "validation_failed")["errors"]
    assert any(name.startswith(f"descriptor.{field}") for name in errors), errors


def test_a_call_that_is_not_the_next_one_is_refused(wire: Wire, task: Json, attempt: str) -> None:
    conflict = "prepared_local_activity_conflict"
    body = {"checkpoint_id": "c", "start_sequence": 2, "commands": [EFFECT]}
    with wire.nothing_changes():
        prepare(wire, task, 7).refused(409, conflict)
        prepare(wire, task, activity_type="ship").refused(409, conflict)
        say(wire, task, "checkpoint", **body).refused(409, conflict)
        say(wire, task, "recover", sequence=1, descriptor=local_call()).refused(409, conflict)
        group = {"checkpoint_id": "g", "start_sequence": 1, "commands": [member(0)]}
        say(wire, task, "checkpoint-group", **group).refused(409, "invalid_commands")

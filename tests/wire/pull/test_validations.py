"""Validated updates over the wire: who is asked, what is said, and who hears of it."""

from typing import Any

import pytest

from perdure.core import limits
from perdure.core.limits import SECOND
from tests.support.http import (
    Json,
    Parked,
    Wire,
    avro,
    complete_update,
    contract_of,
    start_timer,
    unavro,
    wait_for_condition,
)

BOTH = ["workflow", "update_validation"]
LEASE = limits.UPDATE_VALIDATION_LEASE_TIMEOUT / SECOND
TIMEOUT = limits.UPDATE_VALIDATION_TIMEOUT / SECOND


@pytest.fixture
def waiting(wire: Wire) -> Json:
    """A run of a worker that validates `add`."""
    wire.register_validator()
    return wire.run_to(wait_for_condition())


def ask(wire: Wire, **members: Any) -> Parked:
    asking = wire.update_later("add", **{"input": avro([1]), **members})
    assert asking.is_waiting
    return asking


# The exchange -----------------------------------------------------------------------------------


def test_a_validator_gets_all_that_it_needs(wire: Wire, waiting: Json) -> None:
    ask(wire)

    task = wire.take_validation()

    history = task.pop("history_events")
    assert [event["event_type"] for event in history] == wire.event_types()
    task_id, update_id = task["update_validation_task_id"], task["update_id"]
    assert task_id.startswith(waiting["run_id"])
    assert unavro(task.pop("workflow_arguments")) == []
    assert unavro(task.pop("update_arguments")) == [1]
    assert task.pop("history_size_bytes") == wire.describe()["history_bytes"]
    assert task == {
        "task_kind": "update_validation",
        "task_id": task_id,
        "update_validation_task_id": task_id,
        "update_validation_attempt": 1,
        "workflow_id": "order-1",
        "run_id": waiting["run_id"],
        "namespace": "default",
        "workflow_type": "Order",
        "update_id": update_id,
        "update_name": "add",
        "payload_codec": "avro",
        "last_history_sequence": len(history),
        "total_history_events": len(history),
        "history_fan_out": 1,
        "continue_as_new_recommended": False,
        "history_budget_pressure": "ok",
        "history_budget_pressure_dimensions": [],
        "task_queue": "q",
        "compatibility": None,
        "lease_owner": "w1",
        "lease_expires_at": f"2026-01-01T00:00:{LEASE:02.0f}.000000Z",
    }


def test_an_approved_update_is_accepted_and_then_answered(wire: Wire, waiting: Json) -> None:
    accepted, completed = ask(wire), ask(wire, wait_for="completed")
    for _ in range(2):
        judged = wire.judge(wire.take_validation(), "approve").ok()
        assert (judged["outcome"], judged["recorded"]) == ("approved", True)
        task = wire.take(task_kinds=BOTH)
        assert task["task_kind"] == "workflow"
        wire.complete(task, complete_update(task, "ok"))
        wire.complete(wire.take(task_kinds=BOTH), wait_for_condition())

    assert accepted.answer().status in (200, 202)
    assert completed.answer().ok()["result"] == "ok"


def test_acceptance_is_told_when_the_validator_has_approved(wire: Wire, waiting: Json) -> None:
    asking = ask(wire, request_id="r")
    task = wire.take_validation()
    wire.advance(seconds=2)

    wire.judge(task, "approve").ok()

    body = asking.answer().ok(202)
    assert (body["update_status"], body["update_id"]) == ("accepted", task["update_id"])
    assert body["accepted_at"] == "2026-01-01T00:00:02.000000Z"
    assert wire.update("add", input=avro([1]), request_id="r").ok(202)["retained"] is True


def test_a_rejected_update_leaves_nothing_but_its_answer(wire: Wire, waiting: Json) -> None:
    asking = ask(wire)
    errors = {"amount": ["must be positive"]}
    failure = {
        "message": "no",
        "reason": "update_validator_rejected",
        "type": "ValueError",
        "stack_trace": "…",
        "validation_errors": errors,
    }

    judged = wire.judge(wire.take_validation(), "reject", failure=failure).ok()

    assert judged["outcome"] == "rejected"
    body = asking.answer().refused(422, "update_validator_rejected")
    assert body["message"] == "no"
    assert body["errors"] == body["validation_errors"] == errors
    assert (body["update_status"], body["retryable"]) == ("rejected", False)
    assert wire.event_types()[-1] == "ConditionWaitOpened"
    assert wire.describe()["open_update_count"] == 0


def test_a_validator_that_broke_is_told_apart(wire: Wire, waiting: Json) -> None:
    asking = ask(wire)
    failure = {"message": "cannot replay", "reason": "update_validation_worker_failed"}

    wire.judge(wire.take_validation(), "reject", failure=failure).ok()

    body = asking.answer().refused(409, "update_validation_worker_failed")
    assert (body["message"], body["retryable"]) == ("cannot replay", False)


def test_what_a_validator_says_is_kept_within_bounds(wire: Wire, waiting: Json) -> None:
    asking = ask(wire)
    failure = {"message": "x" * 5_000, "validation_errors": {"a": "y" * 5_000}}

    wire.judge(wire.take_validation(), "reject", failure=failure).ok()

    body = asking.answer().refused(422, "update_validator_rejected")
    assert len(body["message"]) == limits.UPDATE_REFUSAL_MESSAGE_LENGTH_MAX
    assert "errors" not in body


def test_callers_are_woken_by_the_verdict_and_need_not_look(
    wire: Wire, waiting: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UPDATE_RELOOK", 1_000 * limits.SECOND)
    refused, accepted, late = ask(wire), ask(wire), ask(wire)

    wire.judge(wire.take_validation(), "reject", failure={"message": "no"}).ok()
    refused.answer().refused(422, "update_validator_rejected")
    wire.judge(wire.take_validation(), "approve").ok()
    accepted.answer().ok(202)
    wire.advance(seconds=TIMEOUT)
    late.answer().refused(409, "update_validation_task_not_claimed")


def test_a_validator_gets_a_history_that_memory_no_longer_holds(
    wire: Wire, waiting: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.cache.RUN_HISTORY_CACHE_BYTES_MAX", 10)
    wire.update("close").ok(202)
    task = wire.take()
    wire.complete(task, complete_update(task, "x" * 100))
    wire.complete(wire.take(), wait_for_condition())
    asking = ask(wire, wait_for="completed")

    task = wire.take_validation()

    told = [event["event_type"] for event in task["history_events"]]
    assert told == wire.event_types()
    wire.judge(task, "approve").ok()
    task = wire.take()
    wire.complete(task, complete_update(task, "read from disk"))
    assert asking.answer().ok()["result"] == "read from disk"


def test_updates_that_are_not_validated_need_no_word(wire: Wire, waiting: Json) -> None:
    wire.update("close").ok(202)

    assert wire.take(task_kinds=BOTH)["task_kind"] == "workflow"


# Who is asked -----------------------------------------------------------------------------------


def test_only_those_are_asked_who_said_that_they_can(wire: Wire, waiting: Json) -> None:
    told = contract_of("Order", updates={"add": 1}, validators=["add"])
    wire.register("mute", workflow_command_contracts=told)
    wire.register("plain")
    ask(wire)

    assert wire.poll(worker_id="w1")["task"] is None, "it did not ask for validations"
    assert wire.poll(worker_id="mute", task_kinds=BOTH)["task"] is None
    assert wire.poll(worker_id="plain", task_kinds=BOTH)["task"] is None
    assert wire.poll(worker_id="w1", task_kinds=["update_validation"])["task"] is not None


def test_a_parked_poll_is_handed_a_validation(wire: Wire, waiting: Json) -> None:
    body = {"worker_id": "w1", "task_queue": "q", "task_kinds": BOTH}
    poll = wire.park("/workflow-tasks/poll", body)

    ask(wire)

    assert poll.answer().ok()["task"]["task_kind"] == "update_validation"


def test_there_is_a_poll_for_validations_alone(wire: Wire, waiting: Json) -> None:
    wire.start("order-2")
    ask(wire)

    task = wire.take("update-validation")

    assert task["task_kind"] == "update_validation"
    assert wire.poll("update-validation")["task"] is None
    assert wire.take()["workflow_id"] == "order-2"


@pytest.mark.parametrize("kinds", [["query"], [], ["workflow", ""], "workflow"])
def test_other_kinds_of_tasks_are_unknown(wire: Wire, waiting: Json, kinds: object) -> None:
    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0, "task_kinds": kinds}

    with wire.nothing_changes():
        wire.worker("/workflow-tasks/poll", body).invalid("task_kinds")


def test_a_repeated_poll_gets_its_validation_again(wire: Wire, waiting: Json) -> None:
    ask(wire)
    poll: Json = {"worker_id": "w1", "task_kinds": BOTH, "poll_request_id": "p"}
    first = wire.poll(**poll)["task"]

    assert wire.poll(**poll)["task"] == first
    wire.restart()
    body = {**poll, "task_queue": "q", "timeout_seconds": 60}
    repeated = wire.park("/workflow-tasks/poll", body)
    wire.look_around()
    assert repeated.answer().ok()["task"] == first


def test_the_same_poll_id_for_another_kind_of_task_is_another_poll(
    wire: Wire, waiting: Json
) -> None:
    ask(wire)
    validation = wire.take("update-validation", poll_request_id="p")
    wire.start("order-2")
    task = wire.take(poll_request_id="p")
    assert task["workflow_id"] == "order-2"

    assert wire.take("update-validation", poll_request_id="p") == validation
    assert wire.take(poll_request_id="p") == task
    wire.restart()
    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 60, "poll_request_id": "p"}
    repeated = [
        wire.park(f"/{kind}-tasks/poll", body) for kind in ("workflow", "update-validation")
    ]
    wire.look_around()
    assert [poll.answer().ok()["task"] for poll in repeated] == [task, validation]


def test_nothing_is_accepted_while_nobody_can_validate(wire: Wire, waiting: Json) -> None:
    wire.worker("/registrations/w1", method="DELETE").ok()

    with wire.nothing_changes():
        body = wire.update("add", input=avro([1])).refused(
            409, "update_validator_worker_unavailable"
        )
    assert body["retryable"] is True
    wire.restart()
    wire.update("add", input=avro([1])).refused(409, "update_validator_worker_unavailable")
    wire.register("old")
    with wire.nothing_changes():
        wire.update("add", input=avro([1])).refused(409, "update_validator_worker_incompatible")


def test_an_update_before_every_worker_is_judged_when_one_has_come(wire: Wire) -> None:
    wire.start()
    told = wire.update("add", input=avro([1]), request_id="r").ok(202)
    wire.register_validator()
    wire.complete(wire.take(), wait_for_condition())
    asking = ask(wire, request_id="r", wait_for="completed")

    wire.judge(wire.take_validation(), "approve").ok()
    task = wire.take()
    wire.complete(task, complete_update(task, "ok"))

    body = asking.answer().ok()
    assert (body["update_id"], body["result"]) == (told["update_id"], "ok")


def test_a_worker_that_declares_and_cannot_be_asked_is_no_validator(wire: Wire) -> None:
    told = contract_of("Order", updates={"add": 1}, validators=["add"])
    wire.register(workflow_command_contracts=told)
    wire.run_to(wait_for_condition())

    with wire.nothing_changes():
        wire.update("add", input=avro([1])).refused(409, "update_validation_capability_unsupported")


def test_what_the_code_does_not_have_is_refused_before_anybody_is_asked(
    wire: Wire, waiting: Json
) -> None:
    with wire.nothing_changes():
        body = wire.update("subtract", input=avro([1])).refused(409, "update_rejected")
        assert body["rejection_reason"] == "unknown_update"
        assert body["outcome"] == "rejected_unknown_update"
        body = wire.update("add").refused(422, "invalid_update_arguments")
        assert body["errors"] == {"p0": ["is required"]}
        body = wire.update("add", input=avro([1, 2])).refused(422, "invalid_update_arguments")
        assert list(body["errors"]) == ["arguments"]


# Lost validators --------------------------------------------------------------------------------


def test_a_validation_outlives_its_worker(wire: Wire, waiting: Json) -> None:
    wire.register_validator("w2")
    asking = ask(wire)
    lost = wire.take_validation()

    wire.worker("/registrations/w1", method="DELETE").ok()

    task = wire.take_validation("w2")
    assert task["update_validation_attempt"] == 2
    with wire.nothing_changes():
        wire.judge(lost, "approve").refused(409, "stale_update_validation_completion")
    wire.judge(task, "approve").ok()
    asking.answer().ok(202)


def test_a_validation_outlives_the_server(wire: Wire, waiting: Json) -> None:
    asking = ask(wire, request_id="r")
    task = wire.take_validation()
    wire.restart()
    assert asking.answer().refused(409, "update_validation_task_not_claimed")["retryable"] is True

    again = ask(wire, request_id="r")
    wire.judge(task, "approve").ok()

    body = again.answer().ok(202)
    assert (body["update_id"], body["retained"]) == (task["update_id"], True)


def test_a_poll_that_is_gone_keeps_no_validation(wire: Wire, waiting: Json) -> None:
    stream = wire.stream()
    body = b'{"worker_id":"w1","task_queue":"q","task_kinds":["update_validation"]}'
    stream.send(
        b"POST /api/worker/workflow-tasks/poll HTTP/1.1\r\nHost: localhost\r\n"
        b"X-Durable-Workflow-Protocol-Version: 1.20\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    wire.until(lambda: wire.server.parked_polls.count == 1)
    stream.close()
    wire.until(lambda: wire.server.parked_polls.count == 0)
    ask(wire)

    assert wire.take_validation()["update_validation_attempt"] == 1


@pytest.mark.parametrize(
    ("taken", "silence", "reason"),
    [
        (False, TIMEOUT, "update_validation_task_not_claimed"),
        (True, TIMEOUT, "update_validator_worker_lost"),
    ],
)
def test_a_caller_is_told_when_nobody_judges(
    wire: Wire, waiting: Json, taken: bool, silence: float, reason: str
) -> None:
    asking = ask(wire)
    if taken:
        wire.take_validation()

    wire.advance(seconds=LEASE)
    assert asking.is_waiting
    wire.advance(seconds=silence - LEASE)

    assert asking.answer().refused(409, reason)["retryable"] is True
    assert wire.poll(task_kinds=BOTH)["task"] is None
    assert "UpdateAccepted" not in wire.event_types()


def test_a_caller_is_told_when_the_validator_takes_too_long(wire: Wire, waiting: Json) -> None:
    asking = ask(wire)
    wire.advance(seconds=TIMEOUT - 1)
    task = wire.take_validation()

    wire.advance(seconds=1)

    asking.answer().refused(409, "update_validation_execution_timeout")
    with wire.nothing_changes():
        wire.judge(task, "approve").refused(409, "update_validation_task_not_leased")


# Verdicts that do not count ---------------------------------------------------------------------


def test_a_verdict_counts_once(wire: Wire, waiting: Json) -> None:
    ask(wire)
    task = wire.take_validation()
    wire.judge(task, "approve").ok()

    with wire.nothing_changes():
        assert wire.judge(task, "approve").ok()["outcome"] == "approved"
        wire.judge(task, "reject", failure={"message": "no"}).refused(
            409, "duplicate_update_validation_completion"
        )


def test_a_late_verdict_does_not_count(wire: Wire, waiting: Json) -> None:
    ask(wire)
    task = wire.take_validation()
    wire.clock.jump(seconds=LEASE)

    wire.judge(task, "approve").refused(409, "update_validation_lease_expired")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"lease_owner": "w9"}, "stale_update_validation_completion"),
        ({"update_validation_attempt": 7}, "stale_update_validation_completion"),
    ],
)
def test_a_strangers_verdict_does_not_count(
    wire: Wire, waiting: Json, members: Json, reason: str
) -> None:
    ask(wire)
    task = wire.take_validation()

    with wire.nothing_changes():
        wire.judge(task, "approve", **members).refused(409, reason)


@pytest.mark.parametrize("task_id", ["nothing", "run-v1", "run-w1", "01j-v99", "{run}-v99"])
def test_a_verdict_on_nothing_does_not_count(wire: Wire, waiting: Json, task_id: str) -> None:
    task = {
        "update_validation_task_id": task_id.format(run=waiting["run_id"]),
        "update_validation_attempt": 1,
        "lease_owner": "w1",
    }

    with wire.nothing_changes():
        wire.judge(task, "approve").refused(404, "update_validation_task_not_found")


@pytest.mark.parametrize(
    ("verb", "members", "field"),
    [
        ("approve", {"update_validation_attempt": 0}, "update_validation_attempt"),
        ("approve", {"lease_owner": ""}, "lease_owner"),
        ("reject", {}, "failure"),
        ("reject", {"failure": {}}, "failure.message"),
        ("reject", {"failure": {"message": "x", "reason": "boredom"}}, "failure.reason"),
    ],
)
def test_a_malformed_verdict_is_refused(
    wire: Wire, waiting: Json, verb: str, members: Json, field: str
) -> None:
    ask(wire)
    task = wire.take_validation()

    with wire.nothing_changes():
        wire.judge(task, verb, **members).invalid(field)


def test_a_validation_cannot_be_ended_as_a_workflow_task(wire: Wire, waiting: Json) -> None:
    ask(wire)
    task = wire.take_validation()
    number = task["task_id"].rpartition("-v")[2]
    told = {
        "task_id": f"{waiting['run_id']}-w{number}",
        "lease_owner": "w1",
        "workflow_task_attempt": 1,
    }

    with wire.nothing_changes():
        for verb, members in (
            ("complete", {"commands": []}),
            ("fail", {"failure": {"message": "x"}}),
            ("heartbeat", {}),
        ):
            wire.report(told, verb, **members).refused(404, "task_not_found")


# Beside other work ------------------------------------------------------------------------------


def test_repeats_wait_for_the_same_verdict(wire: Wire, waiting: Json) -> None:
    first, second = ask(wire, request_id="r"), ask(wire, request_id="r")
    with wire.nothing_changes():
        conflict = wire.update("add", input=avro([2]), request_id="r")
        conflict.refused(409, "request_id_conflict")

    wire.judge(wire.take_validation(), "approve").ok()

    bodies = [first.answer().ok(202), second.answer().ok(202)]
    assert [body["retained"] for body in bodies] == [False, True]
    assert bodies[0]["update_id"] == bodies[1]["update_id"]


def test_who_was_refused_may_ask_again_under_the_same_id(wire: Wire, waiting: Json) -> None:
    for _ in range(2):
        asking = ask(wire, request_id="r")
        wire.judge(wire.take_validation(), "reject", failure={"message": "no"}).ok()
        asking.answer().refused(422, "update_validator_rejected")


def test_a_run_that_is_stopped_answers_those_who_wait_for_a_verdict(
    wire: Wire, waiting: Json
) -> None:
    asking = ask(wire)
    task = wire.take_validation()

    wire.control("POST", "/workflows/order-1/cancel", {}).ok()

    asking.answer().refused(409, "update_rejected")
    wire.judge(task, "approve").refused(409, "update_validation_task_not_leased")


def test_the_code_goes_on_before_a_validation_that_nobody_has_taken(wire: Wire) -> None:
    wire.register_validator()
    wire.run_to(start_timer(5))
    ask(wire)

    wire.advance(seconds=5)

    task = wire.take(task_kinds=BOTH)
    assert task["task_kind"] == "workflow"
    wire.complete(task, wait_for_condition())
    history = wire.take_validation()["history_events"]
    assert history[-1]["event_type"] == "ConditionWaitOpened"


def test_a_validation_is_described(wire: Wire, waiting: Json) -> None:
    ask(wire)
    task = wire.take_validation()

    told = wire.describe()

    assert (told["wait_kind"], told["open_update_count"]) == ("update", 1)
    assert "worker w1 validates update add until" in told["wait_reason"]
    assert told["next_cause"]["kind"] == "update_validation"
    assert told["next_cause"]["update_id"] == task["update_id"]
    assert told["next_cause"]["owner"] == "w1"

"""Updates over the wire: stages, outcomes, repeats and refusals."""

from typing import Any

import pytest

from perdure.core import limits
from perdure.core.payload import Frame
from tests.support.http import (
    CONTROL_VERSION,
    Json,
    Wire,
    avro,
    complete_update,
    complete_workflow,
    continue_as_new,
    fail_update,
    schedule_activity,
    start_timer,
    unavro,
    wait_for_condition,
)


@pytest.fixture
def waiting(wire: Wire) -> Json:
    """A run that waits for a condition."""
    wire.register()
    return wire.run_to(wait_for_condition())


def answer_update(wire: Wire, result: Any = "added") -> Json:
    """The worker's part of one update: its outcome, then the wait again."""
    task = wire.take()
    assert task["workflow_update_id"]
    wire.complete(task, complete_update(task, result))
    wire.complete(wire.take(), wait_for_condition())
    return task


# Stages -----------------------------------------------------------------------------------------


def test_an_accepted_update_is_answered_at_once(wire: Wire, waiting: Json) -> None:
    body = wire.update("add", input=avro([1]), request_id="r-1").ok(202)

    assert body["control_plane"]["operation"] == "update"
    assert body["control_plane"]["operation_name"] == "add"
    assert body["control_plane"]["operation_name_field"] == "update_name"
    update_id = body["update_id"]
    assert len(update_id) == 26
    told = {key: value for key, value in body.items() if key != "control_plane"}
    assert told == {
        "workflow_id": "order-1",
        "run_id": waiting["run_id"],
        "requested_run_id": None,
        "resolved_run_id": waiting["run_id"],
        "workflow_type": "Order",
        "update_id": update_id,
        "update_name": "add",
        "update_status": "accepted",
        "outcome": "update_accepted",
        "accepted_at": "2026-01-01T00:00:00.000000Z",
        "command_id": update_id,
        "command_status": "accepted",
        "command_source": "control_plane",
        "target_scope": "instance",
        "request_id": "r-1",
        "retained": False,
        "intent_verified": True,
        "wait_for": "accepted",
        "wait_timeout_seconds": None,
        "wait_timed_out": False,
    }


def test_the_worker_gets_a_task_for_the_update_and_for_nothing_else(
    wire: Wire, waiting: Json
) -> None:
    update_id = wire.update("add", input=avro([1])).ok(202)["update_id"]

    task = wire.take()

    assert task["task_kind"] == "workflow"
    assert (task["workflow_wait_kind"], task["open_wait_id"]) == ("update", f"update:{update_id}")
    assert (task["resume_source_kind"], task["resume_source_id"]) == ("workflow_update", update_id)
    assert task["workflow_update_id"] == update_id
    accepted = task["history_events"][-1]
    assert accepted["event_type"] == "UpdateAccepted"
    assert accepted["payload"]["update_id"] == update_id
    assert unavro(accepted["payload"]["arguments"]) == [1]
    wire.complete(task, complete_update(task))
    assert wire.take()["workflow_update_id"] is None


def test_a_caller_who_waits_gets_the_result(wire: Wire, waiting: Json) -> None:
    asking = wire.update_later("add", input=avro([1]), wait_for="completed")
    assert asking.is_waiting
    answer_update(wire, {"total": 1})

    body = asking.answer().ok()

    assert (body["update_status"], body["outcome"]) == ("completed", "update_completed")
    assert body["result"] == {"total": 1}
    assert unavro(body["result_envelope"]) == {"total": 1}
    assert body["closed_at"] == body["applied_at"] == "2026-01-01T00:00:00.000000Z"
    assert (body["wait_for"], body["wait_timed_out"]) == ("completed", False)
    assert wire.server.update_waiters.count == 0


def test_a_result_that_json_cannot_show_comes_in_its_envelope(wire: Wire, waiting: Json) -> None:
    asking = wire.update_later("add", wait_for="completed")
    answer_update(wire, b"\x00\xff")

    body = asking.answer().ok()

    assert body["result"] is None
    assert unavro(body["result_envelope"]) == b"\x00\xff"


def test_an_update_without_a_result_has_none(wire: Wire, waiting: Json) -> None:
    asking = wire.update_later("add", wait_for="completed")
    task = wire.take()
    wire.complete(task, {"type": "complete_update", "update_id": task["workflow_update_id"]})

    body = asking.answer().ok()

    assert (body["result"], body["result_envelope"]) == (None, None)


def test_a_failed_update_tells_its_caller_how(wire: Wire, waiting: Json) -> None:
    asking = wire.update_later("add", wait_for="completed")
    task = wire.take()
    wire.complete(task, fail_update(task, "too late", exception_type="TooLate"))

    body = asking.answer().refused(422, "update_failed")

    assert (body["update_status"], body["outcome"]) == ("failed", "update_failed")
    assert body["failure_message"] == body["message"] == "too late"
    assert body["failure"] == {"type": "TooLate", "message": "too late"}
    assert (body["workflow_id"], body["run_id"]) == ("order-1", waiting["run_id"])
    assert body["update_id"] == task["workflow_update_id"]
    assert body["failure_id"]
    assert wire.describe()["status"] == "waiting"


def test_who_only_asked_for_acceptance_is_not_refused_because_of_the_outcome(
    wire: Wire, waiting: Json
) -> None:
    wire.update("add", request_id="r").ok(202)
    task = wire.take()
    wire.complete(task, fail_update(task))

    body = wire.update("add", request_id="r").ok(200)

    assert (body["update_status"], body["retained"]) == ("failed", True)


def test_patience_has_an_end_and_the_update_has_not(wire: Wire, waiting: Json) -> None:
    body = wire.update("add", wait_for="completed", wait_timeout_seconds=1).ok(202)

    assert (body["update_status"], body["wait_timed_out"]) == ("accepted", True)
    assert body["wait_timeout_seconds"] == 1
    assert answer_update(wire)["workflow_update_id"] == body["update_id"]


def test_plain_arguments_are_encoded_for_the_worker_that_reads_them(wire: Wire) -> None:
    wire.register(sdk_version="durable-workflow-python/0.4.106")
    wire.start(input=[1])
    wire.complete(wire.take(), wait_for_condition())

    wire.update("add", input=[2, "x"]).ok(202)

    arguments = wire.take()["history_events"][-1]["payload"]["arguments"]
    assert arguments == avro([2, "x"], Frame.WRAPPER)


# Which run --------------------------------------------------------------------------------------


def test_an_update_may_name_its_run(wire: Wire, waiting: Json) -> None:
    run_id = waiting["run_id"]
    path = f"/workflows/order-1/runs/{run_id}/update/add"

    body = wire.control("POST", path, {}).ok(202)

    assert (body["run_id"], body["requested_run_id"]) == (run_id, run_id)
    assert body["target_scope"] == "run"


def test_an_older_run_takes_no_update(wire: Wire) -> None:
    wire.register()
    old = wire.run_to(continue_as_new())["run_id"]

    with wire.nothing_changes():
        body = wire.control("POST", f"/workflows/order-1/runs/{old}/update/add", {})
        assert body.refused(409, "historical_run_command_rejected")["target_scope"] == "run"
        wire.control("POST", "/workflows/order-1/runs/none/update/add", {}).refused(
            404, "run_not_found"
        )


def test_nobody_takes_no_update(wire: Wire) -> None:
    with wire.nothing_changes():
        wire.update("add", "nobody").refused(404, "instance_not_found")
        headers = {"X-Namespace": "elsewhere"}
        wire.control("POST", "/workflows/order-1/update/add", {}, headers=headers).refused(
            404, "namespace_not_found"
        )


def test_a_closed_run_takes_no_update(wire: Wire) -> None:
    wire.register()
    run_id = wire.run_to(complete_workflow())["run_id"]

    with wire.nothing_changes():
        body = wire.update("add").refused(409, "update_rejected")
    assert (body["outcome"], body["rejection_reason"]) == ("rejected_not_active", "run_not_active")
    assert (body["terminal_workflow_status"], body["run_id"]) == ("completed", run_id)
    assert body["control_plane"]["operation"] == "update"


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"wait_for": "applied"}, "wait_for"),
        ({"wait_for": 1}, "wait_for"),
        ({"wait_policy": "completed"}, "wait_policy"),
        ({"wait_timeout_seconds": 0}, "wait_timeout_seconds"),
        ({"wait_timeout_seconds": "soon"}, "wait_timeout_seconds"),
        ({"request_id": "x" * 256}, "request_id"),
        ({"input": 7}, "input"),
        ({"input": {"codec": "json", "blob": "x"}}, "input.codec"),
        ({"input": {"codec": "avro", "blob": 7}}, "input.blob"),
    ],
)
def test_what_makes_no_sense_is_refused(
    wire: Wire, waiting: Json, members: Json, field: str
) -> None:
    with wire.nothing_changes():
        wire.update("add", **members).invalid(field)


@pytest.mark.parametrize("name", ["%00", "a%0Ab", "x" * 257])
def test_names_are_checked_before_the_workflow_is_looked_for(wire: Wire, name: str) -> None:
    wire.update(name, "nobody").invalid("update_name")


def test_a_body_that_is_no_json_is_refused(wire: Wire, waiting: Json) -> None:
    headers = {CONTROL_VERSION: "2", "Content-Type": "application/json"}
    path = "/api/workflows/order-1/update/add"
    with wire.nothing_changes():
        wire.call("POST", path, content=b"{", headers=headers).refused(400, "malformed_json")


def test_there_is_an_end_to_waiting_clients(
    wire: Wire, waiting: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.dispatch.update_waiters.UPDATE_WAITERS_MAX", 1)
    first = wire.update_later("add", wait_for="completed")

    with wire.nothing_changes():
        wire.update("add", wait_for="completed").refused(429, "long_poll_capacity_exhausted")
    answer_update(wire)
    first.answer().ok()


# Repeats ----------------------------------------------------------------------------------------


def test_a_repeat_finds_the_first_update_at_every_stage(wire: Wire, waiting: Json) -> None:
    first = wire.update("add", input=avro([1]), request_id="r").ok(202)
    with wire.nothing_changes():
        again = wire.update("add", input=avro([1]), request_id="r").ok(202)
    assert (again["update_id"], again["retained"]) == (first["update_id"], True)

    asking = wire.update_later("add", input=avro([1]), request_id="r", wait_for="completed")
    answer_update(wire, 1)
    assert asking.answer().ok()["result"] == 1

    with wire.nothing_changes():
        late = wire.update("add", input=avro([1]), request_id="r", wait_for="completed").ok()
    assert (late["result"], late["retained"]) == (1, True)
    assert wire.event_types().count("UpdateAccepted") == 1


def test_a_late_repeat_is_answered_from_history(wire: Wire, waiting: Json) -> None:
    """Of old updates the run itself remembers nothing."""
    wire.update("add", request_id="r").ok(202)
    answer_update(wire, "the first")
    failed = wire.update("add", request_id="f").ok(202)
    task = wire.take()
    wire.complete(task, fail_update(task, "the second"))
    for _ in range(limits.ENDED_UPDATES_KEPT):
        wire.update("add").ok(202)
        answer_update(wire)

    def check() -> None:
        body = wire.update("add", request_id="r", wait_for="completed").ok()
        assert (body["result"], body["retained"]) == ("the first", True)
        refused = wire.update("add", request_id="f", wait_for="completed")
        told = refused.refused(422, "update_failed")
        assert (told["failure_message"], told["update_id"]) == ("the second", failed["update_id"])

    check()
    wire.restart()
    check()
    wire.control("POST", "/workflows/order-1/terminate", {}).ok()
    check()


def test_a_request_id_stands_for_one_intent(wire: Wire, waiting: Json) -> None:
    first = wire.update("add", input=avro([1]), request_id="r").ok(202)

    with wire.nothing_changes():
        body = wire.update("add", input=avro([2]), request_id="r").refused(
            409, "request_id_conflict"
        )
        other = wire.update("close", input=avro([1]), request_id="r")
        assert other.refused(409, "request_id_conflict")["conflict"] == ["name"]
    assert (body["request_id"], body["conflict"]) == ("r", ["arguments"])
    assert body["retained_command_id"] == first["command_id"]
    assert body["retained_command_type"] == "update"
    assert body["retained_outcome"] == "update_accepted"


def test_a_signal_and_an_update_may_share_a_request_id(wire: Wire, waiting: Json) -> None:
    wire.signal("go", request_id="r")

    assert wire.update("add", request_id="r").ok(202)["retained"] is False


def test_updates_without_a_request_id_are_all_new(wire: Wire, waiting: Json) -> None:
    first, second = wire.update("add").ok(202), wire.update("add").ok(202)

    assert first["update_id"] != second["update_id"]
    assert (first["request_id"], first["intent_verified"]) == (None, False)


# Waiting ----------------------------------------------------------------------------------------


def test_a_caller_who_leaves_takes_no_room(wire: Wire, waiting: Json) -> None:
    stream = wire.stream()
    stream.send(
        b"POST /api/workflows/order-1/update/add HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 24\r\n"
        + f"{CONTROL_VERSION}: 2\r\n\r\n".encode()
        + b'{"wait_for":"completed"}'
    )
    wire.until(lambda: wire.server.update_waiters.count == 1)

    stream.close()

    wire.until(lambda: wire.server.update_waiters.count == 0)
    answer_update(wire)


def test_a_caller_who_waits_holds_nothing_of_what_it_sent(
    wire: Wire, waiting: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bytes] = []
    updates = next(r for r in wire.server.app.router.routes if "update/{name}" in r.path).handler

    plane: Any = updates.__self__  # type: ignore[attr-defined]  # a bound method
    wait = plane._wait

    async def look(request: Any, *rest: Any) -> Any:
        held.append(request.body)
        return await wait(request, *rest)

    monkeypatch.setattr(plane, "_wait", look)
    asking = wire.update_later("add", input=avro(["x" * 100_000]), wait_for="completed")
    assert held == [b""]
    answer_update(wire)
    asking.answer().ok()


def test_a_caller_is_woken_and_need_not_look(
    wire: Wire, waiting: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UPDATE_RELOOK", 1_000 * limits.SECOND)
    completed = wire.update_later("add", wait_for="completed")
    failed = wire.update_later("add", wait_for="completed")
    abandoned = wire.update_later("add", wait_for="completed")

    answer_update(wire, "done")
    assert completed.answer().ok()["result"] == "done"
    task = wire.take()
    wire.complete(task, fail_update(task))
    failed.answer().refused(422, "update_failed")
    wire.control("POST", "/workflows/order-1/cancel", {}).ok()
    abandoned.answer().refused(422, "update_failed")


def test_a_caller_whose_hint_was_lost_looks_by_itself(
    wire: Wire, waiting: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is when the update ends on another node."""
    monkeypatch.setattr(limits, "UPDATE_RELOOK", 50_000)
    monkeypatch.setattr(wire.server.update_waiters, "changed", lambda run: None)
    asking = wire.update_later("add", wait_for="completed")

    answer_update(wire, "found")

    assert asking.answer().ok()["result"] == "found"


def test_a_stopping_server_says_how_far_it_came_and_the_next_one_goes_on(
    wire: Wire, waiting: Json
) -> None:
    asking = wire.update_later("add", request_id="r", wait_for="completed")
    wire.restart()

    body = asking.answer().ok(202)
    assert (body["update_status"], body["wait_timed_out"]) == ("accepted", True)

    asking = wire.update_later("add", request_id="r", wait_for="completed")
    answer_update(wire, "later")
    assert asking.answer().ok()["result"] == "later"


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_those_who_wait_learn_that_the_run_was_stopped(
    wire: Wire, waiting: Json, verb: str
) -> None:
    accepted = wire.update_later("add", wait_for="completed")
    queued = wire.update_later("add", wait_for="completed", request_id="q")

    wire.control("POST", f"/workflows/order-1/{verb}", {}).ok()

    assert accepted.answer().refused(422, "update_failed")["update_status"] == "failed"
    body = queued.answer().refused(409, "update_rejected")
    assert body["rejection_reason"] == "run_not_active"
    again = wire.update("add", wait_for="completed", request_id="q")
    assert again.refused(409, "update_rejected")["update_id"] == body["update_id"]


def test_those_who_wait_learn_that_the_run_went_on_as_another(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    asking = wire.update_later("add", wait_for="completed")

    wire.complete(task, continue_as_new())

    asking.answer().refused(409, "update_rejected")
    wire.update("add").ok(202)


def test_many_who_wait_are_answered_one_by_one(wire: Wire, waiting: Json) -> None:
    asking = [wire.update_later("add", wait_for="completed") for _ in range(5)]

    for number in range(5):
        answer_update(wire, number)

    assert [each.answer().ok()["result"] for each in asking] == list(range(5))


# Reports ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        {"type": "complete_update", "update_id": "other"},
        {"type": "fail_update", "update_id": "other", "message": "x"},
    ],
)
def test_an_outcome_of_another_update_is_refused(wire: Wire, waiting: Json, command: Json) -> None:
    wire.update("add").ok(202)
    task = wire.take()

    with wire.nothing_changes():
        wire.report(task, "complete", commands=[command]).refused(409, "invalid_commands")
        wire.report(task, "complete", commands=[]).refused(409, "invalid_commands")
    wire.complete(task, complete_update(task))


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ({"type": "complete_update"}, "commands.0.update_id"),
        ({"type": "complete_update", "update_id": "u", "result": 7}, "commands.0.result"),
        ({"type": "fail_update", "update_id": "u"}, "commands.0.message"),
        ({"type": "fail_update", "update_id": "", "message": "m"}, "commands.0.update_id"),
    ],
)
def test_a_malformed_outcome_is_refused(
    wire: Wire, waiting: Json, command: Json, field: str
) -> None:
    wire.update("add").ok(202)
    task = wire.take()

    with wire.nothing_changes():
        wire.report(task, "complete", commands=[command]).invalid(field)


def test_a_late_outcome_is_refused_and_the_next_worker_answers(wire: Wire, waiting: Json) -> None:
    wire.register("w2")
    asking = wire.update_later("add", wait_for="completed")
    late = wire.take()
    wire.advance(seconds=60)
    task = wire.take(worker_id="w2")
    assert task["workflow_update_id"] == late["workflow_update_id"]

    with wire.nothing_changes():
        outcome = [complete_update(late, "late")]
        wire.report(late, "complete", commands=outcome).refused(409, "lease_owner_mismatch")
    wire.complete(task, complete_update(task, "in time"))

    assert asking.answer().ok()["result"] == "in time"
    repeated = wire.report(task, "complete", commands=[complete_update(task, "in time")])
    assert repeated.ok()["outcome"] == "completed"
    assert wire.event_types().count("UpdateCompleted") == 1


# Looking at it ----------------------------------------------------------------------------------


def test_an_open_update_is_described(wire: Wire, waiting: Json) -> None:
    assert wire.describe()["actions"]["can_update"] is True
    assert wire.describe()["open_update_count"] == 0
    update_id = wire.update("add").ok(202)["update_id"]
    wire.update("add").ok(202)

    told = wire.describe()

    assert told["open_update_count"] == 2
    assert told["wait_kind"] == "update"
    assert "update add waits since" in told["wait_reason"]
    assert told["next_cause"] == {
        "kind": "update",
        "text": told["wait_reason"],
        "queue": "q",
        "name": "add",
        "attempt": 0,
        "update_id": update_id,
    }


def test_the_code_goes_on_before_an_update_that_nobody_has_taken(wire: Wire) -> None:
    wire.register()
    wire.run_to(start_timer(60))
    wire.update("add").ok(202)

    wire.advance(seconds=60)

    task = wire.take()
    assert task["workflow_update_id"] is None
    wire.complete(task, schedule_activity())
    task = wire.take()
    assert task["workflow_update_id"]
    wire.complete(task, complete_update(task))
    assert wire.poll()["task"] is None, "blocked on the activity, the code cannot look"

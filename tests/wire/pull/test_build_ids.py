"""Operators roll out builds: drain one, let it go on, promote another."""

from typing import Any

import pytest

from perdure.core import limits
from perdure.engine import rollouts
from tests.support.http import (
    Answer,
    Json,
    Parked,
    Wire,
    avro,
    complete_workflow,
    contract_of,
    schedule_activity,
)
from tests.support.services import execute, offer
from tests.wire.queries.asking import ask
from tests.wire.queries.asking import park as park_query
from tests.wire.queries.asking import report as report_query


def steer(wire: Wire, verb: str, build_id: str | None = "b1", queue: str = "q") -> Answer:
    return wire.control("POST", f"/task-queues/{queue}/build-ids/{verb}", {"build_id": build_id})


def drain(wire: Wire, build_id: str | None = "b1", queue: str = "q") -> Json:
    return steer(wire, "drain", build_id, queue).ok()


def resume(wire: Wire, build_id: str | None = "b1") -> Json:
    return steer(wire, "resume", build_id).ok()


def promote(wire: Wire, build_id: str | None = "b1") -> Json:
    return steer(wire, "promote", build_id).ok()


def builds(wire: Wire, queue: str = "q") -> dict[str | None, Json]:
    body = wire.control("GET", f"/task-queues/{queue}/build-ids").ok()
    return {build["build_id"]: build for build in body["build_ids"]}


def try_poll(wire: Wire, kind: str = "workflow", worker_id: str = "w1", **members: Any) -> Answer:
    body = {"worker_id": worker_id, "task_queue": "q", "timeout_seconds": 0, **members}
    return wire.worker(f"/{kind}-tasks/poll", body)


def parked(wire: Wire, kind: str = "workflow", worker_id: str = "w1") -> Parked:
    body = {"worker_id": worker_id, "task_queue": "q", "timeout_seconds": 60}
    return wire.park(f"/{kind}-tasks/poll", body)


def is_draining(answer: Answer, worker_id: str = "w1", build_id: str | None = "b1") -> None:
    """A refusal in the words of the protocol."""
    body = answer.refused(409, "worker_draining")
    expected = {
        "task": None,
        "poll_status": "draining",
        "worker_id": worker_id,
        "task_queue": "q",
        "registered_build_id": build_id,
        "worker_status": "draining",
        "drain_intent": "draining",
        "protocol_version": "1.20",
    }
    assert expected.items() <= body.items()


# What is wanted -----------------------------------------------------------------------------------


def test_a_build_is_drained_and_goes_on(wire: Wire) -> None:
    wire.register(build_id="b1")

    body = drain(wire)

    assert body["drained_at"] is not None
    assert body == {
        "namespace": "default",
        "task_queue": "q",
        "build_id": "b1",
        "drain_intent": "draining",
        "drained_at": body["drained_at"],
        "promoted_at": None,
        "rolled_back_at": None,
        "new_start_selected": False,
    }
    wire.advance(seconds=5)
    with wire.nothing_changes():
        assert drain(wire) == body, "it drains since it began"
    expected = {**body, "drain_intent": "active", "drained_at": None}
    assert resume(wire) == expected
    with wire.nothing_changes():
        assert resume(wire) == expected


def test_the_build_must_be_named_if_only_as_none(wire: Wire) -> None:
    with wire.nothing_changes():
        for verb in ("drain", "resume", "promote"):
            wire.control("POST", f"/task-queues/q/build-ids/{verb}", {}).invalid("build_id")

    assert drain(wire, None)["build_id"] is None


def test_a_queue_may_have_any_name(wire: Wire) -> None:
    """Also one that nobody has heard of."""
    odd = "a%2Fb%20%C3%BC%1F"

    assert drain(wire, queue=odd)["task_queue"] == "a/b ü\x1f"
    assert list(builds(wire, odd)) == ["b1"]
    assert builds(wire) == {}


def test_what_is_wanted_outlives_workers_and_servers(wire: Wire) -> None:
    token = wire.register(build_id="b1")["registration_token"]
    drained_at = drain(wire)["drained_at"]
    body = {"registration_token": token}
    wire.worker("/registrations/w1/deregister", body).ok()

    wire.restart()

    [build] = builds(wire).values()
    assert build["drained_at"] == drained_at
    assert build["rollout_status"] == "no_workers"
    assert wire.register("w2", build_id="b1")["status"] == "draining"
    is_draining(try_poll(wire, worker_id="w2"), "w2")


def test_there_is_an_end_to_queues_with_wishes(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "ROLLOUT_QUEUES_MAX", 1)
    drain(wire)

    with wire.nothing_changes():
        body = steer(wire, "drain", queue="other").refused(409, "structural_limit_exceeded")

    assert body["limit_kind"] == "rollout_queue_count"
    drain(wire, "b2")


# Workers of a drained build -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["workflow", "activity", "query", "update-validation"])
def test_a_poll_of_a_drained_build_is_refused(wire: Wire, kind: str) -> None:
    wire.register_validator(build_id="b1")
    wire.register_validator("w2", build_id="b2")
    wire.register_validator("w3")
    drain(wire)

    with wire.nothing_changes():
        is_draining(try_poll(wire, kind))
        is_draining(try_poll(wire, kind, poll_request_id="poll-1"))
    assert try_poll(wire, kind, "w2").ok()["poll_status"] == "empty"
    assert try_poll(wire, kind, "w3").ok()["poll_status"] == "empty"

    resume(wire)

    assert try_poll(wire, kind).ok()["poll_status"] == "empty"


def test_workers_without_a_build_are_drained_by_that_name(wire: Wire) -> None:
    wire.register()
    wire.register("w2", build_id="b2")

    drain(wire, None)

    is_draining(try_poll(wire), build_id=None)
    assert try_poll(wire, worker_id="w2").ok()["poll_status"] == "empty"


def test_another_queue_is_not_drained(wire: Wire) -> None:
    wire.register("w2", build_id="b1", task_queue="other")
    drain(wire)

    assert try_poll(wire, worker_id="w2", task_queue="other").ok()["poll_status"] == "empty"


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_a_parked_poll_is_told_at_once_and_gets_nothing(wire: Wire, kind: str) -> None:
    wire.register(build_id="b1")
    wire.register("w2", build_id="b2")
    waiting, other = parked(wire, kind), parked(wire, kind, "w2")

    drain(wire)

    assert wire.server.parked_polls.count == 1
    is_draining(waiting.answer())
    assert other.is_waiting


def test_a_parked_query_poll_is_told_at_once(wire: Wire) -> None:
    wire.register(build_id="b1", capabilities=["query_tasks"])
    waiting = park_query(wire, timeout_seconds=60)

    drain(wire)

    assert wire.server.query_broker.parked_count == 0
    is_draining(waiting.answer())


def test_a_query_that_waits_is_not_given_to_a_drained_build(wire: Wire) -> None:
    wire.register(build_id="b1", capabilities=["query_tasks"])
    wire.start()
    asked = ask(wire)
    drain(wire)

    is_draining(try_poll(wire, "query"))

    resume(wire)
    report_query(wire, wire.take("query"), "complete", result=7).ok()
    assert asked.answer().ok()["result"] == 7


def test_what_was_leased_is_finished_and_nothing_new_is_given(wire: Wire) -> None:
    wire.register(build_id="b1")
    wire.start()
    wire.start("order-2")
    task = wire.take()

    drain(wire)

    assert wire.worker("/heartbeat", {"worker_id": "w1"}).ok()["acknowledged"]
    assert wire.report(task, "heartbeat").ok()["renewed"]
    wire.complete(task, schedule_activity())
    is_draining(try_poll(wire))
    is_draining(try_poll(wire, "activity"))

    resume(wire)

    attempt = wire.take("activity")
    drain(wire)
    assert wire.report_attempt(attempt, "heartbeat").ok()["can_continue"]
    wire.report_attempt(attempt, "complete", result=avro("paid")).ok()
    is_draining(try_poll(wire))


def test_a_task_waits_for_somebody_who_does_not_drain(wire: Wire) -> None:
    wire.register(build_id="b1")
    wire.register("w2")
    parked(wire)
    drain(wire)

    wire.start()

    is_draining(try_poll(wire))
    assert wire.take(worker_id="w2")["workflow_id"] == "order-1"


def test_a_resumed_worker_goes_on_with_what_waits(wire: Wire) -> None:
    wire.register(build_id="b1")
    wire.start()
    drain(wire)
    is_draining(try_poll(wire))

    resume(wire)

    wire.complete(wire.take(), complete_workflow())
    assert wire.describe()["status"] == "completed"


def test_a_repeated_poll_still_gets_what_it_was_given(wire: Wire) -> None:
    """The answer was lost, and the build drained before the worker asked again."""
    wire.register(build_id="b1")
    wire.start()
    task = wire.take(poll_request_id="poll-1")

    drain(wire)

    again = try_poll(wire, poll_request_id="poll-1").ok()["task"]
    assert again["task_id"] == task["task_id"]
    is_draining(try_poll(wire, poll_request_id="poll-2"))


def test_registrations_and_lists_tell_who_drains(wire: Wire) -> None:
    assert wire.register(build_id="b1")["status"] == "active"
    wire.register("w2")
    drain(wire)

    assert wire.register("w3", build_id="b1")["status"] == "draining"
    assert wire.register("w4", build_id="b2")["status"] == "active"
    assert wire.control("GET", "/workers/w1").ok()["status"] == "draining"
    for status, expected in (("draining", ["w1", "w3"]), ("active", ["w2", "w4"])):
        listed = wire.control("GET", f"/workers?status={status}").ok()["workers"]
        assert [worker["worker_id"] for worker in listed] == expected
    assert wire.control("GET", "/workers").ok()["worker_count"] == 4

    resume(wire)

    assert wire.control("GET", "/workers/w3").ok()["status"] == "active"


def test_a_query_is_refused_if_all_who_could_answer_drain(wire: Wire) -> None:
    wire.register(build_id="b1", capabilities=["query_tasks"])
    wire.start()
    assert wire.describe()["actions"]["can_query"]
    drain(wire)

    assert not wire.describe()["actions"]["can_query"]
    ask(wire).answer().refused(409, "query_worker_unavailable")


def test_a_query_that_was_taken_is_answered_by_a_worker_that_drains(wire: Wire) -> None:
    wire.register(build_id="b1", capabilities=["query_tasks"])
    wire.start()
    asked = ask(wire)
    task = wire.take("query")

    drain(wire)

    report_query(wire, task, "complete", result=7).ok()
    assert asked.answer().ok()["result"] == 7


def test_an_update_is_refused_if_all_who_could_validate_it_drain(wire: Wire) -> None:
    wire.register_validator(build_id="b1")
    wire.start()
    wire.complete(wire.take(), {"type": "open_condition_wait"})
    drain(wire)

    wire.update(input=avro([1])).refused(409, "update_validator_worker_unavailable")


def test_a_signal_is_still_compared_with_what_drained_workers_told(wire: Wire) -> None:
    wire.register(build_id="b1", workflow_command_contracts=contract_of("Order", signals={}))
    wire.start()
    drain(wire)

    wire.control("POST", "/workflows/order-1/signal/pay", {}).refused(404, "unknown_signal")


def test_a_worker_that_drains_may_say_goodbye(wire: Wire) -> None:
    token = wire.register(build_id="b1")["registration_token"]
    wire.start()
    wire.take()
    drain(wire)

    body = {"registration_token": token}
    gone = wire.worker("/registrations/w1/deregister", body).ok()

    assert gone["recovered_workflow_task_count"] == 1


# Starting -----------------------------------------------------------------------------------------


def start(wire: Wire, workflow_id: str = "new", **members: Any) -> Answer:
    body = {"workflow_id": workflow_id, "workflow_type": "Order", "task_queue": "q", **members}
    return wire.control("POST", "/workflows", body)


def test_a_start_where_everybody_drains_is_refused(wire: Wire) -> None:
    wire.register(build_id="b1")
    wire.register("w2")
    drain(wire)
    start(wire, "first").ok(201)
    drain(wire, None)

    with wire.nothing_changes():
        body = start(wire).refused(409, "task_queue_draining")

    expected = {
        "workflow_id": "new",
        "workflow_type": "Order",
        "task_queue": "q",
        "outcome": "rejected_task_queue_draining",
        "rejection_reason": "task_queue_draining",
        "command_status": "rejected",
        "command_source": "control_plane",
        "routing_status": "draining",
        "active_worker_count": 0,
        "draining_worker_count": 2,
        "stale_worker_count": 0,
        "draining_build_ids": ["b1", None],
        "drain_intent": "draining",
    }
    assert expected.items() <= body.items()
    assert body["control_plane"]["outcome"] == "rejected_task_queue_draining"


def test_a_start_is_taken_once_somebody_active_is_there(wire: Wire) -> None:
    wire.register(build_id="b1")
    drain(wire)
    start(wire).refused(409, "task_queue_draining")

    wire.register("w2", build_id="b2")

    start(wire).ok(201)
    assert wire.take(worker_id="w2")["workflow_id"] == "new"


def test_an_active_worker_that_is_not_heard_of_does_not_count(wire: Wire) -> None:
    wire.register("w2")
    drain(wire)
    start(wire, "first").ok(201)
    wire.advance(seconds=61)

    body = start(wire).refused(409, "task_queue_draining")

    assert body["stale_worker_count"] == 1


def test_a_start_that_was_taken_is_found_again_while_the_queue_drains(wire: Wire) -> None:
    wire.register(build_id="b1")
    first = wire.start()
    drain(wire)

    again = start(wire, "order-1", duplicate_policy="use-existing").ok()

    assert again["run_id"] == first["run_id"]
    start(wire, "order-1").refused(409, "duplicate_not_allowed")


def test_other_queues_take_starts_as_before(wire: Wire) -> None:
    wire.register(build_id="b1")
    drain(wire)

    start(wire, task_queue="other").ok(201)


def test_an_activity_is_not_started_where_everybody_drains(wire: Wire) -> None:
    wire.register(build_id="b1")
    drain(wire)
    body = {"activity_id": "job", "activity_type": "charge", "task_queue": "q"}

    with wire.nothing_changes():
        told = wire.control("POST", "/activities", body).refused(409, "task_queue_draining")

    assert told["activity_id"] == "job"
    resume(wire)
    wire.control("POST", "/activities", body).ok(201)


# Promoting ----------------------------------------------------------------------------------------


def test_new_starts_go_to_the_promoted_build(wire: Wire) -> None:
    wire.register("w1", build_id="b1")
    wire.register("w2", build_id="b2")
    wire.start("before")

    body = promote(wire, "b2")

    assert body["new_start_selected"] is True
    assert body["promoted_at"] is not None
    assert body["drain_intent"] == "active"
    wire.start("after")
    wire.start("named", build_id="b1")
    found = {name: wire.describe(name)["compatibility"] for name in ("before", "after", "named")}
    assert found == {"before": None, "after": "b2", "named": "b1"}
    taken = [wire.take(worker_id=owner)["workflow_id"] for owner in ("w1", "w1", "w2")]
    assert sorted(taken[:2]) == ["before", "named"]
    assert taken[2] == "after"


def test_a_run_stays_with_its_build_when_another_is_promoted(wire: Wire) -> None:
    wire.register("w1", build_id="b1")
    promote(wire)
    wire.start()
    wire.register("w2", build_id="b2")

    promote(wire, "b2")

    assert wire.poll(worker_id="w2")["poll_status"] == "empty"
    assert wire.take()["compatibility"] == "b1"


def test_the_handler_of_a_service_call_goes_to_the_promoted_build(wire: Wire) -> None:
    wire.register(build_id="b1")
    wire.register("w2", build_id="b2")
    promote(wire, "b2")
    offer(wire)

    execute(wire, wait_for="accepted").ok()

    assert wire.poll()["poll_status"] == "empty"
    assert wire.take(worker_id="w2")["compatibility"] == "b2"


def test_promoting_again_changes_nothing_and_another_takes_its_place(wire: Wire) -> None:
    wire.register("w1", build_id="b1")
    wire.register("w2")
    first = promote(wire)
    wire.advance(seconds=5)

    with wire.nothing_changes():
        assert promote(wire) == first
    promote(wire, None)

    found = builds(wire)
    assert (found["b1"]["new_start_selected"], found["b1"]["promoted_at"]) == (False, None)
    assert found[None]["new_start_selected"] is True
    wire.start()
    assert wire.describe()["compatibility"] is None


def test_a_promoted_build_that_drains_is_left_out_until_it_goes_on(wire: Wire) -> None:
    wire.register("w1", build_id="b1")
    wire.register("w2", build_id="b2")
    promote(wire)
    drain(wire)
    wire.start("meanwhile")

    resume(wire)

    wire.start("later")
    assert wire.describe("meanwhile")["compatibility"] is None
    assert wire.describe("later")["compatibility"] == "b1"


def test_a_promotion_outlives_the_server(wire: Wire) -> None:
    wire.register(build_id="b1")
    promote(wire)

    wire.restart()

    wire.start()
    assert wire.describe()["compatibility"] == "b1"


def test_a_build_that_nobody_has_is_not_promoted(wire: Wire) -> None:
    wire.register("w1", build_id="b1")

    with wire.nothing_changes():
        body = steer(wire, "promote", "b2").refused(409, "unknown_deployment")

    reasons = [each["reason"] for each in body["blockages"]]
    assert reasons == ["unknown_deployment", "missing_worker_heartbeat"]
    assert body["rejection_reason"] == "unknown_deployment"
    assert body["outcome"] == "rejected_unknown_deployment"
    assert body["expected_resolution"]
    drain(wire)
    steer(wire, "promote").refused(409, "fleet_is_draining")
    resume(wire)
    wire.advance(seconds=61)
    steer(wire, "promote").refused(409, "no_compatible_workers")
    wire.register("w2")
    steer(wire, "promote").refused(409, "missing_worker_heartbeat")


# Listing ------------------------------------------------------------------------------------------


def test_builds_are_listed_with_their_workers_counted(wire: Wire) -> None:
    wire.register("old", sdk_version=None)
    wire.advance(seconds=61)
    wire.register("w1", build_id="b1", workflow_definition_fingerprints={"Order": "f1"})
    wire.register("w2", build_id="b1", workflow_definition_fingerprints={"Order": "f2"})
    wire.register("w3", build_id="b2", runtime="go")
    promote(wire)
    drain(wire, "b2")
    drain(wire, "b3")

    body = wire.control("GET", "/task-queues/q/build-ids").ok()

    assert (body["namespace"], body["task_queue"]) == ("default", "q")
    assert body["stale_after_seconds"] == 60
    assert (body["build_id_count"], body["is_truncated"]) == (4, False)
    shown = ("build_id", "rollout_status", "drain_intent", "new_start_selected")
    assert [tuple(build[name] for name in shown) for build in body["build_ids"]] == [
        ("b1", "active", "active", True),
        ("b2", "draining", "draining", False),
        (None, "stale_only", "active", False),
        ("b3", "no_workers", "draining", False),
    ]
    counts = ("active", "draining", "stale", "total")
    assert [
        tuple(build[f"{name}_worker_count"] for name in counts) for build in body["build_ids"]
    ] == [(2, 0, 0, 2), (0, 1, 0, 1), (0, 0, 1, 1), (0, 0, 0, 0)]
    first, second, third, fourth = body["build_ids"]
    assert first["runtimes"] == ["python"]
    assert first["sdk_versions"] == ["durable-workflow-python/2.12.0"]
    assert first["workflow_definition_fingerprint_count"] == 2
    assert first["workflow_definition_fingerprint_conflicts"] == [
        {"workflow_type": "Order", "fingerprint_count": 2}
    ]
    assert second["runtimes"] == ["go"]
    assert third["sdk_versions"] == []
    assert third["last_heartbeat_at"] == third["first_seen_at"] < first["first_seen_at"]
    assert fourth["last_heartbeat_at"] is fourth["first_seen_at"] is None


def test_a_worker_that_said_goodbye_is_not_counted(wire: Wire) -> None:
    wire.register(build_id="b1")
    wire.control("DELETE", "/workers/w1").ok()

    assert builds(wire) == {}


def test_a_list_of_builds_ends_somewhere_and_says_so(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BUILD_IDS_LISTED_MAX", 1)
    drain(wire, "b2")
    wire.register(build_id="b1")

    body = wire.control("GET", "/task-queues/q/build-ids").ok()

    assert [build["build_id"] for build in body["build_ids"]] == ["b1"]
    assert (body["build_id_count"], body["is_truncated"]) == (2, True)

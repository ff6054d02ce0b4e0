"""Polls: who may, what they get, and what a poll that nobody waits for must not take."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure.core.limits import SECOND
from perdure.dispatch.polls import Poll, PollAnswer, Polling, PollStatus
from perdure.store.interface import Changes
from tests.support.http import (
    WORKER_VERSION,
    Json,
    Stream,
    Wire,
    avro,
    complete_workflow,
    fail_workflow,
    schedule_activity,
    start_child,
    start_timer,
    unavro,
    wait_for_condition,
    wait_for_signal,
)

KINDS = ["workflow", "activity"]


def polled(**members: Any) -> Json:
    return {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0, **members}


def make_work(wire: Wire, kind: str) -> None:
    """A task of a kind, ready for whoever polls."""
    wire.register("maker", supported_activity_types=[])
    wire.start()
    if kind == "activity":
        wire.complete(wire.take(worker_id="maker"), schedule_activity())


# Who may ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_may_not_poll(shared_wire: Wire, kind: str) -> None:
    with shared_wire.nothing_changes():
        body = shared_wire.worker(f"/{kind}-tasks/poll", polled(worker_id="stranger"))
        assert body.refused(412, "worker_not_registered")["worker_id"] == "stranger"


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_polls_the_queue_and_the_build_that_it_registered(wire: Wire, kind: str) -> None:
    wire.register(build_id="b1")
    path = f"/{kind}-tasks/poll"
    with wire.nothing_changes():
        queue = wire.worker(path, polled(task_queue="other")).refused(409, "task_queue_mismatch")
        build = wire.worker(path, polled(build_id="b2")).refused(409, "build_id_mismatch")
    assert (queue["registered_task_queue"], queue["requested_task_queue"]) == ("q", "other")
    assert (build["registered_build_id"], build["requested_build_id"]) == ("b1", "b2")
    wire.worker(path, polled(build_id="b1")).ok()
    wire.worker(path, polled()).ok()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", None),
        ("worker_id", ""),
        ("task_queue", None),
        ("task_queue", "x" * 256),
        ("poll_request_id", "x" * 256),
        ("timeout_seconds", -1),
        ("timeout_seconds", "soon"),
        ("timeout_seconds", 10**30),
        ("build_id", "x" * 256),
        ("history_page_size", 0),
        ("history_page_size", 1001),
        ("accept_history_encoding", "x" * 65),
    ],
)
def test_a_poll_that_makes_no_sense_is_refused(
    shared_wire: Wire, kind: str, field: str, value: Any
) -> None:
    with shared_wire.nothing_changes():
        shared_wire.worker(f"/{kind}-tasks/poll", polled(**{field: value})).invalid(field)


# What they get ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_poll_without_time_answers_at_once_that_there_is_nothing(wire: Wire, kind: str) -> None:
    wire.register()
    answer = wire.poll(kind)
    assert (answer["task"], answer["poll_status"]) == (None, "empty")
    assert answer["server_time"] == "2026-01-01T00:00:00.000000Z"
    assert answer["protocol_version"] == "1.20"


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_a_poll_waits_for_as_long_as_it_says_up_to_a_minute(
    wire: Wire, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    async def poll(self: Polling, poll: Poll, watch: object) -> PollAnswer:
        waited.append(poll.timeout // SECOND)
        return PollAnswer(PollStatus.EMPTY)

    monkeypatch.setattr(Polling, "poll", poll)
    for seconds in (0, 1, 60, 61, 100_000, None):
        assert wire.poll(kind, timeout_seconds=seconds)["poll_status"] == "empty"

    assert waited == [0, 1, 60, 60, 60, 10], "who does not say waits as long as the server says"


def test_a_poll_for_a_kind_that_the_worker_cannot_do_says_so(wire: Wire) -> None:
    wire.register(supported_workflow_types=[], supported_activity_types=[])
    make_work(wire, "workflow")
    assert wire.poll("workflow")["poll_status"] == "no_workflow_capability"
    assert wire.poll("activity")["poll_status"] == "no_activity_capability"


def test_a_workflow_task_has_everything_that_a_worker_needs(wire: Wire) -> None:
    wire.register()
    started = wire.start(input=avro([1]))

    answer = wire.poll(timeout_seconds=10)

    assert answer["poll_status"] == "leased"
    task = answer["task"]
    expected = {
        "task_kind": "workflow",
        "workflow_id": "order-1",
        "run_id": started["run_id"],
        "namespace": "default",
        "workflow_type": "Order",
        "workflow_task_attempt": 1,
        "payload_codec": "avro",
        "run_status": "pending",
        "task_queue": "q",
        "lease_owner": "w1",
        "lease_expires_at": "2026-01-01T00:01:00.000000Z",
        "last_history_sequence": 2,
        "total_history_events": 2,
        "next_history_page_token": None,
        "cancel_requested": False,
        "workflow_update_id": None,
        "workflow_wait_kind": None,
        "resume_source_kind": None,
        "open_wait_id": None,
    }
    assert expected.items() <= task.items()
    assert unavro(task["arguments"]) == [1]
    assert [event["event_type"] for event in task["history_events"]] == [
        "StartAccepted",
        "WorkflowStarted",
    ]
    assert "history_events_compressed" not in task
    assert answer["lease"] == {"owner": "w1", "expires_at": task["lease_expires_at"]}


def test_an_activity_task_has_everything_that_a_worker_needs(wire: Wire) -> None:
    wire.register()
    started = wire.run_to(
        schedule_activity(
            arguments=avro(["card"]),
            retry_policy={
                "max_attempts": 3,
                "backoff_seconds": [1, 2],
                "non_retryable_error_types": ["Declined"],
            },
            schedule_to_start_timeout=60,
            start_to_close_timeout=30,
            schedule_to_close_timeout=100,
            heartbeat_timeout=10,
        ),
        run_timeout_seconds=1000,
    )

    answer = wire.poll("activity", timeout_seconds=10)

    task = answer["task"]
    expected = {
        "workflow_id": "order-1",
        "run_id": started["run_id"],
        "namespace": "default",
        "activity_type": "charge",
        "attempt_number": 1,
        "payload_codec": "avro",
        "task_queue": "q",
        "lease_owner": "w1",
        "lease_expires_at": "2026-01-01T00:05:00.000000Z",
        "retry_policy": {
            "snapshot_version": 1,
            "max_attempts": 3,
            "backoff_seconds": [1, 2],
            "non_retryable_error_types": ["Declined"],
            "schedule_to_start_timeout": 60,
            "start_to_close_timeout": 30,
            "schedule_to_close_timeout": 100,
            "heartbeat_timeout": 10,
        },
        "deadlines": {
            "schedule_to_close": "2026-01-01T00:01:40.000000Z",
            "start_to_close": "2026-01-01T00:00:30.000000Z",
            "heartbeat": "2026-01-01T00:00:10.000000Z",
            "run": "2026-01-01T00:16:40.000000Z",
        },
    }
    assert expected.items() <= task.items()
    assert unavro(task["arguments"]) == ["card"]
    assert task["activity_attempt_id"].startswith(task["activity_execution_id"].upper())
    assert answer["lease"] == {"owner": "w1", "expires_at": task["lease_expires_at"]}
    assert answer["server_capabilities"]["activity_lease_renewal"] is True
    assert answer["server_time"] == "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("kind", KINDS)
def test_a_parked_poll_is_given_work_as_soon_as_there_is_some(wire: Wire, kind: str) -> None:
    wire.register()
    poll = wire.park(f"/{kind}-tasks/poll", polled(timeout_seconds=60))
    assert poll.is_waiting

    make_work(wire, kind)

    answer = poll.answer().ok()
    assert answer["poll_status"] == "leased"
    assert answer["task"]["workflow_id"] == "order-1"


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_goes_to_one_worker_only(wire: Wire, kind: str) -> None:
    wire.register()
    wire.register("w2")
    make_work(wire, kind)

    wire.take(kind)

    assert wire.poll(kind, "w2")["poll_status"] == "empty"
    assert wire.poll(kind)["poll_status"] == "empty"


def test_workers_get_only_types_that_they_registered(wire: Wire) -> None:
    wire.register("orders", supported_workflow_types=["Order"])
    wire.register("children", supported_workflow_types=["Child"])
    wire.start("a", workflow_type="Order")
    wire.start("b", workflow_type="Child")

    assert wire.take(worker_id="children")["workflow_id"] == "b"
    assert wire.poll(worker_id="children")["poll_status"] == "empty"
    assert wire.take(worker_id="orders")["workflow_id"] == "a"


def test_workers_get_only_tasks_of_their_queue(wire: Wire) -> None:
    wire.register()
    wire.start(task_queue="elsewhere")
    assert wire.poll()["poll_status"] == "empty"


def test_a_run_of_one_build_waits_for_a_worker_of_that_build(wire: Wire) -> None:
    wire.register("plain")
    wire.register("old", build_id="b1")
    wire.register("new", build_id="b2")
    wire.start("pinned", build_id="b2")

    for worker_id in ("plain", "old"):
        assert wire.poll(worker_id=worker_id)["poll_status"] == "empty"
    task = wire.take(worker_id="new")
    assert (task["workflow_id"], task["compatibility"]) == ("pinned", "b2")
    wire.start("free")
    assert wire.take(worker_id="old")["workflow_id"] == "free"


def test_tasks_come_by_priority_then_by_age(wire: Wire) -> None:
    wire.start("usual-1")
    wire.advance(seconds=1)
    wire.start("usual-2")
    wire.advance(seconds=1)
    wire.start("urgent", priority=0)
    wire.start("idle", priority=9)
    wire.register()

    taken = [wire.take()["workflow_id"] for _ in range(4)]

    assert taken == ["urgent", "usual-1", "usual-2", "idle"]


def test_the_longest_waiting_poll_is_served_first(wire: Wire) -> None:
    for worker_id in ("w1", "w2"):
        wire.register(worker_id)
    first = wire.park("/workflow-tasks/poll", polled(timeout_seconds=60))
    second = wire.park("/workflow-tasks/poll", polled(worker_id="w2", timeout_seconds=60))

    wire.start("a")
    wire.start("b")

    assert first.answer().ok()["task"]["workflow_id"] == "a"
    assert second.answer().ok()["task"]["workflow_id"] == "b"


# Why a run was woken ------------------------------------------------------------------------------


def by_activity(wire: Wire) -> Json:
    wire.run_to(schedule_activity())
    attempt = wire.take("activity")
    wire.report_attempt(attempt, "complete").ok()
    execution = attempt["activity_execution_id"]
    return {
        "workflow_wait_kind": "activity",
        "open_wait_id": f"activity:{execution}",
        "resume_source_kind": "activity_execution",
        "resume_source_id": execution,
        "activity_execution_id": execution,
        "activity_attempt_id": attempt["activity_attempt_id"],
        "activity_type": "charge",
        "workflow_sequence": 1,
        "workflow_event_type": "ActivityCompleted",
    }


def by_failed_activity(wire: Wire) -> Json:
    wire.run_to(schedule_activity())
    attempt = wire.take("activity")
    wire.report_attempt(attempt, "fail", failure={"message": "no"}).ok()
    return {"workflow_wait_kind": "activity", "workflow_event_type": "ActivityFailed"}


def by_late_activity(wire: Wire) -> Json:
    wire.run_to(schedule_activity(start_to_close_timeout=5))
    wire.take("activity")
    wire.advance(seconds=5)
    return {"workflow_wait_kind": "activity", "workflow_event_type": "ActivityTimedOut"}


def by_timer(wire: Wire) -> Json:
    wire.run_to(start_timer(5))
    wire.advance(seconds=5)
    timer_id = wire.events()[-1]["payload"]["timer_id"]
    return {
        "workflow_wait_kind": "timer",
        "open_wait_id": f"timer:{timer_id}",
        "resume_source_kind": "timer",
        "resume_source_id": timer_id,
        "timer_id": timer_id,
        "workflow_sequence": 1,
        "workflow_event_type": "TimerFired",
    }


def by_child(wire: Wire, ending: Json | None = None) -> Json:
    wire.run_to(start_child())
    child = wire.take()
    assert child["workflow_type"] == "Child"
    wire.complete(child, ending or complete_workflow())
    call_id = wire.events()[-1]["payload"]["child_call_id"]
    return {
        "workflow_wait_kind": "child",
        "open_wait_id": f"child:{call_id}",
        "resume_source_kind": "child_workflow_run",
        "resume_source_id": child["run_id"],
        "child_call_id": call_id,
        "child_workflow_run_id": child["run_id"],
        "workflow_sequence": 1,
        "workflow_event_type": "ChildRunFailed" if ending else "ChildRunCompleted",
    }


def by_failed_child(wire: Wire) -> Json:
    return by_child(wire, fail_workflow())


def by_signal_to_a_condition(wire: Wire) -> Json:
    wire.run_to(wait_for_condition())
    command_id = wire.signal("pay", input=avro([5]))["command_id"]
    signal_id = wire.events()[-1]["payload"]["signal_id"]
    return {
        "workflow_wait_kind": "signal",
        "open_wait_id": f"signal-application:{signal_id}",
        "resume_source_kind": "workflow_signal",
        "resume_source_id": signal_id,
        "workflow_signal_id": signal_id,
        "signal_name": "pay",
        "signal_arguments": avro([5]),
        "workflow_command_id": command_id,
    }


def by_awaited_signal(wire: Wire) -> Json:
    wire.run_to(wait_for_signal("pay"))
    opened = wire.events()[-1]["payload"]
    wire.signal("pay", input=avro([7]))
    return {
        "workflow_wait_kind": "signal",
        "resume_source_kind": "workflow_signal",
        "signal_name": "pay",
        "signal_arguments": avro([7]),
        "signal_wait_id": opened["signal_wait_id"],
    }


def by_signal_without_arguments(wire: Wire) -> Json:
    wire.run_to(wait_for_condition())
    wire.signal("pay")
    return {"workflow_wait_kind": "signal", "signal_name": "pay", "signal_arguments": None}


def by_signal_before_its_wait(wire: Wire) -> Json:
    """Of a runtime whose code waits for signals by name: it came long before."""
    wire.register(runtime="php")
    wire.run_to(start_timer(1))
    wire.signal("pay", input=avro([9]))
    wire.advance(seconds=1)
    wire.complete(wire.take(), wait_for_signal("pay"))
    return {"workflow_wait_kind": "signal", "signal_arguments": avro([9])}


def by_condition_timeout(wire: Wire) -> Json:
    waits = {"timeout_seconds": 5, "condition_definition_fingerprint": "sha256:1"}
    wire.run_to(wait_for_condition("paid", **waits))
    opened, timer = (event["payload"] for event in wire.events()[-2:])
    wire.advance(seconds=5)
    return {
        "workflow_wait_kind": "condition",
        "open_wait_id": opened["condition_wait_id"],
        "resume_source_kind": "timer",
        "resume_source_id": timer["timer_id"],
        "timer_id": timer["timer_id"],
        "condition_wait_id": opened["condition_wait_id"],
        "condition_key": "paid",
        "condition_definition_fingerprint": "sha256:1",
        "workflow_event_type": "ConditionWaitTimedOut",
    }


def by_signal_timeout(wire: Wire) -> Json:
    wire.run_to(wait_for_signal("pay", timeout_seconds=5))
    opened, timer = (event["payload"] for event in wire.events()[-2:])
    wire.advance(seconds=5)
    return {
        "workflow_wait_kind": "signal",
        "open_wait_id": opened["signal_wait_id"],
        "resume_source_kind": "timer",
        "resume_source_id": timer["timer_id"],
        "timer_id": timer["timer_id"],
        "signal_wait_id": opened["signal_wait_id"],
        "signal_name": "pay",
    }


@pytest.mark.parametrize(
    "story",
    [
        by_activity,
        by_failed_activity,
        by_late_activity,
        by_timer,
        by_child,
        by_failed_child,
        by_signal_to_a_condition,
        by_awaited_signal,
        by_signal_without_arguments,
        by_signal_before_its_wait,
        by_condition_timeout,
        by_signal_timeout,
    ],
)
def test_a_task_tells_what_woke_its_run(wire: Wire, story: Callable[[Wire], Json]) -> None:
    wire.register()
    expected = story(wire)

    task = wire.take()

    assert task["workflow_id"] == "order-1"
    assert {name: task[name] for name in expected} == expected
    context = (
        "workflow_wait_kind open_wait_id resume_source_kind resume_source_id workflow_update_id "
        "workflow_signal_id signal_name signal_wait_id workflow_command_id activity_execution_id "
        "activity_attempt_id activity_type child_call_id child_workflow_run_id workflow_sequence "
        "workflow_event_type timer_id condition_wait_id condition_key signal_arguments "
        "condition_definition_fingerprint"
    )
    assert set(context.split()) <= set(task), "absent members are null, not missing"


# Repeated polls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_poll_gets_the_lease_that_it_was_given(wire: Wire, kind: str) -> None:
    wire.register()
    make_work(wire, kind)
    first = wire.take(kind, poll_request_id="p1")

    with wire.nothing_changes():
        again = wire.poll(kind, poll_request_id="p1")
        other = wire.poll(kind, poll_request_id="p2")

    assert again["task"] == first
    assert again["lease"] == {"owner": "w1", "expires_at": first["lease_expires_at"]}
    assert other["poll_status"] == "empty"


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_poll_gets_its_lease_even_after_a_restart(wire: Wire, kind: str) -> None:
    wire.register()
    make_work(wire, kind)
    first = wire.take(kind, poll_request_id="p1")
    wire.restart()

    assert wire.poll(kind, poll_request_id="p2")["poll_status"] == "empty"
    body = polled(timeout_seconds=60, poll_request_id="p1")
    repeated = wire.park(f"/{kind}-tasks/poll", body)
    wire.look_around()
    assert repeated.answer().ok()["task"] == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_poll_repeated_while_the_first_is_parked_gets_the_same_lease(
    wire: Wire, kind: str
) -> None:
    wire.register()
    path, body = f"/{kind}-tasks/poll", polled(timeout_seconds=60, poll_request_id="p1")
    first = wire.park(path, body)
    again = wire.call_later("POST", f"/api/worker{path}", body, headers={WORKER_VERSION: "1.20"})

    make_work(wire, kind)

    assert first.answer().ok()["task"] == again.answer().ok()["task"]


def test_a_repeated_poll_gets_new_work_once_its_task_is_done(wire: Wire) -> None:
    wire.register()
    wire.start("a")
    wire.complete(wire.take(poll_request_id="p1"), complete_workflow())

    assert wire.poll(poll_request_id="p1")["poll_status"] == "empty"
    wire.start("b")
    assert wire.take(poll_request_id="p1")["workflow_id"] == "b"


def test_a_repeated_poll_does_not_get_the_next_task_of_its_run_from_another_poll(
    wire: Wire,
) -> None:
    wire.register()
    wire.start()
    wire.complete(wire.take(poll_request_id="p1"), start_timer(1))
    wire.advance(seconds=1)
    second = wire.take(poll_request_id="p2")

    assert wire.poll(poll_request_id="p1")["poll_status"] == "empty"

    assert wire.take(poll_request_id="p2")["task_id"] == second["task_id"]


def test_a_repeated_activity_poll_gets_new_work_once_its_attempt_is_done(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity(), schedule_activity("ship"))
    first = wire.take("activity", poll_request_id="p1")
    wire.report_attempt(first, "complete").ok()

    second = wire.take("activity", poll_request_id="p1")

    assert second["activity_type"] == "ship"


def test_a_repeated_poll_does_not_get_a_lease_that_has_ended(wire: Wire) -> None:
    wire.register()
    wire.start()
    first = wire.take(poll_request_id="p1")
    wire.advance(seconds=61)

    again = wire.take(poll_request_id="p1")

    assert again["task_id"] == first["task_id"]
    assert again["workflow_task_attempt"] == 2


def test_the_same_poll_id_of_another_worker_is_another_poll(wire: Wire) -> None:
    wire.register()
    wire.register("w2")
    wire.start()
    wire.take(poll_request_id="p1")
    assert wire.poll(worker_id="w2", poll_request_id="p1")["poll_status"] == "empty"


# Abandoned polls ----------------------------------------------------------------------------------


def a_bare_poll(wire: Wire, kind: str) -> Stream:
    """A parked poll on a connection that can be cut."""
    stream = wire.stream()
    body = json.dumps(polled(timeout_seconds=60)).encode()
    stream.send(
        f"POST /api/worker/{kind}-tasks/poll HTTP/1.1\r\nHost: localhost\r\n"
        f"{WORKER_VERSION}: 1.20\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    wire.until(lambda: wire.server.parked_polls.count == 1)
    return stream


@pytest.mark.parametrize("kind", KINDS)
def test_a_poll_whose_client_has_gone_leases_nothing(wire: Wire, kind: str) -> None:
    wire.register()
    wire.register("w2")
    abandoned = a_bare_poll(wire, kind)

    abandoned.close()
    wire.until(lambda: wire.server.parked_polls.count == 0)
    make_work(wire, kind)

    task = wire.take(kind, "w2")
    assert task.get("workflow_task_attempt", task.get("attempt_number")) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_goes_while_its_lease_is_being_written_keeps_nobody_waiting(
    wire: Wire, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.register()
    wire.register("w2")
    wire.register("maker", supported_activity_types=[])
    if kind == "activity":
        wire.start()
    task = wire.take(worker_id="maker") if kind == "activity" else None
    leaving = a_bare_poll(wire, kind)
    commit, before = wire.server.store.commit, len(wire.connections.open)

    async def commit_while_the_client_goes(changes: Changes) -> None:
        leaving.close()
        await wire.loop.turn_until(lambda: len(wire.connections.open) < before)
        monkeypatch.undo()
        await commit(changes)

    monkeypatch.setattr(wire.server.store, "commit", commit_while_the_client_goes)
    if task is None:
        wire.start()
    else:
        wire.complete(task, schedule_activity())

    taken = wire.take(kind, "w2")
    assert taken["workflow_id"] == "order-1"
    assert taken["lease_owner"] == "w2"
    assert kind == "workflow" or taken["attempt_number"] == 1, "nobody saw the first lease"


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_said_goodbye_gets_no_more_work(wire: Wire, kind: str) -> None:
    """Its parked poll must not take a lease that nobody will work on."""
    wire.register()
    wire.register("w2")
    wire.park(f"/{kind}-tasks/poll", polled(timeout_seconds=60))

    wire.worker("/registrations/w1", method="DELETE").ok()
    make_work(wire, kind)

    assert wire.poll(kind, "w2")["poll_status"] == "leased"


def test_a_poll_of_an_earlier_registration_gets_nothing_that_the_new_one_cannot_do(
    wire: Wire,
) -> None:
    wire.register()
    wire.register("w2")
    wire.park("/workflow-tasks/poll", polled(timeout_seconds=60))

    wire.register(supported_workflow_types=["Other"])
    wire.start()

    assert wire.poll(worker_id="w2")["poll_status"] == "leased"


def test_a_poll_that_comes_while_the_server_drains_is_not_kept_waiting(wire: Wire) -> None:
    wire.register()
    wire.server.drain()
    poll = wire.park("/workflow-tasks/poll", polled(timeout_seconds=60))
    assert not poll.is_waiting


def test_draining_answers_every_parked_poll(wire: Wire) -> None:
    wire.register()
    polls = [wire.park(f"/{kind}-tasks/poll", polled(timeout_seconds=60)) for kind in KINDS]

    wire.server.drain()

    for poll in polls:
        answer = poll.answer().ok()
        assert (answer["task"], answer["poll_status"]) == (None, "empty")


def test_more_parked_polls_than_the_bound_are_429(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire.server.parked_polls, "parked_max", 1)
    wire.register()
    wire.park("/workflow-tasks/poll", polled(timeout_seconds=60))

    with wire.nothing_changes():
        answer = wire.worker("/activity-tasks/poll", polled(timeout_seconds=60))

    answer.refused(429, "long_poll_capacity_exhausted")
    wire.server.drain()

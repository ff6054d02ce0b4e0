"""Every open run says what moves it next, in words and as a typed member."""

from collections.abc import Callable

import pytest

from tests.support.http import (
    Json,
    Wire,
    complete_workflow,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
    wait_for_signal,
)


def ready(wire: Wire) -> Json:
    wire.start()
    return {"kind": "workflow_task_ready", "queue": "q", "name": "Order", "attempt": 0}


def leased(wire: Wire) -> Json:
    wire.start()
    wire.take()
    until = "2026-01-01T00:01:00.000000Z"
    return {
        "kind": "workflow_task_leased",
        "queue": "q",
        "owner": "w1",
        "attempt": 1,
        "until": until,
    }


def delayed(wire: Wire) -> Json:
    wire.start(start_delay_seconds=90)
    return {"kind": "delayed_start", "attempt": 0, "until": "2026-01-01T00:01:30.000000Z"}


def backing_off(wire: Wire) -> Json:
    wire.start()
    wire.report(wire.take(), "fail", failure={"type": "Bug", "message": "no such step"}).ok()
    return {
        "kind": "backoff",
        "attempt": 1,
        "until": "2026-01-01T00:00:01.000000Z",
        "last_failure": "Bug: no such step",
    }


def activity_ready(wire: Wire) -> Json:
    wire.run_to(schedule_activity())
    return {"kind": "activity", "name": "charge", "queue": "q", "sequence": 1, "attempt": 0}


def activity_running(wire: Wire) -> Json:
    wire.run_to(schedule_activity())
    wire.take("activity")
    return {
        "kind": "activity",
        "name": "charge",
        "queue": "q",
        "sequence": 1,
        "attempt": 1,
        "owner": "w1",
        "until": "2026-01-01T00:05:00.000000Z",
    }


def activity_retried(wire: Wire) -> Json:
    wire.run_to(schedule_activity(retry_policy={"max_attempts": 3, "backoff_seconds": [30]}))
    wire.report_attempt(wire.take("activity"), "fail", failure={"message": "declined"}).ok()
    return {
        "kind": "activity",
        "name": "charge",
        "queue": "q",
        "sequence": 1,
        "attempt": 1,
        "until": "2026-01-01T00:00:30.000000Z",
        "last_failure": "declined",
    }


def activity_ended_before_its_group(wire: Wire) -> Json:
    wire.run_to(schedule_activity(), schedule_activity("ship"))
    wire.report_attempt(wire.take("activity"), "complete").ok()
    return {"kind": "activity", "name": "ship", "queue": "q", "sequence": 2, "attempt": 0}


def sleeping(wire: Wire) -> Json:
    wire.run_to(start_timer(45))
    return {"kind": "timer", "sequence": 1, "until": "2026-01-01T00:00:45.000000Z"}


def waiting_for_a_child(wire: Wire) -> Json:
    wire.run_to(start_child())
    child = wire.control("GET", "/workflows?workflow_type=Child").ok()["workflows"][0]
    return {"kind": "child", "name": "Child", "sequence": 1, "run_id": child["run_id"]}


def waiting_for_a_condition(wire: Wire) -> Json:
    wire.run_to(wait_for_condition("paid"))
    return {"kind": "condition", "name": "paid", "sequence": 1}


def waiting_for_a_condition_with_an_end(wire: Wire) -> Json:
    wire.run_to(wait_for_condition("paid", timeout_seconds=10))
    until = "2026-01-01T00:00:10.000000Z"
    return {"kind": "condition", "name": "paid", "sequence": 1, "until": until}


def waiting_for_a_signal(wire: Wire) -> Json:
    wire.run_to(wait_for_signal("pay", timeout_seconds=10))
    until = "2026-01-01T00:00:10.000000Z"
    return {"kind": "signal", "name": "pay", "sequence": 1, "until": until}


def waiting_for_anything(wire: Wire) -> Json:
    wire.run_to({"type": "record_side_effect", "result": "blob"})
    return {"kind": "signal"}


@pytest.mark.parametrize(
    ("story", "wait_kind", "words"),
    [
        (ready, "workflow-task", "no worker of queue q that knows Order has taken it"),
        (leased, "workflow-task", "worker w1 works on it until 2026-01-01T00:01:00"),
        (delayed, "workflow-task", "next try at 2026-01-01T00:01:30"),
        (backing_off, "workflow-task", "its last workflow task failed (Bug: no such step)"),
        (activity_ready, "activity", "activity charge is ready since"),
        (activity_running, "activity", "worker w1 runs activity charge, attempt 1"),
        (activity_retried, "activity", "activity charge failed; attempt 2 at"),
        (activity_ended_before_its_group, "activity", "activity ship is ready since"),
        (sleeping, "timer", "sleeps until 2026-01-01T00:00:45"),
        (waiting_for_a_child, "child", "waits for child Child"),
        (waiting_for_a_condition, "condition", "waits for condition paid"),
        (waiting_for_a_condition_with_an_end, "condition", "until 2026-01-01T00:00:10"),
        (waiting_for_a_signal, "signal", "waits for signal pay until 2026-01-01T00:00:10"),
        (waiting_for_anything, "signal", "waits for a signal"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_an_open_run_names_its_next_cause(
    wire: Wire, story: Callable[[Wire], Json], wait_kind: str, words: str
) -> None:
    wire.register()
    expected = story(wire)

    told = wire.describe()

    cause = told["next_cause"]
    text = cause.pop("text")
    assert cause == expected
    assert words in text
    assert (told["wait_kind"], told["wait_reason"]) == (wait_kind, text)
    assert told["control_plane"]["wait_kind"] == wait_kind


def test_a_closed_run_waits_for_nothing(wire: Wire) -> None:
    wire.register()
    wire.run_to(complete_workflow())
    told = wire.describe()
    assert (told["next_cause"], told["wait_kind"], told["wait_reason"]) == (None, None, None)


# Who is missing -----------------------------------------------------------------------------------


def missing(wire: Wire) -> tuple[str | None, str]:
    cause = wire.describe()["next_cause"]
    return cause.get("staffing"), cause["text"].partition("has taken it")[2]


def test_a_task_that_nobody_can_have_says_why(wire: Wire) -> None:
    """From a build that nobody has to a worker that could take it."""
    wire.start(build_id="b1")
    assert missing(wire) == ("nobody", ": none is registered for it")

    wire.register("w2", supported_workflow_types=["Other"])
    assert missing(wire)[0] == "nobody"

    wire.register("w2")
    assert missing(wire) == ("other_build", ": no active worker is of build b1")

    wire.register("w1", build_id="b1")
    assert missing(wire) == (None, "")

    build = {"build_id": "b1"}
    wire.control("POST", "/task-queues/q/build-ids/drain", build).ok()
    assert missing(wire) == ("draining", ": every worker that could take it is draining")

    wire.control("POST", "/task-queues/q/build-ids/resume", build).ok()
    wire.advance(seconds=61)
    assert missing(wire)[0] == "silent"


def test_an_activity_that_nobody_can_have_says_why(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity("paint"))

    assert missing(wire) == ("nobody", ": none is registered for it")


def test_a_standalone_activity_that_nobody_can_have_says_why(wire: Wire) -> None:
    body = {"activity_id": "job", "activity_type": "paint", "task_queue": "q"}
    wire.control("POST", "/activities", body).ok(201)

    cause = wire.control("GET", "/activities/job").ok()["next_cause"]

    assert cause["staffing"] == "nobody"

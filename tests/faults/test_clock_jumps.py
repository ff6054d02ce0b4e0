"""A clock that jumps between two lives of a server: nothing is lost, doubled or stuck."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core.run.deadline import next_due
from perdure.core.run.state import Run
from perdure.store.sqlite.store import SqliteStore
from tests.engine.invariants import check_disk
from tests.support.http import (
    Wire,
    a_wire,
    avro,
    complete_workflow,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
    wait_for_signal,
)

HOUR = 3600
WORKFLOW_LEASE = 60
ACTIVITY_LEASE = 300

JUMPS = [
    pytest.param((HOUR,), id="forward"),
    pytest.param((-HOUR,), id="backward"),
    pytest.param((HOUR, -HOUR, HOUR), id="forward-back-forward"),
    pytest.param((-HOUR, 2 * HOUR, -2 * HOUR), id="back-forward-back"),
]


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with a_wire(tmp_path) as wire:
        wire.register()
        yield wire


def jump(wire: Wire, seconds: float) -> None:
    """The server stops, the clock is set, and the server starts again on the same file."""
    wire.close()
    wire.clock.jump(seconds=seconds)
    wire.open()
    wire.advance(seconds=0)


def check(wire: Wire) -> list[Run]:
    """Everything on disk is as it must be: histories, causes, deadlines, queues, leases."""
    store = wire.server.store
    assert isinstance(store, SqliteStore)
    runs = wire.run(check_disk(store))
    now = wire.clock.now()
    for run in runs:
        due_at = next_due(run)
        assert due_at is None or due_at > now, f"run {run.run_id} is overdue and nobody fires it"
    return runs


# Timers -------------------------------------------------------------------------------------------


def test_a_jump_forward_fires_a_timer_once(wire: Wire) -> None:
    wire.run_to(start_timer(600))

    jump(wire, HOUR)

    assert wire.event_types().count("TimerFired") == 1
    wire.advance(seconds=HOUR)
    jump(wire, HOUR)
    assert wire.event_types().count("TimerFired") == 1
    wire.complete(wire.take(), complete_workflow())
    check(wire)


def test_a_jump_backward_does_not_fire_a_timer_before_its_time(wire: Wire) -> None:
    wire.run_to(start_timer(600))

    jump(wire, -HOUR)

    wire.advance(seconds=HOUR + 599)
    assert wire.event_types().count("TimerFired") == 0
    check(wire)
    wire.advance(seconds=1)
    assert wire.event_types().count("TimerFired") == 1
    check(wire)


def test_a_timer_that_has_fired_does_not_fire_again_when_its_time_comes_back(wire: Wire) -> None:
    wire.run_to(start_timer(600))
    wire.advance(seconds=600)
    assert wire.event_types().count("TimerFired") == 1

    jump(wire, -HOUR)
    wire.advance(seconds=HOUR)
    wire.advance(seconds=HOUR)

    assert wire.event_types().count("TimerFired") == 1
    wire.complete(wire.take(), complete_workflow())
    check(wire)


def test_timers_set_on_both_sides_of_a_jump_backward_all_fire(wire: Wire) -> None:
    wire.run_to(start_timer(600), workflow_id="before")
    jump(wire, -HOUR)
    wire.run_to(start_timer(600), workflow_id="after")

    wire.advance(seconds=600)
    assert wire.event_types("after").count("TimerFired") == 1
    assert wire.event_types("before").count("TimerFired") == 0
    wire.advance(seconds=HOUR)

    assert wire.event_types("before").count("TimerFired") == 1
    check(wire)


# Leases -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "until"), [(HOUR, 0), (-HOUR, HOUR + WORKFLOW_LEASE)])
def test_the_lease_of_a_workflow_task_ends(wire: Wire, seconds: int, until: int) -> None:
    wire.start()
    lost = wire.take()

    jump(wire, seconds)
    wire.advance(seconds=until)

    wire.register("w2")
    task = wire.take(worker_id="w2")
    assert task["workflow_task_attempt"] == 2
    wire.report(lost, "complete", commands=[complete_workflow()]).refused(
        409, "lease_owner_mismatch"
    )
    wire.complete(task, complete_workflow("right"))
    check(wire)


@pytest.mark.parametrize(("seconds", "until"), [(HOUR, 0), (-HOUR, HOUR + ACTIVITY_LEASE)])
def test_the_lease_of_an_activity_ends(wire: Wire, seconds: int, until: int) -> None:
    wire.run_to(schedule_activity())
    lost = wire.take("activity")

    jump(wire, seconds)
    wire.advance(seconds=until)

    wire.register("w2")
    attempt = wire.take("activity", worker_id="w2")
    assert attempt["attempt_number"] == 2
    wire.report_attempt(lost, "complete", result=avro("late")).refused(409, "stale_attempt")
    wire.report_attempt(attempt, "complete", result=avro("right")).ok()
    assert wire.event_types().count("ActivityCompleted") == 1
    check(wire)


def test_a_worker_that_lives_through_a_jump_backward_keeps_its_lease(wire: Wire) -> None:
    wire.start()
    task = wire.take()

    jump(wire, -HOUR)

    assert wire.report(task, "heartbeat").ok()["renewed"]
    wire.complete(task, complete_workflow())
    check(wire)


def test_a_renewal_behind_a_jump_backward_does_not_keep_the_lease_for_an_hour(wire: Wire) -> None:
    """The worker renewed under the new clock and then died: its lease counts from there."""
    wire.start()
    task = wire.take()
    jump(wire, -HOUR)
    wire.report(task, "heartbeat").ok()

    wire.advance(seconds=WORKFLOW_LEASE)

    wire.register("w2")
    assert wire.take(worker_id="w2")["workflow_task_attempt"] == 2


def test_registrations_survive_jumps_in_both_directions(wire: Wire) -> None:
    for seconds in (HOUR, -2 * HOUR, 24 * HOUR):
        jump(wire, seconds)
        wire.start(f"order{seconds}")
        wire.complete(wire.take(), complete_workflow())


# Everything at once -------------------------------------------------------------------------------


def everything(wire: Wire) -> list[str]:
    """One run for each way of waiting for time; worker w1 holds what it took, for ever."""
    waits: dict[str, list[dict[str, Any]]] = {
        "timer": [start_timer(600)],
        "timers": [start_timer(60), start_timer(7200)],
        "condition": [wait_for_condition(timeout_seconds=600)],
        "signal": [wait_for_signal(timeout_seconds=600)],
        "leased-activity": [schedule_activity("charge")],
        "beating-activity": [schedule_activity("charge", heartbeat_timeout=30)],
        "closing-activity": [schedule_activity("charge", start_to_close_timeout=600)],
        "retried-activity": [
            schedule_activity("charge", retry_policy={"max_attempts": 3, "backoff_seconds": [600]})
        ],
        "unstarted-activity": [
            schedule_activity("ship", queue="nowhere", schedule_to_start_timeout=600)
        ],
        "child": [start_child()],
    }
    for name, commands in waits.items():
        wire.run_to(*commands, workflow_id=name)
        if name.endswith("-activity") and name != "unstarted-activity":
            attempt = wire.take("activity")
            if name == "retried-activity":
                wire.report_attempt(attempt, "fail", failure={"message": "again"}).ok()
    wire.start("leased")
    while wire.poll()["task"] is not None:
        pass  # w1 takes everything there is, and dies.
    wire.start("delayed", start_delay_seconds=600)
    wire.start("bounded", run_timeout_seconds=600, task_queue="nowhere")
    return [*waits, "leased", "delayed", "bounded"]


def serve(wire: Wire) -> bool:
    """Let worker w2 do the next task; whether there was one."""
    if task := wire.poll(worker_id="w2")["task"]:
        wire.complete(task, complete_workflow())
        return True
    if attempt := wire.poll("activity", worker_id="w2")["task"]:
        wire.report_attempt(attempt, "complete", result=avro("done")).ok()
        return True
    return False


@pytest.mark.parametrize("jumps", JUMPS)
def test_whatever_a_run_waits_for_it_ends(wire: Wire, jumps: tuple[int, ...]) -> None:
    names = everything(wire)
    check(wire)
    for seconds in jumps:
        jump(wire, seconds)
        check(wire)
    wire.register("w2")

    for _ in range(5):
        wire.advance(seconds=HOUR)
        while serve(wire):
            pass
        check(wire)

    open_runs = {name: wire.describe(name)["status"] for name in names}
    assert set(open_runs.values()) <= {"completed", "failed"}, open_runs
    for name in names:
        kinds = wire.event_types(name)
        assert kinds.count("TimerFired") <= kinds.count("TimerScheduled")
    assert wire.event_types("timers").count("TimerFired") == 2
    assert open_runs["bounded"] == "failed"
    assert [name for name, status in open_runs.items() if status == "failed"] == ["bounded"]

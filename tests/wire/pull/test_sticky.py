"""Workers that keep histories are preferred, told what we expect, and never waited for."""

from typing import Any

import pytest

from tests.support.http import Json, Wire, start_timer

STICKY: Json = {"capabilities": ["sticky_execution"]}


def claim(task: Json, **members: Any) -> Json:
    return {
        "worker_id": task["lease_owner"],
        "workflow_id": task["workflow_id"],
        "run_id": task["run_id"],
        "build_id": "b",
        "ttl_seconds": 300,
        "metrics": {"hit": 0, "miss": 1, "eviction": 0, "forced_cold_replay": 0},
        **members,
    }


def poll(worker_id: str) -> Json:
    return {"worker_id": worker_id, "task_queue": "q", "timeout_seconds": 20}


@pytest.fixture
def task(wire: Wire) -> Json:
    """The first task of a run, with a worker that keeps histories; two of them and one other."""
    wire.register("keeper", **STICKY)
    wire.register("other", **STICKY)
    wire.register("plain")
    wire.start()
    task = wire.take(worker_id="keeper")
    assert task["sticky_replay_mode"] == "cold_replay"
    return task


def test_the_next_task_goes_to_the_worker_that_keeps_the_history(wire: Wire, task: Json) -> None:
    wire.report(task, "complete", commands=[start_timer(1)], sticky_cache=claim(task)).ok()
    other = wire.park("/workflow-tasks/poll", poll("other"))
    keeper = wire.park("/workflow-tasks/poll", poll("keeper"))

    wire.advance(seconds=1)

    again = keeper.answer().ok()["task"]
    assert again["sticky_replay_mode"] == "sticky_hit_expected"
    assert again["last_history_sequence"] == len(again["history_events"]) == len(wire.events())
    assert other.is_waiting


@pytest.mark.parametrize("worker_id", ["other", "plain"])
def test_nobody_waits_for_the_keeper(wire: Wire, task: Json, worker_id: str) -> None:
    wire.report(task, "complete", commands=[start_timer(1)], sticky_cache=claim(task)).ok()
    wire.advance(seconds=1)

    again = wire.take(worker_id=worker_id)

    expected = {"other": "cold_replay", "plain": None}
    assert again.get("sticky_replay_mode") == expected[worker_id]
    assert len(again["history_events"]) == len(wire.events())


def test_a_claim_ends_and_is_given_up(wire: Wire, task: Json) -> None:
    kept = claim(task, ttl_seconds=5)
    wire.report(task, "complete", commands=[start_timer(6)], sticky_cache=kept).ok()
    wire.advance(seconds=6)
    task = wire.take(worker_id="keeper")
    assert task["sticky_replay_mode"] == "cold_replay", "its time is over"

    wire.report(task, "complete", commands=[start_timer(1)], sticky_cache=claim(task)).ok()
    wire.advance(seconds=1)
    task = wire.take(worker_id="keeper")
    assert task["sticky_replay_mode"] == "sticky_hit_expected"

    wire.complete(task, start_timer(1))
    wire.advance(seconds=1)
    task = wire.take(worker_id="keeper")
    assert task["sticky_replay_mode"] == "cold_replay", "it says that it keeps nothing"


def test_a_claim_outlives_the_server(wire: Wire, task: Json) -> None:
    wire.report(task, "complete", commands=[start_timer(1)], sticky_cache=claim(task)).ok()
    wire.restart()
    wire.advance(seconds=1)
    assert wire.take(worker_id="keeper")["sticky_replay_mode"] == "sticky_hit_expected"


@pytest.mark.parametrize("members", [{"worker_id": "other"}, {"run_id": "another"}])
def test_a_claim_for_somebody_else_says_nothing(wire: Wire, task: Json, members: Json) -> None:
    wire.report(
        task, "complete", commands=[start_timer(1)], sticky_cache=claim(task, **members)
    ).ok()
    wire.advance(seconds=1)
    assert wire.take(worker_id="other")["sticky_replay_mode"] == "cold_replay"


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"ttl_seconds": 0}, "sticky_cache.ttl_seconds"),
        ({"ttl_seconds": 3601}, "sticky_cache.ttl_seconds"),
        ({"ttl_seconds": None}, "sticky_cache.ttl_seconds"),
        ({"worker_id": ""}, "sticky_cache.worker_id"),
        ({"run_id": 7}, "sticky_cache.run_id"),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(
    wire: Wire, task: Json, members: Json, field: str
) -> None:
    with wire.nothing_changes():
        wire.report(
            task, "complete", commands=[start_timer(1)], sticky_cache=claim(task, **members)
        ).invalid(field)

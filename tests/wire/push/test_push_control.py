"""What people do to push runs."""

import json
from typing import Any

from tests.support.http import Answer, Json, Wire
from tests.support.runner import (
    a_runner,
    broke,
    emit,
    op,
    ran,
    rows,
    settled,
    show,
    start,
    steps,
    workflow,
)


def command(wire: Wire, run_id: str, action: str, body: Any = None) -> Answer:
    return wire.call("POST", f"/runs/{run_id}/{action}", body)


def test_a_cancelled_run_lets_everything_go(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("child"))
    run_id = start(wire, "order")
    runner.next().found(
        op("Sleep", "nap", sleepMs=1_000),
        op("WaitForEvent", "w", eventName="pay", timeoutMs=9_000),
        op("RunWorkflow", "kid", childName="child"),
    )
    child = runner.next()
    settled(wire, run_id, "waiting")

    run = command(wire, run_id, "cancel").ok()

    assert run["status"] == "cancelled"
    assert {row["status"] for row in steps(wire, run_id)} == {"cancelled"}
    settled(wire, child.run_id, "cancelled")
    assert emit(wire, "pay")["woke"] == 0
    wire.advance(seconds=10)
    command(wire, run_id, "cancel").refused(409, "run_not_active")
    command(wire, "nobody", "cancel").refused(404, "run_not_found")
    child.returned("late")
    assert show(wire, child.run_id)["status"] == "cancelled"
    actions = rows(wire, "/control-actions")
    assert [(row["action"], row["runId"]) for row in actions] == [("cancel", run_id)]


def test_a_cancelled_child_is_an_error_of_its_caller(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("child"))
    start(wire, "order")
    runner.next().found(op("RunWorkflow", "kid", childName="child"))
    child = runner.next()

    command(wire, child.run_id, "cancel").ok()

    assert runner.next().memo("kid") == {"error": {"message": "child run cancelled"}}


def test_a_paused_run_stands_still_and_sees_afterwards_what_came(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(
        op("Sleep", "nap", sleepMs=1_000),
        op("WaitForEvent", "w", eventName="pay", timeoutMs=60_000),
    )
    settled(wire, run_id, "waiting")

    paused = command(wire, run_id, "pause").ok()
    assert (paused["status"], paused["pausedBy"]["reason"]) == ("paused", "manual")
    command(wire, run_id, "pause").ok()
    wire.advance(seconds=2)
    assert emit(wire, "pay", 5)["woke"] == 1
    assert runner.has_nothing()
    assert [row["id"] for row in rows(wire, "/runs?status=paused")] == [run_id]
    resumed = command(wire, run_id, "resume").ok()
    assert resumed["status"] in ("queued", "running")
    invoke = runner.next()
    assert (invoke.memo("nap"), invoke.memo("w")) == ({"data": None}, {"data": 5})
    invoke.returned()

    settled(wire, run_id, "succeeded")
    command(wire, run_id, "resume").refused(409, "run_not_active")
    command(wire, run_id, "pause").refused(409, "run_not_active")


def test_an_answer_that_comes_while_a_run_is_paused_is_kept(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()

    command(wire, run_id, "pause").ok()
    invoke.found(ran("charge", 1))
    settled(wire, run_id, "paused", stepCount=1)
    assert runner.has_nothing()
    command(wire, run_id, "resume").ok()

    assert runner.next().memo("charge") == {"data": 1}


def test_a_pass_that_broke_while_its_run_is_paused_waits_too(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()

    command(wire, run_id, "pause").ok()
    invoke.answer(500, {"error": "boom"})
    settled(wire, run_id, "paused", errorCount=1)
    wire.advance(seconds=60)
    assert runner.has_nothing()
    command(wire, run_id, "resume").ok()
    runner.next().returned()

    settled(wire, run_id, "succeeded")


def test_a_run_that_nobody_has_taken_can_be_paused(wire: Wire) -> None:
    a_runner(wire, workflow("order")).vanish()
    run_id = start(wire, "order")
    command(wire, run_id, "pause").ok()
    runner = a_runner(wire, workflow("order"))
    assert runner.has_nothing()

    command(wire, run_id, "resume").ok()

    runner.next().returned()
    settled(wire, run_id, "succeeded")


def failed_run(wire: Wire) -> tuple[Any, str]:
    """A run that failed at its third step."""
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order", {"n": 1}, session="s1")
    runner.next().found(ran("a", 1))
    runner.next().found(op("Skip", "b"))
    runner.next().found(broke("c", "no"))
    settled(wire, run_id, "failed")
    return runner, run_id


def test_a_finished_run_can_be_replayed_from_its_start(wire: Wire) -> None:
    runner, run_id = failed_run(wire)

    again = command(wire, run_id, "replay").ok()

    assert (again["replayOf"], again["session"], again["input"]) == (run_id, "s1", {"n": 1})
    invoke = runner.next()
    assert invoke.run_id == again["id"]
    assert invoke.body["event"] == {"name": "order", "data": {"n": 1}}
    assert invoke.body["steps"] == {}
    command(wire, again["id"], "replay").refused(409, "run_not_finished")
    other = command(wire, run_id, "replay", {"input": {"n": 2}}).ok()
    assert runner.next().body["event"]["data"] == {"n": 2}
    found = [row["id"] for row in rows(wire, f"/runs?replayOf={run_id}")]
    assert sorted(found) == sorted([again["id"], other["id"]])
    assert show(wire, run_id)["status"] == "failed"


def test_a_finished_run_can_go_on_from_a_step(wire: Wire) -> None:
    runner, run_id = failed_run(wire)

    again = command(wire, run_id, "retry-from-step", {"step": "c"}).ok()

    invoke = runner.next()
    assert (invoke.memo("a"), invoke.memo("b")) == ({"data": 1}, {"data": None})
    assert invoke.memo("c") is None
    invoke.found(ran("c", 3))
    runner.next().returned("well")
    settled(wire, again["id"], "succeeded")
    assert [row["name"] for row in steps(wire, again["id"])] == ["a", "b", "c"]
    answer = command(wire, run_id, "retry-from-step", {"step": "nobody"})
    assert answer.status == 400
    assert command(wire, run_id, "retry-from-step").status == 400


def test_many_runs_can_be_replayed_at_once(wire: Wire) -> None:
    runner, _ = failed_run(wire)
    running = start(wire, "order")
    runner.next()

    def replay(body: Json) -> Answer:
        return wire.call("POST", "/runs/bulk-replay", body)

    told = replay({"app": "shop", "status": "failed"}).ok()
    assert told == {"matched": 1, "replayed": 1, "skipped": 0, "failed": 0, "capped": False}
    runner.next()
    assert replay({"workflow": "mail"}).ok()["matched"] == 0
    assert replay({}).status == 400
    assert replay({"status": "nice"}).status == 400
    assert show(wire, running)["status"] == "running"
    assert wire.call("GET", "/control-actions?action=dance").status == 400
    actions = json.loads(wire.call("GET", "/control-actions?action=bulk_replay").content)
    assert len(actions) == 1


def test_a_replay_of_many_runs_is_safe_to_repeat(wire: Wire) -> None:
    runner, source = failed_run(wire)
    body = {"status": "failed", "dedupeId": "d1"}
    told = wire.call("POST", "/runs/bulk-replay", body).ok()
    again = runner.next()
    again.answer(400, {"error": "no"})
    settled(wire, again.run_id, "failed")

    assert wire.call("POST", "/runs/bulk-replay", body).ok() == told, "its own run is not meant"

    assert runner.has_nothing()
    assert [row["id"] for row in rows(wire, f"/runs?replayOf={source}")] == [again.run_id]
    other = wire.call("POST", "/runs/bulk-replay", {**body, "dedupeId": "d2"}).ok()
    assert other["replayed"] == 2
    assert wire.call("POST", "/runs/bulk-replay", {**body, "dedupeId": ""}).status == 400


def test_the_other_protocol_sees_and_cancels_runs_and_sends_them_no_messages(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(op("Sleep", "nap", sleepMs=10_000))
    settled(wire, run_id, "waiting")

    path = f"/workflows/{run_id}"
    wire.control("POST", f"{path}/signal/x", {"input": []}).refused(404, "unknown_signal")
    wire.control("POST", f"{path}/update/x", {"input": []}).refused(409, "update_rejected")
    assert runner.has_nothing()
    assert wire.control("GET", path).ok()["workflow_type"] == "order"
    wire.control("POST", f"{path}/cancel", {}).ok()

    assert show(wire, run_id)["status"] == "cancelled"

"""Budgets and token throttles of workflows, seen from outside."""

from typing import Any

import pytest

from tests.support.http import Json, Wire
from tests.support.runner import (
    HandRunner,
    a_runner,
    emit,
    op,
    ran,
    rows,
    settled,
    show,
    start,
    workflow,
)

BUDGET = {"windowMs": 60_000, "maxTokens": 100}
PACE = {"tokens": 100, "perMs": 60_000}


def use(runner: HandRunner, name: str, tokens: int, **members: Any) -> str:
    """The next pass uses something up."""
    invoke = runner.next()
    invoke.found(ran(name, 1, usage={"model": "m", "tokensIn": tokens, **members}))
    return invoke.run_id


def flow(wire: Wire) -> Json:
    return wire.call("GET", "/flow-state").ok()


def test_a_workflow_over_its_budget_stands_still_until_its_window_moves_on(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", budget=BUDGET), workflow("mail"))
    first = start(wire, "write")
    parked = start(wire, "write")
    assert use(runner, "a", 100) == first
    runner.next().found(op("Sleep", "nap", sleepMs=1_000))

    paused = settled(wire, first, "paused")
    assert paused["pausedBy"]["reason"] == "budget"
    assert paused["pausedBy"]["detail"] == "100 of 100 tokens in 60000 ms"
    told = emit(wire, "write")
    assert told["runId"]
    assert not any(told[gate] for gate in ("skipped", "dropped", "deduped", "batched"))
    settled(wire, told["runId"], "paused")
    wire.advance(seconds=2)
    settled(wire, parked, "paused")
    start(wire, "mail")
    invoke = runner.next()
    assert invoke.context["workflow"] == "mail"
    invoke.returned()
    (shown,) = flow(wire)["budget"]
    assert (shown["tokens"], shown["waiting"], shown["workflow"]) == (100, 3, "write")
    assert {row["id"] for row in rows(wire, "/runs?status=paused")} == {
        first,
        parked,
        told["runId"],
    }
    wire.advance(seconds=50)
    assert show(wire, first)["status"] == "paused"
    wire.advance(seconds=10)

    gone = {runner.next().run_id for _ in range(3)}
    assert gone == {first, parked, told["runId"]}
    assert "pausedBy" not in settled(wire, first, "running")
    assert flow(wire)["budget"][0]["waiting"] == 0


def test_somebody_may_let_a_run_go_on_whatever_it_costs(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", budget={"windowMs": 60_000, "maxCost": 0.5}))
    run_id = start(wire, "write")
    use(runner, "a", 1, cost=0.3)
    use(runner, "b", 1, cost=0.3)
    paused = settled(wire, run_id, "paused")
    assert paused["pausedBy"]["detail"] == "a cost of 0.6 of 0.5 in 60000 ms"

    wire.call("POST", f"/runs/{run_id}/resume").ok()
    use(runner, "c", 1, cost=0.3)
    runner.next().returned()

    settled(wire, run_id, "succeeded")
    other = start(wire, "write")
    settled(wire, other, "paused")


def test_what_somebody_paused_by_hand_no_window_lets_go_on(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", budget=BUDGET))
    run_id = start(wire, "write")
    use(runner, "a", 100)
    settled(wire, run_id, "paused")

    held = wire.call("POST", f"/runs/{run_id}/pause").ok()
    assert held["pausedBy"]["reason"] == "manual"
    wire.advance(seconds=61)
    assert runner.has_nothing()
    assert show(wire, run_id)["status"] == "paused"
    wire.call("POST", f"/runs/{run_id}/resume").ok()

    assert runner.next().run_id == run_id


def test_passes_that_waited_for_a_runner_are_asked_about_again(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", budget=BUDGET), runner="r1")
    late = start(wire, "write", runner="r1")
    invoke = runner.next()
    runner.close()
    wire.until(lambda: not wire.server.connect.sessions)
    settled(wire, late, "running", errorCount=1)
    other = a_runner(wire, workflow("write", budget=BUDGET), runner="r2")
    wire.advance(seconds=1)
    start(wire, "write", runner="r2")
    use(other, "a", 100)
    assert invoke.run_id == late

    runner = a_runner(wire, workflow("write", budget=BUDGET), runner="r1")
    settled(wire, late, "paused")
    assert runner.has_nothing()
    wire.advance(seconds=61)
    assert runner.next().run_id == late


def test_people_are_warned_once_before_a_budget_is_used_up(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", budget={**BUDGET, "warnAtPct": 80}))
    run_id = start(wire, "write")
    use(runner, "a", 79)
    use(runner, "b", 1)
    use(runner, "c", 1)
    runner.next().returned()

    settled(wire, run_id, "succeeded")
    (line,) = rows(wire, f"/runs/{run_id}/logs")
    assert (line["level"], line["scope"]) == ("warn", "@root")
    assert "80 of 100 tokens" in line["message"]


def test_failure_handlers_are_charged_and_never_stopped(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", budget=BUDGET, onFailure=True))
    run_id = start(wire, "write")
    use(runner, "a", 60)
    runner.next().answer(400, {"error": "no"})
    use(runner, "b", 60)
    handler = runner.next()
    assert handler.context["onFailure"] is True
    handler.returned()
    settled(wire, handler.run_id, "succeeded")
    assert show(wire, run_id)["status"] == "failed"
    settled(wire, start(wire, "write"), "paused")
    again = wire.call("POST", f"/runs/{run_id}/replay").ok()
    settled(wire, again["id"], "paused")


def test_a_budget_of_nothing_waits_for_somebody(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.usage_limits.METER_CANDIDATES_MAX", 2)
    runner = a_runner(wire, workflow("write", budget={"windowMs": 1_000, "maxCost": 0}))
    run_id = start(wire, "write")
    others = [start(wire, "write") for _ in range(3)]
    for each in (run_id, *others):
        settled(wire, each, "paused")
    # Nobody looks at them again and again.
    wire.advance(seconds=100)
    assert show(wire, run_id)["status"] == "paused"
    assert flow(wire)["budget"][0]["waiting"] == 4
    wire.call("POST", f"/runs/{run_id}/resume").ok()
    assert runner.next().run_id == run_id


def test_all_who_are_paused_go_on_however_many_they_are(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.usage_limits.METER_CANDIDATES_MAX", 2)
    runner = a_runner(wire, workflow("write", budget=BUDGET))
    first = start(wire, "write")
    use(runner, "a", 100)
    paused = [first, *(start(wire, "write") for _ in range(6))]
    for run_id in paused:
        settled(wire, run_id, "paused")
    wire.call("POST", f"/runs/{paused[3]}/cancel").ok()
    wire.advance(seconds=61)

    gone = {runner.next().run_id for _ in range(6)}
    assert gone == {*paused} - {paused[3]}


def test_who_is_paused_goes_on_after_a_restart(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", budget=BUDGET))
    run_id = start(wire, "write")
    use(runner, "a", 100)
    settled(wire, run_id, "paused")
    runner.vanish()
    wire.restart()
    runner = a_runner(wire, workflow("write", budget=BUDGET))
    assert show(wire, run_id)["pausedBy"]["reason"] == "budget"
    wire.advance(seconds=61)

    assert runner.next().run_id == run_id


# Token throttles ----------------------------------------------------------------------------------


def test_runs_start_as_fast_as_their_tokens_allow(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", tokenThrottle={**PACE, "key": "user"}))
    first = start(wire, "write", {"user": "a"})
    use(runner, "a", 100)
    runner.next().returned()
    settled(wire, first, "succeeded")

    told = [emit(wire, "write", {"user": "a"}) for _ in range(2)]
    assert not any(one[gate] for one in told for gate in ("skipped", "dropped", "debounced"))
    waiting = [str(one["runId"]) for one in told]
    other = start(wire, "write", {"user": "b"})
    invoke = runner.next()
    assert invoke.run_id == other
    assert [show(wire, run_id)["status"] for run_id in waiting] == ["queued", "queued"]
    shown = {row["tokens"]: row["waiting"] for row in flow(wire)["tokenThrottle"]}
    assert shown == {100: 2, 1: 0}
    invoke.returned()
    wire.advance(seconds=61)
    # Runs used a hundred tokens lately, so that is what the next is charged with.
    invoke = runner.next()
    assert invoke.run_id == waiting[0]
    assert show(wire, waiting[1])["status"] == "queued"
    # It used nothing after all, so there is room.
    invoke.returned()

    assert runner.next().run_id == waiting[1]


def test_replays_and_calls_are_not_throttled_but_charged(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", tokenThrottle=PACE), workflow("parent"))
    first = start(wire, "write")
    use(runner, "a", 100)
    runner.next().returned()
    settled(wire, first, "succeeded")
    again = wire.call("POST", f"/runs/{first}/replay").ok()
    assert runner.next().run_id == again["id"]
    start(wire, "parent")
    runner.next().found(op("RunWorkflow", "kid", childName="write"))
    use(runner, "b", 50)
    runner.next()

    assert flow(wire)["tokenThrottle"][0]["tokens"] == 150


def test_a_waiting_run_that_is_cancelled_or_paused_is_in_nobodys_way(wire: Wire) -> None:
    runner = a_runner(wire, workflow("write", tokenThrottle=PACE))
    start(wire, "write")
    use(runner, "a", 100)
    cancelled, paused, last = (start(wire, "write") for _ in range(3))
    wire.call("POST", f"/runs/{cancelled}/cancel").ok()
    wire.call("POST", f"/runs/{paused}/pause").ok()
    runner.next().returned()
    wire.advance(seconds=61)

    invoke = runner.next()
    assert invoke.run_id == last
    invoke.returned()
    settled(wire, last, "succeeded")
    wire.call("POST", f"/runs/{paused}/resume").ok()
    assert runner.next().run_id == paused


@pytest.mark.parametrize(
    ("knob", "told", "field"),
    [
        ("budget", {}, "windowMs"),
        ("budget", {"windowMs": 0}, "windowMs"),
        ("budget", {"windowMs": 1_000, "maxTokens": 0}, "maxTokens"),
        ("budget", {"windowMs": 1_000, "maxCost": -1}, "maxCost"),
        ("budget", {"windowMs": 1_000, "warnAtPct": "much"}, "warnAtPct"),
        ("tokenThrottle", {"tokens": 1}, "perMs"),
        ("tokenThrottle", {"tokens": 1.5, "perMs": 1}, "tokens"),
        ("tokenThrottle", {"tokens": 1, "perMs": 1, "key": "a..b"}, "key"),
        ("tokenThrottle", {"tokens": 1, "perMs": -1}, "perMs"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    shared_wire: Wire, knob: str, told: Json, field: str
) -> None:
    body = {"app": "x", "url": "http://127.0.0.1:1/", "workflows": [{"name": "w", knob: told}]}
    refused = shared_wire.call("POST", "/register", body).refused(400, "validation_failed")
    assert f"workflows[0].{knob}" in refused["error"]
    assert field in refused["error"]

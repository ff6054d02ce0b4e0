"""Push runs that are over are kept for ever, or for as long as the operator says."""

import pytest

from perdure.core.limits import SECOND
from perdure.core.run.state import Dialect
from perdure.features.retention import make_pruner
from perdure.features.retention.loops import Retention, RunPruner
from perdure.server.settings import Settings
from tests.support.http import Json, Wire
from tests.support.runner import a_runner, op, ran, rows, settled, show, start, step_id, workflow

DAY = 86_400
LOGS_OF_THEIR_OWN = {"event", "control_action"}
"""What is written down about runs and is not theirs."""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody moves the clock while runs are pruned, and bites are small."""
    monkeypatch.setattr("perdure.features.retention.loops.FORGET_PAUSE", 0)
    monkeypatch.setattr("perdure.features.retention.operations.REMAINS_ROWS_MAX", 2)


def prune(wire: Wire, *, days: int = 7) -> int:
    rule = Retention(Dialect.PUSH, days * DAY * SECOND, lambda: {"default"})
    return wire.run(RunPruner(wire.server.engine, wire.clock, [rule]).prune())


def traces(wire: Wire, run_id: str) -> list[tuple[object, ...]]:
    """Every row that has to do with a run, and is not of a log."""
    return [
        (table, *row)
        for table, found in wire.stored().items()
        for row in found
        if run_id in repr(row) and not (table == "record" and row[0] in LOGS_OF_THEIR_OWN)
    ]


def test_push_runs_are_kept_for_ever_unless_somebody_says_so(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().returned()
    settled(wire, run_id, "succeeded")
    wire.jump(seconds=1_000 * DAY)

    assert wire.run(wire.find_loop(RunPruner).prune()) == 0

    assert show(wire, run_id)["status"] == "succeeded"


def test_everything_of_a_push_run_goes_with_it(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order", session="s1")
    logs: list[Json] = [{"level": "info", "message": "hello", "scope": "@root", "index": 0}]
    runner.next().found(ran("pay", {"paid": True}), logs=logs)
    runner.next().found(op("Approval", "ok", tool="refund", data=1, risk="high"))
    settled(wire, run_id, "needs_attention")
    (approval,) = rows(wire, f"/approvals?runId={run_id}")
    decision = {"status": "approved", "decidedBy": "ann"}
    wire.call("POST", f"/approvals/{approval['id']}/decision", decision).ok()
    runner.next().returned()
    settled(wire, run_id, "succeeded")
    for number in range(3):
        score = {"name": "good", "value": 1, "dedupeId": f"d{number}"}
        wire.call("POST", f"/runs/{run_id}/scores", score).ok()
    wire.jump(seconds=8 * DAY)

    assert prune(wire) == 1

    assert traces(wire, run_id) == []
    for path in ("", "/steps", "/logs", "/scores"):
        wire.call("GET", f"/runs/{run_id}{path}").refused(404, "run_not_found")
    wire.call("POST", f"/runs/{run_id}/replay", {}).refused(404, "run_not_found")
    wire.call("POST", f"/runs/{run_id}/scores", score).refused(404, "run_not_found")
    wire.call("GET", f"/approvals/{approval['id']}").refused(404, "approval_not_found")
    assert rows(wire, "/runs") == rows(wire, "/approvals") == rows(wire, "/sessions") == []


def test_a_session_counts_the_runs_that_are_left(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    old = start(wire, "order", session="s1")
    runner.next().returned()
    settled(wire, old, "succeeded")
    waiting = start(wire, "order", session="s1")
    runner.next().found(op("Sleep", "nap", sleepMs=30 * DAY * 1_000))
    settled(wire, waiting, "waiting")
    wire.jump(seconds=8 * DAY)

    assert prune(wire) == 1

    (session,) = rows(wire, "/sessions")
    assert session["runCount"] == 1
    assert sum(session["statusCounts"].values()) == 1
    assert [row["id"] for row in rows(wire, "/runs?session=s1")] == [waiting]


def test_a_run_that_waits_keeps_what_its_child_returned_and_no_more(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("pay", triggers=[]))
    parent = start(wire, "order")
    call = op("RunWorkflow", "pay", childName="pay", childData=1)
    runner.next().found(call)
    child = runner.next()
    child.returned("paid")
    invoke = runner.next()
    assert invoke.memo("pay") == {"data": "paid"}
    invoke.found(op("Sleep", "nap", sleepMs=20 * DAY * 1_000))
    settled(wire, parent, "waiting")
    wire.jump(seconds=8 * DAY)

    assert prune(wire) == 1

    wire.call("GET", f"/runs/{child.run_id}").refused(404, "run_not_found")
    assert show(wire, parent)["status"] == "waiting"
    wire.jump(seconds=13 * DAY)
    wire.advance(seconds=1)
    invoke = runner.next()
    assert invoke.body["steps"][step_id("pay")] == {"data": "paid"}
    invoke.returned()
    settled(wire, parent, "succeeded")


def test_an_eval_keeps_its_averages(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    dataset_id = wire.call("POST", "/datasets", {"name": "cases"}).ok(201)["id"]
    wire.call("POST", f"/datasets/{dataset_id}/items", {"input": 1}).ok(201)
    told = wire.call("POST", f"/datasets/{dataset_id}/eval", {"workflow": "order"}).ok(201)
    (run_id,) = told["runIds"]
    runner.next().found(op("Score", "score:good", data={"name": "good", "value": 0.5}))
    runner.next().returned()
    settled(wire, run_id, "succeeded")
    wire.jump(seconds=8 * DAY)

    assert prune(wire) == 1

    told = wire.call("GET", f"/eval-sets/{told['evalSet']['id']}").ok()
    assert [score["avg"] for score in told["scores"]] == [0.5]


def test_settings_say_what_is_kept(wire: Wire) -> None:
    def rules(settings: Settings) -> dict[Dialect, int]:
        pruner = make_pruner(settings, wire.server.engine, wire.clock, {"default"})
        return {rule.dialect: rule.age for rule in pruner._rules}

    assert rules(Settings()) == {Dialect.PULL: 30 * DAY * SECOND}
    assert rules(Settings(history_retention=0)) == {}
    assert rules(Settings(history_retention=0, run_retention=5)) == {Dialect.PUSH: 5}

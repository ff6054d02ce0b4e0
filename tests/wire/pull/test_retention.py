"""Closed runs go when their time is over, with all that was theirs, and nothing else does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.core.limits import SECOND
from perdure.core.run.state import Dialect
from perdure.features.retention.loops import Retention, RunPruner
from perdure.features.retention.operations import LEFTOVER, PruneOld
from perdure.store.sqlite.store import SqliteStore
from tests.support.http import (
    Json,
    Wire,
    a_wire,
    avro,
    complete_workflow,
    continue_as_new,
    contract_of,
    fail_workflow,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
)
from tests.support.uploads import fetch, outside

DAY = 86_400


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody moves the clock while runs are pruned."""
    monkeypatch.setattr("perdure.features.retention.loops.FORGET_PAUSE", 0)


def prune(wire: Wire, *, days: int = 30) -> int:
    rule = Retention(Dialect.PULL, days * DAY * SECOND, lambda: {"default"})
    return wire.run(RunPruner(wire.server.engine, wire.clock, [rule]).prune())


def traces(wire: Wire, run_id: str) -> dict[str, list[Any]]:
    """Every row that has to do with a run."""
    found = {
        table: [row for row in rows if run_id in repr(row)] for table, rows in wire.stored().items()
    }
    return {table: rows for table, rows in found.items() if rows}


def closed(wire: Wire, workflow_id: str = "order-1", **members: Any) -> str:
    """A run that has completed at once."""
    run_id: str = wire.start(workflow_id, **members)["run_id"]
    wire.complete(wire.take(), complete_workflow())
    return run_id


@pytest.fixture
def working(wire: Wire) -> Wire:
    wire.register()
    return wire


def test_a_run_goes_when_it_was_closed_for_as_long_as_runs_are_kept(working: Wire) -> None:
    wire = working
    run_id = closed(wire)
    wire.jump(seconds=30 * DAY)

    assert prune(wire) == 0
    wire.jump(seconds=1)
    assert prune(wire) == 1

    assert traces(wire, run_id) == {}
    assert prune(wire) == 0


def test_a_run_that_is_gone_is_not_found_and_its_id_is_free(working: Wire) -> None:
    wire = working
    first = closed(wire)
    wire.control("POST", "/workflows", wire_start("order-1")).refused(409, "duplicate_not_allowed")
    wire.jump(seconds=31 * DAY)
    prune(wire)

    paths = ("", "/runs", f"/runs/{first}", f"/runs/{first}/history")
    for path in paths:
        wire.control("GET", f"/workflows/order-1{path}").refused(404, "instance_not_found")
    wire.control("POST", "/workflows/order-1/signal/pay", {}).refused(404, "instance_not_found")
    assert wire.control("GET", "/workflows").ok()["workflows"] == []

    again = wire.start("order-1")
    assert again["run_id"] != first
    wire.complete(wire.take(), complete_workflow())
    assert wire.describe()["status"] == "completed"


def wire_start(workflow_id: str) -> Json:
    return {"workflow_id": workflow_id, "workflow_type": "Order", "task_queue": "q"}


def test_nothing_that_is_open_goes_however_old_it_is(working: Wire) -> None:
    """Nor what an open run still waits for, or has its word from."""
    wire = working
    parent = wire.start("parent")["run_id"]
    wire.complete(wire.take(), start_child("Order"))
    child = wire.take()
    wire.complete(child, complete_workflow("word"))
    wire.complete(wire.take(), start_timer(100 * DAY))
    wire.start("waiting")
    wire.complete(wire.take(), wait_for_condition())
    wire.jump(seconds=60 * DAY)

    assert prune(wire) == 1

    assert traces(wire, child["run_id"]).keys() <= {"history", "run", "open_run"}
    assert "ChildRunCompleted" in wire.event_types("parent", parent)
    wire.jump(seconds=40 * DAY)
    wire.advance(seconds=2)
    wire.register()
    wire.complete(wire.take(), complete_workflow())
    assert wire.describe("parent")["status"] == "completed"


def test_of_a_chain_the_old_runs_go_and_the_newest_goes_on(working: Wire) -> None:
    wire = working
    first = wire.start()["run_id"]
    wire.complete(wire.take(), continue_as_new())
    wire.complete(wire.take(), start_timer(100 * DAY))
    wire.signal("pay", request_id="r1")
    wire.jump(seconds=31 * DAY)

    assert prune(wire) == 1

    wire.control("GET", f"/workflows/order-1/runs/{first}").refused(404, "run_not_found")
    runs = wire.control("GET", "/workflows/order-1/runs").ok()["runs"]
    assert [run["run_number"] for run in runs] == [2]
    assert wire.signal("pay", request_id="r1")["outcome"] == "signal_received"
    assert len([t for t in wire.event_types() if t == "SignalReceived"]) <= 1


def test_everything_beside_a_run_goes_with_it(
    working: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers to commands, streams and their items, in bites smaller than what there is."""
    monkeypatch.setattr("perdure.features.retention.operations.REMAINS_ROWS_MAX", 3)
    wire = working
    run_id = wire.start()["run_id"]
    for number in range(5):
        wire.signal("pay", request_id=f"r{number}")
    for name in ("log", "other"):
        path = f"/workflows/order-1/runs/{run_id}/streams/{name}/items"
        wire.control("POST", path, {"items": [{"payload": avro(n)} for n in range(4)]}).ok()
    for _ in range(4):
        wire.complete(wire.take(), schedule_activity())
        wire.report_attempt(wire.take("activity"), "complete", result=avro(1)).ok()
    wire.complete(wire.take(), complete_workflow())
    wire.jump(seconds=31 * DAY)
    assert {"receipt", "stream_item", "record", "history"} <= traces(wire, run_id).keys()

    assert prune(wire) == 1

    assert traces(wire, run_id) == {}


def test_what_a_node_died_over_is_cleared_by_the_next(
    working: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.features.retention.operations.REMAINS_ROWS_MAX", 1)
    wire = working
    run_ids = [closed(wire, f"order-{number}") for number in range(3)]
    wire.jump(seconds=31 * DAY)
    old = PruneOld("default", Dialect.PULL, before=wire.clock.now() - 30 * DAY * SECOND, limit=10)
    wire.run(submit(wire, old))
    assert all("history" in traces(wire, run_id) for run_id in run_ids)
    assert wire.control("GET", "/workflows").ok()["workflows"] == []

    wire.restart()
    while any(traces(wire, run_id) for run_id in run_ids):
        wire.advance(seconds=31)

    assert [row for row in wire.stored()["record"] if row[0] == LEFTOVER.name] == []


async def submit(wire: Wire, operation: Any) -> Any:
    return await wire.server.engine.submit(operation)


def test_a_failed_run_that_was_continued_leaves_a_whole_one(working: Wire) -> None:
    wire = working
    failed = wire.start()["run_id"]
    wire.complete(wire.take(), schedule_activity())
    wire.report_attempt(wire.take("activity"), "complete", result=avro("paid")).ok()
    wire.complete(wire.take(), fail_workflow())
    redriven = wire.control("POST", f"/workflows/order-1/runs/{failed}/redrive", {}).ok(202)
    wire.jump(seconds=31 * DAY)
    wire.register()

    assert prune(wire) == 1

    task = wire.take()
    assert task["run_id"] == redriven["run_id"]
    assert "ActivityCompleted" in wire.event_types("order-1", task["run_id"])
    wire.complete(task, complete_workflow())
    wire.control("GET", f"/workflows/order-1/runs/{failed}").refused(404, "run_not_found")


def test_nobody_writes_to_a_stream_of_a_run_that_is_gone(working: Wire) -> None:
    wire = working
    run_id = closed(wire)
    wire.jump(seconds=31 * DAY)
    prune(wire)

    path = f"/workflows/order-1/runs/{run_id}/streams/log/items"
    wire.control("POST", path, {"items": [{"payload": avro(1)}]}).refused(404, "instance_not_found")

    assert traces(wire, run_id) == {}


def test_what_answered_a_service_operation_stays_as_long_as_its_call(working: Wire) -> None:
    wire = working
    path = "/service-endpoints/e/services/s/operations/o"
    handler = {"workflow_type": "Order", "task_queue": "q"}
    for one in ("/service-endpoints/e", "/service-endpoints/e/services/s"):
        wire.control("PUT", one, {}).ok(201)
    binding = {"handler_binding_kind": "workflow_run", "handler_binding": handler}
    wire.control("PUT", path, binding).ok(201)
    wire.control("POST", f"{path}/execute", {"wait_for": "accepted"}).ok()
    wire.complete(wire.take(), complete_workflow())
    wire.jump(seconds=6 * DAY)

    assert prune(wire, days=1) == 0
    wire.jump(seconds=2 * DAY)
    assert prune(wire, days=1) == 1


# What operators ask -------------------------------------------------------------------------------


def passed(wire: Wire, **body: Any) -> Json:
    return wire.control("POST", "/system/retention/pass", body).ok()


def test_operators_see_what_is_too_old(working: Wire) -> None:
    wire = working
    old = [closed(wire, f"order-{number}") for number in range(2)]
    wire.jump(seconds=31 * DAY)
    wire.register()
    closed(wire, "young")
    wire.start("open")

    told = wire.control("GET", "/system/retention").ok()

    assert told == {
        "namespace": "default",
        "retention_mode": "bounded",
        "retention_days": 30,
        "cutoff": told["cutoff"],
        "expired_run_count": 2,
        "expired_run_ids": old,
        "scan_limit": 100,
        "scan_pressure": False,
    }
    assert told["cutoff"].startswith("2026-01-02T00:00:00")
    namespace = wire.call("GET", "/api/cluster/info").ok()["namespace"]
    assert (namespace["retention_mode"], namespace["retention_days"]) == ("bounded", 30)


def test_a_pass_removes_the_oldest_and_says_what_went(working: Wire) -> None:
    wire = working
    old = [closed(wire, f"order-{number}") for number in range(3)]
    wire.jump(seconds=31 * DAY)

    told = passed(wire, limit=2)

    assert {name: told[name] for name in ("processed", "pruned", "skipped", "failed")} == {
        "processed": 2,
        "pruned": 2,
        "skipped": 0,
        "failed": 0,
    }
    first = told["results"][0]
    assert first == {
        "run_id": old[0],
        "outcome": "pruned",
        "history_events_deleted": 3,
        "tasks_deleted": 1,
        "external_payloads_deleted": 0,
        "deleted": {"workflow_runs": 1, "workflow_history_events": 3, "workflow_tasks": 1},
    }
    assert [result["run_id"] for result in passed(wire)["results"]] == old[2:]
    assert passed(wire)["processed"] == 0


def test_a_pass_over_certain_runs_skips_what_must_stay(working: Wire) -> None:
    wire = working
    old, other = closed(wire, "old"), closed(wire, "other")
    wire.jump(seconds=31 * DAY)
    wire.register()
    young = closed(wire, "young")
    waiting = wire.start("open")["run_id"]
    wanted = [young, old, "nobody", waiting, old]

    told = passed(wire, run_ids=wanted)

    outcomes = [(one["run_id"], one["outcome"], one.get("reason")) for one in told["results"]]
    assert outcomes == [
        (young, "skipped", "run_not_expired"),
        (old, "pruned", None),
        ("nobody", "skipped", "run_not_found"),
        (waiting, "skipped", "run_not_terminal"),
    ]
    again = passed(wire, run_ids=[old])
    assert again["results"] == [{"run_id": old, "outcome": "skipped", "reason": "run_not_found"}]
    assert passed(wire, run_ids=[])["processed"] == 0
    assert traces(wire, other)


def test_whoever_keeps_runs_for_ever_prunes_none(tmp_path: Path) -> None:
    with a_wire(tmp_path, history_retention=0) as wire:
        wire.register()
        run_id = closed(wire)
        wire.jump(seconds=9_999 * DAY)

        told = wire.control("GET", "/system/retention").ok()
        assert (told["retention_mode"], told["retention_days"]) == ("forever", None)
        assert (told["cutoff"], told["expired_run_ids"]) == (None, [])
        namespace = wire.call("GET", "/api/cluster/info").ok()["namespace"]
        assert (namespace["retention_mode"], namespace["retention_days"]) == ("forever", None)
        assert passed(wire)["processed"] == 0
        assert passed(wire, run_ids=[run_id])["results"][0]["reason"] == "run_not_expired"
        assert wire.run(wire.find_loop(RunPruner).prune()) == 0


def test_a_run_that_cannot_be_read_stays_and_is_told(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        wire.register()
        broken, whole = closed(wire, "broken"), closed(wire, "whole")
        store = wire.server.store
        assert isinstance(store, SqliteStore)
        store._writer.execute("update run set state = x'c1' where run_id = ?", (broken,))
        wire.jump(seconds=31 * DAY)

        told = wire.control("POST", "/system/retention/pass", {}).ok(207)

        assert (told["pruned"], told["failed"]) == (1, 1)
        outcome = {"run_id": broken, "outcome": "error", "reason": "run_unreadable"}
        assert told["results"][1] == outcome
        assert traces(wire, whole) == {}
        assert {"run", "history"} <= traces(wire, broken).keys()


# External payloads --------------------------------------------------------------------------------


def is_there(wire: Wire, envelope: Json) -> bool:
    return fetch(wire, envelope["external_payload"]).status == 200


def forget_loose(wire: Wire) -> None:
    """What is loose has an hour."""
    wire.jump(seconds=3_601)
    wire.advance(seconds=1)


def test_payloads_go_with_the_last_run_that_names_them(working: Wire) -> None:
    wire = working
    own, common = outside(wire, "own"), outside(wire, "common")
    first = wire.start("first", input=common)["run_id"]
    wire.complete(wire.take(), schedule_activity(arguments=own))
    wire.report_attempt(wire.take("activity"), "complete", result=common).ok()
    wire.complete(wire.take(), complete_workflow())
    wire.jump(seconds=20 * DAY)
    wire.register()
    second = closed(wire, "second", input=common)
    wire.jump(seconds=11 * DAY)

    (gone,) = passed(wire)["results"]
    assert (gone["run_id"], gone["external_payloads_deleted"]) == (first, 1)
    forget_loose(wire)
    assert (is_there(wire, own), is_there(wire, common)) == (False, True)

    wire.jump(seconds=20 * DAY)
    assert prune(wire) == 1
    forget_loose(wire)
    assert not is_there(wire, common)
    assert traces(wire, second) == {}
    wire.jump(seconds=DAY)
    wire.advance(seconds=2)
    assert wire.stored()["payload"] == []
    assert [row for row in wire.stored()["record"] if "payload" in str(row[0])] == []


def test_payloads_that_a_run_handed_on_stay_with_whoever_has_them(working: Wire) -> None:
    """By continuing, by returning to a parent, in a message that nobody has read, by redriving."""
    wire = working
    told, said, kept, done = (outside(wire, word) for word in ("told", "said", "kept", "done"))
    wire.start("parent")
    wire.complete(wire.take(), start_child("Order"))
    wire.complete(wire.take(), {"type": "complete_workflow", "result": told})
    wire.complete(wire.take(), start_timer(400 * DAY))
    wire.start("chain", input=kept)
    task = wire.take()
    wire.signal("pay", "chain", input=said)
    wire.complete(task, {"type": "continue_as_new"})
    task = wire.take()
    failed = wire.start("failed", input=[1])["run_id"]
    wire.complete(wire.take(), schedule_activity())
    wire.report_attempt(wire.take("activity"), "complete", result=done).ok()
    wire.complete(wire.take(), fail_workflow())
    wire.control("POST", f"/workflows/failed/runs/{failed}/redrive", {}).ok(202)
    wire.jump(seconds=31 * DAY)

    assert prune(wire) == 3
    forget_loose(wire)

    assert [is_there(wire, one) for one in (told, said, kept, done)] == [True] * 4


def test_a_payload_that_is_uploaded_again_in_time_is_kept(working: Wire) -> None:
    wire = working
    common = outside(wire, "common")
    closed(wire, "first", input=common)
    wire.jump(seconds=31 * DAY)
    wire.register()

    prune(wire)
    wire.start("second", input=outside(wire, "common"))
    forget_loose(wire)

    assert is_there(wire, common)


def test_streams_name_payloads_for_their_run(working: Wire) -> None:
    wire = working
    item = outside(wire, "item")
    run_id = wire.start()["run_id"]
    path = f"/workflows/order-1/runs/{run_id}/streams/log/items"
    wire.control("POST", path, {"items": [{"payload": item}]}).ok()
    wire.complete(wire.take(), complete_workflow())
    other = closed(wire, "other", input=item)
    wire.jump(seconds=31 * DAY)

    assert passed(wire, run_ids=[other])["results"][0]["external_payloads_deleted"] == 0
    assert passed(wire, run_ids=[run_id])["results"][0]["external_payloads_deleted"] == 1


def keep_signal(wire: Wire, envelope: Json) -> None:
    wire.start("kept")
    wire.signal("pay", "kept", input=envelope)


def keep_update(wire: Wire, envelope: Json) -> None:
    wire.register(workflow_command_contracts=contract_of("Order", updates={"add": 1}))
    wire.start("kept")
    wire.update("add", "kept", input=envelope).ok(202)


@pytest.mark.parametrize("keep", [keep_signal, keep_update])
def test_a_payload_stays_that_only_a_waiting_message_names(
    working: Wire, keep: Callable[[Wire, Json], None]
) -> None:
    """Somebody else named the same bytes, too, and goes before what waits is in history."""
    wire = working
    common = outside(wire, ["common"])
    closed(wire, "gone", input=common)
    keep(wire, common)
    reference_id = common["external_payload"]["reference_id"]
    assert reference_id not in json.dumps(wire.events("kept"))
    wire.jump(seconds=31 * DAY)

    assert prune(wire) == 1
    forget_loose(wire)

    assert is_there(wire, common)
    wire.control("POST", "/workflows/kept/terminate", {}).ok()
    wire.jump(seconds=31 * DAY)
    assert prune(wire) == 1
    forget_loose(wire)
    assert not is_there(wire, common)


def test_a_payload_stays_that_only_a_result_names_which_waits_for_others(wire: Wire) -> None:
    """Results of a list of an old worker enter history together; the child goes long before."""
    wire.register(sdk_version="durable-workflow-python/0.4.106")
    wire.run_to(start_child("Order"), schedule_activity())
    result = outside(wire, "told")
    wire.complete(wire.take(), {"type": "complete_workflow", "result": result})
    assert "ChildRunCompleted" not in wire.event_types()
    wire.jump(seconds=31 * DAY)

    assert prune(wire) == 1
    forget_loose(wire)

    assert is_there(wire, result)
    wire.register(sdk_version="durable-workflow-python/0.4.106")
    wire.report_attempt(wire.take("activity"), "complete", result=avro("paid")).ok()
    told = next(e for e in wire.events() if e["event_type"] == "ChildRunCompleted")
    assert told["payload"]["output"] == result


def start_again(wire: Wire, envelope: Json) -> None:
    body = {**wire_start("order-1"), "input": envelope, "duplicate_policy": "use-existing"}
    assert wire.control("POST", "/workflows", body).ok()["outcome"] == "returned_existing_active"


def send_message(wire: Wire, envelope: Json) -> None:
    """Messages are parts of other payloads, so what was uploaded is put into them."""
    path = "/workflows/order-1/message-streams/orders/messages"
    wire.control("POST", path, {"message_id": "m1", "input": envelope}).ok(202)


@pytest.mark.parametrize("name", [start_again, send_message])
def test_a_payload_that_nothing_came_to_name_goes_in_an_hour(
    working: Wire, name: Callable[[Wire, Json], None]
) -> None:
    wire = working
    wire.start()
    envelope = outside(wire, ["once"])

    name(wire, envelope)
    assert is_there(wire, envelope)
    forget_loose(wire)

    assert not is_there(wire, envelope)
    assert wire.stored()["payload"] == []

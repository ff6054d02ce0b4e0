"""A run whose history has a flipped byte on disk stands still and says why; the rest goes on."""

from collections.abc import Callable
from typing import Any

import pytest

from perdure.core.limits import RUN_HISTORY_CACHE_BYTES_MAX
from perdure.server.settings import is_postgres, sqlite_path
from tests.store.copying import Place
from tests.support.http import (
    Json,
    Wire,
    complete_workflow,
    schedule_activity,
    wait_for_condition,
)


def flip(wire: Wire, run_id: str, nth: int) -> None:
    """Flip a bit of a chunk on disk, and have the server forget what it remembers."""
    store = wire._settings.store
    place = Place(store if is_postgres(store) else f"sqlite://{sqlite_path(store)}")
    rows = place.ask(
        f"select first_sequence, events from history where run_id = '{run_id}' "
        "order by first_sequence"
    )
    first, events = rows[nth]
    flipped = bytearray(events)
    flipped[flipped.index(b'"event_type":"') + 14] ^= 1
    literal = f"'\\x{flipped.hex()}'::bytea" if is_postgres(store) else f"x'{flipped.hex()}'"
    place.ask(
        f"update history set events = {literal} "
        f"where run_id = '{run_id}' and first_sequence = {first}"
    )
    wire.server.cache.clear()


@pytest.fixture(params=[0, -1], ids=["first", "last"])
def damaged(request: pytest.FixtureRequest, wire: Wire) -> Json:
    """A run that waits for a condition, with damage in its first chunk or its last."""
    wire.register(capabilities=["query_tasks"])
    wire.run_to(schedule_activity(), workflow_id="damaged")
    wire.report_attempt(wire.take("activity"), "complete", result={"codec": "avro", "blob": "AA=="})
    wire.complete(wire.take(), wait_for_condition())
    run = wire.describe("damaged")
    flip(wire, run["run_id"], request.param)
    return run


def test_its_history_is_refused_with_a_reason(wire: Wire, damaged: Json) -> None:
    run_id = damaged["run_id"]
    path = f"/workflows/damaged/runs/{run_id}/history"
    assert wire.control("GET", path).refused(409, "history_damaged")["run_id"] == run_id


def test_its_tasks_are_not_handed_out_and_those_of_others_are(wire: Wire, damaged: Json) -> None:
    wire.control("POST", "/workflows/damaged/signal/paid", {}).refused(409, "history_damaged")
    wire.start("fine")
    task = wire.take()
    assert task["workflow_id"] == "fine"
    wire.complete(task, complete_workflow())
    assert wire.describe("fine")["status"] == "completed"


def test_it_says_why_it_stands_still(wire: Wire, damaged: Json) -> None:
    wire.control("POST", "/workflows/damaged/signal/paid", {}).refused(409, "history_damaged")
    told = wire.describe("damaged")
    assert told["run_id"] == damaged["run_id"]
    assert told["next_cause"]["kind"] == "history_damaged"
    assert "restore it from a backup" in told["wait_reason"]


CHANGES: dict[str, Callable[[Wire, Json], Any]] = {
    "signal": lambda wire, run: wire.control("POST", "/workflows/damaged/signal/paid", {}),
    "update": lambda wire, run: wire.update(workflow_id="damaged"),
    "cancel": lambda wire, run: wire.control("POST", "/workflows/damaged/cancel", {}),
    "terminate": lambda wire, run: wire.control("POST", "/workflows/damaged/terminate", {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_about_it_is_changed(wire: Wire, damaged: Json, change: str) -> None:
    with wire.nothing_changes():
        CHANGES[change](wire, damaged).refused(409, "history_damaged")


def test_a_task_that_waits_on_disk_is_left_there(wire: Wire) -> None:
    wire.register()
    first = wire.start("first")
    wire.complete(wire.take(), schedule_activity())
    flip(wire, first["run_id"], 0)
    wire.run_to(schedule_activity(), workflow_id="second")
    task = wire.take("activity")
    assert task["workflow_id"] == "second"
    assert wire.poll("activity", timeout_seconds=0)["task"] is None


def test_damage_deep_inside_a_long_history_is_found_by_who_reads_it(wire: Wire) -> None:
    """Memory keeps only the ends of it, so the task is leased before the rest is read."""
    wire.register()
    marker = {"type": "record_side_effect", "result": "x" * 20_000}
    count = RUN_HISTORY_CACHE_BYTES_MAX // 20_000 // 2
    wire.run_to(*[marker] * count, schedule_activity(), workflow_id="long")
    wire.report_attempt(wire.take("activity"), "complete", result={"codec": "avro", "blob": "AA=="})
    wire.complete(wire.take(), *[marker] * count, *[marker] * 8, schedule_activity())
    wire.report_attempt(wire.take("activity"), "complete", result={"codec": "avro", "blob": "AA=="})
    flip(wire, wire.describe("long")["run_id"], 1)
    assert wire.poll(timeout_seconds=0)["task"] is None
    assert wire.describe("long")["next_cause"]["kind"] == "history_damaged"
    wire.control("POST", "/workflows/long/signal/paid", {}).refused(409, "history_damaged")
    wire.start("fine")
    assert wire.take()["workflow_id"] == "fine"

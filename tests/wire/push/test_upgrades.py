"""A store of an older release goes on under this one, with all that was in it.

What it held is in `tests/fixtures/schema-5`, as that release wrote it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from perdure.core.limits import SECOND
from perdure.core.run.state import Dialect
from perdure.features.retention.loops import Retention, RunPruner
from perdure.store.postgres import schema as postgres_schema
from perdure.store.queries import load_migrations
from perdure.store.sqlite import schema as sqlite_schema
from perdure.store.sqlite.store import PACKAGE
from tests.store.nodes import session
from tests.support.clock import START
from tests.support.http import Json, Wire, a_wire, avro, complete_workflow, unavro
from tests.support.runner import HandRunner, a_runner, rows, settled, show, start, workflow
from tests.support.uploads import fetch

OLD = 5
NEWEST = load_migrations(PACKAGE)[-1][0]
ROWS = Path(__file__).parents[2] / "fixtures" / "schema-5"
DAY = 86_400


@pytest.fixture
def upgraded(
    wire_store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Wire]:
    """A server of this release on what the older one left."""
    monkeypatch.setattr("perdure.features.retention.loops.FORGET_PAUSE", 0)
    store = f"sqlite:///{tmp_path / 'perdure.db'}"
    with monkeypatch.context() as then:
        for module in (sqlite_schema, postgres_schema):
            then.setattr(module, "load_migrations", lambda package: load_migrations(package)[:OLD])
        if wire_store == "postgres":
            store = request.getfixturevalue("postgres_url")
            asyncio.run(_fill_database(store))
        else:
            _fill_file(tmp_path / "perdure.db")
    with a_wire(tmp_path, store=store) as wire:
        yield wire


def _fill_file(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        sqlite_schema.prepare_writer(connection)
        sqlite_schema.migrate(connection, PACKAGE)
        with connection:
            connection.execute((ROWS / "sqlite.sql").read_text())


async def _fill_database(url: str) -> None:
    async with session(url) as connection:
        assert await postgres_schema.migrate(connection) == list(range(1, OLD + 1))
        await postgres_schema.add_partitions(connection, START)
        await connection.execute((ROWS / "postgres.sql").read_text())


def prune(wire: Wire) -> dict[Dialect, int]:
    """How many runs of each sort are gone."""
    return {
        dialect: wire.run(
            RunPruner(
                wire.server.engine,
                wire.clock,
                [Retention(dialect, 30 * DAY * SECOND, lambda: {"default"})],
            ).prune()
        )
        for dialect in Dialect
    }


def statuses(wire: Wire) -> dict[str, str]:
    """Durable Workflow runs that are listed, oldest first; of each id the newest."""
    listed = wire.control("GET", "/workflows").ok()["workflows"]
    return {
        row["workflow_id"]: row["status"]
        for row in reversed(listed)
        if row["workflow_id"] != row["run_id"]
    }


def pushed(wire: Wire, query: str = "") -> list[tuple[str, str]]:
    return [(row["workflowName"], row["status"]) for row in rows(wire, f"/runs?{query}")]


def the_run(wire: Wire, name: str, status: str) -> Json:
    (run,) = [
        row for row in rows(wire, "/runs") if (row["workflowName"], row["status"]) == (name, status)
    ]
    return run


def a_shop(wire: Wire) -> HandRunner:
    return a_runner(wire, workflow("write"), workflow("rest"))


def test_everything_is_still_there(upgraded: Wire) -> None:
    wire = upgraded
    versions = [row[0] for row in wire.stored()["schema_version"]]
    assert versions == list(range(1, NEWEST + 1))

    assert statuses(wire) == {
        "old-done": "completed",
        "old-failed": "failed",
        "chain": "waiting",
        "charging": "waiting",
        "waiting": "waiting",
        "ready": "pending",
    }
    done = wire.describe("old-done")
    assert done["output"] == "done"
    events = wire.events("old-done")
    kinds = [event["event_type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("StartAccepted", "WorkflowCompleted")
    assert {"SignalReceived", "ActivityStarted", "ActivityCompleted"} <= set(kinds)
    stream = f"/workflows/old-done/runs/{done['run_id']}/streams/log/items"
    items = wire.control("GET", stream).ok()["items"]
    assert [unavro(item["payload"]) for item in items] == [0, 1]
    (payload,) = wire.stored()["payload"]
    assert fetch(wire, {"reference_id": payload[1]}).status == 200
    runs = wire.control("GET", "/workflows/chain/runs").ok()["runs"]
    assert [run["status"] for run in runs] == ["completed", "waiting"]

    ended = {("write", "failed"), ("write", "succeeded")}
    open_ones = {("write", "needs_attention"), ("rest", "waiting")}
    for sort in ("started", "workflow", "app", "status", "duration"):
        ascending = pushed(wire, f"sort={sort}&dir=asc")
        assert set(ascending) == ended | open_ones, sort
        assert pushed(wire, f"sort={sort}") == ascending[::-1], sort
    run = the_run(wire, "write", "succeeded")
    (step, approval) = rows(wire, f"/runs/{run['id']}/steps")
    assert (step["name"], step["output"]) == ("pay", {"paid": True})
    assert approval["status"] == "succeeded"
    assert [line["message"] for line in rows(wire, f"/runs/{run['id']}/logs")] == ["hello"]
    assert [score["name"] for score in rows(wire, f"/runs/{run['id']}/scores")] == ["good"]
    (conversation,) = rows(wire, "/sessions")
    assert conversation["runCount"] == 2


def test_what_was_under_way_goes_on(upgraded: Wire) -> None:
    wire = upgraded
    before = wire.event_types("chain")
    assert wire.signal("pay", "chain", request_id="r2")["outcome"] == "signal_received"
    assert wire.event_types("chain") == before, "what was answered once is not done again"

    task = wire.take()
    assert task["workflow_id"] == "ready"
    wire.complete(task, complete_workflow())
    wire.report_attempt(wire.take("activity"), "complete", result=avro("paid")).ok()
    wire.signal("pay", "waiting", request_id="r3")
    wire.advance(seconds=61)
    for _ in range(3):
        wire.complete(wire.take(), complete_workflow())
    assert {status for name, status in statuses(wire).items() if name != "old-failed"} == {
        "completed"
    }

    runner = a_shop(wire)
    invoke = runner.next()
    assert invoke.memo("lie") == {"data": 1}
    invoke.returned()
    settled(wire, invoke.run_id, "succeeded")
    (approval,) = rows(wire, "/approvals?status=pending")
    decision = {"status": "approved", "decidedBy": "bob"}
    wire.call("POST", f"/approvals/{approval['id']}/decision", decision).ok()
    invoke = runner.next()
    assert invoke.run_id == approval["runId"]
    invoke.returned()
    settled(wire, invoke.run_id, "succeeded")
    fresh = start(wire, "write")
    runner.next().returned()
    assert settled(wire, fresh, "succeeded")["id"] == fresh


def test_what_was_over_goes_when_its_time_is(upgraded: Wire) -> None:
    wire = upgraded
    payloads = wire.stored()["payload"]
    assert len(payloads) == 1
    gone = [wire.describe(name)["run_id"] for name in ("old-done", "old-failed")]
    first, second = wire.control("GET", "/workflows/chain/runs").ok()["runs"]
    gone += [first["run_id"]]
    gone += [the_run(wire, "write", status)["id"] for status in ("succeeded", "failed")]
    waiting = the_run(wire, "write", "needs_attention")["id"]
    wire.jump(seconds=31 * DAY)

    assert prune(wire) == {Dialect.PULL: 3, Dialect.PUSH: 2}

    assert set(statuses(wire)) == {"chain", "charging", "waiting", "ready"}
    assert set(pushed(wire)) == {("write", "needs_attention"), ("rest", "waiting")}
    found = [row for row in traces(wire, *gone) if second["run_id"] not in repr(row)]
    assert found == [], "only the next run of a chain remembers the one before"
    # An answer of the older release does not say whose it is: it goes with the last run of its id.
    assert {row[1] for row in wire.stored()["receipt"]} == {"chain"}
    # Nor is it known who names a payload that it took in, so that stays.
    assert wire.stored()["payload"] == payloads

    wire.register()
    wire.advance(seconds=1)
    took = {wire.take()["workflow_id"] for _ in range(2)}
    assert took == {"chain", "ready"}
    for name in ("chain", "charging", "waiting", "ready"):
        wire.control("POST", f"/workflows/{name}/terminate", {}).ok()
    assert show(wire, waiting)["status"] == "needs_attention"
    wire.jump(seconds=31 * DAY)
    assert prune(wire)[Dialect.PULL] == 4
    assert statuses(wire) == {}
    assert wire.stored()["receipt"] == []


def traces(wire: Wire, *run_ids: str) -> list[tuple[object, ...]]:
    """Every row that has to do with some runs, except what the logs of events and deeds say."""
    return [
        (table, *row)
        for table, stored in wire.stored().items()
        for row in stored
        if any(run_id in repr(row) for run_id in run_ids)
        and row[0] not in ("event", "control_action")
    ]

"""Closed runs are found by their age, and what they leave behind by their ids."""

import asyncio

import pytest

from perdure.clock import SystemClock
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.store.interface import (
    Changes,
    ClosedFilter,
    Conflict,
    Instance,
    Receipt,
    ReceiptKey,
    Record,
    RecordChange,
    RecordKey,
    Store,
    StreamItem,
)
from perdure.store.postgres.statements import Statements
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from tests.store.building import NOW, a_run, with_events
from tests.store.keeping import Keep


def a_closed_run(workflow_id: str, at: int, *, is_pushed: bool = False) -> Run:
    run = with_events(a_run(workflow_id), 3)
    if is_pushed:
        run.workflow_id = run.run_id
    run.status, run.closed_at, run.task = RunStatus.COMPLETED, NOW + at, None
    run.unsaved.ready = {}
    return run


def found(keep: Keep, store: Store, **wanted: object) -> list[str]:
    told = {"namespace": "default", "is_pushed": False, "before": NOW + 5, "limit": 10, **wanted}
    rows = keep.run(store.find_closed(ClosedFilter(**told)))  # type: ignore[arg-type]
    keep.run(store.release())
    assert keep.run(store.read_closed(ClosedFilter(**told))) == [row.run_id for row in rows]  # type: ignore[arg-type]
    return [row.workflow_id for row in rows]


def test_closed_runs_are_found_in_the_order_in_which_they_closed(keep: Keep) -> None:
    with keep.opened() as store:
        runs = [a_closed_run(f"closed-{at}", at) for at in (3, 1, 2, 5, 6)]
        pushed = a_closed_run("", 1, is_pushed=True)
        keep.commit(store, *runs, pushed, a_run("open"), a_run("abroad", namespace="abroad"))

        assert found(keep, store) == ["closed-1", "closed-2", "closed-3"]
        assert found(keep, store, limit=2) == ["closed-1", "closed-2"]
        second = next(run for run in runs if run.workflow_id == "closed-2")
        assert found(keep, store, after=(NOW + 2, second.run_id)) == ["closed-3"]
        assert found(keep, store, is_pushed=True) == [pushed.run_id]
        assert found(keep, store, namespace="abroad") == []


def test_a_run_is_removed_as_it_was_found_or_not_at_all(keep: Keep) -> None:
    with keep.opened() as store:
        run = a_closed_run("closed", 1)
        keep.commit(store, run)
        (row,) = keep.run(store.find_rows([run.run_id]))
        keep.run(store.release())
        assert row[:4] == (run.run_id, "default", "closed", run.closed_at)
        if store.is_shared:
            with pytest.raises(Conflict):
                keep.run(store.commit(Changes(gone=[row._replace(version=row.version + 1)])))
        keep.run(store.commit(Changes(gone=[row])))

        assert keep.run(store.load_runs([run.run_id], {run.run_id: run})) == []
        assert keep.run(store.read_run(run.run_id)) is None
        assert keep.run(store.find_current([Instance("default", "closed")])) == {}


def test_what_is_left_is_found_in_bites_until_there_is_nothing(keep: Keep) -> None:
    with keep.opened() as store:
        run, other = a_closed_run("closed", 1), a_closed_run("other", 1)
        keep.commit(store, run, other)
        for _ in range(3):
            keep.commit(store, with_events(run, 1, bytes_each=100))
        receipts = {
            ReceiptKey("default", one.workflow_id, "signal", f"r{number}"): Receipt(
                "", one.run_id, "c", "done", NOW
            )
            for one in (run, other)
            for number in range(4)
        }
        items = [StreamItem(run.run_id, "log", number, None, b"{}") for number in range(4)]
        keys = [RecordKey("stream", "default", f"{one.run_id}/log") for one in (run, other)]
        records = {key: RecordChange(None, Record(b"x", NOW)) for key in keys}
        keep.run(store.commit(Changes(receipts=receipts, items=items, records=records)))
        (row,) = keep.run(store.find_rows([run.run_id]))
        keep.run(store.release())
        keep.run(store.commit(Changes(gone=[row])))

        kinds, ids = ["stream", "score"], [run.run_id]
        assert keep.run(store.find_keys_of("default", kinds, ids, 10)) == keys[:1]
        named = [Instance("default", "closed")]
        bites = 0
        while True:
            remains = keep.run(store.find_remains(ids, named, limit=3, size=150))
            bites += 1
            assert len(remains.chunks) <= 3
            keep.run(store.commit(Changes(remains=[remains])))
            if remains.is_all:
                break
        assert bites > 1
        assert keep.run(store.find_remains(ids, named, limit=3, size=150)).count == 0
        kept = keep.run(store.find_receipts(receipts))
        assert {key.workflow_id for key in kept} == {"other"}
        assert keep.run(store.read_history(other.run_id, 0, 10))


def test_answers_of_an_older_release_go_with_the_last_run_of_their_id(keep: Keep) -> None:
    """They do not say which run they are of."""
    with keep.opened() as store:
        first, second = a_closed_run("chain", 1), a_closed_run("chain", 2)
        second.run_number = 2
        old = {ReceiptKey("default", "chain", "signal", "old"): Receipt("", "", "c", "done", NOW)}
        keep.commit(store, first, second)
        keep.run(store.commit(Changes(receipts=old)))
        keep.run(forget_runs_of_receipts(store))
        named = [Instance("default", "chain")]
        for run, left in ((first, 0), (second, 1)):
            (row,) = keep.run(store.find_rows([run.run_id]))
            keep.run(store.release())
            keep.run(store.commit(Changes(gone=[row])))
            remains = keep.run(store.find_remains([run.run_id], named, limit=9, size=9_999))
            assert len(remains.receipts) == left


async def forget_runs_of_receipts(store: Store) -> None:
    if isinstance(store, SqliteStore):
        store._writer.execute("update receipt set run_id = null")
        return
    assert isinstance(store, PostgresStore)
    connection = await store._lane.connect()
    await connection.execute("update perdure.receipt set run_id = null")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("find_closed", "run_closed_idx"),
        ("find_closed_pushed", "run_push_closed_idx"),
        ("read_closed", "run_closed_idx"),
        ("read_closed_pushed", "run_push_closed_idx"),
    ],
)
def test_postgresql_finds_old_runs_by_their_index(
    postgres_url: str, query: str, index: str
) -> None:
    """However many there are that are not old, or of the other sort."""

    async def explained() -> str:
        store = PostgresStore(postgres_url, node_id="a", clock=SystemClock())
        await store.open()
        try:
            connection = await store._lane.connect()
            values = ("default", NOW, -1, "", 100)
            rows = await connection.fetch(f"explain {Statements()[query]}", *values)
            return "\n".join(row[0] for row in rows)
        finally:
            await store.close()

    plan = asyncio.run(explained())
    assert f"using {index} on run" in plan, plan
    assert "Sort" not in plan, plan

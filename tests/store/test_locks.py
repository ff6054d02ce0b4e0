"""No statement of a node waits for rows that another one holds: it goes on without them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.store.interface import (
    Changes,
    ClosedFilter,
    Conflict,
    QueueKey,
    Record,
    RecordChange,
    RecordKey,
    RunRow,
)
from perdure.store.postgres import connection as line
from perdure.store.postgres.store import PostgresStore
from tests.store.building import NOW, a_run, a_worker, with_events
from tests.store.nodes import commit, nodes, session

KEY = RecordKey("kind", "default", "key")


@pytest.fixture(autouse=True)
def statements_that_wait_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a lock does so until its statement is cut, which is no lost race."""
    for settings in (line.BEAT_SESSION, line.SESSION):
        monkeypatch.setitem(settings, "lock_timeout", "0")
        monkeypatch.setitem(settings, "statement_timeout", "2s")
    monkeypatch.setattr("perdure.store.postgres.store._BEGIN", "begin")


def a_closed_run(workflow_id: str = "closed", *, is_pushed: bool = False) -> Run:
    run = with_events(a_run(workflow_id), 1)
    if is_pushed:
        run.workflow_id = run.run_id
    run.status, run.closed_at, run.task = RunStatus.COMPLETED, NOW, None
    run.unsaved.ready = {}
    return run


class Held:
    """A store with one row of each sort, all of them locked by somebody else."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.open, self.closed = a_run("open"), a_closed_run()
        self.pushed = a_closed_run(is_pushed=True)

    async def fill(self) -> None:
        records = {KEY: RecordChange(None, Record(b"before"))}
        workers = {("default", "w1"): a_worker()}
        runs = (self.open, self.closed, self.pushed)
        await commit(self.store, *runs, records=records, workers=workers)
        due = a_run("due")
        due.due_at = NOW
        await commit(self.store, due)

    @staticmethod
    async def lock(other: "asyncpg.Connection[asyncpg.Record]") -> None:
        for table in ("open_run", "run", "worker", "record", "ready", "deadline"):
            await other.execute(f"select from perdure.{table} for update")


async def change_open(held: Held) -> None:
    await held.store.commit(Changes(runs=[with_events(held.open, 1)]))


async def remove_closed(held: Held) -> None:
    run = held.closed
    row = RunRow(run.run_id, run.namespace, run.workflow_id, run.closed_at, run.version, run)
    await held.store.commit(Changes(gone=[row]))


async def change_worker(held: Held) -> None:
    workers, revisions = {("default", "w1"): a_worker()}, {("default", "w1"): 1}
    await held.store.commit(Changes(workers=dict(workers), worker_revisions=revisions))


async def change_record(held: Held) -> None:
    change = RecordChange(Record(b"before", version=1), Record(b"after"))
    await held.store.commit(Changes(records={KEY: change}))


@pytest.mark.parametrize("change", [change_open, remove_closed, change_worker, change_record])
def test_a_commit_loses_to_whoever_holds_its_rows_and_does_not_wait(
    migrated_url: str, change: Callable[[Held], Awaitable[None]]
) -> None:
    async def story() -> None:
        async with nodes(migrated_url) as [store], session(migrated_url) as other:
            held = Held(store)
            await held.fill()
            async with other.transaction():
                await held.lock(other)
                with pytest.raises(Conflict):
                    await change(held)
            await change(held)

    asyncio.run(story())


async def load_ready(held: Held) -> list[Any]:
    key = QueueKey("default", "q", "workflow")
    return list(await held.store.load_ready(key, {"shop"}, 9))


async def load_due(held: Held) -> list[Any]:
    return list(await held.store.load_due(NOW + 1, 9))


async def find_closed(held: Held) -> list[Any]:
    wanted = ClosedFilter(namespace="default", is_pushed=False, before=NOW + 1, limit=9)
    return list(await held.store.find_closed(wanted))


async def find_closed_pushed(held: Held) -> list[Any]:
    wanted = ClosedFilter(namespace="default", is_pushed=True, before=NOW + 1, limit=9)
    return list(await held.store.find_closed(wanted))


async def find_rows(held: Held) -> list[Any]:
    return list(await held.store.find_rows([held.closed.run_id]))


@pytest.mark.parametrize("look", [load_ready, load_due, find_closed, find_closed_pushed, find_rows])
def test_a_look_passes_over_what_others_hold_and_does_not_wait(
    migrated_url: str, look: Callable[[Held], Awaitable[list[Any]]]
) -> None:
    async def story() -> None:
        async with nodes(migrated_url) as [store], session(migrated_url) as other:
            held = Held(store)
            await held.fill()
            async with other.transaction():
                await held.lock(other)
                assert await look(held) == []
                await store.release()
            assert await look(held) != []
            await store.release()

    asyncio.run(story())

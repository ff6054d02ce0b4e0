"""A server that dies in the middle of a beat, at every moment of it, in every beat of a story."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec
import pytest

from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.store import rows
from perdure.store.sqlite.store import SqliteStore
from tests.engine.ending import must_end
from tests.engine.invariants import check_database, check_disk
from tests.faults.crashing_server import DEATH, At
from tests.faults.full_workflow import HISTORY, Voyage
from tests.faults.server_processes import Nursery, a_nursery
from tests.store.nodes import session
from tests.support.postgres import Cluster
from tests.support.server import STORES
from tests.support.tables import migrated_database

LIVES_MIN = 5
"""The story comes to every moment more often than this, or the moment is not where it was."""

eagerly = pytest.mark.parametrize("eager", [True, False], ids=["polls first", "polls later"])


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with a_nursery() as nursery:
        yield nursery


@eagerly
@pytest.mark.parametrize("at", list(At))
def test_a_server_may_die_in_any_beat(
    at: At, eager: bool, nursery: Nursery, tmp_path: Path
) -> None:
    """Die the nth time, come back and finish; for every n until the story is over before it.

    Who polls later goes through twice as many beats, most of them the same; every second will do.
    """
    with must_end(seconds=240):
        nth = 1
        while sail(nursery, File(tmp_path / f"{nth}.db"), at, nth, eager=eager):
            nth += 1 if eager else 2

    assert nth > LIVES_MIN


@pytest.mark.parametrize("at", list(At))
def test_a_node_may_die_in_any_beat(at: At, nursery: Nursery, postgres_cluster: Cluster) -> None:
    """The same on PostgreSQL. Its servers take longer to start, so every fifth beat will do."""
    with must_end(seconds=240):
        nth, is_over = 2, False
        while not is_over:
            url = migrated_database(postgres_cluster)
            is_over = not sail(nursery, Database(url), at, nth, eager=True)
            postgres_cluster.drop_database(url)
            nth += 5

    assert nth > LIVES_MIN


@eagerly
@pytest.mark.parametrize("store", STORES)
def test_a_server_may_die_again_and_again(
    store: str, eager: bool, nursery: Nursery, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each life lasts a few beats; the deaths come at changing moments."""
    disk: Place = File(tmp_path / "perdure.db")
    if store == "postgres":
        disk = Database(request.getfixturevalue("migrated_url"))
    moments = list(At)
    deaths = 0

    def next_life(voyage: Voyage) -> str:
        nonlocal deaths
        assert nursery.end_of_server() == DEATH
        check_promises(disk, voyage.promised)
        deaths += 1
        return nursery.open(disk.store, at=moments[deaths % len(moments)], nth=3)

    with must_end(seconds=180):
        voyage = Voyage(nursery.open(disk.store, at=moments[0], nth=3), next_life, eager=eager)
        described = voyage.sail()
        nursery.kill()

    assert deaths >= 4
    check_end(disk, described)


class Place(Protocol):
    """Where servers keep what they promised."""

    @property
    def store(self) -> Path | str: ...
    def select(self, column: str, table: str) -> list[Any]: ...
    async def check(self) -> list[Run]:
        """Every run, if all is sound."""
        ...


class File:
    """SQLite."""

    def __init__(self, path: Path) -> None:
        self.store = path

    def select(self, column: str, table: str) -> list[Any]:
        with closing(apsw.Connection(str(self.store))) as connection:
            return [value for (value,) in connection.execute(f"select {column} from {table}")]

    async def check(self) -> list[Run]:
        store = SqliteStore(self.store)
        await store.open()
        try:
            return await check_disk(store)
        finally:
            await store.close()


class Database:
    """PostgreSQL."""

    def __init__(self, url: str) -> None:
        self.store = url

    def select(self, column: str, table: str) -> list[Any]:
        async def look() -> list[Any]:
            async with session(self.store) as looking:
                rows = await looking.fetch(f"select {column} from perdure.{table}")
            return [value for (value,) in rows]

        return asyncio.run(look())

    async def check(self) -> list[Run]:
        return await check_database(self.store)


def sail(nursery: Nursery, disk: Place, at: At, nth: int, *, eager: bool) -> bool:
    """Play the story on a server that dies once; whether it did before the story was over."""
    died = False

    def next_life(voyage: Voyage) -> str:
        nonlocal died
        died = True
        assert nursery.end_of_server() == DEATH
        check_promises(disk, voyage.promised)
        return nursery.open(disk.store)

    voyage = Voyage(nursery.open(disk.store, at=at, nth=nth), next_life, eager=eager)
    described = voyage.sail()
    if died:
        nursery.stop()
    else:
        nursery.kill()
    check_end(disk, described)
    return died


def check_promises(disk: Place, promised: Counter[str]) -> None:
    """Everything that was acknowledged is on disk, though its process is dead."""
    found: Counter[str] = Counter()
    for chunk in disk.select("events", "history"):
        for event in map(msgspec.json.decode, rows.events_of(chunk)):
            kind = event["event_type"]
            received = kind == "SignalReceived"
            found[f"signal {event['payload']['signal_name']}" if received else kind] += 1
    for data in disk.select("data", "inbox"):
        found[f"signal {rows.signal_of(data).name}"] += 1
    for worker_id in disk.select("worker_id", "worker"):
        found[f"worker {worker_id}"] += 1
    assert promised <= found, promised - found
    assert all(found[name] == 1 for name in found if name.startswith("signal")), found


def check_end(disk: Place, described: dict[str, Any]) -> None:
    """The story is over, and looks as if nothing had happened."""
    assert described["status"] == "completed"
    assert described["output"] == "done"
    first, second, child = asyncio.run(disk.check())
    assert first.closed_reason == "continued"
    assert second.status is child.status is RunStatus.COMPLETED
    assert types(disk, first.run_id) == HISTORY
    ended = ["WorkflowStarted", "WorkflowCompleted"]
    assert types(disk, second.run_id) == ended
    assert types(disk, child.run_id) == ended


def types(disk: Place, run_id: str) -> list[str]:
    chunks = disk.select("events", f"history where run_id = '{run_id}' order by first_sequence")
    events = [event for chunk in chunks for event in rows.events_of(chunk)]
    return [msgspec.json.decode(event)["event_type"] for event in events]

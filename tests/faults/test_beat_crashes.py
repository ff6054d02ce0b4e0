"""A server that dies in the middle of a beat, at every moment of it, in every beat of a story."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from perdure.core.run.status import RunStatus
from perdure.store import rows
from perdure.store.sqlite.store import SqliteStore
from tests.engine.ending import must_end
from tests.engine.invariants import check_disk
from tests.faults.crashing_server import DEATH, At
from tests.faults.nursery import Nursery, a_nursery
from tests.faults.voyage import HISTORY, Voyage

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
    with must_end(seconds=120):
        nth = 1
        while sail(nursery, tmp_path / f"{nth}.db", at, nth, eager=eager):
            nth += 1 if eager else 2

    assert nth > LIVES_MIN


@eagerly
def test_a_server_may_die_again_and_again(eager: bool, nursery: Nursery, tmp_path: Path) -> None:
    """Each life lasts a few beats; the deaths come at changing moments."""
    path = tmp_path / "perdure.db"
    moments = list(At)
    deaths = 0

    def next_life(voyage: Voyage) -> str:
        nonlocal deaths
        assert nursery.end_of_server() == DEATH
        check_promises(path, voyage.promised)
        deaths += 1
        return nursery.open(path, at=moments[deaths % len(moments)], nth=3)

    with must_end(seconds=60):
        voyage = Voyage(nursery.open(path, at=moments[0], nth=3), next_life, eager=eager)
        described = voyage.sail()
        nursery.kill()

    assert deaths >= 4
    check_end(path, described)


def sail(nursery: Nursery, path: Path, at: At, nth: int, *, eager: bool) -> bool:
    """Play the story on a server that dies once; whether it did before the story was over."""
    died = False

    def next_life(voyage: Voyage) -> str:
        nonlocal died
        died = True
        assert nursery.end_of_server() == DEATH
        check_promises(path, voyage.promised)
        return nursery.open(path)

    voyage = Voyage(nursery.open(path, at=at, nth=nth), next_life, eager=eager)
    described = voyage.sail()
    if died:
        nursery.stop()
    else:
        nursery.kill()
    check_end(path, described)
    return died


def check_promises(path: Path, promised: Counter[str]) -> None:
    """Everything that was acknowledged is on disk, though its process is dead."""
    found: Counter[str] = Counter()
    for (chunk,) in asked(path, "select events from history"):
        for event in map(msgspec.json.decode, rows.events_of(chunk)):
            kind = event["event_type"]
            received = kind == "SignalReceived"
            found[f"signal {event['payload']['signal_name']}" if received else kind] += 1
    for (data,) in asked(path, "select data from inbox"):
        found[f"signal {rows.signal_of(data).name}"] += 1
    for (worker_id,) in asked(path, "select worker_id from worker"):
        found[f"worker {worker_id}"] += 1
    assert promised <= found, promised - found
    assert all(found[name] == 1 for name in found if name.startswith("signal")), found


def asked(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute(query).fetchall()


def check_end(path: Path, described: dict[str, Any]) -> None:
    """The story is over, and looks as if nothing had happened."""
    assert described["status"] == "completed"
    assert described["output"] == "done"

    async def look() -> None:
        store = SqliteStore(path)
        await store.open()
        try:
            first, second, child = await check_disk(store)
            assert first.closed_reason == "continued"
            assert second.status is child.status is RunStatus.COMPLETED
            assert await types(store, first.run_id) == HISTORY
            ended = ["WorkflowStarted", "WorkflowCompleted"]
            assert await types(store, second.run_id) == ended
            assert await types(store, child.run_id) == ended
        finally:
            await store.close()

    asyncio.run(look())


async def types(store: SqliteStore, run_id: str) -> list[str]:
    events = await store.read_history(run_id, 0, 1000)
    return [msgspec.json.decode(event)["event_type"] for event in events]

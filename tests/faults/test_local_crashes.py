"""A server that dies in the middle of local work for which it gave leave, at every moment of it.

Every attempt that was granted is found again under its id, its outcome is recorded once, and the
worker that went on meanwhile is believed.
"""

import asyncio
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from threading import Lock

import pytest

from perdure.core.run.status import RunStatus
from tests.engine.ending import must_end
from tests.faults.crashing_server import COMMITS, DEATH, At
from tests.faults.full_local_workflow import HISTORY, LocalVoyage
from tests.faults.full_workflow import Voyage
from tests.faults.server_processes import Nursery, die_in_every_beat, some_nurseries
from tests.faults.test_beat_crashes import Database, File, Place, check_promises, types
from tests.support.postgres import Cluster
from tests.support.tables import migrated_database

LIVES_MIN = 5
"""The story comes to every moment more often than this, or the moment is not where it was."""
AT_ONCE = 4


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    with some_nurseries(AT_ONCE) as nurseries:
        yield nurseries


@pytest.mark.parametrize("at", COMMITS)
def test_a_server_may_die_while_local_work_is_under_way(
    at: At, nurseries: list[Nursery], tmp_path: Path
) -> None:
    def live(nursery: Nursery, nth: int) -> bool:
        return sail(nursery, File(tmp_path / f"{nth}.db"), at, nth)

    with must_end(seconds=240):
        assert die_in_every_beat(nurseries, live) > LIVES_MIN


@pytest.mark.parametrize("at", [At.INSIDE_COMMIT, At.AFTER_COMMIT])
def test_a_node_may_die_while_local_work_is_under_way(
    at: At, nurseries: list[Nursery], postgres_cluster: Cluster
) -> None:
    """The same on PostgreSQL. The worker goes on at another node, or where it was, by turns."""
    lock = Lock()

    def live(pair: tuple[Nursery, Nursery], nth: int) -> bool:
        with lock:
            url = migrated_database(postgres_cluster)
        nursery, other = pair
        died = sail(nursery, Database(url), at, nth, heir=other if nth % 2 else None)
        postgres_cluster.drop_database(url)
        return died

    pairs = list(zip(nurseries[::2], nurseries[1::2], strict=True))
    with must_end(seconds=240):
        assert die_in_every_beat(pairs, live) > LIVES_MIN


def sail(nursery: Nursery, disk: Place, at: At, nth: int, *, heir: Nursery | None = None) -> bool:
    """Play the story on a server that dies once; whether it did before the story was over.

    If there is an heir it is there from the beginning, and nobody speaks to it.
    """
    died = False
    inherited = "" if heir is None else heir.open(disk.store)

    def next_life(voyage: Voyage) -> str:
        nonlocal died
        died = True
        assert nursery.end_of_server() == DEATH
        check_promises(disk, voyage.promised)
        return inherited or nursery.open(disk.store)

    try:
        url = nursery.open(disk.store, at=at, nth=nth)
        described = LocalVoyage(url, next_life, eager=bool(nth % 2)).sail()
    finally:
        for each in (nursery, heir):
            if each is not None:
                each.kill()
    assert (described["status"], described["output"]) == ("completed", "done")
    (run,) = asyncio.run(disk.check())
    assert run.status is RunStatus.COMPLETED
    # A sign of life that is given again may be noted again.
    assert [kind for kind, _ in groupby(types(disk, run.run_id))] == HISTORY
    return died

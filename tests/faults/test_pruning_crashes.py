"""A server that is killed while it removes old runs, in every beat of it.

A run is there as a whole, or it is not found and what is left of it is written down; the others are
not touched. Whoever comes next finishes.
"""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure.core.external import PayloadOwner
from perdure.features.retention.operations import LEFTOVER
from tests.engine.ending import must_end
from tests.faults.crashing_server import COMMITS, DEATH
from tests.faults.old_runs import DAY, PULL_OLD, PUSH_OLD, Inventory, furnish
from tests.faults.server_processes import Nursery, die_in_every_beat, some_nurseries
from tests.faults.test_beat_crashes import Database, File, Place
from tests.support.clock import SECOND
from tests.support.http import CONTROL_VERSION
from tests.support.postgres import Cluster

AT_ONCE = 4
PATIENCE = 90.0
"""Longer than any pass takes: reaching it is a failure."""
LIVES_MIN = 10
"""A pass takes more beats than this, or it is not where it was."""


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    with some_nurseries(AT_ONCE) as nurseries:
        yield nurseries


@pytest.fixture(scope="module")
def attic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attic")
    furnish(folder, f"sqlite:///{folder / 'perdure.db'}")
    return folder / "perdure.db"


def test_a_server_may_be_killed_in_any_beat_of_pruning(
    nurseries: list[Nursery], attic: Path, tmp_path: Path
) -> None:
    def live(nursery: Nursery, nth: int) -> bool:
        path = tmp_path / f"{nth}.db"
        shutil.copy(attic, path)
        return clear(File(path), nursery, nth=nth)

    with must_end(seconds=240):
        assert die_in_every_beat(nurseries, live) > LIVES_MIN


def test_a_node_may_be_killed_in_any_beat_of_pruning(
    nurseries: list[Nursery], postgres_cluster: Cluster, tmp_path: Path
) -> None:
    """The same on PostgreSQL. By turns, another node prunes at the same time, or comes later.

    Every second beat will do.
    """
    lock = Lock()
    furnished = postgres_cluster.template("attic", lambda url: furnish(tmp_path, url))

    def live(pair: tuple[Nursery, Nursery], nth: int) -> bool:
        with lock:
            url = postgres_cluster.fresh_database(furnished)
        nursery, other = pair
        rival = other if nth % 4 == 1 else None
        died = clear(Database(url), nursery, rival, nth=nth)
        postgres_cluster.drop_database(url)
        # Who has a rival may have little to do.
        return died or rival is not None

    pairs = list(zip(nurseries[::2], nurseries[1::2], strict=True))
    with must_end(seconds=240):
        assert die_in_every_beat(pairs, live, step=2) > LIVES_MIN


def clear(disk: Place, nursery: Nursery, rival: Nursery | None = None, *, nth: int) -> bool:
    """Have old runs removed by a server that dies once; whether it did before all were gone."""
    before = Inventory(disk.store)
    assert len(before.runs("old")) == PULL_OLD + PUSH_OLD
    died = False

    def opened(one: Nursery, **fate: Any) -> str:
        return one.open(disk.store, prunes=True, run_retention=30 * DAY * SECOND, **fate)

    try:
        url = opened(nursery, at=COMMITS[nth % 3], nth=nth)
        other = "" if rival is None else opened(rival)
        patient_until = monotonic() + PATIENCE
        while is_under_way(disk):
            assert monotonic() < patient_until, "nobody goes on"
            try:
                call(url, "/healthz")
            except (OSError, HTTPException):
                assert not died, "who is to live is dead"
                died = True
                assert nursery.end_of_server() == DEATH
                check(before, Inventory(disk.store))
                asyncio.run(disk.check())
                url = other or opened(nursery)
        if died:
            # Who is still to die may do so now, with nothing left to do.
            check_told(url)
    finally:
        for each in (nursery, rival):
            if each is not None:
                each.kill()
    now = Inventory(disk.store)
    check(before, now)
    assert all(now.of(run_id) == set() for run_id in before.runs("old"))
    # What only old runs named is nobody's; what a young one names, too, is kept.
    assert now.payloads() == {PayloadOwner.KEPT: 1, PayloadOwner.LOOSE: PULL_OLD - 1}
    asyncio.run(disk.check())
    return died


def is_under_way(disk: Place) -> bool:
    """Whether anything old is found, or anything of it is left."""
    left = disk.select("1", "run where workflow_type = 'old'")
    return bool(left or disk.select("1", f"record where kind = '{LEFTOVER.name}'"))


def check(before: Inventory, now: Inventory) -> None:
    """Nothing young is touched, and nothing old is half there."""
    assert now.runs("young") == before.runs("young")
    for run_id in before.runs("young") | now.runs("old"):
        assert now.of(run_id) == before.of(run_id), run_id
    for run_id in before.runs("old") - now.runs("old"):
        left = now.of(run_id)
        assert left < before.of(run_id)
        assert not left or run_id in now.cleared(), "what nobody knows of nobody removes"


def check_told(url: str) -> None:
    """What should go is not found, and what should stay can be read."""
    listed = call(url, "/api/workflows")["workflows"]
    assert {row["workflow_type"] for row in listed} == {"young"}
    for workflow_id in ("young-0", "waiting"):
        run_id = call(url, f"/api/workflows/{workflow_id}")["run_id"]
        assert call(url, f"/api/workflows/{workflow_id}/runs/{run_id}/history")["events"]
    assert call(url, "/api/workflows/old-0", status=404)["reason"] == "instance_not_found"
    assert {row["workflowName"] for row in call(url, "/runs")} == {"young"}
    (session,) = call(url, "/sessions")
    assert session["runCount"] == 2
    assert len(call(url, "/approvals")) == 1


def call(url: str, path: str, *, status: int = 200) -> Any:
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=90)) as connection:
        connection.request("GET", path, headers={CONTROL_VERSION: "2"})
        answer = connection.getresponse()
        body = answer.read()
    assert answer.status == status, body
    return json.loads(body)

"""An engine that dies in the middle of a pass, at every moment of it, over both transports.

A step's result is recorded once, no sleep is lost or begun again, no event wakes twice, and no
webhook is lost: what was under way when the engine died comes again under the same id.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import pytest

from perdure.store import rows
from tests.engine.ending import must_end
from tests.faults.crashing_server import COMMITS, DEATH, At
from tests.faults.full_push_workflow import LARGE, STEPS, PushVoyage
from tests.faults.server_processes import Nursery, die_in_every_beat, some_nurseries
from tests.faults.test_beat_crashes import Database, File, Place
from tests.support.postgres import Cluster
from tests.support.tables import migrated_database

TRANSPORTS = ("connect", "serve")
AT_ONCE = 6
PATIENCE = 90.0
"""Longer than any story takes: reaching it is a failure."""
LIVES_MIN = 10
"""The story has more beats than this."""


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    with some_nurseries(AT_ONCE) as nurseries:
        yield nurseries


@pytest.fixture
def nursery(nurseries: list[Nursery]) -> Nursery:
    return nurseries[0]


@pytest.mark.parametrize("at", COMMITS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_engine_may_die_in_any_beat(
    transport: str, at: At, nurseries: list[Nursery], tmp_path: Path
) -> None:
    """Die the nth time, come back and finish, for every beat that the story has."""

    def live(nursery: Nursery, nth: int) -> bool:
        return sail(nursery, File(tmp_path / f"{nth}.db"), transport, at=at, nth=nth)

    with must_end(seconds=240):
        assert die_in_every_beat(nurseries, live) > LIVES_MIN


@pytest.mark.parametrize("at", COMMITS)
def test_a_node_may_die_in_any_beat(
    at: At, nurseries: list[Nursery], postgres_cluster: Cluster
) -> None:
    """The same on PostgreSQL. Another node takes over, or the dead one comes back; both transports.

    By turns, so that every beat meets one of them at every moment.
    """
    lock = Lock()

    def live(pair: tuple[Nursery, Nursery], nth: int) -> bool:
        with lock:
            url = migrated_database(postgres_cluster)
        nursery, other = pair
        transport = TRANSPORTS[(nth + COMMITS.index(at)) % 2]
        heir = other if nth // 2 % 2 else None
        died = sail(nursery, Database(url), transport, at=at, nth=nth, heir=heir)
        postgres_cluster.drop_database(url)
        return died

    pairs = list(zip(nurseries[::2], nurseries[1::2], strict=True))
    with must_end(seconds=240):
        assert die_in_every_beat(pairs, live) > LIVES_MIN


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_engine_may_die_while_a_runner_works(
    transport: str, nursery: Nursery, tmp_path: Path
) -> None:
    """The pass was sent, and its answer meets nobody."""
    with must_end(seconds=240):
        for nth in range(1, 7):
            assert sail(nursery, File(tmp_path / f"{nth}.db"), transport, on_pass=nth)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_an_engine_may_die_while_webhooks_are_under_way(
    store: str, nursery: Nursery, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It has arrived, and nobody noted that: it comes again, under the same id."""
    disk: Place = File(tmp_path / "perdure.db")
    if store == "postgres":
        disk = Database(request.getfixturevalue("migrated_url"))
    with must_end(seconds=240):
        assert sail(nursery, disk, "connect", on_post=1, posts=2)


def sail(
    nursery: Nursery,
    disk: Place,
    transport: str,
    *,
    at: At | None = None,
    nth: int = 0,
    on_pass: int = 0,
    on_post: int = 0,
    posts: int = 1,
    heir: Nursery | None = None,
) -> bool:
    """Play the story on an engine that dies once; whether it did before the story was over.

    If there is an heir it is there from the beginning, and nobody speaks to it.
    """
    died = False
    inherited = "" if heir is None else heir.open(disk.store)

    def next_life() -> str:
        nonlocal died
        if at is not None:
            assert nursery.end_of_server() == DEATH
        died = True
        return inherited or nursery.open(disk.store)

    def killing(wanted: int) -> Callable[[int], None]:
        return lambda count: nursery.kill() if count == wanted else None

    async def story() -> dict[str, Any]:
        voyage = PushVoyage(
            nursery.open(disk.store, at=at, nth=nth), next_life, transport=transport
        )
        voyage.on_pass, voyage.on_post = killing(on_pass), killing(on_post)
        told = await voyage.sail()
        assert len({delivery for delivery, _ in voyage.posts}) == 1
        assert all(body == {"n": 1} for _, body in voyage.posts)
        assert len(voyage.posts) >= posts
        return told

    try:
        told = asyncio.run(asyncio.wait_for(story(), PATIENCE))
    finally:
        nursery.kill()
        if heir is not None:
            heir.kill()
    check(disk, told)
    return died


def check(disk: Place, told: dict[str, Any]) -> None:
    """The story is over, and looks as if nothing had happened."""
    run = told["run"]
    assert run["status"] == "succeeded", run
    assert run["result"]["paid"] == {"sum": 5}
    assert told["steps"] == [(name, "succeeded") for name in STEPS]
    assert told["events"] == ["order", "paid", "shipped"]
    assert told["woke"] == 1
    assert told["runs"] == ["kid", "order"]
    assert [status for _, status in told["deliveries"]] == ["succeeded"]
    assert len(asyncio.run(disk.check())) == 2
    assert run["result"]["charge"].endswith(LARGE)
    assert run["result"]["kid"].endswith(LARGE)
    # What was uploaded for a pass that never reported it may be there besides.
    kept = disk.select("reference_id", "payload where loose_bytes is null")
    assert len(set(kept)) == len(kept) == 3, "the results of both runs, and that of the kid again"
    facts = Counter(facts_of(disk, run["id"]))
    assert set(facts.values()) == {1}, facts
    assert {name for kind, name in facts if kind == "StepCompleted"} == set(STEPS)


def facts_of(disk: Place, run_id: str) -> list[tuple[str, str]]:
    """What was recorded of the steps and the end of a run."""
    chunks = disk.select("events", f"history where run_id = '{run_id}' order by first_sequence")
    events = [msgspec.json.decode(one) for chunk in chunks for one in rows.events_of(chunk)]
    told = [(event["event_type"], event["payload"].get("name", "")) for event in events]
    return [fact for fact in told if fact[0].startswith(("Step", "Workflow"))]

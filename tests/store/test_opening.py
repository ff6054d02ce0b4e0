"""A store that is not open serves nobody, whether it was refused, closed or never opened."""

import asyncio
from pathlib import Path

import pytest

from perdure.clock import SystemClock
from perdure.store.interface import Changes, Store, Unavailable
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from tests.store.building import a_run
from tests.store.copying import Place


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        place = Place(f"sqlite://{tmp_path / 'perdure.db'}")
        with place.keep.opened():
            pass
        return place
    return Place(request.getfixturevalue("migrated_url"))


def a_store(place: Place) -> Store:
    if place.path is not None:
        return SqliteStore(place.path)
    return PostgresStore(place.url, node_id="a-node", clock=SystemClock())


async def require_silent(store: Store) -> None:
    for asked in (
        store.load_workers(),
        store.load_runs(["a-run"]),
        store.read_run("a-run"),
        store.read_history("a-run", 0, 1),
        store.commit(Changes(runs=[a_run()])),
    ):
        with pytest.raises(Unavailable) as caught:
            await asked
        assert caught.value.reason == "storage_unavailable"
        assert "closed" in caught.value.message


def test_a_store_that_was_never_opened(place: Place) -> None:
    asyncio.run(require_silent(a_store(place)))


def test_a_store_that_was_refused(place: Place) -> None:
    place.ask("insert into meta values ('unfinished_copy', 'yes')")

    async def story() -> None:
        store = a_store(place)
        for _ in range(2):
            with pytest.raises(Unavailable) as caught:
                await store.open()
            assert caught.value.reason == "storage_incomplete"
            await require_silent(store)

    asyncio.run(story())


def test_a_store_that_was_closed(place: Place) -> None:
    async def story() -> None:
        store = a_store(place)
        await store.open()
        assert await store.load_workers() == []
        await store.close()
        await require_silent(store)

    asyncio.run(story())

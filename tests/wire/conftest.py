"""Live servers for the wire tests, on both stores where the store can make a difference."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure.store.postgres.store import PostgresStore
from tests.support.clock import FakeClock
from tests.support.http import Wire, a_wire
from tests.support.postgres import Cluster
from tests.support.server import STORES

ON_BOTH_STORES = {
    "test_activity_tasks",
    "test_causes",
    "test_commanding",
    "test_polls",
    "test_reading",
    "test_registration",
    "test_start",
    "test_task_history",
    "test_workflow_tasks",
}
"""What stands behind the doors. The doors themselves never learn which store there is."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "wire_store" in metafunc.fixturenames:
        name = metafunc.module.__name__.rpartition(".")[2]
        stores = STORES if name in ON_BOTH_STORES else STORES[:1]
        metafunc.parametrize("wire_store", stores, indirect=True, scope="module")


@pytest.fixture(scope="module")
def wire_store(request: pytest.FixtureRequest) -> str:
    store: str = request.param
    return store


@pytest.fixture
def wire(wire_store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wire]:
    """A server of its own for one test."""
    settings: dict[str, Any] = {}
    if wire_store == "postgres":
        settings["store"] = request.getfixturevalue("common_database")
        asyncio.run(empty(settings["store"]))
    with a_wire(tmp_path, **settings) as wire:
        yield wire


@pytest.fixture(scope="module")
def shared_wire(
    wire_store: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Wire]:
    """One server for a module of tests that leave nothing behind, or only runs of their own."""
    settings: dict[str, Any] = {}
    if wire_store == "postgres":
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        settings["store"] = cluster.fresh_database(cluster.template("migrated", prepare))
    with a_wire(tmp_path_factory.mktemp("shared"), **settings) as wire:
        yield wire


@pytest.fixture(scope="session")
def common_database(postgres_cluster: Cluster) -> str:
    """One that is emptied for every test: that is quicker than a new one."""
    return postgres_cluster.fresh_database(postgres_cluster.template("migrated", prepare))


def prepare(url: str) -> None:
    async def migrate() -> None:
        store = PostgresStore(url, node_id="first", clock=FakeClock())
        await store.open()
        await store.close()

    asyncio.run(migrate())


async def empty(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "select relname from pg_class join pg_namespace on pg_namespace.oid = relnamespace "
            "where nspname = 'perdure' and relkind in ('r', 'p') and not relispartition "
            "and relname not in ('schema_version', 'namespace')"
        )
        await connection.execute(";".join(f"delete from perdure.{name}" for (name,) in tables))
    finally:
        await connection.close()

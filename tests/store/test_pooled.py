"""Behind a pooler that shares sessions: every transaction meets another one."""

import asyncio

import pytest

from perdure.clock import SystemClock
from perdure.store.copies import copy
from perdure.store.interface import Changes
from perdure.store.postgres.copies import PostgresEnd
from perdure.store.postgres.store import PostgresStore
from tests.store.building import a_run, fields_of, with_activity, with_events
from tests.support.pooler import Pooler
from tests.support.postgres import Cluster


def test_a_fresh_store_is_opened_written_and_read_through_a_pooler(postgres_url: str) -> None:
    async def use(url: str) -> None:
        run = with_events(with_activity(a_run()), 3)
        for life in range(2):
            store = PostgresStore(url, node_id=f"n{life}", clock=SystemClock(), pooled=True)
            await store.open()
            if life == 0:
                await store.commit(Changes(runs=[run]))
            (loaded,) = await store.load_runs([run.run_id])
            assert fields_of(loaded) == fields_of(run)
            await store.note_life()
            await store.reopen_before_message()
            await store.close()

    with Pooler(postgres_url, sessions=3) as pooler:
        asyncio.run(use(pooler.url))


def test_a_store_is_copied_through_a_pooler(
    postgres_url: str, postgres_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    target_url = postgres_cluster.fresh_database()
    request.addfinalizer(lambda: postgres_cluster.drop_database(target_url))

    async def use(source: str, target: str) -> None:
        store = PostgresStore(source, node_id="n", clock=SystemClock(), pooled=True)
        await store.open()
        await store.commit(Changes(runs=[a_run(str(number)) for number in range(20)]))
        await store.close()
        ends = (PostgresEnd(url, clock=SystemClock()) for url in (source, target))
        compared = await copy(*ends)
        assert all(table.is_same for table in compared)
        assert {t.table: t.target_rows for t in compared}["run"] == 20

    with Pooler(postgres_url) as source, Pooler(target_url) as target:
        asyncio.run(use(source.url, target.url))

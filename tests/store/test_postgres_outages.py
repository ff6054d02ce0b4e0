"""The database goes away while a node starts, or while it keeps house. Afterwards all is well."""

import asyncio

import pytest

from perdure.store.interface import Unavailable
from perdure.store.postgres.store import PostgresStore
from tests.store.building import a_run
from tests.store.nodes import commit, load, nodes
from tests.support.clock import FakeClock
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy, Trap, executing

ANY = executing("")
"""Every statement."""
STATEMENTS_MAX = 100

before_and_behind = pytest.mark.parametrize("is_behind", [False, True], ids=["before", "behind"])


def cut(proxy: Proxy, nth: int, *, is_behind: bool) -> Trap:
    """Break the connection around the nth statement from now."""
    return (proxy.cut_after if is_behind else proxy.cut_before)(ANY, nth=nth)


@before_and_behind
def test_a_start_may_break_at_any_statement(postgres_cluster: Cluster, is_behind: bool) -> None:
    async def start(url: str) -> None:
        store = PostgresStore(url, node_id="broken", clock=FakeClock())
        try:
            await store.open()
        except Unavailable:
            # It is told, and the node does not start; the next one does.
            pass
        finally:
            await store.close()

    async def check(url: str) -> None:
        async with nodes(url) as [store]:
            run = a_run()
            await commit(store, run)
            assert (await load(store, run.run_id)).run_id == run.run_id
            assert await store.load_namespaces() == ["default"]

    async def story() -> int:
        for nth in range(1, STATEMENTS_MAX):
            url = postgres_cluster.fresh_database()
            with Proxy(url) as proxy:
                trap = cut(proxy, nth, is_behind=is_behind)
                await start(proxy.url)
            await check(url)
            postgres_cluster.drop_database(url)
            if not trap.sprung.done():
                return nth
        raise AssertionError("a start has no end")

    assert asyncio.run(story()) > 5, "there was hardly anything to break"


@before_and_behind
def test_keeping_house_may_break_at_any_statement(migrated_url: str, is_behind: bool) -> None:
    async def story() -> int:
        with Proxy(migrated_url) as proxy:
            async with nodes(proxy.url) as [store]:
                run = a_run()
                await commit(store, run)
                for nth in range(1, STATEMENTS_MAX):
                    trap = cut(proxy, nth, is_behind=is_behind)
                    await keep_house(store)
                    sprung = trap.sprung.done()
                    proxy.clear()
                    assert (await load(store, run.run_id)).run_id == run.run_id
                    assert len(await store.load_ready_names()) == 1
                    if not sprung:
                        return nth
        raise AssertionError("keeping house has no end")

    assert asyncio.run(story()) > 5, "there was hardly anything to break"


async def keep_house(store: PostgresStore) -> None:
    """What a node does now and then."""
    for duty in (
        store.load_ready_names(),
        store.load_changed_workers(0),
        store.find_poll_leases(["w1"], ["p1"]),
        store.read_versions(["a run"]),
        store.find_next_due(0),
        store.load_due(0, 10),
        store.note_life(),
        store.read_clock(),
        store.reopen_before_message(),
    ):
        try:
            await duty
        except Unavailable:
            # The loop that calls it says so and comes again.
            continue

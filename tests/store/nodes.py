"""Several stores on one database, as several nodes have them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg

from perdure.clock import Clock
from perdure.core.run.state import Run
from perdure.store.interface import Changes, Store
from perdure.store.postgres.store import PostgresStore
from tests.support.clock import FakeClock
from tests.support.tables import every_row


@asynccontextmanager
async def nodes(
    *urls: str, clock: Clock | None = None, pooled: bool = False
) -> AsyncIterator[list[PostgresStore]]:
    """One open store for each address."""
    async with AsyncExitStack() as stack:
        stores = []
        for number, url in enumerate(urls):
            name = f"node-{number}"
            store = PostgresStore(url, node_id=name, clock=clock or FakeClock(), pooled=pooled)
            await store.open()
            stack.push_async_callback(store.close)
            stores.append(store)
        yield stores


async def commit(store: Store, *runs: Run, **others: Any) -> None:
    """Write what is new in some runs, and forget like the engine that it was new."""
    await store.commit(Changes(runs=list(runs), **others))
    for run in runs:
        run.mark_saved()


async def load(store: Store, run_id: str) -> Run:
    (run,) = await store.load_runs([run_id])
    return run


@asynccontextmanager
async def nothing_written(url: str) -> AsyncIterator[None]:
    """What happens inside leaves no trace in any table."""
    before = await every_row(url)
    yield
    after = await every_row(url)
    assert {name: rows for name, rows in after.items() if rows != before[name]} == {}


@asynccontextmanager
async def session(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection of somebody else."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()

"""A PostgreSQL database as the source or target of a copy.

A database has no lock that excludes nodes, as a file has. So the copy checks that none are
connected or wrote recently, reads the source in one snapshot, and checks at the end that no node
has written since.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

import asyncpg

from perdure.clock import Clock
from perdure.core.limits import SECOND
from perdure.core.run.operation import Activity
from perdure.core.run.status import CLOSED, RunStatus
from perdure.store import rows
from perdure.store.copies import TABLES, Page, Row
from perdure.store.interface import Unavailable
from perdure.store.postgres.connection import Connection, PostgresConnection, plain, stored
from perdure.store.postgres.errors import LOST, Lost, is_lost, translated
from perdure.store.postgres.schema import (
    add_partitions_of,
    has_schema,
    migrate,
    note_finished,
    note_unfinished,
    refresh_statistics,
    require_current,
    require_finished,
    require_safe,
)
from perdure.store.postgres.statements import Statements

SILENCE = 30 * SECOND
"""How long a node that did not stop cleanly must be silent. Live nodes write more often."""
PAGE_SECONDS_MAX = 600.0
_FETCHED_ROWS = 32
"""How many rows are fetched at once; each may be large."""
_PATIENT = (
    "set local statement_timeout = 0",
    "set local idle_in_transaction_session_timeout = 0",
    # So that the first rows arrive at once, however many there are.
    "set local enable_hashjoin = off",
    "set local enable_sort = off",
)


class PostgresEnd:
    """One database. It uses no session state, so that a pooler may be in between."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        self._line = PostgresConnection(url, pooled=True, session={})
        self._clock = clock
        self._sql = Statements()
        self._connection: Connection
        self._snapshot = contextlib.AsyncExitStack()
        self._nodes: list[Row] = []

    # As the source -------------------------------------------------------------------------------

    async def open_source(self) -> None:
        async with self._opening() as connection:
            async with connection.transaction():
                await require_current(connection)
                await require_finished(connection)
                await self._require_stopped()
            await self._snapshot.enter_async_context(self._open_snapshot())
            self._nodes = await self._load_nodes()

    async def require_unchanged(self) -> None:
        with _refusals():
            await self._snapshot.aclose()
            async with self._connection.transaction():
                if await self._load_nodes() != self._nodes:
                    raise Unavailable("storage_in_use", "it was written to while it was copied")

    async def _load_nodes(self) -> list[Row]:
        return [tuple(row) for row in await self._connection.fetch(self._sql["read_nodes"])]

    async def _require_stopped(self) -> None:
        if (life := await self._find_life()) is not None:
            raise Unavailable("storage_in_use", life)

    async def _find_life(self) -> str | None:
        """Evidence of a running server, as the text of a refusal."""
        now = await self._connection.fetchval(self._sql["read_clock"])
        found = await self._connection.fetchrow(self._sql["find_life"], now - SILENCE)
        assert found is not None
        servers, nodes = found
        if servers:
            return "servers are connected to it; stop them first"
        if nodes:
            silence = f"less than {SILENCE // SECOND} seconds ago"
            return (
                f"a node wrote {silence} and did not stop cleanly; if it is gone, try again later"
            )
        return None

    # As the target -------------------------------------------------------------------------------

    async def open_target(self) -> None:
        async with self._opening() as connection:
            async with connection.transaction():
                await require_safe(connection)
                if await has_schema(connection):
                    await self._require_empty()
            await migrate(connection)
            async with connection.transaction():
                await note_unfinished(connection)
                await connection.execute(self._sql["clear_namespaces"])
            # A server from before the mark is seen now; one that starts later sees the mark.
            async with connection.transaction():
                life = await self._find_life()
                if life is not None:
                    await note_finished(connection)
                    await connection.execute(self._sql["restore_namespaces"])
            if life is not None:
                raise Unavailable("storage_in_use", life)

    async def _require_empty(self) -> None:
        """Refuse a database with data, before anything is changed."""
        await require_current(self._connection)
        await require_finished(self._connection)
        await self._require_stopped()
        if await self._connection.fetchval(self._sql["find_anything"]):
            raise Unavailable("storage_not_empty", "it is not empty; copy into a fresh one")

    async def write_page(self, table: str, page: list[Row]) -> None:
        now = self._clock.now()
        with _refusals():
            if table == "history":
                await add_partitions_of(self._connection, {row[0] for row in page}, now)
            async with self._connection.transaction():
                for name, columns, records in _kept(table, page, now):
                    await self._connection.copy_records_to_table(
                        name,
                        schema_name="perdure",
                        columns=columns,
                        records=[tuple(map(stored, record)) for record in records],
                        timeout=PAGE_SECONDS_MAX,
                    )

    async def finish(self) -> None:
        with _refusals():
            async with self._connection.transaction():
                await self._connection.execute(_PATIENT[0])
                await refresh_statistics(self._connection)
                await note_finished(self._connection)

    # As either -----------------------------------------------------------------------------------

    async def pages(self, table: str) -> AsyncGenerator[list[Row], None]:
        page = Page()
        query = self._sql[f"give_{table}"]
        with _refusals():
            async with self._open_snapshot():
                async for row in self._connection.cursor(
                    query, prefetch=_FETCHED_ROWS, timeout=PAGE_SECONDS_MAX
                ):
                    page.add(tuple(plain(v) if type(v) is str else v for v in row))
                    if page.is_full:
                        yield page.take()
        if rest := page.take():
            yield rest

    @contextlib.asynccontextmanager
    async def _open_snapshot(self) -> AsyncIterator[None]:
        """Read from one snapshot, for as long as it takes."""
        async with self._connection.transaction(isolation="repeatable_read", readonly=True):
            for setting in _PATIENT:
                await self._connection.execute(setting)
            yield

    @contextlib.asynccontextmanager
    async def _opening(self) -> AsyncIterator[Connection]:
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self.close)
            await self._line.connect_with_retries()
            with _refusals():
                self._connection = await self._line.connect()
                yield self._connection
            undo.pop_all()

    async def close(self) -> None:
        with contextlib.suppress(*LOST, asyncpg.PostgresError):
            await self._snapshot.aclose()
        await self._line.close()


def _kept(
    table: str, page: list[Row], now: int
) -> Iterator[tuple[str, tuple[str, ...], list[Row]]]:
    """The rows that a page becomes in PostgreSQL, by statement."""
    columns = TABLES[table]
    match table:
        case "run":
            yield "run", _RUN, [_run_row(row) for row in page]
            yield "open_run", _OPEN_RUN, [_open_row(row) for row in page if not _is_closed(row)]
        case "operation":
            yield table, (*columns, "lease_poll"), [(*row, _poll_of(row[3])) for row in page]
        case "worker":
            yield table, (*columns, "revision", "changed_at"), [(*row, 1, now) for row in page]
        case "record":
            yield table, (*columns, "version"), [(*row, 1) for row in page]
        case _:
            yield table, columns, page


_RUN = tuple(column for column in TABLES["run"] if column != "task_owner")
_OPEN_RUN = ("run_id", "status", "version", "task_owner", "task_poll", "state")


def _is_closed(row: Row) -> bool:
    return RunStatus(row[7]) in CLOSED


def _run_row(row: Row) -> Row:
    return (*row[:10], row[11] if _is_closed(row) else None)


def _open_row(row: Row) -> Row:
    task = rows.run_of(row).task
    poll = None if task is None or task.lease is None else task.lease.poll_id
    return (row[0], row[7], row[9], row[10], poll, row[11])


def _poll_of(data: bytes) -> str | None:
    operation = rows.operation_of(data)
    lease = operation.lease if isinstance(operation, Activity) else None
    return None if lease is None else lease.poll_id


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Translate errors of the database to `Unavailable`."""
    try:
        yield
    except (Lost, OSError, asyncpg.InterfaceError, asyncpg.PostgresError) as error:
        refusal = translated(error) if isinstance(error, asyncpg.PostgresError) else error
        if isinstance(error, Lost) or is_lost(error):
            text = f"the connection to the store was lost: {error}"
            refusal = Unavailable("storage_unavailable", text)
        elif not isinstance(refusal, Unavailable):
            refusal = Unavailable("storage_error", f"the store refuses: {error}")
        raise refusal from error

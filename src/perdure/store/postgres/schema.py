"""Schema migrations, checks of the database, and partitions of the history table."""

import contextlib
import logging
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import asyncpg

from perdure.identity import first_ulid, ulid_millisecond
from perdure.store.copies import UNFINISHED
from perdure.store.interface import Unavailable
from perdure.store.postgres.connection import Connection
from perdure.store.queries import load_migrations

PACKAGE = "perdure.store.postgres"
_LOCK = 7_366_245_101
"""The advisory lock under which schemas change: one node at a time."""
_MONTHS_AHEAD = 2
_MIGRATION_SECONDS = 3600.0
"""How long a migration may take, or the wait for that of another node."""
_LATEST = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())
_MONTHS_BACK_MAX = 120
"""How old histories may be to get a partition of their month."""

log = logging.getLogger(__name__)


async def migrate(connection: Connection) -> list[int]:
    """Apply missing migrations, all or nothing; returns the versions that were applied.

    A newer schema is accepted if it declares that this release can still use it.
    """
    migrations = load_migrations(PACKAGE)
    with contextlib.suppress(asyncpg.UndefinedTableError):
        # Usually nothing is missing, and a role without DDL rights can see that.
        if not _missing(await _versions(connection), migrations):
            return []
    async with connection.transaction():
        await connection.execute("set local lock_timeout = 0; set local statement_timeout = 0")
        await connection.execute(
            "select pg_advisory_xact_lock($1)", _LOCK, timeout=_MIGRATION_SECONDS
        )
        await connection.execute("create schema if not exists perdure")
        await connection.execute(
            "create table if not exists perdure.schema_version "
            "(version bigint primary key, needs bigint not null)"
        )
        applied = _missing(await _versions(connection), migrations)
        for version, script in applied:
            await connection.execute(script, timeout=_MIGRATION_SECONDS)
            await connection.execute(
                "insert into perdure.schema_version values ($1, $2)", version, _needs(script)
            )
        return [version for version, _ in applied]


async def require_current(connection: Connection) -> None:
    """Refuse any schema but that of this release: a copy must know every column."""
    try:
        present = await _versions(connection)
    except asyncpg.UndefinedTableError:
        raise Unavailable("storage_missing", "it holds no perdure store") from None
    newest = load_migrations(PACKAGE)[-1][0]
    current = max((version for version, _ in present), default=0)
    if current == newest:
        return
    what = f"the store has schema {current}, this release has {newest}"
    if current > newest:
        raise Unavailable("storage_newer", f"{what}; run a newer perdure")
    raise Unavailable("storage_older", f"{what}; run perdure migrate first")


async def has_schema(connection: Connection) -> bool:
    return bool(await connection.fetchval("select to_regnamespace('perdure') is not null"))


async def require_finished(connection: Connection) -> None:
    """Refuse the target of an interrupted copy."""
    query = "select 1 from perdure.meta where key = 'unfinished_copy'"
    if await connection.fetchval(query):
        raise Unavailable("storage_incomplete", UNFINISHED)


async def note_unfinished(connection: Connection) -> None:
    """Mark the database as the target of an unfinished copy."""
    await connection.execute("insert into perdure.meta values ('unfinished_copy', 'yes')")


async def note_finished(connection: Connection) -> None:
    await connection.execute("delete from perdure.meta where key = 'unfinished_copy'")


async def _versions(connection: Connection) -> list[tuple[int, int]]:
    rows = await connection.fetch("select version, needs from perdure.schema_version")
    return [(row[0], row[1]) for row in rows]


def _missing(
    present: list[tuple[int, int]], migrations: Sequence[tuple[int, str]]
) -> list[tuple[int, str]]:
    """The missing migrations. Refuses a schema that is too new for this release."""
    current = max((version for version, _ in present), default=0)
    newest = migrations[-1][0]
    if max((needs for _, needs in present), default=0) > newest:
        raise Unavailable(
            "storage_newer",
            f"the store has schema {current}, this release knows {newest}; run a newer perdure",
        )
    return [migration for migration in migrations if migration[0] > current]


def _needs(script: str) -> int:
    """The oldest schema whose releases can use this one, as the script declares."""
    found = re.search(r"^-- needs: (\d+)$", script, re.MULTILINE)
    assert found is not None, "a migration declares the oldest release that can use it"
    return int(found.group(1))


async def require_safe(connection: Connection) -> None:
    """Refuse a database that could lose acknowledged writes, or cannot hold the data."""
    row = await connection.fetchrow(
        "select current_setting('synchronous_commit'), current_setting('server_encoding'), "
        "current_setting('server_version_num')::int"
    )
    assert row is not None
    if row[0] == "off":
        raise Unavailable(
            "storage_unsafe", "synchronous_commit is off: a crash would lose what was acknowledged"
        )
    if row[1] != "UTF8":
        raise Unavailable("storage_unsafe", f"the database's encoding is {row[1]}, not UTF8")
    if row[2] < 130_000:
        raise Unavailable("storage_unsafe", "PostgreSQL 13 or newer is needed")


async def refresh_statistics(connection: Connection) -> None:
    """Update the planner's statistics after a bulk load."""
    for table in ("run", "open_run", "operation", "inbox", "history", "ready", "deadline"):
        await connection.execute(f"analyze perdure.{table}")


async def add_partitions(connection: Connection, now: int) -> list[str]:
    """Create the partitions of this month and the next ones; returns the new ones."""
    month = _month_at(now // 1000)
    return await _add_months(connection, range(month, month + _MONTHS_AHEAD + 1))


async def add_partitions_of(connection: Connection, run_ids: Iterable[str], now: int) -> list[str]:
    """Create the partitions of some runs, which may be old; returns the new ones."""
    latest = _month_at(now // 1000) + _MONTHS_AHEAD
    made = [ulid_millisecond(run_id) for run_id in run_ids]
    months = {_month_at(millisecond) for millisecond in made if millisecond is not None}
    near = range(latest - _MONTHS_BACK_MAX, latest + 1)
    return await _add_months(connection, sorted(months & set(near)))


async def _add_months(connection: Connection, months: Iterable[int]) -> list[str]:
    added = []
    present = await connection.fetch(
        "select relname from pg_class join pg_namespace on pg_namespace.oid = relnamespace "
        "where nspname = 'perdure' and relname like 'history\\_%'"
    )
    names = {row[0] for row in present}
    for number in months:
        name = f"history_{number // 12}_{number % 12 + 1:02}"
        if name not in names and await _add_partition(connection, name, number):
            added.append(name)
    return added


async def _add_partition(connection: Connection, name: str, month: int) -> bool:
    script = (
        f"create table if not exists perdure.{name} partition of perdure.history "
        f"for values from ('{_start_of(month)}') to ('{_start_of(month + 1)}')"
    )
    try:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
            await connection.execute(script)
    except (
        asyncpg.CheckViolationError,
        asyncpg.LockNotAvailableError,
        asyncpg.InsufficientPrivilegeError,
    ) as error:
        # The default partition has rows of that month, or the table is locked, or another node
        # creates it. Rows are as safe in the default partition.
        log.warning("creating history partition %s failed, retrying later: %s", name, error)
        return False
    return True


def _month_at(millisecond: int) -> int:
    # Later instants cannot be encoded in an id.
    when = datetime.fromtimestamp(min(millisecond // 1000, _LATEST), UTC)
    return when.year * 12 + when.month - 1


def _start_of(month: int) -> str:
    when = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return first_ulid(int(when.timestamp() * 1000))

"""Our tables, without the store: made, emptied, read."""

import asyncio
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from tests.support.clock import FakeClock
from tests.support.postgres import Cluster
from tests.support.query_harness import Connection, query_broker

Rows = dict[str, list[tuple[object, ...]]]

OF_NODES = ("node", "beat")
"""What says who takes part, and what has been done; not what it was."""
KEPT = ("schema_version", "namespace")
_TABLES = """
    select relname
      from pg_class
      join pg_namespace on pg_namespace.oid = relnamespace
     where nspname = 'perdure' and relkind in ('r', 'p') and not relispartition
     order by relname
"""


def migrated_database(cluster: Cluster) -> str:
    """A database of its own with the schema in it; returns its URL."""
    return cluster.fresh_database(cluster.template("migrated", _migrate))


def _migrate(url: str) -> None:
    async def migrate() -> None:
        store = PostgresStore(url, node_id="first", clock=FakeClock())
        await store.open()
        await store.close()

    asyncio.run(migrate())


def migrated_file(path: Path) -> None:
    """A SQLite file with the schema in it, unless there is a file."""
    if not path.exists():
        path.write_bytes(_migrated_bytes())


@cache
def _migrated_bytes() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "perdure.db"
        store = SqliteStore(path)
        asyncio.run(store.open())
        asyncio.run(store.close())
        return path.read_bytes()


async def every_row(url: str) -> Rows:
    """Every row of every table at one moment, except who takes part."""
    return await asyncio.wrap_future(query_broker().ask(url, _read))


async def _read(connection: Connection) -> Rows:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        tables = [name for (name,) in await connection.fetch(_TABLES) if name not in OF_NODES]
        return {
            name: sorted(
                map(tuple, await connection.fetch(f"select * from perdure.{name}")), key=repr
            )
            for name in tables
        }


def every_row_of_file(path: Path) -> Rows:
    """The same of a SQLite file."""
    query = "select name from sqlite_schema where type = 'table' order by name"
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.execute("begin")
        tables = [str(name) for (name,) in connection.execute(query).fetchall()]
        return {
            table: sorted(connection.execute(f'select * from "{table}"').fetchall(), key=repr)
            for table in tables
        }


def empty(url: str) -> None:
    """Forget everything, but not the schema."""
    query_broker().ask(url, _delete).result()


async def _delete(connection: Connection) -> None:
    tables = [name for (name,) in await connection.fetch(_TABLES) if name not in KEPT]
    await connection.execute(";".join(f"delete from perdure.{name}" for name in tables))

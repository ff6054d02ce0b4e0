"""Two kinds of places to copy from and to."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from perdure.clock import SystemClock
from perdure.server.stores import make_end
from perdure.store.copies import Compared, End, copy
from tests.store.keeping import Keep

KINDS = ("sqlite", "postgres")
PAIRS = [(source, target) for source in KINDS for target in KINDS]


class Place:
    """Where a store is, or may come to be."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = Path(url.removeprefix("sqlite://")) if url.startswith("sqlite") else None
        self.keep = Keep.postgres(url) if self.path is None else Keep.sqlite(self.path)

    def end(self) -> End:
        return make_end(self.url, clock=SystemClock())

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Look past the store at what is on disk. PostgreSQL's tables are found by plain names."""
        if self.path is not None:
            connection = apsw.Connection(str(self.path))
            try:
                return connection.execute(query).fetchall()
            finally:
                connection.close()

        async def fetch() -> list[tuple[Any, ...]]:
            settings = {"search_path": "perdure"}
            connection = await asyncpg.connect(self.url, server_settings=settings)
            try:
                return [tuple(row) for row in await connection.fetch(query)]
            finally:
                await connection.close()

        return asyncio.run(fetch())


MakePlace = Callable[[str], Place]


def copied(source: Place, target: Place) -> list[Compared]:
    """What a copy says about both ends."""
    return asyncio.run(copy(source.end(), target.end()))


def digests(compared: list[Compared]) -> dict[str, tuple[int, str]]:
    """What is in a store, from a copy that held."""
    assert all(table.is_same for table in compared), compared
    return {table.table: (table.source_rows, table.source_digest) for table in compared}

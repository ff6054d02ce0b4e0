"""A checked copy of a stopped store into an empty one, each of either kind.

Every table is copied in a form that both stores share. Data of one store alone (registered nodes,
temporary claims, row versions) starts afresh in the target or is derived from the rest. A target is
marked as unfinished until everything was read again and compared.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from perdure.store.damage import is_intact
from perdure.store.interface import Unavailable
from perdure.store.rows import encode

Row: TypeAlias = tuple[Any, ...]

TABLES: dict[str, tuple[str, ...]] = {
    "namespace": ("name",),
    "run": (
        "run_id",
        "namespace",
        "workflow_id",
        "workflow_type",
        "queue",
        "run_number",
        "started_at",
        "status",
        "closed_at",
        "version",
        "task_owner",
        "state",
    ),
    "operation": ("run_id", "sequence", "lease_owner", "data"),
    "inbox": ("run_id", "position", "data"),
    "history": ("run_id", "first_sequence", "last_sequence", "events", "digest"),
    "ready": (
        "run_id",
        "place",
        "namespace",
        "queue",
        "kind",
        "name",
        "priority",
        "available_at",
    ),
    "deadline": ("kind", "target", "due_at"),
    "receipt": ("namespace", "workflow_id", "kind", "request_id", "data", "run_id"),
    "worker": ("namespace", "worker_id", "data"),
    "record": ("kind", "namespace", "key", "due_at", "data"),
    "stream_item": ("run_id", "stream_name", "item_offset", "idempotency_key", "data"),
    "payload": ("namespace", "reference_id", "loose_bytes", "data"),
}
"""The tables to copy, in order, with the columns that both stores have."""

PAGE_ROWS_MAX = 500
PAGE_BYTES_MAX = 4 * 1_048_576
"""A page is written when it reaches either bound; one row may be larger."""

UNFINISHED = "a copy into it did not finish; remove it and copy again"


class End(Protocol):
    """A store as the source or the target of a copy."""

    async def open_source(self) -> None:
        """Open for reading. Refuses a store that is missing, in use, unfinished, or not current."""
        ...

    async def open_target(self) -> None:
        """Open for writing. Refuses a store with data. Until `finish` it cannot be served."""
        ...

    def pages(self, table: str) -> AsyncGenerator[list[Row], None]:
        """Every row of a table, as it is stored."""
        ...

    async def write_page(self, table: str, page: list[Row]) -> None:
        """Write a page in a transaction of its own."""
        ...

    async def require_unchanged(self) -> None:
        """Refuse if the source was written to meanwhile."""
        ...

    async def finish(self) -> None:
        """Mark the target as complete, so that it can be served."""
        ...

    async def close(self) -> None: ...


class Digest:
    """The number of rows and the sum of their SHA-256, which does not depend on their order."""

    def __init__(self) -> None:
        self.rows = 0
        self.damaged = 0
        """History chunks that do not match their checksums."""
        self._sum = 0

    def add(self, table: str, page: list[Row]) -> None:
        self.rows += len(page)
        if table == "history":
            self.damaged += sum(not is_intact(*row[-2:]) for row in page)
        for row in page:
            self._sum += int.from_bytes(sha256(encode(row)).digest(), "big")

    @property
    def text(self) -> str:
        return f"{self._sum % 2**256:064x}"


class Compared(Struct, frozen=True):
    """One table on both sides."""

    table: str
    source_rows: int
    source_digest: str
    target_rows: int
    target_digest: str
    damaged: int = 0
    """Rows that were damaged in the source; they are copied as they are, with their checksums."""

    @property
    def is_same(self) -> bool:
        source = (self.source_rows, self.source_digest)
        return source == (self.target_rows, self.target_digest)


class Page:
    """A buffer of rows for one transaction."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._bytes = 0

    def add(self, row: Row) -> None:
        self._rows.append(row)
        self._bytes += sum(len(value) for value in row if isinstance(value, bytes | str))

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= PAGE_ROWS_MAX or self._bytes >= PAGE_BYTES_MAX

    def take(self) -> list[Row]:
        rows, self._rows, self._bytes = self._rows, [], 0
        return rows


async def copy(source: End, target: End) -> list[Compared]:
    """Copy everything, read it again, and compare; finish the target if all is the same."""
    with _named("--from"):
        await source.open_source()
    try:
        with _named("--to"):
            await target.open_target()
        try:
            return await _copy(source, target)
        finally:
            await target.close()
    finally:
        await source.close()


async def _copy(source: End, target: End) -> list[Compared]:
    given = {table: await _copy_table(source, target, table) for table in TABLES}
    with _named("--from"):
        await source.require_unchanged()
    compared = [await _compare(target, table, given[table]) for table in TABLES]
    if all(table.is_same for table in compared):
        with _named("--to"):
            await target.finish()
    return compared


async def _copy_table(source: End, target: End, table: str) -> Digest:
    digest = Digest()
    async with aclosing(source.pages(table)) as pages:
        while True:
            with _named("--from"):
                page = await anext(pages, None)
            if page is None:
                return digest
            digest.add(table, page)
            with _named("--to"):
                await target.write_page(table, page)


async def _compare(target: End, table: str, given: Digest) -> Compared:
    found = Digest()
    with _named("--to"):
        async with aclosing(target.pages(table)) as pages:
            async for page in pages:
                found.add(table, page)
    return Compared(table, given.rows, given.text, found.rows, found.text, given.damaged)


@contextmanager
def _named(side: str) -> Iterator[None]:
    """Prefix a refusal with the side of the copy that it is about."""
    try:
        yield
    except Unavailable as error:
        raise Unavailable(error.reason, f"{side}: {error.message}") from error

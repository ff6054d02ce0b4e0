"""A SQLite file as the source or target of a copy, which holds its lock meanwhile."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw

from perdure.store.copies import Page, Row
from perdure.store.interface import Unavailable
from perdure.store.queries import load_queries
from perdure.store.sqlite.errors import unavailable
from perdure.store.sqlite.guard import FileGuard
from perdure.store.sqlite.schema import (
    create_file,
    migrate,
    note_clean_stop,
    note_finished,
    note_unfinished,
    prepare_writer,
    require_current,
    require_finished,
    require_intact,
    tables_of,
)

PACKAGE = "perdure.store.sqlite"


class SqliteEnd:
    """One database file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = FileGuard(path)
        self._sql = load_queries(PACKAGE)
        self._connection: apsw.Connection

    async def open_source(self) -> None:
        if not self._path.is_file():
            raise Unavailable("storage_missing", f"there is no file {self._path}")
        with self._opening(apsw.SQLITE_OPEN_READWRITE) as connection:
            connection.execute("pragma query_only=on")
            require_current(connection, PACKAGE)
            require_finished(connection)
            require_intact(connection)

    async def open_target(self) -> None:
        with self._opening(
            apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, creates=True
        ) as connection:
            if tables_of(connection):
                self._require_empty(connection)
            prepare_writer(connection)
            migrate(connection, PACKAGE)
            with connection:
                note_unfinished(connection)
                connection.execute(self._sql["clear_namespaces"])

    def _require_empty(self, connection: apsw.Connection) -> None:
        """Refuse a file with data, before anything is changed."""
        if "schema_version" not in tables_of(connection):
            raise Unavailable("storage_not_empty", "it holds data that is not a perdure store")
        require_current(connection, PACKAGE)
        require_finished(connection)
        ((holds_something,),) = connection.execute(self._sql["find_anything"])
        if holds_something:
            raise Unavailable("storage_not_empty", "it is not empty; copy into a fresh one")

    async def pages(self, table: str) -> AsyncGenerator[list[Row], None]:
        page = Page()
        with self._refusals():
            for row in self._connection.execute(self._sql[f"give_{table}"]):
                page.add(row)
                if page.is_full:
                    yield page.take()
        if rest := page.take():
            yield rest

    async def write_page(self, table: str, page: list[Row]) -> None:
        with self._refusals(), self._connection:
            self._connection.executemany(self._sql[f"take_{table}"], page)

    async def require_unchanged(self) -> None:
        """Nothing to check: the copy held the lock."""

    async def finish(self) -> None:
        with self._refusals(), self._connection:
            note_finished(self._connection)
            note_clean_stop(self._connection)

    async def close(self) -> None:
        self._connection.close(force=True)
        self._guard.release()

    @contextmanager
    def _opening(self, flags: int, *, creates: bool = False) -> Iterator[apsw.Connection]:
        with ExitStack() as undo:
            self._guard.acquire()
            undo.callback(self._guard.release)
            with self._refusals():
                if creates:
                    create_file(self._path)
                self._connection = apsw.Connection(str(self._path), flags=flags)
                undo.callback(self._connection.close, force=True)
                yield self._connection
            undo.pop_all()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Translate errors of the file to `Unavailable`, with its path."""
        try:
            yield
        except apsw.Error as error:
            refusal = unavailable(error)
            raise Unavailable(refusal.reason, f"{self._path}: {refusal.message}") from error
        except Unavailable as error:
            raise Unavailable(error.reason, f"{self._path}: {error.message}") from error

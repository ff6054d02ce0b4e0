"""Opening of the file: settings of the writer, migrations, and a check after an unclean stop."""

import logging
import os
from contextlib import closing
from pathlib import Path

import apsw

from perdure.clock import monotonic_seconds
from perdure.store.copies import UNFINISHED
from perdure.store.interface import Unavailable
from perdure.store.queries import load_migrations

CHECK_SECONDS_MAX = 10.0
"""How long the check after a crash may delay the start of the server."""

APPLICATION_ID = 0x70657264
"""The application id in the header of the file: `perd`. Older files have none."""
_OLDEST_TABLES = {"schema_version", "run", "history", "meta"}
"""Tables that every store has had from the first release on."""

log = logging.getLogger(__name__)


def prepare_writer(connection: apsw.Connection) -> None:
    """Settings of the writing connection: durable commits, then speed."""
    connection.set_busy_timeout(200)
    keep_plans(connection)
    for setting in (
        "journal_mode=wal",
        "synchronous=full",
        "cache_size=-32768",
        "wal_autocheckpoint=2000",
        "journal_size_limit=33554432",
        "temp_store=memory",
        "foreign_keys=off",
    ):
        connection.execute(f"pragma {setting}")


def keep_plans(connection: apsw.Connection) -> None:
    """Plan each statement once, so that plans are those that the tests check.

    Otherwise SQLite replans statements with a limit whenever a value is bound.
    """
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def create_file(path: Path) -> None:
    """Create the file readable by its owner only; SQLite gives its other files the same mode."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise Unavailable(
            "storage_error", f"the file cannot be opened: {error.strerror}"
        ) from error
    if mode & 0o077:
        log.warning(
            "%s may be read or written by other users of this machine (mode %o); "
            "run chmod 600 on it and on its -wal and -shm",
            path,
            mode,
        )


def require_ours(path: Path) -> None:
    """Refuse a file of another program before anything in it is touched."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        mark = connection.pragma("application_id")
        tables = {name for name in tables_of(connection) if not name.startswith("sqlite_")}
    if mark not in (0, APPLICATION_ID):
        raise Unavailable("storage_foreign", f"it belongs to another program (id {mark})")
    if tables - {"schema_version"} and not tables >= _OLDEST_TABLES:
        named = ", ".join(sorted(tables)[:5])
        raise Unavailable("storage_foreign", f"it holds tables of another program ({named})")


def migrate(connection: apsw.Connection, package: str) -> None:
    """Bring the schema to the newest version, each step in one transaction."""
    connection.execute("create table if not exists schema_version (version integer primary key)")
    migrations = load_migrations(package)
    current = _require_known(connection, migrations[-1][0])
    for version, script in migrations:
        if version > current:
            with connection:
                connection.execute(script)
                connection.execute("insert into schema_version values (?)", (version,))
    if connection.pragma("application_id") != APPLICATION_ID:
        connection.pragma("application_id", APPLICATION_ID)


def require_current(connection: apsw.Connection, package: str) -> None:
    """Refuse any schema but that of this release: a copy must know every column."""
    if "schema_version" not in tables_of(connection):
        raise Unavailable("storage_missing", "it holds no perdure store")
    newest = load_migrations(package)[-1][0]
    current = _require_known(connection, newest)
    if current < newest:
        raise Unavailable(
            "storage_older",
            f"the store has schema {current}, this release has {newest}; run perdure migrate first",
        )


def tables_of(connection: apsw.Connection) -> set[str]:
    """The names of all tables and indexes in a file."""
    return {str(name) for (name,) in connection.execute("select name from sqlite_schema")}


def _require_known(connection: apsw.Connection, newest: int) -> int:
    """The version of the schema. Refuses one that is too new for this release."""
    versions = [row[0] for row in connection.execute("select version from schema_version")]
    current = max((int(str(version)) for version in versions), default=0)
    if current > newest:
        raise Unavailable(
            "storage_newer",
            f"the store has schema {current}, this release knows {newest}; run a newer perdure",
        )
    return current


def require_finished(connection: apsw.Connection) -> None:
    """Refuse the target of an interrupted copy."""
    if connection.execute("select 1 from meta where key = 'unfinished_copy'").fetchall():
        raise Unavailable("storage_incomplete", UNFINISHED)


def note_unfinished(connection: apsw.Connection) -> None:
    """Mark the file as the target of an unfinished copy."""
    connection.execute("insert into meta values ('unfinished_copy', 'yes')")


def note_finished(connection: apsw.Connection) -> None:
    connection.execute("delete from meta where key = 'unfinished_copy'")


def verify_after_crash(connection: apsw.Connection) -> None:
    """Check for damage after an unclean stop, and remove the mark of a clean one."""
    require_intact(connection)
    connection.execute("delete from meta where key = 'clean_stop'")


def require_intact(connection: apsw.Connection) -> None:
    """Check for damage unless the last process stopped cleanly."""
    clean = connection.execute("select 1 from meta where key = 'clean_stop'").fetchall()
    is_empty = not connection.execute("select 1 from run limit 1").fetchall()
    if not clean and not is_empty:
        _check(connection)


def note_clean_stop(connection: apsw.Connection) -> None:
    """Mark a clean stop, so that the next start need not check for damage."""
    connection.execute("insert or replace into meta values ('clean_stop', 'yes')")


def _check(connection: apsw.Connection) -> None:
    give_up_at = monotonic_seconds() + CHECK_SECONDS_MAX
    connection.set_progress_handler(lambda: monotonic_seconds() > give_up_at, 100_000)
    try:
        findings = [row[0] for row in connection.execute("pragma quick_check(5)")]
    except apsw.InterruptError:
        log.warning(
            "stopped the integrity check after an unclean stop at its limit of %s s",
            CHECK_SECONDS_MAX,
        )
        return
    finally:
        connection.set_progress_handler(None)
    if findings != ["ok"]:
        raise Unavailable("storage_corrupt", f"the store is damaged: {'; '.join(findings)}")
    log.info("the store was not closed cleanly; it is intact")

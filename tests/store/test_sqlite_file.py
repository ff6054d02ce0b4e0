"""The SQLite file itself: its schema, its lock, and what is looked at after an unclean stop."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
import pytest

from perdure.store.copies import TABLES as COPIED
from perdure.store.copies import copy
from perdure.store.interface import Store, Unavailable
from perdure.store.queries import load_migrations, load_queries
from perdure.store.sqlite.copies import SqliteEnd
from perdure.store.sqlite.schema import APPLICATION_ID
from perdure.store.sqlite.store import PACKAGE, SqliteStore
from tests.store.building import a_run
from tests.store.keeping import Keep

NEWEST = load_migrations(PACKAGE)[-1][0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


# Schema -----------------------------------------------------------------------------------------


def test_a_fresh_file_gets_the_newest_schema(path: Path) -> None:
    with Keep.sqlite(path).opened():
        pass

    assert asked(path, "select max(version) from schema_version") == [(NEWEST,)]
    assert asked(path, "pragma journal_mode") == [("wal",)]


def test_the_folder_of_a_fresh_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "perdure.db"

    with Keep.sqlite(path).opened():
        assert path.exists()


def test_opening_again_migrates_nothing_and_loses_nothing(path: Path) -> None:
    keep, run = Keep.sqlite(path), a_run()
    with keep.opened() as store:
        keep.commit(store, run)
    schema = asked(path, "select sql from sqlite_schema order by name")

    for _ in range(3):
        with keep.opened() as store:
            assert len(keep.run(store.load_runs([run.run_id]))) == 1

    assert asked(path, "select sql from sqlite_schema order by name") == schema
    versions = [(version,) for version, _ in load_migrations(PACKAGE)]
    assert asked(path, "select version from schema_version order by version") == versions


def test_a_migration_that_was_cut_off_is_done_again(path: Path) -> None:
    """A process died right before the first migration was committed."""
    asked(path, "create table schema_version (version integer primary key)")

    with Keep.sqlite(path).opened() as store:
        asyncio.run(store.check())


def test_a_newer_schema_is_refused_and_left_as_it_is(path: Path) -> None:
    with Keep.sqlite(path).opened():
        pass
    asked(path, f"insert into schema_version values ({NEWEST + 1})")

    refusal = refused(path)

    assert refusal.reason == "storage_newer"
    assert str(NEWEST + 1) in refusal.message
    assert asked(path, "select max(version) from schema_version") == [(NEWEST + 1,)]


def test_a_refused_opening_leaves_the_lock_to_others(path: Path) -> None:
    """Who opens the same file again must hear why it is refused, not that we are in our own way."""
    with Keep.sqlite(path).opened():
        pass
    asked(path, f"insert into schema_version values ({NEWEST + 1})")

    assert [refused(path).reason for _ in range(2)] == ["storage_newer", "storage_newer"]


def test_every_query_can_be_prepared_and_none_scans_a_table_on_a_hot_path(path: Path) -> None:
    at_start = {"load_workers", "load_namespaces", "load_ready_names", "load_lease_owners"}
    by_a_copy = {"find_anything", "clear_namespaces", *(f"give_{table}" for table in COPIED)}
    with Keep.sqlite(path).opened():
        pass
    scans: dict[str, list[str]] = {}
    with closing(apsw.Connection(str(path))) as connection:
        tables = {row[0] for row in connection.execute("select name from sqlite_schema")}
        for name, query in load_queries(PACKAGE).items():
            values = [None] * query_parameters(connection, query)
            plan = [row[3] for row in connection.execute(f"explain query plan {query}", values)]
            scans[name] = [
                str(step)
                for step in plan
                if str(step).startswith("SCAN") and str(step).split()[1] in tables
            ]

    assert {name for name, steps in scans.items() if steps} <= at_start | by_a_copy


def query_parameters(connection: apsw.Connection, query: str) -> int:
    return apsw.ext.query_info(connection, query).bindings_count


def test_what_was_committed_is_on_the_disk_and_not_on_its_way(path: Path) -> None:
    """WAL alone would lose acknowledged commits with the power; whoever writes waits for fsync."""
    with Keep.sqlite(path).opened() as store:
        assert isinstance(store, SqliteStore)
        assert store._writer.pragma("synchronous") == 2
        assert store._writer.pragma("journal_mode") == "wal"
        for reader in (store._reader, store._bulk_reader):
            assert reader is not store._writer
            assert reader.readonly("main")


# Whose it is ------------------------------------------------------------------------------------


def beside(path: Path) -> list[Path]:
    return [path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def generous_umask() -> Iterator[None]:
    """Whatever is created is open to everybody unless it is said otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("generous_umask")
def test_a_fresh_file_and_what_is_beside_it_is_for_its_owner_alone(path: Path) -> None:
    keep = Keep.sqlite(path)
    with keep.opened() as store:
        keep.commit(store, a_run())
        assert [oct(mode(file)) for file in beside(path)] == ["0o600"] * 3


@pytest.mark.usefixtures("generous_umask")
def test_a_copy_is_for_its_owner_alone(path: Path, tmp_path: Path) -> None:
    with Keep.sqlite(path).opened():
        pass
    asyncio.run(copy(SqliteEnd(path), SqliteEnd(tmp_path / "copy.db")))
    assert oct(mode(tmp_path / "copy.db")) == "0o600"


def test_a_file_that_others_may_read_is_warned_about_and_left_as_it_is(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Keep.sqlite(path).opened():
        pass
    assert caplog.messages == []
    path.chmod(0o640)
    with Keep.sqlite(path).opened():
        pass
    (told,) = caplog.messages
    assert str(path) in told
    assert "chmod 600" in told
    assert mode(path) == 0o640


@pytest.mark.parametrize(
    "statements",
    [
        "create table invoices (id integer primary key)",
        "pragma user_version = 7; create table schema_version (version); create table other (x)",
        "pragma application_id = 252006674; create table schema_version (version)",
        "pragma application_id = 252006674",
    ],
    ids=["tables", "a version table", "its own id and a version table", "its own id"],
)
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_file_of_another_program_is_refused_and_left_as_it_is(
    path: Path, statements: str, journal: str
) -> None:
    asked(path, f"pragma journal_mode = {journal}")
    asked(path, statements)
    before = path.read_bytes()

    refusal = refused(path)

    assert refusal.reason == "storage_foreign"
    assert str(path) in refusal.message
    assert path.read_bytes() == before
    assert asked(path, "pragma journal_mode") == [(journal,)]


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"some notes of somebody\n" * 1000)
    before = path.read_bytes()
    assert refused(path).reason == "storage_corrupt"
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with Keep.sqlite(path).opened():
        pass
    assert asked(path, "pragma application_id") == [(APPLICATION_ID,)]


def test_a_store_of_a_release_that_marked_none_is_marked(path: Path) -> None:
    keep, run = Keep.sqlite(path), a_run()
    with keep.opened() as store:
        keep.commit(store, run)
    asked(path, "pragma application_id = 0")
    with keep.opened() as store:
        assert len(keep.run(store.load_runs([run.run_id]))) == 1
    assert asked(path, "pragma application_id") == [(APPLICATION_ID,)]


# The lock ---------------------------------------------------------------------------------------


def test_a_second_process_is_told_who_holds_the_file(path: Path) -> None:
    with Keep.sqlite(path).opened():
        refusal = refused(path)

    assert refusal.reason == "storage_locked"
    assert str(os.getpid()) in refusal.message


def test_the_holder_is_not_harmed_by_the_one_who_was_refused(path: Path) -> None:
    keep, run = Keep.sqlite(path), a_run()
    with keep.opened() as store:
        refused(path)
        keep.commit(store, run)
        assert len(keep.run(store.load_runs([run.run_id]))) == 1


def test_the_lock_is_free_after_a_clean_stop(path: Path) -> None:
    for _ in range(2):
        with Keep.sqlite(path).opened():
            pass


def test_a_lock_file_that_a_dead_process_left_does_not_count(path: Path) -> None:
    Path(f"{path}.lock").write_text("99999999")

    with Keep.sqlite(path).opened():
        assert Path(f"{path}.lock").read_text() == str(os.getpid())


# After an unclean stop --------------------------------------------------------------------------


def test_a_clean_stop_is_noted_and_the_note_is_gone_while_the_file_is_open(path: Path) -> None:
    note = "select count(*) from meta where key = 'clean_stop'"
    with Keep.sqlite(path).opened():
        assert asked(path, note) == [(0,)]

    assert asked(path, note) == [(1,)]


def test_what_a_crash_left_is_opened_when_it_is_intact(path: Path, tmp_path: Path) -> None:
    left = what_a_crash_leaves(path, tmp_path)

    keep = Keep.sqlite(left)
    with keep.opened() as store:
        assert len(keep.run(store.load_due(2**62, 1000))) == 0
        assert asked(left, "select count(*) from run") == [(200,)]


def test_a_write_ahead_log_that_ends_in_the_middle_is_cut_there(path: Path, tmp_path: Path) -> None:
    """The last page of a commit never reached the disk, so that commit never was."""
    left = what_a_crash_leaves(path, tmp_path)
    with Path(f"{left}-wal").open("r+b") as log:
        log.truncate(log.seek(0, os.SEEK_END) - 100)

    with Keep.sqlite(left).opened():
        assert asked(left, "select count(*) from run") == [(100,)]


def table_page(left: Path) -> int:
    return root_page(left, "run")


def index_page(left: Path) -> int:
    return root_page(left, "history_idx")


def leaf_page(left: Path) -> int:
    """The last page of the largest table."""
    found = asked(
        left, "select max(pageno) from dbstat where name = 'history' and pagetype = 'leaf'"
    )
    return int(found[0][0])


def first_page(_: Path) -> int:
    return 1


@pytest.mark.parametrize("find_page", [table_page, index_page, leaf_page, first_page])
def test_a_damaged_page_is_found_before_anything_is_served(
    find_page: Callable[[Path], int], path: Path, tmp_path: Path
) -> None:
    left = what_a_crash_leaves(path, tmp_path)
    asked(left, "pragma wal_checkpoint(truncate)")
    damage(left, find_page(left))

    refusal = refused(left)

    assert refusal.reason == "storage_corrupt"


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)

    assert refused(path).reason == "storage_corrupt"


def what_a_crash_leaves(path: Path, tmp_path: Path) -> Path:
    """A copy of the files of an open store: two commits of a hundred runs, no goodbye."""
    keep = Keep.sqlite(path)
    left = tmp_path / "left.db"
    with keep.opened() as store:
        for half in range(2):
            keep.commit(store, *(a_run(f"run {half}-{number}") for number in range(100)))
        shutil.copy(path, left)
        shutil.copy(f"{path}-wal", f"{left}-wal")
    return left


def root_page(path: Path, name: str) -> int:
    found = asked(path, f"select rootpage from sqlite_schema where name = '{name}'")
    return int(found[0][0])


def damage(path: Path, page: int) -> None:
    size = int(asked(path, "pragma page_size")[0][0])
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)


def refused(path: Path) -> Unavailable:
    """The refusal that opening the file gets."""
    store: Store = SqliteStore(path)
    with pytest.raises(Unavailable) as caught:
        asyncio.run(store.open())
    return caught.value


def asked(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute(query).fetchall()

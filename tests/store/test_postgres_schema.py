"""The schema comes into being once, grows without stopping older releases, and refuses what would
lose data."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime

import asyncpg
import pytest

from perdure.clock import SystemClock
from perdure.identity import IdSource
from perdure.store.interface import Changes, Conflict, Unavailable
from perdure.store.postgres import connection as line
from perdure.store.postgres import schema
from perdure.store.postgres.store import PostgresStore
from tests.store.building import a_run
from tests.store.nodes import commit, nodes, session
from tests.support.clock import SECOND, FakeClock
from tests.support.postgres import Cluster


def a_store(url: str, node_id: str = "a") -> PostgresStore:
    return PostgresStore(url, node_id=node_id, clock=SystemClock())


async def opened(store: PostgresStore) -> PostgresStore:
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def test_nodes_that_start_at_the_same_time_migrate_once(postgres_url: str) -> None:
    async def story() -> None:
        stores = [a_store(postgres_url, f"node-{number}") for number in range(4)]
        applied = await asyncio.gather(*(store.migrate() for store in stores))
        assert sorted(map(bool, applied)) == [False, False, False, True], applied
        await asyncio.gather(*map(opened, stores))
        async with session(postgres_url) as other:
            versions = await other.fetch("select version from perdure.schema_version")
            assert [row[0] for row in versions] == next(filter(None, applied))
        for store in stores:
            await store.check()
            await store.close()

    asyncio.run(story())


def test_a_migration_that_breaks_leaves_nothing_behind(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = [(1, "-- needs: 1\ncreate table perdure.x (a int)"), (2, "-- needs: 1\ndance")]
    monkeypatch.setattr("perdure.store.postgres.schema.load_migrations", lambda package: scripts)

    async def story() -> None:
        store = a_store(postgres_url)
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await store.migrate()
        await store.close()
        async with session(postgres_url) as other:
            known = "select count(*) from pg_namespace where nspname = 'perdure'"
            assert await other.fetchval(known) == 0

    asyncio.run(story())


def test_a_node_waits_for_as_long_as_another_one_migrates(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table may take longer to change than any statement of every day may."""
    for setting in ("lock_timeout", "statement_timeout"):
        monkeypatch.setitem(line.SESSION, setting, "1s")
    monkeypatch.setattr(line, "STATEMENT_SECONDS", 1.0)

    async def story() -> None:
        async with session(postgres_url) as other:
            slow = other.transaction()
            await slow.start()
            await other.execute("select pg_advisory_xact_lock($1)", schema._LOCK)
            waiting = asyncio.ensure_future(opened(a_store(postgres_url)))
            ended, _ = await asyncio.wait({waiting}, timeout=2.0)
            assert not ended, waiting
            await slow.rollback()
            await (await waiting).close()

    asyncio.run(story())


def test_a_node_that_was_forgotten_takes_part_anew(migrated_url: str) -> None:
    async def story() -> None:
        async with nodes(migrated_url) as [store], session(migrated_url) as other:
            run = a_run()
            await commit(store, run)
            await other.execute("delete from perdure.node")
            with pytest.raises(Conflict):
                await store.commit(Changes(runs=[run]))
            await commit(store, run)
            assert await other.fetchval("select count(*) from perdure.node") == 1

    asyncio.run(story())


def test_a_newer_schema_that_lets_us_live_is_used(migrated_url: str) -> None:
    async def story() -> None:
        async with session(migrated_url) as other:
            await other.execute(
                "insert into perdure.schema_version values (999, 1);"
                "alter table perdure.run add column colour text;"
                "alter table perdure.open_run add column size bigint not null default 0;"
                "create table perdure.something_new (a int)"
            )
        async with nodes(migrated_url) as [store]:
            run = a_run()
            await commit(store, run)
            await commit(store, run)
            assert [one.run_id for one in await store.load_runs([run.run_id])] == [run.run_id]

    asyncio.run(story())


def test_a_newer_schema_that_does_not_is_refused(migrated_url: str) -> None:
    async def story() -> None:
        async with session(migrated_url) as other:
            await other.execute("insert into perdure.schema_version values (999, 999)")
        with pytest.raises(Unavailable) as told:
            await opened(a_store(migrated_url))
        assert told.value.reason == "storage_newer"
        assert "999" in told.value.message

    asyncio.run(story())


@pytest.mark.parametrize(
    ("database", "words"),
    [
        ("set synchronous_commit = off", "synchronous_commit"),
        ("set synchronous_commit = local", ""),
        ("set synchronous_commit = remote_apply", ""),
    ],
)
def test_a_database_that_forgets_is_refused(
    postgres_cluster: Cluster, migrated_url: str, database: str, words: str
) -> None:
    name = migrated_url.rpartition("/")[2]
    postgres_cluster.execute(f"alter database {name} {database}")

    async def story() -> None:
        store = a_store(migrated_url)
        if not words:
            await (await opened(store)).close()
            return
        with pytest.raises(Unavailable, match=words) as told:
            await opened(store)
        assert told.value.reason == "storage_unsafe"

    asyncio.run(story())


def test_a_database_of_another_encoding_is_refused(postgres_cluster: Cluster) -> None:
    postgres_cluster.execute(
        "create database latin owner perdure encoding 'LATIN1' locale 'C' template template0"
    )
    url = postgres_cluster.url_of("latin")

    async def story() -> None:
        with pytest.raises(Unavailable, match="UTF8"):
            await opened(a_store(url))

    try:
        asyncio.run(story())
    finally:
        postgres_cluster.drop_database(url)


# Partitions ---------------------------------------------------------------------------------------


def months_from(now: int, how_many: int) -> list[str]:
    ctx = datetime.fromtimestamp(now / SECOND, UTC)
    first = ctx.year * 12 + ctx.month - 1
    return [f"history_{n // 12}_{n % 12 + 1:02}" for n in range(first, first + how_many)]


async def homes(url: str) -> dict[str, str]:
    """Which table the history of each run is in."""
    async with session(url) as other:
        rows = await other.fetch("select run_id, tableoid::regclass::text from perdure.history")
        return {row[0]: row[1].rpartition(".")[2] for row in rows}


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["now", "new year"])
def test_a_history_lives_in_the_month_of_its_start(
    postgres_url: str, clock: SystemClock | FakeClock
) -> None:
    ids = IdSource(clock.now)

    async def story() -> None:
        async with nodes(postgres_url, clock=clock) as [store]:
            now, old = a_run("now"), a_run("old")
            now.run_id, old.run_id = ids.ulid(), IdSource(lambda: 10**15).ulid()
            await commit(store, now, old)
            assert await homes(postgres_url) == {
                now.run_id: months_from(clock.now(), 1)[0],
                old.run_id: "history_other",
            }
            assert await store.read_history(now.run_id, 0, 9) == now.events
            assert await store.read_history(old.run_id, 0, 9) == old.events

    asyncio.run(story())


def test_there_is_room_for_the_months_to_come_before_they_come(postgres_url: str) -> None:
    clock = FakeClock()

    async def partitions() -> list[str]:
        async with session(postgres_url) as other:
            rows = await other.fetch(
                "select inhrelid::regclass::text from pg_inherits "
                "where inhparent = 'perdure.history'::regclass"
            )
            return sorted(row[0].rpartition(".")[2] for row in rows)

    async def story() -> None:
        async with nodes(postgres_url, postgres_url, clock=clock) as (one, two):
            first = months_from(clock.now(), 3)
            assert await partitions() == [*first, "history_other"]
            clock.jump(seconds=31 * 86_400)
            await asyncio.gather(one.reopen_before_message(), two.reopen_before_message())
            assert await partitions() == [first[0], *months_from(clock.now(), 3), "history_other"]

    asyncio.run(story())


def test_a_month_that_came_before_its_room_stays_where_it_is(postgres_url: str) -> None:
    """Nobody looked for months. Its histories are as safe, and as quick to find, elsewhere."""
    clock = FakeClock()
    ids = IdSource(clock.now)

    async def story() -> None:
        async with nodes(postgres_url, clock=clock) as [store]:
            clock.jump(seconds=200 * 86_400)
            run = a_run()
            run.run_id = ids.ulid()
            await commit(store, run)
            await store.note_life()
            await store.reopen_before_message()
            assert await homes(postgres_url) == {run.run_id: "history_other"}
            await commit(store, run)
            assert await store.read_history(run.run_id, 0, 9) == run.events

    asyncio.run(story())


# Roles and the command line -----------------------------------------------------------------------


def test_a_role_that_may_only_read_and_write_can_serve(
    postgres_cluster: Cluster, migrated_url: str
) -> None:
    name = migrated_url.rpartition("/")[2]
    for statement in (
        "drop role if exists clerk",
        "create role clerk login",
    ):
        postgres_cluster.execute(statement)
    for statement in (
        "grant usage on schema perdure to clerk",
        "grant select, insert, update, delete on all tables in schema perdure to clerk",
    ):
        postgres_cluster.execute(statement, database=name)
    url = postgres_cluster.url_of(name, role="clerk")

    async def story() -> None:
        async with nodes(url, clock=FakeClock()) as [store]:
            run = a_run()
            await commit(store, run)
            assert await store.read_history(run.run_id, 0, 9) == run.events
        # A month for which somebody else must make room is no reason not to serve.
        late = FakeClock()
        late.jump(seconds=400 * 86_400)
        async with nodes(url, clock=late) as [store]:
            await commit(store, a_run("late"))

    try:
        asyncio.run(story())
    finally:
        postgres_cluster.execute("drop owned by clerk", database=name)
        postgres_cluster.execute("drop role clerk")


def test_a_role_that_may_not_even_look_is_told_so(
    postgres_cluster: Cluster, migrated_url: str
) -> None:
    postgres_cluster.execute("drop role if exists stranger")
    postgres_cluster.execute("create role stranger login")
    name = migrated_url.rpartition("/")[2]

    async def story() -> None:
        with pytest.raises(Unavailable):
            await opened(a_store(postgres_cluster.url_of(name, role="stranger")))

    try:
        asyncio.run(story())
    finally:
        postgres_cluster.execute("drop role stranger")


def test_the_command_line_migrates_and_says_what_it_did(postgres_url: str) -> None:
    def migrate() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "perdure", "migrate", "--store", postgres_url]
        return subprocess.run(command, capture_output=True, text=True, timeout=90)

    first, second = migrate(), migrate()

    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("perdure: applied 1")
    assert (second.returncode, second.stdout, second.stderr) == (0, "perdure: up to date\n", "")


def test_the_command_line_refuses_in_one_sentence(migrated_url: str) -> None:
    async def spoil() -> None:
        async with session(migrated_url) as other:
            await other.execute("insert into perdure.schema_version values (999, 999)")

    asyncio.run(spoil())
    command = [sys.executable, "-m", "perdure", "migrate", "--store", migrated_url]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert (refused.returncode, refused.stdout) == (2, "")
    (sentence,) = refused.stderr.splitlines()
    assert sentence.startswith("perdure: the store has schema 999")

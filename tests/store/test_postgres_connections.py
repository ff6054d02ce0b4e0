"""A connection may break at any moment: what was written is found out, never assumed."""

import asyncio
from collections.abc import Iterator
from types import MappingProxyType

import pytest

from perdure.core.run.state import Run
from perdure.store.interface import Changes, Conflict, QueueKey, Unavailable
from perdure.store.postgres import connection as line
from perdure.store.postgres.errors import Lost
from perdure.store.postgres.store import PostgresStore
from tests.store.building import NOW, a_run, leased, with_activity, with_events
from tests.store.nodes import commit, load, nodes, nothing_written, session
from tests.support.postgres import Cluster
from tests.support.proxy import Predicate, Proxy, executing

WORKFLOWS = QueueKey("default", "q", "workflow")
WRITING = executing("gate as (")
"""The statement that writes a beat."""
COMMITTING: Predicate = lambda message: message.sql.strip().lower() == "commit"  # noqa: E731


@pytest.fixture
def proxy(migrated_url: str) -> Iterator[Proxy]:
    with Proxy(migrated_url) as proxy:
        yield proxy


def test_a_beat_whose_connection_broke_before_it_can_be_decided_again(
    proxy: Proxy, migrated_url: str
) -> None:
    async def story() -> None:
        async with nodes(proxy.url) as [store]:
            old, new = a_run("old"), a_run("new")
            await commit(store, old)
            trap = proxy.cut_before(WRITING)
            async with nothing_written(migrated_url):
                with pytest.raises(Conflict):
                    await store.commit(Changes(runs=[with_events(old, 1), new]))
            assert trap.sprung.done()
            await store.commit(Changes(runs=[old, new]))
            assert (await load(store, old.run_id)).history_count == old.history_count

    asyncio.run(story())


def test_a_beat_whose_connection_broke_behind_it_is_found_written(proxy: Proxy) -> None:
    async def story() -> None:
        async with nodes(proxy.url) as [store]:
            old = a_run("old")
            await commit(store, old)
            for number in range(3):
                new = a_run(f"new {number}")
                trap = proxy.cut_after(WRITING)
                await commit(store, with_events(old, 1), new)
                assert trap.sprung.done()
                assert (await load(store, old.run_id)).version == old.version
                assert (await load(store, new.run_id)).version == 1
            await commit(store, with_events(old, 1))

    asyncio.run(story())


@pytest.mark.parametrize("is_lost", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("ctx", [WRITING, COMMITTING], ids=["writing", "committing"])
def test_a_claim_whose_connection_breaks_is_done_as_a_whole_or_not_at_all(
    proxy: Proxy, migrated_url: str, ctx: Predicate, is_lost: bool
) -> None:
    """Its transaction has three statements. Only behind the last of them is it done."""
    is_done = ctx is COMMITTING and not is_lost

    async def story() -> None:
        async with nodes(proxy.url, migrated_url) as (one, two):
            runs = [a_run("a"), a_run("b")]
            await commit(one, *runs)
            claimed = await one.load_runs(await found(one))
            for run in claimed:
                leased(run, "w1")
            (proxy.cut_before if is_lost else proxy.cut_after)(ctx)
            if is_done:
                await commit(one, *claimed)
                assert await found(two) == []
                return
            async with nothing_written(migrated_url):
                with pytest.raises(Conflict):
                    await one.commit(Changes(runs=claimed))
                await one.release()
            # The server may take a moment to see that nobody is there any more.
            async with asyncio.timeout(90):
                while len(await found(two)) < 2:
                    await two.release()

    asyncio.run(story())


def test_a_connection_that_breaks_between_a_claim_and_its_commit_frees_what_was_claimed(
    proxy: Proxy, migrated_url: str
) -> None:
    async def story() -> None:
        async with nodes(proxy.url, migrated_url) as (one, two):
            await commit(one, a_run())
            claimed = await one.load_runs(await found(one))
            assert await found(two) == []
            await two.release()
            proxy.cut()
            async with nothing_written(migrated_url):
                with pytest.raises(Conflict):
                    await one.commit(Changes(runs=claimed))
            await one.release()
            async with asyncio.timeout(90):
                while not await found(two):
                    await two.release()

    asyncio.run(story())


async def found(store: PostgresStore) -> list[str]:
    return [task.run_id for task in await store.load_ready(WORKFLOWS, {"shop"}, 9)]


def test_a_commit_that_never_arrived_can_no_longer_arrive(
    proxy: Proxy, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs somewhere on the way; its node gives up, decides again, and then it arrives."""
    monkeypatch.setattr(line, "STATEMENT_SECONDS", 0.3)

    async def story() -> None:
        async with nodes(proxy.url) as [store]:
            run = a_run()
            await commit(store, run)
            trap = proxy.hold(WRITING)
            with pytest.raises(Conflict):
                await store.commit(Changes(runs=[with_events(run, 1)]))
            again = await load(store, run.run_id)
            async with nothing_written(migrated_url):
                trap.release()
                # What the old session is told to do, it has done when it is idle or gone.
                async with session(migrated_url) as other, asyncio.timeout(90):
                    while await other.fetchval(
                        "select count(*) from pg_stat_activity where state = 'active' "
                        "and pid <> pg_backend_pid() and datname = current_database()"
                    ):
                        pass
            await commit(store, with_events(again, 1))

    asyncio.run(story())


def test_a_commit_whose_answer_never_comes_is_found_written(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "STATEMENT_SECONDS", 2.0)

    async def story() -> None:
        async with nodes(proxy.url) as [store]:
            run = a_run()
            proxy.swallow(WRITING)
            await commit(store, run)
            assert (await load(store, run.run_id)).version == 1

    asyncio.run(story())


def test_a_commit_that_takes_longer_than_anybody_waits_for_a_lock_is_not_done_twice(
    proxy: Proxy, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is gone, and the database is still busy with what came over it.

    Until that has ended, nobody can say how: deciding again would do it twice.
    """
    monkeypatch.setitem(line.BEAT_SESSION, "lock_timeout", "100ms")

    async def story() -> None:
        async with nodes(proxy.url) as [store], session(migrated_url) as other:
            run = a_run()
            await commit(store, run)
            proxy.cut_after(WRITING)
            slow = other.transaction()
            await slow.start()
            await other.execute("select from perdure.node for share")
            writing = asyncio.ensure_future(store.commit(Changes(runs=[with_events(run, 1)])))
            ended, _ = await asyncio.wait({writing}, timeout=0.7)
            assert not ended, writing
            await slow.rollback()
            async with asyncio.timeout(90):
                await writing
            assert run.version == (await load(store, run.run_id)).version == 2

    asyncio.run(story())


def test_readers_do_not_notice_that_a_connection_broke(proxy: Proxy) -> None:
    async def story() -> None:
        async with nodes(proxy.url) as [store]:
            run = a_run()
            await commit(store, run)
            for _ in range(3):
                assert proxy.cut() > 0
                assert await store.read_history(run.run_id, 0, 10) == run.events
                assert (await load(store, run.run_id)).run_id == run.run_id

    asyncio.run(story())


def test_a_database_that_is_away_for_long_is_told_and_nothing_is_kept_waiting(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "PATIENCE_SECONDS", 0.2)

    async def story() -> None:
        async with nodes(proxy.url) as [store]:
            run = a_run()
            await commit(store, run)
            with proxy.outage():
                for attempt in (
                    store.commit(Changes(runs=[with_events(run, 1)])),
                    store.load_runs([run.run_id]),
                    store.check(),
                    store.load_due(NOW, 1),
                ):
                    with pytest.raises(Unavailable) as told:
                        await attempt
                    assert told.value.reason == "storage_unavailable"
            await store.check()
            await commit(store, run)

    asyncio.run(story())


@pytest.mark.parametrize("hard", [False, True], ids=["fast", "hard"])
def test_a_database_that_is_started_again_finds_us_again(
    postgres_cluster: Cluster, migrated_url: str, hard: bool
) -> None:
    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            run = a_run()
            await commit(one, run)
            loaded = await load(two, run.run_id)
            restarting = asyncio.to_thread(postgres_cluster.restart, hard=hard)
            _, events = await asyncio.gather(restarting, one.read_history(run.run_id, 0, 10))
            assert events == run.events
            # A beat that meets a dead connection is decided again.
            for _ in range(3):
                try:
                    await commit(two, loaded)
                    break
                except Conflict:
                    loaded = await load(two, run.run_id)
            assert (await load(one, run.run_id)).version == 2

    asyncio.run(story())


def test_a_database_that_only_reads_for_a_while_is_waited_for(
    postgres_cluster: Cluster, migrated_url: str
) -> None:
    """As during a failover: the old primary takes no more, the sessions end, then all is well."""
    name = migrated_url.rpartition("/")[2]

    def turn(on: str) -> None:
        postgres_cluster.execute(f"alter database {name} set default_transaction_read_only = {on}")
        postgres_cluster.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        )

    async def story() -> None:
        async with nodes(migrated_url) as [store]:
            run = a_run()
            await commit(store, run)
            await asyncio.to_thread(turn, "on")
            writing = asyncio.ensure_future(again_until_written(store, run))
            ended, _ = await asyncio.wait({writing}, timeout=0.3)
            assert not ended
            await asyncio.to_thread(turn, "off")
            async with asyncio.timeout(90):
                await writing
            assert (await load(store, run.run_id)).version == 2

    asyncio.run(story())


async def again_until_written(store: PostgresStore, run: Run) -> None:
    while True:
        try:
            return await store.commit(Changes(runs=[run]))
        except Conflict:
            await store.release()


FAILURES = MappingProxyType(
    {
        "53100": "storage_full",  # disk full
        "53200": "storage_busy",  # out of memory
        "58030": "storage_error",  # input or output failed
        "XX001": "storage_corrupt",
        "42501": "storage_error",  # not allowed
        "57014": "storage_busy",  # the statement took too long
        "40001": None,  # serialization failure
        "40P01": None,  # deadlock
        "55P03": None,  # lock not available
    }
)


@pytest.mark.parametrize("code", FAILURES)
def test_an_error_of_the_database_is_told_by_its_reason_and_writes_nothing(
    migrated_url: str, code: str
) -> None:
    async def story() -> None:
        async with nodes(migrated_url) as [store], session(migrated_url) as other:
            run = a_run()
            await commit(store, run)
            await other.execute(
                "create function fail() returns trigger language plpgsql as "
                f"'begin raise exception ''no'' using errcode = ''{code}''; end';"
                "create trigger fail before insert on perdure.operation "
                "for each row execute function fail()"
            )
            async with nothing_written(migrated_url):
                reason = FAILURES[code]
                with pytest.raises(Conflict if reason is None else Unavailable) as told:
                    await store.commit(Changes(runs=[with_activity(run), a_run("another")]))
                if isinstance(told.value, Unavailable):
                    assert told.value.reason == reason
                await store.release()
            await other.execute("drop trigger fail on perdure.operation")
            await commit(store, run)

    asyncio.run(story())


def test_a_statement_has_only_so_much_time(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(line.BEAT_SESSION, "statement_timeout", "100ms")
    monkeypatch.setitem(line.BEAT_SESSION, "lock_timeout", "0")

    async def story() -> None:
        async with nodes(migrated_url) as [store], session(migrated_url) as other:
            await commit(store, a_run("first"))
            async with other.transaction():
                await other.execute("lock table perdure.inbox in access exclusive mode")
                with pytest.raises(Unavailable) as told:
                    await load(store, "whatever")
                assert told.value.reason == "storage_busy"
            await commit(store, a_run("second"))

    asyncio.run(story())


def test_a_table_that_somebody_locks_is_a_lost_race(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(line.BEAT_SESSION, "lock_timeout", "100ms")

    async def story() -> None:
        async with nodes(migrated_url) as [store], session(migrated_url) as other:
            async with other.transaction():
                await other.execute("lock table perdure.ready in access exclusive mode")
                with pytest.raises(Conflict):
                    await store.commit(Changes(runs=[a_run()]))
            await commit(store, a_run())

    asyncio.run(story())


def test_a_statement_goes_to_its_end_when_its_caller_is_cancelled(migrated_url: str) -> None:
    """The driver would open another connection to have it cancelled, at a bad moment or none."""
    slowly = (
        "with late as (select pg_sleep(0.1)) "
        "insert into perdure.node (node_id, epoch, seen_at) select 'late', 1, 1 from late"
    )

    async def story() -> None:
        own = line.PostgresConnection(migrated_url, pooled=False, session=line.SESSION)
        async with session(migrated_url) as witness:
            (before,) = await own.ask("select pg_backend_pid() as pid")
            asking = asyncio.ensure_future(own.ask(slowly))
            await until_asked(witness, before["pid"])
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await witness.fetchval("select count(*) from perdure.node where epoch = 1") == 1
            (after,) = await own.ask("select pg_backend_pid() as pid")
            assert after == before
        await own.close()

    asyncio.run(story())


def test_a_statement_without_an_end_is_left_when_its_caller_is_cancelled(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_GRACE_SECONDS", 0.05)

    async def story() -> None:
        own = line.PostgresConnection(migrated_url, pooled=False, session=line.SESSION)
        async with session(migrated_url) as witness:
            (before,) = await own.ask("select pg_backend_pid() as pid")
            asking = asyncio.ensure_future(own.ask("select pg_sleep(600)"))
            await until_asked(witness, before["pid"])
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert not own.is_open
            (after,) = await own.ask("select pg_backend_pid() as pid")
            assert after != before
        await own.close()

    asyncio.run(story())


def test_who_is_about_to_connect_when_a_line_is_closed_leaves_nothing_behind(
    migrated_url: str,
) -> None:
    async def story() -> None:
        own = line.PostgresConnection(
            migrated_url, pooled=False, session={"application_name": "latecomer"}
        )
        connecting = asyncio.ensure_future(own.connect())
        await asyncio.sleep(0)
        await own.close()
        with pytest.raises(Lost):
            await connecting
        assert not own.is_open
        with pytest.raises(Unavailable):
            await own.ask_with_retries("select 1")
        async with session(migrated_url) as witness:
            latecomers = (
                "select count(*) from pg_stat_activity where application_name = 'latecomer'"
            )
            while await witness.fetchval(latecomers):  # noqa: ASYNC110 (nobody would tell us)
                await asyncio.sleep(0)

    asyncio.run(story())


async def until_asked(witness: line.Connection, pid: int) -> None:
    """Wait until a session is at work on something that sleeps."""
    at_work = (
        "select count(*) from pg_stat_activity "
        "where pid = $1 and state = 'active' and query like '%pg_sleep%'"
    )
    while not await witness.fetchval(at_work, pid):  # noqa: ASYNC110 (nobody would tell us)
        await asyncio.sleep(0)

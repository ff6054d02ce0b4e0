"""Through the pooler, transactions work and sessions do not: as with pgbouncer."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tests.support.pooler import Pooler

BOUND = 90.0


@pytest.fixture
def pooler(postgres_url: str) -> Iterator[Pooler]:
    with Pooler(postgres_url) as pooler:
        yield pooler


def test_a_client_without_session_state_notices_nothing(pooler: Pooler) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
        await connection.execute("create table kept (number bigint)")
        for number in range(5):
            async with connection.transaction():
                await connection.execute("insert into kept values ($1)", number)
                found = await connection.fetchval("select count(*) from kept")
                assert found == number + 1
        numbers = await connection.fetchval("select array_agg(number) from kept")
        assert numbers == [0, 1, 2, 3, 4]
        rows = await connection.fetch("select unnest($1::bigint[]) * 2 as double", numbers)
        assert [row["double"] for row in rows] == [0, 2, 4, 6, 8]
        await connection.close()

    asyncio.run(story())


def test_a_named_statement_is_not_there_in_the_next_transaction(pooler: Pooler) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(pooler.url)
        async with connection.transaction():
            statement = await connection.prepare("select $1::int")
            assert await statement.fetchval(1) == 1
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await statement.fetchval(2)
        connection.terminate()

    asyncio.run(story())


def test_a_cached_statement_is_not_there_in_the_next_transaction(pooler: Pooler) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(pooler.url)
        assert await connection.fetchval("select $1::int", 1) == 1
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await connection.fetchval("select $1::int", 2)
        connection.terminate()

    asyncio.run(story())


def test_consecutive_transactions_have_different_sessions(pooler: Pooler) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
        pids = [await connection.fetchval("select pg_backend_pid()") for _ in range(4)]
        assert pids[0] != pids[1]
        assert pids[:2] == pids[2:]
        async with connection.transaction():
            first = await connection.fetchval("select pg_backend_pid()")
            assert await connection.fetchval("select pg_backend_pid()") == first
        await connection.close()

    asyncio.run(story())


def test_a_setting_of_the_session_is_lost_and_one_of_the_transaction_works(pooler: Pooler) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
        await connection.execute("set statement_timeout = '7s'")
        assert await connection.fetchval("show statement_timeout") == "0"
        async with connection.transaction():
            await connection.execute("set local statement_timeout = '8s'")
            assert await connection.fetchval("show statement_timeout") == "8s"
        await connection.close()

    asyncio.run(story())


def test_an_advisory_lock_of_the_session_does_not_keep_its_owner_in(pooler: Pooler) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
        assert await connection.fetchval("select pg_try_advisory_lock(7)")
        assert not await connection.fetchval("select pg_try_advisory_lock(7)")
        await connection.close()

    asyncio.run(story())


def test_notifications_do_not_arrive(pooler: Pooler, postgres_url: str) -> None:
    async def story() -> None:
        heard: list[object] = []
        connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
        await connection.add_listener("hints", lambda *words: heard.append(words))
        straight = await asyncpg.connect(postgres_url)
        direct: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await straight.add_listener("hints", lambda *words: direct.set_result(None))
        await straight.execute("notify hints")
        async with asyncio.timeout(BOUND):
            await direct
        await connection.fetchval("select 1")
        assert heard == []
        await straight.close()
        connection.terminate()

    asyncio.run(story())


def test_settings_at_the_start_are_refused(pooler: Pooler) -> None:
    async def story() -> None:
        with pytest.raises(asyncpg.PostgresError, match="unsupported startup parameter"):
            await asyncpg.connect(pooler.url, server_settings={"search_path": "perdure"})
        settings = {"application_name": "perdure"}
        connection = await asyncpg.connect(pooler.url, server_settings=settings)
        await connection.close()

    asyncio.run(story())


def test_many_clients_share_few_sessions(pooler: Pooler) -> None:
    async def story() -> None:
        async def visit(number: int) -> int:
            connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
            try:
                async with connection.transaction():
                    assert await connection.fetchval("select $1::int", number) == number
                    pid: int = await connection.fetchval("select pg_backend_pid()")
                    return pid
            finally:
                await connection.close()

        async with asyncio.timeout(BOUND):
            pids = await asyncio.gather(*(visit(number) for number in range(12)))
        assert len(set(pids)) == 2

    asyncio.run(story())


def test_a_client_that_leaves_in_a_transaction_takes_its_session_with_it(pooler: Pooler) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
        await connection.execute("create table kept (number int)")
        await connection.execute("begin")
        await connection.execute("insert into kept values (1)")
        connection.terminate()

        after = await asyncpg.connect(pooler.url, statement_cache_size=0)
        for _ in range(4):
            assert await after.fetchval("select count(*) from kept", timeout=BOUND) == 0
        await after.close()

    asyncio.run(story())


def test_a_statement_can_be_cancelled_through_the_pooler(pooler: Pooler) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(pooler.url, statement_cache_size=0)
        with pytest.raises(TimeoutError):
            await connection.execute("select pg_sleep(60)", timeout=0.2)
        assert await connection.fetchval("select 1") == 1
        await connection.close()

    asyncio.run(story())

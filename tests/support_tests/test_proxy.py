"""The proxy breaks connections exactly when it should, and otherwise cannot be noticed."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tests.support.pgwire import SYNC
from tests.support.proxy import Proxy, Trap, executing, of_kind

LOST = (
    *(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError),
    # The server's last word has arrived on an idle connection, its end has not.
    *(asyncpg.AdminShutdownError, asyncpg.InternalClientError),
)
"""What asyncpg raises for a connection that is gone."""
BOUND = 90.0


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as proxy:
        asyncio.run(_create(postgres_url))
        yield proxy


async def _create(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("create table kept (number int)")
    await connection.close()


async def insert(url: str, number: int, *, in_transaction: bool = True) -> None:
    connection = await asyncpg.connect(url, timeout=BOUND)
    try:
        if in_transaction:
            async with connection.transaction():
                await connection.execute("insert into kept values ($1)", number, timeout=BOUND)
        else:
            await connection.execute("insert into kept values ($1)", number, timeout=BOUND)
    finally:
        connection.terminate()


async def kept(proxy: Proxy) -> list[int]:
    connection = await asyncpg.connect(proxy.url, timeout=BOUND)
    try:
        rows = await connection.fetch("select number from kept order by number")
        return [row["number"] for row in rows]
    finally:
        await connection.close()


async def sprung(trap: Trap) -> str:
    async with asyncio.timeout(BOUND):
        return (await asyncio.wrap_future(trap.sprung)).sql


def test_without_traps_everything_passes(proxy: Proxy) -> None:
    async def story() -> None:
        await insert(proxy.url, 1)
        await insert(proxy.url, 2, in_transaction=False)
        assert await kept(proxy) == [1, 2]

    asyncio.run(story())
    assert proxy.counts[SYNC] > 0


def test_large_values_pass_whole(proxy: Proxy) -> None:
    async def story() -> None:
        value = bytes(range(256)) * 40_000
        connection = await asyncpg.connect(proxy.url)
        assert await connection.fetchval("select $1::bytea", value) == value
        await connection.close()

    asyncio.run(story())


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_connection_that_is_cut_before_the_commit_has_done_nothing(
    proxy: Proxy, in_transaction: bool
) -> None:
    async def story() -> None:
        trap = proxy.cut_before(executing("commit" if in_transaction else "insert into kept"))
        with pytest.raises(LOST):
            await insert(proxy.url, 1, in_transaction=in_transaction)
        assert await sprung(trap)
        assert await kept(proxy) == []

    asyncio.run(story())


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_connection_that_is_cut_after_the_commit_has_done_it_unheard(
    proxy: Proxy, in_transaction: bool
) -> None:
    async def story() -> None:
        trap = proxy.cut_after(executing("commit" if in_transaction else "insert into kept"))
        with pytest.raises(LOST):
            await insert(proxy.url, 1, in_transaction=in_transaction)
        assert await sprung(trap)
        assert await kept(proxy) == [1]

    asyncio.run(story())


def test_a_trap_waits_for_the_nth_time_and_springs_once(proxy: Proxy) -> None:
    async def story() -> None:
        trap = proxy.cut_before(executing("COMMIT"), nth=2)
        await insert(proxy.url, 1)
        assert not trap.sprung.done()
        with pytest.raises(LOST):
            await insert(proxy.url, 2)
        await insert(proxy.url, 3)
        assert trap.sprung.done()
        assert await kept(proxy) == [1, 3]

    asyncio.run(story())


def test_a_prepared_statement_is_recognized_each_time_it_is_executed(proxy: Proxy) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(proxy.url)
        statement = await connection.prepare("insert into kept values ($1) returning number")
        trap = proxy.cut_after(executing("insert into kept"), nth=3)
        for number in (1, 2):
            await statement.fetchval(number)
        with pytest.raises(LOST):
            await statement.fetchval(3)
        connection.terminate()
        assert "insert" in await sprung(trap)
        assert await kept(proxy) == [1, 2, 3]

    asyncio.run(story())


def test_swallowed_answers_leave_a_silent_connection(proxy: Proxy) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(proxy.url)
        trap = proxy.swallow(of_kind(SYNC))
        waiting = asyncio.ensure_future(connection.execute("insert into kept values ($1)", 1))
        await sprung(trap)
        async with asyncio.timeout(BOUND):
            while await kept(proxy) != [1]:
                pass
        assert not waiting.done()
        assert proxy.cut() == 1
        with pytest.raises(LOST):
            await waiting
        connection.terminate()

    asyncio.run(story())


def test_a_held_message_waits_while_others_pass(proxy: Proxy) -> None:
    async def story() -> None:
        trap = proxy.hold(executing("commit"))
        held = asyncio.ensure_future(insert(proxy.url, 1))
        await sprung(trap)
        await insert(proxy.url, 2)
        assert await kept(proxy) == [2]
        trap.release()
        await held
        assert await kept(proxy) == [1, 2]

    asyncio.run(story())


def test_an_outage_cuts_everybody_and_lets_nobody_in(proxy: Proxy) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(proxy.url)
        with proxy.outage():
            with pytest.raises(LOST):
                await connection.fetchval("select 1")
            with pytest.raises((*LOST, OSError)):
                await asyncpg.connect(proxy.url)
        connection.terminate()
        assert await kept(proxy) == []

    asyncio.run(story())


def test_delayed_messages_arrive(proxy: Proxy) -> None:
    async def story() -> None:
        proxy.delay_seconds = 0.005
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        await insert(proxy.url, 1)
        assert loop.time() - started_at > 5 * proxy.delay_seconds
        assert await kept(proxy) == [1]

    asyncio.run(story())


def test_a_statement_can_be_cancelled_through_the_proxy(proxy: Proxy) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(proxy.url)
        with pytest.raises(TimeoutError):
            await connection.execute("select pg_sleep(60)", timeout=0.2)
        assert await connection.fetchval("select 1") == 1
        await connection.close()

    asyncio.run(story())


def test_the_end_of_the_server_is_passed_on(proxy: Proxy) -> None:
    async def story() -> None:
        connection = await asyncpg.connect(proxy.url)
        other = await asyncpg.connect(proxy.url)
        await other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        with pytest.raises(LOST):
            await connection.fetchval("select 1")
        await other.close()
        connection.terminate()

    asyncio.run(story())

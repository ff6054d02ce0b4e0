"""What a store knows about itself, and how connections wait for a database that is away."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from perdure.store.health import StoreHealth
from perdure.store.interface import Unavailable
from perdure.store.postgres import connection as line
from perdure.store.postgres.connection import SESSION, PostgresConnection
from tests.support.proxy import Proxy

AWAY = Unavailable("storage_unavailable", "it is away")


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class CountingHealth(StoreHealth):
    """Counts the attempts to connect."""

    def __init__(self, seconds: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(seconds)
        self.attempts = 0

    def attempt_begins(self) -> None:
        self.attempts += 1
        super().attempt_begins()

    async def attempted(self, number: int) -> None:
        """Wait until so many attempts were made."""
        while self.attempts < number:  # noqa: ASYNC110 (nobody would tell us)
            await asyncio.sleep(0)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as proxy:
        yield proxy


def test_trouble_is_told_when_it_begins_when_its_reason_changes_and_when_it_ends() -> None:
    seconds = Seconds()
    health = StoreHealth(seconds)
    told: list[str] = []
    health.on_change(lambda: told.append(getattr(health.trouble, "reason", "none")))
    health.worked()
    for reason in ("storage_unavailable", "storage_unavailable", "storage_full"):
        health.failed(Unavailable(reason, "no"))
        seconds.now += 1
    assert health.lasting_seconds == 3
    health.worked()
    health.worked()
    assert told == ["storage_unavailable", "storage_full", "none"]
    assert health.lasting_seconds == 0


@pytest.mark.parametrize("reason", ["storage_full", "storage_read_only", "storage_unavailable"])
def test_a_refused_write_is_trouble_if_the_next_one_will_be_refused(reason: str) -> None:
    health = StoreHealth()
    health.refused(Unavailable("storage_busy", "no"))
    health.refused(Unavailable("storage_error", "no"))
    assert health.trouble is None
    health.refused(Unavailable(reason, "no"))
    assert health.trouble is not None
    assert health.trouble.reason == reason


def test_polls_wait_for_the_end_of_short_trouble_unless_they_have_no_time() -> None:
    health = StoreHealth()
    health.require_pollable(is_hasty=True)
    health.failed(AWAY)
    health.require_pollable(is_hasty=False)
    with pytest.raises(Unavailable):
        health.require_pollable(is_hasty=True)
    health.is_outage = True
    with pytest.raises(Unavailable):
        health.require_pollable(is_hasty=False)
    health.worked()
    health.failed(AWAY)
    health.require_pollable(is_hasty=False)


def test_a_database_that_is_away_for_long_is_tried_again_and_again(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More often than there are pauses of their own."""
    monkeypatch.setattr(line, "_PAUSES", (0.0, 0.0))

    async def story() -> None:
        health = CountingHealth()
        one = PostgresConnection(proxy.url, pooled=False, session=SESSION, health=health)
        with proxy.outage():
            connecting = asyncio.ensure_future(one.connect_with_retries())
            async with asyncio.timeout(90):
                await health.attempted(6)
            assert not connecting.done(), connecting
        async with asyncio.timeout(90):
            await connecting
        await one.close()

    asyncio.run(story())


def test_the_pauses_between_attempts_grow() -> None:
    pauses = line._PAUSES
    assert list(pauses) == sorted(set(pauses))
    assert sum(pauses) < 2, "a database that restarts is found soon"


def test_callers_wait_from_when_the_database_went_away_and_not_from_when_they_came(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "PATIENCE_SECONDS", 3600.0)

    async def story() -> None:
        seconds = Seconds()
        health = CountingHealth(seconds)
        one = PostgresConnection(proxy.url, pooled=False, session=SESSION, health=health)
        health.failed(AWAY)
        seconds.now += 3601
        with proxy.outage():
            # One attempt finds that nothing has changed; it answers for others for a second.
            for _ in range(3):
                with pytest.raises(Unavailable, match="reached"):
                    await one.connect_with_retries()
            assert health.attempts == 1
            seconds.now += 1
            with pytest.raises(Unavailable, match="reached"):
                await one.connect_with_retries()
            assert health.attempts == 2
        seconds.now += 1
        await one.connect_with_retries()
        await one.close()

    asyncio.run(story())


def test_a_connection_that_only_reads_does_not_end_trouble(proxy: Proxy) -> None:
    """As at a standby: it answers, and takes no writes."""

    async def greet(line: PostgresConnection) -> None:
        await line.ask("select 1")

    async def story() -> None:
        health = StoreHealth()
        health.failed(AWAY)
        for greeting, is_over in ((None, False), (greet, True)):
            one = PostgresConnection(
                proxy.url, pooled=False, session=SESSION, greet=greeting, health=health
            )
            await one.connect()
            assert (health.trouble is None) is is_over
            await one.close()

    asyncio.run(story())

"""A clock that goes by the database's: never backwards, never at a stand."""

import asyncio

import pytest

from perdure.clock import FollowingClock
from perdure.core.limits import SECOND
from perdure.protocols.durable_workflow.discovery import clock_view
from tests.support.clock import FakeClock

HOUR = 3600


class Database:
    """The other clock, which somebody sets, or a standby with another one."""

    def __init__(self, own: FakeClock) -> None:
        self._own = own
        self.ahead = 0

    async def read(self) -> int:
        return self._own.now() + self.ahead * SECOND


@pytest.fixture
def own() -> FakeClock:
    return FakeClock()


@pytest.fixture
def database(own: FakeClock) -> Database:
    return Database(own)


@pytest.fixture
def clock(own: FakeClock, database: Database) -> FollowingClock:
    clock = FollowingClock(own)
    asyncio.run(clock.follow(database.read))
    return clock


def follow(clock: FollowingClock, database: Database) -> int:
    return asyncio.run(clock.follow(database.read))


@pytest.mark.parametrize("ahead", [-HOUR, 0, HOUR])
def test_it_is_set_at_the_start_in_either_direction(own: FakeClock, ahead: int) -> None:
    database = Database(own)
    database.ahead = ahead
    clock = FollowingClock(own)
    assert clock.now() == own.now()

    assert follow(clock, database) == ahead * SECOND

    assert clock.now() == own.now() + ahead * SECOND
    assert clock.ahead_us == 0


@pytest.mark.parametrize("back", [120, HOUR])
def test_it_goes_on_when_the_database_goes_back(
    own: FakeClock, database: Database, clock: FollowingClock, back: int
) -> None:
    """Also after a failover to a standby that is an hour behind: a timer of 2 s takes 2.2 s."""
    before = clock.now()
    database.ahead = -back

    assert follow(clock, database) == -back * SECOND

    assert clock.now() == before, "nothing jumps"
    own.jump(seconds=2.5)
    assert clock.now() - before >= 2 * SECOND
    assert clock.now() - before < 2.5 * SECOND
    assert clock.ahead_us == pytest.approx(back * SECOND - SECOND // 4, abs=1)


def test_it_comes_to_agree_with_a_database_that_went_back(
    own: FakeClock, database: Database, clock: FollowingClock
) -> None:
    database.ahead = -60
    latest = clock.now()
    for _ in range(11):
        follow(clock, database)
        own.jump(seconds=60)
        assert clock.now() - latest >= 54 * SECOND
        latest = clock.now()

    assert clock.now() == own.now() - 60 * SECOND
    assert clock.ahead_us == 0
    own.jump(seconds=60)
    assert clock.now() - latest == 60 * SECOND, "from then on at its own rate"


def test_it_is_at_once_where_the_database_went_ahead(
    own: FakeClock, database: Database, clock: FollowingClock
) -> None:
    database.ahead = HOUR

    assert follow(clock, database) == HOUR * SECOND

    assert clock.now() == own.now() + HOUR * SECOND
    assert clock.ahead_us == 0


def test_a_database_that_comes_back_ends_the_slow_time(
    own: FakeClock, database: Database, clock: FollowingClock
) -> None:
    database.ahead = -HOUR
    follow(clock, database)
    own.jump(seconds=100)
    latest = clock.now()
    database.ahead = 0

    follow(clock, database)

    assert clock.now() == own.now() > latest
    assert clock.ahead_us == 0


@pytest.mark.parametrize(
    ("others", "ahead"), [(HOUR, HOUR), (-HOUR, 0), (0.5, 0), (25 * HOUR, 0), (None, 0)]
)
def test_a_node_that_joins_goes_by_those_who_are_ahead_of_the_database(
    own: FakeClock, others: float | None, ahead: float
) -> None:
    """Or what it leases would be over for them at once."""
    database, clock = Database(own), FollowingClock(own)
    noted = 0 if others is None else own.now() + round(others * SECOND)

    asyncio.run(clock.follow(database.read, others=noted))

    assert clock.now() == own.now() + ahead * SECOND
    assert clock.ahead_us == ahead * SECOND


def test_operators_are_shown_how_far_ahead_it_is(
    own: FakeClock, database: Database, clock: FollowingClock
) -> None:
    database.ahead = -HOUR
    follow(clock, database)
    own.jump(seconds=5)

    assert clock_view(clock) == {"source": "database", "ahead_seconds": HOUR - 0.5}
    assert clock_view(own) == {"source": "process", "ahead_seconds": 0.0}


def test_it_is_not_corrected_by_less_than_asking_took(
    own: FakeClock, clock: FollowingClock
) -> None:
    async def slow() -> int:
        own.jump(seconds=4)
        return own.now() - 5 * SECOND

    assert asyncio.run(clock.follow(slow)) == -3 * SECOND

    assert clock.now() == own.now()
    assert clock.ahead_us == 0

"""When schedules fire, in any zone, across changes of the clock, and after an absence."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import limits
from perdure.core.intake.cron import parse

HOUR = 3_600 * limits.SECOND
DAY = 24 * HOUR


def at(text: str) -> int:
    since = datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def ticks(source: str, start: str, count: int) -> list[str]:
    found, now = [], at(start)
    for _ in range(count):
        following = parse(source).next_after(now)
        assert following is not None
        now = following
        found.append(datetime.fromtimestamp(now / 1e6, UTC).strftime("%m-%d %H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("source", "first"),
    [
        ("* * * * *", "03-05 10:31:00"),
        ("*/15 9-17 * * MON-FRI", "03-05 10:45:00"),
        ("0 9 * * *", "03-06 09:00:00"),
        ("TZ=Europe/Berlin 0 9 * * *", "03-06 08:00:00"),
        ("CRON_TZ=America/New_York 0 9 * * *", "03-05 14:00:00"),
        ("0 0 1 * *", "04-01 00:00:00"),
        ("0 0 29 2 *", "02-29 00:00:00"),
        ("0 0 13 * FRI", "03-07 00:00:00"),
        ("0 12 * * 7", "03-09 12:00:00"),
        ("0 0 L * *", "03-31 00:00:00"),
        ("@hourly", "03-05 11:00:00"),
        ("@daily", "03-06 00:00:00"),
        ("@midnight", "03-06 00:00:00"),
        ("TZ=Asia/Tokyo @daily", "03-05 15:00:00"),
        ("@weekly", "03-09 00:00:00"),
        ("@monthly", "04-01 00:00:00"),
        ("@yearly", "01-01 00:00:00"),
        ("@annually", "01-01 00:00:00"),
        ("@every 30s", "03-05 10:31:00"),
        ("@every 1h30m", "03-05 12:00:00"),
    ],
)
def test_the_next_tick(source: str, first: str) -> None:
    assert ticks(source, "2025-03-05T10:30:30", 1) == [first]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "five fields, not 0"),
        ("* * * *", "five fields, not 4"),
        ("0 0 9 * * *", "five fields, not 6"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("a * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("TZ=Nowhere/Land * * * * *", "unknown time zone: Nowhere/Land"),
        ("TZ=../../etc/passwd * * * * *", "unknown time zone"),
        ("TZ=Europe * * * * *", "unknown time zone"),
        ("TZ= * * * * *", "unknown time zone"),
        ("@often", "unknown descriptor"),
        ("@daily 5", "unknown descriptor"),
        ("@every", "unknown descriptor"),
        ("@every 5", "needs a duration"),
        ("@every -5s", "needs a duration"),
        ("@every 5s5", "needs a duration"),
        ("@every 999ms", "at most once a second"),
        ("@every 99999d", "at least once a year"),
        ("* " * 200, "at most 255 characters"),
    ],
)
def test_what_is_refused(source: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(source)


def test_a_skipped_time_of_day_fires_at_the_first_moment_that_exists() -> None:
    # In Berlin, 2:00 became 3:00 on March 30, 2025: 1:00 UTC.
    assert ticks("TZ=Europe/Berlin 30 2 * * *", "2025-03-28T12:00:00", 3) == [
        "03-29 01:30:00",
        "03-30 01:00:00",
        "03-31 00:30:00",
    ]


def test_a_repeated_time_of_day_fires_once() -> None:
    # In Berlin, 3:00 became 2:00 on October 26, 2025: 1:00 UTC.
    assert ticks("TZ=Europe/Berlin 30 2 * * *", "2025-10-25T12:00:00", 2) == [
        "10-26 00:30:00",
        "10-27 01:30:00",
    ]


@pytest.mark.parametrize("day", ["2025-03-29T22:00:00", "2025-10-25T22:00:00"])
def test_what_repeats_within_the_hour_goes_by_real_time(day: str) -> None:
    schedule, now = parse("TZ=Europe/Berlin */30 * * * *"), at(day)
    found = [now]
    for _ in range(16):
        following = schedule.next_after(found[-1])
        assert following is not None
        found.append(following)
    assert {later - earlier for earlier, later in pairwise(found)} == {HOUR // 2}


def test_not_yet_due() -> None:
    noon = at("2025-03-05T12:00:00")
    assert parse("0 12 * * *").fire(noon, noon - 1) == (None, noon)


def test_due_fires_for_its_own_tick() -> None:
    noon = at("2025-03-05T12:00:00")
    assert parse("0 12 * * *").fire(noon, noon) == (noon, noon + DAY)
    assert parse("0 12 * * *").fire(noon, noon + 5 * limits.SECOND + 3) == (noon, noon + DAY)


def test_missed_ticks_are_made_up_for_once() -> None:
    due = at("2025-03-05T12:00:00")
    back = due + 10 * HOUR + 7
    assert parse("@hourly").fire(due, back) == (due + 10 * HOUR, due + 11 * HOUR)
    assert parse("@every 1m").fire(due, due + 90 * limits.SECOND) == (
        due + 60 * limits.SECOND,
        due + 120 * limits.SECOND,
    )


def test_what_was_missed_long_ago_is_let_go() -> None:
    due = at("2025-03-05T12:00:00")
    assert parse("0 12 5 * *").fire(due, due + 2 * DAY) == (None, at("2025-04-05T12:00:00"))
    assert parse("0 12 5 * *").fire(due, due + DAY) == (due, at("2025-04-05T12:00:00"))


MINUTES = st.sampled_from(["0", "30", "59", "*/7", "*", "5,10", "10-20", "0-59/13"])
HOURS = st.sampled_from(["*", "2", "1-3", "*/5", "0", "23"])
ZONES = st.sampled_from(
    ["", "TZ=Europe/Berlin ", "TZ=America/New_York ", "TZ=Australia/Lord_Howe ", "TZ=Asia/Kolkata "]
)
YEAR = at("2025-01-01T00:00:00")


@given(ZONES, MINUTES, HOURS, st.sampled_from(["*", "1", "*/2"]), st.integers(0, 366 * DAY))
def test_ticks_go_forward_and_back_on_the_same_marks(
    zone: str, minutes: str, hours: str, days: str, offset: int
) -> None:
    schedule, now = parse(f"{zone}{minutes} {hours} {days} * *"), YEAR + offset
    following = schedule.next_after(now)
    assert following is not None
    assert following > now
    assert following % limits.SECOND == 0
    last = schedule.last_until(following)
    assert last == following
    before = schedule.last_until(following - 1)
    assert before is not None
    assert before <= now
    fired = schedule.fire(following, following)
    assert fired.tick_at == following
    assert fired.next_at == schedule.next_after(following)


@given(st.text(alphabet="0123456789*/,-LW#@TZ= MONevrysmhd", max_size=24))
def test_any_text_is_a_schedule_or_refused(source: str) -> None:
    try:
        schedule = parse(source)
    except ValueError:
        return
    assert (schedule.next_after(YEAR) or YEAR + 1) > YEAR

"""Cron schedules: five fields or a descriptor, in a time zone.

The five fields are matched by cronsim (also its `L` and `#`), which follows Debian's cron. When
clocks are put forward, a skipped time of day fires at the first moment that exists; when they are
put back, a time of day fires once. Schedules that repeat within the hour or every hour
(`*/15 * * * *`) follow elapsed time: they neither pause nor repeat. `@every` counts from the epoch,
so that all nodes compute the same ticks, also after restarts. Instants are microseconds.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from perdure.core import limits

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS = {
    "ms": 1_000,
    "s": limits.SECOND,
    "m": 60 * limits.SECOND,
    "h": 3_600 * limits.SECOND,
    "d": 86_400 * limits.SECOND,
}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_YEARS_AHEAD = timedelta(days=366 * 9)
"""Leap days are at most eight years apart: a schedule without a tick by then never fires."""


class Firing(NamedTuple):
    """The result of a due schedule: the tick it fires for, if any, and when it is due next."""

    tick_at: int | None
    next_at: int | None


class Cron:
    """A parsed schedule."""

    __slots__ = ("_every", "_fields", "_zone", "source")

    def __init__(self, source: str, zone: tzinfo, fields: str, every: int) -> None:
        self.source = source
        self._zone = zone
        self._fields = fields
        self._every = every

    def next_after(self, instant: int) -> int | None:
        """The first tick after an instant; None if there is none for years."""
        if self._every:
            return (instant // self._every + 1) * self._every
        return self._tick(instant, backwards=False)

    def last_until(self, instant: int) -> int | None:
        """The last tick at or before an instant."""
        if self._every:
            return instant // self._every * self._every
        # The reverse search excludes its start, and ticks are whole seconds.
        return self._tick(instant // limits.SECOND * limits.SECOND + limits.SECOND, backwards=True)

    def fire(self, due_at: int, now: int) -> Firing:
        """The tick to fire now for a schedule due at `due_at`, and the next due time.

        Several missed ticks fire once, for the latest of them, unless it is more than a day old. If
        the schedule is not due yet, nothing fires and the due time stays.
        """
        if now < due_at:
            return Firing(None, due_at)
        tick_at = self.last_until(now)
        if tick_at is None or tick_at < due_at or now - tick_at > limits.CRON_CATCH_UP_MAX:
            tick_at = due_at if now - due_at <= limits.CRON_CATCH_UP_MAX else None
        return Firing(tick_at, self.next_after(now))

    def _tick(self, instant: int, *, backwards: bool) -> int | None:
        start = (_EPOCH + timedelta(microseconds=instant)).astimezone(self._zone)
        try:
            found = next(CronSim(self._fields, start, reverse=backwards))
        except (StopIteration, OverflowError):
            return None
        distance = found - start
        if abs(distance) > _YEARS_AHEAD:
            return None
        since = found.astimezone(UTC) - _EPOCH
        return (since.days * 86_400 + since.seconds) * limits.SECOND


@lru_cache(maxsize=limits.CRONS_PARSED_MAX)
def parse(source: str) -> Cron:
    """The schedule of a text. Raises ValueError if it is not valid or never fires."""
    if len(source) > limits.CRON_LENGTH_MAX:
        raise ValueError(f"must have at most {limits.CRON_LENGTH_MAX} characters")
    words = source.split()
    zone: tzinfo = UTC
    if words and words[0].startswith(("TZ=", "CRON_TZ=")):
        zone = _zone(words.pop(0).partition("=")[2])
    if words and words[0].startswith("@"):
        return _described(source, zone, words)
    if len(words) != 5:
        raise ValueError(f"needs five fields, not {len(words)}")
    return _of_fields(source, zone, words)


def _described(source: str, zone: tzinfo, words: list[str]) -> Cron:
    if words[0] == "@every" and len(words) == 2:
        return Cron(source, zone, "", _every(words[1]))
    if len(words) == 1 and words[0] in _DESCRIPTORS:
        return Cron(source, zone, _DESCRIPTORS[words[0]], 0)
    descriptors = ", ".join(_DESCRIPTORS)
    raise ValueError(f"has an unknown descriptor; use {descriptors} or @every with a duration")


def _of_fields(source: str, zone: tzinfo, words: list[str]) -> Cron:
    fields = " ".join(words)
    try:
        CronSim(fields, _EPOCH)
    except (CronSimError, AssertionError) as error:
        why = str(error).lower() or "bad step"
        raise ValueError(f"is not a cron expression: {why}") from None
    schedule = Cron(source, zone, fields, 0)
    if schedule.next_after(0) is None:
        raise ValueError("never fires")
    return schedule


def _every(span: str) -> int:
    parts = _SPAN.findall(span)
    if not parts or "".join(number + unit for number, unit in parts) != span:
        raise ValueError("needs a duration such as 30s, 5m or 1h30m after @every")
    every = sum(round(float(number) * _UNITS[unit]) for number, unit in parts)
    if not limits.EVERY_MIN <= every <= limits.POLICY_MILLISECONDS_MAX * 1_000:
        raise ValueError("must repeat at most once a second, and at least once a year")
    return every


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"names an unknown time zone: {name}") from None

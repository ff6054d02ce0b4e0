"""Lengths and moments of time as people write them, turned into whole milliseconds."""

import re
from datetime import datetime, timedelta

Duration = str | int | float | timedelta
"""`"250ms"`, `"10s"`, `"1.5h"`, `"2d"`; a number of milliseconds; or a `timedelta`."""

Moment = datetime | str | int | float
"""A `datetime`, an ISO 8601 text, or milliseconds since 1970, UTC."""

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(duration: Duration) -> int:
    """A length in whole milliseconds, never below zero."""
    if isinstance(duration, str):
        written = _WRITTEN.fullmatch(duration.strip())
        if written is None:
            raise ValueError(f'{duration!r} is no duration: write "250ms", "10s", "1.5h" or "2d"')
        return round(float(written[1]) * _UNITS[written[2]])
    if isinstance(duration, timedelta):
        return max(0, duration // timedelta(milliseconds=1))
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise TypeError(f"{duration!r} is no duration")
    if duration != duration or duration in (float("inf"), float("-inf")):
        raise ValueError(f"{duration!r} is no duration")
    return max(0, round(duration))


def moment_ms(moment: Moment) -> int:
    """A moment in whole milliseconds since 1970; one without a zone is local time."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, int | float):
        raise TypeError(f"{moment!r} is no moment")
    return int(moment)

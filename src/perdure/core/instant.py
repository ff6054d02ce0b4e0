"""Instants as text and back: UTC with six fractional digits, as the protocol writes them."""

from datetime import UTC, datetime
from functools import lru_cache


def once_text(instant: int) -> str:
    """`2026-04-22T01:05:00.000000Z` from microseconds; uncached, for instants used once."""
    second, fraction = divmod(instant, 1_000_000)
    return f"{_second_text(second)}.{str(fraction).zfill(6)}Z"


text = lru_cache(maxsize=256)(once_text)
"""The same, cached: everything that happens in one beat has the same instant."""


def text_or_none(instant: int | None) -> str | None:
    """The text of an instant, or nothing for none."""
    return None if instant is None else text(instant)


def parse(written: str) -> int:
    """The instant of an ISO-8601 text with a zone. Raises ValueError for anything else."""
    when = datetime.fromisoformat(written)
    if when.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    delta = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


@lru_cache(maxsize=1024)
def _second_text(second: int) -> str:
    # Most instants share their second with others; formatting it once is ten times cheaper.
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")

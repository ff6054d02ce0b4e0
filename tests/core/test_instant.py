"""Instants: integers of microseconds inside, ISO-8601 in UTC outside."""

import pytest

from perdure.core import instant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (1_767_225_600_000_000, "2026-01-01T00:00:00.000000Z"),
        (1_767_225_599_999_999, "2025-12-31T23:59:59.999999Z"),
        (4_102_444_800_500_000, "2100-01-01T00:00:00.500000Z"),
    ],
)
def test_an_instant_and_its_text(value: int, text: str) -> None:
    assert instant.text(value) == text
    assert instant.parse(text) == value
    assert instant.text_or_none(value) == text


@pytest.mark.parametrize(
    "text", ["2026-01-01T01:00:00+01:00", "2025-12-31T19:00:00-05:00", "2026-01-01T00:00:00Z"]
)
def test_every_zone_names_the_same_instant(text: str) -> None:
    assert instant.parse(text) == 1_767_225_600_000_000


@pytest.mark.parametrize("text", ["", "soon", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        instant.parse(text)


def test_no_instant_has_no_text() -> None:
    assert instant.text_or_none(None) is None

"""Statistics and cursors of listings."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import limits
from perdure.core.intake.cursor import SORTS, Cursor, Direction, Sort, read_cursor, write_cursor
from perdure.core.intake.statistics import (
    STATUSES,
    Started,
    bucket_step,
    series,
    totals,
)

MINUTE = 60 * limits.SECOND


def test_totals_are_those_of_the_contract() -> None:
    counts = {status: place + 1 for place, status in enumerate(STATUSES)}
    shown = totals(counts)
    assert shown.total == 36
    assert shown.active == 1 + 2 + 3 + 4 + 5
    assert (shown.queued, shown.running) == (1, 2 + 3 + 5)
    assert (shown.succeeded, shown.failed) == (6, 7)
    assert shown.success_rate == 46
    assert totals({}).success_rate == 0


@pytest.mark.parametrize(
    ("good", "bad", "rate"), [(1, 0, 100), (0, 1, 0), (1, 2, 33), (2, 1, 67), (1, 7, 13)]
)
def test_a_rate_is_rounded(good: int, bad: int, rate: int) -> None:
    assert totals({"succeeded": good, "failed": bad}).success_rate == rate


@pytest.mark.parametrize(
    ("span", "seconds"),
    [(3_600, 60), (7_200, 60), (7_201, 300), (86_400, 900), (7 * 86_400, 21_600)],
)
def test_a_stretch_is_short_but_there_are_few(span: int, seconds: int) -> None:
    assert bucket_step(0, span * limits.SECOND) == seconds * limits.SECOND


@given(st.integers(1, 10**17), st.none() | st.integers(1, 10**13))
def test_there_are_never_too_many_stretches(span: int, wanted: int | None) -> None:
    step = bucket_step(5, 5 + span, wanted)
    assert len(series([], 5, 5 + span, step)) <= limits.BUCKETS_MAX + 1


def test_a_series_shows_every_stretch() -> None:
    since = 10 * MINUTE
    runs = [
        Started(since, "succeeded", 10),
        Started(since + 5, "succeeded", 21),
        Started(since + 5, "running", None),
        Started(since + 2 * MINUTE, "failed", 7),
        Started(since - 1, "failed", 7),
        Started(since + 3 * MINUTE, "failed", 7),
    ]
    shown = series(runs, since, since + 3 * MINUTE, MINUTE)
    assert [bucket.started_at for bucket in shown] == [since + n * MINUTE for n in range(3)]
    assert [bucket.total for bucket in shown] == [3, 0, 1]
    assert shown[0].counts == {"succeeded": 2, "running": 1}
    assert (shown[0].avg_ms, shown[0].max_ms) == (16, 21)
    assert (shown[1].avg_ms, shown[1].counts) == (None, {})


VALUES: dict[str, st.SearchStrategy[int | str | None]] = {
    "started": st.integers(0, 2**62),
    "duration": st.none() | st.integers(0, 2**62),
}


@given(st.data(), st.sampled_from(SORTS), st.sampled_from(["asc", "desc"]), st.text(max_size=40))
def test_a_cursor_comes_back_as_it_was(
    data: st.DataObject, sort: Sort, direction: Direction, row_id: str
) -> None:
    cursor = Cursor(sort, direction, data.draw(VALUES.get(sort, st.text())), row_id)
    text = write_cursor(cursor)
    assert text.isascii()
    assert read_cursor(text, sort=sort, direction=direction) == cursor
    other: Direction = "asc" if direction == "desc" else "desc"
    with pytest.raises(ValueError, match="another sort"):
        read_cursor(text, sort=sort, direction=other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish",
        "é",
        "a" * 5_000,
        base64.urlsafe_b64encode(b"[1]").decode(),
        base64.urlsafe_b64encode(b'["started","desc","text","r"]').decode(),
        base64.urlsafe_b64encode(b'["workflow","desc",5,"r"]').decode(),
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        read_cursor(text, sort="workflow" if "d29ya" in text else "started", direction="desc")

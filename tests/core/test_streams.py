"""Streams that runs put out: the rules of offsets, keys, ends and retention."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core import limits
from perdure.core.limits import SECOND
from perdure.core.rejection import Rejection, StreamClosed, StreamErrored, StreamFull
from perdure.core.run.stream import (
    AppendItems,
    CloseStream,
    Item,
    NewItem,
    OutputStream,
    append,
    close,
    expire,
)

NOW = 1_800_000_000_000_000


def appending(*keys: str | None, most: int = 10_000) -> AppendItems:
    items = [NewItem(payload=b'"x"', idempotency_key=key) for key in keys]
    return AppendItems(stream_name="log", items=items, pending_max=most)


def closing(reason: str | None = None, seconds: int = 60) -> CloseStream:
    return CloseStream(stream_name="log", error_reason=reason, retention_seconds=seconds)


def a_stream(items: int = 3) -> OutputStream:
    return append(None, {}, appending(*[None] * items), NOW).stream


def test_the_first_append_opens_a_stream_at_offset_0() -> None:
    done = append(None, {}, appending("a", None), NOW)

    assert done.offsets == [0, 1]
    assert (done.stream.status, done.stream.total, done.stream.pending) == ("open", 2, 2)
    assert (done.stream.opened_at, done.stream.last_appended_at) == (NOW, NOW)
    assert done.stream.size_bytes == sum(len(item.data) for item in done.new_items)


def test_an_item_is_encoded_as_it_is_sent() -> None:
    item = NewItem(
        payload=b'{"codec":"avro","blob":"x"}',
        payload_codec="avro",
        idempotency_key="k",
        origin="workflow",
        item_type="note",
    )
    (made,) = append(None, {}, AppendItems(stream_name="log", items=[item]), NOW).new_items

    assert msgspec.json.decode(made.data) == {
        "offset": 0,
        "idempotency_key": "k",
        "origin": "workflow",
        "origin_reference": None,
        "item_type": "note",
        "content_type": None,
        "payload": {"codec": "avro", "blob": "x"},
        "payload_reference": None,
        "payload_codec": "avro",
        "emitted_at": "2027-01-15T08:00:00.000000Z",
    }


@pytest.mark.parametrize(
    ("ending", "refusal"), [(closing(), StreamClosed), (closing("broken"), StreamErrored)]
)
def test_an_end_is_an_end(ending: CloseStream, refusal: type[Rejection]) -> None:
    over = close(a_stream(), ending, NOW + 1)

    with pytest.raises(refusal):
        append(over, {}, appending(None), NOW + 2)
    assert close(over, closing("another"), NOW + 2) is over
    assert close(over, closing(), NOW + 2) is over


def test_who_repeats_an_append_is_answered_after_the_end_and_when_it_is_full() -> None:
    over = close(a_stream(), closing(), NOW + 1)

    done = append(over, {"a": 1, "b": 2}, appending("b", "a", most=1), NOW + 2)

    assert (done.offsets, done.new_items) == ([2, 1], [])
    assert done.stream is over


def test_an_append_that_does_not_fit_is_refused_as_a_whole() -> None:
    with pytest.raises(StreamFull) as refused:
        append(a_stream(3), {}, appending(None, None, most=4), NOW)

    assert refused.value.details["pending_items"] == 3
    assert refused.value.details["max_pending_items"] == 4
    append(a_stream(3), {}, appending(None, most=4), NOW)


def test_no_bound_of_a_caller_is_larger_than_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_PENDING_ITEMS_MAX", 3)
    with pytest.raises(StreamFull):
        append(a_stream(3), {}, appending(None), NOW)


def test_a_stream_has_a_bound_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = a_stream(3)
    monkeypatch.setattr(limits, "STREAM_BYTES_MAX", stream.size_bytes + 10)
    with pytest.raises(StreamFull):
        append(stream, {}, appending(None), NOW)


def test_items_go_after_the_retention_and_offsets_stay_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STREAM_TRIM_ITEMS_MAX", 2)
    over = close(a_stream(3), closing(seconds=60), NOW)
    assert over.expires_at == NOW + 60 * SECOND
    assert expire(over, NOW + 60 * SECOND - 1) is over

    some = expire(over, NOW + 60 * SECOND)
    assert (some.first, some.pending, some.total) == (2, 1, 3)
    gone = expire(some, NOW + 60 * SECOND)
    assert (gone.first, gone.pending, gone.total, gone.expires_at) == (3, 0, 3, None)


def test_an_open_stream_never_expires() -> None:
    stream = a_stream()
    assert stream.expires_at is None
    assert expire(stream, NOW * 2) is stream


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=4),
            st.sampled_from(["close", "error", "expire"]),
        ),
        max_size=14,
    ),
    st.integers(1, 12),
)
def test_offsets_are_given_once_and_without_gaps(
    acts: list[list[str | None] | str], most: int
) -> None:
    """Whatever happens: one offset per item, one item per key, and no act half done."""
    stream: OutputStream | None = None
    kept: list[Item] = []
    for step, act in enumerate(acts):
        now = NOW + step * 100 * SECOND
        known = {item.idempotency_key: item.offset for item in kept if item.idempotency_key}
        before = stream
        try:
            if act == "expire":
                stream = None if stream is None else expire(stream, now)
            elif isinstance(act, str):
                stream = close(stream, closing("bad" if act == "error" else None), now)
            else:
                done = append(stream, known, appending(*act, most=most), now)
                stream, kept = done.stream, [*kept, *done.new_items]
                assert len(done.offsets) == len(act)
                by_offset = {item.offset: item.idempotency_key for item in kept}
                assert [by_offset[offset] for offset in done.offsets] == act
        except Rejection:
            assert stream is before
            is_over, held = (False, 0) if before is None else (before.is_over, before.pending)
            assert is_over or held + len(act) > most
        assert [item.offset for item in kept] == list(range(len(kept)))
        keys = [item.idempotency_key for item in kept if item.idempotency_key]
        assert len(keys) == len(set(keys))
        if stream is not None:
            assert stream.total == len(kept)
            assert 0 <= stream.first <= stream.total
            assert stream.pending <= most or before is stream
            if before is not None and before.is_over:
                assert (stream.status, stream.total) == (before.status, before.total)

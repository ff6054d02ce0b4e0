"""A run that is carried from one process to another arrives as it was."""

import msgspec
import pytest
from hypothesis import given

from perdure.core.run.state import BESIDE_FIELDS, Run
from perdure.store.run_codec import pack_run, unpack_run
from tests.store.building import a_run, fields_of, strange_runs, with_events


@given(strange_runs())
def test_a_run_arrives_as_it_was(run: Run) -> None:
    run.keep_opening(run.events)
    packed = pack_run(run, 1_000_000)
    assert packed is not None
    assert fields_of(unpack_run(packed)) == fields_of(run)


def test_what_arrives_has_nothing_to_be_saved() -> None:
    run = a_run()
    packed = pack_run(run, 1_000_000)
    assert packed is not None
    arrived = unpack_run(packed)
    assert arrived.unsaved.ready == {}
    assert arrived.unsaved.events == []
    assert (arrived.unsaved.due_at, arrived.unsaved.created) == (run.due_at, False)


def test_everything_beside_the_row_is_carried() -> None:
    carried = {"arguments", "operations", "inbox", "unread", "events", "opening"}
    found_out = {"events_bytes", "opening_bytes", "places"}
    assert set(BESIDE_FIELDS) == carried | found_out | {"unsaved"}


def test_a_run_that_is_too_large_stays() -> None:
    run = with_events(a_run(), 100, bytes_each=100)
    assert pack_run(run, 10_000) is None
    assert pack_run(run, 100_000) is not None


@pytest.mark.parametrize("nonsense", [b"", b"\x93\x01\x02\x03", msgspec.msgpack.encode([[1]] * 6)])
def test_what_is_no_run_is_refused(nonsense: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        unpack_run(nonsense)


def test_a_run_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row may be as wide as ours, or its fields may be said to be ours."""
    packed = pack_run(a_run(), 1_000_000)
    assert packed is not None
    for name, value in (("run_codec._FORM", 7), ("rows.ROW_WIDTH", 13)):
        with monkeypatch.context() as patched:
            patched.setattr(f"perdure.store.{name}", value)
            with pytest.raises(msgspec.ValidationError, match="another release"):
                unpack_run(packed)

"""A flipped bit in what is stored: found when it is read, told by name, and never handed on."""

import asyncio
from pathlib import Path

import pytest

from perdure.core.rejection import HistoryDamaged
from perdure.core.run.state import Run
from perdure.store.copies import copy
from perdure.store.damage import DAMAGED_RUNS_MAX, DamagedRuns, digest_of, is_intact
from perdure.store.interface import Store
from perdure.store.sqlite.copies import SqliteEnd
from tests.store.building import a_run, with_events
from tests.store.copying import Place
from tests.store.keeping import Keep

CHUNKS = 3


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(f"sqlite:///{tmp_path / 'perdure.db'}")
    return Place(request.getfixturevalue("migrated_url"))


@pytest.fixture
def keep(place: Place) -> Keep:
    if place.url.startswith("sqlite"):
        return Keep.sqlite(Path(place.url.removeprefix("sqlite:///")))
    return Keep.postgres(place.url)


def blob(place: Place, data: bytes) -> str:
    """Bytes as a literal."""
    if place.url.startswith("sqlite"):
        return f"x'{data.hex()}'"
    return f"'\\x{data.hex()}'::bytea"


def table(place: Place) -> str:
    return "history" if place.url.startswith("sqlite") else "perdure.history"


def first_of(place: Place, run: Run, number: int) -> int:
    """The first sequence of a chunk by its number."""
    found = place.ask(
        f"select first_sequence from {table(place)} where run_id = '{run.run_id}' order by 1"
    )
    return int(found[number][0])


def flip(place: Place, run: Run, first: int) -> None:
    """Flip a bit in the middle of a chunk, so that it stays well-formed JSON."""
    where = f"where run_id = '{run.run_id}' and first_sequence = {first}"
    ((chunk,),) = place.ask(f"select events from {table(place)} {where}")
    flipped = bytearray(chunk)
    at = flipped.index(b'"event_type":"') + len(b'"event_type":"')
    flipped[at] ^= 1
    place.ask(f"update {table(place)} set events = {blob(place, bytes(flipped))} {where}")


def digests(place: Place) -> list[bytes | None]:
    return [row[0] for row in place.ask(f"select digest from {table(place)}")]


def a_stored_run(keep: Keep, store: Store, name: str = "order") -> Run:
    """A run with a history of several chunks."""
    run = a_run(name)
    run.plain_input = None
    keep.commit(store, run)
    for _ in range(CHUNKS - 1):
        keep.commit(store, with_events(run, 2))
    return run


def test_a_digest_is_short_and_the_same_for_the_same_bytes() -> None:
    assert len(digest_of(b"some bytes")) == 16
    assert is_intact(b"some bytes", digest_of(b"some bytes"))
    assert not is_intact(b"some byteS", digest_of(b"some bytes"))
    assert is_intact(b"whatever it was before there were digests", None)


def test_what_is_damaged_is_remembered_up_to_a_bound() -> None:
    damaged = DamagedRuns()
    for number in range(DAMAGED_RUNS_MAX + 1):
        with pytest.raises(HistoryDamaged):
            damaged.require_intact(f"run-{number}", b"x", b"y")
    assert damaged.of("run-0") is None
    assert (
        damaged.of(f"run-{DAMAGED_RUNS_MAX}")
        == "a chunk of its history does not match its checksum"
    )
    damaged.whole(f"run-{DAMAGED_RUNS_MAX}")
    assert damaged.of(f"run-{DAMAGED_RUNS_MAX}") is None


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_flipped_byte_is_found_wherever_it_is(keep: Keep, place: Place, chunk: int) -> None:
    with keep.opened() as store:
        run, other = a_stored_run(keep, store), a_stored_run(keep, store, "other")
    first = first_of(place, run, chunk)
    flip(place, run, first)
    with keep.opened() as store:
        with pytest.raises(HistoryDamaged):
            keep.run(store.load_runs([run.run_id]))
        assert store.damaged.of(run.run_id) is not None
        with pytest.raises(HistoryDamaged):
            keep.run(store.read_history(run.run_id, 0, 100))
        before = keep.run(store.read_history(run.run_id, 0, first - 1)) if first > 1 else []
        assert before == run.events[: first - 1]
        if chunk == CHUNKS - 1:
            with pytest.raises(HistoryDamaged):
                keep.run(store.read_last_events(run.run_id))
        (whole,) = keep.run(store.load_runs([other.run_id]))
        assert whole.events == other.events
        assert store.damaged.of(other.run_id) is None
        # What is put right is in service again.
        flip(place, run, first)
        (again,) = keep.run(store.load_runs([run.run_id]))
        assert again.events == run.events
        assert store.damaged.of(run.run_id) is None


def test_a_held_run_takes_no_damaged_events_in(keep: Keep, place: Place) -> None:
    """Another node reads only what is new, and checks it."""
    with keep.opened() as store:
        run = a_stored_run(keep, store)
        (held,) = keep.run(store.load_runs([run.run_id]))
        keep.commit(store, with_events(run, 2))
        flip(place, run, first_of(place, run, CHUNKS))
        with pytest.raises(HistoryDamaged):
            keep.run(store.load_runs([run.run_id], {run.run_id: held}))


def test_rows_from_before_there_were_digests_are_not_checked(keep: Keep, place: Place) -> None:
    with keep.opened() as store:
        run = a_stored_run(keep, store)
        place.ask(f"update {table(place)} set digest = null")
        (loaded,) = keep.run(store.load_runs([run.run_id]))
        assert loaded.events == run.events
        place.ask(f"update {table(place)} set events = {blob(place, b'broken')}")
        for reading in (
            lambda: store.load_runs([run.run_id]),
            lambda: store.read_history(run.run_id, 0, 9),
            lambda: store.read_last_events(run.run_id),
        ):
            with pytest.raises(HistoryDamaged):
                keep.run(reading())


def test_a_history_that_is_gone_is_damage(keep: Keep, place: Place) -> None:
    with keep.opened() as store:
        run = a_stored_run(keep, store)
        place.ask(f"delete from {table(place)}")
        with pytest.raises(HistoryDamaged):
            keep.run(store.load_runs([run.run_id]))


def test_a_start_that_is_encoded_anew_has_the_digest_of_what_it_became(
    keep: Keep, place: Place
) -> None:
    with keep.opened() as store:
        run = a_run()
        run.plain_input = b"[1]"
        keep.commit(store, run)
        assert digests(place) == [None]
        run.plain_input = None
        run.unsaved.rewritten = b",".join(run.events)
        keep.commit(store, run)
        assert digests(place) == [digest_of(b",".join(run.events))]


def test_a_byte_that_flips_in_the_file_itself_is_found(tmp_path: Path) -> None:
    keep = Keep.sqlite(tmp_path / "perdure.db")
    with keep.opened() as store:
        run = a_stored_run(keep, store)
    file = tmp_path / "perdure.db"
    data = bytearray(file.read_bytes())
    at = data.index(b"WorkflowStarted")
    data[at] ^= 1
    file.write_bytes(data)
    with keep.opened() as store, pytest.raises(HistoryDamaged):
        keep.run(store.read_history(run.run_id, 0, 9))


def test_a_copy_carries_checksums_and_counts_what_does_not_match(tmp_path: Path) -> None:
    keep = Keep.sqlite(tmp_path / "from.db")
    with keep.opened() as store:
        run, other = a_stored_run(keep, store), a_stored_run(keep, store, "other")
    flip(Place(f"sqlite:///{tmp_path / 'from.db'}"), run, 1)

    compared = asyncio.run(copy(SqliteEnd(tmp_path / "from.db"), SqliteEnd(tmp_path / "to.db")))

    assert all(table.is_same for table in compared)
    assert {table.table: table.damaged for table in compared if table.damaged} == {"history": 1}
    keep = Keep.sqlite(tmp_path / "to.db")
    with keep.opened() as store:
        with pytest.raises(HistoryDamaged):
            keep.run(store.load_runs([run.run_id]))
        (whole,) = keep.run(store.load_runs([other.run_id]))
        assert whole.events == other.events

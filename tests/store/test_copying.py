"""A copy holds what its source holds, whatever kinds they are; and nothing half is ever served."""

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.core.fleet.worker import Worker
from perdure.core.run.inbox import Signal
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.identity import IdSource
from perdure.store import copies as copying
from perdure.store.copies import TABLES, Row
from perdure.store.interface import (
    Changes,
    Conflict,
    PayloadKey,
    PayloadPut,
    PollLease,
    QueueKey,
    ReceiptKey,
    Record,
    RecordChange,
    RecordKey,
    Store,
    StreamItem,
    Unavailable,
    shared,
)
from perdure.store.interface import Receipt as Answered
from tests.store.building import (
    NOW,
    a_run,
    a_worker,
    anything,
    fields_of,
    leased,
    strange_runs,
    with_activity,
    with_events,
)
from tests.store.copying import PAIRS, MakePlace, Place, copied, digests
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy, executing

ROOT = Path(__file__).parents[2]

some = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture
def a_place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    """Makes fresh places, each empty until somebody uses it."""
    made: list[str] = []
    numbers = itertools.count(1)

    def make(kind: str) -> Place:
        if kind == "sqlite":
            return Place(f"sqlite://{tmp_path}/{next(numbers)}/perdure.db")
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        made.append(cluster.fresh_database())
        request.addfinalizer(lambda: cluster.drop_database(made.pop()))
        return Place(made[-1])

    return make


# The same ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
def test_a_copy_of_a_copy_holds_what_the_first_store_held(
    source_kind: str, target_kind: str, a_place: MakePlace
) -> None:
    first, second, third = a_place(source_kind), a_place(target_kind), a_place(source_kind)
    kept = fill(first)

    there = digests(copied(first, second))
    back = digests(copied(second, third))

    assert back == there
    assert {table: rows for table, (rows, _) in there.items() if rows == 0} == {}
    for place in (second, third):
        with place.keep.opened() as store:
            found = {run.run_id: fields_of(run) for run in place.keep.run(store.load_runs(kept))}
            assert found == kept


def fill(place: Place) -> dict[str, dict[str, object]]:
    """Some of everything, ordinary and strange; what each run says about itself."""
    kept: dict[str, dict[str, object]] = {}
    keep = place.keep
    with keep.opened() as store:

        @some
        @given(strange_runs())
        def put_runs(run: Run) -> None:
            keep.commit(store, run)
            kept[run.run_id] = fields_of(run)

        @some
        @given(anything(Worker), anything(Answered), st.tuples(*[st.text(max_size=8)] * 4))
        def put_others(worker: Worker, receipt: Answered, key: tuple[str, str, str, str]) -> None:
            put(keep.run, store, worker, receipt, ReceiptKey(*key))

        put_runs()
        put_others()
        for key in (
            ("", "", "", ""),
            ("\0", "\x1b", "\x1b0", "\x1b["),
            ("\U0001f600", "￿", "é", "z"),
        ):
            put(keep.run, store, a_worker(key[1]), a_receipt(), ReceiptKey(*key))
            record = RecordChange(None, Record(b"data", 7))
            payload = PayloadPut(b"payload of " + key[1].encode(), is_loose=key[1] < "z")
            changes = Changes(
                records={RecordKey("kind", *key[:2]): record},
                payloads={PayloadKey(key[0], key[1]): payload},
                items=[StreamItem(key[0], key[1], 7, key[2] or None, b"an item")],
            )
            keep.run(store.commit(changes))
        for run in ordinary_runs():
            keep.commit(store, run)
            kept[run.run_id] = fields_of(run)
    return kept


def put(
    run: Callable[..., object], store: Store, worker: Worker, receipt: Answered, key: ReceiptKey
) -> None:
    try:
        run(
            store.commit(
                Changes(
                    workers={(worker.namespace, worker.worker_id): worker}, receipts={key: receipt}
                )
            )
        )
    except Conflict:
        # Chance made the same twice, and one database lets only the first one in.
        assert store.is_shared


def a_receipt() -> Answered:
    return Answered("digest", "run", "command", "signal_received", NOW)


def ordinary_runs() -> list[Run]:
    """A run in each of the states that matter to somebody who looks for it by an index."""
    waiting = leased(with_activity(a_run("leased task")), "w1")
    working = leased(with_activity(a_run("leased activity")), "w2", place=1)
    for holder in (waiting.task, working.operations[1]):
        assert holder.lease is not None  # type: ignore[union-attr]  # They were just leased.
        holder.lease.poll_id = "poll"  # type: ignore[union-attr]
    signalled = a_run("signalled")
    signalled.inbox = {1: Signal("s", "c", "go", b"[]", NOW), 2: Signal("t", "c", "go", None, NOW)}
    signalled.unsaved.inbox = {1, 2}
    timed = a_run("timed")
    timed.due_at = NOW + 7
    closed = with_events(a_run("closed"), 5)
    closed.status, closed.closed_at, closed.task = RunStatus.COMPLETED, NOW + 1, None
    closed.unsaved.ready = {}
    return [waiting, working, signalled, timed, closed]


@pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
def test_whoever_looks_finds_in_the_copy_what_the_source_has(
    source_kind: str, target_kind: str, a_place: MakePlace
) -> None:
    source, target = a_place(source_kind), a_place(target_kind)
    runs = {run.workflow_id: run for run in ordinary_runs()}
    with source.keep.opened() as store:
        source.keep.commit(store, *runs.values())

    digests(copied(source, target))

    run, keep = target.keep.run, target.keep
    with keep.opened() as store:
        names = [name for _, name in run(store.load_ready_names())]
        for kind, expected in (("workflow", 3), ("activity", 1)):
            key = QueueKey("default", "q", kind)
            assert len(run(store.load_ready(key, names, 10))) == expected
        run(store.release())
        task, activity = runs["leased task"], runs["leased activity"]
        assert run(store.find_leases("default", "w1")) == [(task.run_id, 0)]
        assert run(store.find_leases("default", "w2")) == [(activity.run_id, 1)]
        assert run(store.load_due(NOW + 7, 10)) == [runs["timed"].run_id]
        if (among := shared(store)) is not None:
            found = run(among.find_poll_leases(["w1", "w2"], ["poll"]))
            assert found == [
                PollLease("default", "w1", "poll", task.run_id, 0),
                PollLease("default", "w2", "poll", activity.run_id, 1),
            ]


@pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
def test_runs_of_a_copy_go_on(source_kind: str, target_kind: str, a_place: MakePlace) -> None:
    """Also those that were open: their versions are known to those who write."""
    source, target = a_place(source_kind), a_place(target_kind)
    with source.keep.opened() as store:
        source.keep.commit(store, a_run())
    digests(copied(source, target))

    with target.keep.opened() as store:
        (run_id,) = [row[0] for row in target.ask("select run_id from run")]
        (run,) = target.keep.run(store.load_runs([run_id]))
        with_events(run, 2)
        run.status, run.closed_at = RunStatus.COMPLETED, NOW
        target.keep.commit(store, run)
        (loaded,) = target.keep.run(store.load_runs([run_id]))
        assert fields_of(loaded) == fields_of(run)


def test_old_histories_get_a_partition_of_their_month(a_place: MakePlace) -> None:
    source, target = a_place("sqlite"), a_place("postgres")
    old, older = 1_700_000_000_000_000, 1_100_000_000_000_000
    with source.keep.opened() as store:
        for instant in (old, older):
            run = a_run(str(instant))
            run.run_id = IdSource(lambda at=instant: at).ulid()  # type: ignore[misc]
            source.keep.commit(store, run)

    digests(copied(source, target))

    placed = target.ask("select tableoid::regclass::text from history order by run_id")
    assert placed == [("history_other",), ("history_2023_11",)]


def test_every_table_and_column_of_both_stores_is_copied_or_known_to_be_left_out(
    a_place: MakePlace,
) -> None:
    """Who adds a column finds out here that a copy would lose it."""
    known = {f"{table}.{column}" for table, columns in TABLES.items() for column in columns}
    about_itself = {"meta", "schema_version", "node", "beat"}
    begun_anew = {"deadline.taken_until", "worker.revision", "worker.changed_at", "record.version"}
    found_out = {"operation.lease_poll", "open_run.task_poll"}
    of_open_runs = {f"open_run.{column}" for column in ("run_id", "status", "version", "state")}
    apart = of_open_runs | {"open_run.task_owner"}
    queries = {
        "sqlite": "select schema.name, info.name from sqlite_schema as schema, "
        "pragma_table_info(schema.name) as info where schema.type = 'table'",
        "postgres": "select table_name::text, column_name::text from information_schema.columns "
        "where table_schema = 'perdure' and table_name not like 'history\\_%'",
    }
    for kind, query in queries.items():
        place = a_place(kind)
        with place.keep.opened():
            pass
        columns = {
            f"{table}.{name}" for table, name in place.ask(query) if table not in about_itself
        }
        if kind == "sqlite":
            assert columns == known
        else:
            assert columns == (known - {"run.task_owner"}) | begun_anew | found_out | apart


# Bounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
def test_a_large_store_is_carried_in_pages(
    source_kind: str, target_kind: str, a_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PAGE_ROWS_MAX", 50)
    monkeypatch.setattr(copying, "PAGE_BYTES_MAX", 100_000)
    source, target = a_place(source_kind), a_place(target_kind)
    with source.keep.opened() as store:
        source.keep.commit(store, *(a_run(f"small {number}") for number in range(260)))
        large = [with_events(a_run(f"large {n}"), 1, bytes_each=60_000) for n in range(9)]
        source.keep.commit(store, *large)
    end, pages = target.end(), []
    write_page = end.write_page

    async def noticed(table: str, page: list[Row]) -> None:
        size = sum(len(value) for row in page for value in row if isinstance(value, bytes))
        pages.append((table, len(page), size))
        await write_page(table, page)

    setattr(end, "write_page", noticed)  # noqa: B010 (mypy minds the plain way)
    compared = asyncio.run(copying.copy(source.end(), end))

    assert digests(compared)["run"][0] == 269
    assert max(rows for _, rows, _ in pages) == 50
    histories = [size for table, _, size in pages if table == "history"]
    assert len(histories) >= 9 * 60_000 // 160_000 + 260 // 50
    assert max(histories) < 100_000 + 61_000, "the row that fills a page comes along, no more"


# Refusals ---------------------------------------------------------------------------------------


def refusal(source: Place, target: Place) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        copied(source, target)
    return caught.value


def everything(place: Place) -> dict[str, list[tuple[object, ...]]]:
    return {table: sorted(place.ask(f"select * from {table}"), key=repr) for table in TABLES}


@pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
def test_a_store_that_holds_something_is_not_overwritten(
    source_kind: str, target_kind: str, a_place: MakePlace
) -> None:
    source, target = a_place(source_kind), a_place(target_kind)
    for place in (source, target):
        with place.keep.opened() as store:
            place.keep.commit(store, a_run())
    before = everything(target)

    refused = refusal(source, target)

    assert refused.reason == "storage_not_empty"
    assert refused.message.startswith("--to: ")
    assert everything(target) == before
    with target.keep.opened():
        pass


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_of_which_only_a_name_is_left_holds_something(
    kind: str, a_place: MakePlace
) -> None:
    source, target = a_place("sqlite"), a_place(kind)
    for place in (source, target):
        with place.keep.opened():
            pass
    insert = "insert into namespace (name) values ('shop') returning name"
    assert target.ask(insert) == [("shop",)]

    assert refusal(source, target).reason == "storage_not_empty"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_that_was_opened_and_never_used_is_as_good_as_a_fresh_one(
    kind: str, a_place: MakePlace
) -> None:
    source, target = a_place("sqlite"), a_place(kind)
    for place in (source, target):
        with place.keep.opened():
            pass

    assert digests(copied(source, target))["namespace"][0] == 1
    with target.keep.opened() as store:
        assert target.keep.run(store.load_namespaces()) == ["default"]


def test_a_file_of_somebody_else_is_not_touched(a_place: MakePlace) -> None:
    source, target = a_place("sqlite"), a_place("sqlite")
    with source.keep.opened():
        pass
    assert target.path is not None
    target.path.parent.mkdir()
    target.ask("create table diary (day text)")

    assert refusal(source, target).reason == "storage_not_empty"
    assert target.ask("select name from sqlite_schema") == [("diary",)]


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    ("kind", "reason"), [("sqlite", "storage_locked"), ("postgres", "storage_in_use")]
)
def test_a_store_that_is_open_is_not_copied(
    kind: str, reason: str, side: str, a_place: MakePlace
) -> None:
    source, target = a_place(kind), a_place(kind)
    with source.keep.opened():
        pass
    busy = source if side == "source" else target
    with busy.keep.opened():
        refused = refusal(source, target)

    assert refused.reason == reason
    assert refused.message.startswith("--from: " if side == "source" else "--to: ")
    digests(copied(source, target))


def test_a_node_that_died_is_waited_for(a_place: MakePlace) -> None:
    """Nobody is connected, but nobody said goodbye either: behind a pooler, it may be alive."""
    source, target = a_place("postgres"), a_place("sqlite")
    with source.keep.opened():
        pass
    seen = "insert into node select 'n', 1, {} returning node_id"
    clock = "(extract(epoch from clock_timestamp()) * 1000000)::bigint - {} * 1000000"
    source.ask(seen.format(clock.format(20)))

    refused = refusal(source, target)

    assert refused.reason == "storage_in_use"
    assert "30 seconds" in refused.message
    source.ask("delete from node")
    source.ask(seen.format(clock.format(31)))
    digests(copied(source, target))


def test_a_source_that_somebody_writes_to_meanwhile_gives_no_copy(a_place: MakePlace) -> None:
    """A node that could not be seen before: its beat gives it away."""
    source, target = a_place("postgres"), a_place("sqlite")
    with source.keep.opened():
        pass
    source.ask("insert into node select 'n', 1, 0")
    end = target.end()
    write_page = end.write_page

    async def written_to(table: str, page: list[Row]) -> None:
        await write_page(table, page)
        await asyncio.to_thread(source.ask, "insert into beat select 'n', 1")

    setattr(end, "write_page", written_to)  # noqa: B010 (mypy minds the plain way)
    with pytest.raises(Unavailable) as caught:
        asyncio.run(copying.copy(source.end(), end))

    assert caught.value.reason == "storage_in_use"
    assert opening(target).reason == "storage_incomplete"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_source_that_is_not_there_is_not_made(kind: str, a_place: MakePlace) -> None:
    source, target = a_place(kind), a_place("sqlite")

    refused = refusal(source, target)

    assert refused.reason == "storage_missing"
    assert target.path is not None
    assert not target.path.parent.exists(), "nothing is made for a copy that is refused"
    if source.path is not None:
        assert not source.path.parent.exists()
    else:
        assert source.ask("select to_regnamespace('perdure')::text") == [(None,)]


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(("step", "reason"), [(1, "storage_newer"), (-1, "storage_older")])
def test_a_store_of_another_release_is_refused(
    kind: str, step: int, reason: str, side: str, a_place: MakePlace
) -> None:
    """Who does not know every column cannot say that nothing is missing."""
    source, target = a_place(kind), a_place(kind)
    for place in (source, target):
        with place.keep.opened():
            pass
    other = source if side == "source" else target
    newest = "(select max(version) from schema_version)"
    if step > 0:
        other.ask(f"update schema_version set version = version + 1 where version = {newest}")
    else:
        other.ask(f"delete from schema_version where version = {newest}")

    assert refusal(source, target).reason == reason


def test_a_damaged_source_gives_no_copy(a_place: MakePlace) -> None:
    source, target = a_place("sqlite"), a_place("sqlite")
    with source.keep.opened() as store:
        source.keep.commit(store, *(a_run(str(number)) for number in range(100)))
    assert source.path is not None
    page = source.ask("select max(pageno) from dbstat where name = 'history'")[0][0]
    with source.path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)

    assert refusal(source, target).reason == "storage_corrupt"
    assert opening(target).reason == "storage_incomplete"


@pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
def test_a_disk_that_fills_up_ends_a_copy_in_order(
    source_kind: str, target_kind: str, a_place: MakePlace, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = a_place(source_kind), a_place(target_kind)
    with source.keep.opened() as store:
        source.keep.commit(store, *ordinary_runs())
    end = target.end()

    async def full(table: str, page: list[Row]) -> None:
        raise Unavailable("storage_full", "the disk is full")

    setattr(end, "write_page", full)  # noqa: B010 (mypy minds the plain way)
    with pytest.raises(Unavailable) as caught:
        asyncio.run(copying.copy(source.end(), end))

    assert (caught.value.reason, caught.value.message) == ("storage_full", "--to: the disk is full")
    assert caplog.messages == []
    assert opening(target).reason == "storage_incomplete"
    digests(copied(source, a_place(target_kind)))


# What is not finished ---------------------------------------------------------------------------


def opening(place: Place) -> Unavailable:
    """How a server that is started on a place is refused."""
    with pytest.raises(Unavailable) as caught, place.keep.opened():
        pass
    return caught.value


@pytest.mark.parametrize("pages", [0, 2])
@pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
def test_a_copy_that_was_killed_is_not_served_and_not_copied(
    source_kind: str, target_kind: str, pages: int, a_place: MakePlace
) -> None:
    source, target = a_place(source_kind), a_place(target_kind)
    with source.keep.opened() as store:
        source.keep.commit(store, *ordinary_runs())
    before = everything(source)

    died = subprocess.run(
        [sys.executable, "-m", "tests.store.dying_copy", source.url, target.url, str(pages)],
        cwd=ROOT,
        timeout=60,
    )

    assert died.returncode == -signal.SIGKILL
    assert opening(target).reason == "storage_incomplete"
    for other in (source, a_place(target_kind)):
        assert refusal(target, other).reason == "storage_incomplete"
    again = refusal(source, target)
    assert again.reason == "storage_incomplete"
    assert "remove it and copy again" in again.message
    assert everything(source) == before
    digests(copied(source, a_place(target_kind)))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_copy_that_differs_is_told_and_not_served(kind: str, a_place: MakePlace) -> None:
    source, target = a_place("sqlite"), a_place(kind)
    with source.keep.opened() as store:
        source.keep.commit(store, *ordinary_runs())
    end = target.end()
    write_page = end.write_page

    async def spoilt(table: str, page: list[Row]) -> None:
        if table == "history":
            page = [(*row[:3], row[3].replace(b"default", b"defAult"), *row[4:]) for row in page]
        await write_page(table, page[1:] if table == "ready" else page)

    setattr(end, "write_page", spoilt)  # noqa: B010 (mypy minds the plain way)
    compared = asyncio.run(copying.copy(source.end(), end))

    different = {table.table: table for table in compared if not table.is_same}
    assert set(different) == {"history", "ready"}
    assert different["history"].source_rows == different["history"].target_rows
    assert different["ready"].source_rows == different["ready"].target_rows + 1
    assert opening(target).reason == "storage_incomplete"


@pytest.mark.parametrize("nth", [2, 8, 16])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_database_that_goes_away_is_not_said_to_refuse(
    a_place: MakePlace, side: str, nth: int
) -> None:
    """The same copy may succeed later; what is refused will be refused again."""
    there, file = a_place("postgres"), a_place("sqlite")
    source = there if side == "source" else file
    with source.keep.opened() as store:
        source.keep.run(store.commit(Changes(runs=ordinary_runs())))
    with Proxy(there.url) as proxy:
        through = Place(proxy.url)
        trap = proxy.cut_before(executing(""), nth=nth)
        refused = refusal(through, file) if side == "source" else refusal(file, through)
        assert trap.sprung.done()
    assert refused.reason == "storage_unavailable"

"""A disk that refuses: a typed reason, nothing changed, and the next commit works again."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import apsw
import pytest

from perdure.store.interface import Changes, Receipt, ReceiptKey, RunFilter, Unavailable
from perdure.store.sqlite.store import SqliteStore
from tests.store.building import NOW, a_run, a_worker, fields_of, with_activity, with_events
from tests.store.keeping import Keep
from tests.store.refusing import refusing_commits


class OneStore:
    """An opened store, with its writing connection in our hands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = SqliteStore(path)
        self.keep = Keep(lambda: self.store)

    @property
    def writer(self) -> apsw.Connection:
        return self.store._writer

    def refused(self, changes: Changes) -> Unavailable:
        with pytest.raises(Unavailable) as caught:
            self.keep.run(self.store.commit(changes))
        return caught.value


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneStore]:
    one = OneStore(tmp_path / "perdure.db")
    with one.keep.opened():
        yield one


# Ways to refuse ---------------------------------------------------------------------------------


@contextmanager
def busy(one: OneStore) -> Iterator[None]:
    """Somebody else is writing."""
    one.writer.set_busy_timeout(1)
    with closing(apsw.Connection(str(one.path))) as other:
        other.execute("begin immediate")
        yield
        other.execute("rollback")


@contextmanager
def full(one: OneStore) -> Iterator[None]:
    """No page is left, neither in the file nor among the freed ones."""
    (most,) = one.writer.execute("pragma max_page_count").fetchall()[0]
    (pages,) = one.writer.execute("pragma page_count").fetchall()[0]
    one.writer.execute(f"pragma max_page_count={pages}")
    yield
    one.writer.execute(f"pragma max_page_count={most}")


@contextmanager
def read_only(one: OneStore) -> Iterator[None]:
    """The file was mounted anew, for reading only."""
    one.writer.execute("pragma query_only=1")
    yield
    one.writer.execute("pragma query_only=0")


def at_commit(error: apsw.Error) -> Callable[[OneStore], AbstractContextManager[object]]:
    """Everything was written, and then COMMIT itself is refused."""
    return lambda one: refusing_commits(one.store, error)


REFUSALS = [
    pytest.param(busy, "storage_busy", id="busy"),
    pytest.param(full, "storage_full", id="full"),
    pytest.param(read_only, "storage_read_only", id="read-only"),
    pytest.param(at_commit(apsw.FullError("full")), "storage_full", id="full-at-commit"),
    pytest.param(at_commit(apsw.IOError("fsync")), "storage_error", id="io-at-commit"),
    pytest.param(at_commit(apsw.BusyError("busy")), "storage_busy", id="busy-at-commit"),
    pytest.param(at_commit(apsw.CorruptError("bad")), "storage_corrupt", id="corrupt-at-commit"),
]


@pytest.mark.parametrize(("refusing", "reason"), REFUSALS)
def test_a_refused_commit_has_a_reason_changes_nothing_and_the_next_one_works(
    refusing: Callable[[OneStore], AbstractContextManager[object]], reason: str, one: OneStore
) -> None:
    keep, store = one.keep, one.store
    old = with_activity(a_run("old"))
    keep.commit(store, old)
    before = fields_of(old) | {"events": list(old.events)}
    big = with_events(a_run("big"), 20, bytes_each=50_000)
    key = ReceiptKey("default", "old", "signal", "r1")
    changes = Changes(
        runs=[big, with_events(old, 1)],
        receipts={key: Receipt("d", old.run_id, "c", "signal_received", NOW)},
        workers={("default", "w1"): a_worker()},
    )

    with refusing(one):
        refusal = one.refused(changes)
        seen = keep.run(store.load_runs([old.run_id, big.run_id]))

    assert refusal.reason == reason
    assert refusal.retry_after_seconds >= 1
    assert [one_run.run_id for one_run in seen] == [old.run_id]
    assert seen[0].events == before["events"]
    assert keep.run(store.load_workers()) == []
    assert keep.run(store.find_receipts([key])) == {}

    keep.run(store.commit(changes))

    assert len(keep.run(store.load_runs([old.run_id, big.run_id]))) == 2
    assert keep.run(store.read_history(old.run_id, 0, 100)) == old.events
    assert keep.run(store.load_workers()) == [a_worker()]


def test_a_bug_in_the_middle_of_a_commit_rolls_it_back_and_is_not_called_the_disks(
    one: OneStore,
) -> None:
    fine, broken = a_run("fine"), a_run("broken")
    broken.memo = {"unspeakable": object()}

    with pytest.raises(TypeError):
        one.keep.run(one.store.commit(Changes(runs=[fine, broken])))

    assert one.keep.run(one.store.load_runs([fine.run_id])) == []
    one.keep.commit(one.store, fine)


def test_a_commit_that_nobody_waits_for_any_more_is_whole_or_not_at_all(one: OneStore) -> None:
    """The beat is cancelled while COMMIT runs in its thread."""
    store, run = one.store, a_run()
    begun, let_go = Event(), Event()

    def hold() -> bool:
        begun.set()
        let_go.wait(90)
        return False

    async def story() -> None:
        one.writer.set_commit_hook(hold)
        committing = asyncio.ensure_future(store.commit(Changes(runs=[run])))
        await asyncio.to_thread(begun.wait)
        committing.cancel()
        await asyncio.wait({committing}, timeout=0.05)
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await committing
        one.writer.set_commit_hook(None)

    one.keep.run(story())
    other = a_run("other")
    one.keep.commit(store, other)
    found = {loaded.run_id for loaded in one.keep.run(store.load_runs([run.run_id, other.run_id]))}
    assert other.run_id in found
    rows = one.writer.execute("select count(*) from history where run_id = ?", (run.run_id,))
    assert rows.fetchall() == [(int(run.run_id in found),)]


def test_readers_see_the_last_commit_while_the_next_one_is_written(one: OneStore) -> None:
    keep, store = one.keep, one.store
    run = a_run()
    keep.commit(store, run)
    one.writer.execute("begin immediate")
    one.writer.execute("delete from run")

    listed = keep.run(store.read_list(RunFilter(namespace="default"), None, 10))
    read = keep.run(store.read_run(run.run_id))
    one.writer.execute("rollback")

    assert [seen.run_id for seen in listed] == [run.run_id]
    assert read is not None


@pytest.mark.parametrize("reading", ["read_history", "read_list", "read_run", "load_due"])
def test_a_reader_that_the_disk_refuses_gets_a_typed_reason(reading: str, one: OneStore) -> None:
    """The pages that a reader wants cannot be read: the disk says so, and so do we."""
    keep, store = one.keep, one.store
    run = a_run()
    keep.commit(store, run)
    reads: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "read_history": lambda: store.read_history(run.run_id, 0, 10),
        "read_list": lambda: store.read_list(RunFilter(namespace="default"), None, 10),
        "read_run": lambda: store.read_run(run.run_id),
        "load_due": lambda: store.load_due(NOW, 10),
    }

    def refuse(*_: object) -> int:
        raise apsw.IOError("disk I/O error")

    for reader in (store._reader, store._bulk_reader):
        reader.set_authorizer(refuse)
    with pytest.raises(Unavailable) as caught:
        keep.run(reads[reading]())
    assert caught.value.reason == "storage_error"

    for reader in (store._reader, store._bulk_reader):
        reader.set_authorizer(None)
    keep.run(reads[reading]())

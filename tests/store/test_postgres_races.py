"""Two nodes want the same: one gets it, the other is told, and nothing of it is half done."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from perdure.core.run.inbox import Signal
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.store.interface import (
    Changes,
    Conflict,
    QueueKey,
    Receipt,
    ReceiptKey,
    Record,
    RecordChange,
    RecordKey,
)
from perdure.store.postgres.store import PostgresStore
from tests.store.building import NOW, a_run, a_worker, leased, with_activity, with_events
from tests.store.nodes import commit, load, nodes, nothing_written, session

WORKFLOWS = QueueKey("default", "q", "workflow")
ACTIVITIES = QueueKey("default", "q", "activity")
KEY = ReceiptKey("default", "order", "signal", "r1")
RECEIPT = Receipt("digest", "run", "command", "signal_received", NOW)
SECOND = 1_000_000


def changed_everywhere(run: Run) -> Changes:
    """A change that touches every table, of which one row is about this run."""
    with_events(with_activity(run, 7), 2)
    run.inbox[9] = Signal("s", "c", "go", None, NOW)
    run.unsaved.inbox = {9}
    run.due_at = 12_345
    newcomer = leased(with_activity(a_run("newcomer")), "w1")
    newcomer.due_at = 1
    return Changes(
        runs=[newcomer, run],
        receipts={KEY: RECEIPT},
        workers={("default", "w1"): a_worker()},
        records={RecordKey("thing", "default", "a"): RecordChange(None, Record(b"1", 1))},
    )


@pytest.mark.parametrize("ending", ["open", "closing", "closed"])
def test_a_change_of_an_old_version_writes_nothing_at_all(migrated_url: str, ending: str) -> None:
    """Whether the run is open, closes, or was closed already when both nodes looked at it."""

    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            first = a_run()
            await commit(one, first)
            if ending == "closed":
                close(first)
                await commit(one, first)
            mine, theirs = await load(one, first.run_id), await load(two, first.run_id)
            if ending == "closing":
                close(theirs)
            await commit(two, theirs)

            late = changed_everywhere(mine) if ending == "open" else Changes(runs=[mine])
            async with nothing_written(migrated_url):
                with pytest.raises(Conflict):
                    await one.commit(late)

            again = await load(one, first.run_id)
            assert again.version == theirs.version
            await commit(one, again)

    asyncio.run(story())


def close(run: Run) -> None:
    run.status, run.closed_at, run.task = RunStatus.COMPLETED, NOW, None
    run.unsaved.ready = {0: False}


def test_of_many_changes_at_the_same_moment_one_is_written(migrated_url: str) -> None:
    async def story() -> None:
        async with nodes(*[migrated_url] * 3) as stores:
            run = a_run()
            await commit(stores[0], run)
            for _ in range(10):
                versions = [await load(store, run.run_id) for store in stores]
                ended = await asyncio.gather(
                    *(
                        store.commit(Changes(runs=[with_events(mine, 1)]))
                        for store, mine in zip(stores, versions, strict=True)
                    ),
                    return_exceptions=True,
                )
                assert sorted(map(kind, ended)) == ["Conflict", "Conflict", "done"], ended
            last = await load(stores[1], run.run_id)
            assert last.history_count == run.history_count + 10
            events = await stores[2].read_history(run.run_id, 0, 100)
            assert [msgspec.json.decode(event)["sequence"] for event in events] == list(
                range(1, run.history_count + 11)
            )

    asyncio.run(story())


def kind(ended: BaseException | None) -> str:
    return "done" if ended is None else type(ended).__name__


NEWCOMERS: dict[str, Callable[[], Changes]] = {
    "start": lambda: Changes(runs=[a_run("order"), a_run("innocent")]),
    "receipt": lambda: Changes(receipts={KEY: RECEIPT}, runs=[a_run("innocent")]),
    "worker": lambda: Changes(workers={("default", "w1"): a_worker()}, runs=[a_run("innocent")]),
}


@pytest.mark.parametrize("what", NEWCOMERS)
def test_what_can_be_there_once_is_written_by_the_first(migrated_url: str, what: str) -> None:
    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            first = NEWCOMERS[what]()
            first.runs = first.runs[:-1]
            await one.commit(first)
            async with nothing_written(migrated_url):
                with pytest.raises(Conflict):
                    await two.commit(NEWCOMERS[what]())

    asyncio.run(story())


@pytest.mark.parametrize("what", NEWCOMERS)
def test_what_comes_into_being_on_two_nodes_at_once_is_there_once(
    migrated_url: str, what: str
) -> None:
    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            ended = await asyncio.gather(
                *(store.commit(NEWCOMERS[what]()) for store in (one, two)), return_exceptions=True
            )
            assert sorted(map(kind, ended)) == ["Conflict", "done"], ended

    asyncio.run(story())


# Workers ------------------------------------------------------------------------------------------


def test_a_registration_that_another_node_changed_is_not_overwritten(migrated_url: str) -> None:
    key = ("default", "w1")

    def beating(revision: int, **told: int) -> Changes:
        worker = a_worker("w1", **told)
        return Changes(workers={key: worker}, worker_revisions={key: revision})

    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            await one.commit(beating(0))
            assert (await two.find_workers([key]))[key] == (1, a_worker())
            await two.commit(beating(1, heartbeat_at=NOW + 1))
            async with nothing_written(migrated_url):
                for stale in (beating(1, heartbeat_at=NOW + 2), beating(0)):
                    with pytest.raises(Conflict):
                        await one.commit(stale)
                gone = Changes(workers={key: None}, worker_revisions={key: 1})
                with pytest.raises(Conflict):
                    await one.commit(gone)
            await one.commit(Changes(workers={key: None}, worker_revisions={key: 2}))
            async with nothing_written(migrated_url):
                with pytest.raises(Conflict):
                    await two.commit(beating(2))
            assert await two.find_workers([key]) == {}

    asyncio.run(story())


# Claims -------------------------------------------------------------------------------------------


def test_what_one_node_looks_at_is_left_to_it_until_its_beat_ends(migrated_url: str) -> None:
    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            await commit(one, *(a_run(f"run {number}") for number in range(6)))

            first = await found(one, 2)
            second = await found(two, 9)
            assert len(first) == 2
            assert len(second) == 4
            assert not set(first) & set(second)

            await one.release()
            await two.release()
            assert len(await found(two, 9)) == 6
            assert await found(one, 9) == []

    asyncio.run(story())


def test_what_was_claimed_is_never_seen_again(migrated_url: str) -> None:
    """Many claims at the same time: every task goes to one of them, and none is left over."""

    async def claim(store: PostgresStore) -> list[str]:
        taken = []
        for _ in range(40):
            names = await found(store, 3)
            if not names:
                await store.release()
                continue
            runs = await store.load_runs(names)
            for run in runs:
                leased(run, "w1")
            try:
                await commit(store, *runs)
            except Conflict:
                await store.release()
            else:
                taken += names
        return taken

    async def story() -> None:
        async with nodes(*[migrated_url] * 3) as stores:
            runs = [a_run(f"run {number}") for number in range(40)]
            await commit(stores[0], *runs)
            claimed = await asyncio.gather(*map(claim, stores))
            everything = [run_id for taken in claimed for run_id in taken]
            assert sorted(everything) == sorted(run.run_id for run in runs)
            assert sum(bool(taken) for taken in claimed) > 1, "one node had it all to itself"

    asyncio.run(story())


async def found(store: PostgresStore, limit: int) -> list[str]:
    return [task.run_id for task in await store.load_ready(WORKFLOWS, {"shop"}, limit)]


def test_a_run_that_somebody_changes_is_not_offered_meanwhile(migrated_url: str) -> None:
    """Its two activities go with it: they are decided on together or not at all."""

    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            run = with_activity(with_activity(a_run(), 1), 2)
            await commit(one, run)
            await one.hold([run.run_id])
            assert await two.load_ready(ACTIVITIES, {"pay"}, 9) == []
            await two.release()
            await one.release()
            assert len(await two.load_ready(ACTIVITIES, {"pay"}, 9)) == 2

    asyncio.run(story())


# Deadlines ----------------------------------------------------------------------------------------


def test_what_is_due_goes_to_one_node_and_comes_back_if_that_does_nothing(
    migrated_url: str,
) -> None:
    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            runs = [a_run(f"run {number}") for number in range(5)]
            for number, run in enumerate(runs):
                run.due_at = NOW + number
            await commit(one, *runs)
            now = NOW + 10
            first, second = await one.load_due(now, 2), await two.load_due(now, 9)
            assert first == [run.run_id for run in runs[:2]]
            assert second == [run.run_id for run in runs[2:]]

            back_at = now + 5 * SECOND
            assert await one.find_next_due(now) == back_at
            assert await one.load_due(back_at - 1, 9) == []
            again = await asyncio.gather(one.load_due(back_at, 3), two.load_due(back_at, 3))
            assert sorted(again[0] + again[1]) == sorted(run.run_id for run in runs)

    asyncio.run(story())


def test_a_deadline_that_is_set_anew_is_free_again(migrated_url: str) -> None:
    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            run = a_run()
            run.due_at = NOW
            await commit(one, run)
            assert await one.load_due(NOW, 9) == [run.run_id]
            run.due_at = NOW + 1
            await commit(one, run)
            assert await two.load_due(NOW + 1, 9) == [run.run_id]

    asyncio.run(story())


# Locks --------------------------------------------------------------------------------------------


def test_who_holds_a_run_keeps_nobody_from_others(migrated_url: str) -> None:
    async def story() -> None:
        async with nodes(migrated_url) as [store], session(migrated_url) as other:
            held, free = a_run("held"), a_run("free")
            await commit(store, held, free)
            async with other.transaction():
                query = "select from perdure.open_run where run_id = $1 for update"
                await other.execute(query, held.run_id)
                async with asyncio.timeout(90), nothing_written(migrated_url):
                    with pytest.raises(Conflict):
                        await store.commit(Changes(runs=[held, free]))
                async with asyncio.timeout(90):
                    await commit(store, free)
                # Nobody is asked to wait in order to read.
                async with asyncio.timeout(90):
                    assert await load(store, held.run_id) is not None
            await commit(store, held)

    asyncio.run(story())


def test_standing_in_line_ends_when_nobody_moves(migrated_url: str) -> None:
    async def story() -> None:
        async with nodes(migrated_url) as [store], session(migrated_url) as other:
            run = a_run()
            await commit(store, run)
            async with other.transaction():
                await other.execute("select from perdure.open_run for update")
                with pytest.raises(Conflict):
                    await store.hold([run.run_id])
                await store.release()
            await store.hold([run.run_id])
            await commit(store, run)

    asyncio.run(story())


# Records ------------------------------------------------------------------------------------------


def test_a_record_that_another_node_changed_is_not_written_over(migrated_url: str) -> None:
    key = RecordKey("thing", "default", "a")

    async def write(store: PostgresStore, before: Record | None, after: Record | None) -> None:
        await store.commit(Changes(records={key: RecordChange(before, after)}))

    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            await write(one, None, Record(b"1", 5))
            with pytest.raises(Conflict):
                await write(two, None, Record(b"2"))
            await two.release()
            (seen,) = (await two.find_records([key])).values()
            await write(one, seen, Record(b"3", 9))
            for after in (Record(b"4"), None):
                async with nothing_written(migrated_url):
                    with pytest.raises(Conflict):
                        await write(two, seen, after)
            (seen,) = (await two.find_records([key])).values()
            assert (seen.data, seen.due_at, seen.version) == (b"3", 9, 2)
            await write(two, seen, None)
            assert await one.read_record(key) is None
            assert await one.load_due(NOW, 9) == []

    asyncio.run(story())


def test_who_stands_in_line_for_a_record_gets_it(migrated_url: str) -> None:
    key = RecordKey("thing", "default", "a")

    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            await one.commit(Changes(records={key: RecordChange(None, Record(b"1"))}))
            await one.hold([], [key])
            (seen,) = (await two.find_records([key])).values()
            with pytest.raises(Conflict):
                await two.commit(Changes(records={key: RecordChange(seen, Record(b"2"))}))
            await two.release()
            await one.commit(Changes(records={key: RecordChange(seen, Record(b"3"))}))
            assert (await two.find_records([key]))[key].data == b"3"

    asyncio.run(story())

"""Whatever clients call their things, and whoever stands between us and the database."""

import asyncio
from typing import Any

import pytest

from perdure.core.run.inbox import Signal
from perdure.store.interface import (
    Changes,
    Conflict,
    Instance,
    LeasedTask,
    PollLease,
    QueueKey,
    Receipt,
    ReceiptKey,
    RunFilter,
)
from perdure.store.postgres.store import PostgresStore
from tests.store.building import NOW, a_run, a_worker, fields_of, leased, with_activity
from tests.store.nodes import commit, load, nodes
from tests.support.clock import FakeClock
from tests.support.pooler import Pooler

HOSTILE = {
    "nul": "a\0b",
    "only nul": "\0",
    "escape": "\x1b",
    "escaped nul": "\x1b0",
    "escaped escape": "\x1b[\x1b",
    "emoji": "👩‍🚀 🇦🇶",
    "four bytes": "\U0010fffd",
    "quotes": "'\"; drop table perdure.run --",
    "backslash": "\\x00 %s $1 :name {holds}",
    "spaces": " \t\r\n ",
    "like": "%_",
    "null": "NULL",
}


@pytest.mark.parametrize("word", HOSTILE.values(), ids=HOSTILE)
def test_a_key_of_any_letters_comes_back_as_it_was(migrated_url: str, word: str) -> None:
    async def story() -> None:
        async with nodes(migrated_url, migrated_url) as (one, two):
            await use_every_key(one, two, word)

    asyncio.run(story())


async def use_every_key(one: PostgresStore, two: PostgresStore, word: str) -> None:
    """Write on one node, find by every key on another."""
    key = QueueKey(word, word, "workflow")
    run = leased(with_activity(a_run(word, workflow_type=word, queue=word)), word)
    assert run.task is not None
    assert run.task.lease is not None
    run.task.lease.poll_id = word
    run.inbox[1] = Signal("s", "c", word, None, NOW)
    run.unsaved.inbox = {1}
    waiting = a_run(f"{word}2", workflow_type=word, queue=word)
    run.namespace = waiting.namespace = word
    receipt = Receipt(word, run.run_id, word, word, NOW)
    receipt_key = ReceiptKey(word, word, word, word)
    worker = a_worker(word, namespace=word, queue=word)
    everything: dict[str, Any] = {
        "receipts": {receipt_key: receipt},
        "workers": {(word, word): worker},
    }
    await commit(one, run, waiting, **everything)

    assert fields_of(await load(two, run.run_id)) == fields_of(run)
    instance = Instance(word, word)
    assert await two.find_current([instance]) == {instance: run.run_id}
    assert [each.run_id for each in await two.read_instance(instance)] == [run.run_id]
    assert await two.find_receipts([receipt_key]) == {receipt_key: receipt}
    assert await two.find_workers([(word, word)]) == {(word, word): (1, worker)}
    assert worker in await two.load_workers()
    assert worker in await two.load_changed_workers(0)
    assert (key, word) in await two.load_ready_names()
    assert [each[0] for each in await two.load_ready(key, [word], 9)] == [waiting.run_id]
    await two.release()
    assert await two.find_leases(word, word) == [LeasedTask(run.run_id, 0)]
    assert (word, word) in await two.load_lease_owners()
    leases = await two.find_poll_leases([word], [word])
    assert leases == [PollLease(word, word, word, run.run_id, 0)]
    wanted = RunFilter(namespace=word, workflow_type=word)
    listed = {each.run_id for each in await two.read_list(wanted, None, 9)}
    assert listed == {run.run_id, waiting.run_id}
    named = RunFilter(namespace=word, workflow_ids=(word,))
    assert [each.run_id for each in await two.read_list(named, None, 9)] == [run.run_id]
    with pytest.raises(Conflict):
        await two.commit(Changes(receipts={receipt_key: receipt}))
    gone = Changes(workers={(word, word): None}, worker_revisions={(word, word): 1})
    await two.commit(gone)
    assert await one.find_workers([(word, word)]) == {}


@pytest.mark.parametrize("sessions", [1, 2, 5])
def test_everything_works_behind_a_pooler_that_shares_sessions(
    migrated_url: str, sessions: int
) -> None:
    """Every transaction may meet another session, and nothing is left in any of them."""

    async def story(url: str) -> None:
        # Two stores may each hold a session through a claim, so there must be as many.
        wanted = [url] if sessions == 1 else [url, url]
        async with nodes(*wanted, pooled=True) as stores:
            for number in range(3):
                await use_every_key(stores[0], stores[-1], f"word {number}")
            run = a_run("due")
            run.due_at = NOW
            await commit(stores[0], run)
            assert await stores[0].load_due(NOW, 9) == [run.run_id]
            assert await stores[-1].load_due(NOW, 9) == []
            assert await stores[0].read_versions([run.run_id]) == {run.run_id: 1}
            assert abs(await stores[0].read_clock()) > 0
            await stores[0].note_life()
            await stores[0].reopen_before_message()
            await stores[0].check()

    with Pooler(migrated_url, sessions=sessions) as pooler:
        asyncio.run(story(pooler.url))


def test_a_schema_is_made_behind_a_pooler(postgres_url: str) -> None:
    async def story(url: str) -> None:
        stores = [
            PostgresStore(url, node_id=name, clock=FakeClock(), pooled=True) for name in ("a", "b")
        ]
        applied = await asyncio.gather(*(store.migrate() for store in stores))
        assert sorted(map(bool, applied)) == [False, True]
        for store in stores:
            await store.open()
            await store.close()

    with Pooler(postgres_url, sessions=3) as pooler:
        asyncio.run(story(pooler.url))

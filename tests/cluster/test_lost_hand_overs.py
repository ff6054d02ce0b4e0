"""Two nodes that die with a task between them, in any order: nobody waits for the lease to end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.cluster.messages import TaskHandover
from perdure.dispatch.parked_polls import ParkedPoller
from perdure.engine.activity_tasks import ReleaseActivity
from tests.cluster.among import Node, a_node
from tests.cluster.test_lent_polls import (
    Way,
    any_distance,
    borrower,
    given,
    lent,
    parked,
    play,
)
from tests.engine.engine_harness import DONE, an_activity, completion, result

KINDS = ("workflow", "activity")
any_kind = pytest.mark.parametrize("kind", KINDS)


async def hand_over(
    one: Node, two: Node, kind: str, before: Callable[[], None] = lambda: None
) -> Any:
    """A task that the first node has leased to a poll of the second one, which is returned.

    `before` is called when all but that has happened.
    """
    if kind == "workflow":
        poll = await lent(one, two, "p1")
        before()
        await one.start()
    else:
        await one.start()
        task = await one.take()
        poll = await lent(one, two, "p1", "activity")
        before()
        await one.play(completion(task, an_activity()))
    return poll


async def finish(node: Node, task: Any, kind: str) -> None:
    """Whoever has the task is heard."""
    await node.play(completion(task, DONE) if kind == "workflow" else result(task))


def other_than(kind: str) -> str:
    (other,) = set(KINDS) - {kind}
    return other


def die_as_borrower(node: Node) -> Way:
    """Nothing of it goes out any more, and nobody answers for what it had under way."""
    never_take_back(node)
    way = Way(node)
    way.holds = (TaskHandover,)
    return way


def never_take_back(node: Node) -> None:
    """However slow the machine is: what is under way stays so until somebody answers."""
    setattr(borrower(node), "tick", lambda: None)  # noqa: B010


def die_before_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """No poll that was handed a task answers its worker."""
    monkeypatch.setattr(ParkedPoller, "given", lambda self, delivery: None)


@any_kind
def test_a_poll_that_ends_before_anybody_looked_gives_its_task_back(
    migrated_url: str, kind: str
) -> None:
    """The borrower died after its commit, the poll went home empty: two looks later it is ready."""

    async def story(one: Node, two: Node) -> None:
        die_as_borrower(one)
        poll = await hand_over(one, two, kind)
        (poller,) = two.server.parked_polls.awaiting()
        poller.time_is_up()
        assert await given(poll) is None
        again = parked(two, "p2", kind)
        await two.look()
        assert not again.done(), "its node may still take it back"
        await two.look()
        task = await given(again)
        assert task.attempt == (2 if kind == "workflow" else 1)
        await finish(two, task, kind)

    play(migrated_url, story)


@any_kind
def test_a_poll_that_ended_leaves_others_their_leases(migrated_url: str, kind: str) -> None:
    """Its id came again, at another node, and was given a task there: that is nobody else's."""

    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1", kind)
        (poller,) = two.server.parked_polls.awaiting()
        poller.time_is_up()
        assert await given(poll) is None
        await one.until(lambda: borrower(one).count == 0)
        await one.start()
        if kind == "activity":
            await one.work(an_activity())
        task = await given(parked(one, "p1", kind))
        for _ in range(3):
            await two.look()
        await two.idle()
        await finish(one, task, kind)

    play(migrated_url, story)


@any_kind
def test_a_poll_that_comes_again_keeps_what_it_was_given(migrated_url: str, kind: str) -> None:
    """Its empty answer was lost, so it is repeated where it was: it finds its task."""

    async def story(one: Node, two: Node) -> None:
        die_as_borrower(one)
        poll = await hand_over(one, two, kind)
        (poller,) = two.server.parked_polls.awaiting()
        poller.time_is_up()
        assert await given(poll) is None
        again = parked(two, "p1", kind)
        await two.until(lambda: two.server.parked_polls.count == 1)
        for _ in range(3):
            await two.look()
        task = await given(again)
        assert task.attempt == 1
        await two.idle()
        await finish(two, task, kind)

    play(migrated_url, story)


@any_kind
def test_a_poll_that_waits_is_not_taken_for_one_of_the_other_kind(
    migrated_url: str, kind: str
) -> None:
    """A worker may call a poll for workflows and one for activities the same."""

    async def story(one: Node, two: Node) -> None:
        die_as_borrower(one)
        poll = await hand_over(one, two, kind)
        other = await lent(one, two, "p1", other_than(kind))
        await two.look()
        task = await given(poll)
        assert not other.done()
        await finish(two, task, kind)
        other.cancel()
        await asyncio.wait({other})

    play(migrated_url, story)


@any_kind
def test_a_poll_that_ended_is_not_taken_for_one_of_the_other_kind(
    migrated_url: str, kind: str
) -> None:
    async def story(one: Node, two: Node) -> None:
        die_as_borrower(one)
        polls = [await hand_over(one, two, kind), await lent(one, two, "p1", other_than(kind))]
        for poller in two.server.parked_polls.awaiting():
            poller.time_is_up()
        assert [await given(poll) for poll in polls] == [None, None]
        again = parked(two, "p2", kind)
        for _ in range(2):
            await two.look()
        await finish(two, await given(again), kind)

    play(migrated_url, story)


def test_a_task_that_another_poll_took_is_not_given_back(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        way = die_as_borrower(one)
        poll = await hand_over(one, two, "activity")
        (poller,) = two.server.parked_polls.awaiting()
        poller.time_is_up()
        assert await given(poll) is None
        other = parked(two, "p2", "activity")
        await two.until(lambda: two.server.parked_polls.count == 1)
        way.let_go()
        task = await given(other)
        for _ in range(3):
            await two.look()
        await two.idle()
        assert task.lease_number == 1
        await finish(two, task, "activity")

    play(migrated_url, story)


@any_distance
@any_kind
def test_a_worker_whose_node_died_with_its_answer_asks_another(
    migrated_url: str, kind: str, monkeypatch: pytest.MonkeyPatch, *, near: bool
) -> None:
    """The lender took the task, said so, and died; the worker repeats its poll at the borrower."""

    async def story(one: Node, two: Node) -> None:
        never_take_back(one)
        with monkeypatch.context() as patch:
            poll = await hand_over(one, two, kind, lambda: die_before_answering(patch))
            await one.until(lambda: not borrower(one)._under_way)
        again = parked(one, "p1", kind)
        await one.until(lambda: one.server.parked_polls.count == 1)
        await one.look()
        task = await given(again)
        assert task.attempt == 1
        await finish(one, task, kind)
        poll.cancel()
        await asyncio.wait({poll})

    play(migrated_url, story, near=near)


@any_kind
def test_a_third_node_finds_what_two_dead_ones_had_between_them(
    migrated_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(one: Node, two: Node) -> None:
        with monkeypatch.context() as patch:
            die_as_borrower(one)
            poll = await hand_over(one, two, kind, lambda: die_before_answering(patch))
        async with a_node(migrated_url) as three:
            await three.look()
            again = parked(three, "p1", kind)
            await three.until(lambda: three.server.parked_polls.count == 1)
            await three.look()
            task = await given(again)
            assert task.attempt == 1
            await finish(three, task, kind)
        poll.cancel()
        await asyncio.wait({poll})

    play(migrated_url, story)


def test_what_is_given_back_has_begun_nothing(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release is fenced: it names one attempt, and says that nobody saw it."""

    async def story(one: Node, two: Node) -> None:
        die_as_borrower(one)
        poll = await hand_over(one, two, "activity")
        (poller,) = two.server.parked_polls.awaiting()
        poller.time_is_up()
        assert await given(poll) is None
        sent: list[Any] = []
        monkeypatch.setattr(two.engine, "send", sent.append)
        for _ in range(4):
            await two.look()
        (release,) = sent
        assert isinstance(release, ReleaseActivity)
        assert not release._was_seen

    play(migrated_url, story)

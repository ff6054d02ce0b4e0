"""A task meets a poll that is parked at another node: nothing may depend on that going well."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.cluster.messages import LentPoll, LentQueue, PollOffer, TaskHandover, pack, unpack
from perdure.cluster.poll_borrower import Borrower
from perdure.cluster.poll_lender import Lender
from perdure.core.limits import LENT_POLLS_PER_QUEUE_MAX
from perdure.core.rejection import Rejection
from perdure.core.run.status import RunStatus
from perdure.dispatch.delivery import ActivityDelivery, WorkflowDelivery
from perdure.engine.fleet import DeregisterWorker
from tests.cluster.among import Node, several
from tests.engine.ending import must_end
from tests.engine.engine_harness import (
    ACTIVITIES,
    DONE,
    NAMESPACE,
    PATIENCE,
    WORKFLOWS,
    an_activity,
    cancel,
    completion,
    result,
)
from tests.engine.invariants import check_database
from tests.store.nodes import session

Story = Callable[[Node, Node], Coroutine[Any, Any, None]]
any_distance = pytest.mark.parametrize("near", [True, False], ids=["near", "far"])


def play(url: str, story: Story, *, near: bool = True) -> None:
    async def whole() -> None:
        async with several(url, near=near) as (one, two):
            await one.register()
            await two.look()
            assert (NAMESPACE, "w1") in two.engine.workers
            await story(one, two)
            await check_database(url)

    with must_end(seconds=180):
        try:
            asyncio.run(whole())
        except ExceptionGroup as group:
            raise (group.exceptions[0] if len(group.exceptions) == 1 else group) from None


def lender(node: Node) -> Lender:
    assert node.server.cluster is not None
    return node.server.cluster.lender


def borrower(node: Node) -> Borrower:
    assert node.server.cluster is not None
    return node.server.cluster.borrower


def parked(node: Node, poll_id: str, kind: str = "workflow", worker: str = "w1") -> Any:
    """A poll that waits."""
    return asyncio.ensure_future(node.poll_as(poll_id, kind, worker, seconds=PATIENCE))


async def given(poll: Any) -> Any:
    """The task that a poll gets."""
    answer = await asyncio.wait_for(poll, PATIENCE)
    return answer.delivery


async def lent(one: Node, two: Node, poll_id: str, kind: str = "workflow") -> Any:
    """A poll that is parked at the second node, and that the first one knows of."""
    key = WORKFLOWS if kind == "workflow" else ACTIVITIES
    lender(two).wanted_by(one_id(one), key, "")
    before = borrower(one).count
    poll = parked(two, poll_id, kind)
    await one.until(lambda: borrower(one).count > before)
    return poll


def one_id(node: Node) -> str:
    assert node.server.cluster is not None
    return node.server.cluster._node_id


class Way:
    """What a node sends on its way; a test says what becomes of it."""

    def __init__(self, node: Node) -> None:
        assert node.server.cluster is not None
        self._post = node.server.cluster.errands
        self._carry = self._post.carry
        self.held: list[tuple[str, bytes]] = []
        self.sent: list[Any] = []
        self.holds: tuple[type, ...] = ()
        self.times = 1
        setattr(self._post, "carry", self._take)  # noqa: B010 (mypy minds the plain way)

    def _take(self, node: str, errand: bytes) -> None:
        self.sent.append(unpack(errand))
        if isinstance(self.sent[-1], self.holds):
            self.held.append((node, errand))
            return
        for _ in range(self.times):
            self._carry(node, errand)

    def let_go(self) -> None:
        """What was held back arrives after all."""
        held, self.held = self.held, []
        for node, errand in held:
            self._carry(node, errand)

    def count(self, kind: type) -> int:
        return sum(isinstance(errand, kind) for errand in self.sent)


async def ready_rows(url: str) -> int:
    async with session(url) as looking:
        return int(await looking.fetchval("select count(*) from perdure.ready"))


async def give_up(node: Node) -> None:
    """So much time passes that nobody waits for a receipt any more."""
    for _ in range(3):
        borrower(node).tick()
    await node.idle()


@any_distance
def test_a_task_goes_to_a_lent_poll_without_being_offered(migrated_url: str, *, near: bool) -> None:
    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        looked: list[object] = []
        setattr(two.server.store, "load_ready", looked.append)  # noqa: B010
        run_id = await one.start()
        task = await given(poll)
        assert isinstance(task, WorkflowDelivery)
        assert (task.run_id, task.attempt, task.size.events) == (run_id, 1, 2)

        poll = await lent(two, one, "a1", "activity")
        await two.play(completion(task, an_activity()))
        attempt = await given(poll)
        assert isinstance(attempt, ActivityDelivery)

        poll = await lent(one, two, "p2")
        await one.play(result(attempt))
        task = await given(poll)
        assert task.size.events == 5
        await two.play(completion(task, DONE))

        assert looked == []
        (run,) = await check_database(migrated_url)
        assert run.status is RunStatus.COMPLETED
        assert borrower(one).count == borrower(two).count == 0

    play(migrated_url, story, near=near)


def test_what_was_handed_over_nearby_needs_no_look_at_the_disk(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(one: Node, two: Node) -> None:
        loads: list[object] = []
        for node in (one, two):
            monkeypatch.setattr(node.server.store, "load_runs", loads.append)
        poll = await lent(one, two, "p1")
        await one.start()
        task = await given(poll)
        poll = await lent(two, one, "a1", "activity")
        await two.play(completion(task, an_activity()))
        attempt = await given(poll)
        poll = await lent(one, two, "p2")
        await one.play(result(attempt))
        await two.play(completion(await given(poll), DONE))
        assert loads == []

    play(migrated_url, story)


@any_distance
def test_a_node_that_had_no_poll_is_told_of_those_of_others(
    migrated_url: str, *, near: bool
) -> None:
    """The first task is claimed after a hint; for the second one the poll is known."""

    async def story(one: Node, two: Node) -> None:
        way = Way(one)
        poll = parked(two, "p1")
        await two.until(lambda: two.server.parked_polls.count == 1)
        await one.start("first")
        assert isinstance(await given(poll), WorkflowDelivery)
        assert way.count(TaskHandover) == 0

        poll = parked(two, "p2")
        await one.until(lambda: borrower(one).count == 1)
        await one.start("second")
        assert isinstance(await given(poll), WorkflowDelivery)
        assert way.count(TaskHandover) == 1

    play(migrated_url, story, near=near)


@any_distance
@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_a_hand_over_that_is_lost_is_taken_back(
    migrated_url: str, kind: str, *, near: bool
) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.start()
        task = await one.take()
        await one.play(completion(task, an_activity()))
        attempt = await one.take_activity()
        if kind == "workflow":
            poll = await lent(one, two, "p1")
            way = Way(one)
            way.holds = (TaskHandover,)
            await one.play(result(attempt))
        else:
            await one.play(result(attempt))
            task = await one.take()
            poll = await lent(one, two, "p1", "activity")
            way = Way(one)
            way.holds = (TaskHandover,)
            await one.play(completion(task, an_activity()))
        assert way.count(TaskHandover) == 1
        assert await ready_rows(migrated_url) == 0, "it is leased"
        assert not poll.done()

        # Twice is too early.
        borrower(one).tick()
        borrower(one).tick()
        await one.idle()
        assert not poll.done()
        borrower(one).tick()
        again = await given(poll)
        assert again.attempt == 2
        assert way.count(TaskHandover) == 1, "who was not heard of is not counted on"

        # And if it comes after all, nobody gets it a second time.
        late = parked(two, "p2", kind)
        await two.until(lambda: two.server.parked_polls.count == 1)
        way.let_go()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(late), 0.2)
        late.cancel()
        await asyncio.wait({late})

    play(migrated_url, story, near=near)


@any_distance
def test_errands_that_come_twice_change_nothing(migrated_url: str, *, near: bool) -> None:
    async def story(one: Node, two: Node) -> None:
        for node in (one, two):
            Way(node).times = 2
        tasks = []
        for number in range(6):
            poll, spare = await lent(one, two, f"p{number}"), await lent(one, two, f"s{number}")
            await one.start(f"order {number}")
            done, _ = await asyncio.wait({poll, spare}, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1, "one task for two polls"
            # Whatever else was carried for the first one: the second poll gets the second task.
            await one.start(f"another order {number}")
            tasks += [(await each).delivery for each in (poll, spare)]
            await one.until(lambda: borrower(one).count == 0)
        assert len({task.task_id for task in tasks}) == 12
        assert {task.attempt for task in tasks} == {1}

    play(migrated_url, story, near=near)


@any_distance
def test_a_poll_that_has_left_when_its_task_arrives_refuses_it(
    migrated_url: str, *, near: bool
) -> None:
    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        way = Way(two)
        way.holds = (PollOffer,)
        poll.cancel()
        await asyncio.wait({poll})
        await two.idle()
        assert borrower(one).count == 1, "it does not know better"

        run_id = await one.start()
        await two.until(lambda: any(telling.refused for telling in way.sent))
        way.let_go()
        task = await one.take()
        assert (task.run_id, task.attempt) == (run_id, 2)
        assert borrower(one).count == 0

    play(migrated_url, story, near=near)


@any_distance
def test_a_lease_that_is_refused_uses_up_no_attempt(migrated_url: str, *, near: bool) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.start()
        task = await one.take()
        poll = await lent(one, two, "p1", "activity")
        way = Way(two)
        way.holds = (PollOffer,)
        poll.cancel()
        await asyncio.wait({poll})
        await two.idle()
        await one.play(completion(task, an_activity()))
        await two.until(lambda: any(telling.refused for telling in way.sent))
        way.let_go()
        attempt = await one.take_activity()
        assert (attempt.attempt, attempt.lease_number) == (1, 2)
        await one.play(result(attempt))

    play(migrated_url, story, near=near)


def test_another_poll_of_the_same_worker_takes_the_task_of_one_that_has_left(
    migrated_url: str,
) -> None:
    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        other = parked(two, "p2")
        await two.until(lambda: two.server.parked_polls.count == 2)
        way = Way(two)
        way.holds = (PollOffer,)
        poll.cancel()
        await asyncio.wait({poll})
        await one.start()
        task = await given(other)
        assert task.attempt == 1
        way.let_go()

    play(migrated_url, story)


def test_a_node_that_dies_with_a_hand_over_costs_only_time(migrated_url: str) -> None:
    """Nothing of it arrives anywhere any more; then another process begins in its place."""

    async def story(one: Node, two: Node) -> None:
        doomed = await lent(one, two, "p1")
        way = Way(two)
        way.holds = (PollOffer,)
        # It takes the task and is gone before anybody heard of it.
        gone = Way(one)
        gone.holds = (TaskHandover,)
        run_id = await one.start()
        assert one.server.cluster is not None
        one.server.cluster.errands.gone(one_id(two))
        task = await one.take()
        assert (task.run_id, task.attempt) == (run_id, 2)
        assert borrower(one).count == 0
        doomed.cancel()
        await asyncio.wait({doomed})

    play(migrated_url, story)


@any_distance
def test_a_task_whose_node_died_before_it_was_sent_is_found_by_its_poll(
    migrated_url: str, *, near: bool
) -> None:
    """The lease is on disk and nobody knows: the node of the poll finds it when it looks. The
    hand-over that comes late is then for nobody, and nothing is taken back."""

    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        way = Way(one)
        way.holds = (TaskHandover,)
        await one.start()
        await two.idle()
        assert not poll.done()
        await two.look()
        task = await given(poll)
        assert task.attempt == 1

        way.let_go()
        await one.until(lambda: not borrower(one)._under_way)
        await give_up(one)
        await two.play(completion(task, DONE))

    play(migrated_url, story, near=near)


def test_a_registration_that_ended_gets_nothing_more(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        way = Way(two)
        way.holds = (PollOffer,)
        await two.play(DeregisterWorker(NAMESPACE, "w1", None))
        assert await given(poll) is None
        # The hint that it is gone may be late: then the task comes back.
        await one.until(lambda: borrower(one).count == 0)
        await one.register("w2")
        run_id = await one.start()
        task = await one.take("w2")
        assert (task.run_id, task.attempt) == (run_id, 1)

    play(migrated_url, story)


def test_polls_of_another_registration_than_ours_are_not_used(migrated_url: str) -> None:
    """The worker registered anew; this node has not heard of it, or the other one has not."""

    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        worker = one.engine.workers[NAMESPACE, "w1"]
        known, worker.registered_at = worker.registered_at, 7
        lender(two)._told.clear()
        lender(two)._note(WORKFLOWS)
        await one.until(lambda: borrower(one).count == 0)
        worker.registered_at = known
        lender(two)._told.clear()
        lender(two)._note(WORKFLOWS)
        await one.until(lambda: borrower(one).count == 1)
        await one.start()
        assert isinstance(await given(poll), WorkflowDelivery)

    play(migrated_url, story)


def test_a_node_that_drains_takes_its_polls_back(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        polls = [await lent(one, two, f"p{number}") for number in range(3)]
        assert borrower(one).count == 3
        two.server.drain()
        assert [await given(poll) for poll in polls] == [None] * 3
        await one.until(lambda: borrower(one).count == 0)

    play(migrated_url, story)


def test_only_some_polls_are_lent_and_those_are_the_last_to_be_used_here(
    migrated_url: str,
) -> None:
    async def story(one: Node, two: Node) -> None:
        first = await lent(one, two, "p0")
        polls = [parked(two, f"p{number}") for number in range(1, LENT_POLLS_PER_QUEUE_MAX + 3)]
        await one.until(lambda: borrower(one).count == LENT_POLLS_PER_QUEUE_MAX)
        await two.until(lambda: two.server.parked_polls.count == len(polls) + 1)
        way = Way(two)
        await two.start()
        done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        assert way.count(PollOffer) == 0, "none of those that are lent"
        assert not first.done()
        for poll in (first, *polls):
            poll.cancel()
        await asyncio.wait([first, *polls])
        await one.until(lambda: borrower(one).count == 0)

    play(migrated_url, story)


def test_a_lease_that_was_not_committed_leaves_the_poll_where_it_was(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        store = one.server.store
        commit, tries = store.commit, []

        async def failing(changes: Any) -> None:
            tries.append(borrower(one).count)
            if len(tries) == 1:
                raise RuntimeError("injected")
            await commit(changes)

        monkeypatch.setattr(store, "commit", failing)
        with pytest.raises(RuntimeError):
            await one.start("broken")
        assert borrower(one).count == 1
        await one.start("whole")
        assert (await given(poll)).workflow_id == "whole"
        assert tries == [0, 0]

    play(migrated_url, story)


def test_a_poll_that_left_while_a_beat_had_it_does_not_come_back(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        reserved = borrower(one).reserve(WORKFLOWS, "shop")
        assert reserved is not None
        way = Way(two)
        poll.cancel()
        await asyncio.wait({poll})
        await one.until(lambda: way.count(PollOffer) > 0 and not borrower(one)._reserved)
        borrower(one).restore(reserved)
        assert borrower(one).count == 0

    play(migrated_url, story)


@any_distance
def test_a_run_too_large_to_be_carried_is_read_from_disk(migrated_url: str, *, near: bool) -> None:
    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        arguments = b'"' + b"x" * 100_000 + b'"'
        await one.start(arguments=arguments)
        task = await given(poll)
        assert len(task.arguments) >= 100_000
        await two.play(completion(task, DONE))

    play(migrated_url, story, near=near)


def test_a_cancel_on_the_way_leaves_no_trace(migrated_url: str) -> None:
    """The run is closed between the commit and the arrival: the worker finds out by itself."""

    async def story(one: Node, two: Node) -> None:
        poll = await lent(one, two, "p1")
        way = Way(one)
        way.holds = (TaskHandover,)
        await one.start()
        await one.play(cancel())
        way.let_go()
        task = await given(poll)
        with pytest.raises(Rejection):
            await two.play(completion(task, DONE))

    play(migrated_url, story)


def test_nonsense_is_left_alone(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        assert one.server.cluster is not None
        errands = one.server.cluster.errands
        poll = parked(one, "p1")
        await one.until(lambda: one.server.parked_polls.count == 1)
        for run in (None, b"", b"\x93\x01"):
            stranger = TaskHandover(
                *("stranger", 1, WORKFLOWS, 99, "shop", "no run", 0, 1, "w1"), 2**62, run
            )
            errands.heard(pack(stranger))
        errands.heard(b"")
        errands.heard(pack(PollOffer("stranger", 1, [], [1, 2], [3, 4])))
        await one.idle()
        assert not poll.done()
        await one.start()
        assert isinstance(await given(poll), WorkflowDelivery)

    play(migrated_url, story)


def test_the_newest_offers_are_remembered_and_older_ones_change_nothing(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.cluster.poll_borrower.NODES_REMEMBERED_MAX", 2)

    def offer(node: str, number: int, *polls: int) -> PollOffer:
        lent = [LentPoll(poll, "w1", registered_at, f"p{poll}", True, True) for poll in polls]
        return PollOffer(node, number, [LentQueue(WORKFLOWS, lent)], [], [])

    registered_at = 0

    async def story(one: Node, two: Node) -> None:
        nonlocal registered_at
        registered_at = one.engine.workers[(NAMESPACE, "w1")].registered_at
        polls = borrower(one)
        for number, node in enumerate(("a", "b", "c"), start=1):
            polls.hear(offer(node, 7, 1))
            assert polls.count == number

        # Both that are remembered: what was sent before changes nothing any more.
        for node in ("b", "c"):
            polls.hear(offer(node, 7, 1, 2))
            polls.hear(offer(node, 6))
            assert polls.count == 3
        polls.hear(offer("c", 8))
        assert polls.count == 2
        # The one that was heard of longest ago is not: its next offer counts, whatever its number.
        polls.hear(offer("a", 1))
        assert polls.count == 1

    play(migrated_url, story)

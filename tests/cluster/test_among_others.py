"""Any node answers any request: what one decided the others know, with hints or without."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from perdure.clock import FollowingClock
from perdure.core.rejection import (
    DuplicateNotAllowed,
    InstanceNotFound,
    Rejection,
    StaleAttempt,
    WorkerNotRegistered,
)
from perdure.core.run.status import RunStatus
from perdure.dispatch.delivery import ActivityDelivery, WorkflowDelivery
from perdure.dispatch.polls import PollStatus
from perdure.engine.fleet import DeregisterWorker
from perdure.engine.run_commands import CommandTarget
from perdure.engine.updates import UpdateRun
from perdure.store.interface import Instance
from tests.cluster.among import Node, Skewed, a_node, several
from tests.engine.ending import must_end
from tests.engine.engine_harness import (
    DONE,
    NAMESPACE,
    a_timer,
    an_activity,
    cancel,
    completion,
    result,
    signal,
    start,
)
from tests.engine.invariants import check_database
from tests.store.nodes import session
from tests.support.clock import SECOND

Story = Callable[[Node, Node], Coroutine[Any, Any, None]]
every_way = pytest.mark.parametrize("hints", ["live", "garbled", "off"])


def play(url: str, story: Story, **options: Any) -> None:
    async def whole() -> None:
        async with several(url, **options) as (one, two):
            await story(one, two)

    with must_end(seconds=180):
        try:
            asyncio.run(whole())
        except ExceptionGroup as group:
            raise (group.exceptions[0] if len(group.exceptions) == 1 else group) from None


async def told(node: Node, poll: "asyncio.Task[Any]", hints: str) -> Any:
    """What a parked poll gets: by a hint, or, when nobody tells anything, by looking."""
    if hints == "off":
        await node.idle()
        assert not poll.done(), "somebody told"
        await node.look()
    return await asyncio.wait_for(poll, 90)


@every_way
def test_a_run_wanders_between_nodes(migrated_url: str, hints: str) -> None:
    """Every step on another node than the one before."""

    async def story(one: Node, two: Node) -> None:
        await one.register("w1")
        # A late hint of a workflow task may end a poll for activities of a worker that takes both.
        await one.register("w2")
        poll = await two.park()
        run_id = await one.start()
        task = await told(two, poll, hints)
        assert isinstance(task, WorkflowDelivery)

        poll = await two.park("activity", "w2")
        await one.play(completion(task, an_activity()))
        attempt = await told(two, poll, hints)
        assert isinstance(attempt, ActivityDelivery)

        poll = await two.park()
        await one.play(result(attempt))
        task = await told(two, poll, hints)
        assert task.run_id == run_id
        assert task.size.events == 5
        await one.play(completion(task, DONE))

        (run,) = await check_database(migrated_url)
        assert run.status is RunStatus.COMPLETED

    play(migrated_url, story, hints=hints)


@every_way
def test_a_worker_polls_where_it_did_not_register(migrated_url: str, hints: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register()
        await two.start()
        assert isinstance(await two.poll(), WorkflowDelivery)

    play(migrated_url, story, hints=hints)


@every_way
def test_a_worker_that_said_goodbye_elsewhere_gets_nothing(migrated_url: str, hints: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register()
        poll = await two.park()
        await one.play(DeregisterWorker(NAMESPACE, "w1", None))
        assert await told(two, poll, hints) is None
        await one.start()
        with pytest.raises(WorkerNotRegistered):
            await two.poll(seconds=0)

    play(migrated_url, story, hints=hints)


@every_way
def test_who_waits_for_news_of_a_run_hears_of_them_from_elsewhere(
    migrated_url: str, hints: str
) -> None:
    async def story(one: Node, two: Node) -> None:
        run_id = await one.start()
        await two.look()
        with two.server.watchers.watching(run_id) as watch:
            if hints != "off":
                assert one.server.cluster is not None
                remote = one.server.cluster.hints._remote
                await one.until(lambda: run_id in remote)
            await one.play(signal())
            assert await told(two, asyncio.ensure_future(watch.wait(20)), hints)

    play(migrated_url, story, hints=hints)


def test_what_was_answered_on_one_node_is_answered_the_same_on_the_other(
    migrated_url: str,
) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register()
        run_id = await one.start()
        known = {"request_id": "r1", "digest": "d"}
        first, again = await one.play(signal(**known)), await two.play(signal(**known))
        assert first.command_id == again.command_id
        with pytest.raises(Rejection):
            await two.play(signal(request_id="r1", digest="another"))
        with pytest.raises(Rejection):
            await two.play(start())
        reused = await two.play(start(use_existing=True))
        assert reused.run_id == run_id

        task = await one.take()
        completing = completion(task, an_activity())
        replies = [await node.play(completing) for node in (one, two, one)]
        assert len({reply.receipt.created_task_ids[0] for reply in replies}) == 1
        await two.look()
        attempt = await two.take_activity()
        await one.play(result(attempt))
        with pytest.raises(StaleAttempt):
            await two.play(result(attempt))
        (run,) = await check_database(migrated_url)
        kinds = [event["event_type"] for event in await two.events(run.run_id)]
        assert kinds.count("SignalReceived") == kinds.count("ActivityCompleted") == 1

    play(migrated_url, story, hints="off")


@pytest.mark.parametrize("kind", ["workflow", "activity"])
def test_a_lease_whose_node_died_before_it_answered_goes_to_the_repeated_poll(
    migrated_url: str, kind: str
) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register()
        await one.start()
        if kind == "activity":
            await one.work(an_activity())
        given = await one.poll_as("p1", kind, seconds=5)
        assert given.status is PollStatus.LEASED

        # The answer never arrives; the same poll comes to the other node, and a new one as well.
        asked = [
            asyncio.ensure_future(two.poll_as(poll_id, kind, seconds=20))
            for poll_id in ("p2", "p1")
        ]
        await two.until(lambda: two.server.parked_polls.count == 2)
        await two.look()
        again = await asyncio.wait_for(asked[1], 90)
        assert again == given
        assert not asked[0].done()
        asked[0].cancel()
        await asyncio.wait({asked[0]})
        await two.look()
        assert two.server.parked_polls.count == 0

    play(migrated_url, story, hints="off")


def test_two_polls_on_two_nodes_never_get_the_same_task(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register("w1")
        await two.register("w2")
        tasks = []
        for number in range(8):
            polls = [await one.park(), await two.park(worker_id="w2")]
            await (one, two)[number % 2].start(f"order {number}")
            await asyncio.gather(one.look(), two.look())
            await asyncio.wait(polls, timeout=90, return_when=asyncio.FIRST_COMPLETED)
            (done,) = [poll for poll in polls if poll.done()]
            tasks.append(done.result().task_id)
            for poll in polls:
                poll.cancel()
            await asyncio.wait(polls)
        assert len(set(tasks)) == 8
        await check_database(migrated_url)

    play(migrated_url, story)


def test_two_nodes_with_wrong_clocks_go_by_the_database(migrated_url: str) -> None:
    """One machine is an hour early, the other late: a timer of a second takes a second."""

    async def whole() -> None:
        async with AsyncExitStack() as stack:
            one, two = [
                await stack.enter_async_context(
                    a_node(migrated_url, clock=FollowingClock(Skewed(seconds=wrong)))
                )
                for wrong in (-3600, 3600)
            ]
            for node in (one, two):
                true = await node.lookout._store.read_clock()
                assert abs(node.lookout._clock.now() - true) < 60 * SECOND
            await one.register()
            for node, other in ((one, two), (two, one)):
                run_id = await node.start(f"order on {node is one}")
                task = await other.take()
                poll = await one.park()
                before = await two.lookout._store.read_clock()
                await node.play(completion(task, a_timer(1)))
                fired = await asyncio.wait_for(poll, 90)
                after = await two.lookout._store.read_clock()
                assert fired.run_id == run_id
                assert SECOND <= after - before < 90 * SECOND
                await other.play(completion(fired, DONE))
            await check_database(migrated_url)

    with must_end(seconds=180):
        asyncio.run(whole())


def test_a_node_goes_on_when_the_clock_of_the_database_goes_back(
    migrated_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen from the node, which is then ahead: it must not wait until it is not."""

    async def whole() -> None:
        machine = Skewed(seconds=0)
        clock = FollowingClock(machine)
        async with a_node(migrated_url, clock=clock) as node:
            await node.register()
            machine.set_ahead(seconds=3600)
            for _ in range(12):
                await node.look()
            assert 3500 * SECOND < clock.ahead_us < 3601 * SECOND
            await node.lookout._store.note_life()
            joined = FollowingClock(Skewed(seconds=-50))
            async with a_node(migrated_url, clock=joined):
                assert 3500 * SECOND < joined.ahead_us < 3601 * SECOND
                assert abs(joined.now() - clock.now()) < 60 * SECOND
            await node.start()
            await node.work(a_timer(1))
            fired = await asyncio.wait_for(node.poll(), 90)
            assert isinstance(fired, WorkflowDelivery)
            await node.play(completion(fired, DONE))
        await check_database(migrated_url)

    with must_end(seconds=180), caplog.at_level("WARNING"):
        asyncio.run(whole())
    (told,) = [r.getMessage() for r in caplog.records if "clock went back" in r.getMessage()]
    assert "3600" in told or "3599" in told


def test_a_timer_whose_node_has_gone_is_fired_by_another(migrated_url: str) -> None:
    async def whole() -> None:
        async with a_node(migrated_url) as two:
            async with a_node(migrated_url) as one:
                await one.register()
                await one.start()
                await one.work(a_timer(1))
            fired = await asyncio.wait_for(two.poll(), 90)
            assert isinstance(fired, WorkflowDelivery)

    with must_end(seconds=180):
        asyncio.run(whole())


def test_a_run_that_somebody_holds_keeps_nobody_from_others(migrated_url: str) -> None:
    """A session of somebody else sits on one run: that one waits, is refused, and then goes on."""

    async def story(one: Node, two: Node) -> None:
        held = await one.start("held")
        await one.start("free")
        async with session(migrated_url) as other:
            async with other.transaction():
                query = "select from perdure.open_run where run_id = $1 for update"
                await other.execute(query, held)
                waiting = asyncio.ensure_future(one.play(signal("held")))
                before = 0
                for number in range(5):
                    await one.play(signal("free", name=f"go {number}"))
                    await two.play(signal("free", name=f"went {number}"))
                    before += not waiting.done()
                assert before, "the others waited as well"
                ended = (await asyncio.gather(waiting, return_exceptions=True))[0]
                assert getattr(ended, "reason", None) == "storage_busy", ended
                waiting = asyncio.ensure_future(two.play(signal("held")))
                await two.idle()
            await asyncio.wait_for(waiting, 90)
        await check_database(migrated_url)

    play(migrated_url, story)


# Memory that may be old ---------------------------------------------------------------------------


def test_a_node_whose_memory_is_old_refuses_nothing_for_it(migrated_url: str) -> None:
    """The first node remembers the run with its first task; the second has long gone on."""

    async def story(one: Node, two: Node) -> None:
        await one.register()
        await one.start()
        task = await one.poll()
        assert isinstance(task, WorkflowDelivery)
        await two.play(completion(task, an_activity()))
        attempt = await two.poll("activity")
        assert isinstance(attempt, ActivityDelivery)
        assert one.server.engine._staleness == 0.0, "it trusts its memory"

        await one.play(result(attempt))

        assert one.server.engine._staleness > 0.0
        (run,) = await check_database(migrated_url)
        assert run.history_count == 5

    play(migrated_url, story, hints="off")


def test_a_node_that_is_alone_with_a_run_loads_it_no_more(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.register()
        await one.start()
        task = await one.poll()
        assert isinstance(task, WorkflowDelivery)
        loads: list[object] = []
        load = one.server.store.load_runs

        async def counted(*given: Any) -> Any:
            loads.append(given)
            return await load(*given)

        monkeypatch.setattr(one.server.store, "load_runs", counted)

        await one.play(completion(task, an_activity()))
        assert loads == []

        # A repeated report writes nothing that would show whether memory was right.
        await one.play(completion(task, an_activity()))
        assert len(loads) == 1

    play(migrated_url, story, hints="off")


def test_an_id_that_is_new_is_not_looked_up(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken for new, and the commit finds out; then the answer is what it always was."""

    async def story(one: Node, two: Node) -> None:
        looks: list[object] = []
        find = one.server.store.find_current

        async def counted(instances: Any) -> Any:
            looks.extend(instances)
            return await find(instances)

        monkeypatch.setattr(one.server.store, "find_current", counted)
        await one.start("new")
        assert looks == []

        # Known here, known there, known to be closed, twice in one beat, and after a signal.
        for known in ("new", "there", "closed"):
            if known == "there":
                await two.start(known)
            elif known == "closed":
                await two.start(known)
                await two.play(cancel(known))
            with pytest.raises(DuplicateNotAllowed):
                await one.play(start(known))
        one.engine._familiarity = 0.0
        first, second = await one.together(start("twice"), start("twice"))
        assert isinstance(second, DuplicateNotAllowed)
        unknown, begun = await one.together(signal("late"), start("late"))
        assert isinstance(unknown, InstanceNotFound)
        begun, heard = await one.together(start("early"), signal("early"))
        assert heard.run_id == begun.run_id
        runs = await check_database(migrated_url)
        names = sorted(run.workflow_id for run in runs)
        assert names == ["closed", "early", "late", "new", "there", "twice"]
        assert first.is_new

    play(migrated_url, story, hints="off")


def test_a_node_that_is_asked_for_known_ids_looks_first(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(one: Node, two: Node) -> None:
        await one.start()
        for _ in range(3):
            with pytest.raises(DuplicateNotAllowed):
                await one.play(start())
        assert one.engine._familiarity > 0.05
        assert one.engine._staleness == 0.0, "that says nothing about memory"
        losses: list[object] = []
        commit = one.server.store.commit

        async def counted(changes: Any) -> None:
            losses.append(changes)
            await commit(changes)

        monkeypatch.setattr(one.server.store, "commit", counted)
        with pytest.raises(DuplicateNotAllowed):
            await one.play(start())
        assert losses == []

    play(migrated_url, story, hints="off")


def test_two_nodes_that_open_one_id_at_once_open_it_once(migrated_url: str) -> None:
    async def story(one: Node, two: Node) -> None:
        for number in range(5):
            replies = await asyncio.gather(
                *(node.play(start(f"order {number}")) for node in (one, two, one, two)),
                return_exceptions=True,
            )
            refused = [reply for reply in replies if isinstance(reply, DuplicateNotAllowed)]
            assert len(refused) == 3, replies
            for node in (one, two):
                node.engine._familiarity = 0.0
        assert len(await check_database(migrated_url)) == 5

    play(migrated_url, story, hints="off")


def test_a_worker_that_no_hint_told_of_is_found_before_an_update_is_refused(
    migrated_url: str,
) -> None:
    """Its run knows that the update has a validator, and only the other node who validates."""

    async def story(one: Node, two: Node) -> None:
        telling = {"shop": {"updates": ["pay"], "update_validators": ["pay"]}}
        capable: dict[str, Any] = {
            "capabilities": ["update_validation_tasks"],
            "contracts": telling,
        }
        await one.register(**capable)
        run_id = await one.start()
        task = await one.poll()
        assert isinstance(task, WorkflowDelivery)
        await one.play(DeregisterWorker(NAMESPACE, "w1", None))
        await two.register("w2", **capable)
        assert (NAMESPACE, "w2") not in one.engine.workers

        target = CommandTarget(instance=Instance(NAMESPACE, task.workflow_id))
        update = UpdateRun(target, name="pay", arguments=None)
        admitted = await one.engine.submit_knowing_workers(update)

        assert admitted.run_id == run_id
        assert (NAMESPACE, "w2") in one.engine.workers

    play(migrated_url, story, hints="off")

"""The beat: what waits is decided together and committed once, and answered when it is on disk."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from perdure.core.rejection import DuplicateNotAllowed, InstanceNotFound, Rejection, RunNotActive
from perdure.core.run.command import ContinueAsNew
from perdure.core.run.status import RunStatus
from perdure.engine.activity_tasks import AskActivity
from perdure.engine.operation import Operation
from perdure.engine.workflow_tasks import PageWorkflowTask
from perdure.engine.world import World
from perdure.store.interface import Unavailable
from tests.engine.engine_harness import (
    DONE,
    NAMESPACE,
    Stage,
    a_child,
    a_stage,
    a_timer,
    an_activity,
    cancel,
    completion,
    play,
    ref_of,
    report_of,
    signal,
    start,
)
from tests.engine.invariants import check_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


# One transaction ----------------------------------------------------------------------------------


def test_what_waits_together_is_committed_once(path: Path) -> None:
    async def story(stage: Stage) -> None:
        replies = await stage.together(*(start(f"order-{number}") for number in range(5)))

        assert len(stage.store.commits) == 1
        assert {reply.run_id for reply in replies} == {
            r.run_id for r in stage.store.commits[0].runs
        }

    play(path, story)


def test_a_beat_takes_a_bounded_number_and_the_rest_comes_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.beat.OPERATIONS_PER_BEAT_MAX", 4)

    async def story(stage: Stage) -> None:
        await stage.together(*(start(f"order-{number}") for number in range(10)))

        assert [len(changes.runs) for changes in stage.store.commits] == [4, 4, 2]

    play(path, story)


def test_nothing_is_answered_before_it_is_on_disk(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        poll = await stage.park()
        gate = stage.store.hold_commits()
        answer = asyncio.ensure_future(stage.play(start()))
        await stage.until(lambda: len(stage.store.commits) == 2)
        await stage.idle()
        assert not answer.done()
        assert not poll.done()

        gate.set()

        assert (await answer).run_id == (await poll).run_id

    play(path, story)


def test_what_was_taken_up_is_finished_before_the_engine_stops(path: Path) -> None:
    async def story() -> list[object]:
        async with a_stage(path) as stage:
            gate = stage.store.hold_commits()
            replies = [asyncio.ensure_future(stage.play(start(f"o-{n}"))) for n in range(3)]
            await stage.until(lambda: len(stage.store.commits) == 1)
            replies.append(asyncio.ensure_future(stage.play(start("late"))))
            await stage.idle()
            stage.engine.stop()
            gate.set()
            await asyncio.wait(replies)
        return [reply.result() for reply in replies]

    assert len(asyncio.run(story())) == 4


def test_a_caller_who_left_does_not_undo_the_beat(path: Path) -> None:
    async def story(stage: Stage) -> None:
        gate = stage.store.hold_commits()
        leaving = asyncio.ensure_future(stage.play(start("left")))
        staying = asyncio.ensure_future(stage.play(start("stayed")))
        await stage.until(lambda: len(stage.store.commits) == 1)

        leaving.cancel()
        await stage.idle()
        gate.set()
        await staying

        assert {run.workflow_id for run in await check_disk(stage.store)} == {"left", "stayed"}
        assert len(stage.store.commits) == 1

    play(path, story)


# Seeing each other --------------------------------------------------------------------------------


def test_a_run_can_be_signalled_in_the_beat_that_starts_it(path: Path) -> None:
    async def story(stage: Stage) -> None:
        started, signalled = await stage.together(start(), signal())

        assert signalled.run_id == started.run_id
        assert len(stage.store.commits) == 1
        (run,) = await check_disk(stage.store)
        assert [waiting.name for waiting in run.inbox.values()] == ["go"]

    play(path, story)


def test_of_two_starts_of_one_id_in_one_beat_the_second_hears_of_the_first(path: Path) -> None:
    async def story(stage: Stage) -> None:
        first, second, third = await stage.together(start(), start(), start(use_existing=True))

        assert isinstance(second, DuplicateNotAllowed)
        assert second.details["run_id"] == first.run_id == third.run_id
        assert (first.is_new, third.is_new) == (True, False)
        assert len(await check_disk(stage.store)) == 1

    play(path, story)


def test_a_repeated_request_in_one_beat_gets_the_answer_of_the_first(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        request = {"request_id": "r1", "digest": "d"}

        first, again = await stage.together(signal(**request), signal(**request))

        assert (again.command_id, again.retained) == (first.command_id, True)
        (run,) = await check_disk(stage.store)
        assert len(run.inbox) == 1

    play(path, story)


def test_a_signal_behind_a_continue_as_new_in_the_same_beat_reaches_the_next_run(
    path: Path,
) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        old = await stage.start()
        task = await stage.take()

        _, signalled = await stage.together(completion(task, ContinueAsNew()), signal())

        assert signalled.run_id != old
        before, after = await check_disk(stage.store)
        assert (before.closed_reason, before.continued_to_run_id) == ("continued", after.run_id)
        assert [waiting.name for waiting in after.inbox.values()] == ["go"]

    play(path, story)


def test_a_command_behind_a_cancel_in_the_same_beat_is_refused(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.start()

        _, late = await stage.together(cancel(), signal())

        assert isinstance(late, RunNotActive)
        (run,) = await check_disk(stage.store)
        assert run.status is RunStatus.CANCELLED

    play(path, story)


# Writing nothing ----------------------------------------------------------------------------------


def test_refused_operations_write_nothing_at_all(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        task = await stage.take()
        await stage.play(completion(task, DONE))
        before = len(stage.store.commits)

        replies = await stage.together(
            start(),
            signal(),
            signal("nobody"),
            completion(msgspec.structs.replace(task, attempt=7), DONE),
        )

        assert all(isinstance(reply, Rejection) for reply in replies)
        assert isinstance(replies[2], InstanceNotFound)
        assert len(stage.store.commits) == before

    play(path, story)


def test_a_refused_operation_leaves_no_trace_in_the_commit_of_its_neighbours(path: Path) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.start("first")

        await stage.together(start("first"), start("second"), signal("nobody"))

        (second,) = [run for run in await check_disk(stage.store) if run.run_id != first]
        assert [run.run_id for run in stage.store.commits[-1].runs] == [second.run_id]

    play(path, story)


def test_questions_write_nothing(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        task = await stage.work(an_activity())
        attempt = await stage.take_activity()
        before = len(stage.store.commits)

        await stage.play(AskActivity(ref_of(attempt)))
        await stage.together(
            PageWorkflowTask(NAMESPACE, task.run_id, report_of(task), after=0, limit=1),
            start(use_existing=True),
        )

        assert len(stage.store.commits) == before

    play(path, story)


# Families -----------------------------------------------------------------------------------------


def test_a_child_is_started_in_the_transaction_of_its_parent(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        parent = await stage.start()
        task = await stage.take()
        before = len(stage.store.commits)

        await stage.play(completion(task, a_child()))

        assert len(stage.store.commits) == before + 1
        (_, child) = await check_disk(stage.store)
        assert child.parent is not None
        assert {run.run_id for run in stage.store.commits[-1].runs} == {parent, child.run_id}

    play(path, story)


def test_a_closing_child_and_what_its_parent_learns_are_one_transaction(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        parent = await stage.start()
        await stage.work(a_child())
        child = await stage.take()
        before = len(stage.store.commits)

        await stage.play(completion(child, DONE))

        assert len(stage.store.commits) == before + 1
        assert {run.run_id for run in stage.store.commits[-1].runs} == {parent, child.run_id}
        assert (await stage.types(parent))[-1] == "ChildRunCompleted"
        assert stage.ready() == [(parent, 0)]

    play(path, story)


def test_a_family_of_three_generations_closes_in_one_transaction(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        for _ in range(2):
            await stage.work(a_child(parent_close_policy="terminate"))
        before = len(stage.store.commits)

        await stage.play(cancel())

        assert len(stage.store.commits) == before + 1
        family = await check_disk(stage.store)
        assert [run.status for run in family] == [
            RunStatus.CANCELLED,
            RunStatus.TERMINATED,
            RunStatus.TERMINATED,
        ]

    play(path, story)


def test_a_child_that_goes_on_while_its_parent_closes_is_closed_too(path: Path) -> None:
    """Two operations of one beat: the child continues as new, then its parent is cancelled.

    The parent's policy names the run of the child that it knows of. That run is closed already;
    its successor must not be left behind.
    """

    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        await stage.work(a_child(parent_close_policy="terminate"))
        child = await stage.take()

        await stage.together(completion(child, ContinueAsNew()), cancel())

        family = await check_disk(stage.store)
        left = [run.run_id for run in family if not run.is_closed]
        assert len(family) == 3
        assert left == [], "a child run is open although its parent's policy was to terminate it"

    play(path, story)


def test_a_child_that_closes_while_its_parent_closes_harms_neither(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        await stage.start()
        await stage.work(a_child(parent_close_policy="terminate"))
        child = await stage.take()

        await stage.together(cancel(), completion(child, DONE))

        parent, kid = await check_disk(stage.store)
        assert (parent.status, kid.status) == (RunStatus.CANCELLED, RunStatus.COMPLETED)

    play(path, story)


# Bounds -------------------------------------------------------------------------------------------


def test_too_many_waiting_operations_are_refused_with_a_reason(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.beat.OPERATIONS_WAITING_MAX", 3)

    async def story(stage: Stage) -> None:
        gate = stage.store.hold_commits()
        under_way = asyncio.ensure_future(stage.play(start("under way")))
        await stage.until(lambda: len(stage.store.commits) == 1)
        waiting = [asyncio.ensure_future(stage.play(start(f"o-{n}"))) for n in range(3)]
        await stage.idle()

        with pytest.raises(Unavailable) as refusal:
            await stage.play(start("one too many"))

        assert refusal.value.reason == "server_overloaded"
        gate.set()
        await asyncio.gather(under_way, *waiting)
        assert len(await check_disk(stage.store)) == 4
        await stage.play(start("one too many"))

    play(path, story)


class Broken(Operation):
    """We are wrong: half of a change is made, then an invariant breaks."""

    name = "broken"

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def decide(self, world: World) -> None:
        run = world.runs[self._run_id]
        run.memo = {"half": "changed"}
        run.operations.clear()
        world.changed(run)
        raise AssertionError("two and two are five")


def test_a_poisonous_operation_takes_nobody_down(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        await stage.work(a_timer(60))
        before = await stage.events(run_id)

        first, broken, last = await stage.together(start("a"), Broken(run_id), start("b"))

        assert isinstance(broken, AssertionError)
        assert first.is_new
        assert last.is_new
        assert len(await check_disk(stage.store)) == 3
        assert await stage.events(run_id) == before

    play(path, story)


def test_a_half_changed_run_is_not_kept_in_memory(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        await stage.work(a_timer(60))

        await stage.together(Broken(run_id), signal(name="beside"))
        await stage.together(Broken(run_id))
        await stage.play(signal(name="after"))

        run = await stage.load(run_id)
        assert (run.memo, list(run.operations)) == ({}, [1])
        assert (await stage.types(run_id)).count("SignalReceived") == 2
        await check_disk(stage.store)

    play(path, story)


def test_a_poisonous_operation_does_not_keep_the_engine_from_beating_on(path: Path) -> None:
    async def story(stage: Stage) -> None:
        run_id = await stage.start()
        for number in range(3):
            with pytest.raises(AssertionError, match="two and two"):
                await stage.play(Broken(run_id))
            await stage.play(start(f"order-{number}"))

    play(path, story)

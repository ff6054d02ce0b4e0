"""Updates that meet their repeats, their opposites and the end of their run in one beat."""

from pathlib import Path
from typing import Any

import pytest

from perdure.core.rejection import (
    Rejection,
    RunClosed,
    UpdateRejected,
    UpdateValidationDuplicate,
    UpdateValidationNotLeased,
)
from perdure.core.run.command import CompleteUpdate, FailUpdate, OpenConditionWait
from perdure.core.run.completion import TaskReport
from perdure.core.run.inbox import Refusal
from perdure.core.run.state import WORKFLOW_TASK, TaskKind
from perdure.core.run.status import RunStatus
from perdure.core.run.task import task_name
from perdure.dispatch.delivery import ValidationDelivery, WorkflowDelivery
from perdure.dispatch.parked_polls import ParkedPoller, ParkedPolls
from perdure.dispatch.polls import Poll
from perdure.engine.claims import ClaimTasks, FireDue
from perdure.engine.updates import ApproveUpdate, RejectUpdate
from perdure.store.interface import QueueKey, ReadyTask
from tests.engine.engine_harness import (
    NAMESPACE,
    QUEUE,
    Stage,
    a_timer,
    cancel,
    completion,
    play,
    signal,
    update,
)
from tests.engine.invariants import check_disk
from tests.support.rule_harness import Story, validator

WAIT = OpenConditionWait(key="k")
VALIDATOR: dict[str, Any] = {
    "capabilities": ["update_validation_tasks"],
    "contracts": {"shop": {"updates": ["add"], "update_validators": ["add"]}},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


def either_first(one: str, other: str) -> pytest.MarkDecorator:
    """Two things in one beat, in both orders."""
    return pytest.mark.parametrize("order", [(one, other), (other, one)], ids="-".join)


async def a_waiting_run(stage: Stage, **told: Any) -> str:
    await stage.register(**told)
    run_id = await stage.start()
    await stage.work(WAIT)
    return run_id


async def take_validation(stage: Stage, worker_id: str = "w1") -> ValidationDelivery:
    poll = Poll(
        namespace=NAMESPACE,
        worker_id=worker_id,
        queue=QUEUE,
        kind="workflow",
        timeout=5_000_000,
        page_size=500,
        validations=True,
    )
    delivery = (await stage.server.polling.poll(poll, lambda gone: None)).delivery
    assert isinstance(delivery, ValidationDelivery)
    return delivery


def outcome(task: WorkflowDelivery) -> CompleteUpdate:
    return CompleteUpdate(update_id=str(task.resume["workflow_update_id"]))


def verdict(task: ValidationDelivery, approved: bool) -> ApproveUpdate | RejectUpdate:
    report = TaskReport(number=task.number, owner=task.owner, attempt=task.attempt)
    if approved:
        return ApproveUpdate(NAMESPACE, task.run_id, report)
    refusal = Refusal("update_validator_rejected", "no")
    return RejectUpdate(NAMESPACE, task.run_id, report, refusal)


async def types(stage: Stage) -> list[str]:
    (run,) = await check_disk(stage.store)
    return await stage.types(run.run_id)


def test_the_same_request_twice_in_one_beat_is_one_update(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage)
        wanted = [update(request_id="r", digest="d-n") for _ in range(3)]

        first, *others = await stage.together(*wanted)

        assert {reply.update_id for reply in others} == {first.update_id}
        assert [reply.retained for reply in (first, *others)] == [False, True, True]
        assert (await types(stage)).count("UpdateAccepted") == 1

    play(path, story)


def test_the_same_validated_request_twice_in_one_beat_is_one_update(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage, **VALIDATOR)

        first, second = await stage.together(
            *(update(request_id="r", digest="d-n") for _ in range(2))
        )

        assert (first.update_id, first.retained, second.retained) == (
            second.update_id,
            False,
            True,
        )
        (run,) = await check_disk(stage.store)
        assert run.updates_open == 1

    play(path, story)


def test_the_same_outcome_twice_in_one_beat_counts_once(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage)
        await stage.play(update())
        task = await stage.take()

        first, again = await stage.together(*(completion(task, outcome(task)) for _ in range(2)))

        assert first.receipt == again.receipt
        assert (await types(stage)).count("UpdateCompleted") == 1

    play(path, story)


def test_of_two_outcomes_of_one_lease_the_first_counts(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage)
        await stage.play(update())
        task = await stage.take()
        failed = FailUpdate(update_id=outcome(task).update_id, message="no")

        replies = await stage.together(completion(task, failed), completion(task, outcome(task)))

        assert replies[0].receipt == replies[1].receipt
        told = await types(stage)
        assert "UpdateApplied" not in told
        assert told.count("UpdateCompleted") == 1

    play(path, story)


@either_first("outcome", "cancel")
def test_an_outcome_and_a_cancel_in_one_beat(path: Path, order: tuple[str, str]) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage)
        await stage.play(update())
        task = await stage.take()
        operations = {"outcome": completion(task, outcome(task)), "cancel": cancel()}

        replies = await stage.together(*(operations[name] for name in order))

        told = await types(stage)
        assert told.count("UpdateCompleted") == 1
        assert ("UpdateApplied" in told) == (order[0] == "outcome")
        assert isinstance(replies[1], RunClosed) == (order[0] == "cancel")

    play(path, story)


@either_first("update", "cancel")
def test_an_update_and_a_cancel_in_one_beat(path: Path, order: tuple[str, str]) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage)
        operations = {"update": update(), "cancel": cancel()}

        replies = await stage.together(*(operations[name] for name in order))

        told = await types(stage)
        if order[0] == "cancel":
            assert isinstance(replies[1], UpdateRejected)
            assert "UpdateAccepted" not in told
        else:
            assert told.count("UpdateAccepted") == told.count("UpdateCompleted") == 1

    play(path, story)


@either_first("approve", "reject")
def test_of_two_verdicts_in_one_beat_the_first_counts(path: Path, order: tuple[str, str]) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage, **VALIDATOR)
        await stage.play(update())
        task = await take_validation(stage)

        replies = await stage.together(*(verdict(task, name == "approve") for name in order))

        assert isinstance(replies[1], UpdateValidationDuplicate)
        assert ("UpdateAccepted" in await types(stage)) == (order[0] == "approve")

    play(path, story)


@either_first("approve", "cancel")
def test_a_verdict_and_a_cancel_in_one_beat(path: Path, order: tuple[str, str]) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage, **VALIDATOR)
        await stage.play(update())
        task = await take_validation(stage)
        operations = {"approve": verdict(task, approved=True), "cancel": cancel()}

        replies = await stage.together(*(operations[name] for name in order))

        told = await types(stage)
        if order[0] == "cancel":
            assert isinstance(replies[1], UpdateValidationNotLeased)
            assert told[-2:] == ["UpdateRejected", "WorkflowCancelled"]
        else:
            assert told.count("UpdateAccepted") == told.count("UpdateCompleted") == 1

    play(path, story)


def test_a_verdict_in_the_beat_of_its_deadline_comes_too_late(path: Path) -> None:
    async def story(stage: Stage) -> None:
        run_id = await a_waiting_run(stage, **VALIDATOR)
        await stage.play(update())
        stage.clock.jump(seconds=15)
        task = await take_validation(stage)
        stage.clock.jump(seconds=5)

        _, late = await stage.together(FireDue(run_id), verdict(task, approved=True))

        assert isinstance(late, UpdateValidationNotLeased)
        (run,) = await check_disk(stage.store)
        assert (run.updates_open, run.task) == (0, None)

    play(path, story)


def test_a_poller_takes_what_the_beat_left_of_an_update(path: Path) -> None:
    """A parked validator and a timer in one beat: the code goes on first, and nothing is stale."""

    async def story(stage: Stage) -> None:
        await stage.register(**VALIDATOR)
        run_id = await stage.start()
        await stage.work(a_timer(10))
        await stage.play(update())
        stage.clock.jump(seconds=10)

        await stage.together(FireDue(run_id), signal())

        task = await stage.take()
        assert "workflow_update_id" not in task.resume
        (run,) = await check_disk(stage.store)
        assert run.task is not None
        assert run.task.kind is TaskKind.PROGRESS
        assert stage.ready() == []

    play(path, story)


def test_a_refused_update_leaves_the_disk_as_it_was(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await a_waiting_run(stage, **VALIDATOR)
        before = list(stage.store.rows("select run_id, version, state from run"))

        (refused,) = await stage.together(update(name="unknown"))

        assert isinstance(refused, Rejection)
        assert list(stage.store.rows("select run_id, version, state from run")) == before

    play(path, story)


def test_an_update_survives_a_cold_start_in_every_stage(path: Path) -> None:
    async def ask(stage: Stage) -> None:
        await a_waiting_run(stage, **VALIDATOR)
        await stage.play(update(request_id="r", digest="d-n"))

    async def approve(stage: Stage) -> None:
        await stage.play(verdict(await take_validation(stage), approved=True))

    async def answer(stage: Stage) -> None:
        task = await stage.take()
        await stage.play(completion(task, outcome(task)))

    async def look(stage: Stage) -> None:
        reply = await stage.play(update(request_id="r", digest="d-n"))
        assert reply.retained
        (run,) = await check_disk(stage.store)
        assert run.status is RunStatus.WAITING
        assert (await types(stage)).count("UpdateCompleted") == 1

    for stage_of_life in (ask, approve, answer, look):
        play(path, stage_of_life)


def test_a_row_that_was_read_before_its_task_stepped_back_is_given_to_nobody() -> None:
    """The claim read it, then the timer of the same beat let the code go on first."""
    story = Story()
    run = story.start()
    story.work(run, a_timer(10))
    story.update(run, "add", workers=[validator()])
    read = ReadyTask(run.run_id, WORKFLOW_TASK, task_name(run))
    claim = ClaimTasks(QueueKey(run.namespace, run.queue, "workflow"), _Nobody(), story.leasing)
    claim._found = [read]
    story.clock.jump(seconds=10)

    story.hold()
    story.fire()
    story.decide(claim)
    story.commit()

    assert run.task is not None
    assert (run.task.kind, run.task.lease) == (TaskKind.PROGRESS, None)


class _Nobody(ParkedPolls):
    """Whoever asks for a poller is wrong."""

    def reserve(self, key: QueueKey, name: str, wanted: str | None = None) -> ParkedPoller | None:
        raise AssertionError(f"a poller for {name} was asked for")

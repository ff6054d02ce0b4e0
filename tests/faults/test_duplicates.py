"""Reports that come twice, late, or at the same moment as their opposite: exactly one effect."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.core.rejection import (
    LeaseExpired,
    LeaseOwnerMismatch,
    Rejection,
    RunCancelled,
    RunClosed,
    RunNotActive,
    StaleAttempt,
    TaskNotLeased,
    WorkflowTaskAttemptMismatch,
)
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import Activity, ActivityTimeouts, RetryPolicy
from perdure.core.run.status import RunStatus
from perdure.dispatch.delivery import ActivityDelivery, WorkflowDelivery
from perdure.engine.activity_tasks import AttemptRef, ReleaseActivity
from perdure.engine.claims import FireDue
from perdure.engine.operation import Operation
from perdure.engine.workflow_tasks import ReleaseWorkflowTask
from tests.engine.engine_harness import (
    DONE,
    Stage,
    a_timer,
    an_activity,
    cancel,
    completion,
    failure,
    heartbeat,
    play,
    renewal,
    result,
    signal,
    task_failure,
)
from tests.engine.invariants import check_disk
from tests.support.http import (
    Wire,
    a_wire,
    avro,
    complete_workflow,
    schedule_activity,
)

WORKFLOW_LEASE = 60
ACTIVITY_LEASE = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


def either_first(one: str, other: str) -> pytest.MarkDecorator:
    """Two things in one beat, in both orders."""
    return pytest.mark.parametrize("order", [(one, other), (other, one)], ids="-".join)


async def a_leased_task(stage: Stage) -> WorkflowDelivery:
    await stage.register()
    await stage.start()
    return await stage.take()


async def a_leased_activity(stage: Stage, **values: Any) -> ActivityDelivery:
    await stage.register()
    await stage.start()
    await stage.work(an_activity(**values))
    return await stage.take_activity()


async def count(stage: Stage, event_type: str) -> int:
    (run,) = await check_disk(stage.store)
    return (await stage.types(run.run_id)).count(event_type)


# Workflow tasks -----------------------------------------------------------------------------------


def test_the_same_completion_twice_in_one_beat_counts_once(path: Path) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)

        first, again = await stage.together(*(completion(task, a_timer(60)) for _ in range(2)))

        assert first.receipt == again.receipt
        assert await count(stage, "TimerScheduled") == 1

    play(path, story)


def test_of_two_different_completions_of_one_lease_the_first_counts(path: Path) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)

        first, second = await stage.together(completion(task, a_timer(60)), completion(task, DONE))

        assert first.receipt == second.receipt
        (run,) = await check_disk(stage.store)
        assert (run.status, list(run.operations)) == (RunStatus.WAITING, [1])

    play(path, story)


def test_a_completion_and_a_failure_of_one_lease_in_one_beat_are_one_report(path: Path) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)

        taken, refused = await stage.together(completion(task, DONE), task_failure(task))

        assert taken.receipt == refused.receipt
        (run,) = await check_disk(stage.store)
        assert run.status is RunStatus.COMPLETED

    play(path, story)


def test_a_failure_and_a_completion_of_one_lease_in_one_beat_are_one_report(path: Path) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)

        replies = await stage.together(task_failure(task), completion(task, DONE))

        assert [reply.receipt.outcome for reply in replies] == ["failed", "failed"]
        (run,) = await check_disk(stage.store)
        assert run.task is not None
        assert (run.task.failures, run.task.state) == (1, TaskState.DELAYED)

    play(path, story)


def test_a_repeated_failure_does_not_lengthen_the_backoff(path: Path) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)

        await stage.together(task_failure(task), task_failure(task))
        await stage.play(task_failure(task))

        (run,) = await check_disk(stage.store)
        assert run.task is not None
        assert run.task.failures == 1

    play(path, story)


def test_a_completion_repeated_after_the_run_went_on_is_answered_or_refused(path: Path) -> None:
    async def story(stage: Stage) -> None:
        first = await a_leased_task(stage)
        await stage.play(completion(first, a_timer(0)))
        await stage.play(FireDue(first.run_id))
        second = await stage.take()

        assert (await stage.play(completion(first, DONE))).receipt.outcome == "completed"
        await stage.play(completion(second, a_timer(60)))
        with pytest.raises(TaskNotLeased):
            await stage.play(completion(first, DONE))

        assert await count(stage, "TimerScheduled") == 2
        assert await count(stage, "WorkflowCompleted") == 0

    play(path, story)


@either_first("complete", "expire")
def test_a_completion_and_the_end_of_its_lease_in_one_beat(
    order: tuple[str, ...], path: Path
) -> None:
    """At the instant of its end the lease is over, whoever is decided first."""

    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)
        stage.clock.jump(seconds=WORKFLOW_LEASE)
        both = {"complete": completion(task, DONE), "expire": FireDue(task.run_id)}

        replies = dict(zip(order, await stage.together(*(both[o] for o in order)), strict=True))

        assert isinstance(replies["complete"], LeaseExpired | TaskNotLeased)
        (run,) = await check_disk(stage.store)
        assert run.task is not None
        assert (run.task.state, run.task.attempt) == (TaskState.READY, 1)
        await stage.work(DONE)
        assert await count(stage, "WorkflowCompleted") == 1

    play(path, story)


@either_first("complete", "expire")
def test_a_completion_in_the_last_moment_of_its_lease_counts(
    order: tuple[str, ...], path: Path
) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)
        stage.clock.jump(seconds=WORKFLOW_LEASE - 0.000001)
        both = {"complete": completion(task, DONE), "expire": FireDue(task.run_id)}

        replies = dict(zip(order, await stage.together(*(both[o] for o in order)), strict=True))

        assert replies["complete"].receipt.outcome == "completed"
        assert await count(stage, "WorkflowCompleted") == 1

    play(path, story)


@either_first("renew", "expire")
def test_a_renewal_and_the_end_of_its_lease_in_one_beat(order: tuple[str, ...], path: Path) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)
        stage.clock.jump(seconds=WORKFLOW_LEASE)
        both = {"renew": renewal(task), "expire": FireDue(task.run_id)}

        replies = dict(zip(order, await stage.together(*(both[o] for o in order)), strict=True))

        assert isinstance(replies["renew"], LeaseExpired | TaskNotLeased)
        (run,) = await check_disk(stage.store)
        assert run.task is not None
        assert run.task.state is TaskState.READY

    play(path, story)


def test_a_latecomer_cannot_complete_what_another_worker_has_now(path: Path) -> None:
    async def story(stage: Stage) -> None:
        late = await a_leased_task(stage)
        await stage.register("w2")
        stage.clock.jump(seconds=WORKFLOW_LEASE)
        await stage.play(FireDue(late.run_id))
        now = await stage.take("w2")

        refused, renewed, failed, taken = await stage.together(
            completion(late, a_timer(60)), renewal(late), task_failure(late), completion(now, DONE)
        )

        assert all(isinstance(r, LeaseOwnerMismatch) for r in (refused, renewed, failed))
        assert taken.receipt.outcome == "completed"
        assert await count(stage, "TimerScheduled") == 0

    play(path, story)


def test_an_old_attempt_of_the_same_worker_is_refused(path: Path) -> None:
    async def story(stage: Stage) -> None:
        late = await a_leased_task(stage)
        stage.clock.jump(seconds=WORKFLOW_LEASE)
        await stage.play(FireDue(late.run_id))
        now = await stage.take()

        refused, taken = await stage.together(completion(late, a_timer(60)), completion(now, DONE))

        assert isinstance(refused, WorkflowTaskAttemptMismatch)
        assert taken.receipt.outcome == "completed"
        assert await count(stage, "TimerScheduled") == 0

    play(path, story)


@pytest.mark.parametrize("owner", ["w1", "w2"], ids=["the same worker", "another worker"])
def test_a_task_that_comes_back_late_is_not_taken_from_who_has_it_now(
    path: Path, owner: str
) -> None:
    """The poll was gone when its lease was to be handed over, and so was the lease by then."""

    async def story(stage: Stage) -> None:
        late = await a_leased_task(stage)
        await stage.register("w2")
        stage.clock.jump(seconds=WORKFLOW_LEASE)
        await stage.play(FireDue(late.run_id))
        now = await stage.take(owner)

        await stage.play(
            ReleaseWorkflowTask(
                late.run_id, number=late.number, owner=late.owner, attempt=late.attempt
            )
        )

        taken = await stage.play(completion(now, DONE))
        assert taken.receipt.outcome == "completed"

    play(path, story)


@pytest.mark.parametrize("owner", ["w1", "w2"], ids=["the same worker", "another worker"])
def test_an_attempt_that_comes_back_late_is_not_taken_from_who_has_it_now(
    path: Path, owner: str
) -> None:
    async def story(stage: Stage) -> None:
        late = await a_leased_activity(stage)
        await stage.register("w2")
        stage.clock.jump(seconds=ACTIVITY_LEASE)
        await stage.play(FireDue(late.run_id))
        now = await stage.take_activity(owner)

        ref = AttemptRef(
            namespace="default",
            run_id=late.run_id,
            sequence=late.sequence,
            attempt_id=late.attempt_id,
            owner=late.owner,
        )
        await stage.play(ReleaseActivity(ref, was_seen=False))

        await stage.play(result(now))
        assert await count(stage, "ActivityCompleted") == 1

    play(path, story)


@either_first("complete", "cancel")
def test_a_completion_and_a_cancel_in_one_beat_close_the_run_once(
    order: tuple[str, ...], path: Path
) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)
        both = {"complete": completion(task, DONE), "cancel": cancel()}

        won, lost = await stage.together(*(both[o] for o in order))

        assert not isinstance(won, Exception)
        assert isinstance(lost, RunClosed if order[0] == "cancel" else RunNotActive)
        (run,) = await check_disk(stage.store)
        expected = RunStatus.CANCELLED if order[0] == "cancel" else RunStatus.COMPLETED
        assert run.status is expected

    play(path, story)


def test_a_completion_that_goes_on_and_a_cancel_in_one_beat_leave_nothing_open(path: Path) -> None:
    async def story(stage: Stage) -> None:
        task = await a_leased_task(stage)

        taken, cancelled = await stage.together(completion(task, an_activity()), cancel())

        assert (taken.receipt.outcome, cancelled.outcome) == ("completed", "cancelled")
        assert await count(stage, "ActivityCancelled") == 1
        assert stage.ready() == []

    play(path, story)


def test_two_cancels_in_one_beat_cancel_once(path: Path) -> None:
    async def story(stage: Stage) -> None:
        await a_leased_task(stage)
        request = {"request_id": "r1", "digest": "d"}

        first, again, other = await stage.together(cancel(**request), cancel(**request), cancel())

        assert (again.command_id, again.retained) == (first.command_id, True)
        assert isinstance(other, RunNotActive)
        assert await count(stage, "WorkflowCancelled") == 1

    play(path, story)


# Activity tasks -----------------------------------------------------------------------------------

Report = Callable[[ActivityDelivery], Operation]
ENDED = ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(result, result, "ActivityCompleted", id="complete-complete"),
        pytest.param(result, failure, "ActivityCompleted", id="complete-fail"),
        pytest.param(failure, result, "ActivityFailed", id="fail-complete"),
        pytest.param(failure, failure, "ActivityFailed", id="fail-fail"),
    ],
)
def test_of_two_reports_on_one_attempt_in_one_beat_the_first_counts(
    first: Report, second: Report, expected: str, path: Path
) -> None:
    async def story(stage: Stage) -> None:
        attempt = await a_leased_activity(stage)

        taken, refused = await stage.together(first(attempt), second(attempt))

        assert not isinstance(taken, Exception)
        assert isinstance(refused, StaleAttempt)
        assert [kind for kind in await stage.types(attempt.run_id) if kind in ENDED] == [expected]
        await check_disk(stage.store)

    play(path, story)


def test_a_failure_that_comes_twice_uses_one_attempt(path: Path) -> None:
    async def story(stage: Stage) -> None:
        attempt = await a_leased_activity(stage, retry=RetryPolicy(attempts_max=3))

        _, again = await stage.together(failure(attempt), failure(attempt))
        with pytest.raises(StaleAttempt):
            await stage.play(failure(attempt))

        assert isinstance(again, StaleAttempt)
        assert await count(stage, "ActivityRetryScheduled") == 1
        assert (await stage.take_activity()).attempt == 2

    play(path, story)


def test_a_result_and_the_end_of_the_lease_in_one_beat_keep_the_result(path: Path) -> None:
    """Nobody else has the work yet, so it would be a pity to do it again."""

    async def story(stage: Stage) -> None:
        attempt = await a_leased_activity(stage)
        stage.clock.jump(seconds=ACTIVITY_LEASE)

        taken, _ = await stage.together(result(attempt), FireDue(attempt.run_id))

        assert not isinstance(taken, Exception)
        assert await count(stage, "ActivityCompleted") == 1
        assert stage.ready() == [(attempt.run_id, 0)]

    play(path, story)


def test_the_end_of_the_lease_and_a_result_in_one_beat_give_the_work_to_another(path: Path) -> None:
    async def story(stage: Stage) -> None:
        late = await a_leased_activity(stage)
        stage.clock.jump(seconds=ACTIVITY_LEASE)

        _, refused = await stage.together(FireDue(late.run_id), result(late))

        assert isinstance(refused, StaleAttempt)
        now = await stage.take_activity()
        assert now.attempt == 2
        refused, taken = await stage.together(result(late), result(now))
        assert isinstance(refused, StaleAttempt)
        assert not isinstance(taken, Exception)
        assert await count(stage, "ActivityCompleted") == 1

    play(path, story)


@either_first("complete", "time-out")
def test_a_result_and_a_time_out_in_one_beat_end_the_activity_once(
    order: tuple[str, ...], path: Path
) -> None:
    async def story(stage: Stage) -> None:
        attempt = await a_leased_activity(stage, timeouts=ActivityTimeouts(start_to_close=10))
        stage.clock.jump(seconds=10)
        both = {"complete": result(attempt), "time-out": FireDue(attempt.run_id)}

        await stage.together(*(both[o] for o in order))

        ended = [kind for kind in await stage.types(attempt.run_id) if kind in ENDED]
        expected = "ActivityCompleted" if order[0] == "complete" else "ActivityTimedOut"
        assert ended == [expected]
        assert stage.ready() == [(attempt.run_id, 0)]
        await check_disk(stage.store)

    play(path, story)


@either_first("complete", "cancel")
def test_a_result_and_a_cancel_in_one_beat(order: tuple[str, ...], path: Path) -> None:
    async def story(stage: Stage) -> None:
        attempt = await a_leased_activity(stage)
        both = {"complete": result(attempt), "cancel": cancel()}

        replies = dict(zip(order, await stage.together(*(both[o] for o in order)), strict=True))

        assert replies["cancel"].outcome == "cancelled"
        ended = [kind for kind in await stage.types(attempt.run_id) if kind in ENDED]
        if order[0] == "complete":
            assert ended == ["ActivityCompleted"]
        else:
            assert isinstance(replies["complete"], RunCancelled)
            assert ended == ["ActivityCancelled"]
        assert stage.ready() == []
        await check_disk(stage.store)

    play(path, story)


def test_a_heartbeat_behind_a_result_in_one_beat_changes_nothing(path: Path) -> None:
    async def story(stage: Stage) -> None:
        attempt = await a_leased_activity(stage)

        _, view = await stage.together(result(attempt), heartbeat(attempt))

        assert (view.can_continue, view.recorded) == (False, False)
        assert await count(stage, "ActivityHeartbeatRecorded") == 0

    play(path, story)


def test_a_late_heartbeat_neither_renews_nor_writes(path: Path) -> None:
    async def story(stage: Stage) -> None:
        late = await a_leased_activity(stage)
        stage.clock.jump(seconds=ACTIVITY_LEASE)
        await stage.play(FireDue(late.run_id))
        now = await stage.take_activity()
        before, commits = await stage.load(late.run_id), len(stage.store.commits)

        view = await stage.play(heartbeat(late))

        assert (view.can_continue, view.reason) == (False, "stale_attempt")
        assert len(stage.store.commits) == commits
        assert (await stage.load(late.run_id)).operations == before.operations
        assert (await stage.play(heartbeat(now))).can_continue

    play(path, story)


@either_first("heartbeat", "expire")
def test_a_heartbeat_and_the_end_of_the_lease_in_one_beat_leave_one_owner(
    order: tuple[str, ...], path: Path
) -> None:
    async def story(stage: Stage) -> None:
        attempt = await a_leased_activity(stage)
        stage.clock.jump(seconds=ACTIVITY_LEASE)
        both = {"heartbeat": heartbeat(attempt), "expire": FireDue(attempt.run_id)}

        replies = dict(zip(order, await stage.together(*(both[o] for o in order)), strict=True))

        activity = (await stage.load(attempt.run_id)).operations[1]
        assert isinstance(activity, Activity)
        goes_on = replies["heartbeat"].can_continue
        assert goes_on == (activity.state is TaskState.LEASED) == (order[0] == "heartbeat")
        assert len(stage.ready()) == (0 if goes_on else 1)

    play(path, story)


def test_reports_of_strangers_have_no_effect(path: Path) -> None:
    async def story(stage: Stage) -> None:
        attempt = await a_leased_activity(stage)
        stranger = msgspec.structs.replace(attempt, owner="w2")

        replies = await stage.together(*(r(stranger) for r in (result, failure, heartbeat)))

        assert all(isinstance(reply, Rejection) for reply in replies)
        assert not isinstance(await stage.play(result(attempt)), Exception)
        assert await count(stage, "ActivityCompleted") == 1

    play(path, story)


def test_a_result_that_waits_for_its_neighbour_is_recorded_once(path: Path) -> None:
    """Results without group metadata enter history together; the first waits for the second."""

    async def story(stage: Stage) -> None:
        await stage.register()
        run_id = await stage.start()
        await stage.work(an_activity(), an_activity())
        attempts = [await stage.take_activity() for _ in range(2)]

        for attempt in attempts:
            await stage.together(result(attempt), result(attempt))
            with pytest.raises(StaleAttempt):
                await stage.play(result(attempt))
        await stage.play(signal())

        assert (await stage.types(run_id)).count("ActivityCompleted") == 2
        await check_disk(stage.store)

    play(path, story)


# Through the door ---------------------------------------------------------------------------------


@pytest.fixture
def wire(tmp_path: Path) -> Any:
    with a_wire(tmp_path) as wire:
        wire.register()
        yield wire


def an_attempt(wire: Wire) -> dict[str, Any]:
    wire.run_to(schedule_activity())
    return wire.take("activity")


def test_a_repeated_result_gets_the_recorded_answer(wire: Wire) -> None:
    attempt = an_attempt(wire)

    answers = [wire.report_attempt(attempt, "complete", result=avro("paid")).ok() for _ in range(3)]

    assert [answer["outcome"] for answer in answers] == ["completed"] * 3
    assert wire.event_types().count("ActivityCompleted") == 1


def test_a_failure_behind_a_result_is_refused(wire: Wire) -> None:
    attempt = an_attempt(wire)
    wire.report_attempt(attempt, "complete", result=avro("paid")).ok()

    late = wire.report_attempt(attempt, "fail", failure={"message": "no"})

    late.refused(409, "stale_attempt")
    assert wire.event_types().count("ActivityFailed") == 0


@pytest.mark.parametrize("closing", ["cancel", "terminate", "complete"])
def test_a_repeated_result_gets_the_recorded_answer_also_when_the_run_has_closed(
    closing: str, wire: Wire
) -> None:
    """The answer to the result was lost, and the run closed before the worker asked again."""
    attempt = an_attempt(wire)
    wire.report_attempt(attempt, "complete", result=avro("paid")).ok()
    if closing == "complete":
        wire.complete(wire.take(), complete_workflow())
    else:
        wire.control("POST", f"/workflows/order-1/{closing}", {}).ok()

    again = wire.report_attempt(attempt, "complete", result=avro("paid"))

    assert again.ok()["outcome"] == "completed"
    assert wire.event_types().count("ActivityCompleted") == 1


def test_a_repeated_completion_of_a_workflow_task_gets_the_recorded_answer(wire: Wire) -> None:
    wire.start()
    task = wire.take()

    first, again = (wire.complete(task, schedule_activity()) for _ in range(2))

    assert first == again
    assert wire.event_types().count("ActivityScheduled") == 1

"""Local activities that a worker asks for: leave, attempts, outcomes, and lost leases."""

from typing import Any, cast

import pytest

from perdure.core import limits
from perdure.core.limits import SECOND
from perdure.core.rejection import (
    AttemptNotFound,
    CancellationRequested,
    InvalidCancellationBoundary,
    InvalidCommands,
    LeaseOwnerMismatch,
    PreparedLocalConflict,
    PreparedLocalUnavailable,
    Rejection,
    StaleAttempt,
    TaskNotLeased,
    WorkflowTaskAttemptMismatch,
)
from perdure.core.run.activity import Reported
from perdure.core.run.cause import next_cause
from perdure.core.run.command import Authored, Cleanup, Command, PrepareLocalActivity
from perdure.core.run.completion import WAITING_FOR_HISTORY, TaskReport
from perdure.core.run.local.attempt import Outcome
from perdure.core.run.operation import ActivityTimeouts, RetryPolicy
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.core.run.task import task_name
from perdure.engine.local_activities import (
    AcknowledgeAttempt,
    AttemptView,
    CheckpointGroup,
    CheckpointPrefix,
    Committed,
    EndAttempt,
    Finished,
    HeartbeatAttempt,
    PrepareAttempt,
    RecoverAttempt,
    WatchAttempt,
)
from tests.support.commands import (
    ARGUMENTS,
    RESULT,
    activity,
    complete_run,
    condition,
    in_parallel,
    in_selection,
    retries,
    side_effect,
    timer,
)
from tests.support.rule_harness import Story, report_of

LEASE = limits.WORKFLOW_LEASE_TIMEOUT // SECOND


def local(
    activity_type: str = "count",
    *,
    retry: RetryPolicy | None = None,
    policy: str | None = None,
    cleanup: Cleanup | None = None,
    **timeouts: int,
) -> PrepareLocalActivity:
    return PrepareLocalActivity(
        activity_type=activity_type,
        arguments=ARGUMENTS,
        retry=retry,
        timeouts=ActivityTimeouts(**timeouts),
        cancellation_policy=policy,
        cleanup=cleanup,
    )


class Preparing:
    """A worker with the task of a run, and what it may say of its local activities."""

    def __init__(self, story: Story, run: Run, owner: str = "w1") -> None:
        self.story = story
        self.run = run
        self.report = story.lease_preparing(run, owner)

    def _about(self) -> tuple[str, str, TaskReport]:
        return self.run.namespace, self.run.run_id, self.report

    def checkpoint(self, start: int, *commands: Command, name: str = "c1") -> Committed:
        operation = CheckpointPrefix(
            *self._about(), checkpoint_id=name, start=start, commands=commands
        )
        return cast(Committed, self.story.decide(operation))

    def open_list(self, start: int, *members: Authored, name: str = "g1") -> Committed:
        commands = cast(list[Any], in_parallel(*members, base=start))
        operation = CheckpointGroup(
            *self._about(), checkpoint_id=name, start=start, commands=commands
        )
        return cast(Committed, self.story.decide(operation))

    def prepare(
        self, sequence: int, command: PrepareLocalActivity | None = None, nonce: str = "n"
    ) -> AttemptView:
        operation = PrepareAttempt(
            *self._about(), sequence=sequence, nonce=nonce, command=command or local()
        )
        return cast(AttemptView, self.story.decide(operation))

    def recover(self, sequence: int, command: PrepareLocalActivity | None = None) -> Finished:
        operation = RecoverAttempt(*self._about(), sequence=sequence, command=command or local())
        return cast(Finished, self.story.decide(operation))

    def watch(self, attempt_id: str) -> AttemptView:
        operation = WatchAttempt(*self._about(), attempt_id, timeout=LEASE * SECOND)
        return cast(AttemptView, self.story.decide(operation))

    def beat(self, attempt_id: str, progress: bytes | None = None) -> AttemptView:
        operation = HeartbeatAttempt(*self._about(), attempt_id, progress=progress)
        return cast(AttemptView, self.story.decide(operation))

    def complete(self, attempt_id: str) -> Finished:
        return self._end(attempt_id, Outcome(result=RESULT))

    def fail(self, attempt_id: str, **members: Any) -> Finished:
        failure = Reported("no luck", exception_type="NoLuck", **members)
        return self._end(attempt_id, Outcome(failure=failure))

    def _end(self, attempt_id: str, outcome: Outcome) -> Finished:
        operation = EndAttempt(*self._about(), attempt_id, outcome=outcome)
        return cast(Finished, self.story.decide(operation))

    def acknowledge(self, attempt_id: str) -> bool:
        assert self.run.cancellation is not None
        request_id = self.run.cancellation.request_id
        operation = AcknowledgeAttempt(*self._about(), attempt_id, request_id=request_id)
        return bool(self.story.decide(operation).duplicate)


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


@pytest.fixture
def worker(story: Story, run: Run) -> Preparing:
    return Preparing(story, run)


def event_numbers(story: Story, run: Run) -> list[tuple[str, int | None]]:
    return story.numbered(run, after=2)


# Permission -----------------------------------------------------------------------------------


def test_everything_is_in_history_before_the_task_ends(
    story: Story, run: Run, worker: Preparing
) -> None:
    worker.checkpoint(1, side_effect())
    begun = worker.prepare(2)
    worker.complete(begun.attempt_id)
    assert event_numbers(story, run) == [
        ("SideEffectRecorded", 1),
        ("ActivityScheduled", 2),
        ("ActivityStarted", 2),
        ("ActivityCompleted", 2),
    ]
    local_events = story.history(run)[3:]
    assert all(e.payload["execution_mode"] == "local" for e in local_events)
    assert {e.payload["activity_execution_id"] for e in local_events} == {begun.execution_id}

    story.complete(run, complete_run(), report=worker.report)
    assert run.status is RunStatus.COMPLETED


def test_every_answer_is_given_again(story: Story, run: Run, worker: Preparing) -> None:
    first = worker.checkpoint(1, side_effect())
    begun = worker.prepare(2, local(start_to_close=30))
    story.later(seconds=5)
    with story.unchanged():
        assert worker.checkpoint(1, side_effect()).checkpoint == first.checkpoint
        again = worker.prepare(2, local(start_to_close=30))
    assert (again.duplicate, again.attempt_id) == (True, begun.attempt_id)
    assert again.start_to_close_at == begun.start_to_close_at
    ended = worker.complete(begun.attempt_id)
    story.crash()
    with story.unchanged():
        repeated = worker.complete(begun.attempt_id)
    assert (repeated.duplicate, repeated.end) == (True, ended.end)
    with story.refused(StaleAttempt):
        worker.fail(begun.attempt_id)


def test_only_the_lease_of_a_worker_that_registered_for_it_counts(story: Story, run: Run) -> None:
    story.lease(run)
    plain = Preparing.__new__(Preparing)
    plain.story, plain.run, plain.report = story, run, report_of(run)
    with story.refused(PreparedLocalUnavailable):
        plain.prepare(1)
    story.later(seconds=LEASE)
    worker = Preparing(story, run)
    begun = worker.prepare(1)
    good = worker.report
    for wrong, refusal in (
        (TaskReport(number=good.number, owner="w2", attempt=good.attempt), LeaseOwnerMismatch),
        (TaskReport(number=good.number, owner="w1", attempt=9), WorkflowTaskAttemptMismatch),
    ):
        worker.report = wrong
        for say in (
            lambda: worker.checkpoint(2, side_effect()),
            lambda: worker.prepare(1),
            lambda: worker.recover(1),
            lambda: worker.watch(begun.attempt_id),
            lambda: worker.beat(begun.attempt_id),
            lambda: worker.complete(begun.attempt_id),
        ):
            with story.refused(refusal):
                say()
    worker.report = good
    with story.refused(AttemptNotFound):
        worker.watch("SOMEBODY-ELSES-1")
    with story.refused(StaleAttempt):
        worker.complete(begun.attempt_id.replace("-1", "-2"))


@pytest.mark.parametrize(
    ("sequence", "command"),
    [(2, local()), (9, local()), (1, local("other"))],
    ids=["later", "much later", "another activity"],
)
def test_a_call_that_cannot_be_is_refused(
    story: Story, run: Run, worker: Preparing, sequence: int, command: PrepareLocalActivity
) -> None:
    if command.activity_type == "other":
        worker.prepare(1)
    with story.refused(PreparedLocalConflict):
        worker.prepare(sequence, command)


def test_a_task_does_not_end_before_its_local_work(
    story: Story, run: Run, worker: Preparing
) -> None:
    worker.prepare(1)
    with story.refused(InvalidCommands):
        story.complete(run, report=worker.report)
    story.fail_task(run, failure_type=WAITING_FOR_HISTORY, report=worker.report)
    assert run.task is not None, "it comes again: there is something to be done"


def test_only_workers_that_ask_get_a_run_with_open_local_work(
    story: Story, run: Run, worker: Preparing
) -> None:
    assert task_name(run) == "order"
    begun = worker.prepare(1)
    assert task_name(run) == "order\x1c"
    assert next_cause(run) is not None
    worker.complete(begun.attempt_id)
    assert task_name(run) == "order"


# Attempts ---------------------------------------------------------------------------------------


def test_a_retry_gives_the_lease_back_and_comes_with_a_task(
    story: Story, run: Run, worker: Preparing
) -> None:
    policy = retries(2, 10)
    begun = worker.prepare(1, local(retry=policy))
    failed = worker.fail(begun.attempt_id)
    assert (failed.end.event_type, failed.end.created) == (
        "ActivityRetryScheduled",
        f"{run.run_id}-w2",
    )
    with story.unchanged():
        assert worker.fail(begun.attempt_id).duplicate
    with story.refused(TaskNotLeased):
        story.complete(run, report=worker.report)
    story.signal(run)
    assert run.task is None, "nothing to do until then"
    cause = next_cause(run)
    assert cause is not None
    assert cause.kind == "local_activity"
    story.later(seconds=10)

    worker = Preparing(story, run, "w2")
    again = worker.prepare(1, local(retry=policy))
    assert again.attempt_number == 2
    ended = worker.fail(again.attempt_id)
    assert (ended.end.event_type, ended.end.created) == ("ActivityFailed", None)
    story.complete(run, complete_run(), report=worker.report)


def test_an_attempt_that_was_lost_with_its_worker_is_recovered_and_tried_again(
    story: Story, run: Run, worker: Preparing
) -> None:
    lost = worker.prepare(1)
    with story.refused(PreparedLocalConflict):
        worker.recover(1)
    story.crash()
    story.later(seconds=LEASE)
    run = story.runs[run.run_id]
    other = Preparing(story, run, "w2")
    with story.refused(PreparedLocalConflict):
        other.prepare(1)
    with story.refused(StaleAttempt):
        other.complete(lost.attempt_id)
    found = other.recover(1)
    assert (found.end.attempt_id, found.end.event_type) == (
        lost.attempt_id,
        "ActivityRetryScheduled",
    )
    with story.unchanged():
        assert other.recover(1).end == found.end
    event = story.history(run)[-1]
    assert event.payload["retry_reason"] == "cold_replay"
    assert event.payload["local_recovery"] == {
        "workflow_task_id": f"{run.run_id}-w1",
        "workflow_task_attempt": 2,
        "lease_owner": "w2",
        "callback_stop_state": "unknown",
    }
    again = Preparing(story, run, "w3").prepare(1)
    assert again.attempt_number == 2


def test_there_is_an_end_to_losing_workers(
    story: Story, run: Run, worker: Preparing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOCAL_ATTEMPTS_MAX", 1)
    worker.prepare(1)
    story.later(seconds=LEASE)
    found = Preparing(story, run, "w2").recover(1)
    assert (found.end.event_type, found.end.created) == ("ActivityFailed", None)
    assert run.local_calls == []


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_time_out_takes_the_lease_away(story: Story, run: Run, attempts: int) -> None:
    worker = Preparing(story, run)
    begun = worker.prepare(1, local(start_to_close=5, retry=retries(attempts)))
    story.later(seconds=5)
    with story.refused(TaskNotLeased):
        worker.complete(begun.attempt_id)
    ending = "ActivityTimedOut" if attempts == 1 else "ActivityRetryScheduled"
    assert story.types(run)[-1] == ending
    assert run.task is not None
    assert task_name(run) == ("order" if attempts == 1 else "order\x1c")


def test_a_time_out_that_finds_no_worker_renames_the_task(
    story: Story, run: Run, worker: Preparing
) -> None:
    worker.prepare(1, local(schedule_to_close=LEASE + 10))
    story.later(seconds=LEASE)
    assert task_name(run) == "order\x1c"
    story.later(seconds=10)
    assert story.types(run)[-1] == "ActivityTimedOut"
    assert task_name(run) == "order"
    story.work(run, complete_run())


def test_a_task_that_came_too_early_is_taken_back(
    story: Story, run: Run, worker: Preparing
) -> None:
    """The worker is lost, its attempt times out, and the next one is not due yet."""
    command = local(start_to_close=LEASE + 5, retry=retries(2, 30))
    worker.prepare(1, command)
    story.later(seconds=LEASE)
    assert story.disk.ready[run.run_id] == {0}
    story.later(seconds=5)
    assert story.types(run)[-1] == "ActivityRetryScheduled"
    assert run.task is None
    assert story.disk.ready[run.run_id] == set()
    story.later(seconds=30)
    assert Preparing(story, run, "w2").prepare(1, command).attempt_number == 2


def test_heartbeats_keep_it_alive_and_are_told_sparsely(
    story: Story, run: Run, worker: Preparing
) -> None:
    begun = worker.prepare(1, local(heartbeat=10))
    for _ in range(30):
        story.later(seconds=1)
        view = worker.beat(begun.attempt_id, b'{"details":{"done":1}}')
        assert view.reason is None
        assert view.heartbeat_event_id
        assert view.heartbeat_due_at == story.clock.now() + 10 * SECOND
        assert worker.watch(begun.attempt_id).lease_expires_at == story.clock.now() + LEASE * SECOND
    assert story.types(run).count("ActivityHeartbeatRecorded") < 20
    story.later(seconds=10)
    assert story.types(run)[-1] == "ActivityTimedOut"


# Lists ------------------------------------------------------------------------------------------


def test_a_list_is_opened_at_once_and_ends_with_its_last_member(
    story: Story, run: Run, worker: Preparing
) -> None:
    opened = worker.open_list(1, local(), activity(), local("other"))
    with story.unchanged():
        assert worker.open_list(1, local(), activity(), local("other")).duplicate
    assert [each.sequence for each in opened.checkpoint.activities] == [1, 3]
    first, second = worker.prepare(1), worker.prepare(3, local("other"))
    story.do_activity(run, 2)
    worker.complete(second.attempt_id)
    worker.complete(first.attempt_id)
    story.complete(run, report=worker.report)
    assert [n for t, n in event_numbers(story, run) if t == "ActivityCompleted"] == [3, 1, 2]
    assert run.groups == {}
    story.work(run, complete_run())


def test_a_retry_in_a_list_loses_the_others_and_they_are_tried_again_together(
    story: Story, run: Run, worker: Preparing
) -> None:
    policy = retries(3, 10)
    worker.open_list(1, local(retry=policy), local("other"))
    first, _ = worker.prepare(1, local(retry=policy)), worker.prepare(2, local("other"))
    worker.fail(first.attempt_id)
    assert run.task is None
    story.later(seconds=10)
    worker = Preparing(story, run)
    worker.recover(2, local("other"))
    worker = Preparing(story, run)
    first, second = worker.prepare(1, local(retry=policy)), worker.prepare(2, local("other"))
    assert (first.attempt_number, second.attempt_number) == (2, 2)
    worker.complete(first.attempt_id)
    worker.complete(second.attempt_id)
    story.complete(run, complete_run(), report=worker.report)


def test_after_a_time_out_in_a_group_a_worker_continues_the_rest(
    story: Story, run: Run, worker: Preparing
) -> None:
    worker.open_list(1, local(start_to_close=5), local("other"))
    worker.prepare(1, local(start_to_close=5))
    worker.prepare(2, local("other"))
    story.later(seconds=5)
    assert run.task is not None
    Preparing(story, run, "w2").recover(2, local("other"))


@pytest.mark.parametrize(
    "members", [(activity(), timer()), (local(), condition())], ids=["none local", "a condition"]
)
def test_what_is_no_such_list_is_refused(
    story: Story, run: Run, worker: Preparing, members: tuple[Authored, ...]
) -> None:
    with story.refused(InvalidCommands):
        worker.open_list(1, *members)


# Cancelling -------------------------------------------------------------------------------------


def test_an_attempt_is_told_to_stop_and_the_code_is_cancelled_after_it_has(
    story: Story, run: Run, worker: Preparing
) -> None:
    begun = worker.prepare(1, local(policy="wait_cancellation_completed", start_to_close=30))
    story.request_cancellation(run, seconds=600)
    stop = worker.watch(begun.attempt_id)
    assert stop.reason == "cancellation_requested"
    assert stop.cancellation_event_id == story.history(run)[-1].id
    with story.unchanged():
        assert worker.beat(begun.attempt_id).reason == "cancellation_requested"
    with story.refused(CancellationRequested):
        worker.complete(begun.attempt_id)
    with story.refused(InvalidCancellationBoundary):
        story.deliver_cancellation(run, "local_activity", 1, report=worker.report)
    story.later(seconds=LEASE - 1)
    assert "ActivityTimedOut" not in story.types(run), "its own time counts no more"
    assert worker.acknowledge(begun.attempt_id) is False
    with story.unchanged():
        assert worker.acknowledge(begun.attempt_id) is True
    story.deliver_cancellation(run, "local_activity", 1, report=worker.report)
    assert story.types(run)[-3:] == [
        "CooperativeCancellationRequested",
        "ActivityCancelled",
        "CooperativeCancellationDelivered",
    ]


def test_nothing_but_clean_up_begins_after_a_request(
    story: Story, run: Run, worker: Preparing
) -> None:
    story.request_cancellation(run, seconds=100)
    for command in (local(), local(cleanup=Cleanup("r", "e"))):
        with story.refused(CancellationRequested):
            worker.prepare(1, command)
    with story.refused(CancellationRequested):
        worker.open_list(1, local(), timer())
    story.deliver_cancellation(run, "local_activity", 1, report=worker.report)
    with story.refused(CancellationRequested):
        worker.prepare(2)
    with story.refused(PreparedLocalConflict):
        worker.prepare(2, local(cleanup=Cleanup("r", "e")))
    cancellation = run.cancellation
    assert cancellation is not None
    assert cancellation.delivered_event_id == story.history(run)[-1].id
    proof = Cleanup(cancellation.request_id, cancellation.delivered_event_id)

    begun = worker.prepare(2, local(cleanup=proof, start_to_close=500))

    assert begun.cleanup is not None
    end = cancellation.deadline_at
    assert (begun.cleanup.deadline_at, begun.start_to_close_at, begun.heartbeat_due_at) == (
        end,
        end,
        end,
    )
    assert worker.watch(begun.attempt_id).reason is None
    worker.complete(begun.attempt_id)
    story.complete(run, complete_run(), report=worker.report)


def test_what_a_lost_worker_ran_is_cancelled_by_the_next(
    story: Story, run: Run, worker: Preparing
) -> None:
    worker.prepare(1)
    story.request_cancellation(run, seconds=600)
    story.later(seconds=LEASE)
    other = Preparing(story, run, "w2")
    with story.refused(CancellationRequested):
        other.recover(1)
    story.deliver_cancellation(run, "local_activity", 1, report=other.report)
    assert run.local_calls == []
    story.complete(run, complete_run(), report=other.report)


def test_a_run_that_is_closed_tells_of_its_local_work(
    story: Story, run: Run, worker: Preparing
) -> None:
    begun = worker.prepare(1)
    story.cancel(run)
    assert story.types(run)[-2:] == ["ActivityCancelled", "WorkflowCancelled"]
    with pytest.raises(Rejection):
        worker.watch(begun.attempt_id)


# Numbers ----------------------------------------------------------------------------------------


def reopened(story: Story, run: Run, times: int) -> Preparing:
    """A worker that counts calls, behind a wait that was opened again."""
    for _ in range(times):
        story.lease_preparing(run)
        story.complete(run, condition())
        story.signal(run)
    return Preparing(story, run)


def test_a_wait_that_is_opened_again_keeps_its_number_for_workers_that_count_calls(
    story: Story, run: Run
) -> None:
    worker = reopened(story, run, 3)
    with story.refused(PreparedLocalConflict):
        worker.prepare(5)
    worker.prepare(2)
    waits = [n for t, n in event_numbers(story, run) if t.startswith("ConditionWait")]
    assert waits == [1, 1, 1, 1], "three openings and their end"
    assert event_numbers(story, run)[-1] == ("ActivityStarted", 2)


def test_an_opening_for_a_message_keeps_the_number_as_well(story: Story, run: Run) -> None:
    story.lease_preparing(run)
    story.complete(run, *in_selection({"clock": timer(1), "slow": activity()}))
    story.later(seconds=1)
    story.lease_preparing(run)
    story.complete(run, condition())
    story.lease_activity(run, 2)
    story.signal(run)
    assert event_numbers(story, run)[-3:] == [
        ("ActivityStarted", 2),
        ("ConditionWaitOpened", 3),
        ("SignalReceived", None),
    ]
    worker = Preparing(story, run)
    story.complete(run, report=worker.report)
    story.request_cancellation(run)
    assert event_numbers(story, run)[-3:] == [
        ("TimerCancelled", 3),
        ("ConditionWaitOpened", 4),
        ("CooperativeCancellationRequested", None),
    ]


@pytest.mark.parametrize("sequence", [2, 3, 4])
def test_the_worker_knows_how_many_calls_there_were(story: Story, run: Run, sequence: int) -> None:
    """A loop that waits for one condition three times sends what a wait does that stays false.

    Nobody but the worker can tell the one from the other, and it tells with its next number.
    """
    worker = reopened(story, run, 3)
    worker.checkpoint(sequence, side_effect())
    assert event_numbers(story, run)[-1] == ("SideEffectRecorded", sequence)
    with story.refused(PreparedLocalConflict):
        worker.prepare(sequence)
    worker.prepare(sequence + 1)


def test_a_request_finds_a_wait_that_was_opened_again_at_a_number_of_its_own(
    story: Story, run: Run
) -> None:
    for _ in range(3):
        story.lease_preparing(run)
        story.complete(run, condition(timeout=600))
        story.signal(run)
    story.lease_preparing(run)
    story.complete(run, condition(timeout=600))
    fire_at = run.operations[1].fire_at  # type: ignore[union-attr]
    story.request_cancellation(run)
    assert event_numbers(story, run)[-4:] == [
        ("TimerCancelled", 1),
        ("ConditionWaitOpened", 2),
        ("TimerScheduled", 2),
        ("CooperativeCancellationRequested", None),
    ]
    assert run.operations[2].fire_at == fire_at  # type: ignore[union-attr]
    worker = Preparing(story, run)
    story.deliver_cancellation(run, "condition", 2, report=worker.report)
    story.complete(run, timer(), report=worker.report)
    assert event_numbers(story, run)[-1] == ("TimerScheduled", 3)


@pytest.mark.parametrize("sequence", [4, 5])
def test_the_worker_knows_the_number_of_its_wait_for_a_loser(
    story: Story, run: Run, sequence: int
) -> None:
    story.lease_preparing(run)
    story.complete(run, *in_selection({"slow": timer(3600), "clock": timer(1)}))
    story.later(seconds=1)
    for _ in range(2):
        story.lease_preparing(run)
        story.complete(run, condition())
        story.signal(run)
    worker = Preparing(story, run)
    story.request_cancellation(run)
    story.deliver_cancellation(
        run, "selection_handle", sequence, operation=(1, 1), report=worker.report
    )
    assert event_numbers(story, run)[-1] == ("CooperativeCancellationDelivered", sequence)
    assert run.next_sequence == sequence + 1


def test_a_request_during_a_task_leaves_a_reopened_wait_alone_until_the_code_has_passed_it(
    story: Story, run: Run
) -> None:
    worker = reopened(story, run, 2)
    story.request_cancellation(run)
    with story.refused(InvalidCancellationBoundary):
        story.deliver_cancellation(run, "condition", 1, report=worker.report)
    story.deliver_cancellation(run, "local_activity", 3, report=worker.report)
    assert event_numbers(story, run)[-3:] == [
        ("ConditionWaitSatisfied", 1),
        ("CooperativeCancellationRequested", None),
        ("CooperativeCancellationDelivered", 3),
    ]

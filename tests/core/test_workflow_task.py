"""The workflow task: granted to one owner at a time, fenced, reported once, never lost."""

from collections.abc import Callable

import pytest

from perdure.core.limits import SECOND, WORKFLOW_LEASE_TIMEOUT, WORKFLOW_TASK_BACKOFF_MAX
from perdure.core.rejection import (
    InvalidCommands,
    LeaseExpired,
    LeaseOwnerMismatch,
    Rejection,
    RunClosed,
    RunTimedOut,
    TaskNotFound,
    TaskNotLeased,
    WorkflowTaskAttemptMismatch,
)
from perdure.core.run.cause import next_cause
from perdure.core.run.completion import WAITING_FOR_HISTORY, TaskReport
from perdure.core.run.lease import TaskState
from perdure.core.run.state import (
    WORKFLOW_TASK,
    Run,
    TaskRef,
    parse_task_id,
    workflow_task_id,
)
from perdure.core.run.status import RunStatus
from tests.support.clock import START
from tests.support.commands import activity, complete_run, condition, side_effect, timer
from tests.support.rule_harness import Story, lease_of, report_of

# Granting ---------------------------------------------------------------------------------------


def test_a_lease_hides_the_task_and_freezes_the_history(story: Story) -> None:
    run = story.start()

    task = story.lease(run, "w1")

    lease = lease_of(task)
    assert (lease.owner, task.attempt, task.snapshot) == ("w1", 1, run.history_count)
    assert lease.expires_at == START + WORKFLOW_LEASE_TIMEOUT
    assert not story.disk.ready[run.run_id]
    assert story.disk.due_at[run.run_id] == lease.expires_at


def test_leasing_records_nothing(story: Story) -> None:
    run = story.start()
    before = story.types(run)

    story.lease(run)

    assert story.types(run) == before
    assert run.status is RunStatus.PENDING


def test_a_lease_that_ends_without_a_word_makes_the_same_task_ready_again(story: Story) -> None:
    run = story.start()
    story.lease(run, "w1")

    story.later(seconds=60)

    assert run.task is not None
    assert (run.task.number, run.task.state, run.task.lease) == (1, TaskState.READY, None)
    assert story.disk.ready[run.run_id] == {WORKFLOW_TASK}
    again = story.lease(run, "w2")
    assert (again.number, again.attempt) == (1, 2)


def test_a_renewed_lease_counts_from_now(story: Story) -> None:
    run = story.start()
    task = story.lease(run)
    story.later(seconds=50)

    story.renew_task(run)

    assert lease_of(task).expires_at == START + 110 * SECOND
    story.later(seconds=59)
    assert task.state is TaskState.LEASED
    story.later(seconds=1)
    assert run.task is not None
    assert run.task.state is TaskState.READY


# Refusing ---------------------------------------------------------------------------------------

Report = Callable[[Run], TaskReport]
STALE: list[tuple[str, Report, type[Rejection]]] = [
    ("another owner", lambda run: report_of(run, owner="w2"), LeaseOwnerMismatch),
    ("an old attempt", lambda run: report_of(run, attempt=1), WorkflowTaskAttemptMismatch),
    ("a future attempt", lambda run: report_of(run, attempt=3), WorkflowTaskAttemptMismatch),
    ("an old task", lambda run: TaskReport(number=1, owner="w1", attempt=2), TaskNotLeased),
    ("a task to come", lambda run: TaskReport(number=3, owner="w1", attempt=2), TaskNotFound),
    ("no task at all", lambda run: TaskReport(number=0, owner="w1", attempt=2), TaskNotFound),
]


@pytest.mark.parametrize(
    ("report", "rejection"), [case[1:] for case in STALE], ids=[case[0] for case in STALE]
)
@pytest.mark.parametrize("verb", ["complete", "fail", "renew"])
def test_a_stale_report_is_refused_before_any_command_is_applied(
    story: Story, verb: str, report: Report, rejection: type[Rejection]
) -> None:
    run = story.start()
    story.work(run, timer(5))
    story.later(seconds=5)
    story.lease(run, "w1")
    story.later(seconds=60)
    story.lease(run, "w1")
    stale = report(run)

    with story.refused(rejection):
        if verb == "complete":
            story.complete(run, side_effect(), complete_run(), report=stale)
        elif verb == "fail":
            story.fail_task(run, report=stale)
        else:
            story.renew_task(run, report=stale)


def test_an_expired_lease_is_refused_even_before_anybody_noticed(story: Story) -> None:
    run = story.start()
    story.lease(run)
    story.clock.jump(seconds=60)

    with story.refused(LeaseExpired) as caught:
        story.complete(run, complete_run())
    assert caught.value.details["lease_expires_at"] == START + WORKFLOW_LEASE_TIMEOUT


def test_a_ready_task_cannot_be_completed(story: Story) -> None:
    run = story.start()

    with story.refused(TaskNotLeased):
        story.complete(run, complete_run(), report=TaskReport(number=1, owner="w1", attempt=1))


def test_a_worker_of_a_closed_run_learns_how_it_was_closed(story: Story) -> None:
    run = story.start()
    story.lease(run)
    report = report_of(run)
    story.cancel(run, "changed my mind")

    with story.refused(RunClosed) as caught:
        story.complete(run, complete_run(), report=report)
    details = caught.value.details
    assert details["stop_reason"] == "run_cancelled"
    assert details["cancel_requested"] is True
    assert details["run_closed_reason"] == "cancelled"


def test_a_run_past_its_deadline_takes_no_commands(story: Story) -> None:
    run = story.start(run_timeout_seconds=30)
    story.lease(run)
    story.clock.jump(seconds=30)

    with story.refused(RunTimedOut):
        story.complete(run, complete_run())


# Repeating --------------------------------------------------------------------------------------


def test_a_repeated_completion_gets_the_recorded_answer_and_has_no_effect(story: Story) -> None:
    run = story.start()
    story.lease(run)
    report = report_of(run)
    first = story.complete(run, activity(), report=report)

    with story.unchanged():
        again = story.complete(run, activity(), report=report)
    assert again.receipt == first.receipt
    assert first.receipt.created_task_ids == [f"{run.run_id}-a1"]


def test_a_completion_that_closed_the_run_can_be_repeated(story: Story) -> None:
    run = story.start()
    story.lease(run)
    report = report_of(run)
    story.complete(run, complete_run(), report=report)

    with story.unchanged():
        again = story.complete(run, complete_run(), report=report)
    assert (again.run_status, again.receipt.outcome) == ("completed", "completed")


def test_a_repeated_failure_does_not_lengthen_the_backoff(story: Story) -> None:
    run = story.start()
    story.lease(run)
    report = report_of(run)
    story.fail_task(run, report=report)

    with story.unchanged():
        again = story.fail_task(run, report=report)
    assert again.receipt.outcome == "failed"
    assert again.receipt.created_task_ids == [f"{run.run_id}-w1"]


@pytest.mark.parametrize("first", ["complete", "fail"])
def test_the_first_report_of_a_lease_counts(story: Story, first: str) -> None:
    run = story.start()
    story.lease(run)
    report = report_of(run)
    if first == "complete":
        story.complete(run, timer(5), report=report)
    else:
        story.fail_task(run, report=report)

    with story.unchanged():
        completed = story.complete(run, complete_run(), report=report)
        failed = story.fail_task(run, report=report)
    assert completed.receipt == failed.receipt
    assert completed.receipt.outcome == f"{first}{'d' if first == 'complete' else 'ed'}"


def test_the_receipt_survives_a_crash(story: Story) -> None:
    run = story.start()
    story.lease(run)
    report = report_of(run)
    story.complete(run, timer(5), report=report)
    story.crash()

    again = story.complete(story.runs[run.run_id], timer(5), report=report)

    assert again.receipt.outcome == "completed"
    assert story.types(story.runs[run.run_id], after=2) == ["TimerScheduled"]


def test_a_repetition_from_before_the_next_task_is_stale(story: Story) -> None:
    run = story.start()
    story.lease(run)
    old = report_of(run)
    story.complete(run, timer(5), report=old)
    story.later(seconds=5)
    story.work(run, timer(5))

    with story.refused(TaskNotLeased):
        story.complete(run, timer(5), report=old)


# Failing ----------------------------------------------------------------------------------------


def test_a_failed_task_comes_again_later_and_later_but_within_a_bound(story: Story) -> None:
    run = story.start()
    delays: list[int] = []
    for _ in range(9):
        story.lease(run)
        story.fail_task(run, "no such module", failure_type="ImportError")
        assert run.task is not None
        assert run.task.state is TaskState.DELAYED
        delays.append((run.task.available_at - story.clock.now()) // SECOND)
        story.later(seconds=delays[-1])

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert WORKFLOW_TASK_BACKOFF_MAX == 60 * SECOND
    assert run.task is not None
    assert (run.task.number, run.task.attempt, run.task.failures) == (1, 9, 9)
    assert run.task.failure_message == "ImportError: no such module"
    assert run.status is RunStatus.PENDING
    assert story.types(run) == ["StartAccepted", "WorkflowStarted"]


def test_facts_enter_the_history_while_a_failed_task_waits(story: Story) -> None:
    run = story.start()
    story.work(run, timer(30))
    story.later(seconds=30)
    story.lease(run)
    story.fail_task(run)

    story.signal(run, "hurry")
    story.later(seconds=1)

    assert story.types(run, after=2) == ["TimerScheduled", "TimerFired"]
    assert len(run.inbox) == 1
    story.work(run, condition())
    assert story.types(run)[-1] == "SignalReceived"


@pytest.mark.parametrize("answer", ["waiting for history", "nothing"])
def test_a_worker_with_nothing_to_add_ends_its_lease_without_further_action(
    story: Story, answer: str
) -> None:
    run = story.start()
    if answer == "nothing":
        story.work(run, side_effect())
        story.signal(run, "more")
    else:
        story.work(run, activity())
        story.do_activity(run, 1)
    before = story.types(run)
    story.lease(run)

    if answer == "nothing":
        ended = story.complete(run)
    else:
        ended = story.fail_task(run, "pending step", failure_type=WAITING_FOR_HISTORY)

    assert ended.run_status == "waiting"
    assert run.task is None
    assert story.types(run) == before
    assert not story.disk.ready[run.run_id]


def test_a_completion_that_leaves_the_run_without_a_cause_is_refused(story: Story) -> None:
    run = story.start()
    story.lease(run)
    with story.unchanged(), pytest.raises(InvalidCommands, match="needs an open step"):
        story.complete(run)
    story.complete(run, activity())
    story.do_activity(run, 1)
    story.lease(run)
    with story.unchanged(), pytest.raises(InvalidCommands, match="needs an open step"):
        story.complete(run)
    story.complete(run, complete_run())
    assert run.is_closed


def test_code_that_a_signal_woke_may_have_nothing_to_do(story: Story) -> None:
    run = story.start()
    story.work(run, side_effect())
    assert run.task is None
    story.signal(run, "more")
    story.lease(run)

    assert story.complete(run).run_status == "waiting"
    cause = next_cause(run)
    assert cause is not None
    assert cause.kind == "signal"
    assert "only a signal, an update or a request to cancel" in cause.text


def test_waiting_for_history_on_the_first_task_makes_the_run_wait(story: Story) -> None:
    run = story.start()
    story.lease(run)

    story.fail_task(run, failure_type=WAITING_FOR_HISTORY)

    assert run.status is RunStatus.WAITING


# Naming -----------------------------------------------------------------------------------------


def test_a_task_id_names_its_run_and_its_place(story: Story) -> None:
    run = story.start()
    assert run.task is not None

    found = parse_task_id(workflow_task_id(run, run.task), "w")

    assert found == TaskRef(run.run_id, WORKFLOW_TASK, 1)
    assert parse_task_id(f"{run.run_id}-a17", "a") == TaskRef(run.run_id, 17, 17)


@pytest.mark.parametrize("text", ["", "x", "x-", "x-w", "x-wq", "x-a1", "x-w-1", f"x-w{10**12}"])
def test_what_is_no_task_id_names_nothing(text: str) -> None:
    assert parse_task_id(text, "w") is None


def test_a_task_that_is_taken_in_one_beat_with_its_successor_leaves_no_row_behind(
    story: Story,
) -> None:
    """The disk had the first task; the second one came, was taken, and hid that."""
    run = story.start()
    assert story.disk.ready[run.run_id] == {WORKFLOW_TASK}

    story.hold()
    story.work(run, condition("gate"))
    story.signal(run)
    story.lease(run)
    story.commit()

    assert story.disk.ready[run.run_id] == set()

"""Activities: one attempt at a time, four time-outs, retried by policy, ended once."""

from typing import Any

import msgspec
import pytest

from perdure.core.limits import (
    ACTIVITY_LEASE_TIMEOUT,
    HEARTBEAT_NOTE_INTERVAL,
    HEARTBEAT_NOTES_MIN,
    SECOND,
)
from perdure.core.rejection import (
    AttemptNotFound,
    LeaseOwnerMismatch,
    Rejection,
    RunCancelled,
    RunClosed,
    RunTerminated,
    StaleAttempt,
    TaskNotFound,
)
from perdure.core.run.activity import LEASE_MAX, Reported, backoff
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import RetryPolicy
from perdure.core.run.state import Run
from perdure.engine.activity_tasks import AttemptRef, ReleaseActivity
from tests.support.clock import START
from tests.support.commands import RESULT, activity, complete_run, retries
from tests.support.rule_harness import Story, lease_of, ref_of


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


def _at(seconds: float) -> str:
    return f"2026-01-01T00:{int(seconds) // 60:02d}:{int(seconds) % 60:02d}.000000Z"


# One attempt ------------------------------------------------------------------------------------


def test_a_lease_records_that_the_attempt_started(story: Story, run: Run) -> None:
    story.work(run, activity("charge"))

    leased = story.lease_activity(run, 1, "w1")

    assert story.last(run) == {
        "sequence": 1,
        "activity_execution_id": leased.execution_id,
        "activity_attempt_id": leased.attempt_id,
        "activity_type": "charge",
        "attempt_number": 1,
    }
    assert lease_of(leased).owner == "w1"
    assert lease_of(leased).expires_at == START + ACTIVITY_LEASE_TIMEOUT
    assert story.disk.ready[run.run_id] == set()


@pytest.mark.parametrize("result", [RESULT, None], ids=["a result", "no result"])
def test_a_completed_attempt_gives_its_result_and_wakes_the_run(
    story: Story, run: Run, result: bytes | None
) -> None:
    story.work(run, activity("charge"))
    leased = story.lease_activity(run, 1)
    recorded = story.complete_activity(run, 1, result)

    expected: dict[str, Any] = {
        "sequence": 1,
        "activity_execution_id": leased.execution_id,
        "activity_attempt_id": leased.attempt_id,
        "activity_type": "charge",
        "attempt_number": 1,
        "payload_codec": "avro",
    }
    if result is not None:
        expected["result"] = msgspec.json.decode(result)
    assert story.types(run)[-1] == "ActivityCompleted"
    assert story.last(run) == expected
    assert recorded.next_task_id == f"{run.run_id}-w2"
    assert run.operations == {}
    assert run.task is not None
    assert run.task.resume["activity_execution_id"] == leased.execution_id


def test_a_failed_attempt_without_a_policy_ends_the_activity(story: Story, run: Run) -> None:
    story.work(run, activity("charge"))
    leased = story.lease_activity(run, 1)
    failure = Reported(
        "card refused",
        exception_type="CardRefused",
        exception_class="shop.CardRefused",
        code=402,
        stack_trace="line 1",
        details=b'{"codec":"avro","blob":"wwHioz3/VYAiNwA="}',
    )
    story.fail_activity(run, 1, failure)

    payload = story.last(run)
    assert story.types(run)[-1] == "ActivityFailed"
    assert payload == {
        "sequence": 1,
        "activity_execution_id": leased.execution_id,
        "activity_attempt_id": leased.attempt_id,
        "activity_type": "charge",
        "attempt_number": 1,
        "failure_id": payload["failure_id"],
        "failure_category": "activity",
        "message": "card refused",
        "exception_type": "CardRefused",
        "exception_class": "shop.CardRefused",
        "code": 402,
        "non_retryable": False,
        "exception": {
            "type": "CardRefused",
            "message": "card refused",
            "code": 402,
            "non_retryable": False,
            "details": {"codec": "avro", "blob": "wwHioz3/VYAiNwA="},
            "details_payload_codec": "avro",
            "stack_trace": "line 1",
        },
    }
    assert run.task is not None


# Reports that are not of the present attempt ----------------------------------------------------


def _refs(run: Run) -> dict[str, tuple[AttemptRef, type[Rejection]]]:
    """Reports on a second attempt that is leased by w2."""
    now = ref_of(run, 1)
    execution = now.attempt_id.rpartition("-")[0]
    replace = msgspec.structs.replace
    return {
        "the first attempt": (replace(now, attempt_id=f"{execution}-1"), StaleAttempt),
        "a third attempt": (replace(now, attempt_id=f"{execution}-3"), StaleAttempt),
        "somebody else": (replace(now, owner="w1"), LeaseOwnerMismatch),
        "another activity": (replace(now, attempt_id="01J-2"), AttemptNotFound),
        "nonsense": (replace(now, attempt_id="x"), AttemptNotFound),
        "a step to come": (replace(now, sequence=9), TaskNotFound),
        "another namespace": (replace(now, namespace="other"), TaskNotFound),
        "another run": (replace(now, run_id="01j"), TaskNotFound),
    }


@pytest.mark.parametrize(
    "who",
    [
        "the first attempt",
        "a third attempt",
        "somebody else",
        "another activity",
        "nonsense",
        "a step to come",
        "another namespace",
        "another run",
    ],
)
@pytest.mark.parametrize("verb", ["complete", "fail", "renew"])
def test_a_report_on_another_attempt_is_refused(
    story: Story, run: Run, verb: str, who: str
) -> None:
    story.work(run, activity())
    story.lease_activity(run, 1, "w1")
    story.later(seconds=300)
    story.lease_activity(run, 1, "w2")
    ref, rejection = _refs(run)[who]

    with story.refused(rejection):
        if verb == "complete":
            story.complete_activity(run, 1, ref=ref)
        elif verb == "fail":
            story.fail_activity(run, 1, ref=ref)
        else:
            story.renew_activity(run, 1, ref=ref)


def test_an_outcome_is_taken_once(story: Story, run: Run) -> None:
    story.work(run, activity())
    story.lease_activity(run, 1)
    ref = ref_of(run, 1)
    story.complete_activity(run, 1)

    with story.refused(StaleAttempt):
        story.complete_activity(run, 1, ref=ref)
    with story.refused(StaleAttempt):
        story.fail_activity(run, 1, ref=ref)


def test_an_outcome_that_is_held_back_is_taken_once(story: Story, run: Run) -> None:
    story.work(run, activity())
    story.wake(run)
    story.lease(run)
    story.lease_activity(run, 1)
    ref = ref_of(run, 1)
    story.complete_activity(run, 1)

    with story.refused(StaleAttempt):
        story.complete_activity(run, 1, ref=ref)


@pytest.mark.parametrize(
    ("ending", "rejection"),
    [("completed", RunClosed), ("cancelled", RunCancelled), ("terminated", RunTerminated)],
)
def test_a_worker_of_a_closed_run_is_refused_and_told_why(
    story: Story, run: Run, ending: str, rejection: type[Rejection]
) -> None:
    story.work(run, activity())
    story.lease_activity(run, 1)
    ref = ref_of(run, 1)
    if ending == "completed":
        story.wake(run)
        story.work(run, complete_run())
    else:
        story.cancel(run) if ending == "cancelled" else story.terminate(run)

    with story.refused(rejection) as caught:
        story.complete_activity(run, 1, ref=ref)
    assert caught.value.details["stop_reason"] == f"run_{ending}"
    assert caught.value.details["can_continue"] is False


# Retrying ---------------------------------------------------------------------------------------


def test_a_retry_is_scheduled_recorded_and_comes_after_its_delay(story: Story, run: Run) -> None:
    story.work(run, activity("charge", retry=retries(3, 10)))
    leased = story.lease_activity(run, 1)
    first = leased.attempt_id

    recorded = story.fail_activity(run, 1)

    assert story.types(run)[-1] == "ActivityRetryScheduled"
    assert story.last(run) == {
        "sequence": 1,
        "activity_execution_id": leased.execution_id,
        "activity_attempt_id": first,
        "activity_type": "charge",
        "retry_available_at": _at(10),
        "retry_backoff_seconds": 10,
        "retry_after_attempt_id": first,
        "retry_after_attempt": 1,
        "retry_reason": "failure",
        "max_attempts": 3,
        "exception_type": "CardRefused",
        "message": "card refused",
    }
    assert recorded.next_task_id == f"{run.run_id}-a1"
    assert leased.state is TaskState.DELAYED
    assert run.task is None
    story.later(seconds=9)
    assert story.disk.ready[run.run_id] == set()
    story.later(seconds=1)
    assert story.disk.ready[run.run_id] == {1}
    assert story.lease_activity(run, 1).attempt == 2


def test_attempts_end_with_the_policy(story: Story, run: Run) -> None:
    story.work(run, activity(retry=retries(3)))

    for _ in range(3):
        story.lease_activity(run, 1)
        story.fail_activity(run, 1)

    outcomes = [t for t in story.types(run) if t.startswith("Activity")]
    assert outcomes == [
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityFailed",
    ]
    assert story.last(run)["attempt_number"] == 3


def test_a_policy_without_an_end_retries_without_an_end(story: Story, run: Run) -> None:
    story.work(run, activity(retry=retries(None)))

    for _ in range(20):
        story.lease_activity(run, 1)
        story.fail_activity(run, 1)

    assert "max_attempts" not in story.last(run)
    assert story.activity(run, 1).attempt == 20


@pytest.mark.parametrize(
    "failure",
    [
        Reported("x", non_retryable=True),
        Reported("x", exception_type="Fatal"),
        Reported("x", exception_class="Fatal"),
        Reported("x", cancelled=True),
    ],
    ids=["said so", "by type", "by class", "cancelled"],
)
def test_some_failures_are_not_retried(story: Story, run: Run, failure: Reported) -> None:
    story.work(run, activity(retry=retries(5, non_retryable=["Fatal"])))
    story.lease_activity(run, 1)

    story.fail_activity(run, 1, failure)

    assert story.types(run)[-1] == "ActivityFailed"
    assert story.last(run)["non_retryable"] is failure.non_retryable


@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        ([], [0, 0, 0, 0]),
        ([5], [5, 5, 5, 5]),
        ([1, 2, 30], [1, 2, 30, 30]),
        ([0, 7], [0, 7, 7, 7]),
    ],
    ids=["none is no delay", "one repeats", "the last repeats", "the first may be none"],
)
def test_backoffs_are_read_from_the_list(delays: list[int], expected: list[int]) -> None:
    policy = RetryPolicy(None, delays)

    assert [backoff(policy, attempt) // SECOND for attempt in (1, 2, 3, 4)] == expected


def test_a_retry_that_would_come_too_late_is_none(story: Story, run: Run) -> None:
    story.work(run, activity(retry=retries(5, 10), schedule_to_close=30))
    for _ in range(2):
        story.lease_activity(run, 1)
        story.fail_activity(run, 1)
        story.later(seconds=10)
    story.lease_activity(run, 1)

    story.fail_activity(run, 1)

    assert story.types(run)[-1] == "ActivityFailed"


# Time-outs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "leased"),
    [
        ("schedule_to_start", False),
        ("start_to_close", True),
        ("schedule_to_close", False),
        ("schedule_to_close", True),
        ("heartbeat", True),
    ],
)
def test_a_time_out_without_a_policy_ends_the_activity(
    story: Story, run: Run, kind: str, leased: bool
) -> None:
    story.work(run, activity("charge", timeouts={kind: 30}))
    if leased:
        story.lease_activity(run, 1)

    story.later(seconds=29)
    assert run.operations
    story.later(seconds=1)

    payload = story.last(run)
    assert story.types(run)[-1] == "ActivityTimedOut"
    assert payload["timeout_kind"] == kind
    assert payload["failure_category"] == "timeout"
    assert payload["exception_type"] == payload["exception"]["type"] == "ActivityTimeout"
    assert payload["message"] == f"activity charge passed its {kind} timeout"
    assert payload["failure_id"]
    assert run.operations == {}
    assert run.task is not None
    assert story.disk.ready[run.run_id] == {0}


@pytest.mark.parametrize("kind", ["start_to_close", "heartbeat", "schedule_to_start"])
def test_a_time_out_uses_the_retry_policy(story: Story, run: Run, kind: str) -> None:
    story.work(run, activity(retry=retries(2, 5), timeouts={kind: 30}))
    if kind != "schedule_to_start":
        story.lease_activity(run, 1)

    story.later(seconds=30)

    payload = story.last(run)
    assert story.types(run)[-1] == "ActivityRetryScheduled"
    assert (payload["retry_reason"], payload["timeout_kind"]) == ("timeout", kind)
    assert payload["retry_after_attempt"] == 1
    assert story.disk.ready[run.run_id] == set()
    story.later(seconds=5)
    assert story.disk.ready[run.run_id] == {1}


def test_waiting_in_vain_for_a_worker_uses_up_an_attempt(story: Story, run: Run) -> None:
    """Otherwise an activity that no worker takes would be retried for ever under any policy."""
    story.work(run, activity(retry=retries(3), schedule_to_start=30))

    story.later(seconds=300)

    outcomes = [t for t in story.types(run) if t.startswith("Activity")]
    assert outcomes == [
        "ActivityScheduled",
        "ActivityRetryScheduled",
        "ActivityRetryScheduled",
        "ActivityTimedOut",
    ]
    assert story.last(run, "ActivityTimedOut")["attempt_number"] == 3


def test_schedule_to_close_is_the_end_whatever_the_policy_says(story: Story, run: Run) -> None:
    story.work(run, activity(retry=retries(None), schedule_to_close=30))
    story.lease_activity(run, 1)

    story.later(seconds=30)

    assert story.types(run)[-1] == "ActivityTimedOut"
    assert story.last(run)["non_retryable"] is True


def test_schedule_to_close_reaches_an_activity_between_two_attempts(story: Story, run: Run) -> None:
    story.work(run, activity(retry=retries(None, 20), schedule_to_close=30))
    story.lease_activity(run, 1)
    story.later(seconds=5)
    story.fail_activity(run, 1)
    story.later(seconds=20)
    story.lease_activity(run, 1)

    story.later(seconds=5)

    assert story.last(run)["timeout_kind"] == "schedule_to_close"


def test_the_strongest_of_several_time_outs_counts(story: Story, run: Run) -> None:
    story.work(run, activity(schedule_to_close=30, start_to_close=30, heartbeat=30))
    story.lease_activity(run, 1)

    story.later(seconds=30)

    assert story.last(run)["timeout_kind"] == "schedule_to_close"


@pytest.mark.parametrize("kind", ["start_to_close", "schedule_to_start", "heartbeat"])
def test_every_attempt_has_its_full_time(story: Story, run: Run, kind: str) -> None:
    story.work(run, activity(retry=retries(2, 5), timeouts={kind: 30}))
    story.later(seconds=20)
    story.lease_activity(run, 1)
    story.later(seconds=20)
    story.fail_activity(run, 1)
    story.later(seconds=5)
    if kind != "schedule_to_start":
        story.lease_activity(run, 1)

    story.later(seconds=29)
    assert "ActivityTimedOut" not in story.types(run)
    story.later(seconds=1)

    assert story.last(run)["timeout_kind"] == kind


# Leases -----------------------------------------------------------------------------------------


def test_work_whose_worker_is_gone_is_given_to_another(story: Story, run: Run) -> None:
    story.work(run, activity())
    story.lease_activity(run, 1, "w1")

    story.later(seconds=300)
    assert story.disk.ready[run.run_id] == {1}
    assert run.task is None
    again = story.lease_activity(run, 1, "w2")

    assert (again.attempt, lease_of(again).owner) == (2, "w2")
    assert story.numbered(run, after=3) == [("ActivityStarted", 1), ("ActivityStarted", 1)]


@pytest.mark.parametrize(
    ("timeouts", "expected"),
    [
        ({}, 300),
        ({"start_to_close": 60}, 300),
        ({"start_to_close": 3600}, 3600),
        ({"start_to_close": 3600, "heartbeat": 30}, 300),
        ({"start_to_close": 1_000_000}, LEASE_MAX // SECOND),
    ],
    ids=["plain", "short", "long", "long with heartbeats", "very long"],
)
def test_an_attempt_that_may_run_long_has_a_long_lease(
    story: Story, run: Run, timeouts: dict[str, int], expected: int
) -> None:
    story.work(run, activity(timeouts=timeouts))

    leased = story.lease_activity(run, 1)

    assert (lease_of(leased).expires_at - START) // SECOND == expected


def test_renewing_extends_a_lease_and_never_shortens_it(story: Story, run: Run) -> None:
    story.work(run, activity())
    leased = story.lease_activity(run, 1)
    story.later(seconds=100)

    view = story.renew_activity(run, 1)

    assert view.lease_expires_at == START + 400 * SECOND
    story.leasing.activity_timeout = 10 * SECOND
    story.renew_activity(run, 1)
    assert lease_of(leased).expires_at == START + 400 * SECOND
    story.later(seconds=299)
    assert leased.state is TaskState.LEASED
    assert "ActivityHeartbeatRecorded" not in story.types(run)


def test_renewing_is_no_sign_of_progress(story: Story, run: Run) -> None:
    story.work(run, activity(heartbeat=30))
    story.lease_activity(run, 1)
    story.later(seconds=20)
    story.renew_activity(run, 1)

    story.later(seconds=10)

    assert story.last(run)["timeout_kind"] == "heartbeat"


# Leases that were not delivered ------------------------------------------------------------------


def test_a_lease_that_was_not_delivered_is_no_attempt(story: Story, run: Run) -> None:
    story.work(run, activity(retry=retries(2)))
    story.lease_activity(run, 1, "w1")
    unseen = ref_of(run, 1)
    story.decide(ReleaseActivity(unseen, was_seen=False))
    assert (story.activity(run, 1).attempt, story.activity(run, 1).state) == (0, TaskState.READY)

    leased = story.lease_activity(run, 1, "w1")

    assert story.last(run)["attempt_number"] == leased.attempt == 1
    with story.refused(StaleAttempt):
        story.complete_activity(run, 1, ref=unseen)
    story.fail_activity(run, 1)
    assert story.last(run, "ActivityRetryScheduled")["retry_after_attempt"] == 1
    story.lease_activity(run, 1, "w1")
    story.fail_activity(run, 1)
    assert story.last(run, "ActivityFailed")["attempt_number"] == 2


def test_a_lease_that_may_have_been_delivered_is_an_attempt(story: Story, run: Run) -> None:
    story.work(run, activity())
    story.lease_activity(run, 1, "w1")
    story.decide(ReleaseActivity(ref_of(run, 1), was_seen=True))

    assert story.lease_activity(run, 1, "w1").attempt == 2


# Heartbeats -------------------------------------------------------------------------------------


def test_a_heartbeat_keeps_the_attempt_and_its_lease_alive(story: Story, run: Run) -> None:
    story.work(run, activity(heartbeat=30))
    leased = story.lease_activity(run, 1)
    for _ in range(20):
        story.later(seconds=29)
        view = story.heartbeat(run, 1, b'{"current":1}')
        assert view.can_continue
        assert view.recorded

    assert leased.state is TaskState.LEASED
    assert story.last(run) == {
        "sequence": 1,
        "activity_execution_id": leased.execution_id,
        "activity_attempt_id": leased.attempt_id,
        "activity_type": "charge",
        "attempt_number": 1,
        "heartbeat_at": _at(580),
        "lease_expires_at": _at(880),
        "progress": {"current": 1},
    }
    story.later(seconds=30)
    assert story.last(run)["timeout_kind"] == "heartbeat"


def test_the_heartbeats_of_one_attempt_say_nothing_of_the_next(story: Story, run: Run) -> None:
    story.work(run, activity(heartbeat=30, retry=retries(2, 60)))
    story.lease_activity(run, 1)
    story.heartbeat(run, 1)
    story.fail_activity(run, 1)
    story.later(seconds=60)
    story.lease_activity(run, 1)

    story.later(seconds=29)
    assert story.activity(run, 1).attempt == 2, "it has its own thirty seconds"
    story.later(seconds=1)

    assert story.last(run, "ActivityTimedOut")["attempt_number"] == 2


def test_every_fact_is_progress(story: Story, run: Run) -> None:
    story.work(run, activity())
    story.later(seconds=5)
    story.lease_activity(run, 1)
    assert run.last_progress_at == story.clock.now()


def test_history_remembers_the_first_heartbeats_and_then_one_every_few_seconds(
    story: Story, run: Run
) -> None:
    story.work(run, activity())
    story.lease_activity(run, 1)
    for _ in range(HEARTBEAT_NOTES_MIN):
        story.heartbeat(run, 1)
    assert story.types(run).count("ActivityHeartbeatRecorded") == HEARTBEAT_NOTES_MIN

    for _ in range(100):
        story.later(seconds=0.1)
        story.heartbeat(run, 1)

    noted = story.types(run).count("ActivityHeartbeatRecorded") - HEARTBEAT_NOTES_MIN
    assert noted == 10 * SECOND // HEARTBEAT_NOTE_INTERVAL


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        ("completed", "activity_not_running"),
        ("retried", "stale_attempt"),
        ("run cancelled", "run_cancelled"),
        ("run terminated", "run_terminated"),
        ("run completed", "run_closed"),
    ],
)
def test_a_heartbeat_of_an_attempt_that_is_over_is_told_to_stop(
    story: Story, run: Run, happened: str, reason: str
) -> None:
    story.work(run, activity(retry=retries(2)))
    story.lease_activity(run, 1)
    ref = ref_of(run, 1)
    if happened == "completed":
        story.complete_activity(run, 1)
    elif happened == "retried":
        story.fail_activity(run, 1)
    elif happened == "run cancelled":
        story.cancel(run)
    elif happened == "run terminated":
        story.terminate(run)
    else:
        story.wake(run)
        story.work(run, complete_run())

    with story.unchanged():
        view = story.heartbeat(run, 1, ref=ref)

    assert (view.can_continue, view.cancel_requested, view.recorded) == (False, True, False)
    assert view.reason == reason


def test_an_attempt_knows_its_deadlines(story: Story, run: Run) -> None:
    story.work(
        run, activity(schedule_to_start=5, start_to_close=20, schedule_to_close=60, heartbeat=10)
    )
    story.lease_activity(run, 1)
    story.later(seconds=4)

    view = story.heartbeat(run, 1)

    assert {kind: (at - START) // SECOND for kind, at in view.deadlines.items()} == {
        "schedule_to_close": 60,
        "heartbeat": 14,
        "start_to_close": 20,
    }


def test_after_the_first_ones_a_heartbeat_is_recorded_once_the_interval_has_passed(
    story: Story, run: Run
) -> None:
    def recorded() -> int:
        return story.types(run).count("ActivityHeartbeatRecorded")

    story.work(run, activity())
    story.lease_activity(run, 1)
    for number in range(1, HEARTBEAT_NOTES_MIN + 1):
        story.heartbeat(run, 1)
        assert recorded() == number

    story.later(seconds=(HEARTBEAT_NOTE_INTERVAL - 1) / SECOND)
    story.heartbeat(run, 1)
    assert recorded() == HEARTBEAT_NOTES_MIN
    story.later(seconds=1 / SECOND)
    story.heartbeat(run, 1)
    assert recorded() == HEARTBEAT_NOTES_MIN + 1

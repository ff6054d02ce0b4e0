"""Reports on leased attempts of activities: early, late, twice and wrong."""

from typing import Any

import pytest

from tests.support.http import (
    Answer,
    Json,
    Wire,
    avro,
    complete_workflow,
    fail_workflow,
    schedule_activity,
    unavro,
    wait_for_condition,
)

FAILURE: Json = {"message": "declined"}
REPORTS: dict[str, Json] = {"complete": {}, "fail": {"failure": FAILURE}, "renew-lease": {}}
"""Reports that are refused when the attempt is over."""
QUESTIONS = ["heartbeat", "status"]
"""Those that are answered with a word instead."""
every_report = pytest.mark.parametrize("verb", REPORTS)
every_question = pytest.mark.parametrize("verb", QUESTIONS)
every_verb = pytest.mark.parametrize("verb", [*REPORTS, *QUESTIONS])
RETRY = {"max_attempts": 3, "backoff_seconds": [10]}


def report(wire: Wire, task: Json, verb: str, **members: Any) -> Answer:
    return wire.report_attempt(task, verb, **{**REPORTS.get(verb, {}), **members})


def an_attempt(wire: Wire, **members: Any) -> Json:
    """The first attempt of an activity, leased to `w1`."""
    wire.register()
    wire.register("w2")
    wire.run_to(schedule_activity(**members))
    return wire.take("activity")


@pytest.fixture
def attempt(wire: Wire) -> Json:
    return an_attempt(wire)


# Guards -------------------------------------------------------------------------------------------


@every_verb
def test_a_report_is_checked_field_by_field_first(wire: Wire, verb: str, attempt: Json) -> None:
    unknown = {**attempt, "task_id": "unknown"}
    with wire.nothing_changes():
        report(wire, unknown, verb, lease_owner=None).invalid("lease_owner")
        report(wire, unknown, verb, activity_attempt_id=None).invalid("activity_attempt_id")
        report(wire, unknown, verb, activity_attempt_id="").invalid("activity_attempt_id")


@every_verb
def test_a_task_that_does_not_exist_is_404(wire: Wire, verb: str, attempt: Json) -> None:
    run_id = attempt["run_id"]
    with wire.nothing_changes():
        for task_id in ("unknown", run_id, f"{run_id}-a2", f"{run_id}-a0", f"{run_id}-w1", "x-a1"):
            answer = report(wire, {**attempt, "task_id": task_id}, verb)
            assert answer.refused(404, "task_not_found")["task_id"] == task_id


@every_verb
def test_an_attempt_that_does_not_exist_is_404(wire: Wire, verb: str, attempt: Json) -> None:
    with wire.nothing_changes():
        for attempt_id in ("unknown", "01KDVDNA00000000000000000-1"):
            answer = report(wire, attempt, verb, activity_attempt_id=attempt_id)
            answer.refused(404, "attempt_not_found")


@every_verb
def test_the_attempt_of_another_worker_is_refused(wire: Wire, verb: str, attempt: Json) -> None:
    with wire.nothing_changes():
        answer = report(wire, attempt, verb, lease_owner="w2")
        assert answer.refused(409, "lease_owner_mismatch")["lease_owner"] == "w1"


# Completing ---------------------------------------------------------------------------------------


def test_a_completion_is_recorded_and_wakes_the_run(wire: Wire, attempt: Json) -> None:
    body = report(wire, attempt, "complete", result=avro({"paid": True})).ok()

    expected = {
        "task_id": attempt["task_id"],
        "activity_attempt_id": attempt["activity_attempt_id"],
        "outcome": "completed",
        "recorded": True,
        "reason": None,
        "next_task_id": f"{attempt['run_id']}-w2",
    }
    assert expected.items() <= body.items()
    event = wire.events()[-1]
    assert event["event_type"] == "ActivityCompleted"
    assert event["payload"]["result"] == avro({"paid": True})
    assert wire.take()["task_id"] == body["next_task_id"]


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"total": 5}, {"total": 5}),
        ([1, "a", None], [1, "a", None]),
        ("text", "text"),
        (0, 0),
        (False, False),
        ("", ""),
        (2.5, 2.5),
        ({"codec": "avro"}, {"codec": "avro"}),
    ],
)
def test_a_plain_result_is_encoded_for_the_run(
    wire: Wire, attempt: Json, result: Any, value: Any
) -> None:
    report(wire, attempt, "complete", result=result).ok()
    assert unavro(wire.events()[-1]["payload"]["result"]) == value


@pytest.mark.parametrize("given", [{}, {"result": None}], ids=["absent", "null"])
def test_an_activity_may_have_no_result(wire: Wire, attempt: Json, given: Json) -> None:
    report(wire, attempt, "complete", **given).ok()
    payload = wire.events()[-1]["payload"]
    assert payload.get("result") is None
    assert payload["payload_codec"] == "avro"


@pytest.mark.parametrize(
    "envelope",
    [
        {"codec": "avro", "blob": "not base64 at all"},
        {"codec": "avro", "external_storage": {"uri": "file:///kept/elsewhere"}},
    ],
)
def test_an_envelope_is_kept_byte_for_byte(wire: Wire, attempt: Json, envelope: Json) -> None:
    report(wire, attempt, "complete", result=envelope).ok()
    assert wire.events()[-1]["payload"]["result"] == envelope


def test_an_envelope_of_another_codec_is_refused(wire: Wire, attempt: Json) -> None:
    with wire.nothing_changes():
        report(wire, attempt, "complete", result={"codec": "json", "blob": "x"}).invalid(
            "result.codec"
        )


def test_members_of_a_group_wake_the_run_together(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity(), schedule_activity("ship"))
    first, second = wire.take("activity"), wire.take("activity")

    assert report(wire, second, "complete").ok()["next_task_id"] is None
    assert wire.poll()["poll_status"] == "empty"
    assert report(wire, first, "complete").ok()["next_task_id"] is not None

    types = [e["payload"].get("activity_type") for e in wire.events()[-2:]]
    assert types == ["charge", "ship"], "outcomes of an ungrouped fan-out stand in command order"


# Failing ------------------------------------------------------------------------------------------


def test_a_failure_for_good_is_recorded_in_full(wire: Wire, attempt: Json) -> None:
    body = report(
        wire,
        attempt,
        "fail",
        failure={
            "message": "declined",
            "type": "Declined",
            "class": "shop.Declined",
            "code": 51,
            "stack_trace": "line 1",
            "details": {"card": "x"},
        },
    ).ok()

    assert (body["outcome"], body["recorded"]) == ("failed", True)
    assert body["next_task_id"] == f"{attempt['run_id']}-w2"
    event = wire.events()[-1]
    assert event["event_type"] == "ActivityFailed"
    expected = {
        "message": "declined",
        "exception_type": "Declined",
        "exception_class": "shop.Declined",
        "code": 51,
        "non_retryable": False,
        "activity_type": "charge",
        "sequence": 1,
    }
    assert expected.items() <= event["payload"].items()


def test_a_failure_is_tried_again_as_its_policy_says(wire: Wire) -> None:
    attempt = an_attempt(wire, retry_policy={"max_attempts": 3, "backoff_seconds": [10, 20]})
    for number, delay in ((1, 10), (2, 20)):
        body = report(wire, attempt, "fail").ok()
        assert body["next_task_id"] == attempt["task_id"], "the next task is the same activity"
        assert wire.event_types()[-1] == "ActivityRetryScheduled"
        wire.advance(seconds=delay - 0.001)
        assert wire.poll("activity")["poll_status"] == "empty"
        wire.advance(seconds=0.001)
        attempt = wire.take("activity")
        assert attempt["attempt_number"] == number + 1

    report(wire, attempt, "fail").ok()

    assert wire.event_types()[-1] == "ActivityFailed"
    assert wire.take()["workflow_event_type"] == "ActivityFailed"


@pytest.mark.parametrize(
    ("policy", "failure"),
    [
        ({}, {"message": "x", "non_retryable": True}),
        ({}, {"message": "x", "retryable": False}),
        ({}, {"message": "x", "cancelled": True}),
        ({}, {"message": "x", "kind": "cancellation"}),
        ({"non_retryable_error_types": ["Declined"]}, {"message": "x", "type": "Declined"}),
    ],
)
def test_some_failures_are_never_tried_again(wire: Wire, policy: Json, failure: Json) -> None:
    attempt = an_attempt(wire, retry_policy={**RETRY, **policy})
    report(wire, attempt, "fail", failure=failure).ok()
    assert wire.event_types()[-1] == "ActivityFailed"


def test_a_failure_may_be_a_timeout(wire: Wire, attempt: Json) -> None:
    failure = {"message": "slow", "kind": "timeout", "timeout_type": "start_to_close"}
    report(wire, attempt, "fail", failure=failure).ok()
    event = wire.events()[-1]
    assert (event["event_type"], event["payload"]["timeout_kind"]) == (
        "ActivityTimedOut",
        "start_to_close",
    )


@pytest.mark.parametrize(
    ("failure", "field"),
    [
        (None, "failure"),
        ("declined", "failure"),
        ({}, "failure.message"),
        ({"message": None}, "failure.message"),
        ({"message": "x", "type": 5}, "failure.type"),
        ({"message": "x", "code": []}, "failure.code"),
        ({"message": "x", "non_retryable": "maybe"}, "failure.non_retryable"),
        ({"message": "x", "kind": "bad luck"}, "failure.kind"),
        ({"message": "x", "kind": "timeout", "timeout_type": "lunch"}, "failure.timeout_type"),
    ],
)
def test_a_failure_that_makes_no_sense_is_refused(
    wire: Wire, attempt: Json, failure: Any, field: str
) -> None:
    with wire.nothing_changes():
        report(wire, attempt, "fail", failure=failure).invalid(field)


# Twice --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "outcome"), [("complete", "completed"), ("fail", "failed")])
def test_a_repeated_report_gets_the_recorded_outcome(
    wire: Wire, attempt: Json, verb: str, outcome: str
) -> None:
    report(wire, attempt, verb).ok()

    with wire.nothing_changes():
        body = report(wire, attempt, verb).ok()
    assert (body["outcome"], body["recorded"], body["reason"]) == (outcome, True, None)
    wire.restart()
    with wire.nothing_changes():
        assert report(wire, attempt, verb).ok()["outcome"] == outcome


@pytest.mark.parametrize("verb", ["complete", "fail"])
@pytest.mark.parametrize("end", ["completed", "failed", "cancel", "terminate"])
def test_a_report_may_be_repeated_when_its_run_is_long_closed(
    wire: Wire, attempt: Json, verb: str, end: str
) -> None:
    """The worker lost the answer; that the run went on meanwhile is no reason to refuse."""
    report(wire, attempt, verb).ok()
    if end in ("cancel", "terminate"):
        wire.control("POST", f"/workflows/order-1/{end}").ok()
    else:
        ending = complete_workflow() if end == "completed" else fail_workflow()
        wire.complete(wire.take(), ending)

    with wire.nothing_changes():
        assert report(wire, attempt, verb).ok()["recorded"] is True


def test_a_repeated_failure_that_is_tried_again_gets_the_recorded_outcome(wire: Wire) -> None:
    attempt = an_attempt(wire, retry_policy=RETRY)
    report(wire, attempt, "fail").ok()
    for _ in range(2):
        with wire.nothing_changes():
            assert report(wire, attempt, "fail").ok()["outcome"] == "failed"
        wire.advance(seconds=10)
    wire.take("activity", "w2")
    with wire.nothing_changes():
        assert report(wire, attempt, "fail").ok()["outcome"] == "failed"


@pytest.mark.parametrize("policy", [{"max_attempts": 1}, RETRY], ids=["for good", "tried again"])
def test_a_repeated_failure_that_was_a_timeout_gets_the_recorded_outcome(
    wire: Wire, policy: Json
) -> None:
    attempt = an_attempt(wire, retry_policy=policy)
    failure = {"message": "slow", "kind": "timeout", "timeout_type": "start_to_close"}
    report(wire, attempt, "fail", failure=failure).ok()

    with wire.nothing_changes():
        body = report(wire, attempt, "fail", failure=failure).ok()
    assert (body["outcome"], body["recorded"]) == ("failed", True)


@pytest.mark.parametrize("policy", [{"max_attempts": 1}, RETRY], ids=["for good", "tried again"])
@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_report_of_an_attempt_that_timed_out_here_is_stale(
    wire: Wire, policy: Json, verb: str
) -> None:
    """That the attempt has failed is written; this report of it is not."""
    attempt = an_attempt(wire, start_to_close_timeout=5, retry_policy=policy)
    wire.advance(seconds=5)
    with wire.nothing_changes():
        body = report(wire, attempt, verb).refused(409, "stale_attempt")
    assert body["recorded"] is False
    assert body["activity_attempt_id"] == attempt["activity_attempt_id"]


@pytest.mark.parametrize(("first", "then"), [("complete", "fail"), ("fail", "complete")])
def test_an_attempt_has_one_outcome(wire: Wire, attempt: Json, first: str, then: str) -> None:
    report(wire, attempt, first).ok()
    with wire.nothing_changes():
        report(wire, attempt, then).refused(409, "stale_attempt")


def test_reports_are_repeated_safely_while_the_run_is_being_replayed(wire: Wire) -> None:
    """Outcomes are held back meanwhile; each attempt still gets its own answer and no other's."""
    wire.register()
    wire.run_to(
        schedule_activity(retry_policy={"max_attempts": 2}), wait_for_condition(), workflow_id="a"
    )
    first = wire.take("activity")
    wire.signal("pay", "a")
    replayed = wire.take()
    report(wire, first, "fail").ok()
    second = wire.take("activity")

    with wire.nothing_changes():
        assert report(wire, first, "fail").ok()["outcome"] == "failed"
        report(wire, first, "complete").refused(409, "stale_attempt")
    report(wire, second, "complete").ok()
    with wire.nothing_changes():
        assert report(wire, second, "complete").ok()["outcome"] == "completed"
        report(wire, second, "fail").refused(409, "stale_attempt")
        report(wire, first, "complete").refused(409, "stale_attempt")
        assert report(wire, first, "fail").ok()["outcome"] == "failed"

    wire.complete(replayed)
    assert wire.event_types("a")[-4:] == [
        "SignalReceived",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityCompleted",
    ]


# Late ---------------------------------------------------------------------------------------------


@every_report
def test_a_report_after_the_lease_is_stale(wire: Wire, verb: str, attempt: Json) -> None:
    wire.advance(seconds=301)
    with wire.nothing_changes():
        report(wire, attempt, verb).refused(409, "stale_attempt")

    again = wire.take("activity", "w2")
    assert (again["task_id"], again["attempt_number"]) == (attempt["task_id"], 2)
    assert again["activity_attempt_id"] != attempt["activity_attempt_id"]
    with wire.nothing_changes():
        report(wire, attempt, verb).refused(409, "stale_attempt")
    report(wire, again, "complete").ok()
    with wire.nothing_changes():
        report(wire, attempt, verb).refused(409, "stale_attempt")


@every_question
def test_a_question_after_the_lease_is_answered_with_a_stop(
    wire: Wire, verb: str, attempt: Json
) -> None:
    wire.advance(seconds=301)
    for _ in range(2):
        with wire.nothing_changes():
            body = report(wire, attempt, verb).ok()
        assert (body["can_continue"], body["reason"]) == (False, "stale_attempt")
        assert body["heartbeat_recorded"] is False
        again = wire.poll("activity", "w2")
    assert again["poll_status"] == "empty"


@every_question
def test_a_question_about_an_attempt_that_is_done_is_answered_with_a_stop(
    wire: Wire, verb: str, attempt: Json
) -> None:
    report(wire, attempt, "complete").ok()
    with wire.nothing_changes():
        body = report(wire, attempt, verb).ok()
    assert (body["can_continue"], body["reason"]) == (False, "activity_not_running")


def test_a_late_result_is_taken_while_nobody_else_has_the_work(wire: Wire, attempt: Json) -> None:
    wire.jump(seconds=301)
    report(wire, attempt, "complete", result=avro(1)).ok()
    assert wire.event_types()[-1] == "ActivityCompleted"


@pytest.mark.parametrize(
    ("stop", "reason"), [("cancel", "run_cancelled"), ("terminate", "run_terminated")]
)
class TestStopped:
    """The run of a leased attempt was stopped."""

    @every_report
    def test_a_report_is_refused_with_the_reason_of_the_stop(
        self, wire: Wire, attempt: Json, verb: str, stop: str, reason: str
    ) -> None:
        wire.control("POST", f"/workflows/order-1/{stop}").ok()
        with wire.nothing_changes():
            body = report(wire, attempt, verb).refused(409, reason)
        status = reason.removeprefix("run_")
        expected = {
            "stop_reason": reason,
            "cancel_requested": True,
            "can_continue": False,
            "run_status": status,
            "run_closed_reason": status,
            "run_closed_at": "2026-01-01T00:00:00.000000Z",
        }
        assert expected.items() <= body.items()

    @every_question
    def test_a_question_is_answered_with_a_request_to_cancel(
        self, wire: Wire, attempt: Json, verb: str, stop: str, reason: str
    ) -> None:
        wire.control("POST", f"/workflows/order-1/{stop}").ok()
        with wire.nothing_changes():
            body = report(wire, attempt, verb).ok()
        expected = {
            "task_id": attempt["task_id"],
            "activity_attempt_id": attempt["activity_attempt_id"],
            "lease_owner": "w1",
            "can_continue": False,
            "cancel_requested": True,
            "reason": reason,
            "heartbeat_recorded": False,
            "run_closed_reason": reason.removeprefix("run_"),
            "run_closed_at": "2026-01-01T00:00:00.000000Z",
        }
        assert expected.items() <= body.items()


def test_work_for_a_run_that_ended_without_it_is_refused(wire: Wire) -> None:
    wire.register()
    wire.run_to(schedule_activity(), wait_for_condition())
    attempt = wire.take("activity")
    wire.signal("enough")
    wire.complete(wire.take(), complete_workflow())

    with wire.nothing_changes():
        for verb in REPORTS:
            body = report(wire, attempt, verb).refused(409, "run_closed")
            assert body["stop_reason"] == "run_completed"
        for verb in QUESTIONS:
            body = report(wire, attempt, verb).ok()
            assert (body["can_continue"], body["reason"]) == (False, "run_closed")


# Signs of life ------------------------------------------------------------------------------------


def test_a_heartbeat_renews_the_lease_and_remembers_progress(wire: Wire, attempt: Json) -> None:
    wire.advance(seconds=100)

    progress = {"message": "half", "current": 5, "total": 10, "unit": "rows", "details": {"a": 1}}
    body = report(wire, attempt, "heartbeat", **progress).ok()

    expected = {
        "task_id": attempt["task_id"],
        "activity_attempt_id": attempt["activity_attempt_id"],
        "lease_owner": "w1",
        "can_continue": True,
        "cancel_requested": False,
        "reason": None,
        "heartbeat_recorded": True,
        "last_heartbeat_at": "2026-01-01T00:01:40.000000Z",
        "lease_expires_at": "2026-01-01T00:06:40.000000Z",
        "run_closed_reason": None,
        "run_closed_at": None,
    }
    assert expected.items() <= body.items()
    event = wire.events()[-1]
    assert event["event_type"] == "ActivityHeartbeatRecorded"
    assert event["payload"]["progress"] == progress
    wire.advance(seconds=299)
    report(wire, attempt, "complete").ok()


def test_heartbeats_keep_an_attempt_from_timing_out(wire: Wire) -> None:
    attempt = an_attempt(wire, heartbeat_timeout=10)
    for _ in range(3):
        wire.advance(seconds=9)
        assert report(wire, attempt, "heartbeat").ok()["can_continue"] is True
    wire.advance(seconds=10)

    event = wire.events()[-1]
    assert (event["event_type"], event["payload"]["timeout_kind"]) == (
        "ActivityTimedOut",
        "heartbeat",
    )
    assert report(wire, attempt, "heartbeat").ok()["can_continue"] is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("message", "x" * 281),
        ("unit", "x" * 65),
        ("current", "half"),
        ("total", []),
        ("details", "text"),
        ("details", [1]),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(
    wire: Wire, attempt: Json, field: str, value: Any
) -> None:
    with wire.nothing_changes():
        report(wire, attempt, "heartbeat", **{field: value}).invalid(field)


def test_a_lease_is_renewed_without_a_word_about_progress(wire: Wire) -> None:
    attempt = an_attempt(wire, heartbeat_timeout=200)
    wire.advance(seconds=100)
    before = wire.event_types()

    body = report(wire, attempt, "renew-lease").ok()

    expected = {
        "workflow_task_id": attempt["task_id"],
        "workflow_instance_id": "order-1",
        "workflow_run_id": attempt["run_id"],
        "activity_execution_id": attempt["activity_execution_id"],
        "activity_attempt_id": attempt["activity_attempt_id"],
        "attempt_number": 1,
        "lease_owner": "w1",
        "lease_renewed": True,
        "can_continue": True,
        "cancel_requested": False,
        "heartbeat_recorded": False,
        "reason": None,
        "server_time": "2026-01-01T00:01:40.000000Z",
        "lease_expires_at": "2026-01-01T00:06:40.000000Z",
        "heartbeat_deadline_at": "2026-01-01T00:03:20.000000Z",
    }
    assert expected.items() <= body.items()
    assert "last_heartbeat_at" not in body
    assert wire.event_types() == before


def test_a_renewal_never_shortens_a_lease(wire: Wire) -> None:
    attempt = an_attempt(wire, start_to_close_timeout=1000)
    assert attempt["lease_expires_at"] == "2026-01-01T00:16:40.000000Z"
    body = report(wire, attempt, "renew-lease").ok()
    assert body["lease_expires_at"] >= attempt["lease_expires_at"]


def test_a_worker_may_ask_how_its_attempt_stands(wire: Wire) -> None:
    attempt = an_attempt(wire, start_to_close_timeout=30, heartbeat_timeout=10)

    with wire.nothing_changes():
        body = report(wire, attempt, "status").ok()

    assert (body["can_continue"], body["cancel_requested"], body["reason"]) == (True, False, None)
    assert body["heartbeat_recorded"] is False
    assert body["lease_expires_at"] == attempt["lease_expires_at"]
    assert body["deadlines"] == {
        "start_to_close": "2026-01-01T00:00:30.000000Z",
        "heartbeat": "2026-01-01T00:00:10.000000Z",
    }


# Time-outs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["schedule_to_start", "schedule_to_close"])
def test_an_activity_that_nobody_takes_times_out(wire: Wire, kind: str) -> None:
    wire.register(supported_activity_types=[])
    timeout: Json = {f"{kind}_timeout": 5}
    wire.run_to(schedule_activity(**timeout))

    wire.advance(seconds=4)
    assert wire.event_types()[-1] == "ActivityScheduled"
    wire.advance(seconds=1)

    event = wire.events()[-1]
    assert (event["event_type"], event["payload"]["timeout_kind"]) == ("ActivityTimedOut", kind)
    wire.register("w2")
    assert wire.poll("activity", "w2")["poll_status"] == "empty"


@pytest.mark.parametrize("kind", ["start_to_close", "schedule_to_close", "heartbeat"])
def test_an_attempt_that_takes_too_long_times_out(wire: Wire, kind: str) -> None:
    attempt = an_attempt(wire, **{f"{kind}_timeout": 5})

    wire.advance(seconds=5)

    event = wire.events()[-1]
    assert (event["event_type"], event["payload"]["timeout_kind"]) == ("ActivityTimedOut", kind)
    with wire.nothing_changes():
        for verb in REPORTS:
            report(wire, attempt, verb).refused(409, "stale_attempt")


def test_a_timed_out_attempt_is_tried_again_as_its_policy_says(wire: Wire) -> None:
    attempt = an_attempt(wire, start_to_close_timeout=5, retry_policy={"max_attempts": 2})
    wire.advance(seconds=5)

    assert wire.event_types()[-1] == "ActivityRetryScheduled"
    again = wire.take("activity")
    assert again["attempt_number"] == 2
    report(wire, attempt, "complete").refused(409, "stale_attempt")
    report(wire, again, "complete").ok()

"""Reports on leased workflow tasks: heartbeat, complete, fail; early, late, twice and wrong."""

from typing import Any

import pytest

from tests.support.http import (
    Answer,
    Json,
    Wire,
    avro,
    complete_workflow,
    continue_as_new,
    fail_workflow,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
)

VERBS: dict[str, Json] = {
    "heartbeat": {},
    "history": {"next_history_page_token": "MA=="},
    "complete": {"commands": [complete_workflow()]},
    "fail": {"failure": {"message": "no"}},
}
every_verb = pytest.mark.parametrize("verb", VERBS)


def in_group(**members: Any) -> Json:
    """Where a command says that it stands in a group of one."""
    entry = {"id": "parallel-activities:1:1", "kind": "activity", "base_sequence": 1}
    told = {**entry, "size": 1, "index": 0, **members}
    return {"parallel_group_path": [{f"parallel_group_{key}": told[key] for key in told}]}


def report(wire: Wire, task: Json, verb: str, **members: Any) -> Answer:
    return wire.report(task, verb, **{**VERBS[verb], **members})


@pytest.fixture
def task(wire: Wire) -> Json:
    """A leased task: the first of its run."""
    wire.register()
    wire.register("w2")
    wire.start()
    return wire.take()


# Guards, in their order ---------------------------------------------------------------------------


@every_verb
def test_a_report_is_checked_field_by_field_before_its_task_is_looked_for(
    wire: Wire, verb: str, task: Json
) -> None:
    unknown = {**task, "task_id": "unknown"}
    with wire.nothing_changes():
        report(wire, unknown, verb, lease_owner=None).invalid("lease_owner")
        report(wire, unknown, verb, lease_owner="x" * 256).invalid("lease_owner")
        for attempt in (None, 0, -1, "first"):
            answer = report(wire, unknown, verb, workflow_task_attempt=attempt)
            answer.invalid("workflow_task_attempt")
        report(wire, unknown, verb, workflow_task_attempt="1").refused(404, "task_not_found")


@every_verb
def test_a_task_that_does_not_exist_is_404(wire: Wire, verb: str, task: Json) -> None:
    wire.complete(task, schedule_activity())
    run_id = task["run_id"]
    with wire.nothing_changes():
        for task_id in (
            "unknown",
            "%20",
            run_id,
            f"{run_id}-w",
            f"{run_id}-w0",
            f"{run_id}-w2",
            f"{run_id}-w99999999999999999999",
            f"{run_id}-w-1",
            f"{run_id}-a1",
            f"{run_id[:-1]}!-w1",
        ):
            body = report(wire, {**task, "task_id": task_id}, verb).refused(404, "task_not_found")
            assert body["task_id"] == task_id.replace("%20", " ")
            assert body["workflow_task_attempt"] == 1
            assert body.get("recorded") is (False if verb in ("complete", "fail") else None)


@pytest.mark.parametrize("verb", ["heartbeat", "history"])
def test_a_task_that_is_done_is_no_longer_leased(wire: Wire, verb: str, task: Json) -> None:
    wire.complete(task, start_timer(60))
    with wire.nothing_changes():
        report(wire, task, verb).refused(409, "task_not_leased")


@every_verb
def test_a_task_that_was_done_before_the_last_one_is_not_leased_either(
    wire: Wire, verb: str, task: Json
) -> None:
    wire.complete(task, start_timer(1))
    wire.advance(seconds=1)
    wire.complete(wire.take(), start_timer(60))

    with wire.nothing_changes():
        report(wire, task, verb).refused(409, "task_not_leased")


@every_verb
@pytest.mark.parametrize(
    ("stop", "stop_reason", "cancel_requested"),
    [("cancel", "run_cancelled", True), ("terminate", "run_terminated", True)],
)
def test_a_run_that_was_stopped_refuses_the_work_on_it(
    wire: Wire, verb: str, task: Json, stop: str, stop_reason: str, cancel_requested: bool
) -> None:
    wire.control("POST", f"/workflows/order-1/{stop}").ok()

    with wire.nothing_changes():
        body = report(wire, task, verb).refused(409, "run_closed")

    status = stop_reason.removeprefix("run_")
    expected = {
        "task_id": task["task_id"],
        "workflow_task_attempt": 1,
        "stop_reason": stop_reason,
        "cancel_requested": cancel_requested,
        "can_continue": False,
        "run_status": status,
        "run_closed_reason": status,
        "run_closed_at": "2026-01-01T00:00:00.000000Z",
        "task_status": "cancelled",
        "lease_owner": None,
        "lease_expires_at": None,
    }
    assert expected.items() <= body.items()


@every_verb
def test_a_run_that_timed_out_refuses_the_work_on_it(wire: Wire, verb: str) -> None:
    wire.register()
    wire.start(run_timeout_seconds=10)
    task = wire.take()
    wire.advance(seconds=10)

    with wire.nothing_changes():
        body = report(wire, task, verb).refused(409, "run_closed")

    assert (body["stop_reason"], body["cancel_requested"]) == ("run_failed", False)
    assert body["run_closed_reason"] == "timed_out"


@pytest.mark.parametrize("verb", ["heartbeat", "history"])
@pytest.mark.parametrize(
    ("ending", "stop_reason"),
    [
        (complete_workflow(), "run_completed"),
        (fail_workflow(), "run_failed"),
        (continue_as_new(), "run_completed"),
    ],
    ids=["completed", "failed", "continued"],
)
def test_a_run_that_ended_says_how(
    wire: Wire, verb: str, task: Json, ending: Json, stop_reason: str
) -> None:
    wire.complete(task, ending)
    with wire.nothing_changes():
        body = report(wire, task, verb).refused(409, "run_closed")
    assert (body["stop_reason"], body["cancel_requested"]) == (stop_reason, False)
    assert (body["task_status"], body["lease_owner"]) == ("completed", None)


@every_verb
def test_an_expired_lease_is_refused_even_before_anybody_noticed(
    wire: Wire, verb: str, task: Json
) -> None:
    wire.jump(seconds=61)

    with wire.nothing_changes():
        body = report(wire, task, verb).refused(409, "lease_expired")
        # Expiry is told before whose lease it was.
        report(wire, task, verb, lease_owner="w2").refused(409, "lease_expired")

    assert (body["task_status"], body["lease_owner"]) == ("leased", "w1")
    assert body["lease_expires_at"] == "2026-01-01T00:01:00.000000Z"


@every_verb
def test_a_task_whose_lease_expired_is_ready_for_the_next(
    wire: Wire, verb: str, task: Json
) -> None:
    wire.advance(seconds=61)

    with wire.nothing_changes():
        report(wire, task, verb).refused(409, "task_not_leased")

    again = wire.take(worker_id="w2")
    assert again["task_id"] == task["task_id"]
    assert again["workflow_task_attempt"] == 2
    with wire.nothing_changes():
        body = report(wire, task, verb).refused(409, "lease_owner_mismatch")
    assert body["lease_owner"] == "w2"
    wire.complete(again, complete_workflow())


@every_verb
def test_an_old_attempt_of_the_same_worker_is_refused(wire: Wire, verb: str, task: Json) -> None:
    wire.advance(seconds=61)
    wire.take()

    with wire.nothing_changes():
        body = report(wire, task, verb).refused(409, "workflow_task_attempt_mismatch")
        # A stranger is told that first.
        report(wire, task, verb, lease_owner="w2").refused(409, "lease_owner_mismatch")
        future = report(wire, task, verb, workflow_task_attempt=3)
        future.refused(409, "workflow_task_attempt_mismatch")

    assert body["current_attempt"] == 2


def test_a_completion_after_the_deadline_of_its_run_is_refused(wire: Wire) -> None:
    wire.register()
    wire.start(run_timeout_seconds=10)
    task = wire.take()
    wire.jump(seconds=11)

    with wire.nothing_changes():
        body = report(wire, task, "complete").refused(409, "run_timed_out")
    assert body["run_status"] == "failed"


# Heartbeats ---------------------------------------------------------------------------------------


def test_a_heartbeat_renews_the_lease_and_writes_no_history(wire: Wire, task: Json) -> None:
    before = wire.event_types()
    wire.advance(seconds=40)

    body = report(wire, task, "heartbeat").ok()

    expected = {
        "task_id": task["task_id"],
        "workflow_task_attempt": 1,
        "lease_owner": "w1",
        "renewed": True,
        "lease_expires_at": "2026-01-01T00:01:40.000000Z",
        "run_status": "pending",
        "task_status": "leased",
        "reason": None,
    }
    assert expected.items() <= body.items()
    wire.advance(seconds=59)
    wire.complete(task, start_timer(60))
    assert wire.event_types()[: len(before)] == before


# Completions --------------------------------------------------------------------------------------


def test_a_completion_says_what_it_led_to(wire: Wire, task: Json) -> None:
    body = wire.complete(task, schedule_activity(), start_child(), schedule_activity("ship"))

    child = wire.take()
    assert child["workflow_type"] == "Child"
    expected = {
        "task_id": task["task_id"],
        "workflow_task_attempt": 1,
        "outcome": "completed",
        "recorded": True,
        "run_id": task["run_id"],
        "run_status": "waiting",
        "created_task_ids": [f"{task['run_id']}-a1", child["task_id"], f"{task['run_id']}-a3"],
        "reason": None,
    }
    assert expected.items() <= body.items()


def test_a_run_that_continues_names_the_first_task_of_the_next(wire: Wire, task: Json) -> None:
    body = wire.complete(task, continue_as_new())

    assert body["created_task_ids"] == [wire.take()["task_id"]]
    wire.start("other")
    assert wire.complete(wire.take(), complete_workflow())["created_task_ids"] == []


@pytest.mark.parametrize(
    "commands",
    [[schedule_activity()], [complete_workflow()], [fail_workflow()], [continue_as_new()]],
    ids=["open", "completed", "failed", "continued"],
)
def test_a_repeated_completion_gets_the_recorded_answer(
    wire: Wire, task: Json, commands: list[Json]
) -> None:
    first = wire.complete(task, *commands)

    with wire.nothing_changes():
        assert wire.complete(task, *commands) == first
        assert wire.complete(task, start_timer(1)) == first, "what it says now does not matter"

    wire.restart()
    assert wire.complete(task, *commands) == first


def test_a_repeated_completion_of_a_stranger_is_refused(wire: Wire, task: Json) -> None:
    wire.complete(task, start_timer(60))
    with wire.nothing_changes():
        report(wire, task, "complete", lease_owner="w2").refused(409, "task_not_leased")
        report(wire, task, "complete", workflow_task_attempt=2).refused(409, "task_not_leased")


def test_a_completion_without_commands_only_ends_the_lease(wire: Wire, task: Json) -> None:
    wire.complete(task, wait_for_condition())
    wire.signal("more")
    before = wire.event_types()

    task = wire.take()
    first = wire.complete(task)

    with wire.nothing_changes():
        assert wire.complete(task) == first
    assert wire.event_types() == before
    assert wire.poll()["poll_status"] == "empty"


def test_a_completion_without_commands_that_would_strand_the_run_is_refused(
    wire: Wire, task: Json
) -> None:
    with wire.nothing_changes():
        wire.report(task, "complete", commands=[]).refused(409, "invalid_commands")
    wire.complete(task, schedule_activity())
    wire.report_attempt(wire.take("activity"), "complete").ok()
    task = wire.take()
    with wire.nothing_changes():
        wire.report(task, "complete", commands=[]).refused(409, "invalid_commands")
    wire.complete(task, complete_workflow())


def test_digits_in_quotes_are_numbers(wire: Wire, task: Json) -> None:
    wire.complete(
        task,
        {"type": "start_timer", "delay_seconds": "5"},
        schedule_activity(start_to_close_timeout="9"),
    )
    assert wire.events()[2]["payload"]["delay_seconds"] == 5


def test_the_spellings_of_the_readme_are_understood(wire: Wire, task: Json) -> None:
    wire.complete(
        task,
        {
            "type": "schedule_activity",
            "activity_type": "charge",
            "input": avro(["x"]),
            "task_queue": "q",
        },
    )
    assert wire.take("activity")["arguments"] == avro(["x"])


@pytest.mark.parametrize(
    "commands",
    [
        [complete_workflow(), complete_workflow()],
        [complete_workflow(), fail_workflow()],
        [complete_workflow(), start_timer(1)],
        [
            {
                "type": "record_version_marker",
                "change_id": "c",
                "version": 3,
                "min_supported": 1,
                "max_supported": 2,
            }
        ],
        [start_timer(1), continue_as_new(), start_timer(1)],
    ],
    ids=["two endings", "two kinds of ending", "ending first", "version", "ending between"],
)
def test_commands_that_cannot_be_applied_as_a_whole_are_refused_as_a_whole(
    wire: Wire, task: Json, commands: list[Json]
) -> None:
    with wire.nothing_changes():
        report(wire, task, "complete", commands=commands).refused(409, "invalid_commands")
    wire.complete(task, complete_workflow())


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ({"type": "dance"}, "type"),
        ({}, "type"),
        ({"type": "schedule_activity"}, "activity_type"),
        (schedule_activity(""), "activity_type"),
        (schedule_activity("x" * 256), "activity_type"),
        (schedule_activity(arguments={"a": 1}), "arguments"),
        (schedule_activity(arguments=[1]), "arguments"),
        (schedule_activity(arguments={"codec": "json", "blob": ""}), "arguments.codec"),
        (schedule_activity(start_to_close_timeout=0), "start_to_close_timeout"),
        (
            schedule_activity(heartbeat_timeout=5, start_to_close_timeout=4),
            "heartbeat_timeout",
        ),
        (
            schedule_activity(start_to_close_timeout=5, schedule_to_close_timeout=4),
            "start_to_close_timeout",
        ),
        (
            schedule_activity(schedule_to_start_timeout=5, schedule_to_close_timeout=4),
            "schedule_to_start_timeout",
        ),
        (schedule_activity(retry_policy={"max_attempts": 0}), "retry_policy.max_attempts"),
        (
            schedule_activity(retry_policy={"backoff_seconds": [1, -1]}),
            "retry_policy.backoff_seconds.1",
        ),
        (schedule_activity(worker_session={"session_id": " "}), "worker_session.session_id"),
        (schedule_activity(queue="x" * 256), "queue"),
        ({"type": "start_timer"}, "delay_seconds"),
        (start_timer(-1), "delay_seconds"),
        ({"type": "start_child_workflow"}, "workflow_type"),
        (schedule_activity(**in_group(index=1)), "parallel_group_path.0.parallel_group_index"),
        (start_child(**in_group(size=0)), "parallel_group_path.0.parallel_group_size"),
        (schedule_activity(**in_group(mode="race")), "parallel_group_path.0"),
        (schedule_activity(**in_group(mode="select")), "parallel_group_path.0"),
        (start_child(parent_close_policy="adopt"), "parent_close_policy"),
        (start_child(cancellation_policy="later"), "cancellation_policy"),
        (schedule_activity(cancellation_policy="later"), "cancellation_policy"),
        (
            start_child(run_timeout_seconds=5, execution_timeout_seconds=4),
            "run_timeout_seconds",
        ),
        (wait_for_condition(timeout_seconds=-1), "timeout_seconds"),
        ({"type": "open_signal_wait"}, "signal_name"),
        ({"type": "record_side_effect"}, "result"),
        ({"type": "record_side_effect", "result": 5}, "result"),
        ({"type": "record_version_marker", "change_id": "c"}, "version"),
        ({"type": "upsert_search_attributes", "attributes": [1]}, "attributes"),
        ({"type": "upsert_search_attributes", "attributes": {"a": {}}}, "attributes.a"),
        ({"type": "upsert_memo", "entries": avro([1])}, "entries.blob"),
        ({"type": "upsert_memo", "entries": {"codec": "avro", "blob": "?"}}, "entries.blob"),
        ({"type": "upsert_memo", "entries": {"a": 1}}, "entries"),
        ({"type": "complete_workflow", "result": {"total": 1}}, "result"),
        ({"type": "fail_workflow"}, "message"),
        ({"type": "continue_as_new", "arguments": 5}, "arguments"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.get("type", "none")),
)
def test_a_command_that_makes_no_sense_is_refused_by_its_place(
    wire: Wire, task: Json, command: Json, field: str
) -> None:
    with wire.nothing_changes():
        answer = report(wire, task, "complete", commands=[start_timer(1), command])
        answer.invalid(f"commands.1.{field}")


def test_commands_are_required_and_are_a_list(wire: Wire, task: Json) -> None:
    with wire.nothing_changes():
        wire.report(task, "complete").invalid("commands")
        report(wire, task, "complete", commands={}).invalid("commands")
        report(wire, task, "complete", commands=[5]).invalid("commands.0")


def test_a_run_may_not_hold_more_open_timers_than_the_bound(wire: Wire, task: Json) -> None:
    commands = [start_timer(60)] * 2_000
    with wire.nothing_changes():
        too_many = report(wire, task, "complete", commands=[*commands, start_timer(60)])
        too_many.refused(422, "structural_limit_exceeded")
    wire.complete(task, *commands)
    assert len(wire.events()) == 2_002


# Failures -----------------------------------------------------------------------------------------


def test_a_failed_task_comes_again_later_and_later(wire: Wire, task: Json) -> None:
    for attempt, delay in enumerate((1, 2, 4, 8), start=1):
        body = report(wire, task, "fail", failure={"message": "bug", "type": "Bug"}).ok()
        expected = {
            "task_id": task["task_id"],
            "workflow_task_attempt": attempt,
            "outcome": "failed",
            "recorded": True,
            "next_task_id": task["task_id"],
            "reason": None,
        }
        assert expected.items() <= body.items()
        wire.advance(seconds=delay - 0.001)
        assert wire.poll()["poll_status"] == "empty"
        wire.advance(seconds=0.001)
        task = wire.take()
        assert task["workflow_task_attempt"] == attempt + 1
    assert wire.event_types() == ["StartAccepted", "WorkflowStarted"]


def test_a_repeated_failure_gets_the_recorded_answer(wire: Wire, task: Json) -> None:
    first = report(wire, task, "fail").ok()
    with wire.nothing_changes():
        assert report(wire, task, "fail").ok() == first
    wire.advance(seconds=1)
    wire.take()
    with wire.nothing_changes():
        assert report(wire, task, "fail").ok() == first, "the next attempt is not touched"


def test_a_worker_that_waits_for_history_has_not_failed(wire: Wire, task: Json) -> None:
    wire.complete(task, wait_for_condition())
    wire.signal("pay")
    woken = wire.take()
    before = wire.event_types()

    body = report(
        wire, woken, "fail", failure={"message": "x", "type": "WorkflowTaskWaitingForHistory"}
    ).ok()

    assert (body["outcome"], body["recorded"]) == ("waiting_for_history", True)
    assert body["next_task_id"] is None
    assert wire.event_types() == before
    wire.advance(seconds=120)
    assert wire.poll()["poll_status"] == "empty"
    wire.signal("pay")
    wire.take()


@pytest.mark.parametrize(
    ("failure", "field"),
    [
        (None, "failure"),
        ({}, "failure.message"),
        ({"message": 5}, "failure.message"),
        ({"message": "x", "type": 5}, "failure.type"),
    ],
)
def test_a_failure_that_makes_no_sense_is_refused(
    wire: Wire, task: Json, failure: Any, field: str
) -> None:
    with wire.nothing_changes():
        report(wire, task, "fail", failure=failure).invalid(field)


# What comes in while a task is leased -------------------------------------------------------------


def test_signals_wait_until_the_leased_task_is_done(wire: Wire, task: Json) -> None:
    wire.signal("pay")

    assert wire.event_types() == ["StartAccepted", "WorkflowStarted"]
    wire.complete(task, wait_for_condition())
    assert wire.event_types()[2:] == ["ConditionWaitOpened", "SignalReceived"]


def test_outcomes_wait_until_the_leased_task_is_done(wire: Wire, task: Json) -> None:
    wire.complete(task, schedule_activity(), wait_for_condition())
    attempt = wire.take("activity")
    wire.signal("pay")
    woken = wire.take()
    before = wire.event_types()

    wire.report_attempt(attempt, "complete", result=avro(1)).ok()

    assert wire.event_types() == before
    wire.complete(woken)
    assert wire.event_types()[len(before) :] == ["ActivityCompleted"]


def test_a_wait_that_is_asked_for_again_beside_open_work_stays_open(wire: Wire, task: Json) -> None:
    """The code cannot have advanced, so the command is dropped; the wait must not go with it."""
    wire.complete(task, schedule_activity(), wait_for_condition())
    wire.signal("pay")
    wire.complete(wire.take(), schedule_activity(), wait_for_condition())

    wire.signal("pay")

    assert wire.poll()["poll_status"] == "leased"

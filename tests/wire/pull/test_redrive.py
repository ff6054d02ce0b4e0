"""Failed runs that are continued in a new run."""

from typing import Any

import pytest

from perdure.core.run.redrive import Prefix, read_prefix
from perdure.engine.redrive import RedriveRun
from perdure.engine.run_commands import CommandTarget
from perdure.store.interface import Instance
from tests.support.http import (
    Answer,
    Json,
    Wire,
    avro,
    complete_update,
    complete_workflow,
    fail_workflow,
    schedule_activity,
    start_child,
    start_timer,
    unavro,
    wait_for_condition,
)


def redrive(wire: Wire, run_id: str, workflow_id: str = "order-1", **members: Any) -> Answer:
    return wire.control("POST", f"/workflows/{workflow_id}/runs/{run_id}/redrive", members)


def finish(wire: Wire, result: Any = "ok") -> Json:
    """The next activity is done."""
    task = wire.take("activity")
    wire.report_attempt(task, "complete", result=avro(result)).ok()
    return task


def give_up(wire: Wire) -> Json:
    """The next activity fails for good."""
    task = wire.take("activity")
    wire.report_attempt(task, "fail", failure={"message": "declined"}).ok()
    return task


def a_failed_run(wire: Wire, **members: Any) -> Json:
    """Two activities were done, the third failed, and the run with it."""
    wire.register()
    started = wire.run_to(schedule_activity(), input=avro(["blue", 7]))
    finish(wire, 1)
    wire.complete(wire.take(), schedule_activity("ship"))
    finish(wire, 2)
    wire.complete(wire.take(), schedule_activity())
    failed = give_up(wire)
    marks = {
        "failed_step_sequence": 3,
        "failed_activity_execution_id": failed["activity_execution_id"],
    }
    wire.complete(wire.take(), fail_workflow(**{**marks, **members}))
    return started


def steps(events: list[Json]) -> list[tuple[str, int | None]]:
    return [(event["event_type"], event["payload"].get("sequence")) for event in events]


COPIED = [
    ("StartAccepted", None),
    ("WorkflowStarted", None),
    ("ActivityScheduled", 1),
    ("ActivityStarted", 1),
    ("ActivityCompleted", 1),
    ("ActivityScheduled", 2),
    ("ActivityStarted", 2),
    ("ActivityCompleted", 2),
]


def test_a_failed_run_goes_on_before_the_step_that_failed(wire: Wire) -> None:
    failed = a_failed_run(wire)
    before = wire.events(run_id=failed["run_id"])
    assert before[-1]["payload"]["failed_step_sequence"] == 3
    assert wire.describe()["actions"]["can_redrive"] is True

    done = redrive(wire, failed["run_id"]).ok(202)

    assert (done["outcome"], done["command_status"]) == ("redriven", "accepted")
    assert done["workflow_id"] == "order-1"
    assert done["run_id"] != failed["run_id"]
    assert done["control_plane"]["operation"] == "redrive"
    task = wire.take()
    assert (task["run_id"], task["workflow_type"]) == (done["run_id"], "Order")
    assert unavro(task["arguments"]) == ["blue", 7]
    assert steps(task["history_events"]) == COPIED
    copies = task["history_events"]
    assert [event["id"] for event in copies[2:]] == [event["id"] for event in before[2:8]]
    assert unavro(copies[4]["payload"]["result"]) == 1
    assert copies[4]["payload"]["reused_from_run_id"] == failed["run_id"]
    assert copies[1]["payload"]["redriven_from_run_id"] == failed["run_id"]
    assert copies[1]["payload"]["workflow_run_id"] == done["run_id"]
    assert copies[1]["payload"]["timestamp"] == before[1]["payload"]["timestamp"]

    wire.complete(task, schedule_activity())
    assert wire.events()[-1]["payload"]["sequence"] == 3
    finish(wire)
    wire.complete(wire.take(), complete_workflow("all done"))
    seen = wire.describe()
    assert (seen["status"], seen["output"], seen["run_number"]) == ("completed", "all done", 2)
    assert seen["redriven_from_run_id"] == failed["run_id"]
    assert wire.events(run_id=failed["run_id"]) == before, "the failed run has changed"


# Where the code goes on ---------------------------------------------------------------------------


def test_without_a_mark_the_last_failed_step_is_done_again(wire: Wire) -> None:
    failed = a_failed_run(wire, failed_step_sequence=None, failed_activity_execution_id=None)

    redrive(wire, failed["run_id"]).ok(202)

    assert steps(wire.take()["history_events"]) == COPIED


def test_a_mark_that_names_another_activity_is_not_believed(wire: Wire) -> None:
    failed = a_failed_run(wire, failed_step_sequence=1, failed_activity_execution_id="unknown")

    redrive(wire, failed["run_id"]).ok(202)

    assert steps(wire.take()["history_events"]) == COPIED


def test_what_the_code_did_behind_the_marked_step_is_forgotten(wire: Wire) -> None:
    """As the compensations of a saga, which undid what came before."""
    wire.register()
    started = wire.run_to(schedule_activity())
    failed = give_up(wire)
    wire.complete(wire.take(), schedule_activity("ship"))
    finish(wire)
    marks = {
        "failed_step_sequence": 1,
        "failed_activity_execution_id": failed["activity_execution_id"],
    }
    wire.complete(wire.take(), fail_workflow(**marks))

    redrive(wire, started["run_id"]).ok(202)

    assert steps(wire.take()["history_events"]) == COPIED[:2]


def test_code_that_failed_by_itself_goes_on_behind_everything_it_did(wire: Wire) -> None:
    wire.register()
    effect = {"type": "record_side_effect", "result": avro("seven")["blob"]}
    marker = {
        "type": "record_version_marker",
        "change_id": "new",
        "version": 1,
        "min_supported": 1,
        "max_supported": 1,
    }
    started = wire.run_to(effect, start_timer(5))
    wire.advance(seconds=6)
    wire.complete(wire.take(), marker, start_child())
    wire.complete(wire.take(), complete_workflow("from the child"))
    wire.complete(wire.take(), fail_workflow("a bug"))

    redrive(wire, started["run_id"]).ok(202)

    task = wire.take()
    assert [name for name, _ in steps(task["history_events"])[2:]] == [
        "SideEffectRecorded",
        "TimerScheduled",
        "TimerFired",
        "VersionMarkerRecorded",
        "ChildWorkflowScheduled",
        "ChildRunStarted",
        "ChildRunCompleted",
    ]
    wire.complete(task, schedule_activity())
    assert wire.events()[-1]["payload"]["sequence"] == 5


def test_a_caught_failure_is_remembered(wire: Wire) -> None:
    wire.register()
    started = wire.run_to(schedule_activity())
    give_up(wire)
    wire.complete(wire.take(), schedule_activity("ship"))
    finish(wire)
    wire.complete(wire.take(), fail_workflow("a bug"))

    redrive(wire, started["run_id"]).ok(202)

    names = [name for name, _ in steps(wire.take()["history_events"])]
    assert ("ActivityFailed" in names, names[-1]) == (True, "ActivityCompleted")


def test_a_child_that_failed_is_started_anew(wire: Wire) -> None:
    wire.register()
    started = wire.run_to(schedule_activity())
    finish(wire)
    wire.complete(wire.take(), start_child())
    wire.complete(wire.take(), fail_workflow("the child"))
    wire.complete(wire.take(), fail_workflow("the parent"))

    redrive(wire, started["run_id"]).ok(202)

    task = wire.take()
    assert steps(task["history_events"]) == COPIED[:5]
    wire.complete(task, start_child())
    assert wire.take()["workflow_type"] == "Child"


def group(size: int, index: int, mode: str | None = None) -> list[Json]:
    entry: Json = {
        "parallel_group_id": f"parallel-calls:1:{size}",
        "parallel_group_kind": "activity",
        "parallel_group_base_sequence": 1,
        "parallel_group_size": size,
        "parallel_group_index": index,
    }
    if mode is not None:
        entry |= {
            "parallel_group_mode": mode,
            "selection_member_key": index,
            "selection_member_index": index,
            "selection_member_base_sequence": 1 + index,
            "selection_member_size": 1,
            "selection_member_kind": "activity",
        }
    return [entry]


@pytest.mark.parametrize("has_metadata", [True, False], ids=["2.x", "0.4"])
def test_a_list_of_which_a_member_failed_is_done_anew(wire: Wire, has_metadata: bool) -> None:
    wire.register()
    paths = [group(3, i) if has_metadata else None for i in range(3)]
    members = [schedule_activity(parallel_group_path=path) for path in paths]
    started = wire.run_to(*members)
    finish(wire)
    give_up(wire)
    finish(wire)
    wire.complete(wire.take(), fail_workflow())

    redrive(wire, started["run_id"]).ok(202)

    task = wire.take()
    assert steps(task["history_events"]) == COPIED[:2]
    wire.complete(task, *members)
    assert [event["payload"]["sequence"] for event in wire.events()[2:]] == [1, 2, 3]


def test_a_selection_whose_loser_was_left_open_is_done_anew(wire: Wire) -> None:
    wire.register()
    members = [schedule_activity(parallel_group_path=group(2, i, "select")) for i in range(2)]
    started = wire.run_to(*members)
    wire.take("activity")
    finish(wire)
    wire.complete(wire.take(), schedule_activity("ship"))
    give_up(wire)
    wire.complete(wire.take(), fail_workflow())

    redrive(wire, started["run_id"]).ok(202)

    assert steps(wire.take()["history_events"]) == COPIED[:2]


def test_a_selection_that_is_over_is_kept(wire: Wire) -> None:
    wire.register()
    members = [schedule_activity(parallel_group_path=group(2, i, "select")) for i in range(2)]
    started = wire.run_to(*members)
    finish(wire)
    finish(wire)
    wire.complete(wire.take(), schedule_activity("ship"))
    give_up(wire)
    wire.complete(wire.take(), fail_workflow())
    before = wire.events(run_id=started["run_id"])

    redrive(wire, started["run_id"]).ok(202)

    copies = wire.take()["history_events"]
    (resolved,) = [event for event in copies if event["event_type"] == "SelectionResolved"]
    assert resolved["payload"] in [event["payload"] for event in before]
    assert resolved["payload"]["resolution_event_id"] in [event["id"] for event in copies]
    assert [event["sequence"] for event in copies] == list(range(1, len(copies) + 1))


def test_a_run_that_passed_its_deadline_goes_on_with_a_new_one(wire: Wire) -> None:
    wire.register()
    started = wire.run_to(schedule_activity(), run_timeout_seconds=60, execution_timeout_seconds=60)
    finish(wire)
    wire.complete(wire.take(), schedule_activity("ship"), start_timer(3600))
    wire.advance(seconds=61)
    assert wire.describe()["closed_reason"] == "timed_out"

    redrive(wire, started["run_id"]).ok(202)

    assert steps(wire.take()["history_events"]) == COPIED[:5]
    assert wire.describe()["status"] in ("pending", "running")
    wire.advance(seconds=50)
    assert wire.describe()["status"] != "failed"
    wire.advance(seconds=11)
    assert wire.describe()["closed_reason"] == "timed_out"


def test_a_run_that_never_began_begins(wire: Wire) -> None:
    started = wire.start(run_timeout_seconds=5, input=["plain"])
    wire.advance(seconds=6)
    assert wire.describe()["status"] == "failed"

    redrive(wire, started["run_id"]).ok(202)

    wire.register(sdk_version="durable-workflow-python/0.4.106")
    task = wire.take()
    assert unavro(task["arguments"]) == ["plain"]
    wire.complete(task, complete_workflow())


def test_memo_and_attributes_are_those_of_the_step_where_it_goes_on(wire: Wire) -> None:
    wire.register()
    upserts = [
        {"type": "upsert_search_attributes", "attributes": {"stage": stage, stage: 1}}
        for stage in ("early", "late")
    ]
    notes = [{"type": "upsert_memo", "entries": avro({"note": note})} for note in ("early", "late")]
    started = wire.run_to(upserts[0], notes[0], schedule_activity(), memo={"who": "me"})
    failed = give_up(wire)
    wire.complete(wire.take(), upserts[1], notes[1], schedule_activity("ship"))
    finish(wire)
    marks = {
        "failed_step_sequence": 3,
        "failed_activity_execution_id": failed["activity_execution_id"],
    }
    wire.complete(wire.take(), fail_workflow(**marks))

    redrive(wire, started["run_id"]).ok(202)

    seen = wire.describe()
    assert seen["memo"] == {"who": "me", "note": "early"}
    assert seen["search_attributes"] == {"stage": "early", "early": 1}


def test_a_run_that_failed_while_it_cleaned_up_is_not_continued(wire: Wire) -> None:
    wire.register(capabilities=["cooperative_cancellation"])
    started = wire.run_to(start_timer(3600))
    wire.control("POST", "/workflows/order-1/request-cancellation", {}).ok(202)
    task = wire.take()
    request_id = task["cancellation_request"]["request_id"]
    told = {"request_id": request_id, "sequence": 1, "call_kind": "timer"}
    wire.report(task, "deliver-cancellation", **told).ok()
    wire.complete(task, fail_workflow())

    with wire.nothing_changes():
        redrive(wire, started["run_id"]).refused(409, "run_not_failed")


def test_a_run_that_was_asked_to_stop_and_failed_first_is_not_asked_again(wire: Wire) -> None:
    wire.register(capabilities=["cooperative_cancellation"])
    started = wire.run_to(schedule_activity())
    finish(wire)
    failing = wire.take()
    wire.control("POST", "/workflows/order-1/request-cancellation", {}).ok(202)
    wire.complete(failing, fail_workflow())

    redrive(wire, started["run_id"]).ok(202)

    again = wire.take()
    assert steps(again["history_events"]) == COPIED[:5]
    assert again.get("cancellation_request") is None


# Messages -----------------------------------------------------------------------------------------


def test_no_message_is_lost_and_none_is_seen_too_early(wire: Wire) -> None:
    wire.register()
    started = wire.run_to(wait_for_condition("paid"))
    wire.signal("pay", input=avro(["in time"]))
    wire.complete(wire.take(), schedule_activity())
    wire.signal("pay", input=avro(["late"]))
    told = wire.update("add", input=avro([5]), wait_for="accepted")
    assert told.status == 202
    update = wire.take()
    wire.complete(update, complete_update(update))
    give_up(wire)
    failing = wire.take()
    wire.signal("pay", input=avro(["unseen"]))
    wire.complete(failing, fail_workflow())

    redrive(wire, started["run_id"]).ok(202)

    task = wire.take()
    seen = [
        unavro(event["payload"]["arguments"])
        for event in task["history_events"]
        if event["event_type"] == "SignalReceived"
    ]
    assert seen == [["in time"]]
    assert "UpdateApplied" not in [name for name, _ in steps(task["history_events"])]
    wire.complete(task, schedule_activity())
    again = wire.take()
    assert again["workflow_update_id"] == update["workflow_update_id"]
    wire.complete(again, complete_update(again))
    finish(wire)
    types = wire.event_types()
    assert (types.count("SignalReceived"), types.count("UpdateApplied")) == (3, 1)
    wire.complete(wire.take(), complete_workflow())


# Repeats and refusals -----------------------------------------------------------------------------


def test_a_repeated_request_finds_the_run_that_it_led_to(wire: Wire) -> None:
    failed = a_failed_run(wire)
    first = redrive(wire, failed["run_id"], request_id="r1").ok(202)
    assert first["retained"] is False

    for restart in (False, True):
        if restart:
            wire.restart()
        with wire.nothing_changes():
            again = redrive(wire, failed["run_id"], request_id="r1").ok(202)
        assert (again["run_id"], again["retained"]) == (first["run_id"], True)
        assert again["command_id"] == first["command_id"]
    with wire.nothing_changes():
        conflict = redrive(wire, first["run_id"], request_id="r1")
        conflict.refused(409, "request_id_conflict")


def test_a_run_is_continued_once(wire: Wire) -> None:
    failed = a_failed_run(wire)
    second = redrive(wire, failed["run_id"]).ok(202)

    with wire.nothing_changes():
        body = redrive(wire, failed["run_id"]).refused(409, "historical_run_command_rejected")
    assert body["current_run_id"] == second["run_id"]


def test_a_run_that_fails_again_is_continued_again(wire: Wire) -> None:
    failed = a_failed_run(wire)
    second = redrive(wire, failed["run_id"]).ok(202)
    wire.complete(wire.take(), schedule_activity())
    give_up(wire)
    wire.complete(wire.take(), fail_workflow())

    redrive(wire, second["run_id"]).ok(202)

    task = wire.take()
    assert steps(task["history_events"]) == COPIED
    assert task["history_events"][4]["payload"]["reused_from_run_id"] == failed["run_id"]
    assert wire.describe()["run_number"] == 3


def test_only_a_run_that_failed_is_continued(wire: Wire) -> None:
    wire.register()
    pending = wire.start("pending")
    with wire.nothing_changes():
        body = redrive(wire, pending["run_id"], "pending").refused(409, "run_not_failed")
    assert body["run_status"] == "pending"
    wire.control("POST", "/workflows/pending/cancel").ok()
    ended = [("pending", pending["run_id"])]
    for verb in ("complete", "terminate"):
        started = wire.start(verb)
        ended.append((verb, started["run_id"]))
        if verb == "complete":
            wire.complete(wire.take(), complete_workflow())
        else:
            wire.control("POST", f"/workflows/{verb}/terminate").ok()
    for workflow_id, run_id in ended:
        with wire.nothing_changes():
            redrive(wire, run_id, workflow_id).refused(409, "run_not_failed")


def test_what_does_not_exist_is_not_continued(wire: Wire) -> None:
    failed = a_failed_run(wire)
    other = wire.start("other")
    wire.server.namespaces.known.add("elsewhere")
    with wire.nothing_changes():
        redrive(wire, failed["run_id"], "unknown").refused(404, "instance_not_found")
        redrive(wire, "unknown").refused(404, "run_not_found")
        redrive(wire, other["run_id"]).refused(404, "run_not_found")
        path = f"/workflows/order-1/runs/{failed['run_id']}/redrive"
        elsewhere = wire.control("POST", path, {}, headers={"X-Namespace": "elsewhere"})
        elsewhere.refused(404, "instance_not_found")
        redrive(wire, failed["run_id"], request_id="x" * 256).invalid("request_id")
        redrive(wire, failed["run_id"], request_id=5).invalid("request_id")


def test_a_step_that_never_was_cannot_have_failed(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    with wire.nothing_changes():
        for sequence in (2, 99):
            command = fail_workflow(failed_step_sequence=sequence)
            refused = wire.report(task, "complete", commands=[schedule_activity(), command])
            refused.refused(409, "invalid_commands")
        command = fail_workflow(failed_step_sequence=0)
        refused = wire.report(task, "complete", commands=[command])
        refused.invalid("commands.0.failed_step_sequence")


# Others -------------------------------------------------------------------------------------------


def test_a_standalone_activity_is_done_anew(wire: Wire) -> None:
    wire.register()
    body = {
        "activity_type": "charge",
        "activity_id": "job-1",
        "task_queue": "q",
        "input": avro([1]),
        "business_key": "k",
        "retry_policy": {"max_attempts": 2},
        "start_to_close_timeout_seconds": 5,
    }
    started = wire.control("POST", "/activities", body).ok(201)
    first = give_up(wire)
    give_up(wire)

    done = redrive(wire, started["workflow_run_id"], "job-1").ok(202)

    assert done["run_id"] != started["workflow_run_id"]
    again = wire.take("activity")
    assert again["attempt_number"] == 1
    assert unavro(again["arguments"]) == [1]
    assert again["retry_policy"] == first["retry_policy"]
    wire.report_attempt(again, "complete", result=avro("ok")).ok()
    seen = wire.control("GET", "/activities/job-1").ok()
    assert (unavro(seen["result"]), seen["business_key"], seen["run_number"]) == ("ok", "k", 2)


def test_a_parent_that_was_told_of_a_failure_is_not_told_again(wire: Wire) -> None:
    wire.register()
    wire.run_to(start_child())
    child = wire.take()
    wire.complete(child, fail_workflow("the child"))
    parent = wire.take()
    wire.complete(parent, wait_for_condition())

    redrive(wire, child["run_id"], child["workflow_id"]).ok(202)
    wire.complete(wire.take(), complete_workflow())

    assert wire.event_types()[-1] == "ConditionWaitOpened"
    assert wire.poll()["poll_status"] == "empty"


@pytest.mark.parametrize("what", ["shorter", "of another run"])
def test_a_history_that_was_read_too_early_is_read_again(wire: Wire, what: str) -> None:
    failed = a_failed_run(wire)["run_id"]
    store, engine = wire.server.store, wire.server.engine
    history = wire.run(store.read_history(failed, 0, 1_000))
    run_id, events = (failed, history[:-1]) if what == "shorter" else ("another", history)
    target = CommandTarget(instance=Instance("default", "order-1"), run_id=failed)

    async def decided(prefix: Prefix) -> Any:
        return await engine.submit(RedriveRun(target, prefix))

    with wire.nothing_changes():
        assert wire.run(decided(read_prefix(run_id, events))) is None

    redriven = wire.run(decided(read_prefix(failed, history)))
    assert redriven.outcome == "redriven"

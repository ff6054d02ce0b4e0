"""Every event that the server writes has the members that the ecosystem knows, and no others."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure.core.run
from tests.support.http import (
    Json,
    Wire,
    a_wire,
    avro,
    complete_update,
    complete_workflow,
    continue_as_new,
    fail_update,
    fail_workflow,
    local_activity,
    local_attempt,
    local_call,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
    wait_for_signal,
)

MANIFEST: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "history-event-payload-keys.json").read_text()
)
"""The catalogue of the reference server, copied from the protocol's fixtures."""

GROUP = {
    "parallel_group_id",
    "parallel_group_kind",
    "parallel_group_base_sequence",
    "parallel_group_size",
    "parallel_group_index",
    "parallel_group_path",
}
SELECTION = {
    "parallel_group_mode",
    "selection_member_key",
    "selection_member_index",
    "selection_member_base_sequence",
    "selection_member_size",
    "selection_member_kind",
}
LEAVES = {
    event_type
    for event_type in MANIFEST
    if event_type.startswith(("Activity", "Timer", "Child", "ConditionWait"))
}
"""Events of one operation; they repeat the metadata of its group (SDK contract, 6.7 and 8.5)."""

CALL = {
    "sequence",
    "service_call_id",
    "endpoint_name",
    "service_name",
    "operation_name",
    "operation_mode",
    "wait_for",
    "status",
    "payload_codec",
    "caller_workflow_instance_id",
    "caller_workflow_run_id",
    "service_call",
}
"""Members of every event of a service call (SDK contract, 8.10)."""

ADDITIONS: dict[str, set[str]] = {
    "WorkflowStarted": {"timestamp", "payload_codec", "input"},
    "ActivityScheduled": {"cancellation_policy"},
    "ActivityTimedOut": {"exception_type", "non_retryable", "code", "exception", "local_recovery"},
    "ActivityRetryScheduled": {"local_recovery"},
    "ActivityFailed": {"local_recovery"},
    "ActivityCancelled": {
        "message",
        "exception_type",
        "non_retryable",
        "failure_id",
        "failure_category",
    },
    "ChildWorkflowScheduled": {"cancellation_policy"},
    "ChildRunStarted": {"cancellation_policy"},
    "SignalReceived": {"arguments", "payload_codec"},
    "SideEffectRecorded": {"payload_codec"},
    "UpdateAccepted": {"payload_codec"},
    "UpdateApplied": {"payload_codec"},
    "UpdateCompleted": {"payload_codec"},
    "CooperativeCancellationRequested": {
        "workflow_command_id",
        "workflow_instance_id",
        "workflow_run_id",
        "requested_at",
        "cleanup_deadline_at",
        "reason",
        "cancellation",
    },
    "CooperativeCancellationDelivered": {
        "workflow_command_id",
        "workflow_instance_id",
        "workflow_run_id",
        "sequence",
        "call_kind",
        "sequence_span",
        "operation_sequence",
        "operation_sequence_span",
    },
    "WorkflowFailed": {"failed_step_sequence", "failed_activity_execution_id"},
    "ActivityCompleted": {"reused_from_run_id"},
    "ServiceCallStarted": {*CALL, "request_payload"},
    "ServiceCallCompleted": {*CALL, "response_payload"},
    "ServiceCallFailed": {*CALL, "message", "exception_type", "failure_category"},
    "ServiceCallCancelled": {*CALL, "message", "exception_type", "failure_category"},
    "SelectionOperationCancelled": {
        "selection_group_id",
        "member_key",
        "member_index",
        "member_base_sequence",
        "member_size",
        "operation_kind",
        "operation_identity",
    },
    "SelectionResolved": {
        "selection_group_id",
        "selection_group_base_sequence",
        "selection_group_size",
        "member_key",
        "member_index",
        "member_base_sequence",
        "member_size",
        "operation_kind",
        "operation_identity",
        "outcome",
        "resolution_event_id",
        "resolution_event_type",
    },
}
"""What the SDK contract adds to the catalogue in 6.9 (and 8.5 for selections)."""

OURS: dict[str, set[str]] = {
    # A child that was stopped tells its caller as what, like one that failed does.
    "ChildRunCancelled": {"exception_type"},
    "ChildRunTerminated": {"exception_type"},
    # A run that continues a failed one says which.
    "WorkflowStarted": {"redriven_from_run_id"},
}
"""Members that neither document names. Replay ignores them; each needs a reason."""


def allowed(event_type: str) -> set[str]:
    members = {*MANIFEST.get(event_type, ()), *ADDITIONS.get(event_type, ())}
    members |= OURS.get(event_type, set())
    return members | GROUP | SELECTION if event_type in LEAVES else members


# Stories that make the server write everything it can --------------------------------------------


def path(kind: str, size: int, index: int, **members: Any) -> Json:
    """The metadata by which a worker says that commands belong together."""
    entry = {
        "parallel_group_id": f"parallel-calls:1:{size}",
        "parallel_group_kind": kind,
        "parallel_group_base_sequence": 1,
        "parallel_group_size": size,
        "parallel_group_index": index,
        **members,
    }
    return {"parallel_group_path": [entry]}


def selected(key: str, kind: str, index: int, size: int) -> Json:
    return path(
        "mixed",
        size,
        index,
        parallel_group_id=f"select-calls:1:{size}",
        parallel_group_mode="select",
        selection_member_key=key,
        selection_member_index=index,
        selection_member_base_sequence=1 + index,
        selection_member_size=1,
        selection_member_kind=kind,
    )


def tell_of_markers(wire: Wire) -> None:
    wire.run_to(
        {"type": "record_side_effect", "result": "blob"},
        {
            "type": "record_version_marker",
            "change_id": "c",
            "version": 1,
            "min_supported": 1,
            "max_supported": 2,
        },
        {"type": "upsert_search_attributes", "attributes": {"city": "Bern"}},
        {"type": "upsert_memo", "entries": avro({"note": "n"})},
        complete_workflow(),
        workflow_id="markers",
        business_key="B",
        memo={"a": 1},
        search_attributes={"b": 2},
        execution_timeout_seconds=3600,
        run_timeout_seconds=600,
    )


def tell_of_activities(wire: Wire) -> None:
    retry = {"max_attempts": 2, "backoff_seconds": [1], "non_retryable_error_types": ["X"]}
    wire.run_to(
        schedule_activity(cancellation_policy="try_cancel", retry_policy=retry),
        workflow_id="activities",
    )
    attempt = wire.take("activity")
    wire.report_attempt(attempt, "heartbeat", message="m", details={"a": 1}).ok()
    failure = {"message": "x", "type": "T", "class": "C", "code": 5, "stack_trace": "s"}
    wire.report_attempt(attempt, "fail", failure={**failure, "details": {"a": 1}}).ok()
    wire.advance(seconds=1)
    wire.report_attempt(wire.take("activity"), "complete", result=avro(1)).ok()
    wire.complete(wire.take(), schedule_activity())
    wire.report_attempt(wire.take("activity"), "fail", failure=failure).ok()
    wire.complete(wire.take(), schedule_activity(start_to_close_timeout=1))
    wire.take("activity")
    wire.advance(seconds=1)
    wire.complete(wire.take(), fail_workflow("boom", exception_type="T", exception={"type": "T"}))


def tell_of_local_activities(wire: Wire) -> None:
    failure = {"message": "no", "exception_type": "T", "non_retryable": False}
    late = {**failure, "timeout_kind": "heartbeat"}
    policy = {"max_attempts": 2, "backoff_seconds": [1]}
    wire.run_to(
        local_activity(
            attempts=[
                local_attempt(1, "failed", **failure, retry_reason="failure", backoff_seconds=1),
                local_attempt(2, heartbeats=[{"elapsed_ms": 1, "details": {"a": 1}}]),
            ],
            retry_policy=policy,
            start_to_close_timeout=9,
        ),
        local_activity("failed", attempts=[local_attempt(1, "failed", **failure)], **failure),
        local_activity("timed_out", attempts=[local_attempt(1, "timed_out", **late)], **late),
        local_activity("cancelled", attempts=[local_attempt(1, "cancelled", **failure)], **failure),
        complete_workflow(),
        workflow_id="local",
    )


def tell_of_prepared_local_activities(wire: Wire) -> None:
    able = ["cooperative_cancellation", "prepared_local_activities"]
    wire.register("asks", capabilities=able)
    policy = {"retry_policy": {"max_attempts": 2}, "cancellation_policy": "try_cancel"}
    call = {"sequence": 1, "descriptor": local_call(start_to_close_timeout=70, **policy)}

    def prepare(task: Json) -> str:
        asked = {**call, "worker_attempt_id": "n"}
        begun = wire.report(task, "local-activities/prepare", **asked).ok()
        return f"local-activities/{begun['activity_attempt_id']}"

    wire.start("prepared")
    prepare(wire.take(worker_id="asks"))
    wire.advance(seconds=60)
    task = wire.take(worker_id="asks")
    wire.report(task, "local-activities/recover", **call).ok()
    task = wire.take(worker_id="asks")
    attempt = prepare(task)
    wire.report(task, f"{attempt}/heartbeat", progress={"details": {"a": 1}}).ok()
    wire.advance(seconds=59)
    wire.report(task, f"{attempt}/control").ok()
    wire.advance(seconds=11)
    wire.complete(wire.take(worker_id="asks"), complete_workflow())
    wire.start("prepared-stopped")
    prepare(wire.take(worker_id="asks"))
    wire.control("POST", "/workflows/prepared-stopped/cancel", {}).ok()


def tell_of_cancellations(wire: Wire) -> None:
    wire.register("capable", capabilities=["cooperative_cancellation"])
    for kind, command in (("activity", schedule_activity()), ("timer", start_timer(60))):
        wire.start(kind)
        wire.complete(wire.take(worker_id="capable"), command)
        asked = wire.control("POST", f"/workflows/{kind}/request-cancellation", {"reason": "r"})
        request_id = asked.ok(202)["cancellation_request"]["request_id"]
        task = wire.take(worker_id="capable")
        call = {"request_id": request_id, "sequence": 1, "call_kind": kind}
        wire.report(task, "deliver-cancellation", **call).ok()
        wire.complete(task, fail_workflow("x", exception_type="WorkflowCancelled"))


def tell_of_stops(wire: Wire) -> None:
    for verb in ("cancel", "terminate"):
        wire.run_to(
            schedule_activity(),
            start_timer(60),
            start_child(parent_close_policy="terminate"),
            workflow_id=verb,
        )
        wire.take("activity")
        wire.control("POST", f"/workflows/{verb}/{verb}", {"reason": "enough"}).ok()
    wire.start("late", run_timeout_seconds=1)
    wire.advance(seconds=1)


def tell_of_waits(wire: Wire) -> None:
    wire.run_to(wait_for_condition(timeout_seconds=60), workflow_id="waits")
    wire.signal("pay", "waits", input=[1])
    wire.complete(
        wire.take(),
        wait_for_condition("b", condition_definition_fingerprint="f", timeout_seconds=1),
    )
    wire.advance(seconds=1)
    wire.complete(wire.take(), wait_for_signal("pay", timeout_seconds=60))
    wire.signal("pay", "waits", input=[1])
    wire.complete(wire.take(), wait_for_signal("pay", timeout_seconds=1))
    wire.advance(seconds=1)
    wire.complete(wire.take(), continue_as_new())
    wire.complete(wire.take(), complete_workflow())


def tell_of_children(wire: Wire) -> None:
    ends: dict[str, Json | str] = {
        "completed": complete_workflow(),
        "failed": fail_workflow("x", exception_type="T", exception_class="C", exception={"a": 1}),
        "continued": continue_as_new(),
        "cancelled": "cancel",
        "terminated": "terminate",
    }
    for name, end in ends.items():
        retry = {"max_attempts": 2} if name == "failed" else None
        wire.run_to(
            start_child(
                parent_close_policy="abandon",
                cancellation_policy="abandon",
                retry_policy=retry,
                execution_timeout_seconds=99,
                run_timeout_seconds=99,
            ),
            workflow_id=f"parent-{name}",
        )
        child = wire.take()
        if isinstance(end, str):
            wire.control("POST", f"/workflows/{child['workflow_id']}/{end}", {"reason": "r"}).ok()
        else:
            wire.complete(child, end)
        if name in ("failed", "continued"):
            wire.complete(wire.take(), fail_workflow())
        wire.complete(wire.take(), complete_workflow())


def tell_of_groups(wire: Wire) -> None:
    wire.run_to(
        schedule_activity(**path("mixed", 4, 0), retry_policy={"max_attempts": 2}),
        {**start_timer(1), **path("mixed", 4, 1)},
        start_child(**path("mixed", 4, 2)),
        wait_for_condition(**path("mixed", 4, 3), timeout_seconds=1),
        workflow_id="group",
    )
    wire.complete(wire.take(), fail_workflow())
    attempt = wire.take("activity")
    wire.report_attempt(attempt, "heartbeat").ok()
    wire.report_attempt(attempt, "fail", failure={"message": "x"}).ok()
    wire.report_attempt(wire.take("activity"), "complete").ok()
    wire.advance(seconds=1)
    wire.complete(wire.take(), complete_workflow())


def tell_of_selections(wire: Wire) -> None:
    wire.run_to(
        schedule_activity(**selected("fast", "activity", 0, 2)),
        {**start_timer(60), **selected("slow", "timer", 1, 2)},
        workflow_id="selection",
    )
    wire.report_attempt(wire.take("activity"), "complete").ok()
    timer = next(
        event["payload"]
        for event in wire.events("selection")
        if event["event_type"] == "TimerScheduled"
    )
    wire.complete(
        wire.take(),
        {
            "type": "cancel_selection_operation",
            "selection_group_id": "select-calls:1:2",
            "member_key": "slow",
            "member_index": 1,
            "member_base_sequence": 2,
            "member_size": 1,
            "operation_kind": "timer",
            "operation_identity": timer["timer_id"],
        },
    )
    wire.complete(wire.take(), complete_workflow())


def tell_of_updates(wire: Wire) -> None:
    wire.run_to(wait_for_condition(), workflow_id="updates")
    wire.update("add", "updates", input=[1], request_id="r").ok(202)
    task = wire.take()
    wire.complete(task, complete_update(task))
    wire.complete(wire.take(), wait_for_condition())
    wire.update("add", "updates").ok(202)
    task = wire.take()
    wire.complete(task, fail_update(task, exception_type="T", exception_class="C"))
    wire.update("add", "updates", input=[1]).ok(202)
    wire.update("add", "updates", input=[2]).ok(202)
    wire.control("POST", "/workflows/updates/cancel", {}).ok()


def tell_of_services(wire: Wire) -> None:
    path = "/service-endpoints/e"
    handler = {"workflow_type": "Child", "task_queue": "q"}
    wire.control("PUT", path, {}).ok(201)
    wire.control("PUT", f"{path}/services/s", {}).ok(201)
    binding = {"handler_binding_kind": "workflow_run", "handler_binding": handler}
    wire.control("PUT", f"{path}/services/s/operations/o", binding).ok(201)
    call = {
        "type": "start_service_operation",
        "endpoint_name": "e",
        "service_name": "s",
        "operation_name": "o",
        "request_payload": avro([1])["blob"],
        "idempotency_key": "k",
    }
    for end in ("complete", "fail", "cancel", "refuse"):
        wire.run_to({**call, "idempotency_key": end}, workflow_id=f"calls-{end}")
        handling = wire.take()
        if end == "complete":
            wire.complete(handling, complete_workflow("done"))
        elif end == "fail":
            wire.complete(handling, fail_workflow(exception_type="T"))
        else:
            wire.control("POST", f"/workflows/{handling['workflow_id']}/cancel", {}).ok()
        refused = {**call, "operation_name": "unknown"}
        wire.complete(wire.take(), refused if end == "refuse" else complete_workflow())
    wire.complete(wire.take(), complete_workflow())


def tell_of_redrive(wire: Wire) -> None:
    started = wire.run_to(schedule_activity(), workflow_id="redriven")
    wire.report_attempt(wire.take("activity"), "complete").ok()
    wire.complete(wire.take(), schedule_activity())
    attempt = wire.take("activity")
    wire.report_attempt(attempt, "fail", failure={"message": "no"}).ok()
    marks = {
        "failed_step_sequence": 2,
        "failed_activity_execution_id": attempt["activity_execution_id"],
    }
    wire.complete(wire.take(), fail_workflow(**marks))
    run_id = started["run_id"]
    wire.control("POST", f"/workflows/redriven/runs/{run_id}/redrive", {}).ok(202)
    wire.complete(wire.take(), complete_workflow())


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Json]]:
    """Everything that a server wrote while all of this happened to it."""
    with a_wire(tmp_path_factory.mktemp("events")) as wire:
        wire.register()
        for tell in (
            tell_of_markers,
            tell_of_activities,
            tell_of_local_activities,
            tell_of_prepared_local_activities,
            tell_of_cancellations,
            tell_of_stops,
            tell_of_waits,
            tell_of_children,
            tell_of_groups,
            tell_of_selections,
            tell_of_updates,
            tell_of_services,
            tell_of_redrive,
        ):
            tell(wire)
        told: list[Json] = []
        for run in wire.control("GET", "/workflows?page_size=200").ok()["workflows"]:
            told += wire.events(run["workflow_id"], run["run_id"])
        yield told


def test_no_event_has_a_member_that_nobody_knows(events: list[Json]) -> None:
    unknown: dict[str, set[str]] = {}
    for event in events:
        extra = set(event["payload"]) - allowed(event["event_type"])
        if extra:
            unknown.setdefault(event["event_type"], set()).update(extra)
    assert unknown == {}


def test_every_member_of_our_own_is_still_written(events: list[Json]) -> None:
    for event_type, members in OURS.items():
        written = [set(e["payload"]) for e in events if e["event_type"] == event_type]
        assert members <= set.union(*written), event_type


def test_no_member_is_null_and_codecs_are_named_where_there_are_payloads(
    events: list[Json],
) -> None:
    for event in events:
        for name, value in event["payload"].items():
            may_be_null = name in ("output", "result", "input")
            assert value is not None or may_be_null, (event["event_type"], name)
        assert event["payload"].get("payload_codec", "avro") == "avro"


def test_these_stories_make_the_server_write_every_event_it_can(events: list[Json]) -> None:
    known = {*MANIFEST, *ADDITIONS}
    folder = Path(perdure.core.run.__path__[0])
    written = {
        node.value
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known
    }
    # Names of exceptions as well as of events.
    assert {event["event_type"] for event in events} == written


def test_events_of_a_group_carry_its_metadata_from_first_to_last(events: list[Json]) -> None:
    groups = [event for event in events if "parallel_group_path" in event["payload"]]
    types = {event["event_type"] for event in groups}
    assert types >= {
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityRetryScheduled",
        "ActivityCompleted",
        "TimerScheduled",
        "TimerFired",
        "ChildWorkflowScheduled",
        "ChildRunStarted",
        "ChildRunFailed",
        "ConditionWaitOpened",
        "ConditionWaitTimedOut",
    }
    for event in groups:
        payload = event["payload"]
        innermost = payload["parallel_group_path"][-1]
        assert innermost.items() <= payload.items()
        outermost = payload["parallel_group_path"][0]
        place = outermost["parallel_group_base_sequence"] + outermost["parallel_group_index"]
        assert place == payload["sequence"]

"""Whatever stands in a body, the server answers it: with a success or a refusal, never a 500."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Json,
    Wire,
    a_wire,
    avro,
    complete_workflow,
    fail_workflow,
    schedule_activity,
    start_child,
    wait_for_condition,
    wait_for_signal,
)

BLOBLESS = {"codec": "avro", "blob": 5}
ODD: list[Any] = [None, "", "x" * 300, "\x00é", -1, 1.5, 2**63, [None], {"": None}, BLOBLESS]


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document where something stands."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, member in value.items():
            yield from places(member, (*path, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from places(member, (*path, index))


def put(document: Json, path: tuple[str | int, ...], value: Any) -> Json:
    changed: Any = copy.deepcopy(document)
    at = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return dict(changed)


GROUP: Json = {
    "parallel_group_path": [
        {
            "parallel_group_id": "parallel-activities:1:1",
            "parallel_group_kind": "activity",
            "parallel_group_base_sequence": 1,
            "parallel_group_size": 1,
            "parallel_group_index": 0,
        }
    ]
}
COMMANDS: list[Json] = [
    schedule_activity(
        queue="q",
        retry_policy={
            "max_attempts": 2,
            "backoff_seconds": [1],
            "non_retryable_error_types": ["T"],
        },
        start_to_close_timeout=5,
        cancellation_policy="try_cancel",
        **GROUP,
    ),
    {"type": "start_timer", "delay_seconds": 5},
    start_child(parent_close_policy="abandon", execution_timeout_seconds=9),
    wait_for_condition("k", condition_definition_fingerprint="f", timeout_seconds=5),
    wait_for_signal("s", timeout_seconds=5),
    {"type": "record_side_effect", "result": "blob"},
    {
        "type": "record_version_marker",
        "change_id": "c",
        "version": 1,
        "min_supported": 1,
        "max_supported": 2,
    },
    {"type": "upsert_search_attributes", "attributes": {"a": [1, "b"]}},
    {"type": "upsert_memo", "entries": avro({"a": 1})},
    {
        "type": "cancel_selection_operation",
        "selection_group_id": "g",
        "member_key": "k",
        "member_index": 0,
        "member_base_sequence": 1,
        "member_size": 1,
        "operation_kind": "timer",
        "operation_identity": "i",
    },
    complete_workflow(),
    fail_workflow("x", exception_type="T", exception={"a": 1}, non_retryable=True),
    {"type": "continue_as_new", "arguments": avro([]), "queue": "q", "workflow_type": "Order"},
]


def a_task(wire: Wire) -> Json:
    wire.control("POST", "/workflows", {"workflow_type": "Order", "task_queue": "q"}).ok(201)
    return wire.take()


def an_attempt(wire: Wire) -> Json:
    wire.complete(a_task(wire), schedule_activity(retry_policy={"max_attempts": None}))
    return wire.take("activity")


def bodies_of_clients(wire: Wire) -> Iterator[tuple[str, Json]]:
    yield (
        "/workflows",
        {
            "workflow_type": "Order",
            "task_queue": "elsewhere",
            "input": [1, {"a": None}],
            "business_key": "b",
            "memo": {"a": {"b": 1}},
            "search_attributes": {"a": "b"},
            "duplicate_policy": "fail",
            "execution_timeout_seconds": 60,
            "run_timeout_seconds": 60,
            "start_delay_seconds": 5,
            "priority": 5,
            "fairness_key": "k",
            "fairness_weight": 1,
            "build_id": "b",
        },
    )
    run = wire.control("POST", "/workflows", {"workflow_type": "Idle"}).ok(201)
    path = f"/workflows/{run['workflow_id']}"
    yield f"{path}/signal/pay", {"input": avro([1]), "request_id": "r"}
    yield f"{path}/runs/{run['run_id']}/signal/pay", {"input": {"a": 1}, "request_id": "r"}
    yield f"{path}/update/ask", {"input": [1], "request_id": "r", "wait_for": "accepted"}
    yield f"{path}/query/ask", {"input": [1]}
    yield f"{path}/message-streams/s/messages", {"message_id": "m", "input": [1]}
    yield f"{path}/cancel", {"reason": "r", "request_id": "r"}
    yield f"{path}/terminate", {"reason": "r", "request_id": "r"}


def bodies_of_workers(wire: Wire) -> Iterator[tuple[str, Json]]:
    process = {"host": "h", "process_id": 1, "process_started_at": "x"}
    yield (
        "/worker/register",
        {
            "worker_id": "odd",
            "task_queue": "nobody-polls",
            "runtime": "python",
            "sdk_version": "durable-workflow-python/2.12.0",
            "build_id": "b",
            "supported_workflow_types": ["Order"],
            "supported_activity_types": ["charge"],
            "workflow_definition_fingerprints": {"Order": "f"},
            "workflow_command_contracts": {"Order": {"signals": ["pay"]}},
            "capabilities": ["c"],
            "capability_manifest": {"m": {"supported": True}},
            "max_concurrent_workflow_tasks": 1,
            "task_slots": {"workflow_available": 1},
            "process_metrics": process,
            "heartbeat_interval_seconds": 30,
        },
    )
    beat = {"worker_id": "w1", "task_slots": {"a": 1}, "process_metrics": process}
    yield "/worker/heartbeat", beat
    yield "/worker/registrations/w1/deregister", {"registration_token": "t"}
    for kind in ("workflow", "activity"):
        poll = {
            "worker_id": "w1",
            "task_queue": "q",
            "poll_request_id": "p",
            "timeout_seconds": 0,
            "build_id": "b",
            "history_page_size": 5,
            "accept_history_encoding": "gzip",
        }
        yield f"/worker/{kind}-tasks/poll", poll


def reports_on_tasks(wire: Wire) -> Iterator[tuple[str, Json]]:
    task = a_task(wire)
    path = f"/worker/workflow-tasks/{task['task_id']}"
    lease = {"lease_owner": "w1", "workflow_task_attempt": 1}
    page = {"next_history_page_token": "MA==", "history_page_size": 5}
    yield f"{path}/history", {**lease, **page, "accept_history_encoding": "gzip"}
    yield f"{path}/heartbeat", lease
    failure = {"message": "m", "type": "t", "reason": "r", "stack_trace": "s"}
    yield f"{path}/fail", {**lease, "failure": failure}


def reports_on_attempts(wire: Wire) -> Iterator[tuple[str, Json]]:
    for verb, members in (
        ("status", {}),
        ("renew-lease", {}),
        (
            "heartbeat",
            {"message": "m", "current": 1, "total": 2, "unit": "u", "details": {"a": 1}},
        ),
        (
            "fail",
            {
                "failure": {
                    "message": "m",
                    "type": "t",
                    "class": "c",
                    "code": 1,
                    "stack_trace": "s",
                    "non_retryable": False,
                    "kind": "timeout",
                    "timeout_type": "heartbeat",
                    "details": {"a": 1},
                }
            },
        ),
        ("complete", {"result": {"a": [1]}}),
    ):
        attempt = an_attempt(wire)
        lease = {
            "activity_attempt_id": attempt["activity_attempt_id"],
            "lease_owner": "w1",
        }
        yield f"/worker/activity-tasks/{attempt['task_id']}/{verb}", {**lease, **members}


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Wire]:
    """A server whose polls never wait."""
    with a_wire(tmp_path, poll_timeout=0) as wire:
        wire.register()
        yield wire


def send(wire: Wire, path: str, body: Json) -> int:
    headers = {CONTROL_VERSION: "2", WORKER_VERSION: "1.20"}
    return wire.call("POST", f"/api{path}", body, headers=headers).status


@pytest.mark.parametrize(
    "bodies", [bodies_of_clients, bodies_of_workers, reports_on_tasks, reports_on_attempts]
)
def test_no_odd_value_makes_the_server_stumble(
    patient: Wire, bodies: Callable[[Wire], Iterator[tuple[str, Json]]]
) -> None:
    for path, body in bodies(patient):
        for place in places(body):
            for value in ODD:
                status = send(patient, path, put(body, place, value))
                assert status < 500, (path, place, value)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command["type"]))
def test_no_odd_value_in_a_command_makes_the_server_stumble(patient: Wire, command: Json) -> None:
    task = a_task(patient)
    for place in places(command):
        for value in ODD:
            answer = patient.report(task, "complete", commands=[put(command, place, value)])
            assert answer.status < 500, (place, value)
            if answer.status == 200:
                assert patient.control("GET", f"/workflows/{task['workflow_id']}").status == 200
                task = a_task(patient)

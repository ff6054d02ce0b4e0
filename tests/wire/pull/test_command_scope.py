"""Options of commands: each belongs to some types of commands and to no other."""

from typing import Any

import pytest

from tests.support.http import Json, Wire, avro

COMMANDS: dict[str, Json] = {
    "schedule_activity": {"activity_type": "charge"},
    "start_timer": {"delay_seconds": 60},
    "start_child_workflow": {"workflow_type": "Child"},
    "start_service_operation": {
        "endpoint_name": "shop",
        "service_name": "till",
        "operation_name": "pay",
    },
    "open_condition_wait": {},
    "open_signal_wait": {"signal_name": "pay"},
    "record_side_effect": {"result": avro(1)},
    "record_version_marker": {
        "change_id": "c",
        "version": 1,
        "min_supported": 1,
        "max_supported": 1,
    },
    "upsert_search_attributes": {"attributes": {"A": 1}},
    "upsert_memo": {"entries": avro({"a": 1})},
    "record_local_activity": {
        "activity_type": "charge",
        "outcome": "failed",
        "message": "no",
        "attempts": [{"attempt_id": "a", "attempt_number": 1, "outcome": "failed"}],
    },
    "cancel_selection_operation": {
        "selection_group_id": "g",
        "member_key": "k",
        "member_index": 0,
        "member_base_sequence": 1,
        "member_size": 1,
        "operation_kind": "timer",
        "operation_identity": "t",
    },
    "complete_update": {"update_id": "u"},
    "fail_update": {"update_id": "u", "message": "no"},
    "complete_workflow": {},
    "fail_workflow": {"message": "no"},
    "continue_as_new": {},
}
ACTIVITY = {"schedule_activity", "record_local_activity"}
WITH_PAYLOAD = {
    *ACTIVITY,
    "start_child_workflow",
    "start_service_operation",
    "record_side_effect",
    "upsert_memo",
    "complete_update",
    "complete_workflow",
    "continue_as_new",
}
OPTIONS: dict[str, tuple[Any, set[str]]] = {
    "retry_policy": ({"max_attempts": 2}, {*ACTIVITY, "start_child_workflow"}),
    "start_to_close_timeout": (9, ACTIVITY),
    "schedule_to_close_timeout": (9, ACTIVITY),
    "heartbeat_timeout": (9, ACTIVITY),
    "schedule_to_start_timeout": (9, {"schedule_activity"}),
    "worker_session": ({"session_id": "s"}, {"schedule_activity"}),
    "execution_timeout_seconds": (9, {"start_child_workflow"}),
    "run_timeout_seconds": (9, {"start_child_workflow"}),
    "parent_close_policy": ("abandon", {"start_child_workflow"}),
    "non_retryable": (True, {"fail_workflow", "fail_update", "record_local_activity"}),
    "exception": ({"a": 1}, {"fail_workflow"}),
    "delay_seconds": (9, {"start_timer"}),
    "timeout_seconds": (9, {"open_condition_wait", "open_signal_wait"}),
    "payload_codec": ("avro", WITH_PAYLOAD),
}
"""Each option with a value that makes sense, and the commands that have it."""


def test_every_type_of_command_is_tried(wire: Wire) -> None:
    info = wire.call("GET", "/api/cluster/info").ok()
    capabilities = info["worker_protocol"]["server_capabilities"]
    assert set(COMMANDS) == set(capabilities["supported_workflow_task_commands"])


@pytest.mark.parametrize("kind", COMMANDS)
def test_an_option_of_another_command_is_refused_by_its_name(wire: Wire, kind: str) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    foreign = [name for name, (_, kinds) in OPTIONS.items() if kind not in kinds]
    assert foreign

    with wire.nothing_changes():
        for name in foreign:
            wrong = {"type": kind, **COMMANDS[kind], name: OPTIONS[name][0]}
            commands = [{"type": "start_timer", "delay_seconds": 1}, wrong]
            refused = wire.report(task, "complete", commands=commands).invalid(f"commands.1.{name}")
            assert "not allowed for this type of command" in refused["message"]


@pytest.mark.parametrize(
    "kind", ["schedule_activity", "start_timer", "start_child_workflow", "complete_workflow"]
)
def test_options_that_are_null_say_nothing(wire: Wire, kind: str) -> None:
    """As SDKs send them that fill in every member."""
    wire.register()
    wire.start()
    nulls = dict.fromkeys(name for name in OPTIONS if name not in COMMANDS[kind])

    wire.complete(wire.take(), {"type": kind, **nulls, **COMMANDS[kind]})


@pytest.mark.parametrize(
    ("kind", "members", "field"),
    [
        ("upsert_search_attributes", {"attributes": {"a b": 1}}, "attributes"),
        ("upsert_search_attributes", {"attributes": {"a" * 65: 1}}, "attributes"),
        ("upsert_search_attributes", {"attributes": {"a": ["x", 1]}}, "attributes.a"),
        ("fail_workflow", {"exception": "lost"}, "exception"),
        ("fail_workflow", {"exception": [1]}, "exception"),
        (
            "schedule_activity",
            {"retry_policy": {"non_retryable_error_types": ["x", ""]}},
            "retry_policy.non_retryable_error_types.1",
        ),
    ],
)
def test_a_value_that_its_command_cannot_take_is_refused_by_its_place(
    wire: Wire, kind: str, members: Json, field: str
) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    with wire.nothing_changes():
        wrong = {"type": kind, **COMMANDS[kind], **members}
        wire.report(task, "complete", commands=[wrong]).invalid(f"commands.0.{field}")
    kept = {"type": "upsert_search_attributes", "attributes": {"a.b:c-1": ["x"], "d": None}}
    wire.complete(task, kept, {"type": "start_timer", "delay_seconds": 1})
    assert wire.describe()["search_attributes"] == {"a.b:c-1": ["x"]}


def test_payloads_have_the_one_codec(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    with wire.nothing_changes():
        for kind in WITH_PAYLOAD:
            wrong = {"type": kind, **COMMANDS[kind], "payload_codec": "json"}
            told = wire.report(task, "complete", commands=[wrong])
            told.invalid("commands.0.payload_codec")
    wire.complete(task, {"type": "schedule_activity", "activity_type": "charge"})

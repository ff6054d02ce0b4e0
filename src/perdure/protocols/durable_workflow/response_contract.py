"""The `control_plane` block of answers about workflows: repeated and guaranteed members."""

from typing import Any

import msgspec

PROJECTED_FIELDS = (
    "run_id",
    "workflow_type",
    "namespace",
    "business_key",
    "status",
    "status_bucket",
    "is_terminal",
    "task_queue",
    "run_number",
    "run_count",
    "workflow_count",
    "is_current_run",
    "compatibility",
    "started_at",
    "closed_at",
    "last_progress_at",
    "wait_kind",
    "wait_reason",
    "next_page_token",
    "command_id",
    "command_status",
    "command_source",
    "target_scope",
    "outcome",
    "reason",
    "rejection_reason",
    "validation_errors",
    "result",
    "result_envelope",
    "update_id",
    "update_status",
    "wait_for",
    "wait_timed_out",
    "wait_timeout_seconds",
    "message",
)
"""Members of an answer that its block repeats, if present."""

BLOCK_SCHEMA = "durable-workflow.v2.control-plane-response"

_TERMS: dict[str, Any] = {
    "schema": "durable-workflow.v2.control-plane-response.contract",
    "version": 1,
    "legacy_field_policy": "reject_non_canonical",
    "legacy_fields": {
        "query": "query_name",
        "signal": "signal_name",
        "update": "update_name",
        "wait_policy": "wait_for",
    },
}

_NAMED = ("workflow_id", "operation_name", "operation_name_field")

_PROMISES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "list": ((), ()),
    "start": ((), ("workflow_id", "outcome")),
    "describe": (("workflow_id",), ()),
    "list_runs": (("workflow_id",), ()),
    "describe_run": (("workflow_id",), ("run_id",)),
    "history": (("workflow_id", "run_id"), ("next_page_token",)),
    "signal": (_NAMED, ("outcome",)),
    "query": (_NAMED, ("result",)),
    "update": (_NAMED, ("outcome",)),
    "cancel": (("workflow_id",), ("outcome",)),
    "terminate": (("workflow_id",), ("outcome",)),
}
"""By operation: members that its block always has, and members it has after success."""


def name_field(operation: str) -> str | None:
    """The member that names the signal, query or update of an operation; None for others."""
    return f"{operation}_name" if _PROMISES.get(operation, ((), ()))[0] is _NAMED else None


RESPONSE_CONTRACT: dict[str, Any] = {
    "schema": BLOCK_SCHEMA,
    "version": 1,
    "contract": _TERMS,
    "projected_fields": PROJECTED_FIELDS,
    "operations": {
        operation: {
            "operation_name_field": name_field(operation),
            "required_fields": required,
            "success_fields": success,
        }
        for operation, (required, success) in _PROMISES.items()
    },
}


def terms_of(operation: str) -> msgspec.Raw | None:
    """The encoded contract of an operation's block; None for operations that only perdure has."""
    if operation not in _PROMISES:
        return None
    required, success = _PROMISES[operation]
    terms = {**_TERMS, "required_fields": required, "success_fields": success}
    return msgspec.Raw(msgspec.json.encode(terms))

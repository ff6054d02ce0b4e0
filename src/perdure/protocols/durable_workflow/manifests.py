"""Cluster info and server capabilities. Only implemented features are advertised."""

from typing import Any

from perdure.core import limits
from perdure.core.bounds import Bounds
from perdure.core.fleet.session import LEASE_SECONDS, TTL_SECONDS
from perdure.core.fleet.worker import Cadence
from perdure.protocols.durable_workflow.response_contract import RESPONSE_CONTRACT

CONTROL_PLANE_VERSION = "2"
WORKER_PROTOCOL_MINOR = 20
WORKER_PROTOCOL_VERSION = f"1.{WORKER_PROTOCOL_MINOR}"

SUPPORTED_COMMANDS = (
    "complete_workflow",
    "fail_workflow",
    "continue_as_new",
    "schedule_activity",
    "start_timer",
    "start_child_workflow",
    "complete_update",
    "fail_update",
    "record_side_effect",
    "record_version_marker",
    "upsert_search_attributes",
    "upsert_memo",
    "open_condition_wait",
    "open_signal_wait",
    "cancel_selection_operation",
    "record_local_activity",
    "start_service_operation",
)

REQUEST_CONTRACT: dict[str, Any] = {
    "schema": "durable-workflow.v2.control-plane-request.contract",
    "version": 1,
    "operations": {
        "list": {
            "fields": {
                "status": {
                    "canonical_values": ["running", "completed", "failed"],
                    "rejected_aliases": {
                        "cancelled": "failed",
                        "terminated": "failed",
                        "pending": "running",
                        "waiting": "running",
                    },
                }
            }
        },
        "start": {
            "fields": {
                "duplicate_policy": {
                    "canonical_values": ["fail", "use-existing"],
                    "rejected_aliases": {"use_existing": "use-existing"},
                },
                "execution_timeout_seconds": {"type": "integer", "min": 1},
                "run_timeout_seconds": {"type": "integer", "min": 1},
                "start_delay_seconds": {"type": "integer", "min": 0},
                "payload_codec": {"type": "string", "canonical_values": ["avro"]},
            },
            "unsupported_fields": [
                "workflow_execution_timeout",
                "workflow_run_timeout",
                "workflow_task_timeout",
                "retry_policy",
                "idempotency_key",
                "request_id",
            ],
        },
        "update": {
            "fields": {
                "wait_for": {"canonical_values": ["accepted", "completed"]},
                "wait_timeout_seconds": {"type": "integer", "min": 1},
            },
            "removed_fields": {"wait_policy": "use wait_for"},
        },
    },
}

AUTH_COMPOSITION: dict[str, Any] = {
    "schema": "durable-workflow.v2.auth-composition.contract",
    "version": 1,
    "precedence": {
        "connection_values": ["flag", "environment", "selected_profile", "default"],
        "profile_selection": ["flag_env", "DW_ENV", "current_profile", "default_profile"],
    },
    "canonical_environment": {
        "server_url": "DURABLE_WORKFLOW_SERVER_URL",
        "namespace": "DURABLE_WORKFLOW_NAMESPACE",
        "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
        "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
        "profile": "DW_ENV",
    },
    "auth_material": {
        "token": {
            "status": "supported",
            "transport": "bearer_authorization_header",
            "effective_config_value": "redacted",
        },
        "mtls": {"status": "reserved", "effective_config_value": "references_only"},
        "signed_headers": {"status": "reserved", "effective_config_value": "references_only"},
    },
    "effective_config": {
        "required_fields": ["server_url", "namespace", "profile", "auth", "tls", "identity"],
        "source_values": [
            "flag",
            "environment",
            "selected_profile",
            "profile_env",
            "default",
            "server",
        ],
    },
    "redaction": {
        "never_echo": [
            "bearer_tokens",
            "private_keys",
            "shared_signature_keys",
            "client_certificate_private_key_material",
            "raw_authorization_headers",
        ]
    },
}

CLIENT_COMPATIBILITY: dict[str, Any] = {
    "schema": "durable-workflow.v2.client-compatibility",
    "version": 1,
    "authority": "protocol_manifests",
    "top_level_version_role": "informational",
    "fail_closed": True,
    "required_protocols": {
        "auth_composition": {
            "schema": "durable-workflow.v2.auth-composition.contract",
            "version": 1,
        },
        "control_plane": {
            "version": CONTROL_PLANE_VERSION,
            "header": "X-Durable-Workflow-Control-Plane-Version",
            "request_contract": {
                "schema": "durable-workflow.v2.control-plane-request.contract",
                "version": 1,
            },
        },
        "worker_protocol": {
            "version": WORKER_PROTOCOL_VERSION,
            "header": "X-Durable-Workflow-Protocol-Version",
        },
    },
}


def structural_limits(bounds: Bounds, body_bytes_max: int) -> dict[str, int]:
    """Bounds of one run, and the thresholds of its warnings."""
    return {
        "pending_activity_count": bounds.pending_activities_max,
        "pending_child_count": bounds.pending_children_max,
        "pending_timer_count": bounds.pending_timers_max,
        "pending_signal_count": bounds.pending_signals_max,
        "pending_update_count": bounds.pending_updates_max,
        "pending_message_count": limits.PENDING_MESSAGES_MAX,
        "pending_message_bytes": limits.PENDING_MESSAGES_BYTES_MAX,
        "message_stream_count": limits.MESSAGE_STREAMS_MAX,
        "command_batch_size": bounds.commands_max,
        "payload_size_bytes": min(bounds.payload_bytes_max, body_bytes_max),
        "memo_size_bytes": bounds.memo_bytes_max,
        "search_attribute_size_bytes": bounds.search_attributes_bytes_max,
        "history_transaction_size": bounds.events_per_completion_max,
        "history_event_count": bounds.history_events_max,
        "continue_as_new_event_threshold": bounds.continue_as_new_events,
        "continue_as_new_size_bytes_threshold": bounds.continue_as_new_bytes,
        "continue_as_new_fan_out_threshold": limits.CONTINUE_AS_NEW_FAN_OUT,
        "warning_threshold_percent": bounds.warning_percent,
    }


SYNCHRONOUS_UPDATE_VALIDATION: dict[str, Any] = {
    "supported": True,
    "acceptance_boundary": "validator_approved",
    "worker_capability": "update_validation_tasks",
    "workflow_contract_field": "update_validators",
    "task_poll": {
        "strategy": "multiplexed",
        "endpoint": "/worker/workflow-tasks/poll",
        "request_field": "task_kinds",
        "task_kinds": ["workflow", "update_validation"],
        "response_discriminator": "task.task_kind",
    },
}
"""Validation of updates by a worker before they are accepted."""

LOCAL_ACTIVITIES: dict[str, Any] = {
    "supported": True,
    "schema": "durable-workflow.v2.local-activity.contract",
    "version": 1,
    "command": "record_local_activity",
    "max_attempts": limits.LOCAL_ATTEMPTS_MAX,
    "max_heartbeats": limits.LOCAL_HEARTBEATS_MAX,
}
"""Local activities: run by a workflow worker under the lease of its task."""


LOCAL_POLICIES = ("try_cancel", "wait_cancellation_completed")
"""Cancellation policies of prepared local activities."""

WORKER_SESSIONS: dict[str, Any] = {
    "supported": True,
    "minimum_protocol_version": "1.8",
    "command_field": "worker_session",
    "renewed_by": ["session_heartbeat", "activity_heartbeat", "activity_lease_renewal"],
    "statuses": ["active", "closed", "expired", "failed", "orphaned"],
    "default_lease_seconds": LEASE_SECONDS,
    "default_ttl_seconds": TTL_SECONDS,
}
"""Worker sessions: activities bound to one worker, one owner at a time."""

OBSERVABILITY_CONTEXT: dict[str, Any] = {
    "supported": True,
    "schema": "durable-workflow.trace-context",
    "version": 1,
    "dispatch_schema": "durable-workflow.queue-trace",
    "links_schema": "durable-workflow.trace-links",
    "max_context_bytes": limits.TRACE_CONTEXT_BYTES_MAX,
    "max_links": limits.TRACE_LINKS_MAX,
    "max_links_bytes": limits.TRACE_LINKS_BYTES_MAX,
}
"""The form of trace contexts. SDKs accept it only if it is exactly this."""


WORKFLOW_STREAMS: dict[str, Any] = {
    "supported": True,
    "schema": "durable-workflow.v2.workflow-streams.contract",
    "version": 1,
    "max_streams_per_run": limits.STREAMS_PER_RUN_MAX,
    "max_items_per_append": limits.STREAM_ITEMS_PER_APPEND_MAX,
    "max_item_bytes": limits.STREAM_ITEM_BYTES_MAX,
    "max_items_per_page": limits.STREAM_PAGE_SIZE_MAX,
    "max_wait_seconds": limits.STREAM_WAIT_SECONDS_MAX,
    "max_pending_items_default": limits.STREAM_PENDING_ITEMS_DEFAULT,
    "max_pending_items": limits.STREAM_PENDING_ITEMS_MAX,
    "retention_seconds_default": limits.STREAM_RETENTION_SECONDS_DEFAULT,
}
"""Output streams of runs, and their bounds."""


def server_capabilities(
    *,
    poll_timeout: int,
    compression: bool,
    external_payloads: bool,
    cadence: Cadence,
    bounds: Bounds,
) -> dict[str, Any]:
    """Capabilities of this server for workers."""
    encodings = ["gzip", "deflate"]
    return {
        "long_poll_timeout": poll_timeout // limits.SECOND,
        "supported_workflow_task_commands": list(SUPPORTED_COMMANDS),
        "workflow_task_poll_request_idempotency": True,
        "poll_status": True,
        "history_page_size_default": bounds.history_page_size_default,
        "history_page_size_max": bounds.history_page_size_max,
        "query_tasks": True,
        "query_task_authority": True,
        "activity_retry_policy": True,
        "activity_timeouts": True,
        "activity_lease_renewal": True,
        "child_workflow_retry_policy": True,
        "child_workflow_timeouts": True,
        "parent_close_policy": True,
        "non_retryable_failures": True,
        "workflow_memo_updates": {"supported": True},
        "local_activities": LOCAL_ACTIVITIES,
        "worker_session_verbs": ["create", "heartbeat", "close"],
        "worker_sessions": WORKER_SESSIONS,
        "message_streams": True,
        "cooperative_cancellation": True,
        "prepared_local_activities": True,
        "prepared_local_activity_groups": True,
        "prepared_local_activity_cancellation_policies": list(LOCAL_POLICIES),
        "observability_context": OBSERVABILITY_CONTEXT,
        "sticky_execution": {
            "supported": True,
            "routing_identity": "worker_id",
            "correctness_fallback": "cold_replay",
            "max_ttl_seconds": limits.STICKY_SECONDS_MAX,
        },
        "workflow_streams": WORKFLOW_STREAMS,
        "update_validation_tasks": True,
        "synchronous_update_validation": SYNCHRONOUS_UPDATE_VALIDATION,
        "runtime_external_payload_transport": external_payloads,
        "response_compression": encodings if compression else [],
        "history_compression": {
            "supported_encodings": encodings,
            "compression_threshold": limits.HISTORY_COMPRESSION_EVENTS_MIN,
        },
        "worker_status": {
            "supported": True,
            "heartbeat_interval_seconds": cadence.heartbeat_interval_seconds,
            "stale_after_seconds": cadence.stale_after // limits.SECOND,
        },
        "worker_deregistration_fencing": {
            "supported": True,
            "schema": "durable-workflow.v2.worker-deregistration.v1",
            "endpoint": "/worker/registrations/{workerId}/deregister",
            "receipt_retention_seconds": limits.DEREGISTRATION_RECEIPT_SECONDS,
        },
    }


def cluster_info(
    *,
    server_id: str,
    version: str,
    default_namespace: str,
    capabilities: dict[str, Any],
    body_bytes_max: int,
    bounds: Bounds,
) -> dict[str, Any]:
    """The discovery document, in the form that the published SDKs validate."""
    return {
        "server_id": server_id,
        "version": version,
        "default_namespace": default_namespace,
        "capabilities": {
            "workflow_tasks": True,
            "activity_tasks": True,
            "signals": True,
            "queries": True,
            "updates": True,
            "message_streams": True,
            "workflow_streams": True,
            "search_attributes": True,
            "continue_as_new": True,
            "history_retention": True,
            "child_workflows": True,
            "worker_sessions": True,
            "activity_timeouts": True,
            "activity_retry_policy": True,
            "child_workflow_retry_policy": True,
            "child_workflow_timeouts": True,
            "parent_close_policy": True,
            "non_retryable_failures": True,
            "payload_codec_envelope": True,
            "payload_codec_envelope_responses": True,
            "payload_codecs": ["avro"],
            "response_compression": capabilities["response_compression"],
            "avro_value_protocol": {
                "schema": "durable_workflow.protocol.Value",
                "fingerprint": "e2a33dff55802237",
                "framing": "single_object",
                "magic_hex": "c301",
            },
        },
        "limits": {
            "max_payload_bytes": body_bytes_max,
            "max_memo_bytes": bounds.memo_bytes_max,
            "max_search_attributes": bounds.search_attributes_max,
            "max_search_attribute_key_length": bounds.search_attribute_key_length_max,
            "max_search_attribute_value_bytes": bounds.search_attribute_value_bytes_max,
            "max_operation_name_length": bounds.operation_name_bytes_max,
            "max_pending_activities": bounds.pending_activities_max,
            "max_pending_children": bounds.pending_children_max,
        },
        "structural_limits": structural_limits(bounds, body_bytes_max),
        "client_compatibility": CLIENT_COMPATIBILITY,
        "auth_composition_contract": AUTH_COMPOSITION,
        "control_plane": {
            "version": CONTROL_PLANE_VERSION,
            "header": "X-Durable-Workflow-Control-Plane-Version",
            "request_contract": REQUEST_CONTRACT,
            "response_contract": RESPONSE_CONTRACT,
        },
        "worker_protocol": {
            "version": WORKER_PROTOCOL_VERSION,
            "header": "X-Durable-Workflow-Protocol-Version",
            "server_capabilities": capabilities,
        },
    }

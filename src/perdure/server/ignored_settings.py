"""Variables of other servers of this protocol that have no effect here, or only one valid value.

Setting one is reported at start: most cause a warning, some an error because they would change too
much. With `DW_ENV_AUDIT_STRICT` all cause an error.
"""

from collections.abc import Mapping

REFUSED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "DW_AUTH_PROVIDER": ((), "tokens and signatures are the only authentication drivers"),
    "DW_MODE": (("service",), "this server is a service"),
    "DW_SERIALIZER": (("avro",), "payloads are Avro"),
    "DW_TASK_DISPATCH_MODE": (("poll",), "workers poll"),
}
"""Variables that would change what the server is: their valid values, and why."""

FIXED: Mapping[str, int] = {"DW_MAX_TASKS_PER_POLL": 1}
"""Bounds that cannot be changed."""

IGNORED: Mapping[str, str] = {
    "DW_AUTH_METHOD_HEADER": "the caller is never taken from a header",
    "DW_AUTH_STATUS_HEADER": "the caller is never taken from a header",
    "DW_CALLER_LABEL_HEADER": "the caller is never taken from a header",
    "DW_CALLER_TYPE_HEADER": "the caller is never taken from a header",
    "DW_TRUST_FORWARDED_ATTRIBUTION_HEADERS": "the caller is never taken from a header",
    "DW_BOOTSTRAP_DELAY_SECONDS": "a server waits for its store by itself",
    "DW_BOOTSTRAP_RETRIES": "a server waits for its store by itself",
    "DW_DUE_TIMER_RECOVERY_SCAN_LIMIT": "one loop knows what is due",
    "DW_EXPIRED_WORKFLOW_TASK_RECOVERY_SCAN_LIMIT": "one loop knows what is due",
    "DW_EXPIRED_WORKFLOW_TASK_RECOVERY_TTL_SECONDS": "one loop knows what is due",
    "DW_V2_TASK_REPAIR_FAILURE_BACKOFF_MAX_SECONDS": "tasks need no repair here",
    "DW_V2_TASK_REPAIR_LOOP_THROTTLE_SECONDS": "tasks need no repair here",
    "DW_V2_TASK_REPAIR_REDISPATCH_AFTER_SECONDS": "tasks need no repair here",
    "DW_V2_TASK_REPAIR_SCAN_LIMIT": "tasks need no repair here",
    "DW_EXPOSE_PACKAGE_PROVENANCE": "there is no such file",
    "DW_PACKAGE_PROVENANCE_PATH": "there is no such file",
    "DW_EXTERNAL_EXECUTOR_CONFIG_OVERLAY": "there are no external executors",
    "DW_EXTERNAL_EXECUTOR_CONFIG_PATH": "there are no external executors",
    "DW_METRICS_WORKFLOW_TASK_FAILURE_TYPE_LIMIT": "there are no such metrics",
    "DW_POLLING_CACHE_PATH": "there is no cache beside the store",
    "DW_V2_CACHE_VALIDATION_MODE": "there is no cache beside the store",
    "DW_V2_VALIDATE_CACHE_BACKEND": "there is no cache beside the store",
    "DW_WAKE_SIGNAL_TTL_SECONDS": "parked polls are woken, not signalled",
    "DW_WORKER_POLL_INTERVAL_MS": "parked polls are woken, not signalled",
    "DW_WORKER_POLL_SIGNAL_CHECK_INTERVAL_MS": "parked polls are woken, not signalled",
    "DW_V2_MATCHING_ROLE_QUEUE_WAKE": "parked polls are woken, not signalled",
    "DW_V2_UPDATE_WAIT_POLL_INTERVAL_MS": "parked polls are woken, not signalled",
    "DW_WORKER_LONG_POLL_RESERVED_HTTP_WORKERS": "a parked poll takes no worker of the server",
    "DW_RUNTIME_CREDENTIALS_ENABLED": "credentials are set when the server starts",
    "DW_CONFIG_HOME": "it is for clients",
    "DW_ENV": "it is for clients",
    "DW_SERVER_IMAGE": "it is for the process that starts the server",
    "DW_SERVER_TAG": "it is for the process that starts the server",
    "DW_SERVER_KEY": "nothing is encrypted with it",
    "DW_SERVER_PROCESS_CLASS": "every process does everything",
    "DW_SERVER_TOPOLOGY_SHAPE": "every process does everything",
    "DW_V2_MULTI_NODE": "every process does everything",
    "DW_V2_TASK_DISPATCH_MODE": "workers poll",
    "DW_SQLITE_CLAIM_LOCK_TTL_SECONDS": "a SQLite file belongs to one process",
    "DW_SQLITE_CLAIM_LOCK_WAIT_SECONDS": "a SQLite file belongs to one process",
    "DW_WORKER_PROTOCOL_VERSION": "it follows from what the server can do",
    "DW_V2_COMPATIBILITY_HEARTBEAT_TTL": "workers report their builds",
    "DW_V2_COMPATIBILITY_NAMESPACE": "workers report their builds",
    "DW_V2_CURRENT_COMPATIBILITY": "workers report their builds",
    "DW_V2_FLEET_VALIDATION_MODE": "workers report their builds",
    "DW_V2_SUPPORTED_COMPATIBILITIES": "workers report their builds",
    "DW_V2_PIN_TO_RECORDED_FINGERPRINT": "definitions are pinned by workers",
    "DW_V2_GUARDRAILS_BOOT": "invalid settings are always refused at start",
    "DW_V2_HISTORY_EXPORT_SIGNING_KEY": "histories are not exported",
    "DW_V2_HISTORY_EXPORT_SIGNING_KEY_ID": "histories are not exported",
    "DW_V2_NAMESPACE": "requests name their namespace; see DW_DEFAULT_NAMESPACE",
    "DW_V2_STICKY_EXECUTION_ENABLED": "workers choose it",
}
"""Variables without effect here, and why."""

_PREFIX = "DW_"


def refused_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables with values that this server refuses, one sentence each."""
    found = []
    for name, (valid, why) in REFUSED.items():
        value = environment.get(name)
        if value and value not in valid:
            problem = f"{name} is {' or '.join(valid)}" if valid else f"{name} cannot be set"
            found.append(f"{problem}: {why}")
    return found


def ineffective_variables(environment: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """Variables that are set and have no effect, one sentence each. Values are never shown."""
    found = []
    for name in sorted(environment):
        if not name.startswith(_PREFIX) or name in known or name in REFUSED:
            continue
        if not environment[name]:
            continue
        if name in FIXED:
            if environment[name] != str(FIXED[name]):
                found.append(f"{name} has no effect: it is always {FIXED[name]}")
        elif name in IGNORED:
            found.append(f"{name} has no effect: {IGNORED[name]}")
        else:
            found.append(f"{name} has no effect: no such variable is known")
    return found

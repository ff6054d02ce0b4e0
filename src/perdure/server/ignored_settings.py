"""Variables of other servers of this protocol that mean nothing here, or not anything else.

Whoever sets one hears of it when the server starts: most are only told, some change too much to be
passed over, and with `DW_ENV_AUDIT_STRICT` none is.
"""

from collections.abc import Mapping

REFUSED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "DW_AUTH_PROVIDER": ((), "there are no other doors than tokens and signatures"),
    "DW_MODE": (("service",), "this server is a service"),
    "DW_SERIALIZER": (("avro",), "payloads are Avro"),
    "DW_TASK_DISPATCH_MODE": (("poll",), "workers poll"),
}
"""Variables that would change what the server is: the values that are right, and why."""

FIXED: Mapping[str, int] = {"DW_MAX_TASKS_PER_POLL": 1}
"""Bounds that are what they are."""

IGNORED: Mapping[str, str] = {
    "DW_AUTH_METHOD_HEADER": "who called is never taken from a header",
    "DW_AUTH_STATUS_HEADER": "who called is never taken from a header",
    "DW_CALLER_LABEL_HEADER": "who called is never taken from a header",
    "DW_CALLER_TYPE_HEADER": "who called is never taken from a header",
    "DW_TRUST_FORWARDED_ATTRIBUTION_HEADERS": "who called is never taken from a header",
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
    "DW_RUNTIME_CREDENTIALS_ENABLED": "credentials are told when the server starts",
    "DW_CONFIG_HOME": "it is for clients",
    "DW_ENV": "it is for clients",
    "DW_SERVER_IMAGE": "it is for whoever starts the server",
    "DW_SERVER_TAG": "it is for whoever starts the server",
    "DW_SERVER_KEY": "nothing is encrypted with it",
    "DW_SERVER_PROCESS_CLASS": "every process does everything",
    "DW_SERVER_TOPOLOGY_SHAPE": "every process does everything",
    "DW_V2_MULTI_NODE": "every process does everything",
    "DW_V2_TASK_DISPATCH_MODE": "workers poll",
    "DW_SQLITE_CLAIM_LOCK_TTL_SECONDS": "a SQLite file belongs to one process",
    "DW_SQLITE_CLAIM_LOCK_WAIT_SECONDS": "a SQLite file belongs to one process",
    "DW_WORKER_PROTOCOL_VERSION": "it follows from what the server can do",
    "DW_V2_COMPATIBILITY_HEARTBEAT_TTL": "builds are told by workers",
    "DW_V2_COMPATIBILITY_NAMESPACE": "builds are told by workers",
    "DW_V2_CURRENT_COMPATIBILITY": "builds are told by workers",
    "DW_V2_FLEET_VALIDATION_MODE": "builds are told by workers",
    "DW_V2_SUPPORTED_COMPATIBILITIES": "builds are told by workers",
    "DW_V2_PIN_TO_RECORDED_FINGERPRINT": "definitions are pinned by workers",
    "DW_V2_GUARDRAILS_BOOT": "what is wrong at the start is always refused",
    "DW_V2_HISTORY_EXPORT_SIGNING_KEY": "histories are not exported",
    "DW_V2_HISTORY_EXPORT_SIGNING_KEY_ID": "histories are not exported",
    "DW_V2_NAMESPACE": "requests name their namespace; see DW_DEFAULT_NAMESPACE",
    "DW_V2_STICKY_EXECUTION_ENABLED": "workers choose it",
}
"""Variables that have nothing to set here, and why."""

_PREFIX = "DW_"


def refused_variables(environment: Mapping[str, str]) -> list[str]:
    """What is asked for that this server is not, one sentence each."""
    found = []
    for name, (right, why) in REFUSED.items():
        told = environment.get(name)
        if told and told not in right:
            wanted = f"{name} is {' or '.join(right)}" if right else f"{name} cannot be set"
            found.append(f"{wanted}: {why}")
    return found


def passed_over(environment: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """What is set and has no effect, one sentence each. Values are never shown."""
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

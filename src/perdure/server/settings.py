"""Settings, from the environment and the command line. Documented in docs/settings.md."""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from perdure.core import limits
from perdure.core.bounds import DEFAULT_BOUNDS, Bounds
from perdure.core.fleet.quota import Allowances
from perdure.core.fleet.worker import Cadence
from perdure.core.intake.keyring import MASTER_KEY_LENGTH_MIN
from perdure.server.credentials import (
    ROLES,
    CredentialsError,
    PrincipalToken,
    parse_principal_tokens,
)
from perdure.server.ignored_settings import ineffective_variables, refused_variables
from perdure.server.limit_settings import BOUNDS, SWITCHED_OFF_BY_ZERO, Choice
from perdure.server.quota_settings import AllowanceError, parse_allowances

DURABLEX_PORT = 6770
"""The port that clients of Durablex use by default."""
PROCESSES_MAX = 64
FOREVER = "forever"
API_KEYS_MAX = 64
"""Bounded, because every request is compared with every key."""


class SettingsError(Exception):
    """A setting is not valid; the message says why."""


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of an operator."""

    host: str = "127.0.0.1"
    port: int = 8080
    durablex_port: int | None = None
    store: str = "sqlite:///./perdure.db"
    store_direct: str | None = None
    pooler: str = "none"
    processes: int | None = None
    auth_driver: str = "token"
    auth_token: str | None = None
    role_tokens: dict[str, str] = {}
    principals: tuple[PrincipalToken, ...] = ()
    signature_key: str | None = None
    role_signature_keys: dict[str, str] = {}
    shared_credential: bool = True
    """Whether the shared token or key, which has no role, is accepted."""
    api_keys: tuple[str, ...] = ()
    read_keys: tuple[str, ...] = ()
    default_namespace: str = "default"
    server_id: str = "perdure"
    poll_timeout: int = limits.POLL_TIMEOUT_DEFAULT
    polls_max: int = limits.PARKED_POLLS_MAX
    worker_stale_after: int | None = None
    worker_heartbeat_interval: int = limits.WORKER_HEARTBEAT_INTERVAL_SECONDS
    workflow_lease_timeout: int = limits.WORKFLOW_LEASE_TIMEOUT
    activity_lease_timeout: int = limits.ACTIVITY_LEASE_TIMEOUT
    allowances: Allowances | None = None
    """Quotas of leased tasks, if there are any."""
    query_timeout: int | None = None
    query_lease_timeout: int | None = None
    query_remembered: int = limits.QUERY_REMEMBERED
    queries_pending_max: int = limits.QUERIES_PENDING_MAX
    query_polls_max: int = limits.PARKED_QUERY_POLLS_MAX
    update_wait_timeout: int = limits.UPDATE_WAIT_DEFAULT
    body_bytes_max: int = limits.BODY_BYTES_MAX
    connections_max: int = limits.CONNECTIONS_MAX
    connections_per_peer_max: int = limits.CONNECTIONS_PER_PEER_MAX
    request_memory_bytes_max: int = limits.REQUEST_MEMORY_BYTES_MAX
    bounds: Bounds = DEFAULT_BOUNDS
    compression: bool = True
    signing_key: str | None = None
    pass_timeout: int = limits.PASS_TIMEOUT
    external_payloads: bool = True
    external_payload_threshold: int = limits.EXTERNAL_PAYLOAD_THRESHOLD_BYTES
    webhook_keys: tuple[str, ...] = ()
    egress_allow: tuple[str, ...] = ()
    runner_allow: tuple[str, ...] | None = None
    """Hosts of runners; none allows all but metadata addresses."""
    history_retention: int = limits.HISTORY_RETENTION_DEFAULT
    """0 keeps them for ever."""
    run_retention: int | None = None
    event_retention: int | None = None
    delivery_retention: int | None = None
    ai_url: str | None = None
    ai_key: str | None = None
    ai_model: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Host names that a server without credentials accepts, besides loopback and its address."""
    without_effect: tuple[str, ...] = ()
    """Variables that are set and have no effect, one sentence each."""

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port to listen on; all serve the same routes."""
        return (self.port,) if self.durablex_port is None else (self.port, self.durablex_port)

    @property
    def cadence(self) -> Cadence:
        """Every poll is a sign of life of a worker, so the default is the length of two."""
        stale_after = self.worker_stale_after
        if stale_after is None:
            stale_after = max(2 * self.poll_timeout, limits.WORKER_STALE_AFTER)
        return Cadence(self.worker_heartbeat_interval, stale_after)

    @property
    def query_wait(self) -> int:
        """A query waits longer than a poll that has just begun, but less than client timeouts."""
        if self.query_timeout is not None:
            return self.query_timeout
        wait = max(self.poll_timeout + limits.QUERY_PATIENCE, limits.QUERY_TIMEOUT_MIN)
        return min(wait, limits.QUERY_TIMEOUT_MAX)


ENVIRONMENT: dict[str, str] = {
    "PERDURE_HOST": "address to listen on",
    "PERDURE_PORT": "port to listen on; 0 takes any free one",
    "PERDURE_DURABLEX_PORT": "additional port for the same routes; clients of Durablex expect 6770",
    "PERDURE_STORE": "the store: sqlite:///path or postgresql://user@host/database",
    "PERDURE_POOLER": "transaction if PostgreSQL is behind a pooler in transaction mode",
    "PERDURE_STORE_DIRECT": "PostgreSQL without the pooler, for hints and messages between nodes",
    "PERDURE_PROCESSES": "server processes behind one port; more than one needs PostgreSQL",
    "PERDURE_SIGNING_KEY": "key that signs requests to runners that serve HTTP",
    "PERDURE_PASS_TIMEOUT": "default time-out of a pass in seconds",
    "DW_SERVER_ID": "name of this server in cluster info",
    "DW_DEFAULT_NAMESPACE": "namespace of requests that name none; created at start",
    "DW_ENV_AUDIT_STRICT": "refuses to start with variables that have no effect",
    "DW_AUTH_DRIVER": "token, signature or none",
    "DW_AUTH_TOKEN": "token shared by all roles",
    "DW_WORKER_TOKEN": "token of workers",
    "DW_OPERATOR_TOKEN": "token of operators",
    "DW_ADMIN_TOKEN": "token of administrators",
    "DW_PRINCIPAL_TOKENS": "tokens with subjects and roles, in JSON",
    "DW_SIGNATURE_KEY": "signature key shared by all roles",
    "DW_WORKER_SIGNATURE_KEY": "signature key of workers",
    "DW_OPERATOR_SIGNATURE_KEY": "signature key of operators",
    "DW_ADMIN_SIGNATURE_KEY": "signature key of administrators",
    "DW_AUTH_BACKWARD_COMPATIBLE": "whether the shared token or key is accepted",
    "PERDURE_API_KEYS": "API keys of the push plane with full access, separated by commas",
    "PERDURE_READ_KEYS": "API keys of the push plane for reading only, separated by commas",
    "DW_WORKER_POLL_TIMEOUT": "default time-out of a poll in seconds",
    "DW_WORKER_LONG_POLL_MAX_CONCURRENT": "parked polls for tasks, per process",
    "DW_WORKER_STALE_AFTER_SECONDS": "seconds after its last request when a worker is stale; "
    "default: twice the poll time-out, at least 60",
    "DW_WORKER_HEARTBEAT_INTERVAL_SECONDS": "default interval of worker heartbeats in seconds",
    "DW_WORKFLOW_TASK_TIMEOUT": "duration of a workflow-task lease in seconds",
    "DW_ACTIVITY_TASK_TIMEOUT": "duration of an activity-task lease in seconds",
    "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_QUEUE": "active workflow leases per queue; 0: no limit",
    "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_NAMESPACE": "the same per namespace",
    "DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE": "workflow leases granted per queue and minute",
    "DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE": "the same per namespace",
    "DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_QUEUE": "active activity leases per queue; 0: no limit",
    "DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_NAMESPACE": "the same per namespace",
    "DW_ACTIVITY_TASK_MAX_DISPATCHES_PER_MINUTE": "activity leases granted per queue and minute",
    "DW_ACTIVITY_TASK_MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE": "the same per namespace",
    "DW_TASK_QUEUE_ADMISSION_OVERRIDES": "the same limits for single queues or groups, in JSON",
    "DW_QUERY_TASK_TIMEOUT": "time-out of a query; default: poll time-out + 15, from 40 to 55",
    "DW_QUERY_TASK_LEASE_TIMEOUT": "duration of a query lease; default: that of a workflow task",
    "DW_QUERY_TASK_TTL_SECONDS": "seconds that an ended query is remembered for its worker",
    "DW_QUERY_TASK_MAX_PENDING_PER_QUEUE": "pending queries per queue",
    "DW_QUERY_TASK_POLL_MAX_CONCURRENT": "parked query polls",
    "DW_V2_UPDATE_WAIT_COMPLETION_TIMEOUT_SECONDS": "default time-out in seconds "
    "of a client that waits for an update",
    "DW_MAX_PAYLOAD_BYTES": "largest request body",
    "PERDURE_CONNECTIONS_MAX": "connections per process; fewer if the file limit is lower",
    "PERDURE_CONNECTIONS_PER_PEER_MAX": "connections from one address",
    "PERDURE_REQUEST_MEMORY_BYTES_MAX": "memory for request bodies per process, at least "
    "four times the largest body",
    **{name: choice.meaning for name, choice in BOUNDS.items()},
    "DW_COMPRESSION_ENABLED": "whether large responses are compressed if the client accepts it",
    "PERDURE_EXTERNAL_PAYLOADS": "on or off: whether SDKs may upload large payloads separately",
    "PERDURE_EXTERNAL_PAYLOAD_THRESHOLD": "bytes of a payload above which SDKs upload it",
    "PERDURE_WEBHOOK_KEYS": "keys for webhook secrets, by commas: the first encrypts, all decrypt",
    "DW_HISTORY_RETENTION_DAYS": "days that closed runs are kept, from 1 to 365, or forever",
    "PERDURE_RUN_RETENTION_DAYS": "days that closed push runs are kept; forever if not set",
    "PERDURE_EVENT_RETENTION_DAYS": "days that the log of events is kept; forever if not set",
    "PERDURE_DELIVERY_RETENTION_DAYS": "the same for sent and received webhooks",
    "PERDURE_ALLOWED_HOSTS": "additional host names of a server without credentials, by commas",
    "PERDURE_RUNNER_ALLOW": "allowed hosts and networks of runners that serve HTTP, by commas",
    "PERDURE_EGRESS_ALLOW": "private hosts and networks that webhooks may be sent to, by commas",
    "PERDURE_AI_URL": "URL of the AI provider for model calls (chat completions)",
    "PERDURE_AI_KEY": "bearer token of the AI provider",
    "PERDURE_AI_MODEL": "default model of steps",
}
"""Every variable that is read, with its purpose."""


def load_settings(environment: Mapping[str, str], **given: object) -> Settings:
    """Settings from the environment; those of the command line win."""
    values: dict[str, object] = {
        "host": environment.get("PERDURE_HOST") or None,
        "port": _integer(environment, "PERDURE_PORT", 0, 65_535),
        "durablex_port": _integer(environment, "PERDURE_DURABLEX_PORT", 0, 65_535),
        "store": environment.get("PERDURE_STORE") or None,
        "store_direct": environment.get("PERDURE_STORE_DIRECT") or None,
        "pooler": _choice(environment, "PERDURE_POOLER", "none", "transaction"),
        "processes": _integer(environment, "PERDURE_PROCESSES", 1, PROCESSES_MAX),
        "signing_key": environment.get("PERDURE_SIGNING_KEY") or None,
        "pass_timeout": _seconds(
            environment, "PERDURE_PASS_TIMEOUT", 1, limits.PASS_TIMEOUT_MAX // limits.SECOND
        ),
        "server_id": environment.get("DW_SERVER_ID") or None,
        "default_namespace": _namespace(environment, "DW_DEFAULT_NAMESPACE"),
        "auth_driver": environment.get("DW_AUTH_DRIVER") or None,
        "auth_token": environment.get("DW_AUTH_TOKEN") or None,
        "poll_timeout": _seconds(environment, "DW_WORKER_POLL_TIMEOUT", 0, 60),
        "workflow_lease_timeout": _seconds(environment, "DW_WORKFLOW_TASK_TIMEOUT", 1, 86_400),
        "activity_lease_timeout": _seconds(environment, "DW_ACTIVITY_TASK_TIMEOUT", 1, 86_400),
        "allowances": _allowances(environment),
        "query_timeout": _seconds(environment, "DW_QUERY_TASK_TIMEOUT", 1, 55),
        "query_lease_timeout": _seconds(environment, "DW_QUERY_TASK_LEASE_TIMEOUT", 1, 86_400),
        "query_remembered": _seconds(environment, "DW_QUERY_TASK_TTL_SECONDS", 1, 3_600),
        "queries_pending_max": _integer(
            environment, "DW_QUERY_TASK_MAX_PENDING_PER_QUEUE", 1, 10_000
        ),
        "query_polls_max": _integer(
            environment,
            "DW_QUERY_TASK_POLL_MAX_CONCURRENT",
            1,
            limits.PARKED_QUERY_POLLS_MAX,
        ),
        "update_wait_timeout": _seconds(
            environment, "DW_V2_UPDATE_WAIT_COMPLETION_TIMEOUT_SECONDS", 1, 55
        ),
        "body_bytes_max": _integer(
            environment, "DW_MAX_PAYLOAD_BYTES", 1_024, limits.BODY_BYTES_CEILING
        ),
        "connections_max": _integer(
            environment, "PERDURE_CONNECTIONS_MAX", 1, limits.CONNECTIONS_CEILING
        ),
        "connections_per_peer_max": _integer(
            environment, "PERDURE_CONNECTIONS_PER_PEER_MAX", 1, limits.CONNECTIONS_CEILING
        ),
        "request_memory_bytes_max": _integer(
            environment,
            "PERDURE_REQUEST_MEMORY_BYTES_MAX",
            limits.BODY_BYTES_MAX * 4,
            limits.REQUEST_MEMORY_BYTES_CEILING,
        ),
        "bounds": _bounds(environment),
        "role_tokens": _by_role(environment, "TOKEN"),
        "signature_key": environment.get("DW_SIGNATURE_KEY") or None,
        "role_signature_keys": _by_role(environment, "SIGNATURE_KEY"),
        "shared_credential": _switch(environment, "DW_AUTH_BACKWARD_COMPATIBLE"),
        "principals": _principals(environment),
        "polls_max": _integer(
            environment, "DW_WORKER_LONG_POLL_MAX_CONCURRENT", 1, limits.PARKED_POLLS_MAX
        ),
        "worker_stale_after": _seconds(
            environment,
            "DW_WORKER_STALE_AFTER_SECONDS",
            1,
            limits.WORKER_STALE_AFTER_MAX // limits.SECOND,
        ),
        "worker_heartbeat_interval": _integer(
            environment, "DW_WORKER_HEARTBEAT_INTERVAL_SECONDS", 1, 3_600
        ),
        "without_effect": _without_effect(environment),
    }
    values["api_keys"] = _listed(environment, "PERDURE_API_KEYS")
    values["read_keys"] = _listed(environment, "PERDURE_READ_KEYS")
    uploads = _choice(environment, "PERDURE_EXTERNAL_PAYLOADS", "on", "off")
    values["external_payloads"] = None if uploads is None else uploads == "on"
    values["external_payload_threshold"] = _integer(
        environment, "PERDURE_EXTERNAL_PAYLOAD_THRESHOLD", 1, limits.BODY_BYTES_MAX // 2
    )
    values["webhook_keys"] = _keys(environment, "PERDURE_WEBHOOK_KEYS")
    values["history_retention"] = _retention(environment, "DW_HISTORY_RETENTION_DAYS")
    values["run_retention"] = _days(environment, "PERDURE_RUN_RETENTION_DAYS")
    values["event_retention"] = _days(environment, "PERDURE_EVENT_RETENTION_DAYS")
    values["delivery_retention"] = _days(environment, "PERDURE_DELIVERY_RETENTION_DAYS")
    values["allowed_hosts"] = _listed(environment, "PERDURE_ALLOWED_HOSTS")
    values["runner_allow"] = _listed(environment, "PERDURE_RUNNER_ALLOW")
    values["egress_allow"] = _listed(environment, "PERDURE_EGRESS_ALLOW")
    values["ai_url"] = _url(environment, "PERDURE_AI_URL")
    values["ai_key"] = environment.get("PERDURE_AI_KEY") or None
    values["ai_model"] = environment.get("PERDURE_AI_MODEL") or None
    values["compression"] = _switch(environment, "DW_COMPRESSION_ENABLED")
    values |= given
    settings = Settings(**{k: v for k, v in values.items() if v is not None})  # type: ignore[arg-type]
    if settings.request_memory_bytes_max < 4 * settings.body_bytes_max:
        raise SettingsError(
            "PERDURE_REQUEST_MEMORY_BYTES_MAX is less than four bodies of DW_MAX_PAYLOAD_BYTES"
        )
    return settings


def _namespace(environment: Mapping[str, str], name: str) -> str | None:
    """The name of a namespace, in lower case as requests name it."""
    value = environment.get(name, "").strip().lower()
    if value and not _NAMESPACE.fullmatch(value):
        raise SettingsError(
            f"{name} is not a valid namespace name: letters, digits and ._- only, at most 128"
        )
    return value or None


def _bounds(environment: Mapping[str, str]) -> Bounds:
    chosen: dict[str, int] = {}
    for name, choice in BOUNDS.items():
        value = _bound(environment, name, choice)
        if value is not None:
            chosen[choice.bound] = min(value, chosen.get(choice.bound, value))
    page_max = chosen.get("history_page_size_max", limits.HISTORY_PAGE_SIZE_MAX)
    default = chosen.get("history_page_size_default", limits.HISTORY_PAGE_SIZE_DEFAULT)
    chosen["history_page_size_default"] = min(default, page_max)
    return Bounds(**chosen)


def _bound(environment: Mapping[str, str], name: str, choice: Choice) -> int | None:
    if environment.get(name) == "0" and name.startswith(SWITCHED_OFF_BY_ZERO):
        return choice.most
    return _integer(environment, name, choice.least, choice.most)


def _by_role(environment: Mapping[str, str], kind: str) -> dict[str, str]:
    secrets = {role: environment.get(f"DW_{role.upper()}_{kind}") for role in ROLES}
    return {role: secret for role, secret in secrets.items() if secret}


def _principals(environment: Mapping[str, str]) -> tuple[PrincipalToken, ...] | None:
    text = environment.get("DW_PRINCIPAL_TOKENS")
    try:
        return parse_principal_tokens(text) if text else None
    except CredentialsError as error:
        raise SettingsError(str(error)) from None


def _allowances(environment: Mapping[str, str]) -> Allowances | None:
    try:
        return parse_allowances(environment)
    except AllowanceError as error:
        raise SettingsError(str(error)) from None


def _without_effect(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that are set and have no effect. Refuses some of them."""
    is_strict = _switch(environment, "DW_ENV_AUDIT_STRICT")
    refused = refused_variables(environment)
    ineffective = ineffective_variables(environment, ENVIRONMENT)
    if refused or (ineffective and is_strict):
        raise SettingsError("; ".join(refused or ineffective))
    return tuple(ineffective)


def _listed(environment: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    entries = (entry.strip() for entry in environment.get(name, "").split(","))
    return tuple(entry for entry in entries if entry) or None


def _keys(environment: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    keys = _listed(environment, name)
    if keys is not None and min(map(len, keys)) < MASTER_KEY_LENGTH_MIN:
        raise SettingsError(f"{name} needs keys of at least {MASTER_KEY_LENGTH_MIN} characters")
    return keys


def _url(environment: Mapping[str, str], name: str) -> str | None:
    url = environment.get(name)
    if not url:
        return None
    if not url.startswith(("http://", "https://")) or not urlsplit(url).hostname:
        raise SettingsError(f"{name} is an http or https URL, not {url!r}")
    return url


def require_credentials(settings: Settings) -> None:
    """Refuse to serve without credentials, unless the settings say so."""
    if settings.auth_driver == "none":
        return
    if settings.auth_driver not in ("token", "signature"):
        raise SettingsError(
            f"DW_AUTH_DRIVER is token, signature or none, not {settings.auth_driver!r}"
        )
    keys = [*settings.api_keys, *settings.read_keys]
    if len(keys) > API_KEYS_MAX or len(set(keys)) < len(keys):
        raise SettingsError(
            f"PERDURE_API_KEYS and PERDURE_READ_KEYS are at most {API_KEYS_MAX} different keys"
        )
    shared, names = settings.signature_key, "DW_SIGNATURE_KEY (or those of roles)"
    others: list[object] = [keys, settings.role_signature_keys]
    if settings.auth_driver == "token":
        shared, others = settings.auth_token, [keys, settings.role_tokens, settings.principals]
        names = (
            "DW_AUTH_TOKEN (or DW_WORKER_TOKEN, DW_OPERATOR_TOKEN and DW_ADMIN_TOKEN, or "
            "DW_PRINCIPAL_TOKENS)"
        )
    if not any(others) and not (shared and settings.shared_credential):
        raise SettingsError(f"no credentials: set {names}, or set DW_AUTH_DRIVER=none")


def is_postgres(store: str) -> bool:
    return store.startswith(("postgresql://", "postgres://"))


def require_store(settings: Settings) -> None:
    """Refuse a store URL that is not valid, before anything is started."""
    direct = settings.store_direct
    if not is_postgres(settings.store):
        sqlite_path(settings.store)
        if (settings.processes or 1) > 1:
            raise SettingsError("a SQLite file belongs to one process; several need PostgreSQL")
    if direct is not None and not is_postgres(direct):
        raise SettingsError("PERDURE_STORE_DIRECT is postgresql://user@host/database")


def sqlite_path(store: str) -> Path:
    """The file of a `sqlite:///path` store. The path is absolute, as in other tools."""
    parts = urlsplit(store)
    if parts.scheme != "sqlite" or parts.netloc or parts.query:
        raise SettingsError(
            "a store is sqlite:///path/to/file.db or postgresql://user@host/database, "
            f"not {store.split(':')[0]}:…"
        )
    path = unquote(parts.path)
    if path.startswith("/./"):
        return Path(path[1:])
    if len(path) < 2:
        raise SettingsError("sqlite:/// needs the path of a file")
    return Path(path)


def _integer(environment: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = environment.get(name)
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise SettingsError(f"{name} is a number from {least} to {most}, not {text!r}")
    return int(text)


def _choice(environment: Mapping[str, str], name: str, *choices: str) -> str | None:
    text = environment.get(name)
    if text is None or text == "":
        return None
    if text not in choices:
        raise SettingsError(f"{name} is {' or '.join(choices)}, not {text!r}")
    return text


_NAMESPACE = re.compile(r"[a-z0-9._-]{1,128}", re.ASCII)
_SWITCHED = {"0": False, "false": False, "no": False, "off": False}
_SWITCHED |= {"1": True, "true": True, "yes": True, "on": True}


def _switch(environment: Mapping[str, str], name: str) -> bool | None:
    text = environment.get(name)
    if text is None or text == "":
        return None
    if text.lower() not in _SWITCHED:
        raise SettingsError(f"{name} is true or false, not {text!r}")
    return _SWITCHED[text.lower()]


def _retention(environment: Mapping[str, str], name: str) -> int | None:
    if environment.get(name) == FOREVER:
        return 0
    days = _integer(environment, name, 1, 365)
    return None if days is None else days * 86_400 * limits.SECOND


def _days(environment: Mapping[str, str], name: str) -> int | None:
    days = _integer(environment, name, 1, 36_500)
    return None if days is None else days * 86_400 * limits.SECOND


def _seconds(environment: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    seconds = _integer(environment, name, least, most)
    return None if seconds is None else seconds * limits.SECOND

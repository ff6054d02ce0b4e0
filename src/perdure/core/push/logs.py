"""Log lines of runners, stored once although passes repeat them, and with secrets redacted."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perdure.core.limits import STEPS_PER_RUN_MAX
from perdure.core.push.command import LogLine
from perdure.core.run.context import Context
from perdure.core.run.history import Raw, encode, record
from perdure.core.run.state import Run

REDACTED = "[REDACTED]"

_SENSITIVE = (
    "password",
    "passwd",
    "secret",
    "token",
    "apikey",
    "authorization",
    "cookie",
    "setcookie",
    "credential",
    "credentials",
    "privatekey",
    "accesskey",
    "clientsecret",
    "cardnumber",
    "cvv",
    "ssn",
)


def record_logs(
    run: Run, ctx: Context, lines: Sequence[LogLine], attempt_of: Callable[[LogLine], int]
) -> None:
    """Record the lines that were not recorded before.

    Every pass that runs a scope sends its lines from the start, numbered. So the run stores, per
    scope, only the attempt and the index of the next unrecorded line.
    """
    push = run.push
    assert push is not None
    for line in lines:
        attempt = attempt_of(line)
        kept_attempt, kept = push.logged.get(line.scope, (0, 0))
        if attempt < kept_attempt or (attempt == kept_attempt and line.index < kept):
            continue
        if line.scope not in push.logged and len(push.logged) > STEPS_PER_RUN_MAX:
            continue
        push.logged[line.scope] = (attempt, line.index + 1)
        record(
            run,
            ctx,
            "LogRecorded",
            {
                "level": line.level,
                "message": line.message,
                "scope": line.scope,
                "attempt": attempt,
                "fields": None if line.fields is None else Raw(redact(line.fields)),
            },
        )


def engine_log(run: Run, ctx: Context, scope: str, attempt: int, message: str) -> None:
    """Record a warning of the engine among the lines of a scope."""
    line = {"level": "warn", "message": message, "scope": scope, "attempt": attempt}
    record(run, ctx, "LogRecorded", {**line, "fields": None})


def redact(fields: bytes) -> bytes:
    """Encoded fields with the values of sensitive keys replaced, at any depth."""
    if not fields.startswith(b"{") or fields == b"{}":
        return fields
    return encode(_redacted(msgspec.json.decode(fields)))


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: REDACTED if _is_sensitive(k) else _redacted(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_redacted(member) for member in value]
    return value


def _is_sensitive(key: str) -> bool:
    plain = key.lower().replace("_", "").replace("-", "")
    return plain.endswith(_SENSITIVE)

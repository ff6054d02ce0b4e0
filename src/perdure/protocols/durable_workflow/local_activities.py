"""The command that records a local activity: decoded, validated, translated to the core."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from perdure.core import limits
from perdure.core.maps import EmptyList
from perdure.core.rejection import InvalidRequest
from perdure.core.run.command import LocalAttempt, LocalHeartbeat, RecordLocalActivity
from perdure.core.run.operation import ActivityTimeouts
from perdure.protocols.durable_workflow.bodies import Count, Name255, Seconds, require_in_order
from perdure.protocols.durable_workflow.command_scope import Codec, Foreign, Wire
from perdure.protocols.durable_workflow.payloads import require_payload
from perdure.protocols.durable_workflow.retry_policies import (
    WireLocalRetryPolicy,
    local_retry_policy,
)

Outcome = Literal["completed", "failed", "timed_out", "cancelled"]
TimeoutKind = Literal["heartbeat", "start_to_close", "schedule_to_close"]
Message = Annotated[str, Meta(max_length=limits.FAILURE_MESSAGE_LENGTH_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**53)]


class WireHeartbeat(Struct):
    elapsed_ms: Milliseconds
    details: Raw | UnsetType = UNSET


class WireLocalAttempt(Struct, kw_only=True):
    attempt_id: Name255
    attempt_number: Annotated[int, Meta(ge=1, le=limits.LOCAL_ATTEMPTS_MAX)]
    outcome: Outcome
    duration_ms: Milliseconds = 0
    heartbeats: (
        Annotated[list[WireHeartbeat], Meta(max_length=limits.LOCAL_HEARTBEATS_MAX)] | None
    ) = None
    message: Message | None = None
    exception_type: Name255 | None = None
    non_retryable: bool | None = None
    timeout_kind: TimeoutKind | None = None
    retry_reason: Literal["failure", "timeout"] | None = None
    backoff_seconds: Count | None = None


class WireRecordLocalActivity(Wire, tag="record_local_activity", kw_only=True):
    activity_type: Name255
    outcome: Outcome
    attempts: Annotated[
        list[WireLocalAttempt], Meta(min_length=1, max_length=limits.LOCAL_ATTEMPTS_MAX)
    ]
    execution_mode: Literal["local"] = "local"
    arguments: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    message: Message | None = None
    exception_type: Name255 | None = None
    non_retryable: bool | None = None
    timeout_kind: TimeoutKind | None = None
    retry_policy: WireLocalRetryPolicy | EmptyList | None = None
    start_to_close_timeout: Seconds | None = None
    schedule_to_close_timeout: Seconds | None = None
    heartbeat_timeout: Seconds | None = None
    payload_codec: Codec | None = None
    # Members of queue activities and of prepared ones: a mistake here, so refused.
    queue: Foreign = None
    cancellation_policy: Foreign = None
    parallel_group_path: Foreign = None


def translate_local_activity(wire: WireRecordLocalActivity, at: str) -> RecordLocalActivity:
    """The command of the core. Refuses reports that contradict themselves."""
    close = wire.schedule_to_close_timeout
    require_in_order(wire.start_to_close_timeout, close, f"{at}.start_to_close_timeout")
    require_in_order(wire.heartbeat_timeout, wire.start_to_close_timeout, f"{at}.heartbeat_timeout")
    _require_consistent(wire, at)
    result = require_payload(wire.result, f"{at}.result")
    if (wire.result is not UNSET) != (wire.outcome == "completed"):
        raise InvalidRequest(
            f"{at}.result", "is required if the activity completed, and not allowed otherwise"
        )
    return RecordLocalActivity(
        activity_type=wire.activity_type,
        arguments=require_payload(wire.arguments, f"{at}.arguments") or b"null",
        attempts=[_attempt(attempt) for attempt in wire.attempts],
        result=result,
        message=wire.message,
        retry=local_retry_policy(wire.retry_policy, f"{at}.retry_policy"),
        timeouts=ActivityTimeouts(
            start_to_close=wire.start_to_close_timeout,
            schedule_to_close=close,
            heartbeat=wire.heartbeat_timeout,
        ),
    )


def _require_consistent(wire: WireRecordLocalActivity, at: str) -> None:
    last = wire.attempts[-1]
    for index, attempt in enumerate(wire.attempts):
        here = f"{at}.attempts.{index}"
        if attempt.attempt_number != index + 1:
            raise InvalidRequest(f"{here}.attempt_number", f"must be {index + 1}")
        if (attempt.outcome == "timed_out") != (attempt.timeout_kind is not None):
            raise InvalidRequest(
                f"{here}.timeout_kind", "is required for a time-out, and not allowed otherwise"
            )
        if attempt.outcome != "completed" and attempt.message is None:
            raise InvalidRequest(f"{here}.message", "is required")
        if attempt is not last and attempt.outcome not in ("failed", "timed_out"):
            raise InvalidRequest(
                f"{here}.outcome",
                "must be failed or timed_out: only these are followed by an attempt",
            )
    if sum(len(attempt.heartbeats or ()) for attempt in wire.attempts) > (
        limits.LOCAL_HEARTBEATS_MAX
    ):
        most = limits.LOCAL_HEARTBEATS_MAX
        raise InvalidRequest(f"{at}.attempts", f"at most {most} heartbeats in all")
    overall = (wire.outcome, wire.timeout_kind, wire.exception_type, bool(wire.non_retryable))
    if overall != (last.outcome, last.timeout_kind, last.exception_type, bool(last.non_retryable)):
        raise InvalidRequest(f"{at}.outcome", "must equal the outcome of the last attempt")
    if wire.outcome != "completed" and wire.message is None:
        raise InvalidRequest(f"{at}.message", "is required")


def _attempt(wire: WireLocalAttempt) -> LocalAttempt:
    return LocalAttempt(
        attempt_id=wire.attempt_id,
        number=wire.attempt_number,
        outcome=wire.outcome,
        duration_ms=wire.duration_ms,
        heartbeats=[_heartbeat(heartbeat) for heartbeat in wire.heartbeats or ()],
        message=wire.message,
        exception_type=wire.exception_type,
        non_retryable=bool(wire.non_retryable),
        timeout_kind=wire.timeout_kind,
        retry_reason=wire.retry_reason,
        backoff_seconds=wire.backoff_seconds or 0,
    )


def _heartbeat(wire: WireHeartbeat) -> LocalHeartbeat:
    details = None if wire.details is UNSET else bytes(wire.details)
    return LocalHeartbeat(wire.elapsed_ms, None if details == b"null" else details)

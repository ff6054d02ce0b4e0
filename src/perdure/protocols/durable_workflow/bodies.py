"""Request bodies with the names of the wire, their decoding and validation errors."""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from perdure.core import limits
from perdure.core.large_numbers import find_large_number
from perdure.core.limits import (
    MESSAGE_STREAM_NAME_LENGTH_MAX,
    MESSAGE_STREAMS_MAX,
    STREAM_ITEMS_PER_APPEND_MAX,
)
from perdure.core.maps import EmptyList, Map, expectation, members_of, whole_body
from perdure.core.rejection import InvalidRequest
from perdure.web.message import HttpError

Name255 = Annotated[str, Meta(min_length=1, max_length=255)]
OptionalName = Annotated[str, Meta(max_length=255)] | None
Seconds = Annotated[int, Meta(ge=1, le=10_000_000_000)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""JSON numbers may have any length; stored ones have 64 bits."""
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TimeoutQueue = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PageSize = Annotated[int, Meta(ge=1, le=limits.HISTORY_PAGE_SIZE_CEILING)]
Absent = Raw | UnsetType

T = TypeVar("T")


class Body(Struct, kw_only=True):
    """A request body. Unknown members are ignored."""


class StartBody(Body):
    workflow_type: Name255
    workflow_id: (
        Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")] | None
    ) = None
    task_queue: OptionalName = None
    input: Absent = UNSET
    business_key: OptionalName = None
    memo: Map[Any] | None = None
    search_attributes: Map[Any] | None = None
    duplicate_policy: str | None = None
    execution_timeout_seconds: Seconds | None = None
    run_timeout_seconds: Seconds | None = None
    start_delay_seconds: Annotated[int, Meta(ge=0, le=10_000_000_000)] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    fairness_key: Annotated[str, Meta(pattern=r"^\s*[A-Za-z0-9._:-]{1,64}\s*$")] | None = None
    fairness_weight: Annotated[int, Meta(ge=1, le=1000)] | None = None
    build_id: OptionalName = None
    compatibility: OptionalName = None
    observability_context: Absent = UNSET
    late_signal_tasks: Annotated[int, Meta(ge=0, le=limits.LATE_SIGNAL_TASKS_CEILING)] | None = None
    signals_per_task: Annotated[int, Meta(ge=1, le=limits.SIGNALS_PER_TASK_CEILING)] | None = None
    # Sent by older clients. Refused rather than ignored silently.
    workflow_execution_timeout: Absent = UNSET
    workflow_run_timeout: Absent = UNSET
    workflow_task_timeout: Absent = UNSET
    retry_policy: Absent = UNSET
    idempotency_key: Absent = UNSET
    request_id: Absent = UNSET


REFUSED_START_FIELDS = (
    "workflow_execution_timeout",
    "workflow_run_timeout",
    "workflow_task_timeout",
    "retry_policy",
    "idempotency_key",
    "request_id",
)


class SignalBody(Body):
    input: Absent = UNSET
    request_id: OptionalName = None
    observability_context: Absent = UNSET


class AppendMessageBody(Body):
    message_id: Name255
    input: Absent = UNSET


class StreamItemBody(Struct, kw_only=True):
    payload: Absent = UNSET
    payload_reference: Annotated[str, Meta(min_length=1, max_length=191)] | None = None
    payload_codec: Annotated[str, Meta(max_length=64)] | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=191)] | None = None
    origin: Annotated[str, Meta(max_length=64)] | None = None
    origin_reference: Annotated[str, Meta(max_length=191)] | None = None
    item_type: Annotated[str, Meta(max_length=64)] | None = None
    content_type: Annotated[str, Meta(max_length=191)] | None = None


StreamItems = Annotated[
    list[StreamItemBody | EmptyList],
    Meta(min_length=1, max_length=STREAM_ITEMS_PER_APPEND_MAX),
]
PendingItems = Annotated[int, Meta(ge=1, le=2**31 - 1)]
ErrorReason = Annotated[str, Meta(min_length=1, max_length=191)]


class AppendItemsBody(Body):
    items: StreamItems
    max_pending_items: PendingItems | None = None


class CloseStreamBody(Body):
    error_reason: ErrorReason | None = None
    retention_seconds: Seconds | None = None


class UpdateBody(Body):
    input: Absent = UNSET
    request_id: OptionalName = None
    observability_context: Absent = UNSET
    wait_for: str | None = None
    wait_timeout_seconds: Seconds | None = None
    # Sent by older clients. Refused rather than ignored silently.
    wait_policy: Absent = UNSET


class StopBody(Body):
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    request_id: OptionalName = None
    observability_context: Absent = UNSET


class RequestCancellationBody(Body):
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    cleanup_timeout_seconds: (
        Annotated[int, Meta(ge=1, le=limits.CLEANUP_TIMEOUT_SECONDS_MAX)] | None
    ) = None


class RegisterBody(Body):
    task_queue: Name255
    runtime: Annotated[str, Meta(min_length=1, max_length=64)]
    worker_id: OptionalName = None
    sdk_version: Annotated[str, Meta(max_length=64)] | None = None
    build_id: OptionalName = None
    supported_workflow_types: list[Name255] | None = None
    supported_activity_types: list[Name255] | None = None
    workflow_definition_fingerprints: Map[Name255] | None = None
    workflow_command_contracts: Map[Any] | None = None
    capabilities: list[Name255] | None = None
    capability_manifest: Map[Any] | None = None
    max_concurrent_workflow_tasks: Count | None = None
    max_concurrent_activity_tasks: Count | None = None
    max_concurrent_worker_sessions: Count | None = None
    task_slots: Map[Any] | None = None
    process_metrics: Map[Any] | None = None
    heartbeat_interval_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None


class WorkerHeartbeatBody(Body):
    worker_id: Name255
    task_slots: Map[Any] | None = None
    process_metrics: Map[Any] | None = None
    heartbeat_interval_seconds: Annotated[int, Meta(ge=1, le=3600)] | None = None


Amount = Annotated[float, Meta(ge=0)]


class TaskSlots(Struct):
    """Free task slots of a worker."""

    workflow_available: Count | None = None
    activity_available: Count | None = None
    session_available: Count | None = None


class ProcessMetrics(Struct):
    """Resource use and identity of a worker process."""

    cpu_percent: Amount | None = None
    memory_bytes: Amount | None = None
    process_uptime_seconds: Amount | None = None
    process_id: Amount | None = None
    host: OptionalName = None
    process_started_at: Annotated[str, Meta(max_length=64)] | None = None


def check_vitals(body: RegisterBody | WorkerHeartbeatBody) -> None:
    """Refuse malformed slots and metrics. Unknown members are kept."""
    given = ((body.task_slots, TaskSlots), (body.process_metrics, ProcessMetrics))
    for name, (value, kind) in zip(("task_slots", "process_metrics"), given, strict=True):
        try:
            msgspec.convert(members_of(value), kind, strict=False)
        except msgspec.ValidationError as error:
            raise invalid(error, name) from None


class DeregisterBody(Body):
    registration_token: Annotated[str, Meta(min_length=1, max_length=64)]


class PollBody(Body):
    worker_id: Name255
    task_queue: Name255
    poll_request_id: OptionalName = None
    timeout_seconds: TimeoutQueue | None = None
    build_id: OptionalName = None
    history_page_size: PageSize | None = None
    accept_history_encoding: Annotated[str, Meta(max_length=64)] | None = None
    task_kinds: Annotated[list[str], Meta(min_length=1, max_length=16)] | None = None


def poll_timeout(requested_seconds: int | None, default: int) -> int:
    """How long a poll waits: as long as requested, at most a minute, else the default."""
    if requested_seconds is None:
        return default
    return min(requested_seconds * limits.SECOND, limits.POLL_TIMEOUT_MAX)


class ValidationLease(Body):
    lease_owner: Name255
    update_validation_attempt: Annotated[int, Meta(ge=1)]


class ValidationFailure(Struct):
    message: str
    reason: str | None = None
    type: str | None = None
    stack_trace: str | None = None
    validation_errors: Absent = UNSET


class RejectUpdateBody(ValidationLease):
    failure: ValidationFailure


class TaskLease(Body):
    lease_owner: Name255
    workflow_task_attempt: Annotated[int, Meta(ge=1)]


MessageStreamName = Annotated[
    str, Meta(max_length=MESSAGE_STREAM_NAME_LENGTH_MAX, pattern=r"^[A-Za-z0-9._:-]+\Z")
]
Position = Annotated[int, Meta(ge=0, le=2**53)]


class MessageStreamCursor(Struct):
    stream_name: MessageStreamName
    through_position: Position


class MessageStreamWait(Struct):
    stream_name: MessageStreamName
    after_position: Position


class StreamReport(TaskLease):
    message_stream_cursors: (
        Annotated[list[MessageStreamCursor], Meta(max_length=MESSAGE_STREAMS_MAX)] | None
    ) = None
    message_stream_waits: (
        Annotated[list[MessageStreamWait], Meta(max_length=MESSAGE_STREAMS_MAX)] | None
    ) = None


class HistoryPageBody(TaskLease):
    next_history_page_token: Annotated[str, Meta(max_length=64)]
    history_page_size: PageSize | None = None
    accept_history_encoding: Annotated[str, Meta(max_length=64)] | None = None


Sequence = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Span = Annotated[int, Meta(ge=1, le=limits.CANCELLED_CALLS_MAX)]


class DeliverCancellationBody(TaskLease):
    request_id: Name255
    sequence: Sequence
    call_kind: Literal[
        "activity",
        "local_activity",
        "timer",
        "condition",
        "signal",
        "child",
        "parallel",
        "selection_handle",
        "service_operation",
    ]
    sequence_span: Span = 1
    operation_sequence: Sequence | None = None
    operation_sequence_span: Span = 1


class TaskFailure(Struct):
    message: str
    type: str | None = None
    reason: str | None = None
    stack_trace: str | None = None


class FailTaskBody(TaskLease):
    failure: TaskFailure


class AttemptLease(Body):
    activity_attempt_id: Name255
    lease_owner: Name255


class AcknowledgeCancellationBody(AttemptLease):
    request_id: Name255


class CompleteActivityBody(AttemptLease):
    result: Absent = UNSET


FailureKind = Literal[
    "application",
    "timeout",
    "cancellation",
    "malformed_output",
    "handler_crash",
    "decode_failure",
    "unsupported_payload",
]
TimeoutType = Literal[
    "schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat", "deadline_exceeded"
]


class ActivityFailure(Struct):
    message: str
    type: str | None = None
    class_: str | None = msgspec.field(default=None, name="class")
    code: Integer | str | None = None
    stack_trace: str | None = None
    non_retryable: bool | None = None
    retryable: bool | None = None
    kind: FailureKind | None = None
    timeout_type: TimeoutType | None = None
    cancelled: bool | None = None
    details: Absent = UNSET


class FailActivityBody(AttemptLease):
    failure: ActivityFailure


class ActivityHeartbeatBody(AttemptLease):
    message: Annotated[str, Meta(max_length=280)] | None = None
    current: float | None = None
    total: float | None = None
    unit: Annotated[str, Meta(max_length=64)] | None = None
    details: Map[Any] | None = None


class QueryBody(Body):
    input: Absent = UNSET


class QueryPollBody(Body):
    worker_id: Name255
    task_queue: Name255
    poll_request_id: OptionalName = None
    timeout_seconds: TimeoutQueue | None = None
    build_id: OptionalName = None


class QueryLeaseBody(Body):
    lease_owner: Name255
    query_task_attempt: Annotated[int, Meta(ge=1)]


class CompleteQueryBody(QueryLeaseBody):
    result: Absent = UNSET
    result_envelope: Absent = UNSET


class QueryFailureBody(Struct):
    message: str
    reason: str | None = None
    type: str | None = None
    stack_trace: str | None = None
    validation_errors: Map[Any] | None = None


class FailQueryBody(QueryLeaseBody):
    failure: QueryFailureBody


def require_in_order(shorter: int | None, longer: int | None, field: str) -> None:
    """Refuse a time-out that is longer than the one that contains it."""
    if shorter is not None and longer is not None and shorter > longer:
        raise InvalidRequest(field, f"must not be longer than {longer} s")


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a body. 400 if it is not JSON; 422 with dotted paths if a member is invalid."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind, strict=False)
    try:
        if not body.isascii():
            # The decoder skips raw members, and stored bytes are spliced into answers: bytes
            # that are not UTF-8 would make the whole answer invalid.
            body.decode()
        number = find_large_number(body)
        if number is not None:
            raise msgspec.DecodeError(f"the number {number} is too large")
        decoded: T = decoder.decode(whole_body(body))
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise malformed(error) from None
    return decoded


def malformed(error: Exception) -> HttpError:
    text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return HttpError(400, "malformed_json", "the body is not JSON", {"json_error": text})


_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_AT = re.compile(r" - at `\$([^`]*)`$")


def invalid(error: msgspec.ValidationError, prefix: str = "") -> InvalidRequest:
    """The dotted path and a readable message of a decoding error."""
    text = str(error)
    at = _AT.search(text)
    path = at.group(1) if at else ""
    text = expectation(_AT.sub("", text))
    field = re.sub(r"\[(\d+)\]", r".\1", path).replace("[...]", "").strip(".")
    missing = _MISSING.match(text)
    if missing:
        field = f"{field}.{missing.group(1)}".strip(".")
        text = "is required"
    unknown = _UNKNOWN.match(text)
    if unknown:
        field = f"{field}.{unknown.group(1)[:64]}".strip(".")
        text = "is unknown"
    if text.startswith("Expected `null`"):
        text = "is not allowed for this type of command"
    return InvalidRequest(f"{prefix}.{field}".strip(".") or "body", text)

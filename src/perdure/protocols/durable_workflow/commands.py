"""Workflow-task commands: decoded from the wire, validated, translated to those of the core."""

import re
from typing import Annotated, Any, Literal, assert_never

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from perdure.core import limits
from perdure.core.bounds import Bounds
from perdure.core.maps import EmptyList, Map, members_of, whole_body
from perdure.core.payload import PayloadError, decode
from perdure.core.rejection import InvalidRequest
from perdure.core.run import command as c
from perdure.core.run.inbox import MESSAGE_SIGNAL
from perdure.core.run.operation import NO_TIMEOUTS, ActivityTimeouts
from perdure.core.run.standalone import HOST_TYPE
from perdure.protocols.durable_workflow.bodies import (
    Integer,
    Name255,
    OptionalName,
    Seconds,
    StreamReport,
    require_in_order,
)
from perdure.protocols.durable_workflow.command_scope import Codec, Wire
from perdure.protocols.durable_workflow.local_activities import (
    WireRecordLocalActivity,
    translate_local_activity,
)
from perdure.protocols.durable_workflow.payloads import (
    require_envelope,
    require_payload,
    require_storable,
)
from perdure.protocols.durable_workflow.retry_policies import (
    Delay,
    WireRetryPolicy,
    retry_policy,
)
from perdure.protocols.durable_workflow.session_terms import TermsBody, terms_of
from perdure.protocols.durable_workflow.stream_items import WireDirective, translate_directive
from perdure.protocols.durable_workflow.trace_context import read_carrier

Payload = Raw | UnsetType
CancellationPolicy = Literal["try_cancel", "wait_cancellation_completed", "abandon"]


class PathEntry(Struct, omit_defaults=True):
    """One level of a parallel group, outermost first."""

    parallel_group_id: str
    parallel_group_kind: str
    parallel_group_base_sequence: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    parallel_group_size: Annotated[int, Meta(ge=1, le=1000)]
    parallel_group_index: Annotated[int, Meta(ge=0)]
    parallel_group_mode: str | UnsetType = UNSET
    selection_member_key: str | Integer | UnsetType = UNSET
    selection_member_index: Integer | UnsetType = UNSET
    selection_member_base_sequence: Integer | UnsetType = UNSET
    selection_member_size: Integer | UnsetType = UNSET
    selection_member_kind: str | UnsetType = UNSET


class Grouped(Wire):
    parallel_group_path: Annotated[list[PathEntry], Meta(max_length=16)] | None = None


class WireScheduleActivity(Grouped, tag="schedule_activity", kw_only=True):
    activity_type: Name255
    arguments: Payload = UNSET
    input: Payload = UNSET
    queue: OptionalName = None
    task_queue: OptionalName = None
    retry_policy: WireRetryPolicy | EmptyList | None = None
    start_to_close_timeout: Seconds | None = None
    schedule_to_start_timeout: Seconds | None = None
    schedule_to_close_timeout: Seconds | None = None
    heartbeat_timeout: Seconds | None = None
    # Names in the documentation of the PHP SDK.
    start_to_close_timeout_seconds: Seconds | None = None
    schedule_to_start_timeout_seconds: Seconds | None = None
    schedule_to_close_timeout_seconds: Seconds | None = None
    heartbeat_timeout_seconds: Seconds | None = None
    cancellation_policy: CancellationPolicy | None = None
    worker_session: TermsBody | None = None
    payload_codec: Codec | None = None


class WireStartTimer(Grouped, tag="start_timer", kw_only=True):
    delay_seconds: Delay


class WireStartChild(Grouped, tag="start_child_workflow", kw_only=True):
    workflow_type: Name255
    arguments: Payload = UNSET
    input: Payload = UNSET
    queue: OptionalName = None
    task_queue: OptionalName = None
    parent_close_policy: str | None = None
    cancellation_policy: CancellationPolicy | None = None
    retry_policy: WireRetryPolicy | EmptyList | None = None
    execution_timeout_seconds: Seconds | None = None
    run_timeout_seconds: Seconds | None = None
    observability_context: Payload = UNSET
    payload_codec: Codec | None = None


class WireStartServiceOperation(Wire, tag="start_service_operation", kw_only=True):
    endpoint_name: Name255
    service_name: Name255
    operation_name: Name255
    request_payload: Payload = UNSET
    payload_codec: Codec | None = None
    metadata: Map[Any] | None = None
    namespace: OptionalName = None
    caller_namespace: OptionalName = None
    idempotency_key: OptionalName = None
    mode_override: str | None = None
    wait_for: str | None = None
    wait_timeout_seconds: Seconds | None = None
    target_workflow_instance_id: (
        Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")] | None
    ) = None
    target_workflow_run_id: OptionalName = None
    queue: OptionalName = None
    business_key: OptionalName = None
    memo: Map[Any] | None = None
    search_attributes: Map[Any] | None = None
    duplicate_start_policy: str | None = None


class WireOpenConditionWait(Grouped, tag="open_condition_wait", kw_only=True):
    condition_key: str | None = None
    condition_definition_fingerprint: str | None = None
    timeout_seconds: Delay | None = None


class WireOpenSignalWait(Wire, tag="open_signal_wait", kw_only=True):
    signal_name: Name255
    timeout_seconds: Delay | None = None


class WireRecordSideEffect(Wire, tag="record_side_effect", kw_only=True):
    result: Raw
    workflow_stream: WireDirective | None = None
    payload_codec: Codec | None = None


class WireRecordVersionMarker(Wire, tag="record_version_marker", kw_only=True):
    change_id: Name255
    version: Integer
    min_supported: Integer
    max_supported: Integer


class WireUpsertSearchAttributes(Wire, tag="upsert_search_attributes", kw_only=True):
    attributes: Map[Any]


class WireUpsertMemo(Wire, tag="upsert_memo", kw_only=True):
    entries: Raw
    payload_codec: Codec | None = None


class WireCancelSelection(Wire, tag="cancel_selection_operation", kw_only=True):
    selection_group_id: str
    member_key: str | Integer
    member_index: Integer
    member_base_sequence: Integer
    member_size: Integer
    operation_kind: str
    operation_identity: str


class WireCompleteUpdate(Wire, tag="complete_update", kw_only=True):
    update_id: Name255
    result: Payload = UNSET
    payload_codec: Codec | None = None


class WireFailUpdate(Wire, tag="fail_update", kw_only=True):
    update_id: Name255
    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    non_retryable: bool | None = None


class WireComplete(Wire, tag="complete_workflow", kw_only=True):
    result: Payload = UNSET
    payload_codec: Codec | None = None


class WireFail(Wire, tag="fail_workflow", kw_only=True):
    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    exception: Payload = UNSET
    non_retryable: bool | None = None
    failed_step_sequence: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    failed_activity_execution_id: OptionalName = None


class WireContinue(Wire, tag="continue_as_new", kw_only=True):
    arguments: Payload = UNSET
    input: Payload = UNSET
    workflow_type: OptionalName = None
    queue: OptionalName = None
    task_queue: OptionalName = None
    observability_context: Payload = UNSET
    payload_codec: Codec | None = None


WireCommand = (
    WireScheduleActivity
    | WireStartTimer
    | WireStartChild
    | WireStartServiceOperation
    | WireOpenConditionWait
    | WireOpenSignalWait
    | WireRecordSideEffect
    | WireRecordVersionMarker
    | WireUpsertSearchAttributes
    | WireUpsertMemo
    | WireRecordLocalActivity
    | WireCancelSelection
    | WireCompleteUpdate
    | WireFailUpdate
    | WireComplete
    | WireFail
    | WireContinue
)


class StickyCache(Struct):
    """Sticky cache of a worker: whether it keeps the run in memory, and for how long."""

    worker_id: Name255
    workflow_id: Name255
    run_id: Name255
    ttl_seconds: Annotated[int, Meta(ge=1, le=limits.STICKY_SECONDS_MAX)]


class CompleteTaskBody(StreamReport, kw_only=True):
    commands: list[WireCommand]
    sticky_cache: StickyCache | None = None


def sticky_duration(body: CompleteTaskBody, run_id: str) -> int | None:
    """For how long the worker caches the run; None if the claim names another worker or run."""
    claim = body.sticky_cache
    if claim is None or (claim.worker_id, claim.run_id) != (body.lease_owner, run_id):
        return None
    return claim.ttl_seconds * limits.SECOND


_PARENT_CLOSE = {"abandon", "request_cancel", "request_cancellation", "terminate"}
_NO_ARGUMENTS = b"null"


def translate_commands(wire: list[WireCommand], bounds: Bounds) -> list[c.Command]:
    """The commands of the core. Refuses invalid payloads and options."""
    return [_translate(command, f"commands.{index}", bounds) for index, command in enumerate(wire)]


def _translate(wire: WireCommand, at: str, bounds: Bounds) -> c.Command:
    match wire:
        case WireScheduleActivity():
            return _schedule_activity(wire, at)
        case WireStartTimer():
            return c.StartTimer(delay_seconds=wire.delay_seconds, path=group_path(wire, at))
        case WireStartChild():
            return _start_child(wire, at)
        case WireStartServiceOperation():
            return _start_service_operation(wire, at, bounds)
        case WireOpenConditionWait():
            return c.OpenConditionWait(
                key=wire.condition_key,
                fingerprint=wire.condition_definition_fingerprint,
                timeout_seconds=wire.timeout_seconds,
                path=group_path(wire, at),
            )
        case WireOpenSignalWait():
            if wire.signal_name == MESSAGE_SIGNAL:
                raise InvalidRequest(f"{at}.signal_name", "is reserved for message streams")
            return c.OpenSignalWait(
                signal_name=wire.signal_name, timeout_seconds=wire.timeout_seconds
            )
        case WireRecordSideEffect():
            result = bytes(wire.result)
            if not result.startswith(b'"'):
                require_envelope(result, f"{at}.result")
            if wire.workflow_stream is None:
                return c.RecordSideEffect(result=result)
            directive = translate_directive(wire.workflow_stream, f"{at}.workflow_stream")
            return c.RecordSideEffect(result=result, stream=directive)
        case WireRecordVersionMarker():
            return c.RecordVersionMarker(
                change_id=wire.change_id,
                version=wire.version,
                min_supported=wire.min_supported,
                max_supported=wire.max_supported,
            )
        case WireUpsertSearchAttributes():
            attributes = members_of(wire.attributes)
            check_search_attributes(attributes, f"{at}.attributes", bounds, _UPSERTED_KEY)
            return c.UpsertSearchAttributes(attributes=attributes)
        case WireUpsertMemo():
            return _upsert_memo(wire, f"{at}.entries")
        case WireRecordLocalActivity():
            return translate_local_activity(wire, at)
        case WireCancelSelection():
            return c.CancelSelectionOperation(
                group_id=wire.selection_group_id,
                member_key=wire.member_key,
                member_index=wire.member_index,
                member_base=wire.member_base_sequence,
                member_size=wire.member_size,
                kind=wire.operation_kind,
                identity=wire.operation_identity,
            )
        case WireCompleteUpdate():
            return c.CompleteUpdate(
                update_id=wire.update_id, result=require_payload(wire.result, f"{at}.result")
            )
        case WireFailUpdate():
            return c.FailUpdate(
                update_id=wire.update_id,
                message=wire.message[: limits.FAILURE_MESSAGE_LENGTH_MAX],
                exception_type=wire.exception_type,
                exception_class=wire.exception_class,
                non_retryable=bool(wire.non_retryable),
            )
        case WireComplete():
            return c.CompleteRun(result=require_payload(wire.result, f"{at}.result"))
        case WireFail():
            exception = None if wire.exception is UNSET else whole_body(bytes(wire.exception))
            if exception is not None and not exception.startswith((b"{", b"null")):
                raise InvalidRequest(f"{at}.exception", "must be an object")
            return c.FailRun(
                message=wire.message[: limits.FAILURE_MESSAGE_LENGTH_MAX],
                exception_type=wire.exception_type,
                exception_class=wire.exception_class,
                exception=None if exception == b"null" else exception,
                non_retryable=bool(wire.non_retryable),
                failed_step=wire.failed_step_sequence,
                failed_execution_id=wire.failed_activity_execution_id,
            )
        case WireContinue():
            require_workflow_type(wire.workflow_type, f"{at}.workflow_type")
            return c.ContinueAsNew(
                arguments=require_payload(_either(wire.arguments, wire.input), f"{at}.arguments"),
                queue=wire.queue or wire.task_queue,
                workflow_type=wire.workflow_type,
                trace=read_carrier(wire.observability_context, f"{at}.observability_context"),
            )
        case _:
            assert_never(wire)


def _schedule_activity(wire: WireScheduleActivity, at: str) -> c.ScheduleActivity:
    session = None
    if wire.worker_session is not None:
        session = terms_of(wire.worker_session, f"{at}.worker_session.")
    timeouts = ActivityTimeouts(
        _one_of(wire.schedule_to_start_timeout, wire.schedule_to_start_timeout_seconds, at),
        _one_of(wire.start_to_close_timeout, wire.start_to_close_timeout_seconds, at),
        _one_of(wire.schedule_to_close_timeout, wire.schedule_to_close_timeout_seconds, at),
        _one_of(wire.heartbeat_timeout, wire.heartbeat_timeout_seconds, at),
    )
    if timeouts != NO_TIMEOUTS:
        _check_timeouts(timeouts, at)
    arguments = require_payload(_either(wire.arguments, wire.input), f"{at}.arguments")
    return c.ScheduleActivity(
        activity_type=wire.activity_type,
        arguments=arguments or _NO_ARGUMENTS,
        queue=wire.queue or wire.task_queue or (session.queue if session else None),
        retry=retry_policy(wire.retry_policy, f"{at}.retry_policy"),
        timeouts=timeouts,
        cancellation_policy=wire.cancellation_policy,
        session=session,
        path=group_path(wire, at),
    )


def _one_of(seconds: int | None, other: int | None, at: str) -> int | None:
    """A time-out that the wire spells in two ways."""
    if other is None or seconds == other:
        return seconds
    if seconds is not None:
        raise InvalidRequest(at, "has two names with different seconds; send one of them")
    return other


def _check_timeouts(timeouts: ActivityTimeouts, at: str) -> None:
    require_in_order(timeouts.heartbeat, timeouts.start_to_close, f"{at}.heartbeat_timeout")
    close = timeouts.schedule_to_close
    require_in_order(timeouts.start_to_close, close, f"{at}.start_to_close_timeout")
    require_in_order(timeouts.schedule_to_start, close, f"{at}.schedule_to_start_timeout")


def _start_child(wire: WireStartChild, at: str) -> c.StartChild:
    if wire.parent_close_policy is not None and wire.parent_close_policy not in _PARENT_CLOSE:
        known = ", ".join(sorted(_PARENT_CLOSE))
        raise InvalidRequest(f"{at}.parent_close_policy", f"must be one of {known}")
    require_in_order(
        wire.run_timeout_seconds, wire.execution_timeout_seconds, f"{at}.run_timeout_seconds"
    )
    require_workflow_type(wire.workflow_type, f"{at}.workflow_type")
    arguments = require_payload(_either(wire.arguments, wire.input), f"{at}.arguments")
    return c.StartChild(
        workflow_type=wire.workflow_type,
        arguments=arguments or _NO_ARGUMENTS,
        queue=wire.queue or wire.task_queue,
        parent_close_policy=wire.parent_close_policy,
        cancellation_policy=wire.cancellation_policy,
        retry=retry_policy(wire.retry_policy, f"{at}.retry_policy"),
        execution_timeout_seconds=wire.execution_timeout_seconds,
        run_timeout_seconds=wire.run_timeout_seconds,
        trace=read_carrier(wire.observability_context, f"{at}.observability_context"),
        path=group_path(wire, at),
    )


def _start_service_operation(
    wire: WireStartServiceOperation, at: str, bounds: Bounds
) -> c.StartServiceOperation:
    require_call_options(
        mode=wire.mode_override,
        wait_for=wire.wait_for,
        duplicate_policy=wire.duplicate_start_policy,
        target_run_id=wire.target_workflow_run_id,
        idempotency_key=wire.idempotency_key,
        prefix=f"{at}.",
    )
    memo, attributes = members_of(wire.memo), members_of(wire.search_attributes)
    check_memo(memo, f"{at}.memo", bounds)
    check_search_attributes(attributes, f"{at}.search_attributes", bounds)
    return c.StartServiceOperation(
        endpoint=wire.endpoint_name,
        service=wire.service_name,
        operation=wire.operation_name,
        arguments=require_payload(wire.request_payload, f"{at}.request_payload"),
        namespace=(wire.namespace or "").lower() or None,
        idempotency_key=wire.idempotency_key or None,
        mode=wire.mode_override,
        wait_for=wire.wait_for,
        wait_timeout_seconds=wire.wait_timeout_seconds,
        target_workflow_id=wire.target_workflow_instance_id,
        queue=wire.queue or None,
        business_key=wire.business_key,
        memo=memo,
        search_attributes=attributes,
    )


def require_workflow_type(workflow_type: str | None, field: str) -> None:
    """Refuse the reserved workflow type."""
    if workflow_type == HOST_TYPE:
        raise InvalidRequest(field, f"{HOST_TYPE} is reserved for standalone activities")


def require_call_options(
    *,
    mode: str | None,
    wait_for: str | None,
    duplicate_policy: str | None,
    target_run_id: str | None,
    idempotency_key: str | None,
    prefix: str,
) -> None:
    """Refuse invalid and unsupported options of a service call."""
    if mode not in (None, "sync", "async"):
        raise InvalidRequest(f"{prefix}mode_override", "must be sync or async")
    if wait_for not in (None, "accepted", "completed"):
        raise InvalidRequest(f"{prefix}wait_for", "must be accepted or completed")
    if duplicate_policy not in (None, "fail"):
        raise InvalidRequest(f"{prefix}duplicate_start_policy", "must be fail")
    if target_run_id is not None:
        raise InvalidRequest(
            f"{prefix}target_workflow_run_id", "is not supported: every call starts its own run"
        )
    if idempotency_key is not None and not idempotency_key.isprintable():
        raise InvalidRequest(f"{prefix}idempotency_key", "must be printable")


def check_memo(memo: dict[str, Any], field: str, bounds: Bounds) -> None:
    if len(msgspec.json.encode(memo)) > bounds.memo_bytes_max:
        raise InvalidRequest(field, f"at most {bounds.memo_bytes_max} bytes")
    require_storable(memo, field)


def _upsert_memo(wire: WireUpsertMemo, at: str) -> c.UpsertMemo:
    encoded = require_envelope(bytes(wire.entries), at)
    members = msgspec.json.decode(encoded)
    if "blob" not in members:
        raise InvalidRequest(at, "memo entries must be inline")
    try:
        entries = decode(members["blob"])
    except PayloadError as error:
        raise InvalidRequest(f"{at}.blob", error.message) from None
    if not isinstance(entries, dict):
        raise InvalidRequest(f"{at}.blob", "memo entries are a map")
    if len(entries) > limits.MEMO_ENTRIES_MAX:
        raise InvalidRequest(at, f"at most {limits.MEMO_ENTRIES_MAX} entries")
    return c.UpsertMemo(envelope=encoded, entries=entries)


_STARTED_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_UPSERTED_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)


def check_search_attributes(
    attributes: dict[str, Any],
    at: str,
    bounds: Bounds,
    key_form: re.Pattern[str] = _STARTED_KEY,
) -> None:
    """Check bounds and types of search attributes before anything is changed."""
    if len(attributes) > bounds.search_attributes_max:
        raise InvalidRequest(at, f"at most {bounds.search_attributes_max} search attributes")
    require_storable(attributes, at)
    total = 0
    for key, value in attributes.items():
        too_long = len(key) > bounds.search_attribute_key_length_max
        if too_long or key_form.fullmatch(key) is None:
            raise InvalidRequest(at, f"{key[:64]!r} is not a valid name of a search attribute")
        is_list = isinstance(value, list)
        for item in value if is_list else [value]:
            is_scalar = item is None or isinstance(item, str | int | float | bool)
            if not is_scalar or (is_list and not isinstance(item, str)):
                raise InvalidRequest(f"{at}.{key}", "must be a scalar or a list of texts")
            if isinstance(item, str):
                size = len(item.encode())
                total += size
                most = bounds.search_attribute_value_bytes_max
                if size > most:
                    raise InvalidRequest(f"{at}.{key}", f"at most {most} bytes")
    if total > bounds.search_attributes_bytes_max:
        raise InvalidRequest(at, f"at most {bounds.search_attributes_bytes_max} bytes in all")


def group_path(wire: Grouped, at: str) -> list[dict[str, Any]] | None:
    """The position of a step in its parallel groups, outermost first."""
    path = wire.parallel_group_path
    if not path:
        return None
    for depth, entry in enumerate(path):
        _check_entry(entry, depth, f"{at}.parallel_group_path.{depth}")
    return [msgspec.to_builtins(entry) for entry in path]


def _check_entry(entry: PathEntry, depth: int, at: str) -> None:
    if entry.parallel_group_index >= entry.parallel_group_size:
        raise InvalidRequest(f"{at}.parallel_group_index", "must be below the group's size")
    selection = (
        entry.selection_member_key,
        entry.selection_member_index,
        entry.selection_member_base_sequence,
        entry.selection_member_size,
        entry.selection_member_kind,
    )
    if entry.parallel_group_mode is UNSET:
        return
    if entry.parallel_group_mode != "select" or depth > 0 or UNSET in selection:
        raise InvalidRequest(at, "a selection is outermost and names its member")


def _either(first: Payload, second: Payload) -> Payload:
    return second if first is UNSET else first

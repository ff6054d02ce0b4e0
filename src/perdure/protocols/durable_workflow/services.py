"""Service operations: the catalogue, calls by clients, and the state of calls."""

import re
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.bounds import Bounds
from perdure.core.limits import SECOND
from perdure.core.maps import EmptyList, Map, members_of, structure_of
from perdure.core.payload import Frame
from perdure.core.rejection import (
    InstanceNotFound,
    InvalidRequest,
    RunNotFound,
    ServiceCallFailed,
    ServiceCallNotFound,
    ServiceEntryNotFound,
)
from perdure.core.run.operation import ActivityTimeouts
from perdure.core.run.service_binding import ACTIVITY_EXECUTION, WORKFLOW_RUN, Binding
from perdure.core.service import COMPLETED, Call, CallRequest, Entry, ServiceName, call_path
from perdure.dispatch.update_waiters import UpdateWaiters
from perdure.engine.beat import Engine
from perdure.engine.service_calls import (
    CALL,
    ENTRY,
    CancelCall,
    Executed,
    ExecuteService,
    digest_of,
    output_of,
)
from perdure.engine.service_catalogue import PutEntry, RemoveEntry
from perdure.identity import IdSource
from perdure.protocols.durable_workflow.bodies import (
    Absent,
    Body,
    OptionalName,
    Seconds,
    decode,
    require_in_order,
)
from perdure.protocols.durable_workflow.commands import (
    check_memo,
    check_search_attributes,
    require_call_options,
    require_workflow_type,
)
from perdure.protocols.durable_workflow.inputs import read_input
from perdure.protocols.durable_workflow.payloads import (
    frame_of_envelope,
    require_payload,
    shown,
)
from perdure.protocols.durable_workflow.references import with_payloads
from perdure.protocols.durable_workflow.retry_policies import WireRetryPolicy, retry_policy
from perdure.protocols.durable_workflow.run_lists import page_size
from perdure.protocols.durable_workflow.sizes import require_input_size
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.store.interface import Instance
from perdure.web.message import Request, Response

_NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,127}")
_KINDS = {
    "workflow_run": WORKFLOW_RUN,
    "start_workflow": WORKFLOW_RUN,
    "activity_execution": ACTIVITY_EXECUTION,
}
_LEVELS = ("endpoint", "service", "operation")
_AFTER_ALL_NAMES = "~"
"""Sorts after every name."""


class HandlerBody(Struct):
    """The workflow or activity that each call starts."""

    workflow_type: OptionalName = None
    activity_type: OptionalName = None
    task_queue: OptionalName = None
    execution_timeout_seconds: Seconds | None = None
    run_timeout_seconds: Seconds | None = None
    retry_policy: WireRetryPolicy | EmptyList | None = None
    start_to_close_timeout_seconds: Seconds | None = None
    schedule_to_start_timeout_seconds: Seconds | None = None
    schedule_to_close_timeout_seconds: Seconds | None = None
    heartbeat_timeout_seconds: Seconds | None = None


class EntryBody(Body):
    description: Annotated[str, Meta(max_length=1000)] | None = None


class OperationBody(EntryBody, kw_only=True):
    handler_binding_kind: str
    handler_binding: HandlerBody | EmptyList
    operation_mode: str = "sync"
    # Defined by the protocol, but not supported. Refused rather than ignored silently.
    deadline_policy: Absent = UNSET
    idempotency_policy: Absent = UNSET
    cancellation_policy: Absent = UNSET
    retry_policy: Absent = UNSET
    boundary_policy: Absent = UNSET


_REFUSED = (
    "deadline_policy",
    "idempotency_policy",
    "cancellation_policy",
    "retry_policy",
    "boundary_policy",
)


class ExecuteBody(Body):
    arguments: Absent = UNSET
    payload_codec: str | None = None
    mode_override: str | None = None
    wait_for: str | None = None
    wait_timeout_seconds: Seconds | None = None
    idempotency_key: OptionalName = None
    caller_namespace: OptionalName = None
    caller_workflow_instance_id: OptionalName = None
    caller_workflow_run_id: OptionalName = None
    target_workflow_instance_id: (
        Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")] | None
    ) = None
    target_workflow_run_id: OptionalName = None
    queue: OptionalName = None
    business_key: OptionalName = None
    memo: Map[Any] | None = None
    search_attributes: Map[Any] | None = None
    duplicate_start_policy: str | None = None


class CancelBody(Body):
    reason: Annotated[str, Meta(max_length=1000)] | None = None


class Services:
    """Handlers of `/api/service-endpoints…` and of the calls of a run."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        ids: IdSource,
        waiters: UpdateWaiters,
        surface: ControlSurface,
        bounds: Bounds,
    ) -> None:
        self._bounds = bounds
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._waiters = waiters
        self.surface = surface

    # The catalogue -------------------------------------------------------------------------------

    async def put(self, request: Request) -> Response:
        """Add or change an endpoint or a service."""
        body = decode(request.body, EntryBody)
        return await self._put(request, description=body.description)

    async def put_operation(self, request: Request) -> Response:
        body = decode(request.body, OperationBody)
        for name in _REFUSED:
            if getattr(body, name) is not UNSET:
                raise InvalidRequest(name, "is not available")
        if body.operation_mode not in ("sync", "async"):
            raise InvalidRequest("operation_mode", "must be sync or async")
        return await self._put(
            request,
            description=body.description,
            mode=body.operation_mode,
            binding=_binding(body),
        )

    async def _put(
        self,
        request: Request,
        *,
        description: str | None,
        mode: str = "sync",
        binding: Binding | None = None,
    ) -> Response:
        operation = PutEntry(
            request.namespace,
            _path(request, strict=True),
            description=description,
            mode=mode,
            binding=binding,
        )
        entry, is_new = await self._engine.submit(operation)
        view = _entry(_path(request), entry, request.namespace)
        return self.surface.answer(request, 201 if is_new else 200, view)

    async def describe(self, request: Request) -> Response:
        path = _path(request)
        entry = await ENTRY.read(self._engine.store, request.namespace, path)
        if entry is None:
            raise ServiceEntryNotFound(f"{path[:256]} is not in the catalogue")
        view = _entry(path, entry, request.namespace)
        return self.surface.answer(request, 200, view)

    async def list_entries(self, request: Request) -> Response:
        """List the endpoints, the services of an endpoint, or the operations of a service."""
        parent, depth = _path(request), len(_names(request))
        if parent:
            await self.describe(request)
        size = page_size(request.query)
        after: str | None = request.query.get("next_page_token") or None
        prefix = f"{parent}/" if parent else ""
        found: list[tuple[str, Entry]] = []
        while len(found) <= size:
            page = await ENTRY.read_page(
                self._engine.store,
                request.namespace,
                prefix=prefix,
                after=after,
                limit=size + 1 - len(found),
            )
            if not page:
                break
            for path, entry in page:
                if path.count("/") != depth:
                    # Entries of lower levels sort between those of this level: skip them.
                    after = "/".join([*path.split("/")[: depth + 1], _AFTER_ALL_NAMES])
                    break
                found.append((path, entry))
                after = path
        shown_entries = found[:size]
        answer = {
            f"{_LEVELS[depth]}s": [
                _entry(path, entry, request.namespace) for path, entry in shown_entries
            ],
            "next_page_token": shown_entries[-1][0] if len(found) > size else None,
        }
        return self.surface.answer(request, 200, answer)

    async def remove(self, request: Request) -> Response:
        path = _path(request)
        await self._engine.submit(RemoveEntry(request.namespace, path))
        return self.surface.answer(request, 200, {"outcome": "deleted", "name": path})

    # Calls ---------------------------------------------------------------------------------------

    async def execute(self, request: Request) -> Response:
        body = decode(request.body, ExecuteBody)
        call_request = self._call_request(request, body)
        waits = call_request.wait_for == "completed"
        if call_request.wait_for != "accepted":
            self._waiters.require_room()
        operation = with_payloads(request, ExecuteService(call_request))
        executed: Executed = await self._engine.submit(operation)
        if not call_request.wait_for:
            waits = executed.mode == "sync"
        path = call_path(call_request.name, executed.call_id)
        call = await self._require_call(request.namespace, path)
        if waits:
            timeout = limits.SERVICE_WAIT_DEFAULT
            if body.wait_timeout_seconds is not None:
                timeout = min(body.wait_timeout_seconds * SECOND, limits.SERVICE_WAIT_MAX)
            call = await self._wait(request.namespace, path, call, timeout)
        view = {**await self._call(request.namespace, call), "retained": executed.retained}
        if call.is_closed and call.status != COMPLETED:
            message = view.pop("message", None) or f"the call was {call.status}"
            raise ServiceCallFailed(message, **view)
        if waits and not call.is_closed:
            view |= {"outcome": "timed_out", "reason": "wait_timed_out", "wait_timed_out": True}
            view["message"] = "the call is still running; it did not end within the time-out"
        return self.surface.answer(request, 200, view)

    def _call_request(self, request: Request, body: ExecuteBody) -> CallRequest:
        require_call_options(
            mode=body.mode_override,
            wait_for=body.wait_for,
            duplicate_policy=body.duplicate_start_policy,
            target_run_id=body.target_workflow_run_id,
            idempotency_key=body.idempotency_key,
            prefix="",
        )
        if body.payload_codec not in (None, "avro"):
            raise InvalidRequest("payload_codec", "the codec is avro")
        memo, attributes = members_of(body.memo), members_of(body.search_attributes)
        check_memo(memo, "memo", self._bounds)
        check_search_attributes(attributes, "search_attributes", self._bounds)
        arguments, plain = _arguments(body.arguments)
        require_input_size(request, self._bounds, arguments, plain)
        frame = None if arguments is None else frame_of_envelope(arguments)
        names = _names(request)
        return CallRequest(
            namespace=request.namespace,
            name=ServiceName(*names),
            call_id=self._ids.ulid(),
            mode=body.mode_override or "",
            wait_for=body.wait_for or "",
            digest=digest_of(arguments if arguments is not None else plain),
            arguments=arguments,
            plain=plain,
            frame=frame or Frame.VALUE,
            idempotency_key=body.idempotency_key or None,
            queue=body.queue or None,
            business_key=body.business_key,
            memo=memo,
            search_attributes=attributes,
            target_workflow_id=body.target_workflow_instance_id,
            caller_namespace=body.caller_namespace,
            caller_workflow_id=body.caller_workflow_instance_id,
            caller_run_id=body.caller_workflow_run_id,
        )

    async def _wait(self, namespace: str, path: str, call: Call, wait_microseconds: int) -> Call:
        """The call when it has ended or time is up."""
        until = self._clock.now() + wait_microseconds
        instance = Instance(namespace, call.handler_workflow_id)
        run_id = call.handler_run_id
        while not call.is_closed and not self._waiters.is_closed:
            with self._waiters.expecting(run_id, call.call_id) as waiter:
                call = await self._require_call(namespace, path)
                runs = await self._engine.store.read_instance(instance)
                continued = bool(runs) and runs[-1].run_id != run_id
                remaining = until - self._clock.now()
                if call.is_closed or remaining <= 0:
                    break
                if not continued:
                    await waiter.wait(min(remaining, limits.UPDATE_RELOOK) / SECOND)
            if runs:
                run_id = runs[-1].run_id
        return call

    async def describe_call(self, request: Request) -> Response:
        call = await self._require_call(request.namespace, _call_path(request))
        view = await self._call(request.namespace, call)
        return self.surface.answer(request, 200, view)

    async def list_calls(self, request: Request) -> Response:
        await self.describe(request)
        size = page_size(request.query)
        token = request.query.get("next_page_token") or None
        prefix = f"{_path(request)}/"
        found = await CALL.read_page(
            self._engine.store,
            request.namespace,
            prefix=prefix,
            after=None if token is None else prefix + token,
            newest_first=True,
            limit=size + 1,
        )
        page = [call for _, call in found[:size]]
        answer = {
            "service_calls": [_call_view(request.namespace, call) for call in page],
            "next_page_token": page[-1].call_id if len(found) > size else None,
        }
        return self.surface.answer(request, 200, answer)

    async def cancel_call(self, request: Request) -> Response:
        body = decode(request.body, CancelBody)
        path = _call_path(request)
        call = await self._require_call(request.namespace, path)
        handler = Instance(request.namespace, call.handler_workflow_id)
        stopped: bool = await self._engine.submit(CancelCall(handler, path, body.reason))
        call = await self._require_call(request.namespace, path)
        view = await self._call(request.namespace, call)
        view["duplicate"] = not stopped
        return self.surface.answer(request, 200, view)

    async def _require_call(self, namespace: str, path: str) -> Call:
        call = await CALL.read(self._engine.store, namespace, path)
        if call is None:
            raise ServiceCallNotFound(f"service call {path[:256]} does not exist")
        return call

    async def _call(self, namespace: str, call: Call) -> dict[str, Any]:
        view = _call_view(namespace, call)
        if call.status == COMPLETED:
            output = output_of(await self._engine.store.read_last_events(call.handler_run_id))
            value, complete = shown(output)
            view["result"] = value if complete else None
            if output is not None:
                view["result_envelope"] = Raw(output)
        return view

    # Calls of a run ------------------------------------------------------------------------------

    async def list_of_run(self, request: Request) -> Response:
        instance = Instance(request.namespace, request.params["workflow_id"])
        runs = await self._engine.store.read_instance(instance)
        if not runs:
            raise InstanceNotFound(f"workflow {instance.workflow_id[:128]} does not exist")
        requested = request.params.get("run_id", runs[-1].run_id)
        run = next((it for it in runs if it.run_id == requested), None)
        if run is None:
            raise RunNotFound(f"workflow {instance.workflow_id[:128]} has no run {requested[:64]}")
        history = await self._engine.store.read_history(run.run_id, 0, limits.HISTORY_READ_MAX)
        calls: dict[str, dict[str, Any]] = {}
        for encoded in history:
            if b'"event_type":"ServiceCall' in encoded[:256]:
                _note_event(calls, msgspec.json.decode(encoded))
        newest = list(calls.values())[-limits.SERVICE_OPERATIONS_SHOWN_MAX :]
        answer = {
            "workflow_id": run.workflow_id,
            "run_id": run.run_id,
            "operation_count": len(newest),
            "operations": newest,
        }
        return self.surface.answer(request, 200, answer)


def _binding(body: OperationBody) -> Binding:
    kind = _KINDS.get(body.handler_binding_kind)
    if kind is None:
        known = ", ".join(sorted(_KINDS))
        raise InvalidRequest("handler_binding_kind", f"must be one of {known}")
    handler = structure_of(body.handler_binding, HandlerBody)
    member = "activity_type" if kind == ACTIVITY_EXECUTION else "workflow_type"
    name: str | None = getattr(handler, member)
    if not name:
        raise InvalidRequest(f"handler_binding.{member}", "is required")
    if kind == WORKFLOW_RUN:
        require_workflow_type(name, f"handler_binding.{member}")
    at = "handler_binding."
    execution, run_timeout = handler.execution_timeout_seconds, handler.run_timeout_seconds
    require_in_order(run_timeout, execution, f"{at}run_timeout_seconds")
    timeouts = ActivityTimeouts(
        schedule_to_start=handler.schedule_to_start_timeout_seconds,
        start_to_close=handler.start_to_close_timeout_seconds,
        schedule_to_close=handler.schedule_to_close_timeout_seconds,
        heartbeat=handler.heartbeat_timeout_seconds,
    )
    close = timeouts.schedule_to_close
    require_in_order(timeouts.heartbeat, timeouts.start_to_close, f"{at}heartbeat_timeout_seconds")
    require_in_order(timeouts.start_to_close, close, f"{at}start_to_close_timeout_seconds")
    require_in_order(timeouts.schedule_to_start, close, f"{at}schedule_to_start_timeout_seconds")
    return Binding(
        kind=kind,
        name=name,
        queue=handler.task_queue or "default",
        execution_timeout_seconds=execution,
        run_timeout_seconds=run_timeout,
        retry=retry_policy(handler.retry_policy, f"{at}retry_policy"),
        timeouts=timeouts,
    )


def _arguments(raw: Absent) -> tuple[bytes | None, bytes | None]:
    """The arguments: a bare blob or an envelope, or plain JSON."""
    if raw is not UNSET and bytes(raw).startswith(b'"'):
        return require_payload(raw, "arguments"), None
    return read_input(raw, "arguments")


def _names(request: Request) -> list[str]:
    return [request.params[level] for level in _LEVELS if level in request.params]


def _path(request: Request, *, strict: bool = False) -> str:
    names = [name.lower() for name in _names(request)]
    for level, name in zip(_LEVELS, names, strict=False):
        if strict and not _NAME.fullmatch(name):
            raise InvalidRequest(level, "must be 1 to 128 letters, digits and ._:-")
    return "/".join(names)


def _call_path(request: Request) -> str:
    return f"{_path(request)}/{request.params['call_id']}"


def _entry(path: str, entry: Entry, namespace: str) -> dict[str, Any]:
    names = path.split("/")
    view: dict[str, Any] = {
        "namespace": namespace,
        **{f"{level}_name": name for level, name in zip(_LEVELS, names, strict=False)},
        "name": names[-1],
        "description": entry.description,
        "created_at": instant.text(entry.created_at),
        "updated_at": instant.text(entry.updated_at),
    }
    binding = entry.binding
    if binding is None:
        return view
    is_activity = binding.kind == ACTIVITY_EXECUTION
    handler: dict[str, Any] = {
        "activity_type" if is_activity else "workflow_type": binding.name,
        "task_queue": binding.queue,
        "execution_timeout_seconds": binding.execution_timeout_seconds,
        "run_timeout_seconds": binding.run_timeout_seconds,
    }
    for name in ("start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat"):
        handler[f"{name}_timeout_seconds"] = getattr(binding.timeouts, name)
    if binding.retry is not None:
        handler["retry_policy"] = {
            "max_attempts": binding.retry.attempts_max,
            "backoff_seconds": binding.retry.backoff_seconds,
            "non_retryable_error_types": binding.retry.non_retryable_types,
        }
    return {
        **view,
        "operation_mode": entry.mode,
        "handler_binding_kind": binding.kind,
        "handler_binding": {key: value for key, value in handler.items() if value is not None},
    }


def _call_view(namespace: str, call: Call) -> dict[str, Any]:
    view: dict[str, Any] = {
        "service_call_id": call.call_id,
        "accepted": True,
        "namespace": namespace,
        "target_namespace": namespace,
        "endpoint_name": call.endpoint,
        "service_name": call.service,
        "operation_name": call.operation,
        "operation_mode": call.mode,
        "wait_for": call.wait_for,
        "status": call.status,
        "outcome": call.outcome,
        "idempotency_key": call.idempotency_key,
        "caller_namespace": call.caller_namespace,
        "caller_workflow_instance_id": call.caller_workflow_id,
        "caller_workflow_run_id": call.caller_run_id,
        "handler_binding_kind": call.handler_kind,
        "handler_workflow_id": call.handler_workflow_id,
        "handler_run_id": call.handler_run_id,
        "created_at": instant.text(call.created_at),
        "closed_at": instant.text_or_none(call.closed_at),
    }
    if call.is_closed and call.status != COMPLETED:
        view["message"] = call.message
        view["service_error_type"] = call.error_type
    return view


_EVENT_MEMBERS = (
    "sequence",
    "service_call_id",
    "endpoint_name",
    "service_name",
    "operation_name",
    "operation_mode",
    "wait_for",
    "status",
    "message",
    "exception_type",
)


def _note_event(calls: dict[str, dict[str, Any]], event: dict[str, Any]) -> None:
    payload = event["payload"]
    call = calls.setdefault(payload["service_call_id"], {"started_at": event["recorded_at"]})
    call |= {name: payload[name] for name in _EVENT_MEMBERS if name in payload}
    surface = payload.get("service_call", {})
    call["outcome"] = surface.get("outcome")
    call["target_namespace"] = surface.get("target_namespace")
    if event["event_type"] != "ServiceCallStarted":
        call["closed_at"] = event["recorded_at"]

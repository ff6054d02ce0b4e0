"""Service operations: the entries of the catalogue, and the calls to them.

An operation belongs to a service, a service to an endpoint, and all of them to the namespace that
offers them. A call is handled by a run of that namespace: a workflow, or one activity.
"""

from typing import Any, NamedTuple

from msgspec import Struct, field

from perdure.core.payload import Frame
from perdure.core.run.context import Context
from perdure.core.run.service import CallEnding
from perdure.core.run.service_binding import ACTIVITY_EXECUTION, Binding
from perdure.core.run.standalone import ActivityRequest, start_standalone
from perdure.core.run.start import StartRequest, start_run
from perdure.core.run.state import Run, Served
from perdure.core.run.status import RunStatus

STARTED = "started"
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"


class ServiceName(NamedTuple):
    """The three names that identify an operation, in the spelling of the request."""

    endpoint: str
    service: str
    operation: str

    @property
    def path(self) -> str:
        """The names as one key; case does not matter."""
        return "/".join(self).lower()

    @property
    def text(self) -> str:
        return "/".join(self)


class Entry(Struct, kw_only=True):
    """One entry of the catalogue; only operations have a binding."""

    created_at: int
    updated_at: int
    description: str | None = None
    mode: str = "sync"
    binding: Binding | None = None


class Caller(Struct, array_like=True):
    """A run that waits for the end of a call, and the step that waits."""

    run_id: str
    sequence: int


class Call(Struct, kw_only=True):
    """The record of one call. Its result is in the history of the handler."""

    call_id: str
    endpoint: str
    service: str
    operation: str
    mode: str
    wait_for: str
    handler_kind: str
    handler_workflow_id: str
    handler_run_id: str
    created_at: int
    status: str = STARTED
    outcome: str = "accepted"
    idempotency_key: str | None = None
    caller_namespace: str | None = None
    caller_workflow_id: str | None = None
    caller_run_id: str | None = None
    callers: list[Caller] = field(default_factory=list)
    closed_at: int | None = None
    message: str | None = None
    error_type: str | None = None

    @property
    def name(self) -> ServiceName:
        return ServiceName(self.endpoint, self.service, self.operation)

    @property
    def is_closed(self) -> bool:
        return self.status != STARTED


class KeptCall(Struct):
    """The call that an idempotency key belongs to, and a digest of its request."""

    call_id: str
    digest: str


class CallRequest(Struct, frozen=True, kw_only=True):
    """A call to make. `sequence` is the step of the calling run that waits for its end."""

    namespace: str
    name: ServiceName
    call_id: str
    mode: str
    wait_for: str
    digest: str
    arguments: bytes | None = None
    plain: bytes | None = None
    frame: Frame = Frame.VALUE
    idempotency_key: str | None = None
    queue: str | None = None
    business_key: str | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    search_attributes: dict[str, Any] = field(default_factory=dict)
    target_workflow_id: str | None = None
    caller_namespace: str | None = None
    caller_workflow_id: str | None = None
    caller_run_id: str | None = None
    sequence: int | None = None

    @property
    def path(self) -> str:
        """The key of the call among all calls of its namespace."""
        return call_path(self.name, self.call_id)

    @property
    def handler_id(self) -> str:
        """The id of the run that will handle it."""
        return self.target_workflow_id or f"service-call-{self.call_id}"


def call_path(name: ServiceName, call_id: str) -> str:
    return f"{name.path}/{call_id}"


def start_handler(
    request: CallRequest, binding: Binding, ctx: Context, *, build_id: str | None = None
) -> Run:
    """The run that handles a call. Its id must be free."""
    queue = request.queue or binding.queue
    if binding.kind == ACTIVITY_EXECUTION:
        run = start_standalone(
            ActivityRequest(
                namespace=request.namespace,
                activity_id=request.handler_id,
                activity_type=binding.name,
                queue=queue,
                business_key=request.business_key,
                arguments=request.arguments,
                plain=request.plain,
                frame=request.frame,
                retry=binding.retry,
                timeouts=binding.timeouts,
            ),
            ctx,
            before=None,
        )
    else:
        run = start_run(
            StartRequest(
                namespace=request.namespace,
                workflow_id=request.handler_id,
                workflow_type=binding.name,
                queue=queue,
                arguments=request.arguments,
                plain=request.plain,
                frame=request.frame,
                business_key=request.business_key,
                memo=request.memo,
                search_attributes=request.search_attributes,
                execution_timeout_seconds=binding.execution_timeout_seconds,
                run_timeout_seconds=binding.run_timeout_seconds,
                build_id=build_id,
            ),
            ctx,
        )
    run.served = Served(request.path, request.call_id)
    return run


def open_call(request: CallRequest, binding: Binding, handler: Run, ctx: Context) -> Call:
    """The record of a call whose handler was just started."""
    waiting = request.caller_run_id is not None and request.sequence is not None
    return Call(
        call_id=request.call_id,
        endpoint=request.name.endpoint,
        service=request.name.service,
        operation=request.name.operation,
        mode=request.mode,
        wait_for=request.wait_for,
        handler_kind=binding.kind,
        handler_workflow_id=handler.workflow_id,
        handler_run_id=handler.run_id,
        created_at=ctx.now,
        idempotency_key=request.idempotency_key,
        caller_namespace=request.caller_namespace,
        caller_workflow_id=request.caller_workflow_id,
        caller_run_id=request.caller_run_id,
        callers=[Caller(request.caller_run_id or "", request.sequence or 0)] if waiting else [],
    )


def close_call(call: Call, handler: Run, ending: CallEnding, ctx: Context) -> None:
    """Close a call whose handler has ended."""
    call.status, call.outcome = ending.status, ending.outcome
    call.message, call.error_type = ending.message, ending.error_type
    call.handler_run_id = handler.run_id
    call.closed_at = ctx.now
    call.callers = []


def ending_of(handler: Run, output: bytes | None) -> CallEnding:
    """The outcome of a call, from the end of its handler."""
    failure = handler.failure
    message = None if failure is None else failure.message
    match handler.status:
        case RunStatus.COMPLETED:
            return CallEnding(status=COMPLETED, outcome=COMPLETED, output=output)
        case RunStatus.CANCELLED | RunStatus.TERMINATED:
            return CallEnding(
                status=CANCELLED,
                outcome=CANCELLED,
                message=message,
                error_type=None if failure is None else failure.exception_type,
            )
        case _:
            late = handler.closed_reason == "timed_out"
            return CallEnding(
                status=FAILED,
                outcome="timed_out" if late else "handler_failed",
                message=message,
                error_type=None if failure is None else failure.exception_type,
            )

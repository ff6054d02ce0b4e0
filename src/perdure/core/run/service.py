"""Calls of service operations, from the side of the calling run."""

from typing import Any

from msgspec import Struct

from perdure.core import limits
from perdure.core.run.command import StartServiceOperation
from perdure.core.run.context import Context
from perdure.core.run.effect import StartServiceCall
from perdure.core.run.history import held, raw, record
from perdure.core.run.operation import ServiceCall
from perdure.core.run.service_binding import Binding
from perdure.core.run.settle import resolve, settle
from perdure.core.run.state import Run


class ServicePlan(Struct, frozen=True, kw_only=True):
    """How the catalogue handles the call of a command.

    `call_id` names an earlier call under the same idempotency key.
    """

    mode: str = "sync"
    binding: Binding | None = None
    call_id: str | None = None
    refusal: "CallRefusal | None" = None


class CallRefusal(Struct, frozen=True):
    """Why a call is refused."""

    outcome: str
    reason: str
    message: str


class CallEnding(Struct, frozen=True, kw_only=True):
    """How a call ended."""

    status: str
    outcome: str
    output: bytes | None = None
    message: str | None = None
    error_type: str | None = None


def open_service_call(
    run: Run, ctx: Context, command: StartServiceOperation, plan: ServicePlan, sequence: int
) -> ServiceCall:
    """Start a call; the code waits for its end or only for its acceptance."""
    call = ServiceCall(
        sequence=sequence,
        call_id=plan.call_id or ctx.ids.ulid(),
        namespace=command.namespace or run.namespace,
        endpoint=command.endpoint,
        service=command.service,
        operation=command.operation,
        mode=command.mode or plan.mode,
        wait_for=command.wait_for or "completed",
        idempotency_key=command.idempotency_key,
    )
    run.operations[sequence] = call
    run.unsaved.operations.add(sequence)
    refusal = plan.refusal
    if refusal is not None:
        surface = {
            **_surface(call, "failed", refusal.outcome, accepted=False),
            "reason": refusal.reason,
            "message": refusal.message,
        }
        payload = {**_identity(run, call), "status": "failed", "service_call": surface}
        payload |= {"message": refusal.message, "exception_type": "ServiceCallRejected"}
        resolve(run, call, held("ServiceCallFailed", payload, call, failed=True))
        return call
    started = {
        **_identity(run, call),
        "status": "started",
        "request_payload": raw(command.arguments),
        "service_call": _surface(call, "started", "accepted"),
    }
    waits = not resumes_at_once(call)
    if waits:
        record(run, ctx, "ServiceCallStarted", started)
        if command.wait_timeout_seconds is not None:
            call.fire_at = ctx.now + command.wait_timeout_seconds * limits.SECOND
    else:
        resolve(run, call, held("ServiceCallStarted", started, call))
    run.unsaved.effects.append(
        StartServiceCall(
            run,
            command,
            call,
            plan.binding,
            attached=plan.call_id is not None,
            waits=waits,
        )
    )
    return call


def resumes_at_once(call: ServiceCall) -> bool:
    """Whether the code continues as soon as the call is accepted."""
    return call.wait_for == "accepted" or call.mode == "async"


def service_call_ended(
    run: Run, ctx: Context, *, sequence: int, call_id: str, ending: CallEnding
) -> bool:
    """Resolve the call with its ending. Returns whether it was still open."""
    call = run.operations.get(sequence)
    if run.is_closed or not isinstance(call, ServiceCall) or call.outcome is not None:
        return False
    if call.call_id != call_id:
        return False
    _end(run, call, ending)
    settle(run, ctx)
    return True


def time_out_service_call(run: Run, call: ServiceCall) -> None:
    """End the wait of the code by its time-out. The call itself continues."""
    _end(
        run,
        call,
        CallEnding(
            status="failed",
            outcome="timed_out",
            message=f"service operation {call.name} did not end in time",
            error_type="ServiceCallTimedOut",
        ),
    )


def _end(run: Run, call: ServiceCall, ending: CallEnding) -> None:
    payload: dict[str, Any] = {**_identity(run, call), "status": ending.status}
    surface = _surface(call, ending.status, ending.outcome)
    if ending.status == "completed":
        payload |= {"response_payload": raw(ending.output), "service_call": surface}
        resolve(run, call, held("ServiceCallCompleted", payload, call))
        return
    message = ending.message or f"service operation {call.name} was {ending.status}"
    surface |= {"message": message, "service_error_type": ending.error_type}
    payload |= {
        "message": message,
        "exception_type": ending.error_type or "ServiceCallFailed",
        "failure_category": "cancelled" if ending.status == "cancelled" else "application",
        "service_call": {name: value for name, value in surface.items() if value is not None},
    }
    cancelled = ending.status == "cancelled"
    event_type = "ServiceCallCancelled" if cancelled else "ServiceCallFailed"
    resolve(run, call, held(event_type, payload, call, failed=True))


def _identity(run: Run, call: ServiceCall) -> dict[str, Any]:
    return {
        "sequence": call.sequence,
        "service_call_id": call.call_id,
        "endpoint_name": call.endpoint,
        "service_name": call.service,
        "operation_name": call.operation,
        "operation_mode": call.mode,
        "wait_for": call.wait_for,
        "payload_codec": run.codec,
        "caller_workflow_instance_id": run.workflow_id,
        "caller_workflow_run_id": run.run_id,
    }


def _surface(
    call: ServiceCall, status: str, outcome: str, *, accepted: bool = True
) -> dict[str, Any]:
    surface = {
        "service_call_id": call.call_id,
        "namespace": call.namespace,
        "target_namespace": call.namespace,
        "endpoint_name": call.endpoint,
        "service_name": call.service,
        "operation_name": call.operation,
        "idempotency_key": call.idempotency_key,
        "status": status,
        "outcome": outcome,
        "accepted": accepted,
    }
    return {name: value for name, value in surface.items() if value is not None}

"""Updates on both planes: clients send them and wait, workers validate them."""

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from perdure.core import instant, limits
from perdure.core import rejection as r
from perdure.core.bounds import Bounds
from perdure.core.maps import whole_body
from perdure.core.run.completion import TaskReport
from perdure.core.run.inbox import Refusal
from perdure.core.run.state import parse_task_id
from perdure.core.run.validation import VerdictResult
from perdure.dispatch.delivery import ValidationDelivery
from perdure.dispatch.update_waiters import UpdateWaiters
from perdure.engine.beat import Engine
from perdure.engine.updates import (
    OPEN,
    UNKNOWN,
    VALIDATING,
    Admitted,
    ApproveUpdate,
    ReadUpdate,
    RejectUpdate,
    UpdateRun,
    UpdateView,
)
from perdure.protocols.durable_workflow import bodies
from perdure.protocols.durable_workflow.control import command_target, encode_for_run
from perdure.protocols.durable_workflow.inputs import read_input, require_operation_name
from perdure.protocols.durable_workflow.payloads import count_arguments, shown
from perdure.protocols.durable_workflow.references import with_payloads
from perdure.protocols.durable_workflow.sizes import require_input_size
from perdure.protocols.durable_workflow.surfaces import ControlSurface, WorkerSurface
from perdure.protocols.durable_workflow.trace_context import read_carrier
from perdure.web.message import Request, Response

STAGES = ("accepted", "completed")

REFUSALS: dict[str, tuple[type[r.Rejection], bool]] = {
    r.UpdateValidatorRejected.reason: (r.UpdateValidatorRejected, False),
    r.UpdateValidationFailed.reason: (r.UpdateValidationFailed, False),
    r.UpdateValidatorLost.reason: (r.UpdateValidatorLost, True),
    r.UpdateValidationNotClaimed.reason: (r.UpdateValidationNotClaimed, True),
    r.UpdateValidationOutOfTime.reason: (r.UpdateValidationOutOfTime, True),
}
"""Refusals of updates, and whether a retry may help."""


class _Payload(Struct):
    update_id: str | None = None
    result: Raw = Raw(b"null")
    message: str | None = None
    failure_id: str | None = None
    failure_category: str | None = None
    exception_type: str | None = None
    exception_class: str | None = None


class _Event(Struct):
    event_type: str
    recorded_at: str
    payload: _Payload


_event_decoder = msgspec.json.Decoder(_Event)
_FINAL_EVENTS = frozenset({"UpdateCompleted", "UpdateRejected"})


class Ticket(Struct, frozen=True, kw_only=True):
    """What a waiting request keeps in memory: the update, the stage to reach, the time-out."""

    namespace: str
    workflow_id: str
    name: str
    admitted: Admitted
    request_id: str | None
    requested_run_id: str | None
    wait_for: str
    seconds: float
    asked: int | None


class Updates:
    """Handlers of `…/update/{name}` and `/api/worker/update-validation-tasks/…`."""

    def __init__(
        self,
        engine: Engine,
        waiters: UpdateWaiters,
        control: ControlSurface,
        worker: WorkerSurface,
        *,
        wait_timeout: int,
        bounds: Bounds,
    ) -> None:
        self._engine = engine
        self._waiters = waiters
        self._worker = worker
        self._wait_timeout = wait_timeout
        self._bounds = bounds
        self.surface = control.of("update")

    # Clients -------------------------------------------------------------------------------------

    async def update(self, request: Request) -> Response:
        started_at = asyncio.get_running_loop().time()
        ticket = await self._admit(request)
        # The client may wait for long. Its input is on disk, so its memory is released.
        request.body = b""
        view = await self._wait(request, ticket, started_at)
        return await self._answer(request, ticket, view)

    async def _admit(self, request: Request) -> Ticket:
        name = require_operation_name(request.params["name"], "update_name", self._bounds)
        body = bodies.decode(request.body, bodies.UpdateBody)
        if body.wait_policy is not UNSET:
            raise r.InvalidRequest("wait_policy", "is no longer supported; use wait_for")
        if body.wait_for not in (None, *STAGES):
            raise r.InvalidRequest("wait_for", f"must be one of {', '.join(STAGES)}")
        arguments, plain = read_input(body.input, "input")
        require_input_size(request, self._bounds, arguments, plain)
        target = command_target(request, body.request_id, f"{name}\0".encode(), arguments, plain)
        if arguments is None and plain is not None:
            arguments = await encode_for_run(self._engine.store, target, plain)
        self._waiters.require_room()
        admitted: Admitted = await self._engine.submit_knowing_workers(
            with_payloads(
                request,
                UpdateRun(
                    target,
                    name=name,
                    arguments=arguments,
                    count=count_arguments(arguments),
                    trace=read_carrier(body.observability_context),
                ),
            )
        )
        asked = body.wait_timeout_seconds
        timeout = self._wait_timeout if asked is None else asked * limits.SECOND
        return Ticket(
            namespace=request.namespace,
            workflow_id=request.params["workflow_id"],
            name=name,
            admitted=admitted,
            request_id=target.request_id,
            requested_run_id=target.run_id,
            wait_for=body.wait_for or "accepted",
            seconds=min(timeout, limits.UPDATE_WAIT_MAX) / limits.SECOND,
            asked=asked,
        )

    async def _wait(self, request: Request, ticket: Ticket, started_at: float) -> UpdateView:
        """The update when it reaches the requested stage, or when time is up."""
        admitted = ticket.admitted
        if admitted.accepted_at is not None and ticket.wait_for == "accepted":
            return UpdateView(status="accepted", accepted_at=admitted.accepted_at)
        read = ReadUpdate(ticket.namespace, admitted.run_id, admitted.update_id)
        with self._waiters.expecting(admitted.run_id, admitted.update_id) as waiter:
            request.watch(waiter.tell)
            while True:
                waiter.looked()
                view: UpdateView = await self._engine.submit(read)
                if view.status not in OPEN:
                    return view
                if view.status == "accepted" and ticket.wait_for == "accepted":
                    return view
                timeout = ticket.seconds
                if view.status == VALIDATING:
                    # The run itself refuses the update if no worker validates it in time.
                    timeout = limits.UPDATE_WAIT_MAX / limits.SECOND
                left = started_at + timeout - asyncio.get_running_loop().time()
                if left <= 0 or request.is_gone or self._waiters.is_closed:
                    return view
                await waiter.wait(min(left, limits.UPDATE_RELOOK / limits.SECOND))

    async def _answer(self, request: Request, ticket: Ticket, view: UpdateView) -> Response:
        admitted = ticket.admitted
        if view.status == VALIDATING:
            raise r.UpdateValidationNotClaimed(
                f"update {ticket.name} is still being validated",
                **_identity(ticket),
                retryable=True,
            )
        if view.refusal is not None:
            raise _refused(ticket, view.refusal)
        members: dict[str, Any] = {
            **_identity(ticket),
            "workflow_id": ticket.workflow_id,
            "requested_run_id": ticket.requested_run_id,
            "resolved_run_id": admitted.run_id,
            "workflow_type": admitted.workflow_type,
            "command_id": admitted.update_id,
            "command_status": "accepted",
            "command_source": "control_plane",
            "target_scope": "instance" if ticket.requested_run_id is None else "run",
            "wait_for": ticket.wait_for,
            "wait_timeout_seconds": ticket.asked,
            "wait_timed_out": False,
            "retained": admitted.retained,
            "intent_verified": ticket.request_id is not None,
        }
        if view.status == "accepted":
            members |= {
                "outcome": "update_accepted",
                "update_status": "accepted",
                "accepted_at": instant.text_or_none(view.accepted_at),
                "wait_timed_out": ticket.wait_for == "completed",
            }
            return self.surface.answer(request, 202, members)
        event = await self._final_event(ticket, view)
        payload = event.payload
        if event.event_type == "UpdateRejected":
            raise r.UpdateRejected(
                f"the run closed before update {ticket.name} was accepted",
                **_identity(ticket),
                outcome="rejected_not_active",
                rejection_reason="run_not_active",
            )
        members["closed_at"] = event.recorded_at
        if payload.failure_id is not None:
            message = payload.message or "the update failed"
            failed = {
                "outcome": "update_failed",
                "update_status": "failed",
                "failure_id": payload.failure_id,
                "failure_message": message,
                "failure_category": payload.failure_category,
                "failure": {"type": payload.exception_type, "message": message},
            }
            if ticket.wait_for == "accepted":
                # The request was to wait for acceptance, which was reached.
                return self.surface.answer(request, 200, {**members, **failed})
            raise r.UpdateFailed(message, **members, **failed)
        result = bytes(payload.result)
        value, _ = shown(result)
        members |= {
            "outcome": "update_completed",
            "update_status": "completed",
            "applied_at": event.recorded_at,
            "result": value,
            "result_envelope": None if result == b"null" else Raw(result),
        }
        return self.surface.answer(request, 200, members)

    async def _final_event(self, ticket: Ticket, view: UpdateView) -> _Event:
        """The event with the outcome of an update."""
        if view.event is not None:
            return _event_decoder.decode(view.event)
        store, run_id = self._engine.store, ticket.admitted.run_id
        if view.position is not None:
            (encoded,) = await store.read_history(run_id, view.position - 1, 1)
            return _event_decoder.decode(encoded)
        assert view.status == UNKNOWN
        # It ended long ago: search the history. Slow, and only for late repeats of a request.
        update_id = ticket.admitted.update_id
        for encoded in await store.read_history(run_id, 0, limits.HISTORY_READ_MAX):
            if update_id.encode() in encoded:
                event = _event_decoder.decode(encoded)
                if event.event_type in _FINAL_EVENTS and event.payload.update_id == update_id:
                    return event
        raise r.UpdateRejected(
            f"update {ticket.name} was refused; the reason is no longer stored", **_identity(ticket)
        )

    # Workers -------------------------------------------------------------------------------------

    async def approve(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.ValidationLease)
        run_id, report = _report(request, body)
        operation = ApproveUpdate(request.namespace, run_id, report)
        return await self._judge(request, body, operation)

    async def reject(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.RejectUpdateBody)
        run_id, report = _report(request, body)
        refusal = _refusal(body.failure)
        operation = RejectUpdate(request.namespace, run_id, report, refusal)
        return await self._judge(request, body, operation)

    async def _judge(
        self,
        request: Request,
        body: bodies.ValidationLease,
        operation: ApproveUpdate | RejectUpdate,
    ) -> Response:
        judged: VerdictResult = await self._engine.submit(operation)
        return self._worker.answer(
            200,
            {
                "update_validation_task_id": request.params["task_id"],
                "update_validation_attempt": body.update_validation_attempt,
                "lease_owner": body.lease_owner,
                "outcome": judged.outcome,
                "recorded": True,
                "reason": None,
            },
        )


def validation_task(
    delivery: ValidationDelivery, namespace: str, events: list[bytes]
) -> dict[str, Any]:
    """A leased validation in the form of the wire."""
    return {
        "task_kind": "update_validation",
        "task_id": delivery.task_id,
        "update_validation_task_id": delivery.task_id,
        "update_validation_attempt": delivery.attempt,
        "workflow_id": delivery.workflow_id,
        "run_id": delivery.run_id,
        "namespace": namespace,
        "workflow_type": delivery.workflow_type,
        "update_id": delivery.update_id,
        "update_name": delivery.update_name,
        "payload_codec": "avro",
        "workflow_arguments": Raw(delivery.arguments),
        "update_arguments": None
        if delivery.update_arguments is None
        else Raw(delivery.update_arguments),
        "history_events": Raw(b"[" + b",".join(events) + b"]"),
        "last_history_sequence": delivery.size.events,
        "task_queue": delivery.queue,
        "compatibility": delivery.build_id,
        "lease_owner": delivery.owner,
        "lease_expires_at": instant.text(delivery.lease_expires_at),
    }


def _identity(ticket: Ticket) -> dict[str, Any]:
    return {
        "run_id": ticket.admitted.run_id,
        "update_id": ticket.admitted.update_id,
        "update_name": ticket.name,
        "request_id": ticket.request_id,
    }


def _refused(ticket: Ticket, refusal: Refusal) -> r.Rejection:
    kind, retryable = REFUSALS[refusal.reason]
    details: dict[str, Any] = {
        **_identity(ticket),
        "outcome": refusal.reason,
        "update_status": "rejected",
        "rejection_reason": refusal.reason,
        "retryable": retryable,
    }
    if refusal.errors is not None:
        details["errors"] = Raw(refusal.errors)
    return kind(refusal.message, **details)


def _refusal(failure: bodies.ValidationFailure) -> Refusal:
    """The refusal of an update by a worker, cut to the bounds of what a run stores."""
    reason = failure.reason or r.UpdateValidatorRejected.reason
    if reason not in (r.UpdateValidatorRejected.reason, r.UpdateValidationFailed.reason):
        raise r.InvalidRequest("failure.reason", "is not a reason to refuse an update")
    message = failure.message[: limits.UPDATE_REFUSAL_MESSAGE_LENGTH_MAX]
    sent = failure.validation_errors
    errors = None if sent is UNSET else whole_body(bytes(sent))
    if errors is not None and (
        not errors.startswith(b"{") or len(errors) > limits.UPDATE_REFUSAL_ERRORS_BYTES_MAX
    ):
        errors = None
    return Refusal(reason, message or "the validator refused the update", errors)


def _report(request: Request, body: bodies.ValidationLease) -> tuple[str, TaskReport]:
    ref = parse_task_id(request.params["task_id"], "v")
    if ref is None:
        raise r.UpdateValidationNotFound("no validation of this namespace has this id")
    report = TaskReport(
        number=ref.number, owner=body.lease_owner, attempt=body.update_validation_attempt
    )
    return ref.run_id, report

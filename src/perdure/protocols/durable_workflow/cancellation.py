"""Cooperative cancellation on the wire: a client asks, workers deliver and acknowledge."""

from typing import Any

from perdure.core import instant, limits
from perdure.core.rejection import CooperativeCancellationUnavailable, InvalidRequest
from perdure.core.run.interruption import Acknowledged, Delivery
from perdure.core.run.state_parts import Boundary
from perdure.engine.activity_tasks import Acknowledgement
from perdure.engine.beat import Engine
from perdure.engine.cancellation import (
    AcknowledgeStop,
    DeliverCancellation,
    Observation,
    RequestCancellation,
    Requested,
)
from perdure.engine.run_commands import CommandTarget
from perdure.protocols.durable_workflow import bodies, tokens
from perdure.protocols.durable_workflow.surfaces import (
    ControlSurface,
    WorkerSurface,
    protocol_minor,
)
from perdure.protocols.durable_workflow.task_refs import attempt_ref, report_of, require_ref
from perdure.store.interface import Instance
from perdure.web.message import Request, Response

MINOR_MIN = 20
"""The minor version of the worker protocol that introduced cooperative cancellation."""


class Cancellations:
    """Handlers of cancellation requests, their delivery and their acknowledgement."""

    def __init__(self, engine: Engine, control: ControlSurface, worker: WorkerSurface) -> None:
        self._engine = engine
        self.surface = control.of("request_cancellation")
        self._worker = worker

    async def request(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.RequestCancellationBody)
        seconds = body.cleanup_timeout_seconds or limits.CLEANUP_TIMEOUT_SECONDS_DEFAULT
        target = CommandTarget(
            instance=Instance(request.namespace, request.params["workflow_id"]),
            run_id=request.params.get("run_id"),
        )
        done: Requested = await self._engine.submit(
            RequestCancellation(target, reason=body.reason or None, timeout_seconds=seconds)
        )
        answer = {
            "accepted": True,
            "duplicate": done.duplicate,
            "workflow_id": request.params["workflow_id"],
            "run_id": done.run_id,
            "workflow_type": done.workflow_type,
            "outcome": "cancellation_requested",
            "command_id": done.observation.request_id,
            "command_status": "accepted",
            "command_source": "control_plane",
            "target_scope": "run" if "run_id" in request.params else "instance",
            "cancellation_request": cancellation_request(done.observation),
        }
        return self.surface.answer(request, 200 if done.duplicate else 202, answer)

    async def deliver(self, request: Request) -> Response:
        require_cooperative_protocol(request)
        body = bodies.decode(request.body, bodies.DeliverCancellationBody)
        boundary = _boundary(body)
        ref = require_ref(request, "w")
        delivery: Delivery = await self._engine.submit(
            DeliverCancellation(
                request.namespace,
                ref.run_id,
                report_of(ref, body),
                request_id=body.request_id,
                boundary=boundary,
            )
        )
        waits = delivery.waiting is not None
        answer: dict[str, Any] = {
            "task_id": request.params["task_id"],
            "workflow_run_id": delivery.run_id,
            "workflow_task_attempt": body.workflow_task_attempt,
            "delivered": not waits,
            "reason": delivery.waiting,
            "claim_released": waits,
            "request_id": None if waits else body.request_id,
            "sequence": None if waits else boundary.sequence,
            "call_kind": None if waits else boundary.call_kind,
            "sequence_span": None if waits else boundary.span,
            "operation_sequence": None if waits else boundary.operation_sequence,
            "operation_sequence_span": None if waits else boundary.operation_span,
            "history_refresh_page_token": tokens.history_token(0),
        }
        return self._worker.answer(200, answer)

    async def acknowledge(self, request: Request) -> Response:
        require_cooperative_protocol(request)
        body = bodies.decode(request.body, bodies.AcknowledgeCancellationBody)
        ref = attempt_ref(request, body)
        done: Acknowledged = await self._engine.submit(AcknowledgeStop(ref, body.request_id))
        answer = {
            "task_id": request.params["task_id"],
            "activity_attempt_id": ref.attempt_id,
            "lease_owner": ref.owner,
            "request_id": body.request_id,
            "acknowledged": True,
            "duplicate": done.duplicate,
            "reason": None,
            "heartbeat_recorded": False,
            "history_event_id": done.event_id,
        }
        return self._worker.answer(200, answer)


def require_cooperative_protocol(request: Request) -> None:
    """Refuse workers of an older protocol and name the version that they need."""
    if protocol_minor(request) < MINOR_MIN:
        raise CooperativeCancellationUnavailable(
            f"cooperative cancellation needs worker protocol 1.{MINOR_MIN}",
            required_version=f"1.{MINOR_MIN}",
        )


def cancellation_request(observation: Observation) -> dict[str, str]:
    """A cancellation request. Its token reads the history from the beginning."""
    return {
        "request_id": observation.request_id,
        "requested_at": instant.text(observation.requested_at),
        "cleanup_deadline_at": instant.text(observation.deadline_at),
        "history_refresh_page_token": tokens.history_token(0),
    }


def acknowledgement_member(acknowledgement: Acknowledgement | None) -> dict[str, Any]:
    """The member that asks a worker to stop an attempt and to acknowledge it."""
    if acknowledgement is None:
        return {}
    member = {
        "request_id": acknowledgement.request_id,
        "root_request_id": acknowledgement.root_request_id,
        "cleanup_deadline_at": instant.text(acknowledgement.deadline_at),
        "cancellation_history_event_id": acknowledgement.event_id,
        "callback_state": "stopped" if acknowledgement.is_stopped else "unknown",
    }
    return {"cancellation_acknowledgement": member}


def _boundary(body: bodies.DeliverCancellationBody) -> Boundary:
    kind, operation = body.call_kind, body.operation_sequence
    if kind != "parallel" and body.sequence_span != 1:
        raise InvalidRequest("sequence_span", "must be 1 except for parallel calls")
    if kind != "selection_handle" and (operation, body.operation_sequence_span) != (None, 1):
        raise InvalidRequest(
            "operation_sequence", "is required with a selection handle, and not allowed otherwise"
        )
    if kind == "selection_handle":
        if operation is None:
            raise InvalidRequest("operation_sequence", "is required")
        if operation + body.operation_sequence_span > body.sequence:
            raise InvalidRequest("operation_sequence", "must name earlier steps")
    return Boundary(
        sequence=body.sequence,
        call_kind=kind,
        span=body.sequence_span,
        operation_sequence=operation,
        operation_span=body.operation_sequence_span,
    )

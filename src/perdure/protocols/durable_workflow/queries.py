"""Queries on both planes: clients ask, workers poll and report. Nothing is written to the store."""

import logging
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.bounds import Bounds
from perdure.core.fleet.worker import Worker, require_poll_allowed, require_taking
from perdure.core.maps import optional_members_of
from perdure.core.references import find_references
from perdure.core.rejection import HistoryDamaged, InvalidRequest, Rejection, WorkerNotRegistered
from perdure.dispatch.polls import PollStatus
from perdure.dispatch.query_broker import QueryBroker
from perdure.dispatch.query_delivery import QueryDelivery, deliver_query
from perdure.dispatch.query_messages import (
    QueryAnswer,
    QueryFailure,
    QueryLease,
    QueryReport,
    QueryView,
)
from perdure.dispatch.query_routing import QueryRouter, Question
from perdure.dispatch.query_table import QueryState
from perdure.engine.beat import Engine
from perdure.engine.payloads import require_payloads
from perdure.protocols.durable_workflow import bodies
from perdure.protocols.durable_workflow.inputs import read_input, require_operation_name
from perdure.protocols.durable_workflow.payloads import (
    blob_of_envelope,
    require_envelope,
    shown,
)
from perdure.protocols.durable_workflow.surfaces import ControlSurface, WorkerSurface
from perdure.store.interface import Instance, Unavailable
from perdure.web.message import Request, Response

log = logging.getLogger(__name__)

_NO_ARGUMENTS = {"codec": "avro", "blob": None}


class QueryPlane:
    """Handlers of `…/query/{name}` and `/api/worker/query-tasks/…`."""

    def __init__(
        self,
        engine: Engine,
        asking: QueryRouter,
        query_broker: QueryBroker,
        clock: Clock,
        surface: ControlSurface,
        worker_surface: WorkerSurface,
        *,
        poll_timeout: int,
        bounds: Bounds,
    ) -> None:
        self._engine = engine
        self._asking = asking
        self._query_broker = query_broker
        self._clock = clock
        self.surface = surface
        self._worker_surface = worker_surface
        self._poll_timeout = poll_timeout
        self._bounds = bounds

    # Clients -------------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Response:
        name = require_operation_name(request.params["name"], "query_name", self._bounds)
        body = bodies.decode(request.body, bodies.QueryBody)
        arguments, plain = read_input(body.input, "input")
        await self._require_payloads(request)
        question = Question(
            instance=Instance(request.namespace, request.params["workflow_id"]),
            run_id=request.params.get("run_id"),
            query_name=name,
            arguments=arguments,
            blob=None if arguments is None else blob_of_envelope(arguments),
            plain=plain,
        )
        try:
            run_id, answer = await self._asking.ask(question, request.watch)
        except Rejection as refusal:
            refusal.details.setdefault("query_name", name)
            refusal.details.setdefault("result", None)
            raise
        envelope = answer.envelope
        members = {
            "workflow_id": request.params["workflow_id"],
            "run_id": run_id,
            "target_scope": "run" if "run_id" in request.params else "instance",
            "query_name": name,
            "result": Raw(answer.result),
            "result_envelope": None if envelope is None else Raw(envelope),
            "reason": None,
        }
        return self.surface.answer(request, 200, members)

    async def _require_payloads(self, request: Request) -> None:
        """Require the external payloads in a query or its answer. They outlive every query."""
        references = find_references(request.body)
        if references:
            now = self._clock.now()
            await require_payloads(self._engine.store, request.namespace, references, now)

    # Workers -------------------------------------------------------------------------------------

    async def poll(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.QueryPollBody)
        timeout = bodies.poll_timeout(body.timeout_seconds, self._poll_timeout)
        health = self._engine.store.health
        health.require_pollable(is_hasty=timeout == 0)
        worker = await self._require_worker(request, body)
        lease = await self._query_broker.poll(
            worker,
            poll_id=body.poll_request_id or None,
            patience=timeout,
            watch=request.watch,
        )
        delivery = None if lease is None else await self._deliver(lease, worker)
        if lease is not None and request.is_gone:
            self._query_broker.give_back(lease)
        if lease is None:
            require_taking(worker, self._engine.rollouts.draining)
            if (error := health.trouble) is not None:
                raise error
        if delivery is None:
            has_workflow_types = bool(worker.workflow_types)
            status = PollStatus.EMPTY if has_workflow_types else PollStatus.NO_WORKFLOW_CAPABILITY
            return self._polled({"task": None, "poll_status": status.value})
        task = self._task(delivery)
        lease_view = {"owner": task["lease_owner"], "expires_at": task["lease_expires_at"]}
        return self._polled(
            {"task": task, "lease": lease_view, "poll_status": PollStatus.LEASED.value}
        )

    async def _deliver(self, lease: QueryLease, worker: Worker) -> QueryDelivery | None:
        """The query with its history. If the history cannot be read, the query fails."""
        try:
            delivery = await deliver_query(self._engine, lease, worker)
        except (Unavailable, HistoryDamaged, LookupError) as error:
            log.warning(
                "reading the history for query %s of run %s failed, so the query fails: %s",
                lease.query_id,
                lease.asked.run_id,
                error,
            )
            delivery = None
        if delivery is None:
            reason = "query_workflow_state_unavailable"
            failure = QueryFailure(reason, "the history of the run cannot be read")
            await self._query_broker.report(
                QueryReport(
                    namespace=lease.asked.namespace,
                    query_id=lease.query_id,
                    owner=lease.owner,
                    attempt=lease.attempt,
                    outcome=failure,
                )
            )
        return delivery

    async def _require_worker(self, request: Request, body: bodies.QueryPollBody) -> Worker:
        worker = await self._engine.find_worker((request.namespace, body.worker_id))
        if worker is None or worker.deregistered_at is not None:
            raise WorkerNotRegistered(
                f"worker {body.worker_id} is not registered", worker_id=body.worker_id
            )
        require_poll_allowed(worker, queue=body.task_queue, build_id=body.build_id or None)
        return worker

    def _polled(self, answer: dict[str, Any]) -> Response:
        answer["server_time"] = instant.text(self._clock.now())
        return self._worker_surface.answer(200, answer)

    def _task(self, delivery: QueryDelivery) -> dict[str, Any]:
        lease, arguments = delivery.lease, delivery.query_arguments
        asked = lease.asked
        trace = {} if delivery.trace is None else {"observability_context": Raw(delivery.trace)}
        return {
            **trace,
            "query_task_id": lease.query_id,
            "query_task_attempt": lease.attempt,
            "workflow_id": asked.workflow_id,
            "run_id": asked.run_id,
            "namespace": asked.namespace,
            "workflow_type": asked.workflow_type,
            "query_name": asked.query_name,
            "payload_codec": "avro",
            "workflow_arguments": Raw(delivery.workflow_arguments),
            "query_arguments": _NO_ARGUMENTS if arguments is None else Raw(arguments),
            "run_status": delivery.run_status,
            "last_history_sequence": len(delivery.events),
            "total_history_events": len(delivery.events),
            "history_events": Raw(b"[" + b",".join(delivery.events) + b"]"),
            "task_queue": asked.queue,
            "lease_owner": lease.owner,
            "lease_expires_at": instant.text(lease.expires_at),
            "query_admitted_at": instant.text(asked.admitted_at),
            "query_deadline_at": instant.text(asked.deadline_at),
            "server_time": instant.text(self._clock.now()),
        }

    async def show(self, request: Request) -> Response:
        """Whether a worker may continue its query. Does not renew the lease."""
        owner = request.query.get("lease_owner", "")
        attempt = request.query.get("query_task_attempt", "")
        if not owner or len(owner) > 255:
            raise InvalidRequest("lease_owner", "is required, with at most 255 characters")
        if not attempt.isascii() or not attempt.isdigit() or not 1 <= len(attempt) <= 9:
            raise InvalidRequest("query_task_attempt", "must be a whole number")
        view = await self._report(request, owner, int(attempt), None)
        can_continue = view.state == QueryState.LEASED
        return self._worker_surface.answer(
            200,
            {
                "query_task_id": request.params["query_task_id"],
                "query_task_attempt": view.attempt,
                "lease_owner": view.owner,
                "query_task_status": view.state,
                "can_continue": can_continue,
                "reason": None if can_continue else f"query_task_{view.state}",
                "lease_expires_at": instant.text(view.lease_expires_at),
                "query_admitted_at": instant.text(view.admitted_at),
                "query_deadline_at": instant.text(view.deadline_at),
                "server_time": instant.text(self._clock.now()),
            },
        )

    async def complete(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.CompleteQueryBody)
        answer = _answer(body)
        await self._require_payloads(request)
        await self._report(request, body.lease_owner, body.query_task_attempt, answer)
        return self._reported(request, body, {"outcome": "completed"})

    async def fail(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.FailQueryBody)
        members = body.failure
        failure = QueryFailure(
            (members.reason or "query_rejected")[:255],
            members.message[: limits.FAILURE_MESSAGE_LENGTH_MAX],
            None if members.type is None else members.type[:255],
            optional_members_of(members.validation_errors),
        )
        await self._report(request, body.lease_owner, body.query_task_attempt, failure)
        return self._reported(request, body, {"outcome": "failed", "reason": failure.reason})

    async def _report(
        self,
        request: Request,
        owner: str,
        attempt: int,
        outcome: QueryAnswer | QueryFailure | None,
    ) -> QueryView:
        return await self._query_broker.report(
            QueryReport(
                namespace=request.namespace,
                query_id=request.params["query_task_id"],
                owner=owner,
                attempt=attempt,
                outcome=outcome,
            )
        )

    def _reported(
        self, request: Request, body: bodies.QueryLeaseBody, outcome: dict[str, Any]
    ) -> Response:
        named = {
            "query_task_id": request.params["query_task_id"],
            "query_task_attempt": body.query_task_attempt,
        }
        return self._worker_surface.answer(200, {**named, **outcome, "status": 200})


def _answer(body: bodies.CompleteQueryBody) -> QueryAnswer:
    """A result as JSON, as an envelope, or both; missing JSON is decoded from the envelope."""
    result = b"null" if body.result is UNSET else bytes(body.result)
    envelope = b"null" if body.result_envelope is UNSET else bytes(body.result_envelope)
    try:
        msgspec.json.decode(result)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("result", "is not valid JSON") from None
    if envelope == b"null":
        return QueryAnswer(result)
    require_envelope(envelope, "result_envelope")
    if result == b"null" and len(envelope) <= limits.QUERY_MATCHED_BYTES_MAX:
        result = msgspec.json.encode(shown(envelope)[0])
    return QueryAnswer(result, envelope)

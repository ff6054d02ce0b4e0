"""Polls of workers, and the leased tasks that answer them."""

from collections.abc import Callable, Collection, Coroutine
from typing import Any

import msgspec

from perdure.clock import Clock
from perdure.core import instant
from perdure.core.bounds import Bounds
from perdure.core.rejection import HistoryDamaged, InvalidRequest
from perdure.core.run.history_budget import HistoryBudget
from perdure.core.run.operation import NO_TIMEOUTS, ActivityTimeouts, RetryPolicy
from perdure.dispatch.delivery import (
    ActivityDelivery,
    Delivery,
    ValidationDelivery,
    WorkflowDelivery,
)
from perdure.dispatch.parked_polls import ParkedPoller
from perdure.dispatch.polls import Poll, PollAnswer, Polling, PollStatus
from perdure.engine.beat import Engine
from perdure.protocols.durable_workflow import bodies
from perdure.protocols.durable_workflow.cancellation import cancellation_request
from perdure.protocols.durable_workflow.disk_reads import read_in_task
from perdure.protocols.durable_workflow.history_pages import (
    budget_members,
    history_page,
    page_size,
)
from perdure.protocols.durable_workflow.session_terms import terms_view
from perdure.protocols.durable_workflow.sessions import supports_sessions
from perdure.protocols.durable_workflow.surfaces import WorkerSurface
from perdure.protocols.durable_workflow.trace_context import trace_members
from perdure.protocols.durable_workflow.updates import validation_task
from perdure.web.message import DeferredResponse, Request, Response

_RESUME_MEMBERS = (
    "workflow_wait_kind",
    "open_wait_id",
    "resume_source_kind",
    "resume_source_id",
    "workflow_update_id",
    "workflow_signal_id",
    "signal_name",
    "signal_arguments",
    "signal_wait_id",
    "workflow_command_id",
    "activity_execution_id",
    "activity_attempt_id",
    "activity_type",
    "child_call_id",
    "child_workflow_run_id",
    "workflow_sequence",
    "workflow_event_type",
    "timer_id",
    "condition_wait_id",
    "condition_key",
    "condition_definition_fingerprint",
)
_NO_RESUME: dict[str, Any] = dict.fromkeys(_RESUME_MEMBERS)
_PROGRESS = ("workflow",)
_TASK_KINDS = frozenset({"workflow", "update_validation"})
_VALIDATION = ("update_validation",)

Answering = Coroutine[Any, Any, Response]
Finish = Callable[[Request, bodies.PollBody, Delivery], Response | Answering]


class ParkedPoll(DeferredResponse):
    """The response of a parked poll: made when a task is leased or its time is up."""

    __slots__ = ("_body", "_finish", "_poller", "_polls", "_request")

    def __init__(
        self,
        polls: "Polls",
        poller: ParkedPoller,
        request: Request,
        body: bodies.PollBody,
        finish: Finish,
    ) -> None:
        self.awaited = poller.answer
        self._polls = polls
        self._poller = poller
        self._request = request
        self._body = body
        self._finish = finish

    def answer(self) -> Response | Answering:
        polling = self._polls.polling
        delivery = polling.end(self._poller)
        if delivery is None:
            return self._polls.empty(polling.nothing_for(self._poller))
        return self._finish(self._request, self._body, delivery)


class Polls:
    """Handlers of `/api/worker/…/poll`."""

    def __init__(
        self,
        engine: Engine,
        polling: Polling,
        clock: Clock,
        surface: WorkerSurface,
        *,
        timeout: int,
        bounds: Bounds,
    ) -> None:
        self._engine = engine
        self.polling = polling
        self._clock = clock
        self._surface = surface
        self._timeout = timeout
        self._bounds = bounds
        self._budget = HistoryBudget(bounds)
        # Bound once: every parked poll holds one of them.
        self._finish_workflow: Finish = self._answer_workflow
        self._finish_activity: Finish = self._answer_activity

    def poll_workflow_task(self, request: Request) -> DeferredResponse | Answering:
        body = bodies.decode(request.body, bodies.PollBody)
        kinds = body.task_kinds or _PROGRESS
        if not _TASK_KINDS.issuperset(kinds):
            unknown = min(set(kinds) - _TASK_KINDS)
            raise InvalidRequest(
                "task_kinds",
                f"{unknown[:64]} is not a task kind; use workflow or update_validation",
            )
        return self._poll(request, body, "workflow", kinds, self._finish_workflow)

    def poll_update_validation(self, request: Request) -> DeferredResponse | Answering:
        body = bodies.decode(request.body, bodies.PollBody)
        return self._poll(request, body, "workflow", _VALIDATION, self._finish_workflow)

    def poll_activity_task(self, request: Request) -> DeferredResponse | Answering:
        body = bodies.decode(request.body, bodies.PollBody)
        return self._poll(request, body, "activity", _PROGRESS, self._finish_activity)

    def _poll(
        self,
        request: Request,
        body: bodies.PollBody,
        kind: str,
        tasks: Collection[str],
        finish: Finish,
    ) -> DeferredResponse | Answering:
        poll = Poll(
            namespace=request.namespace,
            worker_id=body.worker_id,
            queue=body.task_queue,
            kind=kind,
            timeout=bodies.poll_timeout(body.timeout_seconds, self._timeout),
            build_id=body.build_id or None,
            request_id=body.poll_request_id or None,
            page_size=page_size(body, self._bounds),
            progress="workflow" in tasks,
            validations="update_validation" in tasks,
            sessions=kind == "activity" and supports_sessions(request),
        )
        poller = self.polling.begin(poll, request.watch)
        if poller is None:
            return self._poll_in_task(request, body, poll, finish)
        return ParkedPoll(self, poller, request, body, finish)

    async def _poll_in_task(
        self, request: Request, body: bodies.PollBody, poll: Poll, finish: Finish
    ) -> Response:
        """A poll with a request id, or of a worker that this node has not loaded yet."""
        answer = await self.polling.poll(poll, request.watch)
        if answer.delivery is None:
            return self.empty(answer)
        response = finish(request, body, answer.delivery)
        return response if isinstance(response, Response) else await response

    def _answer_workflow(
        self, request: Request, body: bodies.PollBody, delivery: Delivery
    ) -> Response | Answering:
        events = None if isinstance(delivery, ActivityDelivery) else delivery.events
        if events is None:
            return self._answer_from_disk(request, body, delivery)
        return self._answer_with(request, body, delivery, events)

    async def _answer_from_disk(
        self, request: Request, body: bodies.PollBody, delivery: Delivery
    ) -> Response:
        assert not isinstance(delivery, ActivityDelivery)
        limit = delivery.size.events
        if isinstance(delivery, WorkflowDelivery):
            limit = delivery.page_size
        try:
            events = await read_in_task(self._engine.store.read_history(delivery.run_id, 0, limit))
        except HistoryDamaged:
            # The lease expires, and the task is not leased again while the history is damaged.
            return self.empty(PollAnswer(PollStatus.EMPTY))
        return self._answer_with(request, body, delivery, events)

    def _answer_with(
        self, request: Request, body: bodies.PollBody, delivery: Delivery, events: list[bytes]
    ) -> Response:
        if isinstance(delivery, ValidationDelivery):
            task = validation_task(delivery, request.namespace, events)
            task.update(budget_members(delivery.size, self._budget.of(delivery.size)))
            return self._leased(task)
        assert isinstance(delivery, WorkflowDelivery)
        task = _workflow_task(delivery, request.namespace)
        size = delivery.size
        encoding = body.accept_history_encoding
        task.update(history_page(events, 0, size, self._budget.of(size), encoding))
        return self._leased(task)

    def _answer_activity(
        self, request: Request, body: bodies.PollBody, delivery: Delivery
    ) -> Response:
        assert isinstance(delivery, ActivityDelivery)
        return self._leased(_activity_task(delivery, request.namespace))

    def empty(self, answer: PollAnswer) -> Response:
        return self._surface.answer(
            200,
            {
                "task": None,
                "poll_status": answer.status,
                "server_time": instant.once_text(self._clock.now()),
            },
        )

    def _leased(self, task: dict[str, Any]) -> Response:
        lease = {"owner": task["lease_owner"], "expires_at": task["lease_expires_at"]}
        return self._surface.answer(
            200,
            {
                "task": task,
                "lease": lease,
                "poll_status": PollStatus.LEASED,
                "server_time": instant.once_text(self._clock.now()),
            },
        )


def _workflow_task(delivery: WorkflowDelivery, namespace: str) -> dict[str, Any]:
    task = {
        "task_id": delivery.task_id,
        "task_kind": "workflow",
        "workflow_id": delivery.workflow_id,
        "run_id": delivery.run_id,
        "namespace": namespace,
        "workflow_type": delivery.workflow_type,
        "workflow_task_attempt": delivery.attempt,
        "payload_codec": "avro",
        "arguments": msgspec.Raw(delivery.arguments),
        "run_status": delivery.run_status,
        "task_queue": delivery.queue,
        "compatibility": delivery.build_id,
        "lease_owner": delivery.owner,
        "lease_expires_at": instant.text(delivery.lease_expires_at),
        "last_history_sequence": delivery.size.events,
        "cancel_requested": False,
        **_NO_RESUME,
        **delivery.resume,
    }
    if delivery.signal_arguments is not None:
        task["signal_arguments"] = msgspec.Raw(delivery.signal_arguments)
    if delivery.replay_mode is not None:
        task["sticky_replay_mode"] = delivery.replay_mode
    if delivery.cancellation is not None:
        task["cancellation_request"] = cancellation_request(delivery.cancellation)
    if delivery.trace is not None or delivery.links:
        task |= trace_members(
            delivery.trace,
            delivery.links,
            task_id=delivery.task_id,
            run_id=delivery.run_id,
            namespace=namespace,
        )
    return task


def _activity_task(delivery: ActivityDelivery, namespace: str) -> dict[str, Any]:
    task: dict[str, Any] = {
        "task_id": delivery.task_id,
        "workflow_id": delivery.workflow_id,
        "run_id": delivery.run_id,
        "namespace": namespace,
        "activity_execution_id": delivery.execution_id,
        "activity_attempt_id": delivery.attempt_id,
        "attempt_number": delivery.attempt,
        "activity_type": delivery.activity_type,
        "payload_codec": "avro",
        "arguments": msgspec.Raw(delivery.arguments),
        "task_queue": delivery.queue,
        "lease_owner": delivery.owner,
        "lease_expires_at": instant.text(delivery.lease_expires_at),
    }
    if delivery.trace is not None:
        task["observability_context"] = msgspec.Raw(delivery.trace)
    if delivery.retry is not None or delivery.timeouts != NO_TIMEOUTS:
        task["retry_policy"] = _policy(delivery.retry, delivery.timeouts)
    if delivery.session is not None:
        task["worker_session"] = terms_view(delivery.session)
    if delivery.deadlines:
        task["deadlines"] = {kind: instant.text(at) for kind, at in delivery.deadlines.items()}
    return task


def _policy(retry: RetryPolicy | None, timeouts: ActivityTimeouts) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "snapshot_version": 1,
        "max_attempts": 1 if retry is None else retry.attempts_max,
        "backoff_seconds": [] if retry is None else retry.backoff_seconds,
        "non_retryable_error_types": [] if retry is None else retry.non_retryable_types,
    }
    for name in ("start_to_close", "schedule_to_start", "schedule_to_close", "heartbeat"):
        seconds = getattr(timeouts, name)
        if seconds is not None:
            policy[f"{name}_timeout"] = seconds
    return policy

"""The worker plane: registration, heartbeats, and reports on leased tasks."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec import UNSET

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.bounds import Bounds, Reached
from perdure.core.fleet.contract import COOPERATIVE_CANCELLATION, PREPARED_LOCAL_ACTIVITIES
from perdure.core.fleet.worker import Cadence, Worker
from perdure.core.maps import members_of, optional_members_of
from perdure.core.references import MARK
from perdure.core.rejection import (
    InvalidPageToken,
    Rejection,
    ResultTooLarge,
    RunCancelled,
    RunClosed,
    RunTerminated,
    StaleAttempt,
)
from perdure.core.run.activity import Reported, result_too_large
from perdure.core.run.command import ScheduleActivity
from perdure.core.run.history_budget import HistoryBudget
from perdure.core.run.state import TaskRef
from perdure.dispatch.polls import Polling
from perdure.engine.activity_tasks import (
    AskActivity,
    AttemptRef,
    AttemptView,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    Recorded,
    RenewActivity,
)
from perdure.engine.beat import Engine
from perdure.engine.cancellation import observe
from perdure.engine.fleet import (
    DeregisterWorker,
    HeartbeatWorker,
    RegisterWorker,
    WorkerReport,
)
from perdure.engine.leasing import Leasing
from perdure.engine.reply import Reply
from perdure.engine.streams import CompleteStreamingTask, directives_of
from perdure.engine.workflow_tasks import (
    CompleteWorkflowTask,
    FailWorkflowTask,
    Page,
    PageWorkflowTask,
    Renewed,
    RenewWorkflowTask,
    TaskCompleted,
)
from perdure.identity import IdSource
from perdure.protocols.durable_workflow import bodies, tokens
from perdure.protocols.durable_workflow.cancellation import (
    acknowledgement_member,
    cancellation_request,
    require_cooperative_protocol,
)
from perdure.protocols.durable_workflow.commands import (
    CompleteTaskBody,
    sticky_duration,
    translate_commands,
)
from perdure.protocols.durable_workflow.disk_reads import read_in_task
from perdure.protocols.durable_workflow.history_pages import history_page, page_size
from perdure.protocols.durable_workflow.inputs import require_own_signals
from perdure.protocols.durable_workflow.memos import inline_memos
from perdure.protocols.durable_workflow.message_streams import read_consumption
from perdure.protocols.durable_workflow.payloads import (
    is_envelope,
    require_envelope,
    require_plain,
    require_storable,
)
from perdure.protocols.durable_workflow.polls import Polls
from perdure.protocols.durable_workflow.references import with_payloads
from perdure.protocols.durable_workflow.repeats import find_recorded_outcome
from perdure.protocols.durable_workflow.sessions import (
    require_sessions,
    standing_view,
)
from perdure.protocols.durable_workflow.sizes import find_exceeded, require_command_sizes
from perdure.protocols.durable_workflow.surfaces import WorkerSurface, encode
from perdure.protocols.durable_workflow.task_refs import attempt_ref, report_of, require_ref
from perdure.web.message import DeferredResponse, Request, Response

T = TypeVar("T")


class WorkerPlane:
    """Handlers of `/api/worker/…`."""

    def __init__(
        self,
        engine: Engine,
        polling: Polling,
        leasing: Leasing,
        clock: Clock,
        ids: IdSource,
        surface: WorkerSurface,
        *,
        poll_timeout: int,
        cadence: Cadence,
        bounds: Bounds,
    ) -> None:
        self._cadence = cadence
        self._engine = engine
        self.polls = Polls(engine, polling, clock, surface, timeout=poll_timeout, bounds=bounds)
        self._bounds = bounds
        self._budget = HistoryBudget(bounds)
        self._leasing = leasing
        self._clock = clock
        self._ids = ids
        self._surface = surface

    # Registration --------------------------------------------------------------------------------

    async def register(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.RegisterBody)
        if {COOPERATIVE_CANCELLATION, PREPARED_LOCAL_ACTIVITIES} & set(body.capabilities or ()):
            require_cooperative_protocol(request)
        _require_storable_members(body, "workflow_command_contracts", "capability_manifest")
        bodies.check_vitals(body)
        _require_storable_members(body, "task_slots", "process_metrics")
        contracts = members_of(body.workflow_command_contracts)
        require_own_signals(contracts)
        registration = Worker(
            namespace=request.namespace,
            worker_id=body.worker_id or self._ids.ulid().upper(),
            queue=body.task_queue,
            runtime=body.runtime,
            registered_at=0,
            heartbeat_at=0,
            registration_token="",
            sdk_version=body.sdk_version,
            build_id=body.build_id or None,
            workflow_types=body.supported_workflow_types or [],
            activity_types=body.supported_activity_types or [],
            fingerprints=members_of(body.workflow_definition_fingerprints),
            contracts=contracts,
            capabilities=body.capabilities or [],
            capability_manifest=members_of(body.capability_manifest),
            workflow_slots=_default(body.max_concurrent_workflow_tasks, 100),
            activity_slots=_default(body.max_concurrent_activity_tasks, 100),
            session_slots=_default(body.max_concurrent_worker_sessions, 10),
            task_slots=members_of(body.task_slots),
            process_metrics=members_of(body.process_metrics),
            heartbeat_interval_seconds=body.heartbeat_interval_seconds,
            stale_after=self._cadence.stale_after,
        )
        tells_types = body.supported_workflow_types is not None
        worker: Worker = await self._engine.submit(
            RegisterWorker(registration, self._ids.token(), tells_types=tells_types)
        )
        return self._surface.answer(
            201,
            {
                "worker_id": worker.worker_id,
                "registered": True,
                "namespace": worker.namespace,
                "task_queue": worker.queue,
                "runtime": worker.runtime,
                "build_id": worker.build_id,
                "status": worker.status(worker.heartbeat_at, self._engine.rollouts.draining),
                "registration_token": worker.registration_token,
                **self._heartbeat_members(worker),
            },
        )

    async def heartbeat_worker(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.WorkerHeartbeatBody)
        bodies.check_vitals(body)
        _require_storable_members(body, "task_slots", "process_metrics")
        report = WorkerReport(
            task_slots=optional_members_of(body.task_slots),
            process_metrics=optional_members_of(body.process_metrics),
            heartbeat_interval_seconds=body.heartbeat_interval_seconds,
        )
        worker: Worker = await self._engine.submit(
            HeartbeatWorker(request.namespace, body.worker_id, report)
        )
        answer = {
            "worker_id": worker.worker_id,
            "acknowledged": True,
            **self._heartbeat_members(worker),
        }
        return self._surface.answer(200, answer)

    def _heartbeat_members(self, worker: Worker) -> dict[str, int]:
        own = worker.heartbeat_interval_seconds
        return {
            "heartbeat_interval_seconds": own or self._cadence.heartbeat_interval_seconds,
            "stale_after_seconds": worker.stale_after // limits.SECOND,
        }

    async def deregister(self, request: Request) -> Response:
        return await self._deregistered(request, None)

    async def deregister_fenced(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.DeregisterBody)
        return await self._deregistered(request, body.registration_token)

    async def _deregistered(self, request: Request, token: str | None) -> Response:
        worker: Worker = await self._engine.submit(
            DeregisterWorker(request.namespace, request.params["worker_id"], token)
        )
        answer: dict[str, Any] = {
            "worker_id": worker.worker_id,
            "outcome": "deregistered",
            "recovered_workflow_task_count": worker.recovered_workflow_tasks,
        }
        if token is not None:
            answer["registration_token"] = token
        return self._surface.answer(200, answer)

    # Workflow tasks ------------------------------------------------------------------------------

    async def page_history(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.HistoryPageBody)
        ref = require_ref(request, "w")
        after = tokens.parse_history_token(body.next_history_page_token)
        limit = page_size(body, self._bounds)
        page: Page = await self._engine.submit(
            PageWorkflowTask(
                request.namespace, ref.run_id, report_of(ref, body), after=after, limit=limit
            )
        )
        size = page.size
        if after > size.events:
            raise InvalidPageToken("the page token points past the end of the history")
        events = page.events
        if events is None:
            events = await read_in_task(self._engine.store.read_history(ref.run_id, after, limit))
            events = events[: max(size.events - after, 0)]
        encoding = body.accept_history_encoding
        answer = {
            "task_id": request.params["task_id"],
            "workflow_task_attempt": body.workflow_task_attempt,
            **history_page(events, after, size, self._budget.of(size), encoding),
        }
        return self._surface.answer(200, answer)

    async def heartbeat_workflow_task(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.TaskLease)
        ref = require_ref(request, "w")
        renewed: Renewed = await self._engine.submit(
            RenewWorkflowTask(
                request.namespace,
                ref.run_id,
                report_of(ref, body),
                timeout=self._leasing.workflow_timeout,
            )
        )
        answer = {
            "task_id": request.params["task_id"],
            "workflow_task_attempt": body.workflow_task_attempt,
            "lease_owner": body.lease_owner,
            "renewed": True,
            "lease_expires_at": instant.text(renewed.lease_expires_at),
            "run_status": renewed.run_status,
            "task_status": "leased",
            "reason": None,
        }
        if renewed.cancellation is not None:
            answer["cancellation_request"] = cancellation_request(observe(renewed.cancellation))
        return self._surface.answer(200, answer)

    def complete_workflow_task(
        self, request: Request
    ) -> DeferredResponse | Coroutine[Any, Any, Response]:
        body = bodies.decode(request.body, CompleteTaskBody)
        ref = require_ref(request, "w")
        if request.body.find(MARK) >= 0:
            return self._complete_with_memos(request, body, ref)
        return Completing(self._completed(request, body, ref), request, body, self._surface)

    async def _complete_with_memos(
        self, request: Request, body: CompleteTaskBody, ref: TaskRef
    ) -> Response:
        store = self._engine.store
        await read_in_task(inline_memos(store, request.namespace, body.commands, self._bounds))
        done: TaskCompleted = await self._completed(request, body, ref)
        return self._surface.answer(200, _task_answer(request, body, done))

    def _completed(self, request: Request, body: CompleteTaskBody, ref: TaskRef) -> Reply:
        commands = translate_commands(body.commands, self._bounds)
        require_command_sizes(request, self._bounds, commands)
        for command in commands:
            if isinstance(command, ScheduleActivity) and command.session is not None:
                require_sessions(request)
        kind = CompleteStreamingTask if directives_of(commands) else CompleteWorkflowTask
        return self._engine.submit(
            with_payloads(
                request,
                kind(
                    request.namespace,
                    ref.run_id,
                    report_of(ref, body),
                    commands,
                    read_consumption(body),
                    sticky_duration(body, ref.run_id),
                ),
            )
        )

    async def fail_workflow_task(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.FailTaskBody)
        ref = require_ref(request, "w")
        failure = body.failure
        done: TaskCompleted = await self._engine.submit(
            FailWorkflowTask(
                request.namespace,
                ref.run_id,
                report_of(ref, body),
                failure_type=None if failure.type is None else failure.type[:255],
                message=failure.message[:2000],
            )
        )
        return self._surface.answer(200, _task_answer(request, body, done))

    # Activity tasks ------------------------------------------------------------------------------

    def complete_activity(
        self, request: Request
    ) -> DeferredResponse | Coroutine[Any, Any, Response]:
        body = bodies.decode(request.body, bodies.CompleteActivityBody)
        ref = attempt_ref(request, body)
        encoded = b"null" if body.result is UNSET else bytes(body.result)
        result = None if encoded == b"null" else encoded
        plain = result is not None and not is_envelope(result)
        if result is not None:
            (require_plain if plain else require_envelope)(result, "result")
            reached = find_exceeded(request, self._bounds, result)
            if reached is not None:
                return self._fail_oversized(request, ref, reached)
        operation = with_payloads(request, CompleteActivity(ref, result, plain=plain))
        return Reporting(self._engine.submit(operation), request, ref, self, "completed", None)

    async def _fail_oversized(
        self, request: Request, ref: AttemptRef, reached: Reached
    ) -> Response:
        """Fail the activity if its result is too large to store: a retry would produce it again."""
        failure = result_too_large(reached)
        try:
            await self._engine.submit(FailActivity(ref, failure))
        except (StaleAttempt, RunClosed, RunCancelled, RunTerminated) as refused:
            await self.repeated_outcome(request, ref, "failed", failure.message, refused)
        raise ResultTooLarge(failure.message, **reached._asdict(), outcome="failed", recorded=True)

    def fail_activity(self, request: Request) -> DeferredResponse:
        body = bodies.decode(request.body, bodies.FailActivityBody)
        ref = attempt_ref(request, body)
        failure = _reported(body.failure)
        operation = with_payloads(request, FailActivity(ref, failure))
        recorded = self._engine.submit(operation)
        return Reporting(recorded, request, ref, self, "failed", failure.message)

    def outcome_answer(
        self, request: Request, ref: AttemptRef, outcome: str, next_task_id: str | None
    ) -> Response:
        return self._surface.answer(
            200,
            {
                "task_id": request.params["task_id"],
                "activity_attempt_id": ref.attempt_id,
                "outcome": outcome,
                "recorded": True,
                "reason": None,
                "next_task_id": next_task_id,
            },
        )

    async def repeated_outcome(
        self,
        request: Request,
        ref: AttemptRef,
        outcome: str,
        message: str | None,
        refused: Rejection,
    ) -> Response:
        """Repeat the answer to a report that was accepted before."""
        known = await read_in_task(find_recorded_outcome(self._engine.store, ref, message))
        if known == outcome:
            return self.outcome_answer(request, ref, outcome, None)
        if isinstance(refused, StaleAttempt):
            raise refused
        raise type(refused)(refused.message, **{**refused.details, **_ignored(known)})

    async def heartbeat_activity(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.ActivityHeartbeatBody)
        _require_storable_members(body, "details")
        ref = attempt_ref(request, body)
        members = {
            "message": body.message,
            "current": body.current,
            "total": body.total,
            "unit": body.unit,
            "details": optional_members_of(body.details),
        }
        progress = {key: value for key, value in members.items() if value is not None}
        operation = HeartbeatActivity(
            ref,
            timeout=self._leasing.activity_timeout,
            progress=encode(progress) if progress else None,
        )
        view: AttemptView = await self._engine.submit(operation)
        return self._surface.answer(200, _attempt_answer(request, ref, view))

    async def ask_activity(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.AttemptLease)
        ref = attempt_ref(request, body)
        view: AttemptView = await self._engine.submit(AskActivity(ref))
        deadlines = {kind: instant.text(at) for kind, at in view.deadlines.items()}
        answer = {
            **_attempt_answer(request, ref, view),
            "deadlines": deadlines or None,
            "worker_session": standing_view(view.session),
            **acknowledgement_member(view.acknowledgement),
        }
        return self._surface.answer(200, answer)

    async def renew_activity(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.AttemptLease)
        ref = attempt_ref(request, body)
        view: AttemptView = await self._engine.submit(
            RenewActivity(ref, timeout=self._leasing.activity_timeout)
        )
        answer: dict[str, Any] = {
            "workflow_task_id": request.params["task_id"],
            "workflow_instance_id": view.workflow_id,
            "workflow_run_id": ref.run_id,
            "activity_execution_id": view.execution_id,
            "activity_attempt_id": ref.attempt_id,
            "attempt_number": view.attempt_number,
            "lease_owner": ref.owner,
            "lease_renewed": True,
            "can_continue": True,
            "cancel_requested": False,
            "heartbeat_recorded": False,
            "reason": None,
            "server_time": instant.once_text(self._clock.now()),
            "lease_expires_at": instant.text_or_none(view.lease_expires_at),
        }
        if view.heartbeat_at is not None:
            answer["last_heartbeat_at"] = instant.text(view.heartbeat_at)
        if "heartbeat" in view.deadlines:
            answer["heartbeat_deadline_at"] = instant.text(view.deadlines["heartbeat"])
        return self._surface.answer(200, answer)


class Completing(DeferredResponse):
    """The response to a completed workflow task, sent after the commit."""

    __slots__ = ("_body", "_request", "_surface")

    def __init__(
        self, done: Reply, request: Request, body: CompleteTaskBody, surface: WorkerSurface
    ) -> None:
        self.awaited = done
        self._request = request
        self._body = body
        self._surface = surface

    def answer(self) -> Response:
        done: TaskCompleted = self.awaited.result()
        return self._surface.answer(200, _task_answer(self._request, self._body, done))


class Reporting(DeferredResponse):
    """The response to an activity outcome, sent after the commit."""

    __slots__ = ("_message", "_outcome", "_plane", "_ref", "_request")

    def __init__(
        self,
        recorded: Reply,
        request: Request,
        ref: AttemptRef,
        plane: WorkerPlane,
        outcome: str,
        message: str | None,
    ) -> None:
        self.awaited = recorded
        self._request = request
        self._ref = ref
        self._plane = plane
        self._outcome = outcome
        self._message = message

    def answer(self) -> Response | Coroutine[Any, Any, Response]:
        try:
            recorded: Recorded = self.awaited.result()
        except (StaleAttempt, RunClosed, RunCancelled, RunTerminated) as refused:
            return self._plane.repeated_outcome(
                self._request, self._ref, self._outcome, self._message, refused
            )
        return self._plane.outcome_answer(
            self._request, self._ref, self._outcome, recorded.next_task_id
        )


def _ignored(known: str | None) -> dict[str, object]:
    """The state of a task whose report came after its run closed.

    A task with a recorded outcome was completed; any other was cancelled with its run.
    """
    ended = known or "cancelled"
    return {
        "outcome": "ignored",
        "task_status": "cancelled" if known is None else "completed",
        "activity_status": ended,
        "attempt_status": ended,
        "lease_owner": None,
        "lease_expires_at": None,
    }


def _default(given: int | None, default: int) -> int:
    return default if given is None else given


def _require_storable_members(body: bodies.Body, *names: str) -> None:
    """Refuse free-form members that cannot be stored."""
    for name in names:
        require_storable(members_of(getattr(body, name)), name)


def _task_answer(request: Request, body: bodies.TaskLease, done: TaskCompleted) -> dict[str, Any]:
    receipt = done.receipt
    failed = receipt.outcome == "failed"
    late = {"close_held_back": True, "late_signals": receipt.late_signals}
    return {
        "task_id": request.params["task_id"],
        "workflow_task_attempt": body.workflow_task_attempt,
        "outcome": receipt.outcome,
        "recorded": True,
        "run_id": done.run_id,
        "run_status": done.run_status,
        "created_task_ids": [] if failed else receipt.created_task_ids,
        "next_task_id": receipt.created_task_ids[0] if failed else None,
        "reason": None,
        **(late if receipt.late_signals else {}),
    }


def _reported(failure: bodies.ActivityFailure) -> Reported:
    details = None if failure.details is UNSET else bytes(failure.details)
    return Reported(
        message=failure.message[: limits.FAILURE_MESSAGE_LENGTH_MAX],
        exception_type=failure.type,
        exception_class=failure.class_,
        code=failure.code,
        non_retryable=bool(failure.non_retryable) or failure.retryable is False,
        stack_trace=failure.stack_trace,
        details=None if details == b"null" else details,
        timeout_kind=failure.timeout_type if failure.kind == "timeout" else None,
        cancelled=bool(failure.cancelled) or failure.kind == "cancellation",
    )


def _attempt_answer(request: Request, ref: AttemptRef, view: AttemptView) -> dict[str, Any]:
    return {
        "task_id": request.params["task_id"],
        "activity_attempt_id": ref.attempt_id,
        "lease_owner": ref.owner,
        "can_continue": view.can_continue,
        "cancel_requested": view.cancel_requested,
        "reason": view.reason,
        "heartbeat_recorded": view.recorded,
        "last_heartbeat_at": instant.text_or_none(view.heartbeat_at),
        "lease_expires_at": instant.text_or_none(view.lease_expires_at),
        "run_closed_reason": view.run_closed_reason,
        "run_closed_at": instant.text_or_none(view.run_closed_at),
    }

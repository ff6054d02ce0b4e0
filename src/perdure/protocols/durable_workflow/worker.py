"""The worker plane: registration, polls, and reports on leased tasks."""

import asyncio
import base64
import zlib
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.fleet.contract import COOPERATIVE_CANCELLATION, PREPARED_LOCAL_ACTIVITIES
from perdure.core.fleet.worker import Cadence, Worker
from perdure.core.references import MARK
from perdure.core.rejection import (
    InvalidPageToken,
    InvalidRequest,
    RunCancelled,
    RunClosed,
    RunTerminated,
    StaleAttempt,
)
from perdure.core.run.activity import Reported
from perdure.core.run.command import ScheduleActivity
from perdure.core.run.operation import NO_TIMEOUTS, ActivityTimeouts, RetryPolicy
from perdure.dispatch.delivery import ActivityDelivery, ValidationDelivery, WorkflowDelivery
from perdure.dispatch.polling import Poll, PollAnswer, Polling
from perdure.engine.activity_tasks import (
    AskActivity,
    AttemptOperation,
    AttemptRef,
    AttemptView,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    Recorded,
    RenewActivity,
)
from perdure.engine.beat import Engine
from perdure.engine.cancelling import observe
from perdure.engine.fleet import (
    DeregisterWorker,
    HeartbeatWorker,
    RegisterWorker,
    WorkerReport,
)
from perdure.engine.granting import Granting
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
from perdure.protocols.durable_workflow.cancelling import (
    acknowledgement_member,
    cancellation_request,
    require_cooperative_protocol,
)
from perdure.protocols.durable_workflow.commands import (
    CompleteTaskBody,
    keeping_time,
    translate_commands,
)
from perdure.protocols.durable_workflow.inputs import require_own_signals
from perdure.protocols.durable_workflow.memos import inline_memos
from perdure.protocols.durable_workflow.message_streams import read_consumption
from perdure.protocols.durable_workflow.payloads import (
    is_envelope,
    require_envelope,
    require_plain,
    require_storable,
)
from perdure.protocols.durable_workflow.references import naming
from perdure.protocols.durable_workflow.repeats import find_recorded_outcome
from perdure.protocols.durable_workflow.session_terms import terms_view
from perdure.protocols.durable_workflow.sessions import (
    knows_sessions,
    require_sessions,
    standing_view,
)
from perdure.protocols.durable_workflow.surfaces import WorkerSurface, encode
from perdure.protocols.durable_workflow.task_refs import attempt_ref, report_of, require_ref
from perdure.protocols.durable_workflow.tracing import trace_members
from perdure.protocols.durable_workflow.updates import validation_task
from perdure.web.message import Request, Response

T = TypeVar("T")

_RESUME_MEMBERS = (
    "workflow_wait_kind",
    "open_wait_id",
    "resume_source_kind",
    "resume_source_id",
    "workflow_update_id",
    "workflow_signal_id",
    "signal_name",
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


class WorkerPlane:
    """Handlers of `/api/worker/…`."""

    def __init__(
        self,
        engine: Engine,
        polling: Polling,
        granting: Granting,
        clock: Clock,
        ids: IdSource,
        surface: WorkerSurface,
        *,
        poll_timeout: int,
        cadence: Cadence,
    ) -> None:
        self._cadence = cadence
        self._engine = engine
        self._polling = polling
        self._granting = granting
        self._clock = clock
        self._ids = ids
        self._surface = surface
        self._poll_timeout = poll_timeout

    # Registration --------------------------------------------------------------------------------

    async def register(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.RegisterBody)
        if {COOPERATIVE_CANCELLATION, PREPARED_LOCAL_ACTIVITIES} & set(body.capabilities or ()):
            require_cooperative_protocol(request)
        _check_told(body, "workflow_command_contracts", "capability_manifest")
        bodies.check_vitals(body)
        _check_told(body, "task_slots", "process_metrics")
        require_own_signals(body.workflow_command_contracts or {})
        offered = Worker(
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
            fingerprints=body.workflow_definition_fingerprints or {},
            contracts=body.workflow_command_contracts or {},
            capabilities=body.capabilities or [],
            capability_manifest=body.capability_manifest or {},
            workflow_slots=_or(body.max_concurrent_workflow_tasks, 100),
            activity_slots=_or(body.max_concurrent_activity_tasks, 100),
            session_slots=_or(body.max_concurrent_worker_sessions, 10),
            task_slots=body.task_slots or {},
            process_metrics=body.process_metrics or {},
            heartbeat_interval_seconds=body.heartbeat_interval_seconds,
            stale_after=self._cadence.stale_after,
        )
        tells_types = body.supported_workflow_types is not None
        worker: Worker = await self._engine.submit(
            RegisterWorker(offered, self._ids.token(), tells_types=tells_types)
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
                "status": "active",
                "registration_token": worker.registration_token,
                **self._rhythm(worker),
            },
        )

    async def heartbeat_worker(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.WorkerHeartbeatBody)
        bodies.check_vitals(body)
        _check_told(body, "task_slots", "process_metrics")
        report = WorkerReport(
            task_slots=body.task_slots,
            process_metrics=body.process_metrics,
            heartbeat_interval_seconds=body.heartbeat_interval_seconds,
        )
        worker: Worker = await self._engine.submit(
            HeartbeatWorker(request.namespace, body.worker_id, report)
        )
        answer = {"worker_id": worker.worker_id, "acknowledged": True, **self._rhythm(worker)}
        return self._surface.answer(200, answer)

    def _rhythm(self, worker: Worker) -> dict[str, int]:
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

    # Polls ---------------------------------------------------------------------------------------

    async def poll_workflow_task(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.PollBody)
        kinds = body.task_kinds or _PROGRESS
        if not _TASK_KINDS.issuperset(kinds):
            unknown = min(set(kinds) - _TASK_KINDS)
            raise InvalidRequest("task_kinds", f"{unknown[:64]} is no kind of task")
        answer = await self._poll(request, body, "workflow", kinds)
        delivery = answer.delivery
        if not isinstance(delivery, WorkflowDelivery):
            if isinstance(delivery, ValidationDelivery):
                return await self._validation(request, answer, delivery)
            return self._empty(answer)
        events = delivery.events
        if events is None:
            store = self._engine.store
            events = await _apart(store.read_history(delivery.run_id, 0, delivery.page_size))
        task = _workflow_task(delivery, request.namespace)
        task.update(_page(events, 0, delivery.history_count, body.accept_history_encoding))
        return self._leased(answer, task)

    async def poll_update_validation(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.PollBody)
        answer = await self._poll(request, body, "workflow", {"update_validation"})
        delivery = answer.delivery
        if not isinstance(delivery, ValidationDelivery):
            return self._empty(answer)
        return await self._validation(request, answer, delivery)

    async def _validation(
        self, request: Request, answer: PollAnswer, delivery: ValidationDelivery
    ) -> Response:
        events = delivery.events
        if events is None:
            store = self._engine.store
            events = await store.read_history(delivery.run_id, 0, delivery.history_count)
        return self._leased(answer, validation_task(delivery, request.namespace, events))

    async def poll_activity_task(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.PollBody)
        answer = await self._poll(request, body, "activity")
        delivery = answer.delivery
        if not isinstance(delivery, ActivityDelivery):
            return self._empty(answer)
        return self._leased(answer, _activity_task(delivery, request.namespace))

    def _poll(
        self,
        request: Request,
        body: bodies.PollBody,
        kind: str,
        tasks: Collection[str] = _PROGRESS,
    ) -> Coroutine[Any, Any, PollAnswer]:
        timeout = self._poll_timeout
        if body.timeout_seconds is not None:
            timeout = min(body.timeout_seconds * limits.SECOND, limits.POLL_TIMEOUT_MAX)
        poll = Poll(
            namespace=request.namespace,
            worker_id=body.worker_id,
            queue=body.task_queue,
            kind=kind,
            timeout=timeout,
            build_id=body.build_id or None,
            request_id=body.poll_request_id or None,
            page_size=body.history_page_size or limits.HISTORY_PAGE_SIZE_DEFAULT,
            progress="workflow" in tasks,
            validations="update_validation" in tasks,
            sessions=kind == "activity" and knows_sessions(request),
        )
        return self._polling.poll(poll, request.watch)

    def _empty(self, answer: PollAnswer) -> Response:
        return self._surface.answer(
            200,
            {
                "task": None,
                "poll_status": answer.status,
                "server_time": instant.once_text(self._clock.now()),
            },
        )

    def _leased(self, answer: PollAnswer, task: dict[str, Any]) -> Response:
        lease = {"owner": task["lease_owner"], "expires_at": task["lease_expires_at"]}
        return self._surface.answer(
            200,
            {
                "task": task,
                "lease": lease,
                "poll_status": answer.status,
                "server_time": instant.once_text(self._clock.now()),
            },
        )

    # Workflow tasks ------------------------------------------------------------------------------

    async def page_history(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.HistoryPageBody)
        ref = require_ref(request, "w")
        after = tokens.parse_history_token(body.next_history_page_token)
        size = body.history_page_size or limits.HISTORY_PAGE_SIZE_DEFAULT
        page: Page = await self._engine.submit(
            PageWorkflowTask(
                request.namespace, ref.run_id, report_of(ref, body), after=after, limit=size
            )
        )
        if after > page.total:
            raise InvalidPageToken("the page token points behind the history")
        events = page.events
        if events is None:
            events = await _apart(self._engine.store.read_history(ref.run_id, after, size))
            events = events[: max(page.total - after, 0)]
        answer = {
            "task_id": request.params["task_id"],
            "workflow_task_attempt": body.workflow_task_attempt,
            **_page(events, after, page.total, body.accept_history_encoding),
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
                timeout=self._granting.workflow_timeout,
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

    async def complete_workflow_task(self, request: Request) -> Response:
        body = bodies.decode(request.body, CompleteTaskBody)
        ref = require_ref(request, "w")
        if request.body.find(MARK) >= 0:
            store = self._engine.store
            await _apart(inline_memos(store, request.namespace, body.commands))
        commands = translate_commands(body.commands)
        for command in commands:
            if isinstance(command, ScheduleActivity) and command.session is not None:
                require_sessions(request)
        kind = CompleteStreamingTask if directives_of(commands) else CompleteWorkflowTask
        done: TaskCompleted = await self._engine.submit(
            naming(
                request,
                kind(
                    request.namespace,
                    ref.run_id,
                    report_of(ref, body),
                    commands,
                    read_consumption(body),
                    keeping_time(body, ref.run_id),
                ),
            )
        )
        return self._surface.answer(200, _task_answer(request, body, done))

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

    async def complete_activity(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.CompleteActivityBody)
        ref = attempt_ref(request, body)
        encoded = b"null" if body.result is UNSET else bytes(body.result)
        result = None if encoded == b"null" else encoded
        plain = result is not None and not is_envelope(result)
        if result is not None:
            (require_plain if plain else require_envelope)(result, "result")
        operation = CompleteActivity(ref, result, plain=plain)
        return await self._report_outcome(request, ref, operation, "completed", None)

    async def fail_activity(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.FailActivityBody)
        ref = attempt_ref(request, body)
        failure = _reported(body.failure)
        operation = FailActivity(ref, failure)
        return await self._report_outcome(request, ref, operation, "failed", failure.message)

    async def _report_outcome(
        self,
        request: Request,
        ref: AttemptRef,
        operation: AttemptOperation,
        outcome: str,
        message: str | None,
    ) -> Response:
        next_task_id = None
        try:
            recorded: Recorded = await self._engine.submit(naming(request, operation))
            next_task_id = recorded.next_task_id
        except (StaleAttempt, RunClosed, RunCancelled, RunTerminated):
            # A report that was taken before gets its answer again.
            known = await _apart(find_recorded_outcome(self._engine.store, ref, message))
            if known != outcome:
                raise
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

    async def heartbeat_activity(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.ActivityHeartbeatBody)
        _check_told(body, "details")
        ref = attempt_ref(request, body)
        members = {
            "message": body.message,
            "current": body.current,
            "total": body.total,
            "unit": body.unit,
            "details": body.details,
        }
        progress = {key: value for key, value in members.items() if value is not None}
        operation = HeartbeatActivity(
            ref,
            timeout=self._granting.activity_timeout,
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
            RenewActivity(ref, timeout=self._granting.activity_timeout)
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


def _apart(reading: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Read the disk in a task, as handlers without one must; awaited at once."""
    return asyncio.get_running_loop().create_task(reading)


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _check_told(body: bodies.Body, *names: str) -> None:
    """What a worker tells in its own words must still be something that can be kept."""
    for name in names:
        require_storable(getattr(body, name) or {}, name)


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
        "last_history_sequence": delivery.history_count,
        "cancel_requested": False,
        **_NO_RESUME,
        **delivery.resume,
    }
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


def _page(events: list[bytes], after: int, total: int, encoding: str | None) -> dict[str, Any]:
    """One page of history, compressed when the worker asks and it is worth it."""
    last = after + len(events)
    page: dict[str, Any] = {
        "total_history_events": total,
        "next_history_page_token": tokens.history_token(last) if last < total and events else None,
    }
    encoded = b"[%b]" % b",".join(events)
    chosen = _history_encoding(encoding)
    if chosen is None or len(events) < limits.HISTORY_COMPRESSION_EVENTS_MIN:
        page["history_events"] = msgspec.Raw(encoded)
        return page
    window = 31 if chosen == "gzip" else -15
    compressor = zlib.compressobj(6, zlib.DEFLATED, window)
    packed = compressor.compress(encoded) + compressor.flush()
    page["history_events"] = []
    page["history_events_compressed"] = base64.b64encode(packed).decode()
    page["history_events_encoding"] = chosen
    return page


def _history_encoding(accepted: str | None) -> str | None:
    if not accepted:
        return None
    names = {name.strip().lower() for name in accepted.split(",")}
    return next((name for name in ("gzip", "deflate") if name in names), None)


def _task_answer(request: Request, body: bodies.TaskLease, done: TaskCompleted) -> dict[str, Any]:
    receipt = done.receipt
    failed = receipt.outcome == "failed"
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

"""Prepared local activities: a worker prepares an attempt, reports on it, and can be cancelled.

The SDK checks every member of these answers and drops its task if one of them is wrong, so they
are written out in full.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from perdure.core import instant, limits
from perdure.core.bounds import Bounds
from perdure.core.maps import EmptyList, Map, members_of, structure_of
from perdure.core.references import MARK
from perdure.core.rejection import InvalidRequest, PreparedLocalUnavailable, ResultTooLarge
from perdure.core.run.activity import Reported, result_too_large
from perdure.core.run.command import Cleanup, Command, PrepareLocalActivity, ScheduleActivity
from perdure.core.run.completion import TaskReport
from perdure.core.run.local.attempt import Outcome, Stop
from perdure.core.run.operation import ActivityTimeouts
from perdure.engine.beat import Engine
from perdure.engine.leasing import Leasing
from perdure.engine.local_activities import (
    AcknowledgeAttempt,
    AttemptView,
    CheckpointGroup,
    CheckpointPrefix,
    CheckpointStreams,
    Committed,
    EndAttempt,
    Finished,
    HeartbeatAttempt,
    PrepareAttempt,
    RecoverAttempt,
    WatchAttempt,
)
from perdure.engine.streams import directives_of
from perdure.protocols.durable_workflow import bodies, tokens
from perdure.protocols.durable_workflow.bodies import Name255, Seconds, Sequence, require_in_order
from perdure.protocols.durable_workflow.cancellation import MINOR_MIN
from perdure.protocols.durable_workflow.command_scope import Foreign
from perdure.protocols.durable_workflow.commands import (
    Grouped,
    WireRecordSideEffect,
    WireRecordVersionMarker,
    WireScheduleActivity,
    WireStartChild,
    WireStartTimer,
    WireUpsertMemo,
    WireUpsertSearchAttributes,
    group_path,
    translate_commands,
)
from perdure.protocols.durable_workflow.local_activities import Message
from perdure.protocols.durable_workflow.memos import inline_memos
from perdure.protocols.durable_workflow.payloads import require_payload, require_storable
from perdure.protocols.durable_workflow.references import with_payloads
from perdure.protocols.durable_workflow.retry_policies import (
    WireLocalRetryPolicy,
    local_retry_policy,
)
from perdure.protocols.durable_workflow.sessions import require_sessions
from perdure.protocols.durable_workflow.sizes import find_exceeded, require_command_sizes
from perdure.protocols.durable_workflow.surfaces import WorkerSurface, protocol_minor
from perdure.protocols.durable_workflow.task_refs import report_of, require_ref
from perdure.web.message import Request, Response


class WireCleanup(Struct, forbid_unknown_fields=True):
    """Clean-up of the whole run. Scopes, which would need more members, are not supported."""

    request_id: Name255
    delivery_history_event_id: Name255


class LocalCall(Grouped, kw_only=True):
    """Members of a local activity command."""

    activity_type: Name255
    execution_mode: Literal["local"] = "local"
    arguments: Raw | UnsetType = UNSET
    payload_codec: Literal["avro"] | None = None
    retry_policy: WireLocalRetryPolicy | EmptyList | None = None
    start_to_close_timeout: Seconds | None = None
    schedule_to_close_timeout: Seconds | None = None
    heartbeat_timeout: Seconds | None = None
    cancellation_policy: Literal["try_cancel", "wait_cancellation_completed"] | None = None
    cancellation_cleanup: WireCleanup | None = None
    # Members of queue activities and of scopes: a mistake here, so refused.
    queue: Foreign = None
    cancellation_scope_id: Foreign = None


class WireDescriptor(LocalCall, tag="record_local_activity", kw_only=True):
    """A single local activity."""


class WirePrepare(LocalCall, tag="prepare_local_activity", kw_only=True):
    """A local activity in a parallel group."""


WirePrefix = (
    WireRecordSideEffect | WireRecordVersionMarker | WireUpsertMemo | WireUpsertSearchAttributes
)
WireMember = WirePrepare | WireScheduleActivity | WireStartTimer | WireStartChild


class CheckpointBody(bodies.TaskLease, kw_only=True):
    checkpoint_id: Name255
    start_sequence: Sequence
    commands: Annotated[
        list[WirePrefix], Meta(min_length=1, max_length=limits.COMMANDS_PER_COMPLETION_CEILING)
    ]


class GroupBody(bodies.TaskLease, kw_only=True):
    checkpoint_id: Name255
    start_sequence: Sequence
    commands: Annotated[list[WireMember], Meta(min_length=1, max_length=limits.PREPARED_GROUP_MAX)]


class PrepareBody(bodies.TaskLease, kw_only=True):
    sequence: Sequence
    worker_attempt_id: Name255
    descriptor: WireDescriptor


class RecoverBody(bodies.TaskLease, kw_only=True):
    sequence: Sequence
    descriptor: WireDescriptor


class ControlBody(bodies.TaskLease, kw_only=True):
    renew_lease: bool = True


class Progress(Struct):
    details: Map[Any] | None = None


class HeartbeatBody(bodies.TaskLease, kw_only=True):
    progress: Progress | EmptyList | None = None


class WireReport(Struct, kw_only=True):
    outcome: Literal["completed", "failed"]
    result: Raw | UnsetType = UNSET
    payload_codec: Literal["avro"] | None = None
    message: Message | None = None
    exception_type: Name255 | None = None
    non_retryable: bool | None = None


class OutcomeBody(bodies.TaskLease, kw_only=True):
    report: WireReport


class AcknowledgeBody(bodies.TaskLease, kw_only=True):
    request_id: Name255


_Body = TypeVar("_Body", bound=bodies.TaskLease)


class PreparedActivities:
    """Handlers under `/api/worker/workflow-tasks/{task_id}/local-activities`."""

    def __init__(
        self, engine: Engine, leasing: Leasing, surface: WorkerSurface, bounds: Bounds
    ) -> None:
        self._engine = engine
        self._bounds = bounds
        self._leasing = leasing
        self._surface = surface

    # Checkpoints and preparation -----------------------------------------------------------------

    async def checkpoint(self, request: Request) -> Response:
        body = _read(request, CheckpointBody)
        claim = _claimed(request, body)
        if MARK in request.body:
            store = self._engine.store
            await inline_memos(store, request.namespace, [*body.commands], self._bounds)
        commands = translate_commands([*body.commands], self._bounds)
        require_command_sizes(request, self._bounds, commands)
        kind = CheckpointStreams if directives_of(commands) else CheckpointPrefix
        operation = kind(
            *claim,
            checkpoint_id=body.checkpoint_id,
            start=body.start_sequence,
            commands=commands,
        )
        done: Committed = await self._engine.submit(with_payloads(request, operation))
        return self._surface.answer(200, _committed(request, body, body.checkpoint_id, done))

    async def checkpoint_group(self, request: Request) -> Response:
        body = _read(request, GroupBody)
        claim = _claimed(request, body)
        commands = [
            _member(wire, f"commands.{index}", self._bounds)
            for index, wire in enumerate(body.commands)
        ]
        require_command_sizes(request, self._bounds, commands)
        if any(isinstance(each, ScheduleActivity) and each.session for each in commands):
            require_sessions(request)
        operation = CheckpointGroup(
            *claim,
            checkpoint_id=body.checkpoint_id,
            start=body.start_sequence,
            commands=commands,
        )
        done: Committed = await self._engine.submit(with_payloads(request, operation))
        answer = _committed(request, body, body.checkpoint_id, done)
        answer["local_activities"] = [
            {"sequence": opened.sequence, "activity_execution_id": opened.execution_id}
            for opened in done.checkpoint.activities
        ]
        return self._surface.answer(200, answer)

    async def prepare(self, request: Request) -> Response:
        body = _read(request, PrepareBody)
        command = translate_call(body.descriptor, "descriptor")
        require_command_sizes(request, self._bounds, [command])
        operation = PrepareAttempt(
            *_claimed(request, body),
            sequence=body.sequence,
            nonce=body.worker_attempt_id,
            command=command,
        )
        view: AttemptView = await self._engine.submit(with_payloads(request, operation))
        answer = {
            **_attempt(request, body, view),
            "prepared": True,
            "duplicate": view.duplicate,
            "worker_attempt_id": body.worker_attempt_id,
            "attempt_number": view.attempt_number,
            "reason": None,
        }
        return self._surface.answer(200, answer)

    async def recover(self, request: Request) -> Response:
        body = _read(request, RecoverBody)
        operation = RecoverAttempt(
            *_claimed(request, body),
            sequence=body.sequence,
            command=translate_call(body.descriptor, "descriptor"),
        )
        done: Finished = await self._engine.submit(with_payloads(request, operation))
        answer = {
            **_finished(request, body, done),
            "recovered": True,
            "callback_stop_state": "unknown",
        }
        return self._surface.answer(200, answer)

    # Attempts ------------------------------------------------------------------------------------

    async def control(self, request: Request) -> Response:
        body = _read(request, ControlBody)
        operation = WatchAttempt(
            *_claimed(request, body),
            request.params["attempt_id"],
            timeout=self._leasing.workflow_timeout if body.renew_lease else None,
        )
        view: AttemptView = await self._engine.submit(operation)
        renewed = body.renew_lease and view.reason is None
        answer = {
            **_attempt_members(request, body, view),
            "renewed": renewed,
            "heartbeat_recorded": False,
        }
        return self._surface.answer(200, answer)

    async def heartbeat(self, request: Request) -> Response:
        body = _read(request, HeartbeatBody)
        progress = structure_of(body.progress, Progress)
        details = {} if progress is None else members_of(progress.details)
        require_storable(details, "progress.details")
        operation = HeartbeatAttempt(
            *_claimed(request, body),
            request.params["attempt_id"],
            progress=msgspec.json.encode({"details": details}) if details else None,
        )
        view: AttemptView = await self._engine.submit(operation)
        active = view.reason is None
        answer = {
            **_attempt_members(request, body, view),
            "renewed": False,
            "heartbeat_recorded": active,
            "heartbeat_history_event_id": view.heartbeat_event_id if active else None,
        }
        return self._surface.answer(200, answer)

    async def outcome(self, request: Request) -> Response:
        body = _read(request, OutcomeBody)
        outcome = _outcome(body.report)
        reached = find_exceeded(request, self._bounds, outcome.result)
        if reached is not None:
            outcome = Outcome(failure=result_too_large(reached))
        operation = EndAttempt(
            *_claimed(request, body), request.params["attempt_id"], outcome=outcome
        )
        done: Finished = await self._engine.submit(with_payloads(request, operation))
        if reached is not None and outcome.failure is not None:
            # The activity has failed, final. Workflow code sees that; a retry would fail again.
            message = outcome.failure.message
            raise ResultTooLarge(message, **reached._asdict(), outcome="failed", recorded=True)
        answer = {
            **_finished(request, body, done),
            "recorded": True,
            "worker_attempt_id": done.end.nonce,
            "recorded_at": instant.text(done.end.recorded_at),
        }
        return self._surface.answer(200, answer)

    async def acknowledge(self, request: Request) -> Response:
        body = _read(request, AcknowledgeBody)
        attempt_id = request.params["attempt_id"]
        done: Stop = await self._engine.submit(
            AcknowledgeAttempt(*_claimed(request, body), attempt_id, request_id=body.request_id)
        )
        answer = {
            **_claim(request, body),
            "activity_attempt_id": attempt_id,
            "request_id": body.request_id,
            "acknowledged": True,
            "duplicate": done.duplicate,
            "history_event_id": done.event_id,
            "reason": None,
        }
        return self._surface.answer(200, answer)


def translate_call(wire: LocalCall, at: str) -> PrepareLocalActivity:
    """The command of the core."""
    close = wire.schedule_to_close_timeout
    require_in_order(wire.start_to_close_timeout, close, f"{at}.start_to_close_timeout")
    require_in_order(wire.heartbeat_timeout, wire.start_to_close_timeout, f"{at}.heartbeat_timeout")
    cleanup = wire.cancellation_cleanup
    return PrepareLocalActivity(
        activity_type=wire.activity_type,
        arguments=require_payload(wire.arguments, f"{at}.arguments") or b"null",
        retry=local_retry_policy(wire.retry_policy, f"{at}.retry_policy"),
        timeouts=ActivityTimeouts(
            start_to_close=wire.start_to_close_timeout,
            schedule_to_close=close,
            heartbeat=wire.heartbeat_timeout,
        ),
        cancellation_policy=wire.cancellation_policy,
        cleanup=None
        if cleanup is None
        else Cleanup(cleanup.request_id, cleanup.delivery_history_event_id),
        path=group_path(wire, at),
    )


def _member(wire: WireMember, at: str, bounds: Bounds) -> Command | PrepareLocalActivity:
    if isinstance(wire, WirePrepare):
        return translate_call(wire, at)
    return translate_commands([wire], bounds)[0]


def _outcome(report: WireReport) -> Outcome:
    result = require_payload(report.result, "report.result")
    if report.outcome == "completed":
        return Outcome(result=result)
    if result is not None:
        raise InvalidRequest("report.result", "is not allowed unless the activity completed")
    if report.message is None:
        raise InvalidRequest("report.message", "is required")
    failure = Reported(
        message=report.message,
        exception_type=report.exception_type,
        non_retryable=bool(report.non_retryable),
    )
    return Outcome(failure=failure)


def _read(request: Request, kind: type[_Body]) -> _Body:
    """Decode a request body; refuse workers of an older protocol."""
    if protocol_minor(request) < MINOR_MIN:
        raise PreparedLocalUnavailable(
            f"prepared local activities need worker protocol 1.{MINOR_MIN}",
            required_version=f"1.{MINOR_MIN}",
        )
    return bodies.decode(request.body, kind)


def _claimed(request: Request, body: bodies.TaskLease) -> tuple[str, str, TaskReport]:
    """Namespace, run id and lease claim of the task in the path."""
    ref = require_ref(request, "w")
    return request.namespace, ref.run_id, report_of(ref, body)


def _claim(request: Request, body: bodies.TaskLease) -> dict[str, Any]:
    """The lease members that every answer repeats."""
    return {
        "workflow_task_id": request.params["task_id"],
        "workflow_task_attempt": body.workflow_task_attempt,
        "lease_owner": body.lease_owner,
        "history_refresh_page_token": tokens.history_token(0),
    }


def _committed(
    request: Request, body: bodies.TaskLease, checkpoint_id: str, done: Committed
) -> dict[str, Any]:
    return {
        **_claim(request, body),
        "task_id": request.params["task_id"],
        "workflow_run_id": done.run_id,
        "checkpointed": True,
        "duplicate": done.duplicate,
        "checkpoint_id": checkpoint_id,
        "start_sequence": done.checkpoint.start,
        "next_sequence": done.checkpoint.behind,
        "reason": None,
    }


def _attempt(request: Request, body: bodies.TaskLease, view: AttemptView) -> dict[str, Any]:
    cleanup = None
    if view.cleanup is not None:
        cleanup = {
            "request_id": view.cleanup.request_id,
            "root_request_id": view.cleanup.root_request_id,
            "delivery_history_event_id": view.cleanup.event_id,
            "cleanup_deadline_at": instant.text(view.cleanup.deadline_at),
        }
    expires_at = instant.text(view.lease_expires_at)
    return {
        **_claim(request, body),
        "activity_execution_id": view.execution_id,
        "activity_attempt_id": view.attempt_id,
        "server_time": instant.text(view.now),
        "lease_expires_at": expires_at,
        "workflow_lease_expires_at": expires_at,
        "start_to_close_deadline_at": instant.text_or_none(view.start_to_close_at),
        "schedule_to_close_deadline_at": instant.text_or_none(view.schedule_to_close_at),
        "heartbeat_deadline_at": instant.text_or_none(view.heartbeat_due_at),
        "cancellation_cleanup": cleanup,
    }


def _attempt_members(request: Request, body: bodies.TaskLease, view: AttemptView) -> dict[str, Any]:
    active = view.reason is None
    answer = {
        **_attempt(request, body, view),
        "active": active,
        "stop_required": not active,
        "reason": view.reason,
        "heartbeat_history_event_id": None,
    }
    if view.cancellation is not None:
        answer |= {
            "fenced": True,
            "cancellation_request": Raw(view.cancellation),
            "cancellation_history_event_id": view.cancellation_event_id,
        }
    return answer


def _finished(request: Request, body: bodies.TaskLease, done: Finished) -> dict[str, Any]:
    end = done.end
    return {
        **_claim(request, body),
        "workflow_run_id": done.run_id,
        "activity_execution_id": end.execution_id,
        "activity_attempt_id": end.attempt_id,
        "event_type": end.event_type,
        "event_id": end.event_id,
        "claim_released": end.created is not None,
        "created_task_ids": [] if end.created is None else [end.created],
        "duplicate": done.duplicate,
        "reason": None,
    }

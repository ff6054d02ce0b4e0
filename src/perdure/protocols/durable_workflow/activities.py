"""Standalone activities: start, describe, list. Their host runs are an internal detail."""

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.bounds import Bounds
from perdure.core.limits import SECOND
from perdure.core.maps import EmptyList
from perdure.core.payload import Frame
from perdure.core.rejection import ActivityNotFound, InvalidRequest
from perdure.core.run.operation import Activity, ActivityTimeouts
from perdure.core.run.standalone import ActivityRequest
from perdure.core.run.state import Hosted, Run
from perdure.core.run.status import RunStatus, bucket
from perdure.engine.beat import Engine
from perdure.engine.standalone import ActivityStart, StartActivity
from perdure.engine.worker_availability import staffing_for
from perdure.identity import IdSource
from perdure.protocols.durable_workflow import views
from perdure.protocols.durable_workflow.bodies import (
    Absent,
    Body,
    Name255,
    OptionalName,
    Seconds,
    decode,
    require_in_order,
)
from perdure.protocols.durable_workflow.inputs import read_input
from perdure.protocols.durable_workflow.payloads import frame_of_envelope
from perdure.protocols.durable_workflow.references import with_payloads
from perdure.protocols.durable_workflow.retry_policies import WireRetryPolicy, retry_policy
from perdure.protocols.durable_workflow.run_lists import read_activities
from perdure.protocols.durable_workflow.sizes import require_input_size
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.store.interface import Instance
from perdure.web.message import Request, Response


class StartActivityBody(Body):
    activity_type: Name255
    activity_id: (
        Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")] | None
    ) = None
    activity_class: OptionalName = None
    task_queue: OptionalName = None
    business_key: OptionalName = None
    input: Absent = UNSET
    retry_policy: WireRetryPolicy | EmptyList | None = None
    start_to_close_timeout_seconds: Seconds | None = None
    schedule_to_start_timeout_seconds: Seconds | None = None
    schedule_to_close_timeout_seconds: Seconds | None = None
    heartbeat_timeout_seconds: Seconds | None = None
    request_id: OptionalName = None
    # The names that workflow commands use. Refused rather than ignored silently.
    start_to_close_timeout: Absent = UNSET
    schedule_to_start_timeout: Absent = UNSET
    schedule_to_close_timeout: Absent = UNSET
    heartbeat_timeout: Absent = UNSET


_REFUSED = (
    "start_to_close_timeout",
    "schedule_to_start_timeout",
    "schedule_to_close_timeout",
    "heartbeat_timeout",
)


class Activities:
    """Handlers of `/api/activities…`."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        ids: IdSource,
        surface: ControlSurface,
        bounds: Bounds,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._bounds = bounds
        self._ids = ids
        self.surface = surface

    async def start(self, request: Request) -> Response:
        body = decode(request.body, StartActivityBody)
        activity_request = self._activity_request(request, body)
        operation = StartActivity(
            activity_request,
            named=body.activity_id is not None,
            request_id=body.request_id or None,
            digest=hashlib.sha256(request.body).hexdigest(),
        )
        started: ActivityStart = await self._engine.submit_knowing_workers(
            with_payloads(request, operation)
        )
        run = await self._engine.store.read_run(started.run_id)
        if run is None:
            # A repeated start of an activity that was pruned meanwhile.
            raise ActivityNotFound(f"activity of run {started.run_id} does not exist")
        answer = {
            **_view(run),
            "command_status": "accepted",
            "command_source": "control_plane",
            "outcome": "started_new",
            "retained": started.retained,
        }
        return self.surface.answer(request, 200 if started.retained else 201, answer)

    def _activity_request(self, request: Request, body: StartActivityBody) -> ActivityRequest:
        for name in _REFUSED:
            if getattr(body, name) is not UNSET:
                raise InvalidRequest(name, f"is not supported here; use {name}_seconds")
        timeouts = ActivityTimeouts(
            schedule_to_start=body.schedule_to_start_timeout_seconds,
            start_to_close=body.start_to_close_timeout_seconds,
            schedule_to_close=body.schedule_to_close_timeout_seconds,
            heartbeat=body.heartbeat_timeout_seconds,
        )
        close = timeouts.schedule_to_close
        require_in_order(timeouts.heartbeat, timeouts.start_to_close, "heartbeat_timeout_seconds")
        require_in_order(timeouts.start_to_close, close, "start_to_close_timeout_seconds")
        require_in_order(timeouts.schedule_to_start, close, "schedule_to_start_timeout_seconds")
        arguments, plain = read_input(body.input, "input")
        require_input_size(request, self._bounds, arguments, plain)
        frame = None if arguments is None else frame_of_envelope(arguments)
        return ActivityRequest(
            namespace=request.namespace,
            activity_id=body.activity_id or self._ids.ulid(),
            activity_type=body.activity_type,
            activity_class=body.activity_class,
            queue=body.task_queue or "default",
            business_key=body.business_key,
            arguments=arguments,
            plain=plain,
            frame=frame or Frame.VALUE,
            retry=retry_policy(body.retry_policy, "retry_policy"),
            timeouts=timeouts,
        )

    async def describe(self, request: Request) -> Response:
        instance = Instance(request.namespace, request.params["activity_id"])
        runs = await self._engine.store.read_instance(instance)
        if not runs or runs[-1].hosted is None:
            raise ActivityNotFound(f"activity {instance.workflow_id[:128]} does not exist")
        run = await self._engine.store.read_run(runs[-1].run_id)
        if run is None:
            raise ActivityNotFound(f"activity {instance.workflow_id[:128]} does not exist")
        after = max(run.history_count - limits.ATTEMPT_EVENTS_SHOWN_MAX, 0)
        events = await self._engine.store.read_history(
            run.run_id, after, limits.ATTEMPT_EVENTS_SHOWN_MAX
        )
        availability = await staffing_for(self._engine, run, self._clock.now())
        answer = {
            **_view(run),
            "run_number": run.run_number,
            "compatibility": run.build_id,
            **views.waiting(run, availability),
            **_attempts(run, events),
            **views.failure(run),
            "result": _result(run, events),
        }
        return self.surface.answer(request, 200, answer)

    async def list_activities(self, request: Request) -> Response:
        page = await read_activities(self._engine.store, request.namespace, request.query)
        answer = {
            "activities": [_summary(run) for run in page.runs],
            "activity_count": len(page.runs),
            "next_page_token": page.next_page_token,
        }
        return self.surface.answer(request, 200, answer)


def _summary(run: Run) -> dict[str, Any]:
    """One activity in a list, without its attempts."""
    hosted = _hosted(run)
    return {
        "activity_id": run.workflow_id,
        "activity_execution_id": hosted.execution_id,
        "workflow_id": run.workflow_id,
        "workflow_run_id": run.run_id,
        "workflow_type": run.workflow_type,
        "activity_type": hosted.activity_type,
        "activity_class": hosted.activity_class,
        "namespace": run.namespace,
        "task_queue": run.queue,
        "status": run.status.value,
        "status_bucket": bucket(run.status).value,
        "is_terminal": run.is_closed,
        "closed_reason": run.closed_reason,
        "business_key": run.business_key,
        "payload_codec": run.codec,
        "run_number": run.run_number,
        "started_at": instant.text(run.started_at),
        "closed_at": instant.text_or_none(run.closed_at),
        "last_progress_at": instant.text(run.last_progress_at),
    }


def _view(run: Run) -> dict[str, Any]:
    """One activity with its attempt count, heartbeat and deadlines."""
    hosted, activity = _hosted(run), _open_activity(run)
    available_at = run.started_at if activity is None else activity.available_at
    heartbeat_at = hosted.heartbeat_at if activity is None else activity.heartbeat_at
    timeouts = hosted.timeouts
    return {
        **_summary(run),
        "activity_status": _activity_status(run, activity),
        "attempt_count": hosted.attempt if activity is None else activity.attempt,
        "last_heartbeat_at": instant.text_or_none(heartbeat_at),
        "schedule_to_start_deadline_at": _after(available_at, timeouts.schedule_to_start),
        "schedule_to_close_deadline_at": _after(run.started_at, timeouts.schedule_to_close),
    }


def _hosted(run: Run) -> Hosted:
    assert run.hosted is not None, f"run {run.run_id} hosts no activity"
    return run.hosted


def _open_activity(run: Run) -> Activity | None:
    return next((o for o in run.operations.values() if isinstance(o, Activity)), None)


def _activity_status(run: Run, activity: Activity | None) -> str:
    if activity is not None:
        return "pending" if activity.lease is None else "running"
    stopped = run.status in (RunStatus.CANCELLED, RunStatus.TERMINATED)
    return "cancelled" if stopped else run.status.value


def _after(at: int, seconds: int | None) -> str | None:
    return None if seconds is None else instant.text(at + seconds * SECOND)


# Attempts, read from history ----------------------------------------------------------------------


class _Payload(Struct):
    activity_attempt_id: str | None = None
    attempt_number: int | None = None
    retry_after_attempt: int | None = None
    message: str | None = None
    exception_type: str | None = None
    timeout_kind: str | None = None
    output: Raw = Raw(b"null")


class _Event(Struct):
    event_type: str
    recorded_at: str
    payload: _Payload


_decoder = msgspec.json.Decoder(_Event)

_STATUS_BY_EVENT = {
    "ActivityRetryScheduled": "failed",
    "ActivityCompleted": "completed",
    "ActivityFailed": "failed",
    "ActivityTimedOut": "expired",
    "ActivityCancelled": "cancelled",
}


def _attempts(run: Run, events: list[bytes]) -> dict[str, Any]:
    """The newest attempts, oldest first; a lease that ended without an event has expired."""
    found: dict[int, dict[str, Any]] = {}
    for encoded in events:
        event = _decoder.decode(encoded)
        payload = event.payload
        number = payload.retry_after_attempt or payload.attempt_number
        if number is None:
            continue
        attempt = found.setdefault(
            number,
            {
                "attempt_id": payload.activity_attempt_id,
                "attempt_number": number,
                "status": "running",
            },
        )
        if event.event_type == "ActivityStarted":
            attempt["started_at"] = event.recorded_at
        elif event.event_type in _STATUS_BY_EVENT:
            late = payload.timeout_kind is not None
            attempt["status"] = "expired" if late else _STATUS_BY_EVENT[event.event_type]
            attempt["closed_at"] = event.recorded_at
            attempt["message"] = payload.message
            attempt["exception_type"] = payload.exception_type
    newest = max(found, default=0)
    activity = _open_activity(run)
    for number, attempt in found.items():
        leased = activity is not None and activity.lease is not None and number == newest
        if attempt["status"] == "running" and not leased:
            attempt["status"] = "expired"
    current = found.get(newest)
    return {
        "attempts": [found[number] for number in sorted(found)],
        "current_attempt": current,
        "current_attempt_id": None if current is None else current["attempt_id"],
        "current_attempt_status": None if current is None else current["status"],
    }


def _result(run: Run, events: list[bytes]) -> Raw | None:
    """The envelope of the result, as the worker reported it."""
    if run.status is not RunStatus.COMPLETED or not events:
        return None
    event = _decoder.decode(events[-1])
    return None if event.payload.output == Raw(b"null") else event.payload.output

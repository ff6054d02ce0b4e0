"""Worker sessions: create, heartbeat and close for workers; list and show for operators."""

from typing import Any

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.fleet.session import Outcome, Session, SessionStatus, refresh
from perdure.core.fleet.worker import Worker, WorkerStatus
from perdure.core.rejection import (
    Rejection,
    WorkerSessionNotFound,
    WorkerSessionsUnavailable,
)
from perdure.core.run.operation import Activity
from perdure.dispatch.session_polls import SessionPolls
from perdure.engine.beat import Engine
from perdure.engine.sessions import (
    SESSION,
    CloseSession,
    CreateSession,
    HeartbeatSession,
)
from perdure.protocols.durable_workflow import bodies
from perdure.protocols.durable_workflow.bodies import Body, Name255, OptionalName
from perdure.protocols.durable_workflow.manifests import WORKER_PROTOCOL_VERSION
from perdure.protocols.durable_workflow.session_terms import (
    SessionSeconds,
    TermsBody,
    terms_of,
    terms_view,
)
from perdure.protocols.durable_workflow.surfaces import (
    WORKER_HEADER,
    ControlSurface,
    WorkerSurface,
    protocol_minor,
)
from perdure.web.message import Request, Response

FIRST_MINOR = 8
"""The minor version of the worker protocol that introduced sessions."""


class CreateBody(TermsBody, kw_only=True):
    worker_id: Name255


class HeartbeatBody(Body):
    worker_id: Name255
    lease_seconds: SessionSeconds | None = None


class CloseBody(Body):
    worker_id: Name255
    reason: OptionalName = None


def supports_sessions(request: Request) -> bool:
    return protocol_minor(request) >= FIRST_MINOR


def require_sessions(request: Request) -> None:
    """Refuse workers of a protocol without sessions."""
    if not supports_sessions(request):
        raise WorkerSessionsUnavailable(
            f"worker sessions need protocol 1.{FIRST_MINOR}",
            supported_version=WORKER_PROTOCOL_VERSION,
            requested_version=request.header(WORKER_HEADER),
            minimum_protocol_version=f"1.{FIRST_MINOR}",
        )


def standing_view(session: Session | None) -> dict[str, Any] | None:
    """The session of an activity attempt and its status."""
    if session is None:
        return None
    return {
        "session_id": session.terms.session_id,
        "status": session.status,
        "lease_owner": session.owner,
        "lease_expires_at": instant.text(session.lease_expires_at),
        "ttl_expires_at": instant.text(session.ttl_expires_at),
    }


class SessionPlane:
    """Handlers of `/api/worker/sessions…` and `/api/worker-sessions…`."""

    def __init__(
        self,
        engine: Engine,
        query_broker: SessionPolls,
        clock: Clock,
        worker_surface: WorkerSurface,
        control_surface: ControlSurface,
    ) -> None:
        self._engine = engine
        self._query_broker = query_broker
        self._clock = clock
        self._surface = worker_surface
        self.control_surface = control_surface

    # For workers ---------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        require_sessions(request)
        body = bodies.decode(request.body, CreateBody)
        operation = CreateSession(request.namespace, body.worker_id, terms_of(body))
        try:
            session, outcome = await self._engine.submit(operation)
        except Rejection as refusal:
            refusal.details.setdefault("admitted", False)
            raise
        self._query_broker.session_changed(request.namespace, body.session_id)
        status = 201 if outcome is Outcome.CREATED else 200
        return self._session_answer(request, status, outcome, session, admitted=True)

    async def heartbeat(self, request: Request) -> Response:
        require_sessions(request)
        body = bodies.decode(request.body, HeartbeatBody)
        session: Session = await self._engine.submit(
            HeartbeatSession(
                request.namespace, request.params["session_id"], body.worker_id, body.lease_seconds
            )
        )
        return self._session_answer(request, 200, "heartbeat_recorded", session)

    async def close(self, request: Request) -> Response:
        require_sessions(request)
        body = bodies.decode(request.body, CloseBody)
        session_id = request.params["session_id"]
        session, is_new = await self._engine.submit(
            CloseSession(request.namespace, session_id, body.worker_id, body.reason)
        )
        self._query_broker.session_changed(request.namespace, session_id)
        return self._session_answer(request, 200, "closed" if is_new else "already_closed", session)

    def _session_answer(
        self, request: Request, status: int, outcome: str, session: Session, **members: Any
    ) -> Response:
        answer = {
            **members,
            "outcome": outcome,
            "session": self._view(request.namespace, session, len(session.seats)),
            "activity_task_id": None,
            "status": status,
            "reason": None,
        }
        return self._surface.answer(status, answer)

    # For operators -------------------------------------------------------------------------------

    async def list_sessions(self, request: Request) -> Response:
        found = await SESSION.read_page(
            self._engine.store, request.namespace, limit=limits.SESSIONS_LISTED_MAX
        )
        sessions = [self._now(request.namespace, session) for _, session in found]
        metrics = {"total": len(sessions)} | {
            status: sum(session.status is status for session in sessions)
            for status in SessionStatus
        }
        views = [await self._described(request.namespace, session) for session in sessions]
        answer = {"namespace": request.namespace, "metrics": metrics, "sessions": views}
        return self.control_surface.answer(request, 200, answer)

    async def show(self, request: Request) -> Response:
        session_id = request.params["session_id"]
        session = await SESSION.read(self._engine.store, request.namespace, session_id)
        if session is None:
            raise WorkerSessionNotFound(f"session {session_id[:128]} does not exist")
        view = await self._described(request.namespace, self._now(request.namespace, session))
        answer = {"namespace": request.namespace, "session": view}
        return self.control_surface.answer(request, 200, answer)

    def _now(self, namespace: str, session: Session) -> Session:
        return refresh(session, self._clock.now(), holder=self._holder(namespace, session))

    def _holder(self, namespace: str, session: Session) -> Worker | None:
        return self._engine.workers.get((namespace, session.owner))

    async def _described(self, namespace: str, session: Session) -> dict[str, Any]:
        running = 0
        for seat in session.seats:
            run = await self._engine.store.read_run(seat.run_id)
            activity = None if run is None else run.operations.get(seat.sequence)
            if isinstance(activity, Activity) and activity.lease is not None:
                running += activity.lease_number == seat.attempt
        return self._view(namespace, session, running)

    def _view(self, namespace: str, session: Session, running: int) -> dict[str, Any]:
        holder = self._holder(namespace, session)
        terms = session.terms
        return {
            **terms_view(terms),
            "namespace": namespace,
            "connection": terms.connection,
            "queue": session.queue,
            "status": session.status,
            "lease_owner": session.owner,
            "holder": None if holder is None else self._holder_view(holder),
            "lease_expires_at": instant.text(session.lease_expires_at),
            "ttl_expires_at": instant.text(session.ttl_expires_at),
            "closed_at": instant.text_or_none(session.closed_at),
            "close_reason": session.close_reason,
            "failure_reason": session.failure_reason,
            "active_activity_count": running,
            "last_heartbeat_at": instant.text(session.heartbeat_at),
            "created_at": instant.text(session.created_at),
            "updated_at": instant.text(session.updated_at),
        }

    def _holder_view(self, worker: Worker) -> dict[str, Any]:
        now = self._clock.now()
        status = worker.status(now, self._engine.rollouts.draining)
        if worker.deregistered_at is not None:
            status = WorkerStatus.STALE
        return {
            "worker_id": worker.worker_id,
            "task_queue": worker.queue,
            "status": status,
            "last_heartbeat_at": instant.text(worker.heartbeat_at),
            "is_stale": worker.is_stale(now),
        }

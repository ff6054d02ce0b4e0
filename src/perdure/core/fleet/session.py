"""Worker sessions: groups of activities that run on one worker, the owner of the session.

A session begins when its first activity is leased to a capable worker, or when a worker requests
it. The owner renews its lease. Another worker may take over a session whose owner is gone, if its
terms allow that; a session that was closed or reached its time to live has ended for good.
"""

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field, structs

from perdure.core.fleet.worker import Worker
from perdure.core.limits import SECOND, WORKER_SESSION_KEPT
from perdure.core.rejection import (
    SessionActivityLimitExceeded,
    SessionClosed,
    SessionMissing,
    SessionNotActive,
    SessionOwnedByAnotherWorker,
    SessionOwnerMismatch,
    SessionReacquireDisallowed,
    SessionRequirementsNotMet,
    WorkerSessionLimitExceeded,
)

LEASE_SECONDS = 120
TTL_SECONDS = 1800


class SessionTerms(Struct, frozen=True, kw_only=True):
    """The properties of a session, as requested by a workflow or a worker."""

    session_id: str
    queue: str | None = None
    connection: str | None = None
    requirements: tuple[str, ...] = ()
    lease_seconds: int = LEASE_SECONDS
    ttl_seconds: int = TTL_SECONDS
    max_concurrent_activities: int = 1
    create_if_missing: bool = True
    allow_reacquire_after_failure: bool = True


class SessionStatus(StrEnum):
    ACTIVE = "active"
    CLOSED = "closed"
    EXPIRED = "expired"
    FAILED = "failed"
    ORPHANED = "orphaned"


class Seat(Struct, frozen=True, array_like=True):
    """An attempt that is leased to the owner as part of the session."""

    run_id: str
    sequence: int
    attempt: int


class Session(Struct, kw_only=True):
    """One session, as it is stored."""

    terms: SessionTerms
    queue: str
    owner: str
    lease_expires_at: int
    ttl_expires_at: int
    created_at: int
    updated_at: int
    heartbeat_at: int
    status: SessionStatus = SessionStatus.ACTIVE
    failure_reason: str | None = None
    close_reason: str | None = None
    closed_at: int | None = None
    seats: list[Seat] = field(default_factory=list)

    @property
    def is_active(self) -> bool:
        return self.status is SessionStatus.ACTIVE

    @property
    def is_over(self) -> bool:
        """Closed, or past its time to live: no worker can take it over."""
        return self.status is SessionStatus.CLOSED or self.failure_reason == "ttl_expired"


class Outcome(StrEnum):
    """The result of a worker's request for a session."""

    CREATED = "created"
    REUSED = "reused"
    REACQUIRED = "reacquired"


class Claimant(NamedTuple):
    """A worker that requests a session, and how many it owns already."""

    worker: Worker
    held: int


def refresh(session: Session, now: int, *, holder: Worker | None) -> Session:
    """The session at the current time: it ends by its deadlines or by a stale owner."""
    if session.is_over:
        return session
    if now >= session.ttl_expires_at:
        return _failed(session, now, SessionStatus.EXPIRED, "ttl_expired")
    if not session.is_active:
        return session
    if now >= session.lease_expires_at:
        return _failed(session, now, SessionStatus.EXPIRED, "lease_expired")
    if holder is None or not holder.is_active(now):
        return _failed(session, now, SessionStatus.ORPHANED, "worker_heartbeat_stale")
    return session


def admit(
    session: Session | None,
    terms: SessionTerms,
    claimant: Claimant,
    now: int,
    *,
    queue: str,
    for_activity: bool,
) -> tuple[Session, Outcome]:
    """Give a worker the session, or refuse with the reason. `session` is already refreshed."""
    worker = claimant.worker
    needed = terms.requirements if session is None else session.terms.requirements
    missing = [
        need
        for need in dict.fromkeys((*needed, *terms.requirements))
        if need not in worker.capabilities
    ]
    if missing:
        raise SessionRequirementsNotMet(
            f"worker {worker.worker_id} lacks what session {terms.session_id} requires",
            missing_requirements=missing,
        )
    if session is None:
        if not terms.create_if_missing:
            raise SessionMissing(f"session {terms.session_id} does not exist")
        _require_room(claimant)
        return _begun(terms, worker, now, queue=queue), Outcome.CREATED
    if session.is_over:
        raise SessionClosed(f"session {terms.session_id} has ended: {_ending(session)}")
    if session.is_active:
        if session.owner != worker.worker_id:
            raise SessionOwnedByAnotherWorker(
                f"session {terms.session_id} belongs to worker {session.owner}"
            )
        if for_activity:
            require_seat(session)
        return renew(session, now), Outcome.REUSED
    if not (session.terms.allow_reacquire_after_failure and terms.allow_reacquire_after_failure):
        raise SessionReacquireDisallowed(
            f"session {terms.session_id} failed ({session.failure_reason}), and takeover is off"
        )
    _require_room(claimant)
    taken = structs.replace(
        session,
        owner=worker.worker_id,
        status=SessionStatus.ACTIVE,
        failure_reason=None,
        seats=[],
    )
    return renew(taken, now), Outcome.REACQUIRED


def require_seat(session: Session) -> None:
    most = session.terms.max_concurrent_activities
    if len(session.seats) >= most:
        raise SessionActivityLimitExceeded(
            f"session {session.terms.session_id} runs {len(session.seats)} of {most} activities",
            max_concurrent_activities=most,
        )


def require_owned(session: Session, worker_id: str) -> None:
    """Refuse a worker that does not own the session, or if the session is not active."""
    if not session.is_active:
        raise SessionNotActive(
            f"session {session.terms.session_id} is {session.status}: {_ending(session)}"
        )
    require_owner(session, worker_id)


def require_owner(session: Session, worker_id: str) -> None:
    if session.owner != worker_id:
        raise SessionOwnerMismatch(
            f"session {session.terms.session_id} belongs to worker {session.owner}"
        )


def renew(session: Session, now: int, lease_seconds: int | None = None) -> Session:
    """Extend the lease, never beyond the time to live."""
    lease = (lease_seconds or session.terms.lease_seconds) * SECOND
    return structs.replace(
        session,
        lease_expires_at=min(now + lease, session.ttl_expires_at),
        heartbeat_at=now,
        updated_at=now,
    )


def close(session: Session, now: int, reason: str | None) -> Session:
    return structs.replace(
        session,
        status=SessionStatus.CLOSED,
        close_reason=reason,
        closed_at=now,
        updated_at=now,
        seats=[],
    )


def due_at(session: Session, *, holder: Worker | None) -> int:
    """When the session must be checked again."""
    if session.is_over:
        return session.updated_at + WORKER_SESSION_KEPT
    if not session.is_active:
        return session.ttl_expires_at
    ends_at = min(session.lease_expires_at, session.ttl_expires_at)
    if holder is None:
        return ends_at
    return min(ends_at, holder.heartbeat_at + holder.stale_after + 1)


def is_forgettable(session: Session, now: int) -> bool:
    """Whether the record of an ended session may be removed."""
    return session.is_over and now >= session.updated_at + WORKER_SESSION_KEPT


def _require_room(claimant: Claimant) -> None:
    most = claimant.worker.session_slots
    if claimant.held >= most:
        raise WorkerSessionLimitExceeded(
            f"worker {claimant.worker.worker_id} holds {claimant.held} of {most} sessions",
            max_concurrent_worker_sessions=most,
        )


def _begun(terms: SessionTerms, worker: Worker, now: int, *, queue: str) -> Session:
    ttl_expires_at = now + terms.ttl_seconds * SECOND
    return Session(
        terms=terms,
        queue=queue,
        owner=worker.worker_id,
        lease_expires_at=min(now + terms.lease_seconds * SECOND, ttl_expires_at),
        ttl_expires_at=ttl_expires_at,
        created_at=now,
        updated_at=now,
        heartbeat_at=now,
    )


def _failed(session: Session, now: int, status: SessionStatus, reason: str) -> Session:
    return structs.replace(session, status=status, failure_reason=reason, updated_at=now)


def _ending(session: Session) -> str:
    return session.failure_reason or session.close_reason or "closed"

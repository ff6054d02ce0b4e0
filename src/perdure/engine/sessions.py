"""Operations on worker sessions: their verbs, their time, and activities that belong to one."""

from collections.abc import Collection, Iterable
from typing import Protocol

from msgspec import Struct, field

from perdure.core.fleet.routing import session_of_name
from perdure.core.fleet.session import (
    Claimant,
    Outcome,
    Seat,
    Session,
    SessionTerms,
    admit,
    close,
    due_at,
    is_forgettable,
    refresh,
    renew,
    require_owned,
    require_owner,
)
from perdure.core.fleet.worker import Worker
from perdure.core.limits import SECOND, SESSION_CANDIDATES_MAX, SESSION_TASKS_PER_CLAIM_MAX
from perdure.core.rejection import (
    Rejection,
    SessionNotFound,
    SessionQueueMismatch,
    WorkerNotRegistered,
)
from perdure.core.run.operation import Activity
from perdure.core.run.state import Run
from perdure.engine.leasing import Leasing, is_ready
from perdure.engine.matching import Poller
from perdure.engine.operation import Operation
from perdure.engine.quotas import QuotaGate
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.store.interface import QueueKey, ReadyTask, RecordKey, Store


class StickyWorker(Struct):
    """The sessions that a worker was given; some may have ended since."""

    sessions: list[str] = field(default_factory=list)


SESSION = RecordKind("worker_session", Session)
HOLDER = RecordKind("worker_session_holder", StickyWorker)

WorkerKey = tuple[str, str]


class SessionOperation(Operation):
    """Looks first at what is on disk, to name everything that the decision needs."""

    __slots__ = ("_asked", "_keys", "_namespace", "_owners")
    reads_before_load = True

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._keys: tuple[RecordKey, ...] = ()
        self._owners: tuple[WorkerKey, ...] = ()
        self._asked: frozenset[str] = frozenset()

    def records(self) -> tuple[RecordKey, ...]:
        return self._keys

    def workers(self) -> tuple[WorkerKey, ...]:
        return self._owners

    async def look_at(
        self, store: Store, session_ids: Collection[str], worker_ids: Collection[str]
    ) -> None:
        """Find the sessions, what their owners run in them, and what some workers hold."""
        holders = [HOLDER.key(self._namespace, worker_id) for worker_id in worker_ids]
        found = await store.find_records(holders) if holders else {}
        held = {sid for record in found.values() for sid in HOLDER.decode(record).sessions}
        sessions = [SESSION.key(self._namespace, sid) for sid in {*session_ids, *held}]
        kept = await store.find_records(sessions) if sessions else {}
        known = [SESSION.decode(record) for record in kept.values()]
        self._keys = (*sessions, *holders)
        owners = {*worker_ids, *(session.owner for session in known)}
        self._owners = tuple((self._namespace, owner) for owner in owners)
        self._asked = frozenset(seat.run_id for session in known for seat in session.seats)

    def find(self, world: World, session_id: str) -> Session | None:
        """A session as it is by now, with the attempts that still run."""
        if SESSION.key(self._namespace, session_id) not in world.records:
            return None
        session = SESSION.find(world, self._namespace, session_id)
        if session is None:
            return None
        holder = world.find_worker(self._namespace, session.owner)
        session = refresh(session, world.ctx.now, holder=holder)
        session.seats = [seat for seat in session.seats if self._is_taken(world, seat)]
        return session

    def _is_taken(self, world: World, seat: Seat) -> bool:
        run = world.runs.get(seat.run_id)
        if run is None:
            return seat.run_id not in self._asked
        activity = run.operations.get(seat.sequence)
        if not isinstance(activity, Activity) or activity.lease is None:
            return False
        return activity.lease_number == seat.attempt

    def keep(self, world: World, session: Session) -> None:
        holder = world.find_worker(self._namespace, session.owner)
        due = due_at(session, holder=holder)
        # Never in the past, so that whoever is woken by it finds something else the next time.
        due = max(due, world.ctx.now + SECOND)
        SESSION.put(world, self._namespace, session.terms.session_id, session, due_at=due)

    def held_by(self, world: World, worker_id: str) -> list[str]:
        """The live sessions of a worker."""
        holder = HOLDER.find(world, self._namespace, worker_id) or StickyWorker()
        found = []
        for session_id in holder.sessions:
            session = self.find(world, session_id)
            if session is not None and session.is_active and session.owner == worker_id:
                found.append(session_id)
        return found

    def admitted(
        self,
        world: World,
        worker: Worker,
        terms: SessionTerms,
        *,
        queue: str,
        for_activity: bool,
    ) -> tuple[Session, Outcome]:
        """Let a worker have a session; it is kept by whoever asked."""
        held = self.held_by(world, worker.worker_id)
        session, outcome = admit(
            self.find(world, terms.session_id),
            terms,
            Claimant(worker, len(held)),
            world.ctx.now,
            queue=queue,
            for_activity=for_activity,
        )
        if outcome is not Outcome.REUSED:
            sessions = StickyWorker([*held, terms.session_id])
            HOLDER.put(world, self._namespace, worker.worker_id, sessions)
        return session, outcome


class CreateSession(SessionOperation):
    """A worker asks for a session before it polls."""

    __slots__ = ("_terms", "_worker_id")
    name = "create_session"

    def __init__(self, namespace: str, worker_id: str, terms: SessionTerms) -> None:
        super().__init__(namespace)
        self._worker_id = worker_id
        self._terms = terms

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        await self.look_at(store, [self._terms.session_id], [self._worker_id])
        return tuple(self._asked)

    def decide(self, world: World) -> tuple[Session, Outcome]:
        worker = world.find_worker(self._namespace, self._worker_id)
        if worker is None or not worker.is_active(world.ctx.now):
            raise WorkerNotRegistered(
                f"worker {self._worker_id} is not registered", worker_id=self._worker_id
            )
        queue = self._terms.queue or worker.queue
        if queue != worker.queue:
            raise SessionQueueMismatch(
                f"worker {worker.worker_id} is registered for queue {worker.queue}",
                registered_task_queue=worker.queue,
                requested_task_queue=queue,
            )
        session, outcome = self.admitted(
            world, worker, self._terms, queue=queue, for_activity=False
        )
        self.keep(world, session)
        return session, outcome


class KnownSession(SessionOperation):
    """Something that happens to a session that must exist."""

    __slots__ = ("_session_id",)

    def __init__(self, namespace: str, session_id: str) -> None:
        super().__init__(namespace)
        self._session_id = session_id

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        await self.look_at(store, [self._session_id], [])
        return tuple(self._asked)

    def require(self, world: World) -> Session:
        session = self.find(world, self._session_id)
        if session is None:
            raise SessionNotFound(f"session {self._session_id} does not exist")
        return session


class HeartbeatSession(KnownSession):
    """The owner keeps its session."""

    __slots__ = ("_lease_seconds", "_worker_id")
    name = "heartbeat_session"

    def __init__(
        self, namespace: str, session_id: str, worker_id: str, lease_seconds: int | None
    ) -> None:
        super().__init__(namespace, session_id)
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds

    def decide(self, world: World) -> Session:
        session = self.require(world)
        require_owned(session, self._worker_id)
        session = renew(session, world.ctx.now, self._lease_seconds)
        self.keep(world, session)
        return session


class CloseSession(KnownSession):
    """The owner lets its session go. Repeating it changes nothing."""

    __slots__ = ("_reason", "_worker_id")
    name = "close_session"

    def __init__(self, namespace: str, session_id: str, worker_id: str, reason: str | None) -> None:
        super().__init__(namespace, session_id)
        self._worker_id = worker_id
        self._reason = reason

    def decide(self, world: World) -> tuple[Session, bool]:
        """The session, and whether it was closed by this."""
        session = self.require(world)
        require_owner(session, self._worker_id)
        if session.is_over:
            return session, False
        session = close(session, world.ctx.now, self._reason)
        self.keep(world, session)
        return session, True


class ExpireSession(KnownSession):
    """Time has come for a session: it expires, its owner went silent, or it is forgotten."""

    __slots__ = ()
    name = "pass_session"

    def decide(self, world: World) -> bool:
        session = self.find(world, self._session_id)
        if session is None:
            return True
        if is_forgettable(session, world.ctx.now):
            SESSION.remove(world, self._namespace, self._session_id)
        else:
            self.keep(world, session)
        return True


# Activities that belong to a session --------------------------------------------------------------


def session_key(run: Run, activity: Activity) -> RecordKey | None:
    """The session that an activity belongs to."""
    if activity.session is None:
        return None
    return SESSION.key(run.namespace, activity.session.session_id)


def find_session(world: World, run: Run, activity: Activity) -> Session | None:
    """The session of an activity, by the clock alone: its owner is just speaking to us."""
    if activity.session is None:
        return None
    session = SESSION.find(world, run.namespace, activity.session.session_id)
    if session is None:
        return None
    now = world.ctx.now
    if session.is_active and now >= min(session.lease_expires_at, session.ttl_expires_at):
        return refresh(session, now, holder=None)
    return session


def renew_session(world: World, run: Run, activity: Activity, worker_id: str) -> Session | None:
    """A sign of life of an activity is one of its session too; a lost session refuses it."""
    if activity.session is None:
        return None
    session = find_session(world, run, activity)
    session_id = activity.session.session_id
    if session is None:
        raise SessionNotFound(f"session {session_id} does not exist")
    require_owned(session, worker_id)
    session = renew(session, world.ctx.now)
    holder = world.find_worker(run.namespace, worker_id)
    SESSION.put(world, run.namespace, session_id, session, due_at=due_at(session, holder=holder))
    return session


class QueueWorkers(Protocol):
    """Those who wait for an activity and could have one of a session."""

    def candidates(self, key: QueueKey) -> list[Poller]: ...
    def can_take(self, poller: Poller, name: str) -> bool: ...
    def take(self, poller: Poller) -> bool:
        """Reserve a poller; false if it has just left."""
        ...


class Blocked(Struct, frozen=True):
    """A task that nobody who waits may have now."""

    name: str
    reason: str
    behind: frozenset[str]
    """Runs whose next change may free it."""


class SessionsClaimed(Struct, frozen=True):
    """What a look at waiting tasks of sessions came to."""

    blocked: list[Blocked]
    is_all: bool


class ClaimSessionTasks(SessionOperation):
    """Ready activities of sessions for parked polls of workers who may own the session."""

    __slots__ = (
        "_crew",
        "_found",
        "_is_all",
        "_key",
        "_leasing",
        "_names",
        "_turnstile",
        "_weighed",
    )
    name = "claim_session_tasks"
    locks_rows = True

    def __init__(
        self, key: QueueKey, names: Collection[str], crew: QueueWorkers, leasing: Leasing
    ) -> None:
        super().__init__(key.namespace)
        self._key = key
        self._names = names
        self._crew = crew
        self._leasing = leasing
        self._found: list[ReadyTask] = []
        self._is_all = False
        self._weighed: frozenset[str] = frozenset()
        quotas = leasing.quotas(key)
        self._turnstile = QuotaGate(key.namespace, quotas) if quotas else None

    def records(self) -> tuple[RecordKey, ...]:
        ledgers = () if self._turnstile is None else self._turnstile.keys()
        return (*super().records(), *ledgers)

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        limit = SESSION_TASKS_PER_CLAIM_MAX
        self._found = await store.load_ready(self._key, self._names, limit)
        self._is_all = len(self._found) < limit
        candidates = self._crew.candidates(self._key)[:SESSION_CANDIDATES_MAX]
        self._weighed = frozenset(poller.worker.worker_id for poller in candidates)
        sessions = {session_of_name(task.name) for task in self._found}
        await self.look_at(store, sessions, self._weighed)
        if self._turnstile is not None:
            await self._turnstile.look_at(store, len(self._found))
        return (*(task.run_id for task in self._found), *self._asked)

    def decide(self, world: World) -> SessionsClaimed:
        blocked: dict[str, Blocked] = {}
        if self._turnstile is not None:
            self._turnstile.open(world)
        for run_id, place, name in self._found:
            run = world.runs.get(run_id)
            if run is None:
                continue
            activity = run.operations.get(place)
            if not is_ready(run, place) or not isinstance(activity, Activity):
                # A row that says otherwise would be found again for ever.
                run.unsaved.ready.setdefault(place, False)
                world.changed(run)
                continue
            refusal = self._give(world, run, activity, name)
            if refusal is not None:
                blocked[name] = refusal
        if self._turnstile is not None:
            self._turnstile.close(world)
        return SessionsClaimed(list(blocked.values()), self._is_all)

    def _give(self, world: World, run: Run, activity: Activity, name: str) -> Blocked | None:
        terms = activity.session
        assert terms is not None, "only activities of sessions wait here"
        shut = None if self._turnstile is None else self._turnstile.shut(world)
        if shut is not None:
            return Blocked(name, "throttled", shut.behind)
        reason = "no_worker"
        for poller in self._crew.candidates(self._key):
            worker = world.find_worker(self._namespace, poller.worker.worker_id)
            if worker is None or worker.worker_id not in self._weighed:
                continue
            if not self._crew.can_take(poller, name):
                continue
            try:
                # Decided before anything is written, so that a refusal leaves nothing behind.
                session, _ = self.admitted(
                    world, worker, terms, queue=activity.queue, for_activity=True
                )
            except Rejection as refusal:
                reason = refusal.reason
                continue
            if not self._crew.take(poller):
                continue
            self._leasing.grant(world, run, activity.sequence, poller)
            if self._turnstile is not None:
                self._turnstile.let_through(world, run, activity.sequence)
            session.seats.append(Seat(run.run_id, activity.sequence, activity.lease_number))
            self.keep(world, session)
            return None
        session_now = self.find(world, terms.session_id)
        seats: Iterable[Seat] = () if session_now is None else session_now.seats
        return Blocked(name, reason, frozenset(seat.run_id for seat in seats))

"""Operations of workers on activity tasks."""

import msgspec
from msgspec import Struct

from perdure.core.fleet.session import Session
from perdure.core.payload import Frame, PayloadError, encode
from perdure.core.rejection import InvalidRequest, TaskNotFound
from perdure.core.run.activity import (
    AttemptStatus,
    Reported,
    attempt_status,
    complete_activity,
    fail_activity,
    heartbeat_activity,
    redeliver_activity,
    renew_activity,
    require_attempt,
    return_activity,
)
from perdure.core.run.deadline import activity_deadlines
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import Activity
from perdure.core.run.reframe import envelope_json
from perdure.core.run.state import Run, activity_task_id, workflow_task_id
from perdure.engine.operation import Operation
from perdure.engine.sessions import find_session, renew_session, session_key
from perdure.engine.world import World
from perdure.store.interface import RecordKey


class AttemptRef(Struct, frozen=True, kw_only=True):
    """Which attempt a worker speaks of."""

    namespace: str
    run_id: str
    sequence: int
    attempt_id: str
    owner: str


class AttemptOperation(Operation):
    """A report on a leased attempt."""

    __slots__ = ("_ref",)
    names_only_runs = True

    def __init__(self, ref: AttemptRef) -> None:
        self._ref = ref

    def run_ids(self) -> tuple[str, ...]:
        return (self._ref.run_id,)

    def require_run(self, world: World) -> Run:
        run = world.runs.get(self._ref.run_id)
        if run is None or run.namespace != self._ref.namespace:
            raise TaskNotFound("the activity task does not exist")
        return run

    def closer_records(self, world: World) -> tuple[RecordKey, ...]:
        """The session that the attempt belongs to, for those who look closer."""
        run = world.runs.get(self._ref.run_id)
        activity = None if run is None else run.operations.get(self._ref.sequence)
        if run is None or not isinstance(activity, Activity):
            return ()
        key = session_key(run, activity)
        return () if key is None else (key,)

    def require_activity(self, run: Run) -> Activity:
        ref = self._ref
        return require_attempt(
            run, sequence=ref.sequence, attempt_id=ref.attempt_id, owner=ref.owner
        )


class Recorded(Struct, frozen=True):
    """An outcome that was taken; `next_task_id` is what it led to."""

    next_task_id: str | None


class CompleteActivity(AttemptOperation):
    """The attempt has a result: an encoded payload, or plain JSON to be encoded."""

    __slots__ = ("_plain", "_result")
    name = "complete_activity"

    def __init__(self, ref: AttemptRef, result: bytes | None, *, plain: bool = False) -> None:
        super().__init__(ref)
        self._result = result
        self._plain = plain

    def decide(self, world: World) -> Recorded:
        run = self.require_run(world)
        activity = self.require_activity(run)
        result = self._result
        if self._plain and result is not None:
            result = _encode_plain(result, Frame(run.frame))
        complete_activity(run, world.ctx, activity, result)
        world.changed(run)
        return Recorded(_next_workflow_task(run))


class FailActivity(AttemptOperation):
    """The attempt failed."""

    __slots__ = ("_failure",)
    name = "fail_activity"

    def __init__(self, ref: AttemptRef, failure: Reported) -> None:
        super().__init__(ref)
        self._failure = failure

    def decide(self, world: World) -> Recorded:
        run = self.require_run(world)
        activity = self.require_activity(run)
        retried = fail_activity(run, world.ctx, activity, self._failure)
        world.changed(run)
        return Recorded(activity_task_id(run, activity) if retried else _next_workflow_task(run))


def _encode_plain(result: bytes, frame: Frame) -> bytes:
    try:
        return envelope_json(encode(msgspec.json.decode(result), frame))
    except PayloadError as error:
        raise InvalidRequest("result", error.message) from None


def _next_workflow_task(run: Run) -> str | None:
    return None if run.task is None else workflow_task_id(run, run.task)


class Acknowledgement(Struct, frozen=True):
    """What a worker has to name when it says that a cancelled attempt has stopped."""

    request_id: str
    root_request_id: str
    deadline_at: int
    event_id: str
    is_stopped: bool


class AttemptView(Struct, frozen=True, kw_only=True):
    """How an attempt stands, for a worker that asks."""

    can_continue: bool
    cancel_requested: bool
    reason: str | None
    recorded: bool = False
    workflow_id: str = ""
    execution_id: str | None = None
    attempt_number: int | None = None
    lease_expires_at: int | None = None
    heartbeat_at: int | None = None
    deadlines: dict[str, int] = {}
    session: Session | None = None
    run_closed_reason: str | None = None
    run_closed_at: int | None = None
    # Of an attempt that is to stop because its caller was asked to cancel itself.
    acknowledgement: Acknowledgement | None = None


class HeartbeatActivity(AttemptOperation):
    """A sign of life with progress. Answers whether to go on, never with an error for a stop."""

    __slots__ = ("_progress", "_timeout")
    name = "heartbeat_activity"
    reads_after_load = True

    def __init__(self, ref: AttemptRef, *, timeout: int, progress: bytes | None) -> None:
        super().__init__(ref)
        self._timeout = timeout
        self._progress = progress

    def decide(self, world: World) -> AttemptView:
        run = self.require_run(world)
        stand = _standing(run, self._ref)
        if stand.activity is None:
            return _stopped(run, stand)
        session = renew_session(world, run, stand.activity, self._ref.owner)
        heartbeat_activity(
            run, world.ctx, stand.activity, timeout=self._timeout, progress=self._progress
        )
        world.changed(run)
        return _view(run, stand.activity, recorded=True, session=session)


class RenewActivity(AttemptOperation):
    """The worker's runtime keeps its claim; says nothing about progress."""

    __slots__ = ("_timeout",)
    name = "renew_activity"
    reads_after_load = True

    def __init__(self, ref: AttemptRef, *, timeout: int) -> None:
        super().__init__(ref)
        self._timeout = timeout

    def decide(self, world: World) -> AttemptView:
        run = self.require_run(world)
        activity = self.require_activity(run)
        renew_session(world, run, activity, self._ref.owner)
        renew_activity(run, world.ctx, activity, timeout=self._timeout)
        world.changed(run)
        return _view(run, activity)


class AskActivity(AttemptOperation):
    """The worker only asks how its attempt stands."""

    __slots__ = ()
    name = "ask_activity"
    reads_after_load = True

    def decide(self, world: World) -> AttemptView:
        run = self.require_run(world)
        stand = _standing(run, self._ref)
        if stand.activity is None:
            return _stopped(run, stand)
        return _view(run, stand.activity, session=find_session(world, run, stand.activity))


class ReleaseActivity(AttemptOperation):
    """The poll that was to receive this lease is gone: nobody works on it."""

    __slots__ = ("_was_seen",)
    name = "release_activity"

    def __init__(self, ref: AttemptRef, *, was_seen: bool) -> None:
        super().__init__(ref)
        # Whether a worker may have begun all the same.
        self._was_seen = was_seen

    def decide(self, world: World) -> None:
        run = world.runs.get(self._ref.run_id)
        activity = None if run is None else run.operations.get(self._ref.sequence)
        if run is None or not isinstance(activity, Activity):
            return
        lease = activity.lease
        if lease is None or activity.state is not TaskState.LEASED:
            return
        if (lease.owner, activity.attempt_id) != (self._ref.owner, self._ref.attempt_id):
            return
        give_up = redeliver_activity if self._was_seen else return_activity
        give_up(run, world.ctx, activity)
        world.changed(run)


def _standing(run: Run, ref: AttemptRef) -> AttemptStatus:
    return attempt_status(run, sequence=ref.sequence, attempt_id=ref.attempt_id, owner=ref.owner)


def _view(
    run: Run, activity: Activity, *, recorded: bool = False, session: Session | None = None
) -> AttemptView:
    lease = activity.lease
    assert lease is not None
    return AttemptView(
        can_continue=True,
        cancel_requested=False,
        reason=None,
        recorded=recorded,
        workflow_id=run.workflow_id,
        execution_id=activity.execution_id,
        attempt_number=activity.attempt,
        lease_expires_at=lease.expires_at,
        heartbeat_at=activity.heartbeat_at,
        deadlines={k: at for k, at in activity_deadlines(activity) if k != "lease"},
        session=session,
    )


def _stopped(run: Run, stand: AttemptStatus) -> AttemptView:
    return AttemptView(
        can_continue=False,
        cancel_requested=stand.cancel_requested,
        reason=stand.reason,
        workflow_id=run.workflow_id,
        run_closed_reason=run.closed_reason,
        run_closed_at=run.closed_at,
        acknowledgement=_acknowledgement(run, stand),
    )


def _acknowledgement(run: Run, stand: AttemptStatus) -> Acknowledgement | None:
    cancellation = run.cancellation
    if stand.acknowledged is None or cancellation is None or cancellation.event_id is None:
        return None
    return Acknowledgement(
        cancellation.request_id,
        cancellation.root_request_id,
        cancellation.deadline_at,
        cancellation.event_id,
        stand.acknowledged,
    )

"""A leased task as it is handed to a poller: a copy, since its run goes on changing."""

from typing import NamedTuple, Protocol

from msgspec import Struct

from perdure.core.fleet.session import SessionTerms
from perdure.core.run.deadline import activity_deadlines
from perdure.core.run.history_budget import HistorySize
from perdure.core.run.lease import Lease
from perdure.core.run.message import arguments_of_signal
from perdure.core.run.operation import NO_TIMEOUTS, Activity, ActivityTimeouts, RetryPolicy
from perdure.core.run.state import (
    VALIDATION,
    WORKFLOW_TASK,
    Run,
    WorkflowTask,
    activity_task_id,
    validation_task_id,
    workflow_task_id,
)
from perdure.core.run.state_parts import Cancellation, TraceLink
from perdure.core.run.update import update_in_validation
from perdure.engine.cancellation import Observation, observe
from perdure.engine.workflow_tasks import page_of
from perdure.store.interface import PollLease


class WorkflowDelivery(Struct, frozen=True, kw_only=True):
    """A leased workflow task. `events` is None when its first page must be read from disk."""

    task_id: str
    run_id: str
    workflow_id: str
    workflow_type: str
    queue: str
    number: int
    attempt: int
    owner: str
    lease_expires_at: int
    arguments: bytes
    run_status: str
    size: HistorySize
    page_size: int
    events: list[bytes] | None
    resume: dict[str, str | int]
    build_id: str | None
    signal_arguments: bytes | None = None
    cancellation: Observation | None = None
    trace: bytes | None = None
    links: tuple[TraceLink, ...] = ()
    replay_mode: str | None = None


class ValidationDelivery(Struct, frozen=True, kw_only=True):
    """A leased validation, with the whole history. `events` is None when it is only on disk."""

    task_id: str
    run_id: str
    workflow_id: str
    workflow_type: str
    queue: str
    number: int
    attempt: int
    owner: str
    lease_expires_at: int
    arguments: bytes
    update_id: str
    update_name: str
    update_arguments: bytes | None
    size: HistorySize
    events: list[bytes] | None
    build_id: str | None


class ActivityDelivery(Struct, frozen=True, kw_only=True):
    """A leased attempt of an activity."""

    task_id: str
    run_id: str
    workflow_id: str
    sequence: int
    execution_id: str
    attempt_id: str
    attempt: int
    lease_number: int
    activity_type: str
    queue: str
    owner: str
    lease_expires_at: int
    arguments: bytes
    retry: RetryPolicy | None
    timeouts: ActivityTimeouts
    deadlines: dict[str, int]
    session: SessionTerms | None = None
    trace: bytes | None = None


Delivery = WorkflowDelivery | ValidationDelivery | ActivityDelivery


def deliver_workflow_task(run: Run, page_size: int) -> WorkflowDelivery | ValidationDelivery:
    """Copy a workflow task that was just leased."""
    task = run.task
    assert task is not None
    lease = task.lease
    assert lease is not None
    if task.kind is VALIDATION:
        return deliver_validation(run)
    page = page_of(run, after=0, limit=page_size)
    return WorkflowDelivery(
        task_id=workflow_task_id(run, task),
        run_id=run.run_id,
        workflow_id=run.workflow_id,
        workflow_type=run.workflow_type,
        queue=run.queue,
        number=task.number,
        attempt=task.attempt,
        owner=lease.owner,
        lease_expires_at=lease.expires_at,
        arguments=run.arguments,
        run_status=str(run.status),
        size=page.size,
        page_size=page_size,
        events=page.events,
        resume=task.resume,
        build_id=run.build_id,
        signal_arguments=_signal_arguments(run, task),
        cancellation=None if run.cancellation is None else _observed(run.cancellation),
        trace=run.trace,
        links=tuple(run.links),
        replay_mode=task.replay_mode,
    )


def _signal_arguments(run: Run, task: WorkflowTask) -> bytes | None:
    signal_id = task.resume.get("workflow_signal_id")
    return None if signal_id is None else arguments_of_signal(run, str(signal_id))


def _observed(cancellation: Cancellation) -> Observation | None:
    """The request to cancel, if the delivered history tells of it."""
    return None if cancellation.event_id is None else observe(cancellation)


def deliver_validation(run: Run) -> ValidationDelivery:
    """Copy a validation that was just leased."""
    task, update = run.task, update_in_validation(run)
    assert task is not None
    assert task.lease is not None
    assert update is not None
    page = page_of(run, after=0, limit=run.history_count)
    return ValidationDelivery(
        task_id=validation_task_id(run, task),
        run_id=run.run_id,
        workflow_id=run.workflow_id,
        workflow_type=run.workflow_type,
        queue=run.queue,
        number=task.number,
        attempt=task.attempt,
        owner=task.lease.owner,
        lease_expires_at=task.lease.expires_at,
        arguments=run.arguments,
        update_id=update.update_id,
        update_name=update.name,
        update_arguments=update.arguments,
        size=page.size,
        events=page.events,
        build_id=run.build_id,
    )


def deliver_activity(run: Run, activity: Activity) -> ActivityDelivery:
    """Copy an attempt that was just leased."""
    lease = activity.lease
    assert lease is not None
    deadlines: dict[str, int] = {}
    if activity.timeouts != NO_TIMEOUTS:
        deadlines = {kind: at for kind, at in activity_deadlines(activity) if kind != "lease"}
    if run.run_deadline_at is not None:
        deadlines["run"] = run.run_deadline_at
    if run.execution_deadline_at is not None:
        deadlines["execution"] = run.execution_deadline_at
    return ActivityDelivery(
        task_id=activity_task_id(run, activity),
        run_id=run.run_id,
        workflow_id=run.workflow_id,
        sequence=activity.sequence,
        execution_id=activity.execution_id,
        attempt_id=activity.attempt_id,
        attempt=activity.attempt,
        lease_number=activity.lease_number,
        activity_type=activity.activity_type,
        queue=activity.queue,
        owner=lease.owner,
        lease_expires_at=lease.expires_at,
        arguments=activity.arguments,
        retry=activity.retry,
        timeouts=activity.timeouts,
        deadlines=deadlines,
        session=activity.session,
        trace=run.trace,
    )


class Claim(NamedTuple):
    """Which lease a poll was given: enough to find it again while it stands, and no other one.

    An activity is known by its place, and numbers its leases through. A workflow task has a number
    of its own, `task`: the next one takes its place, and numbers its leases from one again.
    """

    run_id: str
    place: int
    task: int | None
    number: int
    owner: str

    @property
    def is_vague(self) -> bool:
        """Whether it could be of several workflow tasks; see `TaskHandover`."""
        return self.place == WORKFLOW_TASK and self.task is None

    def names(self, held: "Claim") -> bool:
        """Whether it speaks of a lease, by all that it says."""
        return self == (held if self.task is not None else held._replace(task=None))


def claim_of(delivery: Delivery) -> Claim:
    if isinstance(delivery, ActivityDelivery):
        return Claim(
            delivery.run_id, delivery.sequence, None, delivery.lease_number, delivery.owner
        )
    return Claim(delivery.run_id, WORKFLOW_TASK, delivery.number, delivery.attempt, delivery.owner)


def find_claim(run: Run, place: int) -> Claim | None:
    """What names the lease that stands at a place of a run."""
    if place == WORKFLOW_TASK:
        task = run.task
        if task is None or task.lease is None:
            return None
        return Claim(run.run_id, place, task.number, task.attempt, task.lease.owner)
    activity = run.operations.get(place)
    if not isinstance(activity, Activity) or activity.lease is None:
        return None
    return Claim(run.run_id, place, None, activity.lease_number, activity.lease.owner)


def deliver_again(run: Run, claim: Claim, page_size: int) -> Delivery | None:
    """The same lease once more, if it still stands."""
    held = find_claim(run, claim.place)
    if held is None or not claim.names(held):
        return None
    return _deliver(run, claim.place, page_size)


class PollName(NamedTuple):
    """What a worker calls one of its polls. Polls for other tasks may be called the same."""

    namespace: str
    kind: str
    owner: str
    poll_id: str


class Named(Protocol):
    """A poll that has a name, and which tasks it takes if it is for workflows."""

    @property
    def poll_name(self) -> PollName: ...
    @property
    def progress(self) -> bool: ...
    @property
    def validations(self) -> bool: ...
    @property
    def page_size(self) -> int: ...


def poll_of(lease: PollLease) -> PollName:
    """The poll that a lease was granted to."""
    return PollName(lease.namespace, _kind_at(lease.place), lease.owner, lease.poll_id)


def deliver_to_poll(run: Run, place: int, poll: Named) -> Delivery | None:
    """The lease that was granted to one poll, if this is it."""
    lease = find_lease(run, place)
    if lease is None:
        return None
    if (run.namespace, _kind_at(place), lease.owner, lease.poll_id) != poll.poll_name:
        return None
    delivery = _deliver(run, place, poll.page_size)
    if isinstance(delivery, ActivityDelivery):
        return delivery
    is_taken = poll.validations if isinstance(delivery, ValidationDelivery) else poll.progress
    return delivery if is_taken else None


def _kind_at(place: int) -> str:
    return "workflow" if place == WORKFLOW_TASK else "activity"


def find_lease(run: Run, place: int) -> Lease | None:
    """The lease that stands at a place of a run."""
    task = run.task if place == WORKFLOW_TASK else run.operations.get(place)
    return task.lease if isinstance(task, WorkflowTask | Activity) else None


def _deliver(run: Run, place: int, page_size: int) -> Delivery:
    if place == WORKFLOW_TASK:
        return deliver_workflow_task(run, page_size)
    activity = run.operations[place]
    assert isinstance(activity, Activity)
    return deliver_activity(run, activity)

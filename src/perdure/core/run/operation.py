"""What a run has opened and waits for: its operations, and the groups that they stand in."""

from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct, field

from perdure.core.external import Reference
from perdure.core.fleet.session import SessionTerms
from perdure.core.run.claim import Claim
from perdure.core.run.inbox import Signal
from perdure.core.run.lease import Lease, TaskState
from perdure.core.run.push import ApprovalWait, StepRetry

Metadata: TypeAlias = dict[str, Any]
"""Parallel-group members of a command, copied to every event of its operation."""


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """`attempts_max` None means without end. The last backoff repeats; none means no delay."""

    attempts_max: int | None = 1
    backoff_seconds: list[int] = field(default_factory=list)
    non_retryable_types: list[str] = field(default_factory=list)


class Held(Struct, omit_defaults=True):
    """An event that is decided but not yet in history. `failed` matters for terminal ones."""

    event_type: str
    payload: bytes
    failed: bool = False


class Step(Struct, kw_only=True, omit_defaults=True):
    """What every open operation of a run has in common."""

    sequence: int
    metadata: Metadata | None = None
    group: int | None = None
    held: list[Held] = field(default_factory=list)
    outcome: Held | None = None
    # The code was interrupted here and waits no more; what was started goes on by itself.
    detached: bool = False


class ActivityTimeouts(Struct, frozen=True, omit_defaults=True):
    """Lengths in seconds, as the command gave them."""

    schedule_to_start: int | None = None
    start_to_close: int | None = None
    schedule_to_close: int | None = None
    heartbeat: int | None = None


NO_TIMEOUTS = ActivityTimeouts()


class Activity(Step, kw_only=True, tag="activity"):
    """A logical call, tried one attempt at a time."""

    execution_id: str
    activity_type: str
    queue: str
    arguments: bytes
    scheduled_at: int
    available_at: int
    retry: RetryPolicy | None = None
    timeouts: ActivityTimeouts = field(default_factory=ActivityTimeouts)
    state: TaskState = TaskState.READY
    attempt: int = 0
    lease: Lease | None = None
    heartbeat_at: int | None = None
    heartbeat_count: int = 0
    heartbeat_noted_at: int | None = None
    cancellation_policy: str | None = None
    last_failure: str | None = None
    session: SessionTerms | None = None
    # The code waits until whoever runs it has stopped; there is no further attempt.
    cancel_requested: bool = False
    # Leases that came back unseen. They are no attempts, but nobody may have one of them again.
    undelivered: int = 0

    @property
    def identity(self) -> str:
        return self.execution_id

    @property
    def lease_number(self) -> int:
        """Tells every lease from every other."""
        return self.attempt + self.undelivered

    @property
    def attempt_id(self) -> str:
        """Names one try; the number at its end tells an old try from a foreign one."""
        return f"{self.execution_id.upper()}-{self.attempt + self.undelivered}"


class LocalActivity(Step, kw_only=True, tag="local"):
    """A call that the worker of the workflow task runs itself, with leave, attempt by attempt.

    It is leased while a claim holds an attempt of it, also when that claim is gone and nobody has
    said so yet; ready when the next worker may begin an attempt.
    """

    execution_id: str
    activity_type: str
    scheduled_at: int
    available_at: int
    retry: RetryPolicy | None = None
    timeouts: ActivityTimeouts = field(default_factory=ActivityTimeouts)
    cancellation_policy: str | None = None
    state: TaskState = TaskState.READY
    attempt: int = 0
    claim: Claim | None = None
    # What the worker calls the attempt.
    nonce: str = ""
    started_at: int = 0
    heartbeat_at: int | None = None
    heartbeat_count: int = 0
    heartbeat_noted_at: int | None = None
    heartbeat_event_id: str = ""
    last_failure: str | None = None
    # It tidies up behind a cancellation, and has as long as that.
    cleanup: bool = False
    # The code is to be cancelled here, and nothing that the attempt says counts any more.
    fenced: bool = False

    @property
    def identity(self) -> str:
        return self.execution_id

    @property
    def attempt_id(self) -> str:
        """Names one try, as that of any activity."""
        return f"{self.execution_id.upper()}-{self.attempt}"


class Timer(Step, kw_only=True, tag="timer"):
    """A durable sleep."""

    timer_id: str
    delay_seconds: int
    fire_at: int

    @property
    def identity(self) -> str:
        return self.timer_id


class Child(Step, kw_only=True, tag="child"):
    """A child workflow that this run waits for. `identity` stays that of its first run."""

    identity: str
    workflow_id: str
    run_id: str
    workflow_type: str
    run_number: int = 1
    attempt: int = 1
    parent_close_policy: str | None = None
    cancellation_policy: str | None = None
    retry: RetryPolicy | None = None

    @property
    def call_id(self) -> str:
        return self.identity


class ConditionWait(Step, kw_only=True, tag="condition"):
    """The worker's code waits until its predicate is true."""

    wait_id: str
    opened_at: int
    key: str | None = None
    fingerprint: str | None = None
    timeout_seconds: int | None = None
    timer_id: str | None = None
    fire_at: int | None = None
    # Nothing has come since it was opened that could have made its predicate true.
    quiet: bool = False
    # Something of another operation stands in history behind its opening.
    overtaken: bool = False
    # Its worker counts the calls of the code, and opening it again is no new call.
    keeps_number: bool = False
    # Its worker may be asked to cancel the code, and looks for the first call without an end.
    cooperative: bool = False
    # How many messages stand in history behind its opening.
    messages: int = 0

    @property
    def identity(self) -> str:
        return self.wait_id


class SignalWait(Step, kw_only=True, tag="signal"):
    """The worker's code waits for one signal by name."""

    wait_id: str
    opened_at: int
    signal_name: str
    timeout_seconds: int | None = None
    timer_id: str | None = None
    fire_at: int | None = None
    signal: Signal | None = None

    @property
    def identity(self) -> str:
        return self.wait_id


class StepState(StrEnum):
    """Where a step of a push run stands."""

    WAITING = "waiting"
    BACKOFF = "backoff"
    RUNNABLE = "runnable"
    FINISHED = "finished"


class PushStep(Step, kw_only=True, tag="step"):
    """A step of a push run, known by its hashed id.

    It stays with its run when it has finished: `entry` is its member of the memo, as it is sent.
    `kind` says what it is: `run`, `sleep`, `wait`, `child` and so on.
    """

    step_id: str
    name: str
    kind: str
    opened_at: int
    state: StepState = StepState.WAITING
    attempt: int = 1
    entry: bytes = b""
    payload: Reference | None = None
    """Where the result is stored, if `entry` only refers to it."""
    fire_at: int | None = None
    retry: StepRetry | None = None
    event_name: str | None = None
    event_filter: str | None = None
    event_match: bytes | None = None
    event_index: str = ""
    """Under which equalities this wait is found; none when it is tried for every event."""
    child_run_id: str | None = None
    approval: ApprovalWait | None = None

    @property
    def identity(self) -> str:
        return self.step_id

    @property
    def is_open(self) -> bool:
        return self.state is not StepState.FINISHED


class ServiceCall(Step, kw_only=True, tag="service"):
    """A call of a service operation that this run waits for, in this namespace or another."""

    call_id: str
    namespace: str
    endpoint: str
    service: str
    operation: str
    mode: str
    wait_for: str
    idempotency_key: str | None = None
    fire_at: int | None = None

    @property
    def identity(self) -> str:
        return self.call_id

    @property
    def name(self) -> str:
        return f"{self.endpoint}/{self.service}/{self.operation}"


Operation: TypeAlias = (
    Activity | LocalActivity | Timer | Child | ConditionWait | SignalWait | ServiceCall | PushStep
)


class GroupMode(StrEnum):
    """How a group wakes its run: when all ended, likewise but in order, or by its first."""

    ALL = "all"
    ORDERED = "ordered"
    SELECT = "select"


class Member(Struct, array_like=True):
    """One member of a selection: an operation, or a list of them."""

    key: str | int
    index: int
    base: int
    size: int
    kind: str
    identity: str
    open: int
    cancelled: bool = False
    # Whether history tells of a leaf that failed: then it has ended, whatever the others do.
    failed: bool = False


class Group(Struct):
    """Operations that the code waits for together.

    `open` counts members without an outcome, `unrecorded` those without one in history.
    """

    mode: GroupMode
    base: int
    size: int
    open: int
    unrecorded: int
    group_id: str | None = None
    members: list[Member] = field(default_factory=list)
    winner: int | None = None
    # Whether history tells of a member that failed.
    failed: bool = False
    # The code was asked to cancel here and waits for some members to stop; nobody wins any more.
    interrupted: bool = False

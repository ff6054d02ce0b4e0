"""Operations: the open steps that a run waits for, and the groups that they belong to."""

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
    """`attempts_max` None means no limit. The last backoff repeats; an empty list is no delay."""

    attempts_max: int | None = 1
    backoff_seconds: list[int] = field(default_factory=list)
    non_retryable_types: list[str] = field(default_factory=list)


class Held(Struct, omit_defaults=True):
    """An event that is decided but not yet in history. `failed` is used for outcomes only."""

    event_type: str
    payload: bytes
    failed: bool = False


class Step(Struct, kw_only=True, omit_defaults=True):
    """Common members of the operations of a run."""

    sequence: int
    metadata: Metadata | None = None
    group: int | None = None
    held: list[Held] = field(default_factory=list)
    outcome: Held | None = None
    # The code was interrupted here and no longer waits; the operation continues by itself.
    detached: bool = False


class ActivityTimeouts(Struct, frozen=True, omit_defaults=True):
    """Time-outs in seconds, as the command set them."""

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
    # The code waits until the worker of the attempt has stopped; there is no further attempt.
    cancel_requested: bool = False
    # Leases that were not delivered. They are no attempts, but their numbers are not reused.
    undelivered: int = 0

    @property
    def identity(self) -> str:
        return self.execution_id

    @property
    def lease_number(self) -> int:
        """Unique per lease of the activity."""
        return self.attempt + self.undelivered

    @property
    def attempt_id(self) -> str:
        """The id of an attempt; its number distinguishes an old attempt from an unknown one."""
        return f"{self.execution_id.upper()}-{self.attempt + self.undelivered}"


class LocalActivity(Step, kw_only=True, tag="local"):
    """A call that the worker of the workflow task runs itself, with permission for each attempt.

    It is leased while a claim holds an attempt of it, also if that claim was lost and this is not
    reported yet; ready when the next worker may begin an attempt.
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
    # The worker's own name of the attempt.
    nonce: str = ""
    started_at: int = 0
    heartbeat_at: int | None = None
    heartbeat_count: int = 0
    heartbeat_noted_at: int | None = None
    heartbeat_event_id: str = ""
    last_failure: str | None = None
    # It belongs to the clean-up after a cancellation, and has the deadline of that.
    cleanup: bool = False
    # The code will be cancelled here; reports of the attempt are rejected.
    fenced: bool = False

    @property
    def identity(self) -> str:
        return self.execution_id

    @property
    def attempt_id(self) -> str:
        """The id of an attempt, in the form of all activities."""
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
    # No event since its opening could have made its predicate true.
    quiet: bool = False
    # History has an event of another operation after its opening.
    overtaken: bool = False
    # Its worker counts the calls of the code; opening it again counts as the same call.
    keeps_number: bool = False
    # Its worker supports cooperative cancellation, which it delivers at the first call without an
    # end event.
    cooperative: bool = False
    # How many messages history has after its opening.
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
    """The state of a step of a push run."""

    WAITING = "waiting"
    BACKOFF = "backoff"
    RUNNABLE = "runnable"
    FINISHED = "finished"


class PushStep(Step, kw_only=True, tag="step"):
    """A step of a push run, identified by its hashed id.

    It stays with its run after it has finished: `entry` is its encoded member of the memo.
    `kind` is `run`, `sleep`, `wait`, `child` and so on.
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
    """The equalities by which this wait is found; empty if it is tried for every event."""
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
    """When a group wakes its run: after all members, after all in their order, or by the first."""

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
    # Whether the failure of a leaf is in history; that ends the member.
    failed: bool = False


class Group(Struct):
    """Operations that the code awaits together.

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
    # Whether the failure of a member is in history.
    failed: bool = False
    # The code is being cancelled here and waits for members to stop; no member can win.
    interrupted: bool = False

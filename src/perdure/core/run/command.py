"""Commands of a worker that completes a workflow task."""

from typing import Any, TypeAlias

from msgspec import Struct

from perdure.core.fleet.session import SessionTerms
from perdure.core.run.operation import ActivityTimeouts, Metadata, RetryPolicy
from perdure.core.run.stream import Directive


class Authored(Struct, frozen=True, kw_only=True):
    """A step that may belong to a parallel group or a selection."""

    path: list[Metadata] | None = None


class ScheduleActivity(Authored, frozen=True, kw_only=True):
    activity_type: str
    arguments: bytes
    queue: str | None = None
    retry: RetryPolicy | None = None
    timeouts: ActivityTimeouts = ActivityTimeouts()
    cancellation_policy: str | None = None
    session: SessionTerms | None = None


class StartTimer(Authored, frozen=True, kw_only=True):
    delay_seconds: int


class StartChild(Authored, frozen=True, kw_only=True):
    workflow_type: str
    arguments: bytes
    queue: str | None = None
    parent_close_policy: str | None = None
    cancellation_policy: str | None = None
    retry: RetryPolicy | None = None
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    trace: bytes | None = None


class StartServiceOperation(Struct, frozen=True, kw_only=True):
    """Call an operation of a service. Such calls are awaited one at a time, never in groups."""

    endpoint: str
    service: str
    operation: str
    arguments: bytes | None = None
    namespace: str | None = None
    idempotency_key: str | None = None
    mode: str | None = None
    wait_for: str | None = None
    wait_timeout_seconds: int | None = None
    target_workflow_id: str | None = None
    queue: str | None = None
    business_key: str | None = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None


class OpenConditionWait(Authored, frozen=True, kw_only=True):
    key: str | None = None
    fingerprint: str | None = None
    timeout_seconds: int | None = None


class OpenSignalWait(Struct, frozen=True, kw_only=True):
    signal_name: str
    timeout_seconds: int | None = None


class RecordSideEffect(Struct, frozen=True, kw_only=True):
    """A value that the code computed; `stream` is written in the same transaction."""

    result: bytes
    stream: Directive | None = None


class RecordVersionMarker(Struct, frozen=True, kw_only=True):
    change_id: str
    version: int
    min_supported: int
    max_supported: int


class UpsertSearchAttributes(Struct, frozen=True, kw_only=True):
    attributes: dict[str, Any]


class UpsertMemo(Struct, frozen=True, kw_only=True):
    """`envelope` is recorded unchanged; `entries` is its decoded content."""

    envelope: bytes
    entries: dict[str, Any]


class LocalHeartbeat(Struct, frozen=True):
    """A heartbeat of an attempt; `details` is encoded JSON."""

    elapsed_ms: int
    details: bytes | None = None


class LocalAttempt(Struct, frozen=True, kw_only=True):
    """One attempt of a local activity. If it was retried: why, and after how long."""

    attempt_id: str
    number: int
    outcome: str
    duration_ms: int
    heartbeats: list[LocalHeartbeat] = []
    message: str | None = None
    exception_type: str | None = None
    non_retryable: bool = False
    timeout_kind: str | None = None
    retry_reason: str | None = None
    backoff_seconds: int = 0


class RecordLocalActivity(Struct, frozen=True, kw_only=True):
    """An activity that the workflow worker ran itself; its last attempt has the outcome."""

    activity_type: str
    arguments: bytes
    attempts: list[LocalAttempt]
    result: bytes | None = None
    message: str | None = None
    retry: RetryPolicy | None = None
    timeouts: ActivityTimeouts = ActivityTimeouts()


class Cleanup(Struct, frozen=True):
    """The delivered cancellation whose clean-up a local activity belongs to."""

    request_id: str
    event_id: str


class PrepareLocalActivity(Authored, frozen=True, kw_only=True):
    """A local activity that its worker asks permission for. It is no command of a completion."""

    activity_type: str
    arguments: bytes
    retry: RetryPolicy | None = None
    timeouts: ActivityTimeouts = ActivityTimeouts()
    cancellation_policy: str | None = None
    cleanup: Cleanup | None = None


class CancelSelectionOperation(Struct, frozen=True, kw_only=True):
    group_id: str
    member_key: str | int
    member_index: int
    member_base: int
    member_size: int
    kind: str
    identity: str


class CompleteUpdate(Struct, frozen=True, kw_only=True):
    """The handler of an update returned."""

    update_id: str
    result: bytes | None = None


class FailUpdate(Struct, frozen=True, kw_only=True):
    """The handler of an update raised, or there is none."""

    update_id: str
    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    non_retryable: bool = False


class CompleteRun(Struct, frozen=True, kw_only=True):
    result: bytes | None = None


class FailRun(Struct, frozen=True, kw_only=True):
    """The code raised; `failed_step` is the activity whose failure it did not catch, if any."""

    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    exception: bytes | None = None
    non_retryable: bool = False
    failed_step: int | None = None
    failed_execution_id: str | None = None


class ContinueAsNew(Struct, frozen=True, kw_only=True):
    arguments: bytes | None = None
    queue: str | None = None
    workflow_type: str | None = None
    trace: bytes | None = None


Blocking: TypeAlias = (
    ScheduleActivity
    | StartTimer
    | StartChild
    | StartServiceOperation
    | OpenConditionWait
    | OpenSignalWait
)
Marker: TypeAlias = (
    RecordSideEffect
    | RecordVersionMarker
    | UpsertSearchAttributes
    | UpsertMemo
    | RecordLocalActivity
)
Terminal: TypeAlias = CompleteRun | FailRun | ContinueAsNew
UpdateOutcome: TypeAlias = CompleteUpdate | FailUpdate
Command: TypeAlias = Blocking | Marker | CancelSelectionOperation | UpdateOutcome | Terminal

BLOCKING = (
    ScheduleActivity,
    StartTimer,
    StartChild,
    StartServiceOperation,
    OpenConditionWait,
    OpenSignalWait,
)
SCHEDULABLE = (ScheduleActivity, StartTimer, StartChild)
UPDATE_OUTCOMES = (CompleteUpdate, FailUpdate)
UNNUMBERED = (CancelSelectionOperation, CompleteUpdate, FailUpdate)
"""Commands that are not steps of the code: they take no sequence."""
TERMINAL = (CompleteRun, FailRun, ContinueAsNew)

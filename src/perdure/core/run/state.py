"""State of one run, as the rules use it and as the store keeps it.

A `Run` is owned by the beat that loaded it: rules change it in place and record the events of each
change. What is not yet on disk is listed in its `RunChanges`, so the store writes exactly the
difference. A run whose beat failed is discarded and loaded again.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field

from perdure.core.limits import HISTORY_PAGE_SIZE_CEILING, RUN_OPENING_CACHE_BYTES_MAX
from perdure.core.run.claim import Answers
from perdure.core.run.inbox import (
    EndedUpdate,
    Message,
    MessageStream,
    RejectedSignals,
    Signal,
    StreamMessage,
    Update,
)
from perdure.core.run.lease import Lease, TaskState
from perdure.core.run.operation import Activity, ActivityTimeouts, Group, Operation, RetryPolicy
from perdure.core.run.push import Push
from perdure.core.run.state_parts import Cancellation, StickyWorker, TraceLink
from perdure.core.run.status import CLOSED, RunStatus

WORKFLOW_TASK = 0
"""The place of the workflow task among a run's tasks; an activity's place is its sequence."""


class TaskKind(StrEnum):
    """What a workflow task is for: to continue the code, run an update, or validate one."""

    PROGRESS = "progress"
    UPDATE = "update"
    VALIDATION = "validation"


PROGRESS: Final = TaskKind.PROGRESS
UPDATE: Final = TaskKind.UPDATE
VALIDATION: Final = TaskKind.VALIDATION


class WorkflowTask(Struct, omit_defaults=True):
    """The one workflow task that a run may have pending or leased."""

    number: int
    available_at: int
    state: TaskState = TaskState.READY
    attempt: int = 0
    lease: Lease | None = None
    snapshot: int = 0
    failures: int = 0
    failure_message: str | None = None
    resume: dict[str, str | int] = field(default_factory=dict)
    kind: TaskKind = TaskKind.PROGRESS
    # Whether its worker registered for cooperative cancellation.
    cooperative: bool = False
    # Of a worker that caches histories: whether it is expected to have this one.
    replay_mode: str | None = None
    # Whether its worker registered for prepared local activities.
    prepares: bool = False


class TaskReceipt(Struct):
    """How the last workflow task ended, so that a repeated report gets the same answer."""

    number: int
    attempt: int
    owner: str
    outcome: str
    created_task_ids: list[str]
    # How many signals the code has to handle before it can close the run.
    late_signals: int = 0


class Hosted(Struct):
    """The one activity of a run without code, with what is still read after the run has closed."""

    execution_id: str
    activity_type: str
    activity_class: str | None = None
    timeouts: ActivityTimeouts = field(default_factory=ActivityTimeouts)
    retry: RetryPolicy | None = None
    attempt: int = 0
    heartbeat_at: int | None = None


class Served(Struct):
    """The call of a service operation that a run handles."""

    path: str
    call_id: str


class Parent(Struct):
    """The run that waits for this one."""

    run_id: str
    workflow_id: str
    sequence: int
    call_id: str
    retry_attempt: int = 1


class Failure(Struct):
    """Why a run ended badly."""

    failure_id: str
    message: str
    category: str
    exception_type: str | None = None
    exception_class: str | None = None
    non_retryable: bool = False
    exception: bytes | None = None


class Dialect(StrEnum):
    """Who executes a run: workers that pull its tasks, or runners that the server invokes."""

    PULL = "durable_workflow"
    PUSH = "durablex"


TASK_KINDS: Mapping[Dialect, str] = {Dialect.PULL: "workflow", Dialect.PUSH: "pass"}
"""The kind of queue that the workflow tasks of a dialect wait in."""


_CODECS: Mapping[Dialect, str] = {Dialect.PULL: "avro", Dialect.PUSH: "json"}


class RunChanges:
    """Changes of a run that are not on disk yet: the store writes them, then they are cleared."""

    __slots__ = (
        "created",
        "due_at",
        "effects",
        "events",
        "inbox",
        "operations",
        "ready",
        "rejected",
        "rewritten",
        "status",
        "unread_at_close",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.created = False
        # The status on disk.
        self.status: RunStatus | None = None
        # The deadline on disk.
        self.due_at: int | None = None
        # Effects on other runs, carried out in the same beat.
        self.effects: list[Any] = []
        self.events: list[bytes] = []
        self.operations: set[int] = set()
        self.inbox: set[int] = set()
        # Messages that were unread when the run closed, for the beat that closes it.
        self.unread_at_close: list[StreamMessage] = []
        # Accepted messages that the close rejects, so that repeated requests get that answer.
        self.rejected: list[Signal | StreamMessage] = []
        # Place of a task -> whether pollers may find it.
        self.ready: dict[int, bool] = {}
        # Places of tasks that are ready on disk and must be hidden from pollers.
        self.withdrawn: set[int] = set()
        # The first chunk of history, if it was encoded again before a worker read it.
        self.rewritten: bytes | None = None

    def clear(self) -> None:
        """Empty the changes."""
        self.created = False
        self.rewritten = None
        self.events.clear()
        self.operations.clear()
        self.ready.clear()
        # These are rarely set; the check is cheaper than clearing them.
        if self.effects or self.inbox or self.unread_at_close or self.withdrawn or self.rejected:
            self.effects.clear()
            self.inbox.clear()
            self.unread_at_close.clear()
            self.rejected.clear()
            self.withdrawn.clear()


class Run(Struct):
    """One execution of a workflow id."""

    run_id: str
    namespace: str
    workflow_id: str
    workflow_type: str
    queue: str
    run_number: int
    started_at: int
    status: RunStatus = RunStatus.PENDING
    closed_at: int | None = None
    version: int = 0

    closed_reason: str | None = None
    close_message: str | None = None
    business_key: str | None = None
    frame: str = "value"
    plain_input: bytes | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    search_attributes: dict[str, Any] = field(default_factory=dict)
    execution_timeout_seconds: int | None = None
    run_timeout_seconds: int | None = None
    execution_deadline_at: int | None = None
    run_deadline_at: int | None = None
    priority: int = 5
    fairness_key: str | None = None
    fairness_weight: int = 1
    build_id: str | None = None
    parent: Parent | None = None
    continued_from_run_id: str | None = None
    continued_to_run_id: str | None = None
    last_progress_at: int = 0
    history_count: int = 0
    history_bytes: int = 0
    next_sequence: int = 1
    task: WorkflowTask | None = None
    task_count: int = 0
    last_task: TaskReceipt | None = None
    groups: dict[int, Group] = field(default_factory=dict)
    releasing: list[int] = field(default_factory=list)
    wait: int | None = None
    keeps_signals: bool = False
    inbox_first: int = 1
    inbox_next: int = 1
    unapplied: list[Signal] = field(default_factory=list)
    failure: Failure | None = None
    due_at: int | None = None
    # The update whose acceptance is in history and whose outcome is not.
    update: Update | None = None
    updates_open: int = 0
    updates_ended: list[EndedUpdate] = field(default_factory=list)
    # Updates that the code validates, as reported by the last worker of the run.
    validators: list[str] = field(default_factory=list)
    # The standalone activity that this run executes.
    hosted: Hosted | None = None
    # The failed run that this one continues.
    redriven_from_run_id: str | None = None
    # Signals and messages that a failed run accepted and its code never saw.
    unseen: list[Signal | StreamMessage] = field(default_factory=list)
    # Message streams by name, and per stream the position behind which the code waits.
    streams: dict[str, MessageStream] = field(default_factory=dict)
    stream_waits: dict[str, int] = field(default_factory=dict)
    cancellation: Cancellation | None = None
    # The first sequence of the open condition, if it was opened again without an end event.
    reopened_from: int | None = None
    dialect: Dialect = Dialect.PULL
    push: Push | None = None
    # The call of a service operation that this run handles.
    served: Served | None = None
    # The trace of the run, and the traces that its next task links to.
    trace: bytes | None = None
    links: list[TraceLink] = field(default_factory=list)
    holder: StickyWorker | None = None
    # Local activities without an outcome, by their sequences.
    local_calls: list[int] = field(default_factory=list)
    answers: Answers | None = None
    # How often the last condition was opened again under its own number. If the code advanced in
    # between, its worker's count of calls is ahead of `next_sequence` by up to this number.
    repeats: int = 0
    # Of a closed run: signals and messages that were accepted and never entered history.
    rejected: RejectedSignals | None = None
    # How many tasks in a row may defer a close for unseen signals, and how many signals one task
    # may carry to a condition; None means the setting of the server.
    late_signal_tasks_max: int | None = None
    late_signal_tasks: int = 0
    signals_per_task_max: int | None = None

    # Loaded beside the row, each from its own table.
    arguments: bytes = b"null"
    operations: dict[int, Operation] = field(default_factory=dict)
    inbox: dict[int, Message] = field(default_factory=dict)
    # Stream messages that are in history and that the code has not read: the next run of the
    # chain needs them. They keep the positions that they had in the inbox.
    unread: dict[int, StreamMessage] = field(default_factory=dict)
    # The encoded events in memory: the newest ones, without a gap.
    events: list[bytes] = field(default_factory=list)
    events_bytes: int = 0
    # Of a history that is too long for memory: its first events, without a gap.
    opening: list[bytes] = field(default_factory=list)
    opening_bytes: int = 0
    # Sequences of the steps of a push run, by their hashed ids.
    places: dict[str, int] = field(default_factory=dict)
    unsaved: RunChanges = field(default_factory=RunChanges)

    @property
    def is_closed(self) -> bool:
        return self.status in CLOSED

    @property
    def events_first(self) -> int:
        """The sequence of the oldest event in `events`."""
        return self.history_count - len(self.events) + 1

    @property
    def codec(self) -> str:
        return _CODECS[self.dialect]

    def keep_opening(self, events: list[bytes]) -> None:
        """Cache the first events of the history, within a bound.

        Every poll reads the first page, also that of a worker that has it and needs only the tail.
        """
        self.opening, self.opening_bytes = [], 0
        for event in events[:HISTORY_PAGE_SIZE_CEILING]:
            if self.opening_bytes + len(event) > RUN_OPENING_CACHE_BYTES_MAX:
                return
            self.opening.append(event)
            self.opening_bytes += len(event)

    def place_message(self, position: int, message: Message) -> None:
        """Load a row of the inbox; rows before `inbox_first` were handed over."""
        if position < self.inbox_first and isinstance(message, StreamMessage):
            self.unread[position] = message
        else:
            self.inbox[position] = message

    def message_at(self, position: int) -> Message | None:
        """The message at a position of the inbox, handed over or not."""
        return self.inbox.get(position) or self.unread.get(position)

    def mark_saved(self) -> None:
        """Clear the changes after a commit."""
        unsaved = self.unsaved
        unsaved.clear()
        unsaved.due_at = self.due_at
        unsaved.status = self.status


ROW_FIELDS = (
    "run_id",
    "namespace",
    "workflow_id",
    "workflow_type",
    "queue",
    "run_number",
    "started_at",
    "status",
    "closed_at",
    "version",
)
"""Columns of the run table, in order."""

BESIDE_FIELDS = (
    "arguments",
    "operations",
    "inbox",
    "unread",
    "events",
    "events_bytes",
    "opening",
    "opening_bytes",
    "places",
    "unsaved",
)
"""Loaded from other tables; never part of the row."""

STATE_FIELDS = tuple(
    name for name in Run.__struct_fields__ if name not in ROW_FIELDS and name not in BESIDE_FIELDS
)
"""Stored together in the row's state. Append only: the order is the stored form."""


class TaskRef(Struct, frozen=True):
    """A task, named by its run and its place in it."""

    run_id: str
    place: int
    number: int


def workflow_task_id(run: Run, task: WorkflowTask) -> str:
    """A task id that contains its run id, so that finding a task needs no table."""
    return f"{run.run_id}-w{task.number}"


def first_task_id(run_id: str) -> str:
    """The id of the first workflow task of a run."""
    return f"{run_id}-w1"


def activity_task_id(run: Run, activity: Activity) -> str:
    return f"{run.run_id}-a{activity.sequence}"


def validation_task_id(run: Run, task: WorkflowTask) -> str:
    return f"{run.run_id}-v{task.number}"


def parse_task_id(task_id: str, kind: str) -> TaskRef | None:
    """The task that an id names, or none if it cannot be of that kind (`w`, `a` or `v`)."""
    run_id, _, rest = task_id.partition("-")
    digits = rest[1:]
    if rest[:1] != kind or not digits.isdecimal() or len(digits) > _TASK_DIGITS_MAX:
        return None
    number = int(digits)
    return TaskRef(run_id, number if kind == "a" else WORKFLOW_TASK, number)


_TASK_DIGITS_MAX = 11

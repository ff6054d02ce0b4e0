"""The state of one run, as the rules see it and as the store keeps it.

A `Run` is owned by the beat that loaded it: rules change it in place and record every fact in its
history in the same breath. What is not yet on disk is listed in its `Unsaved` part, so the store
writes exactly the difference. A run whose beat failed is thrown away and loaded again.
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
"""The place of the workflow task among a run's tasks; activities stand at their sequence."""


class TaskKind(StrEnum):
    """What a workflow task asks of its worker: to go on, to answer an update, or to judge one."""

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
    # Whether its worker said that it knows how to be asked to cancel.
    cooperative: bool = False
    # Of a worker that keeps histories: whether it is expected to have this one.
    replay_mode: str | None = None
    # Whether its worker asks before it runs local activities.
    prepares: bool = False


class TaskReceipt(Struct):
    """How the last workflow task ended, so that a repeated report gets the same answer."""

    number: int
    attempt: int
    owner: str
    outcome: str
    created_task_ids: list[str]
    # How many signals the code has to look at before its close of the run counts.
    late_signals: int = 0


class Hosted(Struct):
    """The one activity of a run without code. What outlives the run is kept here when it closes."""

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
    """Who works on a run: workers that pull its tasks, or runners that we invoke."""

    PULL = "durable_workflow"
    PUSH = "durablex"


TASK_KINDS: Mapping[Dialect, str] = {Dialect.PULL: "workflow", Dialect.PUSH: "pass"}
"""The kind of queue that the workflow tasks of a dialect wait in."""


_CODECS: Mapping[Dialect, str] = {Dialect.PULL: "avro", Dialect.PUSH: "json"}


class RunChanges:
    """What a run has that the disk has not: the store writes this, then it is emptied."""

    __slots__ = (
        "created",
        "due_at",
        "effects",
        "events",
        "inbox",
        "left_behind",
        "operations",
        "ready",
        "rejected",
        "rewritten",
        "status",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.created = False
        # The status that the disk has.
        self.status: RunStatus | None = None
        # The deadline that the disk has.
        self.due_at: int | None = None
        # What must follow for other runs, in the same beat.
        self.effects: list[Any] = []
        self.events: list[bytes] = []
        self.operations: set[int] = set()
        self.inbox: set[int] = set()
        # Messages that nobody read before the run closed, for the beat that closes it.
        self.left_behind: list[StreamMessage] = []
        # What was accepted and is rejected by the close, so that repeats of it are answered so.
        self.rejected: list[Signal | StreamMessage] = []
        # Place of a task -> whether pollers shall find it.
        self.ready: dict[int, bool] = {}
        # Places of tasks that the disk shows to pollers and shall not.
        self.withdrawn: set[int] = set()
        # A first chunk of history that was encoded anew before anybody saw it.
        self.rewritten: bytes | None = None

    def clear(self) -> None:
        """Forget what was to be written."""
        self.created = False
        self.rewritten = None
        self.events.clear()
        self.operations.clear()
        self.ready.clear()
        # Seldom is there anything of these.
        if self.effects or self.inbox or self.left_behind or self.withdrawn or self.rejected:
            self.effects.clear()
            self.inbox.clear()
            self.left_behind.clear()
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
    # Updates that the code validates, as the last worker that worked on the run told.
    validators: list[str] = field(default_factory=list)
    # The standalone activity that this run is there for.
    hosted: Hosted | None = None
    # The failed run that this one goes on from.
    redriven_from_run_id: str | None = None
    # Signals and messages that a failed run was sent and its code never saw.
    unseen: list[Signal | StreamMessage] = field(default_factory=list)
    # Message streams by name, and behind which position of which the code waits.
    streams: dict[str, MessageStream] = field(default_factory=dict)
    stream_waits: dict[str, int] = field(default_factory=dict)
    cancellation: Cancellation | None = None
    # Where the open condition was opened first, if it was opened again since without a word.
    reopened_from: int | None = None
    dialect: Dialect = Dialect.PULL
    push: Push | None = None
    # The call of a service operation that this run handles.
    served: Served | None = None
    # The trace that the run belongs to, and those that its next task has to do with.
    trace: bytes | None = None
    links: list[TraceLink] = field(default_factory=list)
    holder: StickyWorker | None = None
    # Local activities without an outcome, by their sequences.
    local_calls: list[int] = field(default_factory=list)
    answers: Answers | None = None
    # How often the last condition was opened again under its own number. The code may have gone
    # on in between: then its worker's count of calls is ahead of ours by as much.
    repeats: int = 0
    # Signals and messages that were accepted and never entered history, once the run has closed.
    rejected: RejectedSignals | None = None
    # How many tasks in a row the code gets for signals that wait when it closes the run, and how
    # many signals one task may carry to a condition; None is as the server is told.
    late_signal_tasks_max: int | None = None
    late_signal_tasks: int = 0
    signals_per_task_max: int | None = None

    # Loaded beside the row, each from its own table.
    arguments: bytes = b"null"
    operations: dict[int, Operation] = field(default_factory=dict)
    inbox: dict[int, Message] = field(default_factory=dict)
    # Messages of streams that are in history and that the code has not read: the next run of
    # the chain will need them. They keep the positions that they had in the inbox.
    unread: dict[int, StreamMessage] = field(default_factory=dict)
    # The encoded events that memory holds: the newest ones, without a gap.
    events: list[bytes] = field(default_factory=list)
    events_bytes: int = 0
    # Of a history that is too long for memory: its first events, without a gap.
    opening: list[bytes] = field(default_factory=list)
    opening_bytes: int = 0
    # Where the steps of a push run stand, by their hashed ids.
    places: dict[str, int] = field(default_factory=dict)
    unsaved: RunChanges = field(default_factory=RunChanges)

    @property
    def is_closed(self) -> bool:
        return self.status in CLOSED

    @property
    def events_first(self) -> int:
        """The sequence of the oldest event that memory holds."""
        return self.history_count - len(self.events) + 1

    @property
    def codec(self) -> str:
        return _CODECS[self.dialect]

    def keep_opening(self, events: list[bytes]) -> None:
        """Hold the first events of the history, within a bound, apart from the others.

        Every poll asks for the first page, also that of a worker that knows it and wants the tail.
        """
        self.opening, self.opening_bytes = [], 0
        for event in events[:HISTORY_PAGE_SIZE_CEILING]:
            if self.opening_bytes + len(event) > RUN_OPENING_CACHE_BYTES_MAX:
                return
            self.opening.append(event)
            self.opening_bytes += len(event)

    def place_message(self, position: int, message: Message) -> None:
        """Take in a row of the inbox: what stands before the first that waits was handed over."""
        if position < self.inbox_first and isinstance(message, StreamMessage):
            self.unread[position] = message
        else:
            self.inbox[position] = message

    def message_at(self, position: int) -> Message | None:
        """What a position of the inbox holds, handed over or not."""
        return self.inbox.get(position) or self.unread.get(position)

    def mark_saved(self) -> None:
        """The disk has everything."""
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
"""Loaded from elsewhere; never part of the row."""

STATE_FIELDS = tuple(
    name for name in Run.__struct_fields__ if name not in ROW_FIELDS and name not in BESIDE_FIELDS
)
"""Kept together in the row's state. Append only: the order is the stored form."""


class TaskRef(Struct, frozen=True):
    """A task, named by its run and its place in it."""

    run_id: str
    place: int
    number: int


def workflow_task_id(run: Run, task: WorkflowTask) -> str:
    """Task ids carry their run, so that finding a task needs no table."""
    return f"{run.run_id}-w{task.number}"


def first_task_id(run_id: str) -> str:
    """The task with which the code of a run begins."""
    return f"{run_id}-w1"


def activity_task_id(run: Run, activity: Activity) -> str:
    return f"{run.run_id}-a{activity.sequence}"


def validation_task_id(run: Run, task: WorkflowTask) -> str:
    return f"{run.run_id}-v{task.number}"


def parse_task_id(task_id: str, kind: str) -> TaskRef | None:
    """The task that an id names, or nothing when it cannot be of that kind (`w`, `a` or `v`)."""
    run_id, _, rest = task_id.partition("-")
    digits = rest[1:]
    if rest[:1] != kind or not digits.isdecimal() or len(digits) > _TASK_DIGITS_MAX:
        return None
    number = int(digits)
    return TaskRef(run_id, number if kind == "a" else WORKFLOW_TASK, number)


_TASK_DIGITS_MAX = 11

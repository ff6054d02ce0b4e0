"""What every store offers. Callers never learn which one is open."""

import enum
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from msgspec import Struct, field

from perdure.core.fleet.worker import Worker
from perdure.core.run.limit_warnings import Unread
from perdure.core.run.state import Run

if TYPE_CHECKING:
    from perdure.store.damage import DamagedRuns
    from perdure.store.health import StoreHealth


class Unavailable(Exception):
    """The disk refused: busy, full, broken. Nothing was changed; trying again may help."""

    def __init__(self, reason: str, message: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Conflict(Exception):
    """Another node was faster. Nothing was written: what was decided must be decided again."""

    run_ids: frozenset[str] = frozenset()
    """What the beat that lost was about to change."""
    records: "frozenset[RecordKey]" = frozenset()
    rested_on_memory: bool = False
    assumed_new: bool = False
    """What the beat that lost had not looked up."""


class Instance(NamedTuple):
    """A workflow id inside its namespace."""

    namespace: str
    workflow_id: str


class QueueKey(NamedTuple):
    """Where tasks wait: `kind` is `workflow` or `activity`."""

    namespace: str
    queue: str
    kind: str


queue_key = lru_cache(maxsize=1024)(QueueKey)
"""The same for every task: few queues have most of them, and finding a key costs less than making
one."""


class ReadyTask(NamedTuple):
    """A task that any matching poller may have."""

    run_id: str
    place: int
    name: str


class ReceiptKey(NamedTuple):
    """The identity under which a caller may repeat a command."""

    namespace: str
    workflow_id: str
    kind: str
    request_id: str


class Receipt(Struct):
    """What was answered to a command, and a digest of what it asked."""

    digest: str
    run_id: str
    command_id: str
    outcome: str
    recorded_at: int
    position: int = 0
    """Of a message, in its stream."""


class LeasedTask(NamedTuple):
    """A task that some worker holds."""

    run_id: str
    place: int


class PollLease(NamedTuple):
    """A lease that some poll was granted."""

    namespace: str
    owner: str
    poll_id: str
    run_id: str
    place: int


_SEPARATOR = "\x1f"
LAST_CHARACTER = "\U0010ffff"
"""Sorts behind everything that follows a prefix."""


class RecordKey(NamedTuple):
    """The name of a small durable thing that is no run: its kind, its namespace, its own key."""

    kind: str
    namespace: str
    key: str

    @property
    def target(self) -> str:
        """The key as one text, for the table of deadlines."""
        return _SEPARATOR.join(self)

    @classmethod
    def of_target(cls, target: str) -> "RecordKey":
        return cls(*target.split(_SEPARATOR, 2))


class Record(Struct, frozen=True):
    """What stands under a key."""

    data: bytes
    due_at: int | None = None
    """When somebody must look at it."""
    version: int = 1
    """How often a shared store says that it was written."""


class RecordChange(Struct, frozen=True):
    """What a beat does to a record: what it was decided on, and what shall be; None is nothing."""

    before: Record | None
    after: Record | None


class PayloadKey(NamedTuple):
    """The name of an external payload."""

    namespace: str
    reference_id: str


class PayloadPut(Struct, frozen=True):
    """Bytes that are written; loose ones may go again."""

    data: bytes
    is_loose: bool


class PayloadFate(enum.Enum):
    """What else may happen to bytes."""

    KEPT = "kept"
    GONE = "gone"


class LoosePayloads(NamedTuple):
    """How much was uploaded that nothing durable names yet."""

    number: int
    size_bytes: int


class StreamKey(NamedTuple):
    """A stream that a run puts out."""

    run_id: str
    stream_name: str


class StreamItem(NamedTuple):
    """One item of a stream, encoded as it is sent."""

    run_id: str
    stream_name: str
    offset: int
    idempotency_key: str | None
    data: bytes


class ClosedFilter(Struct, frozen=True, kw_only=True):
    """Closed runs of one sort, in the order in which they closed."""

    namespace: str
    is_pushed: bool
    before: int
    """Only those that closed earlier than this."""
    after: tuple[int, str] = (-1, "")
    """When the last one of the page before closed, and its id."""
    limit: int


class RunRow(NamedTuple):
    """A run without what stands in other tables, for whoever removes it."""

    run_id: str
    namespace: str
    workflow_id: str
    closed_at: int | None
    version: int
    run: Run | None
    """None when it cannot be read."""


class Remains(Struct, kw_only=True):
    """Rows of runs that are gone, in the tables beside theirs, by their keys."""

    chunks: list[tuple[str, int]]
    operations: list[tuple[str, int]]
    inbox: list[tuple[str, int]]
    ready: list[tuple[str, int]]
    items: list[tuple[str, str, int]]
    receipts: list[ReceiptKey]
    is_all: bool
    """Whether there is nothing else."""

    @property
    def count(self) -> int:
        beside = len(self.operations) + len(self.inbox) + len(self.ready)
        return len(self.chunks) + len(self.items) + len(self.receipts) + beside


class RecordRange(Struct, frozen=True, kw_only=True):
    """A page of records of one kind, in the order of their keys."""

    kind: str
    namespace: str
    prefix: str = ""
    after: str | None = None
    """The last key of the page before."""
    newest_first: bool = False
    """Backwards; keys that begin with the time of their making then come newest first."""
    limit: int

    @property
    def bounds(self) -> tuple[str, str, str]:
        """Keys from the first on, behind the second, and before the third."""
        last = self.prefix + LAST_CHARACTER
        if self.newest_first:
            return self.prefix, "", last if self.after is None else min(self.after, last)
        # Both lower bounds are tight: a store may seek by either and only filter by the other.
        after = self.after or ""
        return max(self.prefix, after), after, last


class Changes(Struct):
    """Everything that one beat writes, in one transaction."""

    runs: list[Run] = field(default_factory=list)
    receipts: dict[ReceiptKey, Receipt] = field(default_factory=dict)
    renewed_receipts: dict[ReceiptKey, Receipt] = field(default_factory=dict)
    """Those that were kept before and say something else now. A change of their run guards them."""
    workers: dict[tuple[str, str], Worker | None] = field(default_factory=dict)
    worker_revisions: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often a shared store says that the changed ones were written before; 0 is never."""
    records: dict[RecordKey, RecordChange] = field(default_factory=dict)
    payloads: dict[PayloadKey, PayloadPut | PayloadFate] = field(default_factory=dict)
    # Items come and go only with a change of their stream's record, which guards them.
    items: list[StreamItem] = field(default_factory=list)
    trimmed: dict[StreamKey, int] = field(default_factory=dict)
    """Streams that lose their oldest items: those below an offset."""

    gone: list[RunRow] = field(default_factory=list)
    """Closed runs that are no more. What they leave in other tables is removed later."""
    remains: list[Remains] = field(default_factory=list)

    assumed: set[Instance] = field(default_factory=set)
    """Workflow ids that were taken for new without looking, on a shared store."""

    @property
    def is_empty(self) -> bool:
        return not (
            self.runs
            or self.receipts
            or self.workers
            or self.records
            or self.payloads
            or self.gone
            or self.remains
        )


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs a list shows."""

    namespace: str
    workflow_type: str | None = None
    hidden_type: str | None = None
    bucket: str | None = None
    since: int = 0
    # Only runs of these workflow ids, or only these runs.
    workflow_ids: tuple[str, ...] | None = None
    run_ids: tuple[str, ...] | None = None


PushedSort = Literal["started", "workflow", "status", "app", "duration"]


class PushedFilter(Struct, frozen=True, kw_only=True):
    """Which push runs a list shows, by what, and from which end."""

    namespace: str
    app: str | None = None
    workflow: str | None = None
    statuses: tuple[str, ...] | None = None
    since: int = 0
    text: str | None = None
    sort: PushedSort = "started"
    ascending: bool = False


class PushedFigures(NamedTuple):
    """Push runs of one status that started in one stretch of time, and how long they took."""

    stretch: int
    status: str
    runs: int
    lasted: int | None
    longest: int | None


class ListCursor(NamedTuple):
    """The last row of a page: the next page starts behind it."""

    started_at: int
    run_id: str


class PushedCursor(NamedTuple):
    """The same for push runs, with what else the page is sorted by, if it is."""

    started_at: int
    run_id: str
    place: str | int | None = None


class Backlog(NamedTuple):
    """Ready tasks of one kind on one queue."""

    queue: str
    kind: str
    number: int
    """As far as they were counted."""
    oldest_at: int | None


class LeaseCount(NamedTuple):
    """How many tasks a worker holds."""

    owner: str
    is_activity: bool
    number: int


class Store(Protocol):
    """Loading and committing for the beat; reading for everybody else."""

    is_shared: bool
    """Whether other nodes write too, so that what memory holds may be old."""

    @property
    def health(self) -> "StoreHealth":
        """Whether it can be used now, as far as it is known."""
        ...

    @property
    def damaged(self) -> "DamagedRuns":
        """Runs that did not match their checksums when they were read."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    # For the beat alone: these see its own transaction and may not run beside a commit.
    async def load_runs(self, run_ids: Collection[str], held: Mapping[str, Run] = ...) -> list[Run]:
        """Runs as they are on disk. A held one that still is so is given back as it is."""
        ...

    async def find_current(self, instances: Collection[Instance]) -> Mapping[Instance, str]: ...
    async def find_receipts(self, keys: Collection[ReceiptKey]) -> Mapping[ReceiptKey, Receipt]: ...
    async def find_records(self, keys: Collection[RecordKey]) -> Mapping[RecordKey, Record]: ...
    async def find_items(self, key: StreamKey, keys: Collection[str]) -> Mapping[str, int]:
        """The offsets of items by their idempotency keys."""
        ...

    async def find_record_keys(self, wanted: RecordRange) -> list[RecordKey]:
        """What there is of a kind, to be loaded by its name."""
        ...

    async def find_record_page(self, wanted: RecordRange) -> list[tuple[RecordKey, Record]]:
        """The same, with what stands there."""
        ...

    async def find_kind(self, kind: str, limit: int) -> list[tuple[RecordKey, Record]]:
        """Records of a kind in all namespaces, by namespace and key."""
        ...

    async def find_closed(self, wanted: ClosedFilter) -> list[RunRow]:
        """A page of closed runs. On a shared store, others step over them until the beat ends."""
        ...

    async def find_rows(self, run_ids: Collection[str]) -> list[RunRow]:
        """Runs by their ids, open or closed, in the same way."""
        ...

    async def find_keys_of(
        self, namespace: str, kinds: Collection[str], run_ids: Collection[str], limit: int
    ) -> list[RecordKey]:
        """Records of some kinds whose keys begin with the id of one of some runs."""
        ...

    async def find_remains(
        self, run_ids: Collection[str], instances: Collection[Instance], *, limit: int, size: int
    ) -> Remains:
        """What some runs that are gone have left: of each table so many rows, and bytes."""
        ...

    async def load_ready(
        self, key: QueueKey, names: Collection[str], limit: int
    ) -> list[ReadyTask]: ...
    async def find_leases(self, namespace: str, owner: str) -> list[LeasedTask]: ...
    async def find_standing(self, tasks: Collection[LeasedTask]) -> list[LeasedTask]:
        """Those of some tasks that anybody holds."""
        ...

    async def commit(self, changes: Changes) -> None:
        """Write everything or nothing. Raises `Conflict` after a lost race."""
        ...

    async def release(self) -> None:
        """Let go of what the beat looked at: it ends without a commit."""
        ...

    # At start.
    async def load_workers(self) -> list[Worker]: ...
    async def load_namespaces(self) -> list[str]: ...
    async def add_namespace(self, name: str) -> None:
        """Create a namespace, unless it is there."""
        ...

    async def load_lease_owners(self) -> list[tuple[str, str]]: ...

    # For readers: these see what is committed.
    async def load_due(self, now: int, limit: int) -> list[str | RecordKey]:
        """Runs and records whose deadline has come.

        On a shared store, nobody else gets them for a while.
        """
        ...

    async def find_next_due(self, now: int) -> int | None: ...
    async def load_ready_names(self) -> list[tuple[QueueKey, str]]: ...
    async def check(self) -> None:
        """Read; and while there is trouble, write as well. Raises what is the matter."""
        ...

    async def read_run(self, run_id: str) -> Run | None: ...
    async def count_messages(self, run: Run) -> Unread:
        """How many messages a run has that its code has not read."""
        ...

    async def read_closed(self, wanted: ClosedFilter) -> list[str]:
        """The ids of a page of closed runs."""
        ...

    async def read_instance(self, instance: Instance) -> Sequence[Run]: ...
    async def read_list(
        self, wanted: RunFilter, after: ListCursor | None, limit: int
    ) -> list[Run]: ...
    async def read_pushed(
        self, wanted: PushedFilter, after: PushedCursor | None, limit: int
    ) -> list[Run]: ...
    async def read_pushed_figures(self, wanted: PushedFilter, step: int) -> list[PushedFigures]: ...
    async def read_history(self, run_id: str, after: int, limit: int) -> list[bytes]: ...
    async def read_last_events(self, run_id: str) -> list[bytes]: ...
    async def read_items(
        self, key: StreamKey, first: int, until: int, *, limit: int, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        """Offsets and items from `first` on and before `until`, within two bounds; one at least."""
        ...

    async def read_queues(self, namespace: str, kinds: Collection[str], limit: int) -> list[str]:
        """Queues that have ready tasks of some kinds, by name."""
        ...

    async def read_backlog(
        self, namespace: str, queues: Collection[str], kinds: Collection[str], limit: int
    ) -> list[Backlog]:
        """Ready tasks of some queues, each kind counted up to a limit."""
        ...

    async def count_leases(
        self, namespace: str, owners: Collection[str], limit: int
    ) -> list[LeaseCount]:
        """What some workers hold, tasks of each sort counted up to a limit."""
        ...

    async def read_leases(
        self, namespace: str, owners: Collection[str], limit: int
    ) -> list[tuple[Run, int]]:
        """Some of it: runs, each with the place of a leased task and what stands there."""
        ...

    async def read_payload(self, key: PayloadKey) -> bytes | None: ...
    async def read_loose_payloads(self) -> LoosePayloads: ...
    async def read_record(self, key: RecordKey) -> Record | None: ...
    async def read_records(self, wanted: RecordRange) -> list[tuple[RecordKey, Record]]: ...


class SharedStore(Store, Protocol):
    """A store that other nodes use too: what they did is asked for, never assumed."""

    # For the beat alone.
    async def count_ready(self, key: QueueKey, names: Collection[str], limit: int) -> int:
        """How many ready tasks there are, also those that another node looks at just now."""
        ...

    async def hold(self, run_ids: Collection[str], records: Collection[RecordKey] = ...) -> None:
        """Wait for one's turn at runs and records, and keep others off until the beat ends."""
        ...

    async def find_workers(
        self, keys: Collection[tuple[str, str]]
    ) -> Mapping[tuple[str, str], tuple[int, Worker]]:
        """Registrations, each with how often it was written."""
        ...

    # Now and then.
    async def load_changed_workers(self, since: int) -> list[Worker]: ...
    async def find_poll_leases(
        self, owners: Collection[str], poll_ids: Collection[str]
    ) -> list[PollLease]: ...
    async def read_record_versions(
        self, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, int]: ...
    async def read_versions(self, run_ids: Collection[str]) -> Mapping[str, int]: ...
    async def read_clock(self) -> int:
        """The time that all nodes go by."""
        ...

    async def read_latest_life(self) -> int:
        """When another node noted last that it lives, by its own clock; 0 if there is none."""
        ...

    async def note_life(self) -> None:
        """Say that this node lives."""
        ...

    async def reopen_before_message(self) -> None:
        """Prepare for the time to come, and forget who has not been seen for long."""
        ...


def shared(store: Store) -> SharedStore | None:
    """The store as one that several nodes use, if it is one."""
    return cast(SharedStore, store) if store.is_shared else None

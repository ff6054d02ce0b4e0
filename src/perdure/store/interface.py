"""The interface of stores. Callers do not depend on which store is open."""

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
    """The store refused: busy, full, unreachable. Nothing was changed; a retry may succeed."""

    def __init__(self, reason: str, message: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Conflict(Exception):
    """Another node changed the data first. Nothing was written: the beat must decide again."""

    run_ids: frozenset[str] = frozenset()
    """The runs that the losing beat was about to change."""
    records: "frozenset[RecordKey]" = frozenset()
    rested_on_memory: bool = False
    assumed_new: bool = False
    """The instances that the losing beat had not looked up."""


class Instance(NamedTuple):
    """A workflow id inside its namespace."""

    namespace: str
    workflow_id: str


class QueueKey(NamedTuple):
    """A queue of one kind of tasks: `kind` is `workflow` or `activity`."""

    namespace: str
    queue: str
    kind: str


queue_key = lru_cache(maxsize=1024)(QueueKey)
"""Cached: few queues have most tasks, and a lookup costs less than creating a key."""


class ReadyTask(NamedTuple):
    """A task that any matching poller may lease."""

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
    """The recorded response to a command, and a digest of its request."""

    digest: str
    run_id: str
    command_id: str
    outcome: str
    recorded_at: int
    position: int = 0
    """The position of a message in its stream."""


class LeasedTask(NamedTuple):
    """A task that is leased to a worker."""

    run_id: str
    place: int


class PollLease(NamedTuple):
    """A lease that was granted to a poll."""

    namespace: str
    owner: str
    poll_id: str
    run_id: str
    place: int


_SEPARATOR = "\x1f"
LAST_CHARACTER = "\U0010ffff"
"""Sorts behind everything that follows a prefix."""


class RecordKey(NamedTuple):
    """The key of a record: its kind, its namespace, and its own key."""

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
    """The content of a record."""

    data: bytes
    due_at: int | None = None
    """When the engine must process it."""
    version: int = 1
    """How often it was written; only shared stores count."""


class RecordChange(Struct, frozen=True):
    """A change of a record: its state before and after the beat; None is no record."""

    before: Record | None
    after: Record | None


class PayloadKey(NamedTuple):
    """The key of an external payload."""

    namespace: str
    reference_id: str


class PayloadPut(Struct, frozen=True):
    """A payload to write; loose ones may be removed again."""

    data: bytes
    is_loose: bool


class PayloadFate(enum.Enum):
    """What else may happen to a payload."""

    KEPT = "kept"
    GONE = "gone"


class LoosePayloads(NamedTuple):
    """The number and size of uploaded payloads that are not referenced yet."""

    number: int
    size_bytes: int


class StreamKey(NamedTuple):
    """An output stream of a run."""

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
    """Only runs that closed earlier than this."""
    after: tuple[int, str] = (-1, "")
    """When the last run of the previous page closed, and its id."""
    limit: int


class RunRow(NamedTuple):
    """The row of a run without data of other tables, for removing it."""

    run_id: str
    namespace: str
    workflow_id: str
    closed_at: int | None
    version: int
    run: Run | None
    """None when it cannot be read."""


class Remains(Struct, kw_only=True):
    """Keys of rows that removed runs have left in other tables."""

    chunks: list[tuple[str, int]]
    operations: list[tuple[str, int]]
    inbox: list[tuple[str, int]]
    ready: list[tuple[str, int]]
    items: list[tuple[str, str, int]]
    receipts: list[ReceiptKey]
    is_all: bool
    """Whether nothing else is left."""

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
    """The last key of the previous page."""
    newest_first: bool = False
    """In descending order; keys that begin with their creation time then come newest first."""
    limit: int

    @property
    def bounds(self) -> tuple[str, str, str]:
        """Bounds of keys: from the first, after the second, and before the third."""
        last = self.prefix + LAST_CHARACTER
        if self.newest_first:
            return self.prefix, "", last if self.after is None else min(self.after, last)
        # Both lower bounds are tight, because a store may seek by one and filter by the other.
        after = self.after or ""
        return max(self.prefix, after), after, last


class Changes(Struct):
    """Everything that one beat writes, in one transaction."""

    runs: list[Run] = field(default_factory=list)
    receipts: dict[ReceiptKey, Receipt] = field(default_factory=dict)
    renewed_receipts: dict[ReceiptKey, Receipt] = field(default_factory=dict)
    """Receipts that were stored before and changed. The version check of their run guards them."""
    workers: dict[tuple[str, str], Worker | None] = field(default_factory=dict)
    worker_revisions: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often the changed ones were written before, on a shared store; 0 is never."""
    records: dict[RecordKey, RecordChange] = field(default_factory=dict)
    payloads: dict[PayloadKey, PayloadPut | PayloadFate] = field(default_factory=dict)
    # Items change only with their stream's record, whose version check guards them.
    items: list[StreamItem] = field(default_factory=list)
    trimmed: dict[StreamKey, int] = field(default_factory=dict)
    """Streams to trim: items below an offset are removed."""

    gone: list[RunRow] = field(default_factory=list)
    """Closed runs to remove. Their rows in other tables are removed later."""
    remains: list[Remains] = field(default_factory=list)

    assumed: set[Instance] = field(default_factory=set)
    """Workflow ids that were assumed to be new without a lookup, on a shared store."""

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
    """The filter of a list of runs."""

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
    """The filter and order of a list of push runs."""

    namespace: str
    app: str | None = None
    workflow: str | None = None
    statuses: tuple[str, ...] | None = None
    since: int = 0
    text: str | None = None
    sort: PushedSort = "started"
    ascending: bool = False


class PushedFigures(NamedTuple):
    """Push runs of one status that started in one interval, and their durations."""

    stretch: int
    status: str
    runs: int
    lasted: int | None
    longest: int | None


class ListCursor(NamedTuple):
    """The last row of a page: the next page starts after it."""

    started_at: int
    run_id: str


class PushedCursor(NamedTuple):
    """The same for push runs, with the sort value if the list is not sorted by start."""

    started_at: int
    run_id: str
    place: str | int | None = None


class Backlog(NamedTuple):
    """Ready tasks of one kind on one queue."""

    queue: str
    kind: str
    number: int
    """Counted up to a limit."""
    oldest_at: int | None


class LeaseCount(NamedTuple):
    """How many tasks a worker holds."""

    owner: str
    is_activity: bool
    number: int


class Store(Protocol):
    """A store: loading and committing for the beat, and reading for all others."""

    is_shared: bool
    """Whether other nodes write, too, so that cached data may be outdated."""

    @property
    def health(self) -> "StoreHealth":
        """Whether the store can be used now, by its last statements."""
        ...

    @property
    def damaged(self) -> "DamagedRuns":
        """Runs that did not match their checksums when they were read."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    # For the beat only: these see its transaction and must not run during a commit.
    async def load_runs(self, run_ids: Collection[str], held: Mapping[str, Run] = ...) -> list[Run]:
        """Runs as stored. A held run that is still current is returned as it is."""
        ...

    async def find_current(self, instances: Collection[Instance]) -> Mapping[Instance, str]: ...
    async def find_receipts(self, keys: Collection[ReceiptKey]) -> Mapping[ReceiptKey, Receipt]: ...
    async def find_records(self, keys: Collection[RecordKey]) -> Mapping[RecordKey, Record]: ...
    async def find_items(self, key: StreamKey, keys: Collection[str]) -> Mapping[str, int]:
        """The offsets of items by their idempotency keys."""
        ...

    async def find_record_keys(self, selection: RecordRange) -> list[RecordKey]:
        """The keys of a range of records."""
        ...

    async def find_record_page(self, selection: RecordRange) -> list[tuple[RecordKey, Record]]:
        """The same, with the records."""
        ...

    async def find_kind(self, kind: str, limit: int) -> list[tuple[RecordKey, Record]]:
        """Records of a kind in all namespaces, by namespace and key."""
        ...

    async def find_closed(self, selection: ClosedFilter) -> list[RunRow]:
        """A page of closed runs. On a shared store, other nodes skip them until the beat ends."""
        ...

    async def find_rows(self, run_ids: Collection[str]) -> list[RunRow]:
        """Runs by their ids, open or closed, locked in the same way."""
        ...

    async def find_keys_of(
        self, namespace: str, kinds: Collection[str], run_ids: Collection[str], limit: int
    ) -> list[RecordKey]:
        """Records of the given kinds whose keys begin with one of the run ids."""
        ...

    async def find_remains(
        self, run_ids: Collection[str], instances: Collection[Instance], *, limit: int, size: int
    ) -> Remains:
        """Rows that removed runs have left, bounded per table by number and bytes."""
        ...

    async def load_ready(
        self, key: QueueKey, names: Collection[str], limit: int
    ) -> list[ReadyTask]: ...
    async def find_leases(self, namespace: str, owner: str) -> list[LeasedTask]: ...
    async def find_standing(self, tasks: Collection[LeasedTask]) -> list[LeasedTask]:
        """Those of the given tasks that are leased."""
        ...

    async def commit(self, changes: Changes) -> None:
        """Write everything or nothing. Raises `Conflict` after a lost race."""
        ...

    async def release(self) -> None:
        """Release the locks of a beat that ends without a commit."""
        ...

    # At start.
    async def load_workers(self) -> list[Worker]: ...
    async def load_namespaces(self) -> list[str]: ...
    async def add_namespace(self, name: str) -> None:
        """Create a namespace unless it exists."""
        ...

    async def load_lease_owners(self) -> list[tuple[str, str]]: ...

    # For readers: these see committed data.
    async def load_due(self, now: int, limit: int) -> list[str | RecordKey]:
        """Runs and records whose deadline has come.

        On a shared store, other nodes do not get them for a while.
        """
        ...

    async def find_next_due(self, now: int) -> int | None: ...
    async def load_ready_names(self) -> list[tuple[QueueKey, str]]: ...
    async def check(self) -> None:
        """Test a read, and during a failure also a write. Raises the failure."""
        ...

    async def read_run(self, run_id: str) -> Run | None: ...
    async def count_messages(self, run: Run) -> Unread:
        """How many messages a run has that its code has not read."""
        ...

    async def read_closed(self, selection: ClosedFilter) -> list[str]:
        """A page of ids of closed runs."""
        ...

    async def read_instance(self, instance: Instance) -> Sequence[Run]: ...
    async def read_list(
        self, selection: RunFilter, after: ListCursor | None, limit: int
    ) -> list[Run]: ...
    async def read_pushed(
        self, selection: PushedFilter, after: PushedCursor | None, limit: int
    ) -> list[Run]: ...
    async def read_pushed_figures(
        self, selection: PushedFilter, step: int
    ) -> list[PushedFigures]: ...
    async def read_history(self, run_id: str, after: int, limit: int) -> list[bytes]: ...
    async def read_last_events(self, run_id: str) -> list[bytes]: ...
    async def read_items(
        self, key: StreamKey, first: int, until: int, *, limit: int, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        """Offsets and items from `first` and before `until`, within two bounds; at least one."""
        ...

    async def read_queues(self, namespace: str, kinds: Collection[str], limit: int) -> list[str]:
        """Queues with ready tasks of the given kinds, by name."""
        ...

    async def read_backlog(
        self, namespace: str, queues: Collection[str], kinds: Collection[str], limit: int
    ) -> list[Backlog]:
        """Ready tasks of the given queues, each kind counted up to a limit."""
        ...

    async def count_leases(
        self, namespace: str, owners: Collection[str], limit: int
    ) -> list[LeaseCount]:
        """Leased tasks of the given workers, each kind counted up to a limit."""
        ...

    async def read_leases(
        self, namespace: str, owners: Collection[str], limit: int
    ) -> list[tuple[Run, int]]:
        """Some leased tasks: runs, each with the place of the task and its operation."""
        ...

    async def read_payload(self, key: PayloadKey) -> bytes | None: ...
    async def read_loose_payloads(self) -> LoosePayloads: ...
    async def read_record(self, key: RecordKey) -> Record | None: ...
    async def read_records(self, selection: RecordRange) -> list[tuple[RecordKey, Record]]: ...


class SharedStore(Store, Protocol):
    """A store that other nodes write, too: their changes are read, never assumed."""

    # For the beat only.
    async def count_ready(self, key: QueueKey, names: Collection[str], limit: int) -> int:
        """How many ready tasks there are, including those that another node has locked."""
        ...

    async def hold(self, run_ids: Collection[str], records: Collection[RecordKey] = ...) -> None:
        """Lock runs and records until the beat ends, waiting for other nodes if needed."""
        ...

    async def find_workers(
        self, keys: Collection[tuple[str, str]]
    ) -> Mapping[tuple[str, str], tuple[int, Worker]]:
        """Registrations, each with its row version."""
        ...

    # At intervals.
    async def load_changed_workers(self, since: int) -> list[Worker]: ...
    async def find_poll_leases(
        self, owners: Collection[str], poll_ids: Collection[str]
    ) -> list[PollLease]: ...
    async def read_record_versions(
        self, keys: Collection[RecordKey]
    ) -> Mapping[RecordKey, int]: ...
    async def read_versions(self, run_ids: Collection[str]) -> Mapping[str, int]: ...
    async def read_clock(self) -> int:
        """The database clock, which all nodes use."""
        ...

    async def read_latest_life(self) -> int:
        """The latest liveness note of another node, by its own clock; 0 if there is none."""
        ...

    async def note_life(self) -> None:
        """Record that this node is alive."""
        ...

    async def reopen_before_message(self) -> None:
        """Create coming partitions, and remove nodes that were inactive for long."""
        ...


def shared(store: Store) -> SharedStore | None:
    """The store as a shared store, if it is one."""
    return cast(SharedStore, store) if store.is_shared else None

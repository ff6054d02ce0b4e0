"""What every store offers. Callers never learn which one is open."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from perdure.core.fleet.worker import Worker
from perdure.core.run.state import Run


class Unavailable(Exception):
    """The disk refused: busy, full, broken. Nothing was changed; trying again may help."""

    def __init__(self, reason: str, message: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Instance(NamedTuple):
    """A workflow id inside its namespace."""

    namespace: str
    workflow_id: str


class QueueKey(NamedTuple):
    """Where tasks wait: `kind` is `workflow` or `activity`."""

    namespace: str
    queue: str
    kind: str


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


class LeasedTask(NamedTuple):
    """A task that some worker holds."""

    run_id: str
    place: int


class Changes(Struct):
    """Everything that one beat writes, in one transaction."""

    runs: list[Run] = field(default_factory=list)
    receipts: dict[ReceiptKey, Receipt] = field(default_factory=dict)
    workers: dict[tuple[str, str], Worker | None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.runs or self.receipts or self.workers)


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs a list shows."""

    namespace: str
    workflow_type: str | None = None
    bucket: str | None = None
    text: str | None = None


class ListCursor(NamedTuple):
    """The last row of a page: the next page starts behind it."""

    started_at: int
    run_id: str


class Store(Protocol):
    """Loading and committing for the beat; reading for everybody else."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    # For the beat alone: these see its own transaction and may not run beside a commit.
    async def load_runs(self, run_ids: Collection[str]) -> list[Run]: ...
    async def find_current(self, instances: Collection[Instance]) -> Mapping[Instance, str]: ...
    async def find_receipts(self, keys: Collection[ReceiptKey]) -> Mapping[ReceiptKey, Receipt]: ...
    async def load_ready(
        self, key: QueueKey, names: Collection[str], limit: int
    ) -> list[ReadyTask]: ...
    async def find_leases(self, namespace: str, owner: str) -> list[LeasedTask]: ...
    async def commit(self, changes: Changes) -> None: ...

    # At start.
    async def load_workers(self) -> list[Worker]: ...
    async def load_namespaces(self) -> list[str]: ...
    async def load_lease_owners(self) -> list[tuple[str, str]]: ...

    # For readers: these see what is committed.
    async def load_due(self, now: int, limit: int) -> list[str]: ...
    async def find_next_due(self) -> int | None: ...
    async def load_ready_names(self) -> list[tuple[QueueKey, str]]: ...
    async def check(self) -> None: ...
    async def read_run(self, run_id: str) -> Run | None: ...
    async def read_instance(self, instance: Instance) -> Sequence[Run]: ...
    async def read_list(
        self, wanted: RunFilter, after: ListCursor | None, limit: int
    ) -> list[Run]: ...
    async def read_history(self, run_id: str, after: int, limit: int) -> list[bytes]: ...
    async def read_last_events(self, run_id: str) -> list[bytes]: ...

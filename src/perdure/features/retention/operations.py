"""Removal of closed runs that are past their retention, in two phases.

The first phase removes the rows of the runs, so that they can no longer be found, and writes a
leftover record. The second removes their rows in other tables, in bounded batches; the last batch
removes the leftover record. If the process dies in between, the deadline of the record continues.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from perdure.core.external import let_go
from perdure.core.limits import (
    REMAINS_BYTES_MAX,
    REMAINS_RELOOK,
    REMAINS_ROWS_MAX,
    SECOND,
    SERVICE_CALL_KEPT,
)
from perdure.core.run.state import Dialect, Run
from perdure.engine.operation import Operation
from perdure.engine.payloads import PAYLOADS, USED_BY, USES, find_uses, used_by_key
from perdure.engine.records import RecordKind
from perdure.engine.streams import STREAMS
from perdure.engine.world import World
from perdure.store.interface import (
    ClosedFilter,
    Instance,
    RecordKey,
    Remains,
    RunRow,
    Store,
)

NOT_FOUND = "run_not_found"
NOT_TERMINAL = "run_not_terminal"
NOT_EXPIRED = "run_not_expired"
UNREADABLE = "run_unreadable"
BUSY = "run_busy"


_CALL_KEPT = SERVICE_CALL_KEPT + 3_600 * SECOND
"""A call is removed by its own deadline; soon after that its result cannot be requested."""


class Leftover(Struct, kw_only=True):
    """Removed runs whose rows in other tables still exist."""

    run_ids: list[str]
    workflow_ids: list[str]
    dialect: Dialect = Dialect.PULL


LEFTOVER = RecordKind("leftover", Leftover)

RUN_RECORDS = (STREAMS.name, USES.name)
"""Records of every run whose keys begin with its id. Push runs have more: see the registry."""


class PrunedRun(Struct, frozen=True):
    """A removed run, and its size."""

    run_id: str
    events: int
    tasks: int


class Pruned(Struct, kw_only=True):
    """The result of one batch."""

    runs: list[PrunedRun] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Runs that were not removed, with the reason."""
    failed: dict[str, str] = field(default_factory=dict)
    payloads: Counter[str] = field(default_factory=Counter)
    """External payloads, by the run that was last to refer to them, as far as they are cleared."""
    leftover: RecordKey | None = None
    """The record of what is still to be removed."""
    behind: tuple[int, str] | None = None
    """Where the next batch begins; none when no old run is left."""


class _Prune(Operation):
    """The first phase, for some runs."""

    __slots__ = ("_before", "_dialect", "_namespace", "_rows")
    reads_before_load = True
    # A start in the same statement could use the workflow id that a removed run frees.
    locks_rows = True

    def __init__(self, namespace: str, dialect: Dialect, *, before: int) -> None:
        self._namespace = namespace
        self._dialect = dialect
        self._before = before
        self._rows: Sequence[RunRow] = ()

    def prune(self, world: World) -> Pruned:
        pruned = Pruned()
        removable: list[RunRow] = []
        for row in self._rows:
            reason = self._find_reason(world, row)
            if reason == UNREADABLE:
                pruned.failed[row.run_id] = reason
            elif reason is not None:
                pruned.skipped[row.run_id] = reason
            else:
                removable.append(row)
                pruned.runs.append(_pruned_run(row.run))
        for row in removable:
            world.remove(row)
            if row.run is not None:
                world.follow_ups.extend(world.registry.after_removal(row.run))
        if removable:
            pruned.leftover = self._add_leftover(world, removable)
        return pruned

    def _find_reason(self, world: World, row: RunRow) -> str | None:
        """Why a run may not be removed; none if it may."""
        if row.namespace != self._namespace or row.run_id in world.gone:
            return NOT_FOUND
        if row.closed_at is None:
            return NOT_TERMINAL
        if row.run is None:
            return UNREADABLE
        if row.run.dialect is not self._dialect:
            return NOT_FOUND
        if row.closed_at >= self._before or _is_readable_call(row.run, world.ctx.now):
            return NOT_EXPIRED
        # Another operation of this beat changes the run.
        return BUSY if row.run_id in world.touched else None

    def _add_leftover(self, world: World, rows: list[RunRow]) -> RecordKey:
        key = world.ctx.ids.ulid()
        leftover = Leftover(
            run_ids=[row.run_id for row in rows],
            workflow_ids=list(dict.fromkeys(row.workflow_id for row in rows)),
            dialect=self._dialect,
        )
        due_at = world.ctx.now + REMAINS_RELOOK
        LEFTOVER.add(world, self._namespace, key, leftover, due_at=due_at)
        return LEFTOVER.key(self._namespace, key)


def _is_readable_call(run: Run, now: int) -> bool:
    """Whether a client may still read the service call that a run has answered."""
    return run.served is not None and (run.closed_at or now) + _CALL_KEPT > now


def _pruned_run(run: Run | None) -> PrunedRun:
    assert run is not None
    return PrunedRun(run.run_id, run.history_count, run.task_count)


class PruneOld(_Prune):
    """One batch of the runs of a dialect that closed before a moment, oldest first."""

    __slots__ = ("_after", "_limit")
    name = "prune_old"

    def __init__(
        self,
        namespace: str,
        dialect: Dialect,
        *,
        before: int,
        limit: int,
        after: tuple[int, str] | None = None,
    ) -> None:
        super().__init__(namespace, dialect, before=before)
        self._limit = limit
        self._after = after or (-1, "")

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        closed_before = ClosedFilter(
            namespace=self._namespace,
            is_pushed=self._dialect is Dialect.PUSH,
            before=self._before,
            after=self._after,
            limit=self._limit,
        )
        self._rows = await store.find_closed(closed_before)
        return ()

    def decide(self, world: World) -> Pruned:
        pruned = self.prune(world)
        if len(self._rows) == self._limit:
            last = self._rows[-1]
            assert last.closed_at is not None
            pruned.behind = (last.closed_at, last.run_id)
        return pruned


class PruneNamed(_Prune):
    """Some runs by their ids, if they are old enough."""

    __slots__ = ("_run_ids",)
    name = "prune_named"

    def __init__(
        self, namespace: str, dialect: Dialect, *, before: int, run_ids: Sequence[str]
    ) -> None:
        super().__init__(namespace, dialect, before=before)
        self._run_ids = tuple(dict.fromkeys(run_ids))

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        self._rows = await store.find_rows(self._run_ids)
        return ()

    def decide(self, world: World) -> Pruned:
        pruned = self.prune(world)
        found = {row.run_id for row in self._rows}
        missing = {run_id: NOT_FOUND for run_id in self._run_ids if run_id not in found}
        pruned.skipped |= missing
        return pruned


class ClearLeftover(Operation):
    """One batch of the second phase. `is_done` says whether it was the last one.

    If not, the record is due again after `relook`, even if the caller dies before its next batch.
    `released` counts the external payloads without references, by the last run that had one.
    """

    __slots__ = (
        "_is_full",
        "_key",
        "_last_uses",
        "_leftover",
        "_linked",
        "_relook",
        "_remains",
        "is_done",
        "released",
    )
    name = "clear_leftover"
    reads_before_load = True

    def __init__(self, key: RecordKey, *, relook: int) -> None:
        self._key = key
        self._relook = relook
        self._leftover: Leftover | None = None
        self._linked: list[RecordKey] = []
        self._is_full = False
        self._remains: Remains | None = None
        self._last_uses: dict[str, str] = {}
        self.is_done = False
        self.released: Counter[str] = Counter()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        key, namespace = self._key, self._key.namespace
        if key not in world.records:
            # Read first: a concurrent clearing changes this record, and the commit detects that.
            world.records[key] = (await store.find_records([key])).get(key)
        self._leftover = LEFTOVER.find(world, namespace, key.key)
        self._linked, self._remains, self._last_uses = [], None, {}
        if self._leftover is not None:
            run_ids: list[str] = self._leftover.run_ids
            kinds: tuple[str, ...] = RUN_RECORDS
            if self._leftover.dialect is Dialect.PUSH:
                kinds += world.registry.run_records
            named = [Instance(namespace, one) for one in self._leftover.workflow_ids]
            found = await store.find_keys_of(namespace, kinds, run_ids, REMAINS_ROWS_MAX)
            self._is_full = len(found) >= REMAINS_ROWS_MAX
            self._linked = [*found, *world.registry.linked_records(found)]
            await self._find_last_uses(store, found)
            self._remains = await store.find_remains(
                run_ids, named, limit=REMAINS_ROWS_MAX, size=REMAINS_BYTES_MAX
            )
        return ()

    async def _find_last_uses(self, store: Store, found: list[RecordKey]) -> None:
        """Find the payloads that these runs refer to and no other run does."""
        assert self._leftover is not None
        namespace, removed = self._key.namespace, set(self._leftover.run_ids)
        self._last_uses = {}
        for key in found:
            if key.kind == USES.name:
                run_id, _, reference_id = key.key.partition("/")
                self._linked.append(USED_BY.key(namespace, used_by_key(reference_id, run_id)))
                self._last_uses[reference_id] = run_id
        for reference_id in list(self._last_uses):
            runs = await find_uses(store, namespace, reference_id, limit=len(removed) + 1)
            if not removed.issuperset(runs):
                del self._last_uses[reference_id]

    def records(self) -> tuple[RecordKey, ...]:
        namespace = self._key.namespace
        payloads = (PAYLOADS.key(namespace, reference_id) for reference_id in self._last_uses)
        return (self._key, *self._linked, *payloads)

    def decide(self, world: World) -> bool:
        remains, leftover = self._remains, self._leftover
        self.is_done = True
        if leftover is None or remains is None:
            return True
        for key in self._linked:
            if world.find_record(key) is not None:
                world.put_record(key, None)
        self._release_payloads(world)
        if remains.count:
            world.changes.remains.append(remains)
        _, namespace, key_ = self._key
        self.is_done = remains.is_all and not self._is_full
        if self.is_done:
            LEFTOVER.remove(world, namespace, key_)
        else:
            due_at = world.ctx.now + self._relook
            LEFTOVER.put(world, namespace, key_, leftover, due_at=due_at)
        return True

    def _release_payloads(self, world: World) -> None:
        """Keep payloads without references for as long as new ones, before they are removed."""
        namespace = self._key.namespace
        self.released = Counter()
        for reference_id, run_id in self._last_uses.items():
            known = PAYLOADS.find(world, namespace, reference_id)
            loose = None if known is None else let_go(known, world.ctx.now)
            if loose is not None:
                PAYLOADS.put(world, namespace, reference_id, loose, due_at=loose.until)
                self.released[run_id] += 1

"""Removing closed runs that are older than they need be.

A run goes in two strides. The first takes its row, so that from one moment on nobody finds it, and
writes down that there are remains. The second removes what it had in other tables, in bites of
bounded size, as often as it takes; the note goes with the last bite. If the process dies in
between, the note is due like anything else, and somebody goes on.
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
"""A call is forgotten by its own deadline, and a little later nobody can ask for its result."""


class Leftover(Struct, kw_only=True):
    """Runs that are gone and whose rows in other tables are not."""

    run_ids: list[str]
    workflow_ids: list[str]
    dialect: Dialect = Dialect.PULL


LEFTOVER = RecordKind("leftover", Leftover)

RUN_RECORDS = (STREAMS.name, USES.name)
"""Records of every run whose keys begin with its id. Push runs have more: see the registry."""


class PrunedRun(Struct, frozen=True):
    """A run that is gone, and how much of it there was."""

    run_id: str
    events: int
    tasks: int


class Pruned(Struct, kw_only=True):
    """What became of a batch."""

    runs: list[PrunedRun] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Runs that stay, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    payloads: Counter[str] = field(default_factory=Counter)
    """External payloads that only these runs named, as far as they are cleared."""
    leftover: RecordKey | None = None
    """Where it stands what is still to be removed."""
    behind: tuple[int, str] | None = None
    """Where the next batch begins; none when nothing old is left."""


class _Prune(Operation):
    """The first stride, for some runs."""

    __slots__ = ("_before", "_dialect", "_namespace", "_rows")
    reads_before_load = True
    # A start in the same statement could want the name that a run is about to set free.
    locks_rows = True

    def __init__(self, namespace: str, dialect: Dialect, *, before: int) -> None:
        self._namespace = namespace
        self._dialect = dialect
        self._before = before
        self._rows: Sequence[RunRow] = ()

    def prune(self, world: World) -> Pruned:
        pruned = Pruned()
        gone: list[RunRow] = []
        for row in self._rows:
            reason = self._find_reason(world, row)
            if reason == UNREADABLE:
                pruned.failed[row.run_id] = reason
            elif reason is not None:
                pruned.skipped[row.run_id] = reason
            else:
                gone.append(row)
                pruned.runs.append(_told(row.run))
        for row in gone:
            world.remove(row)
            if row.run is not None:
                world.follow_ups.extend(world.registry.after_removal(row.run))
        if gone:
            pruned.leftover = self._note(world, gone)
        return pruned

    def _find_reason(self, world: World, row: RunRow) -> str | None:
        """Why a run stays, if it does."""
        if row.namespace != self._namespace or row.run_id in world.gone:
            return NOT_FOUND
        if row.closed_at is None:
            return NOT_TERMINAL
        if row.run is None:
            return UNREADABLE
        if row.run.dialect is not self._dialect:
            return NOT_FOUND
        if row.closed_at >= self._before or _is_asked_for(row.run, world.ctx.now):
            return NOT_EXPIRED
        # Whoever changes it in this beat still wants something of it.
        return BUSY if row.run_id in world.touched else None

    def _note(self, world: World, gone: list[RunRow]) -> RecordKey:
        key = world.ctx.ids.ulid()
        leftover = Leftover(
            run_ids=[row.run_id for row in gone],
            workflow_ids=list(dict.fromkeys(row.workflow_id for row in gone)),
            dialect=self._dialect,
        )
        due_at = world.ctx.now + REMAINS_RELOOK
        LEFTOVER.add(world, self._namespace, key, leftover, due_at=due_at)
        return LEFTOVER.key(self._namespace, key)


def _is_asked_for(run: Run, now: int) -> bool:
    """Whether somebody may still call the service operation that a run has answered."""
    return run.served is not None and (run.closed_at or now) + _CALL_KEPT > now


def _told(run: Run | None) -> PrunedRun:
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
        wanted = ClosedFilter(
            namespace=self._namespace,
            is_pushed=self._dialect is Dialect.PUSH,
            before=self._before,
            after=self._after,
            limit=self._limit,
        )
        self._rows = await store.find_closed(wanted)
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
    """The second stride, one bite of it. `is_done` says whether it was the last one.

    If not, it is due again after `relook`, whatever becomes of whoever takes the next bite.
    `let_go` counts the external payloads that nobody names any more, by the run that did.
    """

    __slots__ = (
        "_beside",
        "_is_full",
        "_key",
        "_last",
        "_leftover",
        "_relook",
        "_remains",
        "is_done",
        "let_go",
    )
    name = "clear_leftover"
    reads_before_load = True

    def __init__(self, key: RecordKey, *, relook: int) -> None:
        self._key = key
        self._relook = relook
        self._leftover: Leftover | None = None
        self._beside: list[RecordKey] = []
        self._is_full = False
        self._remains: Remains | None = None
        self._last: dict[str, str] = {}
        self.is_done = False
        self.let_go: Counter[str] = Counter()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        key, namespace = self._key, self._key.namespace
        if key not in world.records:
            # Before all the rest: whoever clears meanwhile changes it, and the commit finds out.
            world.records[key] = (await store.find_records([key])).get(key)
        self._leftover = LEFTOVER.find(world, namespace, key.key)
        self._beside, self._remains, self._last = [], None, {}
        if self._leftover is not None:
            run_ids: list[str] = self._leftover.run_ids
            kinds: tuple[str, ...] = RUN_RECORDS
            if self._leftover.dialect is Dialect.PUSH:
                kinds += world.registry.run_records
            named = [Instance(namespace, one) for one in self._leftover.workflow_ids]
            found = await store.find_keys_of(namespace, kinds, run_ids, REMAINS_ROWS_MAX)
            self._is_full = len(found) >= REMAINS_ROWS_MAX
            self._beside = [*found, *world.registry.linked_records(found)]
            await self._look_for_payloads(store, found)
            self._remains = await store.find_remains(
                run_ids, named, limit=REMAINS_ROWS_MAX, size=REMAINS_BYTES_MAX
            )
        return ()

    async def _look_for_payloads(self, store: Store, found: list[RecordKey]) -> None:
        """Which payloads these runs name, and which of them nobody else does."""
        assert self._leftover is not None
        namespace, gone = self._key.namespace, set(self._leftover.run_ids)
        self._last = {}
        for key in found:
            if key.kind == USES.name:
                run_id, _, reference_id = key.key.partition("/")
                self._beside.append(USED_BY.key(namespace, used_by_key(reference_id, run_id)))
                self._last[reference_id] = run_id
        for reference_id in list(self._last):
            runs = await find_uses(store, namespace, reference_id, limit=len(gone) + 1)
            if not gone.issuperset(runs):
                del self._last[reference_id]

    def records(self) -> tuple[RecordKey, ...]:
        namespace = self._key.namespace
        payloads = (PAYLOADS.key(namespace, reference_id) for reference_id in self._last)
        return (self._key, *self._beside, *payloads)

    def decide(self, world: World) -> bool:
        remains, leftover = self._remains, self._leftover
        self.is_done = True
        if leftover is None or remains is None:
            return True
        for key in self._beside:
            if world.find_record(key) is not None:
                world.put_record(key, None)
        self._let_go(world)
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

    def _let_go(self, world: World) -> None:
        """Payloads that nobody names any more have as long as fresh ones to be named again."""
        namespace = self._key.namespace
        self.let_go = Counter()
        for reference_id, run_id in self._last.items():
            known = PAYLOADS.find(world, namespace, reference_id)
            loose = None if known is None else let_go(known, world.ctx.now)
            if loose is not None:
                PAYLOADS.put(world, namespace, reference_id, loose, due_at=loose.until)
                self.let_go[run_id] += 1

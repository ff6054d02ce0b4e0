"""The PostgreSQL store: one connection for the beat, and a few for readers.

A beat loads with one statement and commits with one. The commit locks the rows that the beat
decided on and compares their versions, so that a lost race writes nothing. If the connection breaks
during a commit, the number of the node's last stored beat shows whether it succeeded.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any

import asyncpg

from perdure.clock import Clock
from perdure.core.fleet.worker import Worker
from perdure.core.limits import PRIORITIES, RUN_HISTORY_CACHE_BYTES_MAX, SECOND
from perdure.core.run.limit_warnings import Unread
from perdure.core.run.state import Run
from perdure.core.run.status import CLOSED, RunStatus, bucket
from perdure.store import rows
from perdure.store.damage import DamagedRuns
from perdure.store.health import PROBE_BYTES, StoreHealth
from perdure.store.interface import (
    LAST_CHARACTER,
    Backlog,
    Changes,
    ClosedFilter,
    Conflict,
    Instance,
    LeaseCount,
    LeasedTask,
    ListCursor,
    LoosePayloads,
    PayloadKey,
    PollLease,
    PushedCursor,
    PushedFigures,
    PushedFilter,
    QueueKey,
    ReadyTask,
    Receipt,
    ReceiptKey,
    Record,
    RecordKey,
    RecordRange,
    Remains,
    RunFilter,
    RunRow,
    StreamKey,
    Unavailable,
)
from perdure.store.list_queries import listing
from perdure.store.postgres.commit_rows import collect, parts_of
from perdure.store.postgres.connection import (
    BEAT_SESSION,
    SESSION,
    Connection,
    PostgresConnection,
    plain,
)
from perdure.store.postgres.errors import Lost, is_lost, translated
from perdure.store.postgres.schema import (
    add_partitions,
    migrate,
    require_finished,
    require_safe,
)
from perdure.store.postgres.statements import Statements
from perdure.store.push_lists import question
from perdure.store.queries import backwards

READERS_MAX = 4
"""How many reads run at the same time."""
_DUE_TAKEN = 5 * SECOND
"""How long due rows are claimed by one node; if it dies, others claim them after that."""
_BEATS_KEPT = 100
"""How many of its beats a node keeps; it needs to find only the last one again."""
_LEAVE_SECONDS = 2.0
_OPEN_TRIES = 3
_NODE_FORGOTTEN = 7 * 86_400 * SECOND
_END_OF_TIME = 2**62
_BEGIN = "begin; set local lock_timeout = '250ms'"
_NOTHING: Mapping[str, Run] = {}


class PostgresStore:
    """A store in one database that several nodes share."""

    is_shared = True

    def __init__(self, url: str, *, node_id: str, clock: Clock, pooled: bool = False) -> None:
        self._sql = Statements()
        self._node_id = node_id
        self._clock = clock
        self._epoch = 0
        self._beat = 0
        self._in_transaction = False
        self.health = health = StoreHealth()
        self.damaged = DamagedRuns()
        self._lane = PostgresConnection(
            url,
            pooled=pooled,
            session=BEAT_SESSION,
            greet=self._enrol,
            health=health,
            is_closed=True,
        )
        self._reader_lines = [
            PostgresConnection(url, pooled=pooled, session=SESSION, health=health, is_closed=True)
            for _ in range(READERS_MAX)
        ]
        self._readers: asyncio.LifoQueue[PostgresConnection] = asyncio.LifoQueue()
        for line in self._reader_lines:
            self._readers.put_nowait(line)

    async def open(self) -> None:
        for tries_left in reversed(range(_OPEN_TRIES)):
            try:
                async with contextlib.AsyncExitStack() as undo:
                    undo.push_async_callback(self.close)
                    await self._open()
                    undo.pop_all()
                    return
            except Lost as error:
                # Every step was carried out in full or not at all, so opening can start again.
                if not tries_left:
                    raise _lost(error) from error

    async def _open(self) -> None:
        self._reopen()
        await self._migrate()
        async with self._builder() as connection:
            await require_finished(connection)
        await self._lane.connect_with_retries()
        await self._make_room()

    def _reopen(self) -> None:
        for line in (self._lane, *self._reader_lines):
            line.reopen()

    async def migrate(self) -> list[int]:
        """Bring the schema up to date; returns the versions that were applied."""
        self._reopen()
        try:
            return await self._migrate()
        except Lost as error:
            raise _lost(error) from error

    async def _migrate(self) -> list[int]:
        async with self._builder() as connection:
            await require_safe(connection)
            return await migrate(connection)

    async def reopen_before_message(self) -> None:
        try:
            await self._make_room()
        except Lost as error:
            raise _lost(error) from error

    async def _make_room(self) -> None:
        async with self._builder() as connection:
            await add_partitions(connection, self._clock.now())
        before = self._clock.now() - _NODE_FORGOTTEN
        await self._read("forget_nodes", before, self._node_id)

    @contextlib.asynccontextmanager
    async def _builder(self) -> AsyncIterator[Connection]:
        """A connection for changing the schema. Its errors become those of the store interface."""
        async with self._reader() as line:
            await line.connect_with_retries()
            try:
                yield await line.connect()
            except Exception as error:
                if is_lost(error):
                    line.drop()
                    raise Lost(str(error)) from error
                if isinstance(error, asyncpg.PostgresError):
                    line.drop()
                    raise translated(error) from error
                raise

    async def note_life(self) -> None:
        await self._read("note_life", self._clock.now(), self._node_id, self._beat - _BEATS_KEPT)

    async def close(self) -> None:
        if self._lane.is_open:
            # Otherwise this process looks like a live node for a while.
            with contextlib.suppress(Lost, Unavailable, Conflict, TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._lane.ask(self._sql["leave"], self._node_id)
        await self._lane.close()
        for line in self._reader_lines:
            await line.close()

    async def _enrol(self, line: PostgresConnection) -> None:
        """Register the node on a new connection; commits of its older ones become impossible."""
        found = await line.ask(self._sql["enrol"], self._node_id, self._clock.now())
        self._epoch = found[0][0]
        self._in_transaction = False

    # Loading -------------------------------------------------------------------------------------

    async def load_runs(
        self, run_ids: Collection[str], held: Mapping[str, Run] = _NOTHING
    ) -> list[Run]:
        ids = list(run_ids)
        versions = [held[run_id].version if run_id in held else -1 for run_id in ids]
        known = [_events_known(held.get(run_id)) for run_id in ids]
        changed = await self._ask("load_runs", ids, versions, known, RUN_HISTORY_CACHE_BYTES_MAX)
        runs = {run_id: held[run_id] for run_id in ids if run_id in held}
        for row in changed:
            if row[0] is None:
                # The run was removed: drop the held copy.
                runs.pop(row[18], None)
                continue
            run = await self._run_of(row, held.get(row[0]))
            runs[run.run_id] = run
        return list(runs.values())

    async def _run_of(self, row: asyncpg.Record, held: Run | None) -> Run:
        run = _run_of(row)
        for sequence, data in zip(row[13] or (), row[14] or (), strict=True):
            run.operations[sequence] = rows.operation_of(data)
        for position, data in zip(row[15] or (), row[16] or (), strict=True):
            run.place_message(position, rows.signal_of(data))
        damaged, run_id = self.damaged, run.run_id
        chunks = list(zip(row[17] or (), row[19] or (), strict=True))
        run.events = [event for chunk in chunks for event in damaged.events_of(run_id, *chunk)]
        if held is not None and _events_known(held):
            run.arguments = held.arguments
            run.opening, run.opening_bytes = held.opening, held.opening_bytes
            if len(run.events) == run.history_count - held.history_count:
                # The new events follow the held ones without a gap.
                run.events = held.events + run.events
        elif run.events_first == 1 and chunks:
            run.arguments = damaged.arguments_of(run_id, *chunks[0])
        elif run.plain_input is not None:
            # Its start events may still be re-encoded, so all events are needed.
            every = await self._ask("load_chunks", run.run_id)
            damaged.require_whole(run_id, every)
            run.events = [event for chunk in every for event in damaged.events_of(run_id, *chunk)]
            run.arguments = damaged.arguments_of(run_id, *every[0])
        else:
            first = await self._ask("load_first_chunk", run.run_id)
            damaged.require_whole(run_id, first)
            run.arguments = damaged.arguments_of(run_id, *first[0])
        run.events_bytes = sum(map(len, run.events))
        if len(run.events) == run.history_count:
            damaged.whole(run_id)
        return run

    async def find_current(self, instances: Collection[Instance]) -> Mapping[Instance, str]:
        keys = list(instances)
        found = await self._ask(
            "find_current", [key.namespace for key in keys], [key.workflow_id for key in keys]
        )
        return {Instance(plain(row[0]), plain(row[1])): row[2] for row in found}

    async def find_receipts(self, keys: Collection[ReceiptKey]) -> Mapping[ReceiptKey, Receipt]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        found = await self._ask("find_receipts", *columns)
        return {ReceiptKey(*map(plain, row[:4])): rows.receipt_of(row[4]) for row in found}

    async def find_workers(
        self, keys: Collection[tuple[str, str]]
    ) -> Mapping[tuple[str, str], tuple[int, Worker]]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        known = [
            (row[0], rows.worker_of(row[1])) for row in await self._ask("find_workers", *columns)
        ]
        return {(w.namespace, w.worker_id): (revision, w) for revision, w in known}

    async def find_records(self, keys: Collection[RecordKey]) -> Mapping[RecordKey, Record]:
        found = await self._ask("find_records", *_columns(keys))
        return {
            RecordKey(*map(plain, row[:3])): Record(row[5], row[4], version=row[3]) for row in found
        }

    async def find_items(self, key: StreamKey, keys: Collection[str]) -> Mapping[str, int]:
        found = await self._ask("find_items", *key, list(keys))
        return {plain(row[0]): row[1] for row in found}

    async def find_record_keys(self, selection: RecordRange) -> list[RecordKey]:
        found = await self._ask(_reading(selection), *_range(selection))
        return [RecordKey(selection.kind, selection.namespace, plain(row[0])) for row in found]

    async def find_record_page(self, selection: RecordRange) -> list[tuple[RecordKey, Record]]:
        return _records(selection, await self._ask(_reading(selection), *_range(selection)))

    async def find_kind(self, kind: str, limit: int) -> list[tuple[RecordKey, Record]]:
        found = await self._ask("find_kind", kind, limit)
        return [
            (RecordKey(kind, *map(plain, row[:2])), Record(row[4], row[3], version=row[2]))
            for row in found
        ]

    async def find_closed(self, selection: ClosedFilter) -> list[RunRow]:
        """The rows stay locked until the beat ends, so that no other node removes them."""
        await self._begin()
        query = "find_closed_pushed" if selection.is_pushed else "find_closed"
        return [_row_of(row) for row in await self._ask(query, *_closed(selection))]

    async def find_rows(self, run_ids: Collection[str]) -> list[RunRow]:
        await self._begin()
        return [_row_of(row) for row in await self._ask("find_rows", list(run_ids))]

    async def find_keys_of(
        self, namespace: str, kinds: Collection[str], run_ids: Collection[str], limit: int
    ) -> list[RecordKey]:
        values = (list(kinds), list(run_ids), namespace, LAST_CHARACTER, limit)
        found = await self._ask("find_keys_of", *values)
        return [RecordKey(plain(row[0]), namespace, plain(row[1])) for row in found]

    async def find_remains(
        self, run_ids: Collection[str], instances: Collection[Instance], *, limit: int, size: int
    ) -> Remains:
        async def ask(query: str, *values: Any) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in await self._ask(query, *values)]

        ids = list(run_ids)
        old: list[tuple[Any, ...]] = []
        for namespace in {instance.namespace for instance in instances}:
            named = [one.workflow_id for one in instances if one.namespace == namespace]
            old += await ask("find_old_receipts_left", namespace, named, limit)
        receipts = [*await ask("find_receipts_left", ids, limit), *old]
        items = await ask("find_items_left", ids, limit)
        return rows.remains_of(
            chunks=await ask("find_chunks_left", ids, limit),
            operations=await ask("find_operations_left", ids, limit),
            inbox=await ask("find_inbox_left", ids, limit),
            ready=await ask("find_ready_left", ids, limit),
            items=[(row[0], plain(row[1]), *row[2:]) for row in items],
            receipts=[ReceiptKey(*map(plain, row)) for row in receipts],
            limit=limit,
            size=size,
        )

    async def load_ready(
        self, key: QueueKey, names: Collection[str], limit: int
    ) -> list[ReadyTask]:
        """The rows stay locked until the beat ends, so that no other node decides on them."""
        await self._begin()
        found = await self._ask("load_ready", *key, list(names), limit)
        return [ReadyTask(row[0], row[1], plain(row[2])) for row in found]

    async def hold(self, run_ids: Collection[str], records: Collection[RecordKey] = ()) -> None:
        await self._begin()
        if run_ids:
            await self._ask("hold_runs", list(run_ids))
        if records:
            await self._ask("wait_for_records", *_columns(records))

    async def count_ready(self, key: QueueKey, names: Collection[str], limit: int) -> int:
        return int((await self._ask("count_ready", *key, list(names), limit))[0][0])

    async def find_leases(self, namespace: str, owner: str) -> list[LeasedTask]:
        return [LeasedTask(*row) for row in await self._ask("find_leases", owner, namespace)]

    async def find_standing(self, tasks: Collection[LeasedTask]) -> list[LeasedTask]:
        run_ids, places = [task.run_id for task in tasks], [task.place for task in tasks]
        return [LeasedTask(*row) for row in await self._ask("find_standing", run_ids, places)]

    async def _begin(self) -> None:
        if not self._in_transaction:
            await self._lane.connect_with_retries()
            try:
                await self._lane.command(_BEGIN)
            except Lost as error:
                raise Conflict("the connection broke before anything was written") from error
            self._in_transaction = True

    async def _ask(self, query: str, *values: Any) -> list[asyncpg.Record]:
        if not self._in_transaction:
            return await self._lane.ask_with_retries(self._sql[query], *values)
        try:
            return await self._lane.ask(self._sql[query], *values)
        except Lost as error:
            self._in_transaction = False
            raise Conflict("the connection broke before anything was written") from error

    # Committing ----------------------------------------------------------------------------------

    async def commit(self, changes: Changes) -> None:
        if not self._in_transaction:
            await self._lane.connect_with_retries()
        self._beat += 1
        now = self._clock.now()
        parts: dict[str, dict[str, Any]] = {
            "fence": {"node_id": self._node_id, "epoch": self._epoch},
            "note_beat": {"node_id": self._node_id, "number": self._beat},
            **parts_of(collect(changes)),
        }
        for part in ("insert_worker", "update_worker"):
            if part in parts:
                parts[part]["now"] = now
        text, values = self._sql.commit(parts)
        try:
            ((is_done, is_fenced),) = await self._lane.ask(text, *values)
            if self._in_transaction:
                await self._lane.command("commit" if is_done else "rollback")
                self._in_transaction = False
        except Lost:
            self._in_transaction = False
            if not await self._is_on_disk():
                raise Conflict("the connection broke before the commit") from None
            is_done = is_fenced = True
        except Unavailable as error:
            self.health.refused(error)
            raise
        if not is_fenced:
            # Another node removed this one from the list; a new connection registers it again.
            self._lane.drop()
        if not is_done:
            raise Conflict("another node changed the data first")
        self.health.worked()
        for run in changes.runs:
            run.version += 1

    async def _is_on_disk(self) -> bool:
        """Whether a commit succeeded whose connection broke.

        A new connection ends the statements of the old one. Until it exists the outcome is unknown,
        and nothing may be decided again.
        """
        try:
            return bool(await self._ask("find_beat", self._node_id, self._beat))
        except (Conflict, Unavailable) as error:
            text = f"the outcome of a commit is unknown until the database is back: {error}"
            raise Unavailable("storage_unavailable", text, 2) from error

    async def release(self) -> None:
        if not self._in_transaction:
            return
        self._in_transaction = False
        try:
            await self._lane.command("rollback")
        except (Lost, Unavailable, Conflict):
            # The connection is lost, and its locks with it.
            self._lane.drop()

    # Reading -------------------------------------------------------------------------------------

    async def load_workers(self) -> list[Worker]:
        return [rows.worker_of(row[1]) for row in await self._read("load_workers")]

    async def load_changed_workers(self, since: int) -> list[Worker]:
        return [rows.worker_of(row[1]) for row in await self._read("load_changed_workers", since)]

    async def load_namespaces(self) -> list[str]:
        return [plain(row[0]) for row in await self._read("load_namespaces")]

    async def add_namespace(self, name: str) -> None:
        await self._read("add_namespace", name)

    async def load_lease_owners(self) -> list[tuple[str, str]]:
        return [(plain(row[0]), plain(row[1])) for row in await self._read("load_lease_owners")]

    async def find_poll_leases(
        self, owners: Collection[str], poll_ids: Collection[str]
    ) -> list[PollLease]:
        found = await self._read("find_poll_leases", list(owners), list(poll_ids))
        return [
            PollLease(plain(row[0]), plain(row[1]), plain(row[2]), row[3], row[4]) for row in found
        ]

    async def read_record_versions(self, keys: Collection[RecordKey]) -> Mapping[RecordKey, int]:
        found = await self._read("read_record_versions", *_columns(list(keys)))
        return {RecordKey(*map(plain, row[:3])): row[3] for row in found}

    async def read_versions(self, run_ids: Collection[str]) -> Mapping[str, int]:
        return {row[0]: row[1] for row in await self._read("read_versions", list(run_ids))}

    async def read_clock(self) -> int:
        return int((await self._read("read_clock"))[0][0])

    async def read_latest_life(self) -> int:
        return int((await self._read("read_latest_life", self._node_id))[0][0])

    async def load_due(self, now: int, limit: int) -> list[str | RecordKey]:
        found = await self._read("take_due", now, limit, now + _DUE_TAKEN)
        return [rows.due_of(row[0], plain(row[1])) for row in found]

    async def find_next_due(self, now: int) -> int | None:
        due_at = (await self._read("find_next_due", now))[0][0]
        return None if due_at is None else int(due_at)

    async def load_ready_names(self) -> list[tuple[QueueKey, str]]:
        found = await self._read("load_ready_names")
        return [(QueueKey(*map(plain, row[:3])), plain(row[3])) for row in found]

    async def check(self) -> None:
        async with self._reader() as line:
            try:
                await self._ask_now(line, "check")
                if self.health.trouble is not None:
                    await self._ask_now(line, "probe", PROBE_BYTES)
                    await self._ask_now(line, "forget_probe")
            except Lost as error:
                raise _lost(error) from error
        self.health.worked()

    async def _ask_now(self, line: PostgresConnection, query: str, *values: Any) -> None:
        """Run a statement without waiting for a reconnect; a broken connection is replaced once."""
        try:
            await line.ask(self._sql[query], *values)
        except Lost:
            await line.ask(self._sql[query], *values)

    async def read_run(self, run_id: str) -> Run | None:
        found = await self._read("read_run", run_id)
        if not found:
            return None
        run = _run_of(found[0])
        for sequence, data in zip(found[0][12] or (), found[0][13] or (), strict=True):
            run.operations[sequence] = rows.operation_of(data)
        return run

    async def count_messages(self, run: Run) -> Unread:
        ((waiting, before),) = await self._read("count_messages", run.inbox_first, run.run_id)
        return Unread(waiting, before)

    async def read_closed(self, selection: ClosedFilter) -> list[str]:
        query = "read_closed_pushed" if selection.is_pushed else "read_closed"
        return [row[0] for row in await self._read(query, *_closed(selection))]

    async def read_instance(self, instance: Instance) -> Sequence[Run]:
        return [_run_of(row) for row in await self._read("read_instance", *instance)]

    async def read_list(
        self, selection: RunFilter, after: ListCursor | None, limit: int
    ) -> list[Run]:
        statuses = None
        query, named = listing(selection)
        if selection.bucket is not None:
            chosen = [status for status in RunStatus if bucket(status) == selection.bucket]
            statuses = [status.value for status in chosen]
            if named is None and chosen and CLOSED.isdisjoint(chosen):
                query = "read_open_list"
        cursor = ListCursor(_END_OF_TIME, "") if after is None else after
        found = await self._read(
            query,
            selection.namespace,
            *cursor,
            selection.since,
            selection.workflow_type,
            selection.hidden_type,
            statuses,
            *(() if named is None else (list(named),)),
            limit,
        )
        return [_run_of(row) for row in found]

    async def read_pushed(
        self, selection: PushedFilter, after: PushedCursor | None, limit: int
    ) -> list[Run]:
        statuses = None if selection.statuses is None else list(selection.statuses)
        query, values = question(selection, statuses, after, limit)
        return [_run_of(row) for row in await self._read(query, *values)]

    async def read_pushed_figures(self, selection: PushedFilter, step: int) -> list[PushedFigures]:
        values = (step, selection.namespace, selection.since, selection.app, selection.workflow)
        return [PushedFigures(*row) for row in await self._read("read_pushed_figures", *values)]

    async def read_history(self, run_id: str, after: int, limit: int) -> list[bytes]:
        events: list[bytes] = []
        found = await self._read("read_chunks", run_id, after, limit + 1)
        for first, last, chunk, digest in found:
            if last > after:
                one = self.damaged.events_of(run_id, chunk, digest)
                events.extend(one[max(after + 1 - first, 0) :])
            if len(events) >= limit:
                break
        return events[:limit]

    async def read_last_events(self, run_id: str) -> list[bytes]:
        found = await self._read("read_last_chunk", run_id)
        return self.damaged.events_of(run_id, *found[0]) if found else []

    async def read_items(
        self, key: StreamKey, first: int, until: int, *, limit: int, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        found = await self._read("read_items", *key, first, until, limit, bytes_max)
        return [(row[0], row[1]) for row in found]

    async def read_queues(self, namespace: str, kinds: Collection[str], limit: int) -> list[str]:
        found = await self._read("read_queues", namespace, limit, list(kinds))
        return [plain(row[0]) for row in found]

    async def read_backlog(
        self, namespace: str, queues: Collection[str], kinds: Collection[str], limit: int
    ) -> list[Backlog]:
        values = (list(queues), list(kinds), namespace, limit, list(PRIORITIES))
        found = await self._read("read_backlog", *values)
        return [Backlog(plain(row[0]), row[1], row[2], row[3]) for row in found]

    async def count_leases(
        self, namespace: str, owners: Collection[str], limit: int
    ) -> list[LeaseCount]:
        values = (list(owners), namespace, limit)
        runs = await self._read("count_leased_runs", *values)
        operations = await self._read("count_leased_operations", *values)
        return rows.lease_counts(
            [(plain(row[0]), row[1]) for row in runs],
            [(plain(row[0]), row[1]) for row in operations],
        )

    async def read_leases(
        self, namespace: str, owners: Collection[str], limit: int
    ) -> list[tuple[Run, int]]:
        values = (list(owners), namespace, limit)
        runs = await self._read("read_leased_runs", *values)
        operations = await self._read("read_leased_operations", *values)
        return rows.leases_of(
            [_plainly(row) for row in runs],
            [(*_plainly(row), row[12], row[13]) for row in operations],
        )

    async def read_payload(self, key: PayloadKey) -> bytes | None:
        found = await self._read("read_payload", *key)
        return found[0][0] if found else None

    async def read_loose_payloads(self) -> LoosePayloads:
        return LoosePayloads(*(await self._read("read_loose_payloads"))[0])

    async def read_record(self, key: RecordKey) -> Record | None:
        found = await self._read("find_records", *_columns([key]))
        return Record(found[0][5], found[0][4], version=found[0][3]) if found else None

    async def read_records(self, selection: RecordRange) -> list[tuple[RecordKey, Record]]:
        found = await self._read(_reading(selection), *_range(selection))
        return _records(selection, found)

    async def _read(self, query: str, *values: Any) -> list[asyncpg.Record]:
        async with self._reader() as line:
            return await line.ask_with_retries(self._sql[query], *values)

    @contextlib.asynccontextmanager
    async def _reader(self) -> AsyncIterator[PostgresConnection]:
        line = await self._readers.get()
        try:
            yield line
        except asyncio.CancelledError:
            # The response of its statement may still arrive.
            line.drop()
            raise
        finally:
            self._readers.put_nowait(line)


def _lost(error: Lost) -> Unavailable:
    return Unavailable("storage_unavailable", f"the connection to the store was lost: {error}", 1)


def _columns(keys: Collection[RecordKey]) -> list[list[str]]:
    return [list(column) for column in zip(*keys, strict=True)]


def _reading(selection: RecordRange) -> str:
    return backwards("read_records") if selection.newest_first else "read_records"


def _records(
    selection: RecordRange, found: Iterable[asyncpg.Record]
) -> list[tuple[RecordKey, Record]]:
    return [
        (
            RecordKey(selection.kind, selection.namespace, plain(row[0])),
            Record(row[3], row[2], version=row[1]),
        )
        for row in found
    ]


def _range(selection: RecordRange) -> tuple[Any, ...]:
    return (selection.kind, selection.namespace, *selection.bounds, selection.limit)


def _closed(selection: ClosedFilter) -> tuple[Any, ...]:
    return (selection.namespace, selection.before, *selection.after, selection.limit)


def _events_known(run: Run | None) -> int:
    """How many events of a held run need not be loaded again."""
    if run is None or run.plain_input is not None or not run.events:
        return 0
    return run.history_count


def _run_of(row: asyncpg.Record) -> Run:
    return rows.run_of(_plainly(row))


def _row_of(row: asyncpg.Record) -> RunRow:
    return rows.closed_of(_plainly(row))


def _plainly(row: asyncpg.Record) -> tuple[Any, ...]:
    return (*(plain(row[number]) for number in range(5)), *row[5:12])

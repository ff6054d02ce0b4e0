"""The SQLite store: one writing connection on the event loop, and separate readers.

Statements are short and run on the event loop. Only COMMIT waits for the disk, so only COMMIT may
move to a thread while the next beat is collected; see `committer`. The file belongs to one process;
see `guard`.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import apsw
import msgspec

from perdure.core.fleet.worker import Worker
from perdure.core.limits import PRIORITIES, RUN_HISTORY_CACHE_BYTES_MAX
from perdure.core.run.limit_warnings import Unread
from perdure.core.run.operation import Activity
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus, bucket
from perdure.store import rows
from perdure.store.damage import DamagedRuns, chunk_digest, digest_of
from perdure.store.health import PROBE_BYTES, StoreHealth
from perdure.store.interface import (
    LAST_CHARACTER,
    Backlog,
    Changes,
    ClosedFilter,
    Instance,
    LeaseCount,
    LeasedTask,
    ListCursor,
    LoosePayloads,
    PayloadFate,
    PayloadKey,
    PayloadPut,
    PushedCursor,
    PushedFigures,
    PushedFilter,
    QueueKey,
    ReadyTask,
    Receipt,
    ReceiptKey,
    Record,
    RecordChange,
    RecordKey,
    RecordRange,
    Remains,
    RunFilter,
    RunRow,
    StreamKey,
    Unavailable,
)
from perdure.store.list_queries import listing
from perdure.store.push_lists import question
from perdure.store.queries import backwards, load_shortened
from perdure.store.sqlite.committer import INLINE_RUNS_MAX, Committer
from perdure.store.sqlite.errors import unavailable
from perdure.store.sqlite.guard import FileGuard
from perdure.store.sqlite.schema import (
    create_file,
    keep_plans,
    migrate,
    note_clean_stop,
    prepare_writer,
    require_finished,
    require_ours,
    verify_after_crash,
)

PACKAGE = "perdure.store.sqlite"
_END_OF_TIME = 2**62
_NOTHING: Mapping[str, Run] = {}

T = TypeVar("T")


class _NoConnection:
    """A stand-in for a connection while the store is not open."""

    in_transaction = False

    def execute(self, *statement: object) -> NoReturn:
        raise _not_open()

    def close(self) -> None:
        pass


_CLOSED = cast(apsw.Connection, _NoConnection())


def _not_open() -> Unavailable:
    return Unavailable("storage_unavailable", "the store is closed")


class SqliteStore:
    """A store in one database file."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = FileGuard(path)
        self._sql = dict(load_shortened(PACKAGE))
        self._committer = Committer()
        self.health = StoreHealth()
        self.damaged = DamagedRuns()
        self._librarian = ThreadPoolExecutor(1, thread_name_prefix="perdure-read")
        self._writer = self._reader = self._bulk_reader = _CLOSED

    async def open(self) -> None:
        self._guard.acquire()
        try:
            self._open()
        except BaseException as error:
            self._close_connections()
            self._guard.release()
            if isinstance(error, apsw.Error):
                error = unavailable(error)
            if isinstance(error, Unavailable):
                raise Unavailable(error.reason, f"{self._path}: {error.message}") from error
            raise

    def _open(self) -> None:
        create_file(self._path)
        require_ours(self._path)
        self._writer = apsw.Connection(str(self._path))
        prepare_writer(self._writer)
        migrate(self._writer, PACKAGE)
        require_finished(self._writer)
        verify_after_crash(self._writer)
        flags = apsw.SQLITE_OPEN_READONLY
        self._reader = apsw.Connection(str(self._path), flags=flags)
        self._bulk_reader = apsw.Connection(str(self._path), flags=flags)
        for reader in (self._reader, self._bulk_reader):
            keep_plans(reader)
            reader.set_busy_timeout(1000)

    async def close(self) -> None:
        self._committer.stop()
        self._librarian.shutdown()
        # If this fails, the next start checks the file; there is nothing else to do.
        with contextlib.suppress(apsw.Error, Unavailable):
            note_clean_stop(self._writer)
        self._close_connections()
        self._guard.release()

    def _close_connections(self) -> None:
        for connection in (self._reader, self._bulk_reader, self._writer):
            connection.close()
        self._writer = self._reader = self._bulk_reader = _CLOSED

    # Loading -------------------------------------------------------------------------------------

    async def load_runs(
        self, run_ids: Collection[str], held: Mapping[str, Run] = _NOTHING
    ) -> list[Run]:
        ids = (_array(run_ids),)
        runs = {row[0]: rows.run_of(row) for row in self._ask("load_runs", ids)}
        if not runs:
            return []
        for run_id, sequence, data in self._ask("load_operations", ids):
            runs[run_id].operations[sequence] = rows.operation_of(data)
        for run_id, position, data in self._ask("load_inbox", ids):
            runs[run_id].place_message(position, rows.signal_of(data))
        for run in runs.values():
            self._load_events(run)
        return list(runs.values())

    def _load_events(self, run: Run) -> None:
        """Load all of a short history; of a long one only the start arguments."""
        long = run.history_bytes > RUN_HISTORY_CACHE_BYTES_MAX and run.plain_input is None
        chunks = self._ask("load_first_chunk" if long else "load_chunks", (run.run_id,))
        self.damaged.require_whole(run.run_id, chunks)
        run.arguments = self.damaged.arguments_of(run.run_id, *chunks[0])
        if long:
            run.keep_opening(self.damaged.events_of(run.run_id, *chunks[0]))
        else:
            run.events = [
                event
                for chunk, digest in chunks
                for event in self.damaged.events_of(run.run_id, chunk, digest)
            ]
            run.events_bytes = sum(map(len, run.events))
            self.damaged.whole(run.run_id)

    async def find_current(self, instances: Collection[Instance]) -> Mapping[Instance, str]:
        found: dict[Instance, str] = {}
        for instance in instances:
            for (run_id,) in self._ask("find_current", instance):
                found[instance] = run_id
        return found

    async def find_receipts(self, keys: Collection[ReceiptKey]) -> Mapping[ReceiptKey, Receipt]:
        found: dict[ReceiptKey, Receipt] = {}
        for key in keys:
            for (data,) in self._ask("find_receipt", key):
                found[key] = rows.receipt_of(data)
        return found

    async def find_records(self, keys: Collection[RecordKey]) -> Mapping[RecordKey, Record]:
        found: dict[RecordKey, Record] = {}
        for key in keys:
            for due_at, data in self._ask("find_record", key):
                found[key] = Record(data, due_at)
        return found

    async def find_items(self, key: StreamKey, keys: Collection[str]) -> Mapping[str, int]:
        return {row[0]: row[1] for row in self._ask("find_items", (*key, _array(keys)))}

    async def find_record_keys(self, selection: RecordRange) -> list[RecordKey]:
        found = self._ask(_reading(selection), _range(selection))
        return [RecordKey(selection.kind, selection.namespace, row[0]) for row in found]

    async def find_record_page(self, selection: RecordRange) -> list[tuple[RecordKey, Record]]:
        found = self._ask(_reading(selection), _range(selection))
        return [
            (RecordKey(selection.kind, selection.namespace, key), Record(data, due_at))
            for key, due_at, data in found
        ]

    async def find_kind(self, kind: str, limit: int) -> list[tuple[RecordKey, Record]]:
        found = self._ask("find_kind", (kind, limit))
        return [(RecordKey(kind, *row[:2]), Record(row[3], row[2])) for row in found]

    async def find_closed(self, selection: ClosedFilter) -> list[RunRow]:
        return [rows.closed_of(row) for row in self._ask(_closing(selection), _closed(selection))]

    async def find_rows(self, run_ids: Collection[str]) -> list[RunRow]:
        return [rows.closed_of(row) for row in self._ask("load_runs", (_array(run_ids),))]

    async def find_keys_of(
        self, namespace: str, kinds: Collection[str], run_ids: Collection[str], limit: int
    ) -> list[RecordKey]:
        values = (_array(run_ids), _array(kinds), namespace, LAST_CHARACTER, limit)
        return [RecordKey(row[0], namespace, row[1]) for row in self._ask("find_keys_of", values)]

    async def find_remains(
        self, run_ids: Collection[str], instances: Collection[Instance], *, limit: int, size: int
    ) -> Remains:
        found = (_array(run_ids), limit)
        receipts = self._ask("find_receipts_left", found)
        for namespace in {instance.namespace for instance in instances}:
            named = _array(one.workflow_id for one in instances if one.namespace == namespace)
            receipts += self._ask("find_old_receipts_left", (namespace, named, limit))
        return rows.remains_of(
            chunks=self._ask("find_chunks_left", found),
            operations=self._ask("find_operations_left", found),
            inbox=self._ask("find_inbox_left", found),
            ready=self._ask("find_ready_left", found),
            items=self._ask("find_items_left", found),
            receipts=[ReceiptKey(*row) for row in receipts],
            limit=limit,
            size=size,
        )

    async def load_ready(
        self, key: QueueKey, names: Collection[str], limit: int
    ) -> list[ReadyTask]:
        return [ReadyTask(*row) for row in self._ask("load_ready", (*key, _array(names), limit))]

    async def load_due(self, now: int, limit: int) -> list[str | RecordKey]:
        return [rows.due_of(*row) for row in self._read("load_due", (now, limit))]

    async def find_next_due(self, now: int) -> int | None:
        (due_at,) = self._read("find_next_due", ())[0]
        return None if due_at is None else int(due_at)

    async def find_leases(self, namespace: str, owner: str) -> list[LeasedTask]:
        held = self._ask("find_leased_runs", (owner, namespace))
        held += self._ask("find_leased_operations", (owner, namespace))
        return [LeasedTask(*row) for row in held]

    async def find_standing(self, tasks: Collection[LeasedTask]) -> list[LeasedTask]:
        named = (msgspec.json.encode(list(tasks)).decode(),)
        held = self._ask("find_standing_runs", named)
        held += self._ask("find_standing_operations", named)
        return [LeasedTask(*row) for row in held]

    async def load_workers(self) -> list[Worker]:
        return [rows.worker_of(data) for (data,) in self._ask("load_workers", ())]

    async def load_namespaces(self) -> list[str]:
        return [name for (name,) in self._ask("load_namespaces", ())]

    async def add_namespace(self, name: str) -> None:
        self._ask("add_namespace", (name,))

    async def load_lease_owners(self) -> list[tuple[str, str]]:
        return [(row[0], row[1]) for row in self._ask("load_lease_owners", ())]

    async def load_ready_names(self) -> list[tuple[QueueKey, str]]:
        found = self._read("load_ready_names", ())
        return [(QueueKey(*row[:3]), row[3]) for row in found]

    def _ask(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._writer.execute(self._sql[query], tuple(values)).fetchall()
        except apsw.Error as error:
            raise unavailable(error) from error

    # Committing ----------------------------------------------------------------------------------

    async def commit(self, changes: Changes) -> None:
        writer = self._writer
        try:
            writer.execute("begin immediate")
            self._write(changes)
            # A payload is as much to write as many runs, and so is a page of removed rows.
            weight = len(changes.runs) + INLINE_RUNS_MAX * len(changes.payloads)
            weight += len(changes.items) + INLINE_RUNS_MAX * len(changes.trimmed)
            weight += INLINE_RUNS_MAX * len(changes.remains)
            await self._committer.commit(writer, runs=weight)
        except apsw.Error as error:
            self._roll_back()
            refusal = unavailable(error)
            self.health.refused(refusal)
            raise refusal from error
        except BaseException:
            self._roll_back()
            raise
        self.health.worked()

    async def release(self) -> None:
        """Nothing to release: a transaction begins with the commit."""

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("rollback")

    def _write(self, changes: Changes) -> None:
        batches: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        # Removals first: a new row may have the key of a removed one.
        for gone in changes.gone:
            batches["delete_run"].append((gone.run_id,))
            batches["delete_deadline"].append(("run", gone.run_id))
        for remains in changes.remains:
            _collect_remains(remains, batches)
        for run in changes.runs:
            _collect_run(run, batches)
        for key, receipt in changes.receipts.items():
            batches["put_receipt"].append((*key, rows.encode(receipt), receipt.run_id))
        for key, receipt in changes.renewed_receipts.items():
            batches["renew_receipt"].append((rows.encode(receipt), receipt.run_id, *key))
        for (namespace, worker_id), worker in changes.workers.items():
            if worker is None:
                batches["delete_worker"].append((namespace, worker_id))
            else:
                row = (namespace, worker_id, rows.encode(worker))
                batches["put_worker"].append(row)
        for record_key, change in changes.records.items():
            _collect_record(record_key, change, batches)
        for payload_key, fate in changes.payloads.items():
            _collect_payload(payload_key, fate, batches)
        if changes.items:
            batches["insert_item"] += changes.items
        for stream, below in changes.trimmed.items():
            batches["trim_items"].append((*stream, below))
        for query, values in batches.items():
            self._writer.executemany(self._sql[query], values)

    # Reading -------------------------------------------------------------------------------------

    async def check(self) -> None:
        self._read("check", ())
        # An open transaction belongs to the beat, and its commit is a better test than a probe.
        if self.health.trouble is not None and not self._writer.in_transaction:
            self._probe()

    def _probe(self) -> None:
        """Write about as much as a beat. On the loop, with the only connection that writes."""
        writer = self._writer
        try:
            for query, values in (("probe", (PROBE_BYTES,)), ("forget_probe", ())):
                writer.execute("begin immediate")
                writer.execute(self._sql[query], values)
                self._committer.commit_here(writer)
        except apsw.Error as error:
            self._roll_back()
            raise unavailable(error) from error
        self.health.worked()

    async def read_run(self, run_id: str) -> Run | None:
        found = self._read("read_run", (run_id,))
        if not found:
            return None
        run = rows.run_of(found[0])
        for sequence, data in self._read("read_operations", (run_id,)):
            run.operations[sequence] = rows.operation_of(data)
        return run

    async def count_messages(self, run: Run) -> Unread:
        ((waiting, before),) = self._read("count_messages", (run.inbox_first, run.run_id))
        return Unread(waiting, before)

    async def read_closed(self, selection: ClosedFilter) -> list[str]:
        return [row[0] for row in await self._read_bulk(_closing(selection), _closed(selection))]

    async def read_instance(self, instance: Instance) -> Sequence[Run]:
        return [rows.run_of(row) for row in self._read("read_instance", instance)]

    async def read_list(
        self, selection: RunFilter, after: ListCursor | None, limit: int
    ) -> list[Run]:
        statuses = None
        if selection.bucket is not None:
            statuses = _array(s.value for s in RunStatus if bucket(s) == selection.bucket)
        cursor = ListCursor(_END_OF_TIME, "") if after is None else after
        query, named = listing(selection)
        ids = () if named is None else (_array(named),)
        types = (selection.workflow_type, selection.hidden_type)
        values = (selection.namespace, *cursor, selection.since, *types, statuses, *ids, limit)
        found = await self._read_bulk(query, values)
        return [rows.run_of(row) for row in found]

    async def read_items(
        self, key: StreamKey, first: int, until: int, *, limit: int, bytes_max: int
    ) -> list[tuple[int, bytes]]:
        return await self._in_thread(self._read_page, (*key, first, until, limit), bytes_max)

    def _read_page(self, values: tuple[Any, ...], bytes_max: int) -> list[tuple[int, bytes]]:
        page: list[tuple[int, bytes]] = []
        size = 0
        try:
            for offset, data in self._bulk_reader.execute(self._sql["read_items"], values):
                size += len(data)
                if page and size > bytes_max:
                    break
                page.append((offset, data))
        except apsw.Error as error:
            raise unavailable(error) from error
        return page

    async def read_queues(self, namespace: str, kinds: Collection[str], limit: int) -> list[str]:
        found = await self._read_bulk("read_queues", (namespace, limit, _array(kinds)))
        return [row[0] for row in found]

    async def read_backlog(
        self, namespace: str, queues: Collection[str], kinds: Collection[str], limit: int
    ) -> list[Backlog]:
        named, sorts = list(queues), list(kinds)
        priorities = msgspec.json.encode(list(PRIORITIES)).decode()
        values = (namespace, limit, priorities, _array(named), _array(sorts))
        found = await self._read_bulk("read_backlog", values)
        return [Backlog(named[row[0]], sorts[row[1]], *row[2:]) for row in found]

    async def count_leases(
        self, namespace: str, owners: Collection[str], limit: int
    ) -> list[LeaseCount]:
        values = (_array(owners), namespace, limit)
        runs = await self._read_bulk("count_leased_runs", values)
        operations = await self._read_bulk("count_leased_operations", values)
        return rows.lease_counts(runs, operations)

    async def read_leases(
        self, namespace: str, owners: Collection[str], limit: int
    ) -> list[tuple[Run, int]]:
        values = (_array(owners), namespace, limit)
        runs = await self._read_bulk("read_leased_runs", values)
        operations = await self._read_bulk("read_leased_operations", values)
        return rows.leases_of(runs, operations)

    async def read_payload(self, key: PayloadKey) -> bytes | None:
        found = await self._read_bulk("read_payload", key)
        return found[0][0] if found else None

    async def read_loose_payloads(self) -> LoosePayloads:
        return LoosePayloads(*self._read("read_loose_payloads", ())[0])

    async def read_record(self, key: RecordKey) -> Record | None:
        for due_at, data in self._read("find_record", key):
            return Record(data, due_at)
        return None

    async def read_records(self, selection: RecordRange) -> list[tuple[RecordKey, Record]]:
        found = await self._read_bulk(_reading(selection), _range(selection))
        return [
            (RecordKey(selection.kind, selection.namespace, key), Record(data, due_at))
            for key, due_at, data in found
        ]

    async def read_pushed(
        self, selection: PushedFilter, after: PushedCursor | None, limit: int
    ) -> list[Run]:
        statuses = None if selection.statuses is None else _array(selection.statuses)
        query, values = question(selection, statuses, after, limit)
        return [rows.run_of(row) for row in await self._read_bulk(query, values)]

    async def read_pushed_figures(self, selection: PushedFilter, step: int) -> list[PushedFigures]:
        values = (step, selection.namespace, selection.since, selection.app, selection.workflow)
        return [PushedFigures(*row) for row in await self._read_bulk("read_pushed_figures", values)]

    async def read_history(self, run_id: str, after: int, limit: int) -> list[bytes]:
        return await self._in_thread(self._read_events, run_id, after, limit)

    def _read_events(self, run_id: str, after: int, limit: int) -> list[bytes]:
        try:
            return self._collect_events(run_id, after, limit)
        except apsw.Error as error:
            raise unavailable(error) from error

    def _collect_events(self, run_id: str, after: int, limit: int) -> list[bytes]:
        events: list[bytes] = []
        query = self._sql["read_chunks"]
        for first, last, chunk, digest in self._bulk_reader.execute(query, (run_id, after)):
            if last <= after:
                continue
            found = self.damaged.events_of(run_id, chunk, digest)
            events.extend(found[max(after + 1 - first, 0) :])
            if len(events) >= limit:
                break
        return events[:limit]

    async def read_last_events(self, run_id: str) -> list[bytes]:
        found = self._read("read_last_chunk", (run_id,))
        return self.damaged.events_of(run_id, *found[0]) if found else []

    def _read(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._reader.execute(self._sql[query], tuple(values)).fetchall()
        except apsw.Error as error:
            raise unavailable(error) from error

    async def _in_thread(self, read: Callable[..., T], *values: Any) -> T:
        if self._bulk_reader is _CLOSED:
            raise _not_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._librarian, read, *values)

    async def _read_bulk(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        def ask() -> list[tuple[Any, ...]]:
            return self._bulk_reader.execute(self._sql[query], tuple(values)).fetchall()

        try:
            return await self._in_thread(ask)
        except apsw.Error as error:
            raise unavailable(error) from error


def _array(values: Iterable[str]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _collect_run(run: Run, batches: dict[str, list[tuple[Any, ...]]]) -> None:
    """Group all unsaved parts of a run by the statements that write them."""
    unsaved = run.unsaved
    run_id = run.run_id
    if unsaved.created:
        batches["insert_run"].append(rows.run_row(run))
    elif run.status is unsaved.status:
        batches["update_state"].append((*rows.state_columns(run), run_id))
    else:
        batches["update_run"].append((*rows.changing_columns(run), run_id))
    if unsaved.rewritten is not None:
        batches["rewrite_first_chunk"].append(
            (unsaved.rewritten, digest_of(unsaved.rewritten), run_id)
        )
    if unsaved.events:
        last = run.history_count
        first = last - len(unsaved.events) + 1
        chunk = b",".join(unsaved.events)
        batches["insert_chunk"].append(
            (run_id, first, last, chunk, chunk_digest(run, first, chunk))
        )
    for sequence in unsaved.operations:
        operation = run.operations.get(sequence)
        if operation is None:
            batches["delete_operation"].append((run_id, sequence))
            continue
        lease = operation.lease if isinstance(operation, Activity) else None
        owner = None if lease is None else lease.owner
        batches["put_operation"].append((run_id, sequence, owner, rows.encode(operation)))
    for position in unsaved.inbox:
        signal = run.message_at(position)
        if signal is None:
            batches["delete_signal"].append((run_id, position))
        else:
            batches["put_signal"].append((run_id, position, rows.encode(signal)))
    for place, is_ready in unsaved.ready.items():
        if is_ready:
            batches["put_ready"].append(rows.ready_row(run, place))
        else:
            batches["delete_ready"].append((run_id, place))
    if run.due_at != unsaved.due_at:
        if run.due_at is None:
            batches["delete_deadline"].append(("run", run_id))
        else:
            batches["put_deadline"].append(("run", run_id, run.due_at))


def _collect_record(
    key: RecordKey, change: RecordChange, batches: dict[str, list[tuple[Any, ...]]]
) -> None:
    before, after = change.before, change.after
    if after is None:
        batches["delete_record"].append(key)
    else:
        batches["put_record"].append((*key, after.due_at, after.data))
    armed = None if before is None else before.due_at
    due_at = None if after is None else after.due_at
    if due_at is not None:
        batches["put_deadline"].append(("record", key.target, due_at))
    elif armed is not None:
        batches["delete_deadline"].append(("record", key.target))


def _collect_payload(
    key: PayloadKey,
    fate: PayloadPut | PayloadFate,
    batches: dict[str, list[tuple[Any, ...]]],
) -> None:
    match fate:
        case PayloadPut(data, is_loose):
            batches["put_payload"].append((*key, len(data) if is_loose else None, data))
        case PayloadFate.KEPT:
            batches["keep_payload"].append(key)
        case PayloadFate.GONE:
            batches["delete_payload"].append(key)


def _collect_remains(remains: Remains, batches: dict[str, list[tuple[Any, ...]]]) -> None:
    batches["delete_chunk"] += remains.chunks
    batches["delete_operation"] += remains.operations
    batches["delete_signal"] += remains.inbox
    batches["delete_ready"] += remains.ready
    batches["delete_item"] += remains.items
    batches["delete_receipt"] += remains.receipts


def _closing(selection: ClosedFilter) -> str:
    return "find_closed_pushed" if selection.is_pushed else "find_closed"


def _closed(selection: ClosedFilter) -> tuple[Any, ...]:
    return (selection.namespace, selection.before, *selection.after, selection.limit)


def _reading(selection: RecordRange) -> str:
    return backwards("read_records") if selection.newest_first else "read_records"


def _range(selection: RecordRange) -> tuple[Any, ...]:
    return (selection.kind, selection.namespace, *selection.bounds, selection.limit)

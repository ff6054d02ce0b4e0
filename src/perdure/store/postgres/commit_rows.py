"""The rows that a beat writes, grouped by the parts of its commit statement."""

from collections.abc import Iterable
from typing import Any

from perdure.core.fleet.worker import Worker
from perdure.core.run.operation import Activity
from perdure.core.run.state import Run
from perdure.core.run.status import CLOSED
from perdure.store import rows
from perdure.store.damage import chunk_digest, digest_of
from perdure.store.interface import (
    Changes,
    PayloadFate,
    PayloadKey,
    PayloadPut,
    RecordChange,
    RecordKey,
    Remains,
)

COLUMNS: dict[str, tuple[str, ...]] = {
    "hold_open": ("run_ids", "versions"),
    "hold_closed": ("run_ids", "versions"),
    "hold_workers": ("namespaces", "worker_ids", "revisions"),
    "hold_records": ("kinds", "namespaces", "keys", "versions"),
    "hold_new": ("namespaces", "workflow_ids"),
    "insert_run": (
        "run_ids",
        "namespaces",
        "workflow_ids",
        "workflow_types",
        "queues",
        "run_numbers",
        "started_ats",
        "statuses",
        "closed_ats",
        "versions",
        "states",
    ),
    "insert_open": ("run_ids", "statuses", "versions", "owners", "polls", "states"),
    "update_open": ("run_ids", "statuses", "versions", "owners", "polls", "states"),
    "delete_open": ("run_ids",),
    "close_run": ("run_ids", "statuses", "closed_ats", "versions", "states"),
    "put_operation": ("run_ids", "sequences", "owners", "polls", "data"),
    "delete_operation": ("run_ids", "sequences"),
    "put_signal": ("run_ids", "positions", "data"),
    "delete_signal": ("run_ids", "positions"),
    "insert_chunk": ("run_ids", "firsts", "lasts", "events", "digests"),
    "rewrite_first_chunk": ("run_ids", "events", "digests"),
    "put_ready": (
        "run_ids",
        "places",
        "namespaces",
        "queues",
        "kinds",
        "names",
        "priorities",
        "available_ats",
    ),
    "delete_ready": ("run_ids", "places"),
    "put_deadline": ("kinds", "targets", "due_ats"),
    "delete_deadline": ("kinds", "targets"),
    "put_receipt": ("namespaces", "workflow_ids", "kinds", "request_ids", "data", "run_ids"),
    "renew_receipt": ("namespaces", "workflow_ids", "kinds", "request_ids", "data", "run_ids"),
    "insert_worker": ("namespaces", "worker_ids", "data"),
    "update_worker": ("namespaces", "worker_ids", "data"),
    "delete_worker": ("namespaces", "worker_ids"),
    "insert_record": ("kinds", "namespaces", "keys", "due_ats", "data"),
    "update_record": ("kinds", "namespaces", "keys", "due_ats", "data"),
    "delete_record": ("kinds", "namespaces", "keys"),
    "put_payload": ("namespaces", "reference_ids", "sizes", "data"),
    "keep_payload": ("namespaces", "reference_ids"),
    "delete_payload": ("namespaces", "reference_ids"),
    "insert_item": ("run_ids", "stream_names", "offsets", "idempotency_keys", "data"),
    "trim_items": ("run_ids", "stream_names", "belows"),
    "delete_run": ("run_ids",),
    "delete_chunk": ("run_ids", "firsts"),
    "delete_item": ("run_ids", "stream_names", "offsets"),
    "delete_receipt": ("namespaces", "workflow_ids", "kinds", "request_ids"),
}
"""The parts in the order of the statement, and the values of each."""

Batches = dict[str, list[tuple[Any, ...]]]


def collect(changes: Changes) -> Batches:
    """The rows of a beat, by part."""
    batches: Batches = {}
    for row in changes.gone:
        _add(batches, "hold_closed", (row.run_id, row.version))
        _add(batches, "delete_run", (row.run_id,))
        _add(batches, "delete_deadline", ("run", row.run_id))
    for remains in changes.remains:
        _collect_remains(remains, batches)
    for instance in changes.assumed:
        _add(batches, "hold_new", tuple(instance))
    for run in changes.runs:
        _collect_run(run, batches)
    for key, receipt in changes.receipts.items():
        _add(batches, "put_receipt", (*key, rows.encode(receipt), receipt.run_id))
    for key, receipt in changes.renewed_receipts.items():
        _add(batches, "renew_receipt", (*key, rows.encode(receipt), receipt.run_id))
    for (namespace, worker_id), worker in changes.workers.items():
        _collect_worker(namespace, worker_id, worker, changes.worker_revisions, batches)
    for record_key, change in changes.records.items():
        _collect_record(record_key, change, batches)
    for payload_key, fate in changes.payloads.items():
        _collect_payload(payload_key, fate, batches)
    for item in changes.items:
        _add(batches, "insert_item", item)
    for stream, below in changes.trimmed.items():
        _add(batches, "trim_items", (*stream, below))
    return batches


def parts_of(batches: Batches) -> dict[str, dict[str, list[Any]]]:
    """Rows turned into columns, in the order of the parts."""
    return {
        part: dict(zip(names, _columns(batches[part], len(names)), strict=True))
        for part, names in COLUMNS.items()
        if part in batches
    }


def _columns(values: list[tuple[Any, ...]], width: int) -> Iterable[list[Any]]:
    return ([row[number] for row in values] for number in range(width))


def _add(batches: Batches, part: str, row: tuple[Any, ...]) -> None:
    batches.setdefault(part, []).append(row)


def _collect_worker(
    namespace: str,
    worker_id: str,
    worker: Worker | None,
    revisions: dict[tuple[str, str], int],
    batches: Batches,
) -> None:
    revision = revisions.get((namespace, worker_id), 0)
    if revision:
        _add(batches, "hold_workers", (namespace, worker_id, revision))
    if worker is None:
        _add(batches, "delete_worker", (namespace, worker_id))
        return
    part = "update_worker" if revision else "insert_worker"
    _add(batches, part, (namespace, worker_id, rows.encode(worker)))


def _collect_remains(remains: Remains, batches: Batches) -> None:
    for part, keys in (
        ("delete_chunk", remains.chunks),
        ("delete_operation", remains.operations),
        ("delete_signal", remains.inbox),
        ("delete_ready", remains.ready),
        ("delete_item", remains.items),
        ("delete_receipt", remains.receipts),
    ):
        if keys:
            batches.setdefault(part, []).extend(keys)


def _collect_record(key: RecordKey, change: RecordChange, batches: Batches) -> None:
    before, after = change.before, change.after
    if before is not None:
        _add(batches, "hold_records", (*key, before.version))
    if after is not None:
        part = "insert_record" if before is None else "update_record"
        _add(batches, part, (*key, after.due_at, after.data))
    elif before is not None:
        _add(batches, "delete_record", key)
    armed = None if before is None else before.due_at
    due_at = None if after is None else after.due_at
    if due_at is not None:
        _add(batches, "put_deadline", ("record", key.target, due_at))
    elif armed is not None:
        _add(batches, "delete_deadline", ("record", key.target))


def _collect_payload(key: PayloadKey, fate: PayloadPut | PayloadFate, batches: Batches) -> None:
    match fate:
        case PayloadPut(data, is_loose):
            _add(batches, "put_payload", (*key, len(data) if is_loose else None, data))
        case PayloadFate.KEPT:
            _add(batches, "keep_payload", key)
        case PayloadFate.GONE:
            _add(batches, "delete_payload", key)


def _collect_run(run: Run, batches: Batches) -> None:
    unsaved = run.unsaved
    row = rows.run_row(run)
    run_id, state = run.run_id, row[11]
    status, closed_at, owner = row[7], row[8], row[10]
    task = run.task
    poll = None if task is None or task.lease is None else task.lease.poll_id
    version = run.version + 1
    if unsaved.created:
        kept = state if run.is_closed else None
        _add(batches, "insert_run", (*row[:9], version, kept))
        if not run.is_closed:
            _add(batches, "insert_open", (run_id, status, version, owner, poll, state))
    elif unsaved.status in CLOSED:
        _add(batches, "hold_closed", (run_id, run.version))
        _add(batches, "close_run", (run_id, status, closed_at, version, state))
    else:
        _add(batches, "hold_open", (run_id, run.version))
        if run.is_closed:
            _add(batches, "delete_open", (run_id,))
            _add(batches, "close_run", (run_id, status, closed_at, version, state))
        else:
            _add(batches, "update_open", (run_id, status, version, owner, poll, state))
    _collect_beside(run, batches)


def _collect_beside(run: Run, batches: Batches) -> None:
    """Collect the rows of a run in other tables."""
    unsaved = run.unsaved
    run_id = run.run_id
    if unsaved.rewritten is not None:
        _add(
            batches,
            "rewrite_first_chunk",
            (run_id, unsaved.rewritten, digest_of(unsaved.rewritten)),
        )
    if unsaved.events:
        first = run.history_count - len(unsaved.events) + 1
        chunk = b",".join(unsaved.events)
        row = (run_id, first, run.history_count, chunk, chunk_digest(run, first, chunk))
        _add(batches, "insert_chunk", row)
    for sequence in unsaved.operations:
        operation = run.operations.get(sequence)
        if operation is None:
            _add(batches, "delete_operation", (run_id, sequence))
            continue
        lease = operation.lease if isinstance(operation, Activity) else None
        owner, poll = (None, None) if lease is None else (lease.owner, lease.poll_id)
        _add(batches, "put_operation", (run_id, sequence, owner, poll, rows.encode(operation)))
    for position in unsaved.inbox:
        signal = run.message_at(position)
        if signal is None:
            _add(batches, "delete_signal", (run_id, position))
        else:
            _add(batches, "put_signal", (run_id, position, rows.encode(signal)))
    for place, is_ready in unsaved.ready.items():
        if is_ready:
            _add(batches, "put_ready", rows.ready_row(run, place))
        else:
            _add(batches, "delete_ready", (run_id, place))
    if run.due_at != unsaved.due_at:
        if run.due_at is None:
            _add(batches, "delete_deadline", ("run", run_id))
        else:
            _add(batches, "put_deadline", ("run", run_id, run.due_at))

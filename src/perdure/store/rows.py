"""Runs, operations and signals as bytes and back. The form is positional and only grows."""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from perdure.core.fleet.worker import Worker
from perdure.core.run.inbox import Message
from perdure.core.run.operation import Activity, Operation
from perdure.core.run.state import ROW_FIELDS, STATE_FIELDS, TASK_KINDS, WORKFLOW_TASK, Run
from perdure.core.run.status import RunStatus
from perdure.core.run.task import activity_place, task_name
from perdure.store.interface import LeaseCount, Receipt, RecordKey, Remains, RunRow

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode

ROW_WIDTH = 12
"""How many columns `run_row` gives."""

_FIELDS = {f.name: f for f in msgspec.structs.fields(Run)}


def _state_field(name: str) -> tuple[str, Any, Any]:
    info = _FIELDS[name]
    if info.default is not msgspec.NODEFAULT:
        return name, info.type, info.default
    return name, info.type, msgspec.field(default_factory=info.default_factory)


_State = msgspec.defstruct("_State", [_state_field(n) for n in STATE_FIELDS], array_like=True)
_state_decoder = msgspec.msgpack.Decoder(_State)
# Positions among the fields of a run: slicing all fields costs less than reading by name.
_FIXED = slice(0, ROW_FIELDS.index("status"))
_STATE = slice(len(ROW_FIELDS), len(ROW_FIELDS) + len(STATE_FIELDS))
assert Run.__struct_fields__[: len(ROW_FIELDS)] == ROW_FIELDS
assert Run.__struct_fields__[_STATE] == STATE_FIELDS
_operation_decoder: msgspec.msgpack.Decoder[Operation] = msgspec.msgpack.Decoder(Operation)
_message_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_worker_decoder = msgspec.msgpack.Decoder(Worker)
_receipt_decoder = msgspec.msgpack.Decoder(Receipt)
_events_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class _StartPayload(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"null")


class _StartEvent(msgspec.Struct):
    event_type: str
    payload: _StartPayload


_start_decoder = msgspec.json.Decoder(list[_StartEvent])


def run_row(run: Run) -> tuple[Any, ...]:
    """The columns of a run, in the order of the table."""
    return (*astuple(run)[_FIXED], *changing_columns(run))


def changing_columns(run: Run) -> tuple[Any, ...]:
    """The columns that can change, which are the last ones."""
    return (str(run.status), run.closed_at, *state_columns(run))


def state_columns(run: Run) -> tuple[Any, ...]:
    """The columns that change with every step while the run is open."""
    task = run.task
    return (
        run.version,
        None if task is None or task.lease is None else task.lease.owner,
        encode(astuple(run)[_STATE]),
    )


def run_of(row: tuple[Any, ...]) -> Run:
    """A run from its columns, without the data of other tables."""
    state = _state_decoder.decode(row[11])
    run = Run(
        run_id=row[0],
        namespace=row[1],
        workflow_id=row[2],
        workflow_type=row[3],
        queue=row[4],
        run_number=row[5],
        started_at=row[6],
        status=RunStatus(row[7]),
        closed_at=row[8],
        version=row[9],
    )
    for name in STATE_FIELDS:
        setattr(run, name, getattr(state, name))
    run.mark_saved()
    return run


def closed_of(row: tuple[Any, ...]) -> RunRow:
    """The row of a run, even if its state cannot be decoded."""
    run: Run | None = None
    with contextlib.suppress(msgspec.DecodeError, ValueError, TypeError):
        run = run_of(row)
    return RunRow(row[0], row[1], row[2], row[8], row[9], run)


def remains_of(
    *,
    chunks: list[tuple[Any, ...]],
    items: list[tuple[Any, ...]],
    limit: int,
    size: int,
    **others: list[Any],
) -> Remains:
    """The rows found of removed runs. The last member of chunks and items is their length."""
    few_chunks, few_items = _within(chunks, size), _within(items, size)
    whole = len(few_chunks) == len(chunks) and len(few_items) == len(items)
    is_all = whole and all(len(found) < limit for found in (chunks, items, *others.values()))
    return Remains(chunks=few_chunks, items=few_items, is_all=is_all, **others)


def _within(found: list[tuple[Any, ...]], size: int) -> list[Any]:
    """Keys of the first rows within a number of bytes; at least one."""
    kept: list[tuple[Any, ...]] = []
    for *key, length in found:
        size -= length
        if kept and size < 0:
            break
        kept.append(tuple(key))
    return kept


def ready_row(run: Run, place: int) -> tuple[Any, ...]:
    """The columns of a ready task."""
    if place == WORKFLOW_TASK:
        assert run.task is not None
        kind = TASK_KINDS[run.dialect]
        what = (run.queue, kind, task_name(run), run.priority, run.task.available_at)
    else:
        activity = run.operations[place]
        assert isinstance(activity, Activity)
        kind, name = activity_place(run, activity)
        what = (activity.queue, kind, name, run.priority, activity.available_at)
    return (run.run_id, place, run.namespace, *what)


def lease_counts(
    runs: Sequence[tuple[Any, ...]], operations: Sequence[tuple[Any, ...]]
) -> list[LeaseCount]:
    """Lease owners, each with its numbers of workflow tasks and activities."""
    counted = [LeaseCount(owner, is_activity=False, number=number) for owner, number in runs]
    counted += [LeaseCount(owner, is_activity=True, number=number) for owner, number in operations]
    return counted


def leases_of(
    runs: Sequence[tuple[Any, ...]], operations: Sequence[tuple[Any, ...]]
) -> list[tuple[Run, int]]:
    """Leased tasks from rows: the columns of a run, then a sequence and an operation."""
    held = [(run_of(row), WORKFLOW_TASK) for row in runs]
    for *row, sequence, data in operations:
        run = run_of(tuple(row))
        run.operations[sequence] = operation_of(data)
        held.append((run, sequence))
    return held


def due_of(kind: str, target: str) -> str | RecordKey:
    """The target of a deadline: the id of a run, or the key of a record."""
    return target if kind == "run" else RecordKey.of_target(target)


def operation_of(data: bytes) -> Operation:
    return _operation_decoder.decode(data)


def signal_of(data: bytes) -> Message:
    """A waiting signal or update of an inbox."""
    return _message_decoder.decode(data)


def worker_of(data: bytes) -> Worker:
    return _worker_decoder.decode(data)


def receipt_of(data: bytes) -> Receipt:
    return _receipt_decoder.decode(data)


def events_of(chunk: bytes) -> list[bytes]:
    """The single events of a stored chunk."""
    return [bytes(raw) for raw in _events_decoder.decode(b"[" + chunk + b"]")]


def arguments_of(first_chunk: bytes) -> bytes:
    """The start arguments, which are stored only in history."""
    for event in _start_decoder.decode(b"[" + first_chunk + b"]"):
        if event.event_type == "WorkflowStarted":
            return bytes(event.payload.input)
    return b"null"

"""Encoding of a whole run as bytes, for sending it to another process."""

from typing import Any
from zlib import crc32

import msgspec

from perdure.core.run.inbox import Message, StreamMessage
from perdure.core.run.operation import Operation
from perdure.core.run.state import BESIDE_FIELDS, STATE_FIELDS, Run
from perdure.store import rows

_FORM = crc32(repr((STATE_FIELDS, BESIDE_FIELDS)).encode())
"""Identifies the fields of a run. A release with other fields rejects packed runs."""


class _PackedRun(msgspec.Struct, array_like=True):
    form: int
    row: tuple[Any, ...]
    operations: dict[int, Operation]
    inbox: dict[int, Message]
    unread: dict[int, StreamMessage]
    arguments: bytes
    events: list[bytes]
    opening: list[bytes]


_decoder = msgspec.msgpack.Decoder(_PackedRun)


def pack_run(run: Run, most: int) -> bytes | None:
    """A run as bytes; None if they exceed a number of bytes."""
    if run.events_bytes + run.opening_bytes + len(run.arguments) > most:
        return None
    carried = _PackedRun(
        form=_FORM,
        row=rows.run_row(run),
        operations=run.operations,
        inbox=run.inbox,
        unread=run.unread,
        arguments=run.arguments,
        events=run.events,
        opening=run.opening,
    )
    packed = rows.encode(carried)
    return packed if len(packed) <= most else None


def unpack_run(packed: bytes) -> Run:
    """Decode a packed run. Raises `msgspec.MsgspecError` if the bytes are not one."""
    carried = _decoder.decode(packed)
    if carried.form != _FORM or len(carried.row) != rows.ROW_WIDTH:
        raise msgspec.ValidationError("the run was packed by another release")
    run = rows.run_of(carried.row)
    run.operations, run.inbox, run.unread = carried.operations, carried.inbox, carried.unread
    run.arguments = carried.arguments
    run.events, run.events_bytes = carried.events, sum(map(len, carried.events))
    run.opening, run.opening_bytes = carried.opening, sum(map(len, carried.opening))
    return run

"""Recording of events. An event is encoded once, here, in the form in which it will be sent."""

from typing import Any, TypeAlias

import msgspec
from msgspec.structs import asdict

from perdure.core import instant
from perdure.core.run.context import Context
from perdure.core.run.operation import Held, Operation
from perdure.core.run.state import Run

encode = msgspec.json.encode
Raw = msgspec.Raw


Members: TypeAlias = dict[str, Any] | msgspec.Struct
"""The payload of an event. Frequent ones are structs, which omit their defaults and cost half as
much to make and encode as a dict."""


def record(run: Run, ctx: Context, event_type: str, payload: Members) -> str:
    """Append one event to the run's history and return its id. Absent members are left out."""
    if not isinstance(payload, msgspec.Struct):
        payload = _present(payload)
    return record_encoded(run, ctx, event_type, encode(payload))


def record_encoded(run: Run, ctx: Context, event_type: str, payload: bytes) -> str:
    """Append an event whose payload is encoded already."""
    run.history_count += 1
    event_id = ctx.ids.ulid()
    event = encode_event(run, run.history_count, event_id, event_type, ctx.now, payload)
    size = len(event)
    run.events.append(event)
    run.events_bytes += size
    run.history_bytes += size
    run.unsaved.events.append(event)
    run.last_progress_at = ctx.now
    return event_id


def encode_event(
    run: Run, sequence: int, event_id: str, event_type: str, at: int, payload: bytes
) -> bytes:
    """An event in the form in which it is stored and sent."""
    when = instant.text(at)
    head = (
        f'{{"id":"{event_id}","sequence":{sequence},"event_type":"{event_type}",'
        f'"recorded_at":"{when}","timestamp":"{when}","namespace":"{run.namespace}","payload":'
    )
    return b"".join((head.encode(), payload, b"}"))


def held(event_type: str, payload: Members, operation: Operation, *, failed: bool = False) -> Held:
    """An event of an operation, with its group metadata, ready to be recorded later."""
    return Held(event_type, encode(with_metadata(payload, operation)), failed)


def with_metadata(payload: Members, operation: Operation) -> Members:
    """The payload without absent members, with the group metadata of the operation."""
    if isinstance(payload, msgspec.Struct):
        if not operation.metadata:
            return payload
        payload = asdict(payload)
    return {**_present(payload), **operation.metadata} if operation.metadata else _present(payload)


def _present(payload: dict[str, Any]) -> dict[str, Any]:
    if None not in payload.values():
        return payload
    return {k: v for k, v in payload.items() if v is not None}


def raw(encoded: bytes | None) -> msgspec.Raw | None:
    """Encoded JSON to be spliced into a payload as it is."""
    return None if encoded is None else msgspec.Raw(encoded)

"""Output streams of a run: ordered items beside its history, for readers that follow them.

Offsets start at 0 and have no gaps. A stream is opened by its first item and ends closed or
errored. Its items are removed some time after that; its offsets are never used again.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct, structs

from perdure.core import instant, limits
from perdure.core.rejection import StreamClosed, StreamErrored, StreamFull
from perdure.core.run.history import encode, raw

OPEN = "open"
CLOSED = "closed"
ERRORED = "errored"


class OutputStream(Struct, frozen=True, kw_only=True):
    """The state of a stream without its items. `first` is the oldest offset that is kept."""

    opened_at: int
    status: str = OPEN
    total: int = 0
    first: int = 0
    size_bytes: int = 0
    last_appended_at: int | None = None
    closed_at: int | None = None
    error_reason: str | None = None
    retention_seconds: int | None = None

    @property
    def is_over(self) -> bool:
        return self.status != OPEN

    @property
    def pending(self) -> int:
        """The number of kept items."""
        return self.total - self.first

    @property
    def expires_at(self) -> int | None:
        """When its items may be removed."""
        if self.closed_at is None or self.retention_seconds is None or not self.pending:
            return None
        return self.closed_at + self.retention_seconds * limits.SECOND


class NewItem(Struct, frozen=True, kw_only=True):
    """An item to append. `payload` is encoded JSON."""

    payload: bytes | None = None
    payload_reference: str | None = None
    payload_codec: str | None = None
    idempotency_key: str | None = None
    origin: str | None = None
    origin_reference: str | None = None
    item_type: str | None = None
    content_type: str | None = None


class Item(Struct, frozen=True):
    """An item that has its offset, encoded as it is sent."""

    offset: int
    idempotency_key: str | None
    data: bytes


class AppendItems(Struct, frozen=True, kw_only=True):
    """Append to a stream, all or none."""

    stream_name: str
    items: list[NewItem]
    pending_max: int = limits.STREAM_PENDING_ITEMS_DEFAULT

    @property
    def keys(self) -> list[str]:
        """The idempotency keys of its items."""
        return [item.idempotency_key for item in self.items if item.idempotency_key is not None]


class CloseStream(Struct, frozen=True, kw_only=True):
    """End a stream, well or, with a reason, badly."""

    stream_name: str
    error_reason: str | None = None
    retention_seconds: int = limits.STREAM_RETENTION_SECONDS_DEFAULT
    keys: list[str] = []


Directive: TypeAlias = AppendItems | CloseStream
"""A change of a stream."""


def directive_members(directive: Directive) -> dict[str, str]:
    """The members of a directive in history."""
    if isinstance(directive, AppendItems):
        return {"operation": "append", "stream_name": directive.stream_name}
    operation = "close" if directive.error_reason is None else "error"
    return {"operation": operation, "stream_name": directive.stream_name}


class Appended(Struct, frozen=True):
    """The stream, its new items, and the offset of every item of the directive."""

    stream: OutputStream
    new_items: list[Item]
    offsets: list[int]


def append(
    stream: OutputStream | None, known: Mapping[str, int], directive: AppendItems, now: int
) -> Appended:
    """Give new items their offsets; one whose key is known has the offset that it had.

    A request that only repeats appended items succeeds, also if the stream has ended since.
    """
    current = stream or OutputStream(opened_at=now)
    keys = dict(known)
    offsets: list[int] = []
    new_items: list[Item] = []
    for item in directive.items:
        key = item.idempotency_key
        offset = None if key is None else keys.get(key)
        if offset is None:
            offset = current.total + len(new_items)
            new_items.append(_encoded(item, offset, now))
            if key is not None:
                keys[key] = offset
        offsets.append(offset)
    if not new_items:
        return Appended(current, [], offsets)
    _require_open(current, directive.stream_name)
    size = current.size_bytes + sum(len(item.data) for item in new_items)
    _require_room(current, directive, new_items, size)
    grown = structs.replace(
        current, total=current.total + len(new_items), size_bytes=size, last_appended_at=now
    )
    return Appended(grown, new_items, offsets)


def close(stream: OutputStream | None, directive: CloseStream, now: int) -> OutputStream:
    """End a stream. One that has ended does not change."""
    current = stream or OutputStream(opened_at=now)
    if current.is_over:
        return current
    return structs.replace(
        current,
        status=CLOSED if directive.error_reason is None else ERRORED,
        closed_at=now,
        error_reason=directive.error_reason,
        retention_seconds=directive.retention_seconds,
    )


def expire(stream: OutputStream, now: int) -> OutputStream:
    """Drop the oldest items of an expired stream, a bounded number at a time."""
    if stream.expires_at is None or stream.expires_at > now:
        return stream
    first = min(stream.total, stream.first + limits.STREAM_TRIM_ITEMS_MAX)
    return structs.replace(stream, first=first)


def _require_open(stream: OutputStream, name: str) -> None:
    if stream.status == CLOSED:
        raise StreamClosed(f"stream {name} is closed", stream_name=name)
    if stream.status == ERRORED:
        reason = stream.error_reason
        raise StreamErrored(f"stream {name} ended: {reason}", stream_name=name, error_reason=reason)


def _require_room(
    stream: OutputStream, directive: AppendItems, new_items: Sequence[Item], size: int
) -> None:
    limit = min(directive.pending_max, limits.STREAM_PENDING_ITEMS_MAX)
    is_full = stream.pending + len(new_items) > limit
    if is_full or size > limits.STREAM_BYTES_MAX:
        what = "items" if is_full else "bytes"
        raise StreamFull(
            f"stream {directive.stream_name} has no room for {len(new_items)} more {what}",
            stream_name=directive.stream_name,
            pending_items=stream.pending,
            max_pending_items=limit,
            pending_bytes=stream.size_bytes,
            max_pending_bytes=limits.STREAM_BYTES_MAX,
        )


def _encoded(item: NewItem, offset: int, now: int) -> Item:
    data = encode(
        {
            "offset": offset,
            "idempotency_key": item.idempotency_key,
            "origin": item.origin,
            "origin_reference": item.origin_reference,
            "item_type": item.item_type,
            "content_type": item.content_type,
            "payload": raw(item.payload),
            "payload_reference": item.payload_reference,
            "payload_codec": item.payload_codec,
            "emitted_at": instant.text(now),
        }
    )
    return Item(offset, item.idempotency_key, data)

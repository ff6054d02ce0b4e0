"""Items for output streams, from clients and workers: validated, translated to the core."""

import re

from msgspec import UNSET, Struct

from perdure.core import limits
from perdure.core.maps import EmptyList, structure_of
from perdure.core.rejection import InvalidRequest
from perdure.core.run.stream import AppendItems, CloseStream, Directive, NewItem
from perdure.protocols.durable_workflow.bodies import (
    Count,
    ErrorReason,
    PendingItems,
    Seconds,
    StreamItemBody,
    StreamItems,
)
from perdure.protocols.durable_workflow.payloads import (
    is_envelope,
    require_envelope,
    require_plain,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,190}")
"""The form of a stream name."""


class WireDirective(Struct, kw_only=True):
    """A write to a stream by workflow code, carried by the side effect that records it."""

    operation: str
    stream_name: str
    command_identity: str | None = None
    command_ordinal: Count | None = None
    items: StreamItems | None = None
    max_pending_items: PendingItems | None = None
    error_reason: ErrorReason | None = None
    retention_seconds: Seconds | None = None


def translate_directive(wire: WireDirective, at: str) -> Directive:
    """The directive of the core. Refuses invalid names, actions and items."""
    if not NAME.fullmatch(wire.stream_name):
        raise InvalidRequest(f"{at}.stream_name", "is not a valid stream name")
    if wire.operation == "append":
        if wire.items is None:
            raise InvalidRequest(f"{at}.items", "is required")
        origin = NewItem(origin="workflow", origin_reference=(wire.command_identity or "")[:191])
        return append_request(wire.stream_name, wire.items, wire.max_pending_items, origin, at)
    if wire.operation not in ("close", "error"):
        raise InvalidRequest(f"{at}.operation", "must be append, close or error")
    if (wire.operation == "error") != (wire.error_reason is not None):
        raise InvalidRequest(f"{at}.error_reason", "is only allowed with the operation error")
    return close_request(wire.stream_name, wire.error_reason, wire.retention_seconds)


def append_request(
    stream_name: str,
    items: list[StreamItemBody | EmptyList],
    pending_max: int | None,
    origin: NewItem,
    at: str = "",
) -> AppendItems:
    """Items to append. `origin` is the default for items that name none."""
    return AppendItems(
        stream_name=stream_name,
        items=[
            _item(item, origin, f"{at}.items.{index}".lstrip("."))
            for index, item in enumerate(items)
        ],
        pending_max=pending_max or limits.STREAM_PENDING_ITEMS_DEFAULT,
    )


def close_request(stream_name: str, error_reason: str | None, retention: int | None) -> CloseStream:
    return CloseStream(
        stream_name=stream_name,
        error_reason=error_reason,
        retention_seconds=retention or limits.STREAM_RETENTION_SECONDS_DEFAULT,
    )


def _item(sent: StreamItemBody | EmptyList, origin: NewItem, at: str) -> NewItem:
    item = structure_of(sent, StreamItemBody)
    payload = b"null" if item.payload is UNSET else bytes(item.payload)
    if len(payload) > limits.STREAM_ITEM_BYTES_MAX:
        raise InvalidRequest(f"{at}.payload", f"at most {limits.STREAM_ITEM_BYTES_MAX} bytes")
    if payload != b"null":
        (require_envelope if is_envelope(payload) else require_plain)(payload, f"{at}.payload")
    return NewItem(
        payload=None if payload == b"null" else payload,
        payload_reference=item.payload_reference,
        payload_codec=item.payload_codec,
        idempotency_key=item.idempotency_key,
        origin=origin.origin if item.origin is None else item.origin,
        origin_reference=item.origin_reference or origin.origin_reference or None,
        item_type=item.item_type,
        content_type=item.content_type,
    )

"""Pages of histories, as workers get them."""

import base64
import zlib
from typing import Any

import msgspec

from perdure.core import limits
from perdure.protocols.durable_workflow import tokens


def history_page(
    events: list[bytes], after: int, total: int, encoding: str | None
) -> dict[str, Any]:
    """One page of history, compressed when the worker asks and it is worth it."""
    last = after + len(events)
    page: dict[str, Any] = {
        "total_history_events": total,
        "next_history_page_token": tokens.history_token(last) if last < total and events else None,
    }
    encoded = b"[%b]" % b",".join(events)
    chosen = _history_encoding(encoding)
    if chosen is None or len(events) < limits.HISTORY_COMPRESSION_EVENTS_MIN:
        page["history_events"] = msgspec.Raw(encoded)
        return page
    window = 31 if chosen == "gzip" else -15
    compressor = zlib.compressobj(6, zlib.DEFLATED, window)
    packed = compressor.compress(encoded) + compressor.flush()
    page["history_events"] = []
    page["history_events_compressed"] = base64.b64encode(packed).decode()
    page["history_events_encoding"] = chosen
    return page


def _history_encoding(accepted: str | None) -> str | None:
    if not accepted:
        return None
    names = {name.strip().lower() for name in accepted.split(",")}
    return next((name for name in ("gzip", "deflate") if name in names), None)

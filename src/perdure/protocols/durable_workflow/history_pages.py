"""Pages of histories, as workers get them."""

import base64
import zlib
from typing import Any

import msgspec

from perdure.core import limits
from perdure.core.bounds import Bounds
from perdure.core.rejection import InvalidRequest
from perdure.protocols.durable_workflow import tokens
from perdure.protocols.durable_workflow.bodies import HistoryPageBody, PollBody


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


def page_size(body: PollBody | HistoryPageBody, bounds: Bounds) -> int:
    """How many events a page has: as many as were asked for, if that is not too many."""
    asked = body.history_page_size
    if asked is None:
        return bounds.history_page_size_default
    if asked > bounds.history_page_size_max:
        raise InvalidRequest("history_page_size", f"at most {bounds.history_page_size_max}")
    return asked


def _history_encoding(accepted: str | None) -> str | None:
    if not accepted:
        return None
    names = {name.strip().lower() for name in accepted.split(",")}
    return next((name for name in ("gzip", "deflate") if name in names), None)

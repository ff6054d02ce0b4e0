"""Pages of history for workers."""

import base64
import zlib
from typing import Any

import msgspec

from perdure.core import limits
from perdure.core.bounds import Bounds
from perdure.core.rejection import InvalidRequest
from perdure.core.run.history_budget import Budget, HistorySize
from perdure.protocols.durable_workflow import tokens
from perdure.protocols.durable_workflow.bodies import HistoryPageBody, PollBody


def history_page(
    events: list[bytes], after: int, size: HistorySize, budget: Budget, encoding: str | None
) -> dict[str, Any]:
    """One page of history, compressed if the worker accepts it and the page is large enough."""
    last = after + len(events)
    more = last < size.events and events
    page = budget_members(size, budget)
    page["next_history_page_token"] = tokens.history_token(last) if more else None
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
    """Number of events of a page: as requested, up to the bound."""
    requested = body.history_page_size
    if requested is None:
        return bounds.history_page_size_default
    if requested > bounds.history_page_size_max:
        raise InvalidRequest("history_page_size", f"at most {bounds.history_page_size_max}")
    return requested


def budget_members(size: HistorySize, budget: Budget) -> dict[str, Any]:
    """How large a history is, and whether its code should continue as new."""
    return {
        "total_history_events": size.events,
        "history_size_bytes": size.size_bytes,
        "history_fan_out": size.fan_out,
        "continue_as_new_recommended": budget.is_spent,
        "history_budget_pressure": budget.pressure,
        "history_budget_pressure_dimensions": budget.dimensions,
    }


def _history_encoding(accepted: str | None) -> str | None:
    if not accepted:
        return None
    names = {name.strip().lower() for name in accepted.split(",")}
    return next((name for name in ("gzip", "deflate") if name in names), None)

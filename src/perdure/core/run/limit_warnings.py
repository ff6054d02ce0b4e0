"""Warnings about bounds that a run is near to, shown before anything is refused."""

from typing import NamedTuple

from perdure.core import limits
from perdure.core.bounds import Bounds, Reached
from perdure.core.run.history import encode
from perdure.core.run.message import waiting_updates
from perdure.core.run.operation import Activity, Child, LocalActivity, Timer
from perdure.core.run.state import Run


class Unread(NamedTuple):
    """The number of messages in the inbox of a run, and of stream messages handed over."""

    waiting: int = 0
    handed_over: int = 0


def near_limits(run: Run, bounds: Bounds, unread: Unread) -> list[Reached]:
    """Every bound whose warning threshold is reached. `run` must have its operations loaded."""
    if run.is_closed:
        return []
    return [
        reached
        for reached in _standings(run, bounds, unread)
        if reached.current_value >= bounds.warns_from(reached.configured_limit)
    ]


def _standings(run: Run, bounds: Bounds, unread: Unread) -> list[Reached]:
    """Values and bounds, counted in the same way as where requests are refused."""
    kinds = [type(operation) for operation in run.operations.values()]
    waiting = max(unread.waiting - waiting_updates(run), 0)
    activities = max(kinds.count(Activity), kinds.count(LocalActivity))
    pending = (
        ("pending_activity_count", activities, bounds.pending_activities_max),
        ("pending_child_count", kinds.count(Child), bounds.pending_children_max),
        ("pending_timer_count", kinds.count(Timer), bounds.pending_timers_max),
        ("pending_signal_count", waiting + len(run.unapplied), bounds.pending_signals_max),
        ("pending_update_count", run.updates_open, bounds.pending_updates_max),
        ("pending_message_count", waiting + unread.handed_over, limits.PENDING_MESSAGES_MAX),
        ("message_stream_count", len(run.streams), limits.MESSAGE_STREAMS_MAX),
        ("memo_size", len(encode(run.memo)), bounds.memo_bytes_max),
        ("search_attribute_count", len(run.search_attributes), bounds.search_attributes_max),
        (
            "search_attribute_size",
            len(encode(run.search_attributes)),
            bounds.search_attributes_bytes_max,
        ),
        ("history_event_count", run.history_count, bounds.history_events_max),
    )
    return [Reached(*standing) for standing in pending]

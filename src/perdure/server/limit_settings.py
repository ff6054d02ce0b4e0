"""The variables that choose bounds, with their ranges. Documented in docs/settings.md.

If two variables of one bound are set, the lower value wins. Where 0 switches a bound off on other
servers, it means the highest value here: no bound can be removed.
"""

from collections.abc import Mapping
from typing import NamedTuple

from perdure.core import limits


class Choice(NamedTuple):
    """A bound, the range of its variable, and what it limits."""

    bound: str
    least: int
    most: int
    what: str

    @property
    def meaning(self) -> str:
        return f"{self.what}; up to {self.most}"


_COMMANDS = limits.COMMANDS_PER_COMPLETION_CEILING
_EVENTS = limits.EVENTS_PER_COMPLETION_CEILING
_HISTORY = limits.HISTORY_EVENTS_CEILING
_PAGE = limits.HISTORY_PAGE_SIZE_CEILING
_ACTIVITIES = limits.PENDING_ACTIVITIES_CEILING
_CHILDREN = limits.PENDING_CHILDREN_CEILING

BOUNDS: Mapping[str, Choice] = {
    "DW_V2_LIMIT_PAYLOAD_SIZE_BYTES": Choice(
        "payload_bytes_max",
        1_024,
        limits.PAYLOAD_BYTES_CEILING,
        "bytes of a payload that comes in a body",
    ),
    "DW_MAX_MEMO_BYTES": Choice(
        "memo_bytes_max", 2, limits.MEMO_BYTES_CEILING, "bytes of the memo of a run"
    ),
    "DW_V2_LIMIT_MEMO_SIZE_BYTES": Choice(
        "memo_bytes_max", 2, limits.MEMO_BYTES_CEILING, "the same"
    ),
    "DW_MAX_SEARCH_ATTRIBUTES": Choice(
        "search_attributes_max",
        1,
        limits.SEARCH_ATTRIBUTES_CEILING,
        "search attributes of a run",
    ),
    "DW_MAX_SEARCH_ATTRIBUTE_KEY_LENGTH": Choice(
        "search_attribute_key_length_max",
        1,
        limits.SEARCH_ATTRIBUTE_KEY_LENGTH_CEILING,
        "length of the name of a search attribute",
    ),
    "DW_MAX_SEARCH_ATTRIBUTE_VALUE_BYTES": Choice(
        "search_attribute_value_bytes_max",
        1,
        limits.SEARCH_ATTRIBUTE_VALUE_BYTES_CEILING,
        "bytes of one text in a search attribute",
    ),
    "DW_V2_LIMIT_SEARCH_ATTRIBUTE_SIZE_BYTES": Choice(
        "search_attributes_bytes_max",
        2,
        limits.SEARCH_ATTRIBUTES_BYTES_CEILING,
        "bytes of all search attributes of a run",
    ),
    "DW_MAX_OPERATION_NAME_LENGTH": Choice(
        "operation_name_bytes_max",
        1,
        limits.OPERATION_NAME_BYTES_CEILING,
        "bytes of the name of a signal, query or update",
    ),
    "DW_V2_LIMIT_COMMAND_BATCH_SIZE": Choice(
        "commands_max", 1, _COMMANDS, "commands of one completion"
    ),
    "DW_V2_LIMIT_HISTORY_TRANSACTION_SIZE": Choice(
        "events_per_completion_max",
        1,
        _EVENTS,
        "events that the commands of one completion may add to history",
    ),
    "DW_MAX_PENDING_ACTIVITIES": Choice(
        "pending_activities_max", 1, _ACTIVITIES, "open activities of a run"
    ),
    "DW_V2_LIMIT_PENDING_ACTIVITIES": Choice("pending_activities_max", 1, _ACTIVITIES, "the same"),
    "DW_MAX_PENDING_CHILDREN": Choice(
        "pending_children_max", 1, _CHILDREN, "open children of a run"
    ),
    "DW_V2_LIMIT_PENDING_CHILDREN": Choice("pending_children_max", 1, _CHILDREN, "the same"),
    "DW_V2_LIMIT_PENDING_TIMERS": Choice(
        "pending_timers_max", 1, limits.PENDING_TIMERS_CEILING, "open timers of a run"
    ),
    "DW_V2_LIMIT_PENDING_SIGNALS": Choice(
        "pending_signals_max",
        1,
        limits.PENDING_SIGNALS_CEILING,
        "signals that wait for the code of a run",
    ),
    "DW_V2_LIMIT_PENDING_UPDATES": Choice(
        "pending_updates_max",
        1,
        limits.PENDING_UPDATES_CEILING,
        "updates of a run without an outcome",
    ),
    "PERDURE_LATE_SIGNAL_TASKS": Choice(
        "late_signal_tasks_max",
        0,
        limits.LATE_SIGNAL_TASKS_CEILING,
        "tasks in a row that code gets for signals that wait when it closes its run; with 0 the "
        "close rejects them",
    ),
    "PERDURE_SIGNALS_PER_TASK": Choice(
        "signals_per_task_max",
        1,
        limits.SIGNALS_PER_TASK_CEILING,
        "signals that code which waits for a condition is shown in one task",
    ),
    "DW_MAX_HISTORY_EVENTS": Choice(
        "history_events_max", 100, _HISTORY, "events of a run, which fails with more of them"
    ),
    "DW_MAX_STEP_RESULTS_BYTES": Choice(
        "step_results_bytes_max",
        1_024,
        limits.STEP_RESULTS_BYTES_CEILING,
        "bytes of all step results of a push run, which fails with more of them",
    ),
    "DW_HISTORY_PAGE_SIZE_DEFAULT": Choice(
        "history_page_size_default", 1, _PAGE, "events of a page when a worker does not say"
    ),
    "DW_HISTORY_PAGE_SIZE_MAX": Choice(
        "history_page_size_max", 1, _PAGE, "events of the largest page"
    ),
    "DW_V2_CONTINUE_AS_NEW_EVENT_THRESHOLD": Choice(
        "continue_as_new_events",
        1,
        _HISTORY,
        "events after which workers are advised to continue as new",
    ),
    "DW_V2_CONTINUE_AS_NEW_SIZE_BYTES_THRESHOLD": Choice(
        "continue_as_new_bytes",
        1_024,
        limits.CONTINUE_AS_NEW_BYTES_CEILING,
        "bytes of history after which workers are advised to continue as new",
    ),
    "DW_V2_LIMIT_WARNING_THRESHOLD_PERCENT": Choice(
        "warning_percent",
        1,
        limits.WARNING_PERCENT_CEILING,
        "per cent of a bound above which a run is reported as near it",
    ),
}
"""Every variable that chooses a bound of `core/bounds.py`."""

SWITCHED_OFF_BY_ZERO = "DW_V2_"
"""Prefixes of variables for which 0 means no bound on other servers."""

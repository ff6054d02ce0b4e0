"""The configurable bounds, as one value that is passed to the rules.

Defaults are in `limits`. Lowering a bound removes nothing from open runs: a run above it keeps what
it holds, and nothing is added until it is within the bound again.
"""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr

from perdure.core import limits


class Reached(NamedTuple):
    """A value and its bound, named as in refusals and warnings."""

    limit_kind: str
    current_value: int
    configured_limit: int


class Bounds(Struct, frozen=True, kw_only=True):
    """How much one request may carry and one run may hold."""

    payload_bytes_max: int = limits.PAYLOAD_BYTES_MAX
    memo_bytes_max: int = limits.MEMO_BYTES_MAX
    search_attributes_max: int = limits.SEARCH_ATTRIBUTES_MAX
    search_attribute_key_length_max: int = limits.SEARCH_ATTRIBUTE_KEY_LENGTH_MAX
    search_attribute_value_bytes_max: int = limits.SEARCH_ATTRIBUTE_VALUE_BYTES_MAX
    search_attributes_bytes_max: int = limits.SEARCH_ATTRIBUTES_BYTES_MAX
    operation_name_bytes_max: int = limits.OPERATION_NAME_BYTES_MAX
    commands_max: int = limits.COMMANDS_PER_COMPLETION_MAX
    events_per_completion_max: int = limits.EVENTS_PER_COMPLETION_MAX
    pending_activities_max: int = limits.PENDING_ACTIVITIES_MAX
    pending_children_max: int = limits.PENDING_CHILDREN_MAX
    pending_timers_max: int = limits.PENDING_TIMERS_MAX
    pending_signals_max: int = limits.PENDING_SIGNALS_MAX
    pending_updates_max: int = limits.PENDING_UPDATES_MAX
    late_signal_tasks_max: int = 0
    signals_per_task_max: int = 1
    history_events_max: int = limits.HISTORY_EVENTS_MAX
    step_results_bytes_max: int = limits.STEP_RESULTS_BYTES_MAX
    history_page_size_default: int = limits.HISTORY_PAGE_SIZE_DEFAULT
    history_page_size_max: int = limits.HISTORY_PAGE_SIZE_MAX
    continue_as_new_events: int = limits.CONTINUE_AS_NEW_EVENTS
    continue_as_new_bytes: int = limits.CONTINUE_AS_NEW_BYTES
    warning_percent: int = limits.WARNING_PERCENT
    # Computed once, for every completion: a run with fewer open steps is within each of the three.
    steps_least: int = 0

    def __post_init__(self) -> None:
        steps = (self.pending_activities_max, self.pending_children_max, self.pending_timers_max)
        force_setattr(self, "steps_least", min(steps))

    def warns_from(self, most: int) -> int:
        """The lowest value that counts as near to a bound."""
        return -(-most * self.warning_percent // 100)


DEFAULT_BOUNDS = Bounds()

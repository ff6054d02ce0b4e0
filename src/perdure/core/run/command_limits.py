"""Limits of the commands of one completion, checked before anything is changed."""

from collections.abc import Sequence
from typing import Any

from perdure.core.bounds import Bounds
from perdure.core.payload import Frame, PayloadError, encode
from perdure.core.rejection import CompletionTooLarge, InvalidCommands
from perdure.core.run.command import (
    Command,
    CompleteUpdate,
    OpenConditionWait,
    OpenSignalWait,
    PrepareLocalActivity,
    RecordLocalActivity,
    ScheduleActivity,
    StartChild,
    StartTimer,
    UpsertMemo,
    UpsertSearchAttributes,
)
from perdure.core.run.history import encode as json_encode
from perdure.core.run.local.recorded import local_event_count
from perdure.core.run.operation import Activity, Child, LocalActivity, Timer
from perdure.core.run.state import Run

Commands = Sequence[Command | PrepareLocalActivity]


def require_batch(bounds: Bounds, commands: Commands) -> None:
    """Refuse a completion with too many commands."""
    _require_at_most(bounds.commands_max, len(commands), "command_batch_size")


def check_events(bounds: Bounds, commands: Commands) -> None:
    """Refuse commands with too many events. Held events that `settle` adds do not count."""
    count = sum(map(event_count, commands))
    _require_at_most(bounds.events_per_completion_max, count, "history_transaction_size")


def event_count(command: Command | PrepareLocalActivity) -> int:
    """How many events a command adds to history."""
    match command:
        case RecordLocalActivity():
            return local_event_count(command)
        case StartChild() | CompleteUpdate():
            # Scheduled and started; applied and completed.
            return 2
        case OpenConditionWait() | OpenSignalWait():
            return 1 if command.timeout_seconds is None else 2
        case _:
            return 1


def check_pending(run: Run, bounds: Bounds, commands: Commands) -> None:
    """Refuse more open steps of a kind than a run may have."""
    if len(run.operations) + len(commands) <= bounds.steps_least:
        return
    kinds = [type(command) for command in commands]
    for kind, command_type, name, bound in _BOUNDED:
        added, limit = kinds.count(command_type), getattr(bounds, bound)
        if not added or len(run.operations) + added <= limit:
            continue
        count = added + sum(isinstance(o, kind) for o in run.operations.values())
        _require_at_most(limit, count, name)


_BOUNDED: tuple[tuple[type, type, str, str], ...] = (
    (Activity, ScheduleActivity, "pending_activity_count", "pending_activities_max"),
    (LocalActivity, PrepareLocalActivity, "pending_activity_count", "pending_activities_max"),
    (Child, StartChild, "pending_child_count", "pending_children_max"),
    (Timer, StartTimer, "pending_timer_count", "pending_timers_max"),
)


def check_merged(run: Run, bounds: Bounds, commands: Commands) -> None:
    """Limit the merged memo and attributes: they are written with every change of the run."""
    memo, attributes = run.memo, run.search_attributes
    for command in commands:
        if isinstance(command, UpsertMemo):
            memo = merge(memo, command.entries)
            size = len(json_encode(memo))
            _require_at_most(bounds.memo_bytes_max, size, "memo_size")
            try:
                encode(memo, Frame(run.frame))
            except PayloadError as error:
                raise InvalidCommands(f"the memo cannot be stored: {error.message}") from None
        elif isinstance(command, UpsertSearchAttributes):
            attributes = merge(attributes, command.attributes)
            count, size = len(attributes), len(json_encode(attributes))
            _require_at_most(bounds.search_attributes_max, count, "search_attribute_count")
            _require_at_most(bounds.search_attributes_bytes_max, size, "search_attribute_size")


def merge(known: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge changes; entries that are set to null are removed."""
    return {key: value for key, value in {**known, **changes}.items() if value is not None}


def _require_at_most(limit: int, value: int, name: str) -> None:
    if value > limit:
        raise CompletionTooLarge(
            f"{name} would be {value}, more than {limit}",
            limit_kind=name,
            current_value=value,
            configured_limit=limit,
            outcome="rejected",
        )

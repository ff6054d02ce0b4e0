"""History budget: how much of its history limits a run has used, reported to its code in time.

A history is measured in three dimensions: its events, its bytes, and its fan-out, which is the
number of steps that the run holds open: activities, timers, children, waits and calls. Each has a
soft bound, from which a warning is reported, and a hard one, from which the code should continue as
new.
"""

from enum import StrEnum

from msgspec import Struct

from perdure.core.bounds import Bounds
from perdure.core.limits import CONTINUE_AS_NEW_FAN_OUT
from perdure.core.run.state import Run


class Pressure(StrEnum):
    OK = "ok"
    APPROACHING = "approaching"
    RECOMMENDED = "continue_as_new_recommended"


class HistorySize(Struct, frozen=True):
    """The size of the history of a run, in the three dimensions."""

    events: int
    size_bytes: int
    fan_out: int


class Budget(Struct, frozen=True):
    """How close a history is to its bounds, and in which dimensions."""

    pressure: Pressure = Pressure.OK
    dimensions: tuple[str, ...] = ()
    is_spent: bool = False
    """Whether the code should continue as new."""


IN_TIME = Budget()


def history_size(run: Run) -> HistorySize:
    """The size of the history of a run whose operations are loaded."""
    return HistorySize(run.history_count, run.history_bytes, len(run.operations))


class HistoryBudget:
    """The bounds of every history, computed once: every workflow task that is sent needs them."""

    __slots__ = ("_hard", "_soft")

    def __init__(self, bounds: Bounds) -> None:
        # With a small history limit, too, the code is warned before it reaches the limit.
        events = min(bounds.continue_as_new_events, bounds.warns_from(bounds.history_events_max))
        self._hard = HistorySize(events, bounds.continue_as_new_bytes, CONTINUE_AS_NEW_FAN_OUT)
        self._soft = HistorySize(
            bounds.warns_from(self._hard.events),
            bounds.warns_from(self._hard.size_bytes),
            bounds.warns_from(self._hard.fan_out),
        )

    def of(self, size: HistorySize) -> Budget:
        """The budget of a history of this size."""
        soft = self._soft
        if (
            size.events < soft.events
            and size.size_bytes < soft.size_bytes
            and size.fan_out < soft.fan_out
        ):
            return IN_TIME
        names = HistorySize.__struct_fields__
        pressing = tuple(name for name in names if getattr(size, name) >= getattr(soft, name))
        spent = any(getattr(size, name) >= getattr(self._hard, name) for name in names)
        return Budget(Pressure.RECOMMENDED if spent else Pressure.APPROACHING, pressing, spent)

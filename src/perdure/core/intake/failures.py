"""Conditions that could not be evaluated on an event. They count as false and are reported."""

from collections.abc import Iterable

from msgspec import Struct

from perdure.core.limits import FAILED_CONDITIONS_MAX


class FailedCondition(Struct, frozen=True, kw_only=True):
    """The condition of a workflow's trigger, or of a step that waits in a run of it."""

    workflow: str
    app: str
    condition: str
    reason: str
    run_id: str | None = None
    step: str | None = None


class FailedConditions:
    """The number of failed conditions, and the first of them."""

    __slots__ = ("count", "first")

    def __init__(self, first: Iterable[FailedCondition] = (), count: int = 0) -> None:
        self.first = list(first)
        self.count = count

    def add(self, failed: FailedCondition) -> None:
        self.count += 1
        if len(self.first) < FAILED_CONDITIONS_MAX:
            self.first.append(failed)

    def joined(self, other: "FailedConditions") -> "FailedConditions":
        both = FailedConditions()
        both.first = [*self.first, *other.first][:FAILED_CONDITIONS_MAX]
        both.count = self.count + other.count
        return both

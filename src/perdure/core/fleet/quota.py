"""How many tasks may be leased from a queue: at once, and in one minute.

An operator says it for all queues or for some, by queue, by namespace and by named groups of
queues. What was said for a queue becomes quotas, and a task is leased only if each of them has
room. A ledger says what was used of a quota.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType, field

from perdure.core.limits import ALLOWANCES_REMEMBERED_MAX, SECOND

MINUTE = 60 * SECOND
WORKFLOW = "workflow"
ACTIVITY = "activity"
_KINDS: Mapping[str, str] = {WORKFLOW: WORKFLOW, ACTIVITY: ACTIVITY, "session": ACTIVITY}
"""What each kind of queue counts as. Activities of sessions are activities."""

Limit = int | UnsetType | None
"""A number, None for no limit, or nothing said."""


class Allowance(Struct, frozen=True, kw_only=True):
    """What was said about some queues and one kind of tasks."""

    leases_per_queue: Limit = UNSET
    leases_per_namespace: Limit = UNSET
    dispatches_per_queue: Limit = UNSET
    dispatches_per_namespace: Limit = UNSET
    dispatches_per_group: Limit = UNSET
    group: str | UnsetType | None = UNSET


class Scope(StrEnum):
    """What a quota counts together."""

    QUEUE = "queue"
    NAMESPACE = "namespace"
    GROUP = "group"


class Quota(Struct, frozen=True, kw_only=True):
    """One bound, and what it counts. Queues with one key share a ledger."""

    scope: Scope
    key: str
    name: str
    leases_max: int | None = None
    dispatches_max: int | None = None


class Hold(NamedTuple):
    """A task that was leased under a quota, and may still be."""

    run_id: str
    place: int


class Ledger(Struct, frozen=True):
    """What was used of a quota: how much in the latest minute, and what may still be leased."""

    minute: int = 0
    count: int = 0
    holds: tuple[Hold, ...] = field(default_factory=tuple)


class Allowances:
    """All that an operator said, found by queue."""

    def __init__(
        self,
        everywhere: Mapping[str, Allowance] | None = None,
        overrides: Mapping[str, Mapping[str, Allowance]] | None = None,
    ) -> None:
        self._everywhere = everywhere or {}
        self._overrides = overrides or {}
        self._quotas: dict[tuple[str, str, str], tuple[Quota, ...]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said at all."""
        return not self._everywhere and not self._overrides

    def quotas(self, namespace: str, queue: str, kind: str) -> tuple[Quota, ...]:
        """The quotas of a queue; mostly there are none."""
        asked = (namespace, queue, kind)
        known = self._quotas.get(asked)
        if known is None:
            if len(self._quotas) >= ALLOWANCES_REMEMBERED_MAX:
                self._quotas.clear()
            known = self._quotas[asked] = self._find(namespace, queue, kind)
        return known

    def _find(self, namespace: str, queue: str, kind: str) -> tuple[Quota, ...]:
        counted = _KINDS.get(kind)
        if counted is None:
            return ()
        patterns = (f"{namespace}:{queue}", f"{namespace}:*", queue, "*")
        said = [self._overrides.get(pattern, {}).get(counted) for pattern in patterns]
        merged = _merge([*said, self._everywhere.get(counted)])
        quotas = [
            Quota(
                scope=Scope.QUEUE,
                key=f"{counted}/queue/{queue}",
                name=f"queue {queue}",
                leases_max=_number(merged.leases_per_queue),
                dispatches_max=_number(merged.dispatches_per_queue),
            ),
            Quota(
                scope=Scope.NAMESPACE,
                key=f"{counted}/namespace",
                name=f"namespace {namespace}",
                leases_max=_number(merged.leases_per_namespace),
                dispatches_max=_number(merged.dispatches_per_namespace),
            ),
        ]
        if isinstance(merged.group, str):
            quotas.append(
                Quota(
                    scope=Scope.GROUP,
                    key=f"{counted}/group/{merged.group}",
                    name=f"group {merged.group}",
                    dispatches_max=_number(merged.dispatches_per_group),
                )
            )
        return tuple(g for g in quotas if (g.leases_max, g.dispatches_max) != (None, None))


def _merge(said: Iterable[Allowance | None]) -> Allowance:
    """Member by member, the first word counts."""
    merged: dict[str, object] = {}
    for allowance in said:
        if allowance is None:
            continue
        for name in Allowance.__struct_fields__:
            value = getattr(allowance, name)
            if value is not UNSET:
                merged.setdefault(name, value)
    return Allowance(**merged)  # type: ignore[arg-type]  # each from the member of that name


def _number(limit: Limit) -> int | None:
    return limit if isinstance(limit, int) else None


def minute_of(now: int) -> int:
    """Budgets of a minute are those of the minute on the clock."""
    return now // MINUTE


def next_minute_at(now: int) -> int:
    return (minute_of(now) + 1) * MINUTE


def dispatched(ledger: Ledger, now: int) -> int:
    """How many went through in this minute."""
    return ledger.count if ledger.minute == minute_of(now) else 0


def room(quota: Quota, ledger: Ledger, now: int) -> int | None:
    """How many more may go through now; None for any number."""
    bounds = []
    if quota.leases_max is not None:
        bounds.append(quota.leases_max - len(ledger.holds))
    if quota.dispatches_max is not None:
        bounds.append(quota.dispatches_max - dispatched(ledger, now))
    return max(min(bounds), 0) if bounds else None


def let_through(quota: Quota, ledger: Ledger, now: int, hold: Hold) -> Ledger:
    """The ledger when one more went through. A task that comes again is held once."""
    holds: tuple[Hold, ...] = ()
    if quota.leases_max is not None:
        holds = (*(other for other in ledger.holds if other != hold), hold)
    return Ledger(minute_of(now), dispatched(ledger, now) + 1, holds)


def without_ended(ledger: Ledger, standing: Collection[Hold]) -> Ledger:
    """The ledger with those holds alone that are still leased."""
    return Ledger(ledger.minute, ledger.count, tuple(h for h in ledger.holds if h in standing))


def throttle_reason(quota: Quota, ledger: Ledger, now: int) -> str:
    """Why nothing more goes through, in words."""
    if quota.leases_max is not None and len(ledger.holds) >= quota.leases_max:
        return f"{quota.name} has {quota.leases_max} leases, as many as it may"
    return f"{quota.name} has used up the {quota.dispatches_max} tasks of this minute"

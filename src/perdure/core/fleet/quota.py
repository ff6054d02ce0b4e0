"""Quotas: how many tasks may be leased from queues, at once and per minute.

Operators configure allowances for all queues or for some, by queue, by namespace and by named
groups of queues. They become the quotas of a queue, and a task is leased only if every quota has
room. A ledger records the use of a quota.
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
"""The kind that each kind of queue counts as. Activities of sessions are activities."""

Limit = int | UnsetType | None
"""A number, None for no limit, or UNSET if not configured."""


class Allowance(Struct, frozen=True, kw_only=True):
    """The configured limits of some queues, for one kind of tasks."""

    leases_per_queue: Limit = UNSET
    leases_per_namespace: Limit = UNSET
    dispatches_per_queue: Limit = UNSET
    dispatches_per_namespace: Limit = UNSET
    dispatches_per_group: Limit = UNSET
    group: str | UnsetType | None = UNSET


class Scope(StrEnum):
    """The queues that a quota counts together."""

    QUEUE = "queue"
    NAMESPACE = "namespace"
    GROUP = "group"


class Quota(Struct, frozen=True, kw_only=True):
    """One bound, and what it counts. Queues whose quotas have the same key share a ledger."""

    scope: Scope
    key: str
    name: str
    leases_max: int | None = None
    dispatches_max: int | None = None


class Hold(NamedTuple):
    """A task that was leased under a quota and may still be leased."""

    run_id: str
    place: int


class Ledger(Struct, frozen=True):
    """The use of a quota: dispatches in the latest minute, and tasks that may still be leased."""

    minute: int = 0
    count: int = 0
    holds: tuple[Hold, ...] = field(default_factory=tuple)


class Allowances:
    """All configured allowances, looked up by queue."""

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
        """Whether no allowance is configured."""
        return not self._everywhere and not self._overrides

    def quotas(self, namespace: str, queue: str, kind: str) -> tuple[Quota, ...]:
        """The quotas of a queue; usually none."""
        key = (namespace, queue, kind)
        quotas = self._quotas.get(key)
        if quotas is None:
            if len(self._quotas) >= ALLOWANCES_REMEMBERED_MAX:
                self._quotas.clear()
            quotas = self._quotas[key] = self._find(namespace, queue, kind)
        return quotas

    def _find(self, namespace: str, queue: str, kind: str) -> tuple[Quota, ...]:
        counted = _KINDS.get(kind)
        if counted is None:
            return ()
        patterns = (f"{namespace}:{queue}", f"{namespace}:*", queue, "*")
        allowances = [self._overrides.get(pattern, {}).get(counted) for pattern in patterns]
        merged = _merge([*allowances, self._everywhere.get(counted)])
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


def _merge(allowances: Iterable[Allowance | None]) -> Allowance:
    """For every member, the first configured value counts."""
    merged: dict[str, object] = {}
    for allowance in allowances:
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
    """The number of the clock minute: quotas per minute count by it."""
    return now // MINUTE


def next_minute_at(now: int) -> int:
    return (minute_of(now) + 1) * MINUTE


def dispatched(ledger: Ledger, now: int) -> int:
    """How many tasks were leased in this minute."""
    return ledger.count if ledger.minute == minute_of(now) else 0


def room(quota: Quota, ledger: Ledger, now: int) -> int | None:
    """How many more tasks may be leased now; None for any number."""
    bounds = []
    if quota.leases_max is not None:
        bounds.append(quota.leases_max - len(ledger.holds))
    if quota.dispatches_max is not None:
        bounds.append(quota.dispatches_max - dispatched(ledger, now))
    return max(min(bounds), 0) if bounds else None


def let_through(quota: Quota, ledger: Ledger, now: int, hold: Hold) -> Ledger:
    """The ledger after one more lease. A task that is leased again is listed once."""
    holds: tuple[Hold, ...] = ()
    if quota.leases_max is not None:
        holds = (*(other for other in ledger.holds if other != hold), hold)
    return Ledger(minute_of(now), dispatched(ledger, now) + 1, holds)


def without_ended(ledger: Ledger, leased: Collection[Hold]) -> Ledger:
    """The ledger without holds that are no longer leased; `leased` still are."""
    return Ledger(ledger.minute, ledger.count, tuple(h for h in ledger.holds if h in leased))


def throttle_reason(quota: Quota, ledger: Ledger, now: int) -> str:
    """Why no more tasks may be leased, as text."""
    if quota.leases_max is not None and len(ledger.holds) >= quota.leases_max:
        return f"{quota.name} has {quota.leases_max} leases, its maximum"
    return f"{quota.name} has leased its {quota.dispatches_max} tasks of this minute"

"""Lease capacity of a task queue and its current use, for operators."""

from collections.abc import Sequence
from typing import Any

from perdure.core.fleet.queue import AdmissionStatus, Load
from perdure.core.fleet.quota import Ledger, Quota, Scope, dispatched

_DISPATCHES = {
    Scope.QUEUE: (
        "server_max_dispatches_per_minute",
        "server_dispatch_count_this_minute",
        "server_remaining_dispatch_capacity",
    ),
    Scope.NAMESPACE: (
        "server_max_dispatches_per_minute_per_namespace",
        "server_namespace_dispatch_count_this_minute",
        "server_remaining_namespace_dispatch_capacity",
    ),
    Scope.GROUP: (
        "server_max_dispatches_per_minute_per_budget_group",
        "server_budget_group_dispatch_count_this_minute",
        "server_remaining_budget_group_dispatch_capacity",
    ),
}


def admission(
    kind: str, load: Load, used: Sequence[tuple[Quota, Ledger]], *, is_throttled: bool, now: int
) -> dict[str, Any]:
    """Admission of one task kind of a queue. Members of limits that are not set are left out."""
    view: dict[str, Any] = {
        "status": load.status,
        "budget_source": f"worker_registration.max_concurrent_{kind}_tasks",
        "active_worker_count": load.active_workers,
        "configured_slot_count": load.slots,
        "leased_count": load.leased,
        "ready_count": load.ready,
        "available_slot_count": load.free_slots,
    }
    for quota, ledger in used:
        is_throttled |= _add_quota(view, quota, ledger, load, now)
    if is_throttled:
        view["status"] = AdmissionStatus.THROTTLED
    return view


def _add_quota(view: dict[str, Any], quota: Quota, ledger: Ledger, load: Load, now: int) -> bool:
    """Add the members of one quota; return whether it is used up."""
    is_used_up = False
    if quota.dispatches_max is not None:
        count = dispatched(ledger, now)
        left = max(quota.dispatches_max - count, 0)
        numbers = (quota.dispatches_max, count, left)
        view.update(zip(_DISPATCHES[quota.scope], numbers, strict=True))
        is_used_up = not left
    if quota.leases_max is not None and quota.scope is Scope.NAMESPACE:
        # A ledger may name leases that have ended, so its length is not a count.
        view["server_max_active_leases_per_namespace"] = quota.leases_max
    elif quota.leases_max is not None:
        left = max(quota.leases_max - load.leased, 0)
        view["server_max_active_leases_per_queue"] = quota.leases_max
        view["server_active_lease_count"] = load.leased
        view["server_remaining_active_lease_capacity"] = left
        is_used_up |= not left
    if quota.scope is Scope.GROUP:
        view["server_dispatch_budget_group"] = quota.name.removeprefix("group ")
    return is_used_up

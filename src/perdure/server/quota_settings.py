"""What an operator says about how many tasks may be leased, from the environment."""

import json
from collections.abc import Mapping
from typing import Any

from perdure.core.fleet.quota import ACTIVITY, WORKFLOW, Allowance, Allowances
from perdure.core.limits import (
    ALLOWANCES_SAID_MAX,
    ALLOWED_DISPATCHES_MAX,
    ALLOWED_LEASES_MAX,
    NAME_LENGTH_MAX,
)

OVERRIDES = "DW_TASK_QUEUE_ADMISSION_OVERRIDES"

_SECTIONS: Mapping[str, str] = {"workflow_tasks": WORKFLOW, "activity_tasks": ACTIVITY}
_VARIABLES: Mapping[str, str] = {
    "MAX_ACTIVE_LEASES_PER_QUEUE": "leases_per_queue",
    "MAX_ACTIVE_LEASES_PER_NAMESPACE": "leases_per_namespace",
    "MAX_DISPATCHES_PER_MINUTE": "dispatches_per_queue",
    "MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE": "dispatches_per_namespace",
}
_MEMBERS: Mapping[str, str] = {
    "max_active_leases": "leases_per_queue",
    "max_active_leases_per_queue": "leases_per_queue",
    "max_active_leases_per_namespace": "leases_per_namespace",
    "max_dispatches_per_minute": "dispatches_per_queue",
    "max_dispatches_per_minute_per_namespace": "dispatches_per_namespace",
    "max_dispatches_per_minute_per_budget_group": "dispatches_per_group",
    "dispatch_budget_group": "group",
    "budget_group": "group",
}


class AllowanceError(Exception):
    """A limit that makes no sense, with one sentence that says why."""


def parse_allowances(environment: Mapping[str, str]) -> Allowances | None:
    """What was said, or None if nothing was."""
    everywhere = {}
    for kind in (WORKFLOW, ACTIVITY):
        said: dict[str, Any] = {}
        for ending, member in _VARIABLES.items():
            name = f"DW_{kind.upper()}_TASK_{ending}"
            if text := environment.get(name):
                said[member] = _limit(name, member, text)
        if said:
            everywhere[kind] = Allowance(**said)
    overrides = _overrides(environment.get(OVERRIDES, ""))
    allowances = Allowances(everywhere, overrides)
    return None if allowances.is_empty else allowances


def _overrides(text: str) -> dict[str, dict[str, Allowance]]:
    if not text:
        return {}
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise AllowanceError(f"{OVERRIDES} is no JSON") from None
    if told == []:
        # How some languages write an empty object.
        return {}
    entries = _object(OVERRIDES, told)
    if len(entries) > ALLOWANCES_SAID_MAX:
        raise AllowanceError(f"{OVERRIDES} speaks of at most {ALLOWANCES_SAID_MAX} queues")
    return {
        pattern: _sections(f"{OVERRIDES}.{pattern}", entry) for pattern, entry in entries.items()
    }


def _sections(at: str, told: Any) -> dict[str, Allowance]:
    found = {}
    for section, members in _object(at, told).items():
        if section not in _SECTIONS:
            raise AllowanceError(f"{at} has workflow_tasks and activity_tasks, not {section[:64]}")
        found[_SECTIONS[section]] = _allowance(f"{at}.{section}", members)
    return found


def _allowance(at: str, told: Any) -> Allowance:
    said: dict[str, Any] = {}
    for name, value in _object(at, told).items():
        member = _MEMBERS.get(name)
        if member is None:
            raise AllowanceError(f"{at} knows {', '.join(_MEMBERS)}; not {name[:64]}")
        if member in said:
            raise AllowanceError(f"{at} says the same twice: {name} has another name, too")
        said[member] = _limit(f"{at}.{name}", member, value)
    return Allowance(**said)


def _object(at: str, told: Any) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise AllowanceError(f"{at} is an object")
    return told


def _limit(at: str, member: str, told: Any) -> int | str | None:
    """A number; null, zero and less are no limit."""
    if told is None:
        return None
    if member == "group":
        if not isinstance(told, str) or not 0 < len(told) <= NAME_LENGTH_MAX:
            raise AllowanceError(f"{at} is a name of at most {NAME_LENGTH_MAX} characters")
        return told
    most = ALLOWED_LEASES_MAX if member.startswith("leases") else ALLOWED_DISPATCHES_MAX
    number = told
    if isinstance(told, str) and told.isascii() and told.removeprefix("-").isdecimal():
        number = int(told[:20])
    if not isinstance(number, int) or isinstance(number, bool) or number > most:
        raise AllowanceError(f"{at} is a number up to {most}, or 0 for no limit")
    return number if number > 0 else None

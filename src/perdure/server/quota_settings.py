"""Quotas of leased tasks, parsed from the environment."""

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
    """A quota is not valid; the message says why."""


def parse_allowances(environment: Mapping[str, str]) -> Allowances | None:
    """The configured quotas, or None without any."""
    everywhere = {}
    for kind in (WORKFLOW, ACTIVITY):
        members: dict[str, Any] = {}
        for ending, member in _VARIABLES.items():
            name = f"DW_{kind.upper()}_TASK_{ending}"
            if text := environment.get(name):
                members[member] = _limit(name, member, text)
        if members:
            everywhere[kind] = Allowance(**members)
    overrides = _overrides(environment.get(OVERRIDES, ""))
    allowances = Allowances(everywhere, overrides)
    return None if allowances.is_empty else allowances


def _overrides(text: str) -> dict[str, dict[str, Allowance]]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise AllowanceError(f"{OVERRIDES} is not JSON") from None
    if value == []:
        # Some languages encode an empty object as an empty list.
        return {}
    entries = _object(OVERRIDES, value)
    if len(entries) > ALLOWANCES_SAID_MAX:
        raise AllowanceError(f"{OVERRIDES} may name at most {ALLOWANCES_SAID_MAX} queues")
    return {
        pattern: _sections(f"{OVERRIDES}.{pattern}", entry) for pattern, entry in entries.items()
    }


def _sections(at: str, value: Any) -> dict[str, Allowance]:
    sections = {}
    for section, members in _object(at, value).items():
        if section not in _SECTIONS:
            raise AllowanceError(f"{at} has workflow_tasks and activity_tasks, not {section[:64]}")
        sections[_SECTIONS[section]] = _allowance(f"{at}.{section}", members)
    return sections


def _allowance(at: str, section: Any) -> Allowance:
    members: dict[str, Any] = {}
    for name, value in _object(at, section).items():
        member = _MEMBERS.get(name)
        if member is None:
            raise AllowanceError(f"{at} may have {', '.join(_MEMBERS)}; not {name[:64]}")
        if member in members:
            raise AllowanceError(
                f"{at} sets the same quota twice: {name} is another name of a member before it"
            )
        members[member] = _limit(f"{at}.{name}", member, value)
    return Allowance(**members)


def _object(at: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise AllowanceError(f"{at} is an object")
    return value


def _limit(at: str, member: str, value: Any) -> int | str | None:
    """A number; null, zero and less are no limit."""
    if value is None:
        return None
    if member == "group":
        if not isinstance(value, str) or not 0 < len(value) <= NAME_LENGTH_MAX:
            raise AllowanceError(f"{at} is a name of at most {NAME_LENGTH_MAX} characters")
        return value
    most = ALLOWED_LEASES_MAX if member.startswith("leases") else ALLOWED_DISPATCHES_MAX
    number = value
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdecimal():
        number = int(value[:20])
    if not isinstance(number, int) or isinstance(number, bool) or number > most:
        raise AllowanceError(f"{at} is a number up to {most}, or 0 for no limit")
    return number if number > 0 else None

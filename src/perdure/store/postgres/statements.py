"""Named queries with numbered parameters, and commit statements composed of parts."""

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from perdure.store.queries import load_queries

PACKAGE = "perdure.store.postgres"
_NAME = re.compile(r"(?<!:):([a-z_]+)")

HOLDS = ("fence", "hold_open", "hold_closed", "hold_workers", "hold_records", "hold_new")
_CHECKS = {
    "fence": "fence_ok",
    "hold_open": "held_open_ok",
    "hold_closed": "held_closed_ok",
    "hold_workers": "held_workers_ok",
    "hold_records": "held_records_ok",
    "hold_new": "held_new_ok",
}


def numbered(text: str, first: int = 1) -> tuple[str, list[str]]:
    """A query with `$1`, `$2` for its named parameters, and their names in that order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in names:
            names.append(name)
        return f"${first + names.index(name)}"

    return _NAME.sub(number, text), names


class Statements:
    """Every statement of the store, by name."""

    def __init__(self) -> None:
        self._parts = load_queries(PACKAGE)
        self._plain = dict(_load_plain())
        self._commits: dict[tuple[str, ...], tuple[str, list[tuple[str, str]]]] = {}

    def __getitem__(self, name: str) -> str:
        return self._plain[name]

    def commit(self, parts: Mapping[str, Mapping[str, Any]]) -> tuple[str, list[Any]]:
        """One statement that writes all parts, and its values."""
        part_names = tuple(parts)
        composed = self._commits.get(part_names)
        if composed is None:
            composed = self._commits[part_names] = self._compose(part_names)
        text, names = composed
        return text, [parts[part][name] for part, name in names]

    def _compose(self, part_names: tuple[str, ...]) -> tuple[str, list[tuple[str, str]]]:
        names: list[tuple[str, str]] = []
        written: dict[str, str] = {}
        for part in part_names:
            text, own = numbered(self._parts[part], first=len(names) + 1)
            written[part] = text
            names.extend((part, name) for name in own)
        holds = [part for part in part_names if part in HOLDS]
        checks = " and ".join(f"(select ok from {_CHECKS[part]})" for part in holds)
        whole = self._parts["whole"].format(
            holds=",\n".join(written[part] for part in holds),
            checks=checks,
            writes=",\n".join(written[part] for part in part_names if part not in HOLDS),
        )
        return whole, names


@cache
def _load_plain() -> Mapping[str, str]:
    """The statements that are not parts of others, numbered."""
    queries = load_queries(PACKAGE)
    return MappingProxyType(
        {name: numbered(text)[0] for name, text in queries.items() if not _is_part(text)}
    )


def _is_part(text: str) -> bool:
    return "{holds}" in text or re.match(r"[a-z_]+ as \(", text) is not None

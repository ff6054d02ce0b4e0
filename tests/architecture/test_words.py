"""Names and messages are in words that every engineer knows."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.source import MODULES, Module

RULED_OUT = re.compile(
    r"\b(somebody|nobody|whoever|makes no sense|foresaw|errands?|parcels?|siblings?|neighbours?"
    r"|is of no use|hears nothing|not heard of|one of ours|none of ours)\b|\bwaits?: %s"
)
"""Words of a private dialect. Say who does what to what instead."""

GERUNDS = {
    "engine/leasing": "the noun of the field",
    "engine/matching": "the noun of the field",
    "core/intake/keyring": "a ring of keys",
    "core/run/service_binding": "a noun: what an operation is bound to",
    "dispatch/query_routing": "the noun of the field",
    "core/fleet/routing": "the noun of the field",
    "web/routing": "the noun of the field",
    "sdk/testing": "a public name, as in unittest and numpy",
}
"""Modules whose names end like a gerund, and why."""


def messages(module: Module) -> Iterator[tuple[int, str]]:
    """The texts of log lines, of errors, and of the help of the command line, with their lines."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _speaks(node)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.lineno, inner.value


def _speaks(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    is_log = ast.unparse(call.func).startswith("log.")
    return is_log or name in ("add_argument", "add_parser") or ast.unparse(call.func) == "HttpError"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.place)
def test_messages_use_plain_words(module: Module) -> None:
    for line, text in messages(module):
        found = RULED_OUT.search(text)
        assert found is None, f"{module.place}:{line} says {found[0]!r} in {text!r}"


def test_there_are_messages_to_look_at() -> None:
    assert sum(1 for module in MODULES for _ in messages(module)) > 500


def test_modules_are_named_by_nouns() -> None:
    places = {module.place.removesuffix(".py") for module in MODULES}
    assert {place for place in places if place.endswith("ing")} - set(GERUNDS) == set()
    assert set(GERUNDS) <= places

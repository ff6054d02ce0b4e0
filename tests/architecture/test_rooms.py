"""Imports point one way, the core is pure, and time and chance have two doors."""

import ast
import sys

import pytest

from tests.architecture.source import MODULES, Module

BELOW: dict[str, set[str]] = {
    "core": set(),
    "web": set(),
    "store": {"core"},
    "engine": {"core", "store"},
    "dispatch": {"core", "store", "engine"},
    "cluster": {"core", "store", "engine", "dispatch"},
    "protocols": {"core", "store", "engine", "dispatch", "cluster", "web"},
    "features": {"core", "store", "engine", "dispatch", "cluster", "web", "protocols"},
    "server": {"core", "store", "engine", "dispatch", "cluster", "web", "protocols", "features"},
}
"""Which rooms a room may import, besides itself."""
PEOPLE = ("cli", "console", "client")
BELOW |= {room: {*BELOW["server"], "server"} for room in PEOPLE}
BELOW["sdk"] = set()  # it stands alone: it runs in other people's processes, without a server

SOURCES = {"clock", "identity"}
"""Time and chance. Whoever needs them is given them; these rooms may name their types."""
GIVEN_SOURCES = {
    "store",
    "engine",
    "dispatch",
    "cluster",
    "protocols",
    "features",
    "server",
    *PEOPLE,
}

SIBLINGS = [
    ("protocols/durable_workflow", "perdure.protocols.durablex"),
    ("protocols/durablex", "perdure.protocols.durable_workflow"),
    ("store/sqlite", "perdure.store.postgres"),
    ("store/postgres", "perdure.store.sqlite"),
]

TIME_AND_CHANCE = {"time", "random", "secrets", "uuid"}
IMPURE = TIME_AND_CHANCE | {
    "apsw",
    "asyncio",
    "asyncpg",
    "concurrent",
    "httptools",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "select",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "urllib",
    "uvloop",
}


def ours(name: str) -> str | None:
    """The room of an imported module, if it is one of ours."""
    parts = name.split(".")
    return None if parts[0] != "perdure" or len(parts) < 2 else parts[1]


def test_there_are_modules_to_look_at() -> None:
    assert {module.room for module in MODULES} >= {"core", "store", "engine", "dispatch", "web"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.place)
def test_a_room_imports_only_rooms_below_it(module: Module) -> None:
    if module.room in ("__init__", "__main__"):
        return
    for name, line in module.imports():
        room = ours(name)
        if room is None or room in (module.room, "__version__"):
            continue
        if room in SOURCES:
            allowed = module.room in GIVEN_SOURCES
        else:
            allowed = room in BELOW.get(module.room, set())
        assert allowed, f"{module.place}:{line} must not import {name}"


def test_every_room_has_its_place() -> None:
    known = {*BELOW, *SOURCES, "__init__", "__main__"}
    assert {module.room for module in MODULES} <= known, "say in BELOW where a new room stands"


def test_siblings_never_meet() -> None:
    for folder, sibling in SIBLINGS:
        for module in MODULES:
            if module.place.startswith(folder):
                for name, line in module.imports():
                    assert not name.startswith(sibling), f"{module.place}:{line}"


def test_the_core_touches_nothing_but_values() -> None:
    for module in MODULES:
        if module.room == "core":
            for name, line in module.imports():
                assert name.split(".")[0] not in IMPURE, f"{module.place}:{line} imports {name}"


def test_time_and_chance_come_from_two_modules() -> None:
    """The SDK stands alone, so it has a clock of its own."""
    for module in MODULES:
        if module.room not in SOURCES and module.place != "sdk/clock.py":
            for name, line in module.imports():
                root = name.split(".")[0]
                assert root not in TIME_AND_CHANCE, f"{module.place}:{line} imports {name}"


def test_nobody_reads_the_wall_clock_by_another_door() -> None:
    readings = {"now", "utcnow", "today"}
    for module in MODULES:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Attribute) or node.attr not in readings:
                continue
            owner = ast.unparse(node.value).split(".")[-1]
            assert owner not in ("datetime", "date"), f"{module.place}:{node.lineno}"


def test_no_driver_is_known_outside_the_store() -> None:
    for module in MODULES:
        if module.room != "store":
            for name, line in module.imports():
                root = name.split(".")[0]
                assert root not in ("apsw", "asyncpg", "sqlite3"), f"{module.place}:{line}"


def test_imports_stand_at_the_top() -> None:
    for module in MODULES:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for inner in ast.walk(node):
                    assert not isinstance(inner, ast.Import | ast.ImportFrom), (
                        f"{module.place}:{inner.lineno} imports inside {node.name}"
                    )


def test_every_third_party_import_is_a_declared_dependency() -> None:
    declared = {
        "apsw",
        "asyncpg",
        "cel_expr_python",
        "cronsim",
        "cryptography",
        "fastavro",
        "httptools",
        "msgspec",
        "uvloop",
        "websockets",
        "perdure",
    }
    known = declared | set(sys.stdlib_module_names)
    for module in MODULES:
        for name, line in module.imports():
            assert name.split(".")[0] in known, f"{module.place}:{line} imports {name}"

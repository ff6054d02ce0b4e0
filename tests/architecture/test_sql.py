"""SQL lives in files, and no hot query reads a table from end to end."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from perdure.store.copies import TABLES as COPIED
from perdure.store.queries import backwards, load_migrations, load_queries, shortened
from perdure.store.sqlite.schema import migrate, prepare_writer
from tests.architecture.source import MODULES, ROOT, Module

PACKAGE = "perdure.store.sqlite"
QUERIES = load_queries(PACKAGE)

STATEMENT = re.compile(
    r"\s*(select|insert|update|delete|create|drop|alter|replace|with|pragma|begin|commit|rollback|"
    r"savepoint|attach|vacuum|explain)\s+\S",
    re.IGNORECASE,
)
TRANSACTION = re.compile(r"(pragma|begin|commit|rollback)\b", re.IGNORECASE)
SCHEMA = {
    "store/sqlite/schema.py": "what must work before and while there is a schema",
    "store/postgres/schema.py": "the same, and partitions, whose names are made",
}
KNOWN: dict[tuple[str, str], str] = {}
"""Statements in Python that are there all the same, and why."""

NAMING = (
    "store/sqlite/store.py",
    "store/sqlite/copies.py",
    "store/list_queries.py",
    "store/push_lists.py",
)
"""Where queries are named."""
TABLES = ("run", "history", "operation", "inbox", "ready", "deadline", "receipt", "worker")
AT_START = {
    "load_workers": "once, at start",
    "load_namespaces": "once, at start",
    "load_ready_names": "once, at start",
    "load_lease_owners": "once, at start",
    "find_anything": "a copy, once; the first row of each will do",
    "clear_namespaces": "a copy, once",
    **{f"give_{table}": "a copy reads everything" for table in COPIED},
}
"""Queries that may read a whole table, and why."""


@pytest.fixture(scope="module")
def database() -> Iterator[apsw.Connection]:
    """A fresh schema."""
    connection = apsw.Connection(":memory:")
    prepare_writer(connection)
    migrate(connection, PACKAGE)
    yield connection
    connection.close()


def parameters(query: str) -> dict[str, None]:
    return dict.fromkeys(re.findall(r":([a-z_]+)", query))


def plan(database: apsw.Connection, query: str) -> list[str]:
    """How SQLite would find its rows."""
    explained = database.execute(f"explain query plan {query}", parameters(query))
    return [str(row[3]) for row in explained]


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_can_be_prepared(database: apsw.Connection, name: str) -> None:
    assert plan(database, QUERIES[name]) is not None


def program(database: apsw.Connection, query: str, count: int) -> list[tuple[object, ...]]:
    """What SQLite would do, step by step, without the words beside it."""
    return [row[1:5] for row in database.execute(f"explain {query}", (None,) * count)]


@pytest.mark.parametrize("name", QUERIES)
def test_a_shortened_query_does_the_same(database: apsw.Connection, name: str) -> None:
    query, count = QUERIES[name], len(parameters(QUERIES[name]))

    assert program(database, shortened(query), count) == program(database, query, count)


def test_a_run_that_stays_open_is_found_by_its_id_and_moves_only_in_the_index_of_its_owner(
    database: apsw.Connection,
) -> None:
    pages = database.execute("select name, rootpage from sqlite_schema")
    of_run = {page: name for name, page in pages if str(name).startswith("run")}

    steps = program(database, QUERIES["update_state"], 4)

    opened = [of_run[page] for code, _, page, _ in steps if code == "OpenWrite"]
    assert opened == ["run", "run_id_idx", "run_task_owner_idx"]


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in AT_START])
def test_no_query_of_every_day_reads_a_table_from_end_to_end(
    database: apsw.Connection, name: str
) -> None:
    for step in plan(database, QUERIES[name]):
        scanned = re.match(r"SCAN (\w+)", step)
        assert scanned is None or scanned.group(1) not in TABLES, f"{name}: {step}"


def test_the_exceptions_exist() -> None:
    assert set(AT_START) <= set(QUERIES)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("load_runs", "run_id_idx"),
        ("load_operations", "operation_idx"),
        ("load_inbox", "inbox_idx"),
        ("load_chunks", "history_idx"),
        ("find_current", "run_instance_idx"),
        ("load_ready", "ready_queue_idx"),
        ("load_due", "deadline_due_idx"),
        ("find_next_due", "deadline_due_idx"),
        ("find_leased_runs", "run_task_owner_idx"),
        ("find_leased_operations", "operation_lease_owner_idx"),
        ("read_instance", "run_instance_idx"),
        ("read_list", "run_started_idx"),
        ("read_list_of_ids", "run_instance_idx"),
        ("read_list_of_runs", "run_id_idx"),
        ("read_chunks", "history_idx"),
        ("read_payload", "payload_idx"),
        ("read_loose_payloads", "payload_loose_idx"),
        ("find_closed", "run_closed_idx"),
        ("find_closed_pushed", "run_push_closed_idx"),
        ("find_receipts_left", "receipt_run_idx"),
        ("read_queues", "ready_queue_idx"),
        ("read_backlog", "ready_queue_idx"),
        ("count_leased_runs", "run_task_owner_idx"),
        ("count_leased_operations", "operation_lease_owner_idx"),
        ("read_leased_runs", "run_task_owner_idx"),
        ("read_leased_operations", "operation_lease_owner_idx"),
    ],
)
def test_a_hot_query_rides_its_index(database: apsw.Connection, name: str, index: str) -> None:
    steps = plan(database, QUERIES[name])
    assert any(f"USING INDEX {index}" in s or f"COVERING INDEX {index}" in s for s in steps), steps


@pytest.mark.parametrize(
    "name",
    [
        "load_ready",
        "read_list",
        "find_current",
        "load_due",
        "find_closed",
        "find_closed_pushed",
    ],
)
def test_the_order_of_a_page_comes_from_its_index(database: apsw.Connection, name: str) -> None:
    steps = plan(database, QUERIES[name])
    # Sorting those that share an instant is fine; sorting everything is not.
    assert not any("TEMP B-TREE FOR ORDER BY" in step for step in steps), steps


def test_every_query_is_used_and_every_used_one_exists() -> None:
    named = {
        str(node.value)
        for module in MODULES
        if module.place in NAMING
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named |= {backwards(name) for name in named}
    named |= {f"{verb}_{table}" for verb in ("give", "take") for table in COPIED}
    assert set(QUERIES) <= named, set(QUERIES) - named


def literals(module: Module) -> Iterator[tuple[str, int]]:
    """Every text of a module that is not a docstring."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module.tree):
        if id(node) in docstrings or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str):
            yield node.value, node.lineno


def test_python_holds_no_sql() -> None:
    found: set[tuple[str, str]] = set()
    for module in MODULES:
        for text, line in literals(module):
            if not STATEMENT.match(text):
                continue
            in_store = module.place.startswith("store/")
            if in_store and (TRANSACTION.match(text) or module.place in SCHEMA):
                continue
            if (module.place, text) in KNOWN:
                found.add((module.place, text))
                continue
            if module.room in ("store", "engine", "dispatch"):
                raise AssertionError(f"{module.place}:{line} holds SQL: {text}")
            words = re.search(r"\b(from|into|set|table|values)\b", text, re.IGNORECASE)
            assert words is None, f"{module.place}:{line} looks like SQL: {text}"
    assert found == set(KNOWN), "an exception is no longer needed"


@pytest.mark.parametrize("package", [PACKAGE, "perdure.store.postgres"])
def test_migrations_are_numbered_without_gaps_and_each_number_once(package: str) -> None:
    versions = [version for version, _ in load_migrations(package)]

    assert versions == list(range(1, len(versions) + 1))


def sql_files() -> list[Path]:
    return sorted((ROOT / "store").rglob("*.sql"))


@pytest.mark.parametrize("file", sql_files(), ids=lambda file: file.name)
def test_sql_is_lower_case_and_asks_no_clock(file: Path) -> None:
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        code = line.partition("--")[0]
        assert code == code.lower(), f"{file.name}:{number}"
        assert not re.search(r"current_timestamp|\bnow\(|strftime|random\(", code), (
            f"{file.name}:{number} asks the database for time or chance"
        )
        assert "select *" not in code, f"{file.name}:{number}"


def test_lists_have_an_order_and_pages_a_bound() -> None:
    for name, query in QUERIES.items():
        if "limit" in query:
            assert "order by" in query, f"{name} takes some rows, whichever"

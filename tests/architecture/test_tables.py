"""The tables of the documentation say what the code does, in both directions."""

import argparse
import ast
import re
from collections.abc import Iterator
from typing import cast

import pytest

from perdure.cli.main import _parser
from perdure.core import rejection
from perdure.protocols.durable_workflow.reasons import (
    PAYLOAD_REASONS,
    REQUEST_REASONS,
    STATUS_BY_REJECTION,
    STORE_REASONS,
    WORKER_REASONS,
)
from perdure.protocols.durablex.reasons import PUSH_REASONS
from perdure.server.assemble import Server
from perdure.server.ignored_settings import FIXED, IGNORED, REFUSED
from perdure.server.settings import ENVIRONMENT, Settings, SettingsError, load_settings
from perdure.store.interface import Store
from perdure.web.routing import PUBLIC
from tests.architecture.source import MODULES, REPOSITORY

NOT_ON_THE_WIRE = {
    "storage_locked": "the server does not start",
    "storage_newer": "the server does not start",
    "storage_unsafe": "the server does not start",
    "storage_incomplete": "the server does not start",
    "storage_foreign": "the server does not start",
    "storage_missing": "perdure copy refuses",
    "storage_older": "perdure copy refuses",
    "storage_not_empty": "perdure copy refuses",
    "storage_in_use": "perdure copy refuses",
}
"""Reasons of `Unavailable` that no client ever sees, and why."""


def rows(document: str) -> list[list[str]]:
    """The cells of all tables of a document, without their headings."""
    table: list[list[str]] = []
    lines = (REPOSITORY / "docs" / document).read_text("utf-8").splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|") or line.startswith("| ---") or following.startswith("| ---"):
            continue
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return table


def unquoted(cell: str) -> str:
    assert cell.startswith("`"), cell
    assert cell.endswith("`"), cell
    return cell[1:-1]


# Reasons ------------------------------------------------------------------------------------------


def said_in_calls(folder: str, *callables: str) -> Iterator[tuple[str, int]]:
    """Reasons and statuses that are written out where an error is made."""
    for module in MODULES:
        if not module.place.startswith(folder):
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name not in callables or len(node.args) < 2:
                continue
            status, reason = node.args[0], node.args[1]
            if isinstance(status, ast.Constant) and isinstance(reason, ast.Constant):
                yield str(reason.value), int(str(status.value))


def reasons_of_the_code() -> set[tuple[str, int]]:
    ruled = {(kind.reason, status) for kind, status in STATUS_BY_REJECTION.items()}
    web = set(said_in_calls("web/", "HttpError", "_refuse_stream"))
    doors = set(REQUEST_REASONS.items()) | set(PUSH_REASONS.items())
    doors |= set(PAYLOAD_REASONS) | set(WORKER_REASONS)
    return ruled | doors | set(STORE_REASONS.items()) | web


def test_the_table_of_reasons_is_complete_and_true() -> None:
    documented = [(unquoted(row[0]), int(row[1])) for row in rows("reasons.md")]
    assert len(documented) == len(set(documented)), "a reason is listed twice"
    assert set(documented) == reasons_of_the_code()


def test_every_row_of_the_table_of_reasons_is_filled() -> None:
    for row in rows("reasons.md"):
        assert len(row) == 5, row
        assert all(row), row
        places = ("any", "control", "worker", "control and worker", "connection", "push")
        assert row[2] in places, row


def test_the_web_layer_has_reasons_of_its_own() -> None:
    own = {reason for reason, _ in said_in_calls("web/connection.py", "HttpError")}
    assert own == {
        "malformed_http",
        "headers_too_large",
        "request_timeout",
        "request_memory_full",
        "server_stopping",
        "too_many_connections",
    }


def test_every_rejection_has_a_status() -> None:
    def kinds(kind: type[rejection.Rejection]) -> Iterator[type[rejection.Rejection]]:
        for child in kind.__subclasses__():
            yield child
            yield from kinds(child)

    assert set(kinds(rejection.Rejection)) == set(STATUS_BY_REJECTION)


def test_every_reason_that_a_protocol_writes_out_is_in_the_catalogue() -> None:
    known = reasons_of_the_code()
    for reason, status in said_in_calls("protocols/", "HttpError"):
        assert (reason, status) in known, reason


def test_every_reason_of_the_store_is_in_the_catalogue_or_never_sent() -> None:
    said = {
        str(node.args[0].value)
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Unavailable"
        and isinstance(node.args[0], ast.Constant)
    }
    said |= {
        str(node.value)
        for module in MODULES
        if module.room == "store"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and re.fullmatch(r"storage_[a-z_]+", str(node.value))
    }
    assert said == {*STORE_REASONS, *NOT_ON_THE_WIRE}


# Settings -----------------------------------------------------------------------------------------


def environment_rows() -> dict[str, tuple[str, str]]:
    return {
        unquoted(name): (default, meaning)
        for name, default, meaning in (row for row in rows("settings.md") if len(row) == 3)
    }


def test_the_table_of_variables_is_complete_and_true() -> None:
    assert {name: meaning for name, (_, meaning) in environment_rows().items()} == ENVIRONMENT


def test_the_documented_defaults_are_the_defaults() -> None:
    for name, (default, _) in environment_rows().items():
        if default != "–":
            assert load_settings({name: unquoted(default)}) == Settings(), name


def test_every_variable_that_is_read_is_listed_and_every_listed_one_is_read() -> None:
    """Whatever a variable is set to, it changes something or is refused."""
    for name in ENVIRONMENT:
        try:
            changed = load_settings({name: "7"}) != Settings()
        except SettingsError:
            changed = True
        assert changed or load_settings({name: "false"}) != Settings(), name
    settings = next(m for m in MODULES if m.place == "server/settings.py")
    written = {
        str(node.value)
        for node in ast.walk(settings.tree)
        if isinstance(node, ast.Constant)
        and re.fullmatch(r"(PERDURE|DW)_[A-Z0-9_]+[A-Z]", str(node.value))
    }
    assert written <= set(ENVIRONMENT)


def test_the_table_of_variables_without_effect_is_complete_and_true() -> None:
    pairs = [row for row in rows("settings.md") if len(row) == 2]
    documented = {
        unquoted(name): why for names, why in pairs for name in names.split(", ") if "DW_" in name
    }
    refused = {
        name: f"refused: {why}" + f"; `{' or '.join(right)}` is right" * bool(right)
        for name, (right, why) in REFUSED.items()
    }
    fixed = {name: f"always {value}" for name, value in FIXED.items()}
    assert documented == {**refused, **fixed, **IGNORED}
    assert not set(documented) & set(ENVIRONMENT)


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    """As `PERDURE_HOST=` in a compose file, which must not open the server to the world."""
    assert {name for name in ENVIRONMENT if load_settings({name: ""}) != Settings()} == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PERDURE_PORT", "70000"),
        ("PERDURE_PORT", "-1"),
        ("PERDURE_PORT", "http"),
        ("DW_WORKER_POLL_TIMEOUT", "61"),
        ("DW_WORKER_POLL_TIMEOUT", "1.5"),
        ("DW_WORKFLOW_TASK_TIMEOUT", "0"),
        ("DW_ACTIVITY_TASK_TIMEOUT", "86401"),
        ("DW_HISTORY_RETENTION_DAYS", "0"),
        ("DW_HISTORY_RETENTION_DAYS", "366"),
        ("DW_HISTORY_RETENTION_DAYS", "never"),
        ("DW_MAX_PAYLOAD_BYTES", "10"),
        ("DW_WORKER_STALE_AFTER_SECONDS", "0"),
        ("DW_WORKER_STALE_AFTER_SECONDS", "3601"),
        ("DW_ENV_AUDIT_STRICT", "perhaps"),
        ("DW_PRINCIPAL_TOKENS", "{"),
        ("DW_AUTH_PROVIDER", "custom"),
        ("DW_MODE", "embedded"),
        ("DW_SERIALIZER", "json"),
        ("DW_MAX_PAYLOAD_BYTES", "٣٣٣٣"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings({name: value})


def commands() -> dict[str, argparse.ArgumentParser]:
    parser = _parser()
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(actions[0].choices)


def test_the_table_of_commands_is_complete_and_true() -> None:
    pairs = [row for row in rows("settings.md") if len(row) == 2]
    documented = {unquoted(row[0]) for row in pairs if row[0].startswith("`perdure ")}
    assert documented == {f"perdure {name}" for name in commands()}


def test_the_table_of_options_is_complete_and_true() -> None:
    documented = {
        (unquoted(option), unquoted(command))
        for option, of, _, _ in (row for row in rows("settings.md") if len(row) == 4)
        for command in of.split(", ")
    }
    offered = {
        (option, name)
        for name, command in commands().items()
        for action in command._actions
        for option in action.option_strings
        if action.dest != "help" and action.help != argparse.SUPPRESS
    }
    assert documented == offered


def test_options_default_to_what_the_environment_defaults_to() -> None:
    options = [row for row in rows("settings.md") if len(row) == 4]
    defaults = {unquoted(row[0]): unquoted(row[2]) for row in options if row[2] != "–"}
    for option, variable in (
        ("--host", "PERDURE_HOST"),
        ("--port", "PERDURE_PORT"),
        ("--store", "PERDURE_STORE"),
    ):
        assert defaults[option] == unquoted(environment_rows()[variable][0])
    parsed = _parser().parse_args(["serve"])
    assert defaults["--log-level"] == parsed.log_level


# Routes -------------------------------------------------------------------------------------------


def test_the_table_of_routes_is_complete_and_true() -> None:
    server = Server(Settings(auth_driver="none"), store=cast(Store, None))
    routed = {
        (
            route.method,
            route.path,
            frozenset({"everybody"}) if route.roles is PUBLIC else route.roles,
        )
        for route in server.app.router.routes
    }

    table = rows("routes.md")
    documented = {(m, unquoted(p), frozenset(roles.split(", "))) for m, p, roles, _ in table}

    assert len(documented) == len(table), "a route is listed twice"
    assert documented == routed

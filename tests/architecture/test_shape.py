"""Modules stay short chapters, loops have owners, names say what they are."""

import ast

import pytest

from tests.architecture.source import MODULES, Module

LINES_MAX = 800
COMFORTABLE = 500

TASKS: dict[str, tuple[int, str]] = {
    "web/server.py": (1, "one per handler that needs it; kept in a set, awaited by the drain"),
    "sdk/offload.py": (1, "one per fetched result; awaited together before a pass begins"),
    "sdk/session.py": (1, "a pass whose results are fetched first; cancelled with its socket"),
    "sdk/passes.py": (2, "a handler and the bodies of its steps; ended with their pass"),
    "sdk/connect.py": (1, "a context's connection, ended with the context"),
    "sdk/link.py": (1, "dialling, awaited at once"),
    "sdk/endpoint.py": (1, "registering; cancelled by the stop"),
    "sdk/http_server.py": (1, "one per request; kept by its connection, cancelled with it"),
    "sdk/program.py": (2, "the connection and the wait for a signal; both end the program"),
    "server/run.py": (4, "the loops of the server; three in a TaskGroup, the sweep cancelled"),
    "protocols/durable_workflow/disk_reads.py": (1, "a read for a lean handler, which awaits it"),
    "dispatch/store_watch.py": (3, "the check that callers share; two that end with the pause"),
    "dispatch/polls.py": (1, "a look at ready tasks; kept in a set until it is done"),
    "dispatch/session_polls.py": (1, "a look at tasks of sessions; kept in a set until it is done"),
    "dispatch/query_broker.py": (
        1,
        "an errand to another node; kept until done, cancelled by the drain",
    ),
    "cluster/poll_lender.py": (1, "a read of what was handed over; kept in a set until it is done"),
    "protocols/durablex/connect.py": (
        1,
        "one per pass whose stored results are read first; cancelled when the server closes",
    ),
    "protocols/durablex/serve.py": (3, "passes, cancelled at the end; two ends of one sleep"),
    "features/model_calls/explanation_routes.py": (
        1,
        "the question ends with the stream of its client",
    ),
    "web/stream.py": (1, "feeds one stream; cancelled when its client leaves"),
    "store/postgres/connection.py": (
        2,
        "connecting, and a statement; awaited at once, and behind a cancellation for a second",
    ),
    "features/webhooks/loops.py": (1, "one per try of a webhook; in a TaskGroup"),
    "features/model_calls/loops.py": (1, "one per try of a model call; in a TaskGroup"),
    "cluster/refresh.py": (2, "two ends of one sleep; both cancelled when it is over"),
    "store/postgres/hints.py": (2, "hearing and staying connected; in a TaskGroup"),
    "dispatch/runner_invoker.py": (1, "rests of runners, cancelled when the invoker is closed"),
    "dispatch/deadlines.py": (2, "two ends of one sleep; both cancelled when it is over"),
}
"""Where tasks are created, at most how many times, and who ends them."""

MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def calls(module: Module, *names: str) -> list[int]:
    """The lines that call something by one of these names."""
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in names)
            or (isinstance(node.func, ast.Name) and node.func.id in names)
        )
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.place)
def test_a_module_is_a_short_chapter_that_says_what_it_is_for(module: Module) -> None:
    lines = module.text.count("\n")
    assert lines < LINES_MAX, f"{module.place} has {lines} lines"
    docstring = ast.get_docstring(module.tree)
    assert docstring, f"{module.place} does not say what it is for"
    assert module.path.stem not in MEANINGLESS, module.place


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.place)
def test_tasks_have_owners(module: Module) -> None:
    created = calls(module, "create_task", "ensure_future")
    most, _ = TASKS.get(module.place, (0, ""))
    assert len(created) <= most, (
        f"{module.place} creates tasks in lines {created}; say who ends them"
    )


def test_the_list_of_owners_is_true() -> None:
    creating = {m.place for m in MODULES if calls(m, "create_task", "ensure_future")}
    assert creating == set(TASKS)


def test_nothing_sleeps_in_order_to_wait_for_something() -> None:
    """Sleeping is the clock's business; a bare one needs a reason."""
    allowed = {
        "clock.py": "is the clock",
        "web/server.py": "paces the sweep of silent connections",
        "sdk/client.py": "paces the looks at a run that is waited for",
        "sdk/endpoint.py": "paces registrations",
        "sdk/http_server.py": "refuses invokes that are on their way",
        "sdk/offload.py": "paces the tries of an upload or a fetch",
        "engine/beat.py": "lets the loop turn once, so that everybody at the door comes along",
        "dispatch/polls.py": "leaves a sick disk alone for a moment",
        "dispatch/session_polls.py": "leaves a sick disk alone for a moment",
        "store/postgres/connection.py": "leaves a database that is away alone for a moment",
    }
    for module in MODULES:
        if module.place not in allowed:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.sleep":
                    raise AssertionError(f"{module.place}:{node.lineno}")


def test_no_type_is_ignored_without_a_code() -> None:
    for module in MODULES:
        for number, line in enumerate(module.text.splitlines(), start=1):
            assert "type: ignore" not in line or "type: ignore[" in line, f"{module.place}:{number}"


def test_everything_is_caught_only_where_a_loop_or_a_request_ends() -> None:
    allowed = {
        "web/exchange.py": "a request",
        "sdk/ai.py": "what a model call used, told by other people's code",
        "sdk/step_threads.py": "the code of a step, in its thread",
        "sdk/passes.py": "the code of a workflow and of its steps",
        "sdk/testing.py": "what stands in for a child run",
        "sdk/http.py": "closes the connection, and raises on",
        "engine/beat.py": "the beat",
        "engine/reply.py": "a listener, so that the beat can reply to the others",
        "store/postgres/connection.py": "sorts errors, and raises on",
        "store/postgres/store.py": "sorts errors, and raises on",
        "cluster/refresh.py": "the slow loop",
        "dispatch/record_expiry.py": "the loop that forgets",
        "dispatch/store_watch.py": "the loop that checks the store, and a check, which is shared",
        "features/retention/loops.py": "the loop that removes closed runs",
        "store/sqlite/store.py": "rolls back, and raises on",
        "web/client.py": "closes its connection, and raises on",
        "dispatch/deadlines.py": "the deadline loop",
        "dispatch/polls.py": "a look at ready tasks, which nobody awaits",
        "features/webhooks/loops.py": "a try of a webhook, which nobody awaits",
        "features/model_calls/loops.py": "a try of a model call, which nobody awaits",
        "dispatch/session_polls.py": "a look at tasks of sessions, which nobody awaits",
        "cluster/poll_lender.py": "a read of what was handed over, which nobody awaits",
    }
    for module in MODULES:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler):
                caught = "" if node.type is None else ast.unparse(node.type)
                if caught in ("", "Exception", "BaseException"):
                    assert module.place in allowed, f"{module.place}:{node.lineno} catches {caught}"


def test_whoever_lets_payloads_in_looks_for_those_that_were_uploaded() -> None:
    """What only stands in a document, and was never named in the beat, would be forgotten."""
    reading = {"read_input", "require_payload", "require_envelope", "translate_commands"}
    for module in MODULES:
        if not module.place.startswith("protocols/durable_workflow/"):
            continue
        called = {
            node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
        }
        if called & reading and called & {"submit", "submit_knowing_workers", "report"}:
            assert called & {"with_payloads", "find_references"}, (
                f"{module.place}: see references.py"
            )

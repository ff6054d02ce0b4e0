"""Live servers for the wire tests, on both stores where the store can make a difference."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Wire, a_wire
from tests.support.postgres import Cluster
from tests.support.server import STORES
from tests.support.tables import empty, migrated_database

ON_BOTH_STORES = {
    "test_activity_tasks",
    "test_allowances",
    "test_bad_input",
    "test_build_ids",
    "test_bounds",
    "test_budgets",
    "test_capabilities",
    "test_cancellation",
    "test_damaged_runs",
    "test_causes",
    "test_commanding",
    "test_local_activities",
    "test_long_histories",
    "test_external_forgetting",
    "test_external_payloads",
    "test_external_references",
    "test_message_streams",
    "test_polls",
    "test_push_ai",
    "test_push_budget",
    "test_push_concurrency",
    "test_push_control",
    "test_push_evals",
    "test_push_faults",
    "test_push_flow",
    "test_push_forgetting",
    "test_push_passes",
    "test_push_people",
    "test_push_streams",
    "test_push_reading",
    "test_push_recovery",
    "test_push_results",
    "test_push_retention",
    "test_push_seed",
    "test_push_routing",
    "test_push_waiting",
    "test_reading",
    "test_redrive",
    "test_service_callers",
    "test_service_calls",
    "test_service_catalogue",
    "test_registration",
    "test_retention",
    "test_sessions",
    "test_standalone_activities",
    "test_start",
    "test_streams",
    "test_sticky",
    "test_task_history",
    "test_task_queues",
    "test_tracing",
    "test_updates",
    "test_upgrades",
    "test_validations",
    "test_visibility",
    "test_webhooks",
    "test_workers",
    "test_workflow_tasks",
}
"""What stands behind the doors. The doors themselves never learn which store there is."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "wire_store" in metafunc.fixturenames:
        name = metafunc.module.__name__.rpartition(".")[2]
        stores = STORES if name in ON_BOTH_STORES else STORES[:1]
        metafunc.parametrize("wire_store", stores, indirect=True, scope="module")


@pytest.fixture(scope="module")
def wire_store(request: pytest.FixtureRequest) -> str:
    store: str = request.param
    return store


@pytest.fixture
def wire_settings(wire_store: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a server of one test is told: where its store is, which is empty."""
    if wire_store != "postgres":
        return {}
    url = request.getfixturevalue("common_database")
    empty(url)
    return {"store": url}


@pytest.fixture
def wire(wire_settings: dict[str, Any], tmp_path: Path) -> Iterator[Wire]:
    """A server of its own for one test."""
    with a_wire(tmp_path, **wire_settings) as wire:
        yield wire


@pytest.fixture(scope="module")
def shared_wire(
    wire_store: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Wire]:
    """One server for a module of tests that leave nothing behind, or only runs of their own."""
    settings: dict[str, Any] = {}
    if wire_store == "postgres":
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        settings["store"] = migrated_database(cluster)
    with a_wire(tmp_path_factory.mktemp("shared"), **settings) as wire:
        yield wire


@pytest.fixture(scope="session")
def common_database(postgres_cluster: Cluster) -> str:
    """One that is emptied for every test: that is quicker than a new one."""
    return migrated_database(postgres_cluster)

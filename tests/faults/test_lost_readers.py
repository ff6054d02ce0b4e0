"""Requests that only read, on a PostgreSQL that hangs up on them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import Answer, Wire, a_wire, complete_workflow, schedule_activity
from tests.support.postgres import Cluster

AT_ONCE = 12
"""More than there are readers."""


@pytest.fixture
def wire(tmp_path: Path, migrated_url: str) -> Iterator[Wire]:
    with a_wire(tmp_path, store=migrated_url) as wire:
        yield wire


def at_once(wire: Wire, *calls: tuple[str, str]) -> list[Answer]:
    async def ask() -> list[Answer]:
        headers = {
            "X-Durable-Workflow-Control-Plane-Version": "2",
            "X-Durable-Workflow-Protocol-Version": "1.20",
        }
        return await asyncio.gather(
            *(wire.send(method, path, headers=headers) for method, path in calls)
        )

    return wire.run(ask())


def test_many_readers_at_once_find_a_connection_each_in_turn(wire: Wire) -> None:
    answers = at_once(wire, *[("GET", "/api/health")] * AT_ONCE)
    assert {answer.status for answer in answers} == {200}, answers


def test_readers_whose_connections_were_ended_do_not_notice(
    wire: Wire, postgres_cluster: Cluster, migrated_url: str
) -> None:
    wire.register()
    wire.run_to(schedule_activity())
    run_id = wire.describe()["run_id"]
    name = migrated_url.rpartition("/")[2]
    for _ in range(3):
        postgres_cluster.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        )
        paths = ("/health", "/ready", "/workflows", "/workflows/order-1")
        history = f"/workflows/order-1/runs/{run_id}/history"
        calls = [("GET", f"/api{path}") for path in (*paths, history)]
        answers = at_once(wire, *calls, *calls)
        assert {answer.status for answer in answers} == {200}, answers
    attempt = wire.take("activity")
    wire.report_attempt(attempt, "complete").ok()
    wire.complete(wire.take(), complete_workflow())
    assert wire.describe()["status"] == "completed"

"""Programs written with the published SDK releases run against our server, and replay cold.

The programs and the driver live in `tests/sdk`; the driver runs once per release, in that release's
own environment, and says of every case whether it held.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.sdk.catalogue import RELEASES, cases_of
from tests.support.postgres import Cluster
from tests.support.sdk import ROOT, Report, Verdict, drive, once
from tests.support.server import STORES, ServerProcess

STORIES = [
    ((store, release), case.name)
    for store in STORES
    for release in RELEASES
    for case in cases_of(release)
]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What the driver of this release says about all its cases, on a server of its own."""
    store, release = request.param
    name = f"sdk-{store}-{release}"

    def play() -> str:
        folder = tmp_path_factory.mktemp(name)
        if store == "sqlite":
            server = ServerProcess(folder / "perdure.db")
        else:
            cluster: Cluster = request.getfixturevalue("postgres_cluster")
            server = ServerProcess(cluster.fresh_database(), log_path=folder / "log", processes=2)
        with server:
            return json.dumps(asdict(drive(release, server.url)))

    told = json.loads(once(tmp_path_factory, name, play))
    return Report(
        {name: Verdict(**it) for name, it in told["verdicts"].items()}, told["complaints"]
    )


@pytest.mark.parametrize(
    ("report", "case"),
    STORIES,
    indirect=["report"],
    ids=["-".join((*where, case)) for where, case in STORIES],
)
def test_a_program_of_the_published_sdk_runs_and_replays(report: Report, case: str) -> None:
    verdict = report.of(case)

    assert verdict.ok, verdict.story


def test_the_demo_shows_a_finished_workflow_and_its_history() -> None:
    demo = Path("examples") / "demo.py"

    shown = subprocess.run(
        [sys.executable, str(demo)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "hello, world" in shown.stdout
    assert "WorkflowCompleted" in shown.stdout

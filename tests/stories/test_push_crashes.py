"""An engine that is killed again and again while the published SDK works for it."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.postgres import Cluster
from tests.support.sdk import ROOT, python_of
from tests.support.server import STORES, ServerProcess

RUNS, STEPS = 20, 15
KILLS = 3


@pytest.mark.parametrize("store", STORES)
def test_no_run_is_lost_when_its_engine_is_killed(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if store == "sqlite":
        server = ServerProcess(tmp_path / "perdure.db")
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        server = ServerProcess(cluster.fresh_database(), log_path=tmp_path / "log")
    with server:
        program = subprocess.Popen(
            [python_of("duraton"), "-m", "tests.push.duraton_storm", server.url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        for _ in range(KILLS):
            server.restart()
        told, complaints = program.communicate(timeout=120)

    assert told, complaints
    expected = [["succeeded", [number, 66], STEPS] for number in range(RUNS)]
    assert json.loads(told) == expected

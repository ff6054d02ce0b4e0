"""The published runner SDK of the push protocol, unchanged, on both stores."""

import json
import subprocess

import pytest

from tests.support.models import ThreadedModels, completion
from tests.support.postgres import Cluster
from tests.support.sdk import ROOT, once, python_of
from tests.support.server import STORES, ServerProcess

CASES = (
    "steps",
    "retries",
    "failures",
    "time",
    "events",
    "children",
    "branches",
    "many_steps",
    "skipping",
    "approvals",
    "scores",
    "sessions",
    "forks",
    "control",
    "catalogue",
    "crowd",
    "model_calls",
    "inference",
    "caps",
    "budgets",
    "token_throttles",
    "evals",
)


@pytest.fixture(scope="module", params=STORES)
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What the program says about its cases: nothing, or what went wrong."""
    store: str = request.param

    def play() -> str:
        folder = tmp_path_factory.mktemp(f"push-{store}")
        models = ThreadedModels(completion("because", model="m-9"))
        env = {"PERDURE_AI_URL": models.url}
        if store == "sqlite":
            server = ServerProcess(folder / "perdure.db", env=env)
        else:
            cluster: Cluster = request.getfixturevalue("postgres_cluster")
            server = ServerProcess(
                cluster.fresh_database(), log_path=folder / "log", processes=2, env=env
            )
        with models, server:
            played = subprocess.run(
                [python_of("duraton"), "-m", "tests.push.duraton_program", server.url],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        told = [json.loads(line) for line in played.stdout.splitlines()]
        found = {one["case"]: one["story"] for one in told}
        found["*"] = played.stderr[-4000:]
        return json.dumps(found)

    found: dict[str, str] = json.loads(once(tmp_path_factory, f"push-{store}", play))
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_program_of_the_published_runner_runs(verdicts: dict[str, str], case: str) -> None:
    assert case in verdicts, verdicts["*"]
    assert verdicts[case] == "", verdicts["*"]

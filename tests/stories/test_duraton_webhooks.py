"""The published push SDK configures, sends, receives and replays webhooks, on both stores."""

import subprocess
from pathlib import Path

import pytest

from tests.support.sdk import ROOT, python_of
from tests.support.server import STORES, ServerProcess

DEADLINE_SECONDS = 120
SETTINGS = {"PERDURE_WEBHOOK_KEYS": "k" * 32, "PERDURE_EGRESS_ALLOW": "127.0.0.0/8"}


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> ServerProcess:
    if request.param == "sqlite":
        return ServerProcess(tmp_path / "perdure.db", env=SETTINGS)
    url: str = request.getfixturevalue("postgres_url")
    return ServerProcess(url, log_path=tmp_path / "log", processes=2, env=SETTINGS)


def test_webhooks_work_with_the_published_sdk(server: ServerProcess) -> None:
    with server:
        program = (str(python_of("duraton")), "-m", "tests.stories.duraton_webhooks", server.url)
        played = subprocess.run(
            program, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )
    assert played.stdout.endswith("done\n"), played.stdout + played.stderr

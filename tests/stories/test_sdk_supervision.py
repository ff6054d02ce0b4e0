"""Activities that the SDK runs in processes of their own, so that it can end them at any time."""

from pathlib import Path

import pytest

from tests.sdk.catalogue import ALONE
from tests.support.sdk import drive
from tests.support.server import STORES, ServerProcess

# A process that begins too late costs a lease, and so does a worker that is killed.
SHORT_LEASE = {"DW_WORKFLOW_TASK_TIMEOUT": "6"}


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> ServerProcess:
    if request.param == "sqlite":
        return ServerProcess(tmp_path / "perdure.db", env=SHORT_LEASE)
    url: str = request.getfixturevalue("postgres_url")
    return ServerProcess(url, log_path=tmp_path / "log", processes=2, env=SHORT_LEASE)


@pytest.mark.parametrize("server", STORES, indirect=True)
def test_activities_end_with_the_code_that_waits_for_them(server: ServerProcess) -> None:
    names = [case.name for case in ALONE]

    with server:
        report = drive(
            "2.12.0",
            server.url,
            cases=",".join(names),
            at_once=1,
            case_timeout=130.0,
            deadline_seconds=420.0,
        )

    for name in names:
        verdict = report.of(name)
        assert verdict.ok, verdict.story

"""The owner of a worker session dies in the middle of its steps: another capable one goes on."""

import json
from itertools import takewhile
from pathlib import Path

import pytest

from tests.sdk.catalogue import RELEASES
from tests.support.sdk import SdkProcess
from tests.support.server import ServerProcess
from tests.support.watching import call, start, the_end

RELEASE = RELEASES[-1]
QUEUE = "workshop"
SHORT_LEASES = {"DW_WORKFLOW_TASK_TIMEOUT": "2", "DW_ACTIVITY_TASK_TIMEOUT": "2"}


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> ServerProcess:
    if request.param == "sqlite":
        return ServerProcess(tmp_path / "perdure.db", env=SHORT_LEASES)
    url: str = request.getfixturevalue("postgres_url")
    return ServerProcess(url, log_path=tmp_path / "log", processes=2, env=SHORT_LEASES)


def a_worker(server: ServerProcess, *options: str) -> SdkProcess:
    where = ("--server", server.url, "--queue", QUEUE)
    return SdkProcess(RELEASE, "tests.sdk.work", *where, *options)


def test_a_capable_worker_takes_over_from_a_dead_one_and_an_incapable_one_does_not(
    server: ServerProcess,
) -> None:
    terms = {"session_id": "bench", "requirements": ["gpu"], "lease_seconds": 3}
    with server:
        with a_worker(server, "--hold", "activity", "--capability", "gpu") as doomed:
            start(server, "made", "workshop", QUEUE, 3, terms)
            doomed.expect("holding activity")
            first = call(server, "GET", "/worker-sessions/bench")["session"]
            assert first["status"] == "active"
            doomed.kill()
        with a_worker(server) as incapable:
            # It does work, on this very queue, before anybody else is there.
            start(server, "other", "greeter", QUEUE, "you")
            said = list(takewhile(lambda line: line != "ended activity greet", incapable.lines()))
            with a_worker(server, "--capability", "gpu") as capable:
                capable.expect("ended activity bench")
                second = call(server, "GET", "/worker-sessions/bench")["session"]
                assert second["lease_owner"] != first["lease_owner"]
                assert second["ttl_expires_at"] == first["ttl_expires_at"]
                for _ in range(2):
                    capable.expect("ended activity bench")
                told = the_end(server, "made")
        said += incapable.lines()

    assert told["status"] == "completed", json.dumps(told)
    assert told["output"] == [second["lease_owner"]] * 3
    assert "began activity greet" in said
    assert not any("activity bench" in line for line in said), said

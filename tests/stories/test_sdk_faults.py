"""Servers and workers that die without a word, under programs of the published SDK releases."""

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.catalogue import RELEASES
from tests.support.sdk import SdkProcess
from tests.support.server import STORES, ServerProcess

QUEUE = "stormy"
CRASHES = 5

# Leases that end soon, so that the work of the dead is soon taken up by the living.
SHORT_LEASES = {
    "DW_WORKFLOW_TASK_TIMEOUT": "2",
    "DW_ACTIVITY_TASK_TIMEOUT": "2",
}


WHERE = [(store, release) for store in STORES for release in RELEASES]
"""Every release, on a file and on several processes."""
everywhere = pytest.mark.parametrize(
    ("server", "release"), WHERE, indirect=["server"], ids=["-".join(each) for each in WHERE]
)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> ServerProcess:
    if request.param == "sqlite":
        return ServerProcess(tmp_path / "perdure.db", env=SHORT_LEASES)
    url: str = request.getfixturevalue("postgres_url")
    return ServerProcess(url, log_path=tmp_path / "log", processes=2, env=SHORT_LEASES)


@everywhere
def test_no_run_is_lost_when_the_server_is_killed_again_and_again(
    release: str, server: ServerProcess
) -> None:
    moments = random.Random(f"storm over {release}")
    # What the older ones do differently shows on a file; on several processes a squall will do.
    is_brief = server.is_shared and release != RELEASES[-1]
    runs, wanted, most = (12, 3, 30) if is_brief else (30, CRASHES, 70)
    crashes = 0

    with server, a_worker(release, server) as worker, a_storm(release, server, runs=runs) as storm:
        storm.expect("under way")
        while crashes < wanted:
            milestones = islice(worker.lines(), moments.randint(15, most))
            assert list(milestones), "the worker is gone"
            if storm.ended:
                break
            server.restart()
            crashes += 1
        verdict = the_end_of(storm)

    assert verdict["ok"], verdict["error"]
    assert len(verdict["runs"]) == runs
    assert crashes == wanted, "the storm was over before its last crash"


@everywhere
def test_an_activity_whose_worker_was_killed_is_finished_by_another(
    release: str, server: ServerProcess
) -> None:
    with server, a_storm(release, server, runs=1) as storm:
        with a_worker(release, server, hold="activity") as doomed:
            doomed.expect("holding activity")
            doomed.kill()
        with a_worker(release, server):
            verdict = the_end_of(storm)

    assert verdict["ok"], verdict["error"]
    (kinds,) = verdict["runs"].values()
    assert kinds.count("ActivityStarted") == kinds.count("ActivityScheduled") + 1


@everywhere
def test_a_workflow_task_whose_worker_was_killed_is_finished_by_another(
    release: str, server: ServerProcess
) -> None:
    with server, a_storm(release, server, runs=1) as storm:
        with a_worker(release, server, hold="workflow") as doomed:
            doomed.expect("holding workflow")
            doomed.kill()
        with a_worker(release, server):
            verdict = the_end_of(storm)

    assert verdict["ok"], verdict["error"]


@everywhere
def test_a_standalone_activity_whose_worker_was_killed_is_finished_by_another(
    release: str, server: ServerProcess
) -> None:
    with server, a_job(release, server) as job:
        with a_worker(release, server, hold="activity") as doomed:
            doomed.expect("holding activity greet")
            doomed.kill()
        with a_worker(release, server):
            told = the_end_of(job)

    assert (told["result"], told["attempts"]) == ("hello, you", 2)
    assert told["kinds"].count("ActivityStarted") == 2
    assert told["kinds"][-1] == "WorkflowCompleted"


def a_worker(release: str, server: ServerProcess, *, hold: str = "nothing") -> SdkProcess:
    """A worker process; it may hold on to its first task of a kind for ever."""
    options = ("--server", server.url, "--queue", QUEUE, "--hold", hold)
    return SdkProcess(release, "tests.sdk.work", *options)


def a_job(release: str, server: ServerProcess) -> SdkProcess:
    """A process that starts a standalone activity and waits for its end."""
    return SdkProcess(release, "tests.sdk.job", "--server", server.url, "--queue", QUEUE)


def a_storm(release: str, server: ServerProcess, *, runs: int) -> SdkProcess:
    """A process that starts runs, waits for their ends and judges them."""
    options = ("--server", server.url, "--queue", QUEUE, "--runs", str(runs))
    return SdkProcess(release, "tests.sdk.storm", *options)


def the_end_of(storm: SdkProcess) -> dict[str, Any]:
    """The verdict that the storm prints when all its runs are over."""
    verdict: dict[str, Any] = json.loads(storm.expect("{"))
    return verdict

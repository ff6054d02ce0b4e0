"""Servers and workers that are killed while the SDK does local work for which it asked leave."""

from pathlib import Path

import pytest

from tests.sdk.catalogue import RELEASES
from tests.support.sdk import SdkProcess
from tests.support.server import STORES, ServerProcess
from tests.support.watching import history, start, the_end, until

RELEASE = RELEASES[-1]
QUEUE = "lighthouse"
SHORT_LEASE = {"DW_WORKFLOW_TASK_TIMEOUT": "6"}
ABLE = (
    "cooperative_cancellation",
    "prepared_local_activities",
    "prepared_local_activity_groups",
    "prepared_local_activity_cancellation_policies",
)


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> ServerProcess:
    if request.param == "sqlite":
        return ServerProcess(tmp_path / "perdure.db", env=SHORT_LEASE)
    url: str = request.getfixturevalue("postgres_url")
    return ServerProcess(url, log_path=tmp_path / "log", processes=2, env=SHORT_LEASE)


def a_worker(server: ServerProcess) -> SdkProcess:
    options = ["--server", server.url, "--queue", QUEUE]
    for capability in ABLE:
        options += ["--capability", capability]
    return SdkProcess(RELEASE, "tests.sdk.work", *options)


def kinds(server: ServerProcess) -> list[str]:
    return [event["event_type"] for event in history(server, "watch")]


def await_watch(server: ServerProcess, *, lit: int) -> None:
    """Wait until somebody watches, after so many lights were seen."""

    def is_watching(_: object) -> bool:
        told = kinds(server)
        return told.count("ActivityCompleted") == lit and told[-1] == "ActivityHeartbeatRecorded"

    until(server, "watch", is_watching)


def test_local_work_goes_on_when_its_server_is_killed_and_when_both_are(
    server: ServerProcess, tmp_path: Path
) -> None:
    lights = [tmp_path / name for name in ("first", "second")]
    with server:
        with a_worker(server) as doomed:
            start(server, "watch", "prepared-watch", QUEUE, [str(light) for light in lights])
            await_watch(server, lit=0)
            server.restart()
            # The worker has lived on, with the work in its hands.
            lights[0].touch()
            await_watch(server, lit=1)
            server.kill()
            doomed.kill()
        server.start()
        lost = history(server, "watch")[-1]["payload"]
        with a_worker(server):
            lights[1].touch()
            told = the_end(server, "watch")

        assert (told["status"], told["output"]) == ("completed", ["first", "second"]), told
        events = history(server, "watch")
    ended = [e["payload"] for e in events if e["event_type"] == "ActivityCompleted"]
    assert len(ended) == len(lights)
    (recovered,) = [
        e["payload"]
        for e in events
        if e["event_type"] == "ActivityRetryScheduled"
        and e["payload"]["activity_attempt_id"] == lost["activity_attempt_id"]
    ]
    assert recovered["retry_reason"] == "cold_replay"

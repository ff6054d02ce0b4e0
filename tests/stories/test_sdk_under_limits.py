"""Programs of the published SDK where only a few tasks may be leased at once: slower, not other."""

from pathlib import Path

import pytest

from tests.sdk.catalogue import RELEASES
from tests.support.sdk import drive
from tests.support.server import STORES, ServerProcess

FEW = {
    "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_NAMESPACE": "2",
    "DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_QUEUE": "1",
}
CASES = ("quickstart", "parallel-out-of-order", "parallel-mixed", "retry-succeeds", "child-result")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[-1]])
def test_programs_run_to_their_end_however_little_may_be_leased(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, release: str
) -> None:
    if store == "sqlite":
        server = ServerProcess(tmp_path / "perdure.db", env=FEW)
    else:
        url: str = request.getfixturevalue("postgres_url")
        server = ServerProcess(url, log_path=tmp_path / "log", processes=2, env=FEW)
    with server:
        report = drive(release, server.url, cases=",".join(CASES))
    for case in CASES:
        assert report.of(case).ok, report.of(case).story

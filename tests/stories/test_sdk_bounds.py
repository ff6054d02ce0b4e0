"""What programs of the published SDK notice of a server with small bounds."""

from pathlib import Path

import pytest

from tests.sdk.catalogue import BOUNDED, RELEASES
from tests.support.sdk import drive
from tests.support.server import ServerProcess

SMALL = {"DW_V2_LIMIT_PAYLOAD_SIZE_BYTES": "1024", "PERDURE_EXTERNAL_PAYLOADS": "off"}


@pytest.mark.parametrize("release", RELEASES)
def test_a_bound_that_is_passed_reaches_the_code(release: str, tmp_path: Path) -> None:
    names = [case.name for case in BOUNDED]

    with ServerProcess(tmp_path / "perdure.db", env=SMALL) as server:
        report = drive(release, server.url, cases=",".join(names))

    for name in names:
        verdict = report.of(name)
        assert verdict.ok, verdict.story

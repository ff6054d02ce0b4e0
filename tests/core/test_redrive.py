"""Which failed runs can be continued at all."""

import pytest

from perdure.core.rejection import RedriveUnavailable, RunNotFailed
from perdure.core.run.redrive import require_failed
from perdure.core.run.state import Dialect, Run
from perdure.core.run.status import RunStatus


def a_run(status: RunStatus, dialect: Dialect = Dialect.PULL) -> Run:
    return Run(
        run_id="r1",
        namespace="default",
        workflow_id="order",
        workflow_type="Order",
        queue="q",
        run_number=1,
        started_at=0,
        status=status,
        dialect=dialect,
    )


def test_a_failed_run_can_be_continued() -> None:
    require_failed(a_run(RunStatus.FAILED))


@pytest.mark.parametrize("status", [s for s in RunStatus if s is not RunStatus.FAILED])
def test_no_other_run_can(status: RunStatus) -> None:
    with pytest.raises(RunNotFailed):
        require_failed(a_run(status))


def test_a_push_run_is_replayed_in_its_own_dialect() -> None:
    with pytest.raises(RedriveUnavailable):
        require_failed(a_run(RunStatus.FAILED, Dialect.PUSH))

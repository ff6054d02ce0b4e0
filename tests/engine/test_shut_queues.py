"""A look that found no room, and a lease that ends in the very beat of that look."""

from pathlib import Path
from typing import Any

import pytest

from perdure.core.fleet.quota import Allowance, Allowances
from perdure.core.fleet.session import SessionTerms
from perdure.dispatch.delivery import ActivityDelivery
from perdure.dispatch.polls import Poll
from perdure.engine.claims import ClaimTasks
from perdure.engine.operation import Operation
from perdure.engine.sessions import ClaimSessionTasks
from tests.engine.engine_harness import (
    NAMESPACE,
    PATIENCE,
    QUEUE,
    Stage,
    an_activity,
    completion,
    play,
    result,
)
from tests.support.clock import SECOND

ONE_AT_ONCE = Allowances({"activity": Allowance(leases_per_queue=1)})


async def take(stage: Stage) -> ActivityDelivery:
    """An activity, of a session or not, for a worker that asks for nothing else."""
    poll = Poll(
        namespace=NAMESPACE,
        worker_id="w2",
        queue=QUEUE,
        kind="activity",
        timeout=round(PATIENCE * SECOND),
        page_size=500,
        sessions=True,
    )
    delivery = (await stage.server.polling.poll(poll, lambda gone: None)).delivery
    assert isinstance(delivery, ActivityDelivery)
    return delivery


@pytest.mark.parametrize("report_comes", ["before", "after"])
@pytest.mark.parametrize("look", [ClaimTasks, ClaimSessionTasks])
def test_whoever_looked_hears_of_a_report_in_the_same_beat(
    tmp_path: Path, look: type[Operation], report_comes: str
) -> None:
    """The disk still shows the lease when the look is prepared, and nobody tells later."""

    async def offer(stage: Stage, workflow_id: str) -> None:
        session = SessionTerms(session_id=workflow_id) if look is ClaimSessionTasks else None
        await stage.start(workflow_id)
        await stage.play(completion(await stage.take(), an_activity(session=session)))

    async def story(stage: Stage) -> None:
        await stage.register("w1")
        await stage.register("w2")
        await offer(stage, "a")
        first = await take(stage)
        await offer(stage, "b")
        submit, looks = stage.engine.submit, 0

        def submit_both(operation: Operation) -> Any:
            nonlocal looks
            if not isinstance(operation, look):
                return submit(operation)
            looks += 1
            if looks > 1:
                return submit(operation)
            if report_comes == "before":
                submit(result(first))
                return submit(operation)
            reply = submit(operation)
            submit(result(first))
            return reply

        stage.engine.submit = submit_both  # type: ignore[method-assign]
        second = await take(stage)
        assert second.run_id != first.run_id
        assert looks == 2, "the first found no room"

    play(tmp_path / "perdure.db", story, allowances=ONE_AT_ONCE)

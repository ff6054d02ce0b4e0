"""Polls that are ended early, because their worker is needed for another kind."""

import asyncio
from pathlib import Path

import pytest

from perdure.dispatch.delivery import WorkflowDelivery
from perdure.store.interface import QueueKey
from tests.engine.engine_harness import NAMESPACE, QUEUE, Stage, play

WORKFLOWS = QueueKey(NAMESPACE, QUEUE, "workflow")
ACTIVITIES = QueueKey(NAMESPACE, QUEUE, "activity")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_poll_without_time_is_not_ended_for_another_kind(tmp_path: Path, is_there: bool) -> None:
    """It has its answer when the queue was looked at: a task, or that there is none."""

    async def story(stage: Stage) -> None:
        await stage.register()
        assert await stage.poll("activity", seconds=0) is None
        if is_there:
            await stage.start()
        else:
            stage.server.parked_polls.suspect(WORKFLOWS, {"shop"})

        poll = asyncio.ensure_future(stage.poll(seconds=0))
        await stage.until(lambda: stage.server.parked_polls.count == 1)
        stage.server.parked_polls.offered(ACTIVITIES, "pay")

        assert isinstance(await poll, WorkflowDelivery) is is_there
        assert stage.server.turns.ended_count == 0

    play(tmp_path / "perdure.db", story)


def test_a_poll_is_ended_for_another_kind(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.register()
        assert await stage.poll("activity", seconds=0) is None
        poll = await stage.park()
        stage.server.parked_polls.offered(ACTIVITIES, "pay")
        assert await poll is None
        assert stage.server.turns.ended_count == 1

    play(tmp_path / "perdure.db", story)

"""The event that we raise ourselves: a run has finished."""

from typing import Any

import msgspec
from msgspec import Raw

from perdure.core.intake.trigger import RUN_FINISHED
from perdure.core.push.effect import Ended
from perdure.core.push.step import NULL, push_of
from perdure.core.run.status import RunStatus
from perdure.engine.events import Incoming, Ingested, IngestEvent
from perdure.engine.registration import open_book
from perdure.engine.waiters import Page
from perdure.engine.world import World
from perdure.store.interface import Store

_STATUSES = {
    RunStatus.COMPLETED: "succeeded",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
    RunStatus.TERMINATED: "cancelled",
}


class RaiseFinished(IngestEvent):
    """A run has finished: start what is triggered by that. Where nothing is, nothing happens."""

    __slots__ = ()
    name = "raise_finished"

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        book = await open_book(store, world, self._incoming.namespace)
        self._matched = book.triggers.find(self._condition, None).workflows
        self._page = Page()
        return await super().prepare(store, world) if self._matched else ()

    def decide(self, world: World) -> Ingested:
        return super().decide(world) if self._matched else Ingested(event_id=None)


def raise_finished(ended: Ended) -> RaiseFinished | None:
    """The event of an end; none for runs that such an event started, or there would be no end."""
    run = ended.run
    if push_of(run).event_name == RUN_FINISHED:
        return None
    told: dict[str, Any] = {
        "runId": run.run_id,
        "workflow": run.workflow_type,
        "app": run.queue,
        "status": _STATUSES[run.status],
    }
    if run.status is RunStatus.COMPLETED:
        told["result"] = Raw(ended.result or NULL)
    if run.status is RunStatus.FAILED and run.failure is not None:
        error = run.failure.exception
        told["error"] = Raw(error) if error else {"message": run.failure.message}
    return RaiseFinished(
        Incoming(
            namespace=run.namespace,
            name=RUN_FINISHED,
            data=msgspec.json.encode(told),
            app=run.queue,
            source="emit",
        )
    )

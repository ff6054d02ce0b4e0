"""Webhooks that runs cause: those that steps send, and messages about ends and failures."""

from typing import Any

import msgspec
from msgspec import Raw

from perdure.core import instant
from perdure.core.push.effect import Broken, Ended, Posted
from perdure.core.push.step import NULL
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.engine.operation import Operation
from perdure.engine.world import World
from perdure.features.webhooks.delivery_operations import open_delivery
from perdure.features.webhooks.operations import Announce
from perdure.features.webhooks.rules import Kind, opened

_KINDS: dict[RunStatus, Kind] = {
    RunStatus.COMPLETED: "run.succeeded",
    RunStatus.FAILED: "run.failed",
    RunStatus.CANCELLED: "run.cancelled",
    RunStatus.TERMINATED: "run.cancelled",
}


class PostWebhook(Operation):
    """Opens the delivery of a webhook that a step sends, with its body unchanged."""

    __slots__ = ("_posted",)
    name = "post_webhook"

    def __init__(self, posted: Posted) -> None:
        self._posted = posted

    def decide(self, world: World) -> None:
        run, command = self._posted.run, self._posted.command
        delivery = opened(
            world.ctx.ids.ulid(),
            app=run.queue,
            url=command.url,
            kind="custom",
            body=command.data or NULL,
            now=world.ctx.now,
            run_id=run.run_id,
        )
        open_delivery(world, run.namespace, delivery)


def announce_end(ended: Ended) -> Announce:
    """Announce that a run has closed."""
    run = ended.run
    data = _identity(run)
    if run.closed_at is not None:
        data["endedAt"] = instant.text(run.closed_at)
        data["durationMs"] = (run.closed_at - run.started_at) // 1000
    if run.status is RunStatus.COMPLETED:
        data["result"] = Raw(ended.result or NULL)
    if run.status is RunStatus.FAILED and run.failure is not None:
        error = run.failure.exception
        data["error"] = Raw(error) if error else {"message": run.failure.message}
    return _announce(run, _KINDS[run.status], data)


def announce_failure(broken: Broken) -> Announce:
    """Announce that a step has finally failed."""
    step = broken.step
    data = {
        "runId": broken.run.run_id,
        **{k: v for k, v in _identity(broken.run).items() if k in ("workflowName", "app")},
        "name": step.name,
        "index": step.sequence - 1,
        "attempt": step.attempt,
        "status": "failed",
        "error": Raw(broken.error.encoded),
    }
    return _announce(broken.run, "step.failed", data)


def _identity(run: Run) -> dict[str, Any]:
    status = "cancelled" if run.status is RunStatus.TERMINATED else run.status.value
    return {
        "id": run.run_id,
        "workflowName": run.workflow_type,
        "app": run.queue,
        "status": "succeeded" if run.status is RunStatus.COMPLETED else status,
        "startedAt": instant.text(run.started_at),
    }


def _announce(run: Run, kind: Kind, data: dict[str, Any]) -> Announce:
    return Announce(
        run.namespace, kind, app=run.queue, run_id=run.run_id, data=msgspec.json.encode(data)
    )

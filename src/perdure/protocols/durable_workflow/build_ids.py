"""Build ids of a queue for operators: list, drain, resume, promote."""

from typing import Any

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.fleet.rollout import EMPTY_ROLLOUT, BuildWorkers, Intent, build_workers
from perdure.core.fleet.worker import Cadence, Cohort
from perdure.core.rejection import InvalidRequest
from perdure.engine.beat import Engine
from perdure.engine.rollout_changes import (
    ROLLOUT,
    ChangeRollout,
    DrainBuild,
    PromoteBuild,
    ResumeBuild,
)
from perdure.protocols.durable_workflow.bodies import Body, OptionalName, decode
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.web.message import Request, Response


class BuildIdBody(Body):
    build_id: OptionalName
    """Required, so that null (workers without a build) cannot be sent by omission."""


class BuildIds:
    """The handlers of `/api/task-queues/{task_queue}/build-ids`."""

    def __init__(
        self, engine: Engine, clock: Clock, surface: ControlSurface, cadence: Cadence
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._cadence = cadence
        self.surface = surface

    async def list_build_ids(self, request: Request) -> Response:
        namespace, queue = request.namespace, require_queue(request)
        await self._engine.refresh_workers()
        rollout = await ROLLOUT.read(self._engine.store, namespace, queue)
        workers = [
            worker
            for worker in self._engine.workers.values()
            if (worker.namespace, worker.queue) == (namespace, queue)
            and worker.deregistered_at is None
        ]
        found = build_workers(rollout or EMPTY_ROLLOUT, workers, self._clock.now())
        most = limits.BUILD_IDS_LISTED_MAX
        answer = {
            "namespace": namespace,
            "task_queue": queue,
            "stale_after_seconds": self._cadence.stale_after // limits.SECOND,
            "build_ids": [_standing_view(standing) for standing in found[:most]],
            "build_id_count": len(found),
            "is_truncated": len(found) > most,
        }
        return self.surface.answer(request, 200, answer)

    async def drain(self, request: Request) -> Response:
        return await self._change(request, DrainBuild)

    async def resume(self, request: Request) -> Response:
        return await self._change(request, ResumeBuild)

    async def promote(self, request: Request) -> Response:
        return await self._change(request, PromoteBuild)

    async def _change(self, request: Request, kind: type[ChangeRollout]) -> Response:
        body = decode(request.body, BuildIdBody)
        cohort = Cohort(request.namespace, require_queue(request), body.build_id or None)
        intent: Intent = await self._engine.submit_knowing_workers(kind(cohort))
        answer = {
            "namespace": cohort.namespace,
            "task_queue": cohort.queue,
            "build_id": cohort.build_id,
            **_intent_view(intent),
        }
        return self.surface.answer(request, 200, answer)


def require_queue(request: Request) -> str:
    """The queue named in the path. It need not exist."""
    queue = request.params["task_queue"]
    if len(queue) > limits.NAME_LENGTH_MAX:
        raise InvalidRequest("task_queue", f"at most {limits.NAME_LENGTH_MAX} characters")
    return queue


def _intent_view(intent: Intent) -> dict[str, Any]:
    return {
        "drain_intent": intent.drain_intent,
        "drained_at": instant.text_or_none(intent.drained_at),
        "promoted_at": instant.text_or_none(intent.promoted_at),
        # There is no roll-back; operators promote another build instead.
        "rolled_back_at": None,
        "new_start_selected": intent.is_selected,
    }


def _standing_view(standing: BuildWorkers) -> dict[str, Any]:
    intent, fingerprints = standing.intent, standing.fingerprints
    return {
        "build_id": intent.build_id,
        "rollout_status": standing.status,
        **_intent_view(intent),
        "active_worker_count": 0 if intent.is_draining else standing.live,
        "draining_worker_count": standing.live if intent.is_draining else 0,
        "stale_worker_count": standing.stale,
        "total_worker_count": standing.live + standing.stale,
        "runtimes": sorted(standing.runtimes),
        "sdk_versions": sorted(standing.sdk_versions),
        "workflow_definition_fingerprint_count": sum(map(len, fingerprints.values())),
        "workflow_definition_fingerprint_conflicts": [
            {"workflow_type": workflow_type, "fingerprint_count": len(found)}
            for workflow_type, found in sorted(fingerprints.items())
            if len(found) > 1
        ],
        "last_heartbeat_at": instant.text_or_none(standing.last_heartbeat_at),
        "first_seen_at": instant.text_or_none(standing.first_seen_at),
    }

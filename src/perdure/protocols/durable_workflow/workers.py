"""Workers for operators: list, describe, remove."""

from typing import Any

import msgspec

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.fleet.worker import Cadence, Worker, WorkerStatus
from perdure.core.rejection import InvalidRequest, WorkerNotFound
from perdure.engine.beat import Engine
from perdure.engine.fleet import DeregisterWorker
from perdure.protocols.durable_workflow.bodies import TaskSlots
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.web.message import Request, Response


class Workers:
    """The handlers of `/api/workers`."""

    def __init__(
        self, engine: Engine, clock: Clock, surface: ControlSurface, cadence: Cadence
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._cadence = cadence
        self.surface = surface

    async def list_workers(self, request: Request) -> Response:
        """Workers ordered by id. Stale ones are listed only on request."""
        queue, requested = request.query.get("task_queue"), _status(request.query)
        # Some may have registered at other nodes.
        await self._engine.refresh_workers()
        await self._engine.refresh_rollouts()
        now, draining = self._clock.now(), self._engine.rollouts.draining
        found = [
            (worker, status)
            for worker in self._engine.workers.values()
            if worker.namespace == request.namespace
            and worker.deregistered_at is None
            and (not queue or worker.queue == queue)
            and _matches(status := worker.status(now, draining), requested)
        ]
        found.sort(key=lambda each: each[0].worker_id)
        most = limits.WORKERS_LISTED_MAX
        answer = {
            "namespace": request.namespace,
            "workers": [worker_view(worker, status) for worker, status in found[:most]],
            "worker_count": len(found),
            "is_truncated": len(found) > most,
            "stale_after_seconds": self._cadence.stale_after // limits.SECOND,
        }
        return self.surface.answer(request, 200, answer)

    async def describe(self, request: Request) -> Response:
        worker_id = request.params["worker_id"]
        worker = await self._engine.refresh_worker((request.namespace, worker_id))
        if worker is None or worker.deregistered_at is not None:
            raise WorkerNotFound(
                f"worker {worker_id[:255]} is not registered", worker_id=worker_id[:255]
            )
        await self._engine.refresh_rollouts()
        status = worker.status(self._clock.now(), self._engine.rollouts.draining)
        answer = {
            **worker_view(worker, status),
            "updated_at": instant.text(worker.heartbeat_at),
            "stale_after_seconds": worker.stale_after // limits.SECOND,
        }
        return self.surface.answer(request, 200, answer)

    async def remove(self, request: Request) -> Response:
        """Deregister a worker: its leases end at once."""
        worker: Worker = await self._engine.submit(
            DeregisterWorker(request.namespace, request.params["worker_id"], None)
        )
        answer = {
            "worker_id": worker.worker_id,
            "outcome": "deregistered",
            "recovered_workflow_task_count": worker.recovered_workflow_tasks,
        }
        return self.surface.answer(request, 200, answer)


def worker_view(worker: Worker, status: WorkerStatus) -> dict[str, Any]:
    """One worker in a list."""
    return {
        "worker_id": worker.worker_id,
        "namespace": worker.namespace,
        "task_queue": worker.queue,
        "runtime": worker.runtime,
        "sdk_version": worker.sdk_version,
        "build_id": worker.build_id,
        "status": status,
        "supported_workflow_types": worker.workflow_types,
        "supported_activity_types": worker.activity_types,
        "workflow_definition_fingerprints": worker.fingerprints,
        "workflow_command_contracts": worker.contracts,
        "capabilities": worker.capabilities,
        "max_concurrent_workflow_tasks": worker.workflow_slots,
        "max_concurrent_activity_tasks": worker.activity_slots,
        "max_concurrent_worker_sessions": worker.session_slots,
        "task_slots": slots_view(worker),
        "process_metrics": worker.process_metrics,
        "heartbeat_interval_seconds": worker.heartbeat_interval_seconds,
        "last_heartbeat_at": instant.text(worker.heartbeat_at),
        "registered_at": instant.text(worker.registered_at),
    }


def slots_view(worker: Worker) -> dict[str, int | None]:
    """Free slots as reported by the worker, at most its total slots."""
    slots = msgspec.convert(worker.task_slots, TaskSlots, strict=False)
    view: dict[str, int | None] = {}
    for kind, available, capacity in (
        ("workflow", slots.workflow_available, worker.workflow_slots),
        ("activity", slots.activity_available, worker.activity_slots),
        ("session", slots.session_available, worker.session_slots),
    ):
        view[f"{kind}_available"] = None if available is None else min(available, capacity)
        view[f"{kind}_capacity"] = capacity
    return view


def _status(query: dict[str, str]) -> WorkerStatus | None:
    slots = query.get("status")
    if not slots:
        return None
    try:
        return WorkerStatus(slots)
    except ValueError:
        raise InvalidRequest("status", f"must be one of {', '.join(WorkerStatus)}") from None


def _matches(status: WorkerStatus, requested: WorkerStatus | None) -> bool:
    return status is not WorkerStatus.STALE if requested is None else status is requested

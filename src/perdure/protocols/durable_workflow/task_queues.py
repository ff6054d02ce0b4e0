"""Task queues for operators: backlog, workers and leases.

Counts are read one after the other, not in one transaction. They stop at a bound and say so.
"""

from collections.abc import Sequence
from typing import Any

from perdure.clock import Clock
from perdure.core import instant, limits
from perdure.core.fleet.queue import KINDS, Load, QueueState, with_workers
from perdure.core.fleet.quota import Ledger
from perdure.core.fleet.worker import Cadence, Worker, WorkerStatus
from perdure.core.run.operation import Activity
from perdure.core.run.state import (
    VALIDATION,
    WORKFLOW_TASK,
    Run,
    activity_task_id,
    validation_task_id,
    workflow_task_id,
)
from perdure.dispatch.query_broker import QueryBroker
from perdure.dispatch.query_messages import QueueName
from perdure.engine.beat import Engine
from perdure.engine.leasing import Leasing
from perdure.engine.quotas import LEDGER
from perdure.protocols.durable_workflow.admission import admission
from perdure.protocols.durable_workflow.build_ids import require_queue
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.protocols.durable_workflow.workers import slots_view
from perdure.store.interface import QueueKey
from perdure.web.message import Request, Response

_Workers = dict[str, list[Worker]]
"""Registered workers by queue, ordered by id."""


class TaskQueues:
    """The handlers of `/api/task-queues`."""

    def __init__(
        self,
        engine: Engine,
        query_broker: QueryBroker,
        leasing: Leasing,
        clock: Clock,
        surface: ControlSurface,
        cadence: Cadence,
    ) -> None:
        self._engine = engine
        self._query_broker = query_broker
        self._leasing = leasing
        self._clock = clock
        self._cadence = cadence
        self.surface = surface

    async def list_queues(self, request: Request) -> Response:
        """Queues with workers, ready tasks, or drained or promoted builds."""
        namespace, most = request.namespace, limits.TASK_QUEUES_LISTED_MAX
        workers = await self._workers_by_queue(namespace)
        names = set(workers)
        names.update(await self._engine.store.read_queues(namespace, KINDS, most + 1))
        names.update(queue for where, queue in self._engine.rollouts.queues if where == namespace)
        shown = sorted(names)[:most]
        states = await self._states(namespace, shown, workers, limits.READY_COUNTED_LISTED_MAX)
        answer = {
            "namespace": namespace,
            "task_queues": [
                {"name": name, "namespace": namespace, **await self._view(namespace, states[name])}
                for name in shown
            ],
            "is_truncated": len(names) > most,
            "count_limit": limits.READY_COUNTED_LISTED_MAX,
        }
        return self.surface.answer(request, 200, answer)

    async def describe(self, request: Request) -> Response:
        """One queue in full. An unknown queue is shown as empty."""
        namespace, name = request.namespace, require_queue(request)
        workers = await self._workers_by_queue(namespace)
        registered = workers.get(name, [])
        states = await self._states(namespace, [name], workers, limits.READY_COUNTED_MAX)
        now = self._clock.now()
        owners = [worker.worker_id for worker in registered]
        held = await self._engine.store.read_leases(namespace, owners, limits.LEASES_LISTED_MAX)
        leases = [_lease_view(run, place, now) for run, place in held]
        view = await self._view(namespace, states[name])
        for kind in ("workflow", "activity"):
            shown = [lease for lease in leases if lease["task_type"] == kind]
            if len(shown) < limits.LEASES_LISTED_MAX:
                # The list is complete, so expired leases can be counted; no index has that count.
                expired = sum(lease["is_expired"] for lease in shown)
                view["stats"][f"{kind}_tasks"]["expired_lease_count"] = expired
        answer = {
            "name": name,
            "namespace": namespace,
            **view,
            "pollers": [
                _poller_view(worker, worker.status(now, self._engine.rollouts.draining))
                for worker in registered[: limits.WORKERS_LISTED_MAX]
            ],
            "current_leases": leases,
            "count_limit": limits.READY_COUNTED_MAX,
        }
        return self.surface.answer(request, 200, answer)

    async def _workers_by_queue(self, namespace: str) -> _Workers:
        await self._engine.refresh_workers()
        await self._engine.refresh_rollouts()
        workers: _Workers = {}
        for worker in self._engine.workers.values():
            if worker.namespace == namespace and worker.deregistered_at is None:
                workers.setdefault(worker.queue, []).append(worker)
        for registered in workers.values():
            registered.sort(key=lambda worker: worker.worker_id)
        return workers

    async def _states(
        self, namespace: str, names: Sequence[str], workers: _Workers, limit: int
    ) -> dict[str, QueueState]:
        store, now = self._engine.store, self._clock.now()
        draining = self._engine.rollouts.draining
        states = {name: with_workers(name, workers.get(name, ()), draining, now) for name in names}
        for waiting in await store.read_backlog(namespace, names, KINDS, limit):
            state = states[waiting.queue]
            state.add_ready(waiting.kind, waiting.number, waiting.oldest_at)
            state.is_capped |= waiting.number >= limit
        # A worker is registered for one queue, so its leases are on that queue.
        queue_of = {worker.worker_id: name for name in names for worker in workers.get(name, ())}
        if queue_of:
            await self._add_leased(namespace, states, queue_of)
        return states

    async def _add_leased(
        self, namespace: str, states: dict[str, QueueState], queue_of: dict[str, str]
    ) -> None:
        most = limits.LEASES_COUNTED_MAX
        found = await self._engine.store.count_leases(namespace, queue_of, most)
        for lease in found:
            kind = "activity" if lease.is_activity else "workflow"
            states[queue_of[lease.owner]].of(kind).leased += lease.number
        for is_activity in (False, True):
            if sum(each.number for each in found if each.is_activity is is_activity) >= most:
                for state in states.values():
                    state.is_capped = True

    async def _view(self, namespace: str, state: QueueState) -> dict[str, Any]:
        oldest_at = state.oldest_ready_at
        age = None
        if oldest_at is not None:
            age = max(self._clock.now() - oldest_at, 0) // limits.SECOND
        return {
            "stats": {
                "approximate_backlog_count": state.backlog,
                "approximate_backlog_age": None if age is None else f"{age}s",
                "approximate_backlog_age_seconds": age,
                "is_capped": state.is_capped,
                "workflow_tasks": _counts(state.workflow),
                "activity_tasks": _counts(state.activity),
                "pollers": {
                    "active_count": state.workflow.active_workers,
                    "draining_count": state.draining_workers,
                    "stale_count": state.stale_workers,
                    "stale_after_seconds": self._cadence.stale_after // limits.SECOND,
                },
            },
            "admission": {
                "workflow_tasks": await self._admission(namespace, state, "workflow"),
                "activity_tasks": await self._admission(namespace, state, "activity"),
                "query_tasks": self._queries(QueueName(namespace, state.name)),
            },
        }

    async def _admission(self, namespace: str, state: QueueState, kind: str) -> dict[str, Any]:
        key, store = QueueKey(namespace, state.name, kind), self._engine.store
        used = [
            (quota, await LEDGER.read(store, namespace, quota.key) or Ledger())
            for quota in self._leasing.quotas(key)
        ]
        is_throttled, now = key in self._engine.shut, self._clock.now()
        return admission(kind, state.of(kind), used, is_throttled=is_throttled, now=now)

    def _queries(self, key: QueueName) -> dict[str, Any]:
        """Counts of queries. Only those of this node: queries stay at their home node."""
        pending, most = self._query_broker.pending_count(key), self._query_broker.pending_max
        return {
            "status": "accepting" if pending < most else "full",
            "budget_source": "server.query_tasks.max_pending_per_queue",
            "max_pending_per_queue": most,
            "approximate_pending_count": pending,
            "remaining_pending_capacity": max(most - pending, 0),
        }


def _counts(load: Load) -> dict[str, int]:
    return {"ready_count": load.ready, "leased_count": load.leased}


def _poller_view(worker: Worker, status: WorkerStatus) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "runtime": worker.runtime,
        "sdk_version": worker.sdk_version,
        "build_id": worker.build_id,
        "last_heartbeat_at": instant.text(worker.heartbeat_at),
        "heartbeat_expires_at": instant.text(worker.heartbeat_at + worker.stale_after),
        "status": status,
        "is_stale": status is WorkerStatus.STALE,
        "supported_workflow_types": worker.workflow_types,
        "supported_activity_types": worker.activity_types,
        "max_concurrent_workflow_tasks": worker.workflow_slots,
        "max_concurrent_activity_tasks": worker.activity_slots,
        "task_slots": slots_view(worker),
        "process_metrics": worker.process_metrics,
    }


def _lease_view(run: Run, place: int, now: int) -> dict[str, Any]:
    if place == WORKFLOW_TASK:
        task = run.task
        assert task is not None
        lease = task.lease
        judged = task.kind is VALIDATION
        members = {
            "task_id": (validation_task_id if judged else workflow_task_id)(run, task),
            "task_type": "workflow",
            "workflow_task_attempt": task.attempt,
        }
    else:
        activity = run.operations[place]
        assert isinstance(activity, Activity)
        lease = activity.lease
        members = {
            "task_id": activity_task_id(run, activity),
            "task_type": "activity",
            "activity_attempt_id": activity.attempt_id,
            "attempt_number": activity.attempt,
        }
    assert lease is not None
    return {
        **members,
        "workflow_id": run.workflow_id,
        "run_id": run.run_id,
        "lease_owner": lease.owner,
        "lease_expires_at": instant.text(lease.expires_at),
        "is_expired": lease.expires_at <= now,
    }

"""Operations of worker processes: register, report, say goodbye."""

from typing import Any

from msgspec import Struct, structs

from perdure.core.fleet.worker import Worker, require_same_definitions
from perdure.core.limits import DEREGISTRATION_RECEIPT_SECONDS, SECOND, WORKER_FORGOTTEN_AFTER
from perdure.core.rejection import RegistrationReplaced, WorkerNotFound, WorkerUnknown
from perdure.core.run.activity import redeliver_activity
from perdure.core.run.operation import Activity
from perdure.core.run.settle import settle
from perdure.core.run.state import WORKFLOW_TASK
from perdure.core.run.task import release_task
from perdure.engine.operation import Operation
from perdure.engine.rollout_changes import ROLLOUT, learn_rollout
from perdure.engine.world import World
from perdure.store.interface import LeasedTask, RecordKey, Store


class LeaseRecovery(Operation):
    """Finds what a worker holds, and makes it ready again."""

    __slots__ = ("_held", "_namespace", "_worker_id")
    reads_before_load = True

    def __init__(self, namespace: str, worker_id: str) -> None:
        self._namespace = namespace
        self._worker_id = worker_id
        self._held: list[LeasedTask] = []

    def workers(self) -> tuple[tuple[str, str], ...]:
        return ((self._namespace, self._worker_id),)

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        self._held = await store.find_leases(self._namespace, self._worker_id)
        return tuple(task.run_id for task in self._held)

    def release_leases(self, world: World) -> int:
        """Returns how many workflow tasks were freed."""
        freed = 0
        for run_id, place in self._held:
            run = world.runs.get(run_id)
            if run is None:
                continue
            operation = run.operations.get(place)
            if place == WORKFLOW_TASK:
                lease = None if run.task is None else run.task.lease
                if lease is None or lease.owner != self._worker_id:
                    continue
                release_task(run, world.ctx)
                settle(run, world.ctx)
                freed += 1
            elif isinstance(operation, Activity) and operation.lease is not None:
                if operation.lease.owner != self._worker_id or operation.outcome is not None:
                    continue
                redeliver_activity(run, world.ctx, operation)
            world.changed(run)
        return freed


class RegisterWorker(LeaseRecovery):
    """A worker introduces itself. Another process under a known id frees what the first held."""

    __slots__ = ("_offered", "_tells_types", "_token")
    name = "register_worker"

    def __init__(self, offered: Worker, token: str, *, tells_types: bool = True) -> None:
        super().__init__(offered.namespace, offered.worker_id)
        self._offered = offered
        self._token = token
        self._tells_types = tells_types

    def records(self) -> tuple[RecordKey, ...]:
        return (ROLLOUT.key(self._namespace, self._offered.queue),)

    def decide(self, world: World) -> Worker:
        # This node may not have heard yet that the build drains, and its worker is about to poll.
        learn_rollout(world, self._namespace, self._offered.queue)
        now = world.ctx.now
        offered = structs.replace(
            self._offered, registered_at=now, heartbeat_at=now, registration_token=self._token
        )
        known = world.find_worker(offered.namespace, offered.worker_id)
        if known is None:
            world.require_room_for_worker()
        else:
            offered.fingerprints = require_same_definitions(
                known, offered, now, tells_types=self._tells_types
            )
            same = known.process_identity()
            if same is None or same != offered.process_identity():
                self.release_leases(world)
        world.put_worker(offered)
        return offered


class WorkerReport(Struct, frozen=True, kw_only=True):
    """What a worker tells of itself now and then."""

    task_slots: dict[str, Any] | None = None
    process_metrics: dict[str, Any] | None = None
    heartbeat_interval_seconds: int | None = None


class HeartbeatWorker(Operation):
    """The worker lives."""

    __slots__ = ("_namespace", "_report", "_worker_id")
    name = "heartbeat_worker"

    def __init__(self, namespace: str, worker_id: str, report: WorkerReport) -> None:
        self._namespace = namespace
        self._worker_id = worker_id
        self._report = report

    def workers(self) -> tuple[tuple[str, str], ...]:
        return ((self._namespace, self._worker_id),)

    def decide(self, world: World) -> Worker:
        known = world.find_worker(self._namespace, self._worker_id)
        if known is None or known.deregistered_at is not None:
            raise WorkerUnknown(
                f"worker {self._worker_id} is not registered", worker_id=self._worker_id
            )
        told = {k: v for k, v in structs.asdict(self._report).items() if v is not None}
        worker = structs.replace(known, heartbeat_at=world.ctx.now, **told)
        world.put_worker(worker)
        return worker


class DeregisterWorker(LeaseRecovery):
    """The worker says goodbye; its leases are free at once. Repeating it changes nothing."""

    __slots__ = ("_token",)
    name = "deregister_worker"

    def __init__(self, namespace: str, worker_id: str, token: str | None) -> None:
        super().__init__(namespace, worker_id)
        self._token = token

    def decide(self, world: World) -> Worker:
        now = world.ctx.now
        known = world.find_worker(self._namespace, self._worker_id)
        if known is None:
            raise WorkerNotFound(
                f"worker {self._worker_id} is not registered", worker_id=self._worker_id
            )
        if self._token is not None and self._token != known.registration_token:
            raise RegistrationReplaced(
                f"worker {self._worker_id} has registered again since", worker_id=self._worker_id
            )
        if known.deregistered_at is not None:
            return known
        worker = structs.replace(
            known, deregistered_at=now, recovered_workflow_tasks=self.release_leases(world)
        )
        world.put_worker(worker)
        return worker


class LoadWorker(Operation):
    """A registration that another node may have taken."""

    __slots__ = ("_key",)
    name = "look_up_worker"

    def __init__(self, key: tuple[str, str]) -> None:
        self._key = key

    def workers(self) -> tuple[tuple[str, str], ...]:
        return (self._key,)

    def decide(self, world: World) -> Worker | None:
        return world.find_worker(*self._key)


class RemoveWorkers(Operation):
    """Registrations that ended long ago."""

    __slots__ = ("_keys",)
    name = "forget_workers"

    def __init__(self, keys: list[tuple[str, str]]) -> None:
        self._keys = keys

    def workers(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._keys)

    def decide(self, world: World) -> None:
        for namespace, worker_id in self._keys:
            known = world.find_worker(namespace, worker_id)
            # One that is gone already was forgotten by another node.
            if known is None or is_forgettable(known, world.ctx.now):
                world.changes.workers[(namespace, worker_id)] = None


def is_forgettable(worker: Worker, now: int) -> bool:
    """Whether nobody will ask for this registration any more."""
    ended_at = worker.deregistered_at
    if ended_at is None:
        return now - worker.heartbeat_at > WORKER_FORGOTTEN_AFTER
    return now - ended_at > DEREGISTRATION_RECEIPT_SECONDS * SECOND

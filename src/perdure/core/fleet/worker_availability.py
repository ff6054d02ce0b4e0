"""Whether a registered worker can take a ready task, and if none can, what is missing."""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from perdure.core.fleet.contract import takeable
from perdure.core.fleet.worker import Cohort, Worker


class AwaitedTask(NamedTuple):
    """A ready task, and what a worker needs to take it."""

    kind: str
    namespace: str
    queue: str
    type_name: str
    name: str
    """Its routing name: the type, and whatever else it requires."""
    build_id: str | None


class WorkerAvailability(StrEnum):
    """The availability of workers for a task: that of the most suitable one."""

    NOBODY = "nobody"
    """No worker of the queue is registered for the type."""
    SILENT = "silent"
    """None of the registered ones has a recent heartbeat."""
    OTHER_BUILD = "other_build"
    """None of the live ones has the build that the task is pinned to."""
    UNABLE = "unable"
    """None of those has the capabilities that the task needs."""
    DRAINING = "draining"
    """All suitable workers drain."""
    THROTTLED = "throttled"
    """A worker could take the task, but a quota of the queue is used up."""
    PRESENT = "present"


def availability_of(
    workers: Iterable[Worker], task: AwaitedTask, draining: Collection[Cohort], now: int
) -> WorkerAvailability:
    """The availability of some workers for a task."""
    found = WorkerAvailability.NOBODY
    for worker in workers:
        if (worker.namespace, worker.queue) != (task.namespace, task.queue):
            continue
        if worker.deregistered_at is None:
            found = max(found, _fitness(worker, task, draining, now), key=_RANK.__getitem__)
    return found


_RANK = {availability: rank for rank, availability in enumerate(WorkerAvailability)}


def _fitness(
    worker: Worker, task: AwaitedTask, draining: Collection[Cohort], now: int
) -> WorkerAvailability:
    """The availability of one worker for a task."""
    types = worker.activity_types if task.kind == "activity" else worker.workflow_types
    if task.type_name not in types:
        return WorkerAvailability.NOBODY
    if worker.is_stale(now):
        return WorkerAvailability.SILENT
    if task.build_id is not None and worker.build_id != task.build_id:
        return WorkerAvailability.OTHER_BUILD
    if task.name not in takeable(worker, task.kind, progress=True, validations=True):
        return WorkerAvailability.UNABLE
    return WorkerAvailability.DRAINING if worker.cohort in draining else WorkerAvailability.PRESENT

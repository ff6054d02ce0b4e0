"""Whether somebody is there for a task that nobody has taken, and if not, what is missing."""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from perdure.core.fleet.contract import takeable
from perdure.core.fleet.worker import Cohort, Worker


class AwaitedTask(NamedTuple):
    """A ready task, and what a worker must know to have it."""

    kind: str
    namespace: str
    queue: str
    type_name: str
    name: str
    """What it is looked for under: the type, and whatever else it needs."""
    build_id: str | None


class WorkerAvailability(StrEnum):
    """Who is there for a task: the best that can be said."""

    NOBODY = "nobody"
    """No worker of the queue is registered for the type."""
    SILENT = "silent"
    """None of those that are was heard of lately."""
    OTHER_BUILD = "other_build"
    """None of these is of the build that the task is pinned to."""
    UNABLE = "unable"
    """None of these has the capabilities that the task needs."""
    DRAINING = "draining"
    """All of these drain."""
    THROTTLED = "throttled"
    """Somebody is there, and as much is leased from the queue as may be."""
    PRESENT = "present"


def staffing_of(
    workers: Iterable[Worker], task: AwaitedTask, draining: Collection[Cohort], now: int
) -> WorkerAvailability:
    """Who of some workers is there for a task."""
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
    """How near one worker is to taking the task."""
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

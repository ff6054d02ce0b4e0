"""State of a task queue: ready and leased tasks, workers and their free slots."""

from collections.abc import Collection, Iterable
from enum import StrEnum

from msgspec import Struct

from perdure.core.fleet.worker import Cohort, Worker, WorkerStatus

KINDS = {"workflow": "workflow", "activity": "activity", "session": "activity"}
"""The kinds of ready tasks that workers poll for, and what operators call them."""


class AdmissionStatus(StrEnum):
    """Whether a queue can lease more tasks, or what is missing; the first that applies."""

    THROTTLED = "throttled"
    NO_ACTIVE_WORKERS = "no_active_workers"
    NO_SLOTS = "no_slots"
    SATURATED = "saturated"
    ACCEPTING = "accepting"


class Load(Struct):
    """The tasks of one sort on a queue, and the slots that its active workers have for them."""

    ready: int = 0
    oldest_ready_at: int | None = None
    leased: int = 0
    active_workers: int = 0
    slots: int = 0

    @property
    def free_slots(self) -> int:
        return max(self.slots - self.leased, 0)

    @property
    def status(self) -> AdmissionStatus:
        if not self.active_workers:
            return AdmissionStatus.NO_ACTIVE_WORKERS
        if not self.slots:
            return AdmissionStatus.NO_SLOTS
        return AdmissionStatus.ACCEPTING if self.free_slots else AdmissionStatus.SATURATED


class QueueState(Struct, kw_only=True):
    """The counts of one queue."""

    name: str
    workflow: Load
    activity: Load
    draining_workers: int = 0
    stale_workers: int = 0
    is_capped: bool = False
    """Whether a count stopped at its limit, so that there may be more."""

    @property
    def backlog(self) -> int:
        return self.workflow.ready + self.activity.ready

    @property
    def oldest_ready_at(self) -> int | None:
        oldest = (self.workflow.oldest_ready_at, self.activity.oldest_ready_at)
        return min((at for at in oldest if at is not None), default=None)

    def add_ready(self, kind: str, number: int, oldest_at: int | None) -> None:
        """Add the ready tasks of one kind."""
        load = self.of(KINDS[kind])
        load.ready += number
        seen = load.oldest_ready_at
        if oldest_at is not None:
            load.oldest_ready_at = oldest_at if seen is None else min(seen, oldest_at)

    def of(self, kind: str) -> Load:
        return self.activity if kind == "activity" else self.workflow


def with_workers(
    name: str, workers: Iterable[Worker], draining: Collection[Cohort], now: int
) -> QueueState:
    """The state of a queue with its registered workers."""
    state = QueueState(name=name, workflow=Load(), activity=Load())
    for worker in workers:
        status = worker.status(now, draining)
        if status is WorkerStatus.STALE:
            state.stale_workers += 1
        elif status is WorkerStatus.DRAINING:
            state.draining_workers += 1
        else:
            state.workflow.active_workers += 1
            state.workflow.slots += worker.workflow_slots
            state.activity.active_workers += 1
            state.activity.slots += worker.activity_slots
    return state

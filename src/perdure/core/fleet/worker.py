"""Workers: their registrations, heartbeats and polls."""

from collections.abc import Collection
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct, field

from perdure.core import limits
from perdure.core.payload import Frame, frame_for_sdk
from perdure.core.rejection import (
    BuildIdMismatch,
    TaskQueueMismatch,
    WorkerDraining,
    WorkflowDefinitionChanged,
)


class Cadence(NamedTuple):
    """How often workers send heartbeats, and after which time without one they are stale."""

    heartbeat_interval_seconds: int = limits.WORKER_HEARTBEAT_INTERVAL_SECONDS
    stale_after: int = limits.WORKER_STALE_AFTER


class Cohort(NamedTuple):
    """The workers of one build on one queue; those without a build form one, too."""

    namespace: str
    queue: str
    build_id: str | None


class WorkerStatus(StrEnum):
    """Whether a worker takes tasks."""

    ACTIVE = "active"
    DRAINING = "draining"
    STALE = "stale"


class Worker(Struct):
    """One worker process, as it registered and as it last reported."""

    namespace: str
    worker_id: str
    queue: str
    runtime: str
    registered_at: int
    heartbeat_at: int
    registration_token: str
    sdk_version: str | None = None
    build_id: str | None = None
    workflow_types: list[str] = field(default_factory=list)
    activity_types: list[str] = field(default_factory=list)
    fingerprints: dict[str, str] = field(default_factory=dict)
    contracts: dict[str, Any] = field(default_factory=dict)
    capabilities: list[str] = field(default_factory=list)
    capability_manifest: dict[str, Any] = field(default_factory=dict)
    workflow_slots: int = 100
    activity_slots: int = 100
    session_slots: int = 10
    task_slots: dict[str, Any] = field(default_factory=dict)
    process_metrics: dict[str, Any] = field(default_factory=dict)
    heartbeat_interval_seconds: int | None = None
    # Set on deregistration; the record remains for a while as its receipt.
    deregistered_at: int | None = None
    recovered_workflow_tasks: int = 0
    # The server's setting at registration.
    stale_after: int = limits.WORKER_STALE_AFTER

    @property
    def frame(self) -> Frame:
        return frame_for_sdk(self.sdk_version)

    def is_active(self, now: int) -> bool:
        """Registered, with a recent heartbeat."""
        return self.deregistered_at is None and not self.is_stale(now)

    def is_stale(self, now: int) -> bool:
        return now - self.heartbeat_at > self.stale_after

    @property
    def cohort(self) -> Cohort:
        return Cohort(self.namespace, self.queue, self.build_id)

    def status(self, now: int, draining: Collection[Cohort]) -> WorkerStatus:
        """The status of a worker that is still registered."""
        if self.is_stale(now):
            return WorkerStatus.STALE
        return WorkerStatus.DRAINING if self.cohort in draining else WorkerStatus.ACTIVE

    def process_identity(self) -> tuple[Any, ...] | None:
        """Host, process id and start time, if the worker reported all three."""
        names = ("host", "process_id", "process_started_at")
        values = tuple(self.process_metrics.get(name) for name in names)
        return None if None in values else values


def require_same_definitions(
    known: Worker, offered: Worker, now: int, *, tells_types: bool = True
) -> dict[str, str]:
    """The fingerprints after a re-registration. A live worker may not change a definition.

    Those of types that it still has are kept; all of them if it does not declare its types.
    """
    if not known.is_active(now):
        return offered.fingerprints
    for workflow_type, fingerprint in offered.fingerprints.items():
        recorded = known.fingerprints.get(workflow_type)
        if recorded is not None and recorded != fingerprint:
            raise WorkflowDefinitionChanged(
                f"worker {known.worker_id} registered another definition of {workflow_type}",
                workflow_type=workflow_type,
                remediation="restart the worker under a new worker id",
            )
    kept = known.fingerprints
    if tells_types:
        kept = {k: v for k, v in kept.items() if k in offered.workflow_types}
    return {**kept, **offered.fingerprints}


def require_poll_allowed(worker: Worker, *, queue: str, build_id: str | None) -> None:
    """Refuse a poll for another queue or build than the worker registered for."""
    if worker.queue != queue:
        raise TaskQueueMismatch(
            f"worker {worker.worker_id} is registered for queue {worker.queue}",
            registered_task_queue=worker.queue,
            requested_task_queue=queue,
        )
    if build_id and worker.build_id and worker.build_id != build_id:
        raise BuildIdMismatch(
            f"worker {worker.worker_id} is registered with build {worker.build_id}",
            registered_build_id=worker.build_id,
            requested_build_id=build_id,
        )


def require_taking(worker: Worker, draining: Collection[Cohort]) -> None:
    """Refuse a poll of a worker whose build drains. It may finish the tasks it has."""
    if worker.cohort in draining:
        raise WorkerDraining(
            f"build {worker.build_id or '(none)'} of queue {worker.queue} drains",
            task=None,
            poll_status="draining",
            worker_id=worker.worker_id,
            task_queue=worker.queue,
            registered_build_id=worker.build_id,
            worker_status=WorkerStatus.DRAINING,
            drain_intent="draining",
        )

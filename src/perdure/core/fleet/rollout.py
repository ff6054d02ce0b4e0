"""Rollouts: the drained builds and the promoted build of one queue, as set by operators.

A drained build gets no new tasks and finishes those it has. The promoted build gets new starts that
name no build. Both settings hold whether or not the build has workers.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct, field

from perdure.core.fleet.worker import Cohort, Worker
from perdure.core.limits import ROLLOUT_BUILDS_MAX
from perdure.core.rejection import (
    FleetIsDraining,
    MissingWorkerHeartbeat,
    NoCompatibleWorkers,
    Rejection,
    StructuralLimitExceeded,
    TaskQueueDraining,
    UnknownDeployment,
)


class DrainIntent(StrEnum):
    """Whether a build gets new tasks."""

    ACTIVE = "active"
    DRAINING = "draining"


class Intent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one build; workers without a build form the build None."""

    build_id: str | None = None
    drained_at: int | None = None
    promoted_at: int | None = None

    @property
    def is_draining(self) -> bool:
        return self.drained_at is not None

    @property
    def is_selected(self) -> bool:
        """Whether new starts are pinned to this build. While it drains, any worker takes them."""
        return self.promoted_at is not None and self.drained_at is None

    @property
    def drain_intent(self) -> DrainIntent:
        return DrainIntent.DRAINING if self.is_draining else DrainIntent.ACTIVE


class Rollout(Struct, frozen=True):
    """The settings of all builds of a queue, without builds that have none."""

    intents: tuple[Intent, ...] = ()

    @property
    def draining(self) -> list[str | None]:
        """The builds that drain, in a fixed order, the unversioned one last."""
        builds = [intent.build_id for intent in self.intents if intent.is_draining]
        return sorted(builds, key=lambda build: (build is None, build or ""))

    @property
    def selected(self) -> str | None:
        """The build that new starts are pinned to, if one is."""
        for intent in self.intents:
            if intent.is_selected:
                return intent.build_id
        return None


EMPTY_ROLLOUT = Rollout()


def intent_of(rollout: Rollout, build_id: str | None) -> Intent:
    """The settings of a build; the defaults if it has none."""
    for intent in rollout.intents:
        if intent.build_id == build_id:
            return intent
    return Intent(build_id=build_id)


def drain(rollout: Rollout, build_id: str | None, now: int) -> Rollout:
    """Drain a build. One that drains already keeps its `drained_at`."""
    current = intent_of(rollout, build_id)
    if current.is_draining:
        return rollout
    intent = Intent(build_id=build_id, drained_at=now, promoted_at=current.promoted_at)
    return _with(rollout, intent)


def resume(rollout: Rollout, build_id: str | None) -> Rollout:
    """End the drain of a build."""
    current = intent_of(rollout, build_id)
    if not current.is_draining:
        return rollout
    return _with(rollout, Intent(build_id=build_id, promoted_at=current.promoted_at))


def promote(rollout: Rollout, cohort: Cohort, now: int, *, workers: Sequence[Worker]) -> Rollout:
    """Pin new starts to a build, and to no other. `workers` are those of its queue."""
    if intent_of(rollout, cohort.build_id).is_selected:
        return rollout
    _require_promotable(rollout, cohort, now, workers)
    others = (
        Intent(build_id=intent.build_id, drained_at=intent.drained_at) for intent in rollout.intents
    )
    kept = tuple(intent for intent in others if intent.is_draining)
    return _with(Rollout(kept), Intent(build_id=cohort.build_id, promoted_at=now))


def _with(rollout: Rollout, intent: Intent) -> Rollout:
    kept = tuple(other for other in rollout.intents if other.build_id != intent.build_id)
    if not intent.is_draining and intent.promoted_at is None:
        return Rollout(kept)
    if len(kept) >= ROLLOUT_BUILDS_MAX:
        raise StructuralLimitExceeded(
            f"{ROLLOUT_BUILDS_MAX} builds of the queue are drained; resume those you no longer use",
            limit_kind="rollout_build_count",
            configured_limit=ROLLOUT_BUILDS_MAX,
        )
    return Rollout((*kept, intent))


# Promoting ----------------------------------------------------------------------------------------


def _require_promotable(
    rollout: Rollout, cohort: Cohort, now: int, workers: Sequence[Worker]
) -> None:
    """Refuse to promote a build that cannot run new starts; the refusal lists every obstacle.

    The unversioned build can be promoted without workers: any worker takes starts that are pinned
    to no build.
    """
    queue, build_id = cohort.queue, cohort.build_id
    intent = intent_of(rollout, build_id)
    own = [worker for worker in workers if worker.build_id == build_id]
    what = "the unversioned build" if build_id is None else f"build {build_id}"
    found: list[_Obstacle] = []
    if not own and intent not in rollout.intents:
        text = f"queue {queue} has no record of {what}"
        found.append(_Obstacle(UnknownDeployment, text, "register a worker of the build"))
    if intent.is_draining:
        text = f"{what} of queue {queue} drains"
        found.append(_Obstacle(FleetIsDraining, text, "resume the build first"))
    if build_id is not None and not any(worker.is_active(now) for worker in own):
        remedy = "start a worker of the build, and wait for its first heartbeat"
        if any(worker.is_active(now) for worker in workers):
            text = f"no live worker of queue {queue} has {what}"
            found.append(_Obstacle(MissingWorkerHeartbeat, text, remedy))
        else:
            text = f"queue {queue} has no live worker"
            found.append(_Obstacle(NoCompatibleWorkers, text, remedy))
    if found:
        raise _blocked(cohort, found)


class _Obstacle(NamedTuple):
    """One obstacle to promoting a build."""

    kind: type[Rejection]
    message: str
    expected_resolution: str


def _blocked(cohort: Cohort, found: list[_Obstacle]) -> Rejection:
    """A rejection that lists all obstacles, with the reason of the first."""
    first = found[0]
    reason = first.kind.reason
    named = {
        "namespace": cohort.namespace,
        "task_queue": cohort.queue,
        "build_id": cohort.build_id,
    }
    return first.kind(
        first.message,
        **named,
        rejection_reason=reason,
        outcome=f"rejected_{reason}",
        control_plane_outcome=f"rejected_{reason}",
        expected_resolution=first.expected_resolution,
        blockages=[
            {
                "reason": each.kind.reason,
                "message": each.message,
                "scope": named,
                "expected_resolution": each.expected_resolution,
            }
            for each in found
        ],
    )


# Starting -----------------------------------------------------------------------------------------


def require_open(rollout: Rollout, queue: str, workers: Iterable[Worker], now: int) -> None:
    """Refuse a start on a queue with a drained build and no active worker of another one."""
    draining = rollout.draining
    if not draining:
        return
    draining_count = stale_count = 0
    for worker in workers:
        if worker.is_stale(now):
            stale_count += 1
        elif worker.build_id not in draining:
            return
        else:
            draining_count += 1
    raise TaskQueueDraining(
        f"queue {queue} is drained, and no other build has an active worker",
        task_queue=queue,
        routing_status="draining",
        active_worker_count=0,
        draining_worker_count=draining_count,
        stale_worker_count=stale_count,
        draining_build_ids=draining,
        drain_intent=DrainIntent.DRAINING,
        outcome="rejected_task_queue_draining",
        rejection_reason="task_queue_draining",
        command_status="rejected",
        command_source="control_plane",
    )


# Reading ------------------------------------------------------------------------------------------


class RolloutStatus(StrEnum):
    """The state of the workers of a build, the most available first."""

    ACTIVE = "active"
    DRAINING = "draining"
    STALE_ONLY = "stale_only"
    NO_WORKERS = "no_workers"


_ORDER = {status: place for place, status in enumerate(RolloutStatus)}


class BuildWorkers(Struct, kw_only=True):
    """The counts of the workers of one build of a queue."""

    intent: Intent
    live: int = 0
    stale: int = 0
    runtimes: set[str] = field(default_factory=set)
    sdk_versions: set[str] = field(default_factory=set)
    last_heartbeat_at: int | None = None
    first_seen_at: int | None = None
    fingerprints: dict[str, set[str]] = field(default_factory=dict)

    @property
    def status(self) -> RolloutStatus:
        if self.live:
            draining = self.intent.is_draining
            return RolloutStatus.DRAINING if draining else RolloutStatus.ACTIVE
        return RolloutStatus.STALE_ONLY if self.stale else RolloutStatus.NO_WORKERS

    @property
    def place(self) -> tuple[Any, ...]:
        """Its sort key in lists."""
        build_id = self.intent.build_id
        lately = -(self.last_heartbeat_at or 0)
        return (_ORDER[self.status], build_id is None, lately, build_id or "")


def build_workers(rollout: Rollout, workers: Iterable[Worker], now: int) -> list[BuildWorkers]:
    """Every build that has workers, or settings."""
    found = {intent.build_id: BuildWorkers(intent=intent) for intent in rollout.intents}
    for worker in workers:
        build_id = worker.build_id
        counted = found.get(build_id)
        if counted is None:
            counted = found[build_id] = BuildWorkers(intent=Intent(build_id=build_id))
        _count(counted, worker, now)
    return sorted(found.values(), key=lambda counted: counted.place)


def _count(counted: BuildWorkers, worker: Worker, now: int) -> None:
    if worker.is_stale(now):
        counted.stale += 1
    else:
        counted.live += 1
    counted.runtimes.add(worker.runtime)
    if worker.sdk_version is not None:
        counted.sdk_versions.add(worker.sdk_version)
    counted.last_heartbeat_at = max(counted.last_heartbeat_at or 0, worker.heartbeat_at)
    seen = counted.first_seen_at
    counted.first_seen_at = (
        worker.registered_at if seen is None else min(seen, worker.registered_at)
    )
    for workflow_type, fingerprint in worker.fingerprints.items():
        counted.fingerprints.setdefault(workflow_type, set()).add(fingerprint)

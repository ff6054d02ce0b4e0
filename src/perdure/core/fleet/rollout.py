"""Rollouts: what operators want of the builds of one queue.

A build that is drained gets nothing new, and keeps what it has. The build that was promoted gets
the new starts of the queue that name none. Both are wishes: they hold while nobody is there, too.
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
    """Whether a build shall get new tasks."""

    ACTIVE = "active"
    DRAINING = "draining"


class Intent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wanted of one build; those without one are a build too, called None."""

    build_id: str | None = None
    drained_at: int | None = None
    promoted_at: int | None = None

    @property
    def is_draining(self) -> bool:
        return self.drained_at is not None

    @property
    def is_selected(self) -> bool:
        """Whether new starts go to this build. While it drains they go to whoever is there."""
        return self.promoted_at is not None and self.drained_at is None

    @property
    def drain_intent(self) -> DrainIntent:
        return DrainIntent.DRAINING if self.is_draining else DrainIntent.ACTIVE


class Rollout(Struct, frozen=True):
    """All that is wanted of the builds of a queue. One of which nothing is wanted is not in it."""

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


NOTHING_WANTED = Rollout()


def intent_of(rollout: Rollout, build_id: str | None) -> Intent:
    """What is wanted of a build, if only that it goes on."""
    for intent in rollout.intents:
        if intent.build_id == build_id:
            return intent
    return Intent(build_id=build_id)


def drain(rollout: Rollout, build_id: str | None, now: int) -> Rollout:
    """The build shall get nothing new. One that drains already has done so since it began."""
    known = intent_of(rollout, build_id)
    if known.is_draining:
        return rollout
    wanted = Intent(build_id=build_id, drained_at=now, promoted_at=known.promoted_at)
    return _with(rollout, wanted)


def resume(rollout: Rollout, build_id: str | None) -> Rollout:
    """The build goes on."""
    known = intent_of(rollout, build_id)
    if not known.is_draining:
        return rollout
    return _with(rollout, Intent(build_id=build_id, promoted_at=known.promoted_at))


def promote(rollout: Rollout, cohort: Cohort, now: int, *, crew: Sequence[Worker]) -> Rollout:
    """New starts shall go to a build, and to no other. `crew` are the workers of its queue."""
    if intent_of(rollout, cohort.build_id).is_selected:
        return rollout
    _require_promotable(rollout, cohort, now, crew)
    others = (
        Intent(build_id=intent.build_id, drained_at=intent.drained_at) for intent in rollout.intents
    )
    kept = tuple(intent for intent in others if intent.is_draining)
    return _with(Rollout(kept), Intent(build_id=cohort.build_id, promoted_at=now))


def _with(rollout: Rollout, wanted: Intent) -> Rollout:
    kept = tuple(intent for intent in rollout.intents if intent.build_id != wanted.build_id)
    if not wanted.is_draining and wanted.promoted_at is None:
        return Rollout(kept)
    if len(kept) >= ROLLOUT_BUILDS_MAX:
        raise StructuralLimitExceeded(
            f"{ROLLOUT_BUILDS_MAX} builds of the queue are drained; resume those that are gone",
            limit_kind="rollout_build_count",
            configured_limit=ROLLOUT_BUILDS_MAX,
        )
    return Rollout((*kept, wanted))


# Promoting ----------------------------------------------------------------------------------------


def _require_promotable(rollout: Rollout, cohort: Cohort, now: int, crew: Sequence[Worker]) -> None:
    """Refuse to send new starts to a build that nobody would take them for; says all that is wrong.

    What is pinned to no build anybody takes, so for that nobody in particular has to be there.
    """
    queue, build_id = cohort.queue, cohort.build_id
    intent = intent_of(rollout, build_id)
    known = [worker for worker in crew if worker.build_id == build_id]
    what = "the unversioned build" if build_id is None else f"build {build_id}"
    found: list[_Blockage] = []
    if not known and intent not in rollout.intents:
        text = f"queue {queue} knows nothing of {what}"
        found.append(_Blockage(UnknownDeployment, text, "register a worker of the build"))
    if intent.is_draining:
        text = f"{what} of queue {queue} drains"
        found.append(_Blockage(FleetIsDraining, text, "resume the build first"))
    if build_id is not None and not any(worker.is_active(now) for worker in known):
        remedy = "start a worker of the build, and wait until it is heard of"
        if any(worker.is_active(now) for worker in crew):
            text = f"no live worker of queue {queue} is of {what}"
            found.append(_Blockage(MissingWorkerHeartbeat, text, remedy))
        else:
            text = f"queue {queue} has no live worker"
            found.append(_Blockage(NoCompatibleWorkers, text, remedy))
    if found:
        raise _blocked(cohort, found)


class _Blockage(NamedTuple):
    """One thing that speaks against a build."""

    kind: type[Rejection]
    message: str
    expected_resolution: str


def _blocked(cohort: Cohort, found: list[_Blockage]) -> Rejection:
    """All of it, under the name of the first."""
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


def require_open(rollout: Rollout, queue: str, crew: Iterable[Worker], now: int) -> None:
    """Refuse what is to begin on a queue of which a build drains, and where nobody else is."""
    draining = rollout.draining
    if not draining:
        return
    leaving = silent = 0
    for worker in crew:
        if worker.is_stale(now):
            silent += 1
        elif worker.build_id not in draining:
            return
        else:
            leaving += 1
    raise TaskQueueDraining(
        f"queue {queue} is drained, and no active worker is there",
        task_queue=queue,
        routing_status="draining",
        active_worker_count=0,
        draining_worker_count=leaving,
        stale_worker_count=silent,
        draining_build_ids=draining,
        drain_intent=DrainIntent.DRAINING,
        outcome="rejected_task_queue_draining",
        rejection_reason="task_queue_draining",
        command_status="rejected",
        command_source="control_plane",
    )


# Looking ------------------------------------------------------------------------------------------


class RolloutStatus(StrEnum):
    """How the workers of a build stand. Those that can be counted on come first."""

    ACTIVE = "active"
    DRAINING = "draining"
    STALE_ONLY = "stale_only"
    NO_WORKERS = "no_workers"


_ORDER = {status: place for place, status in enumerate(RolloutStatus)}


class Standing(Struct, kw_only=True):
    """The workers of one build of a queue, counted."""

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
        """Where it comes in a list."""
        build_id = self.intent.build_id
        lately = -(self.last_heartbeat_at or 0)
        return (_ORDER[self.status], build_id is None, lately, build_id or "")


def standings(rollout: Rollout, crew: Iterable[Worker], now: int) -> list[Standing]:
    """Every build that has workers, or of which something is wanted."""
    found = {intent.build_id: Standing(intent=intent) for intent in rollout.intents}
    for worker in crew:
        build_id = worker.build_id
        standing = found.get(build_id)
        if standing is None:
            standing = found[build_id] = Standing(intent=Intent(build_id=build_id))
        _count(standing, worker, now)
    return sorted(found.values(), key=lambda standing: standing.place)


def _count(standing: Standing, worker: Worker, now: int) -> None:
    if worker.is_stale(now):
        standing.stale += 1
    else:
        standing.live += 1
    standing.runtimes.add(worker.runtime)
    if worker.sdk_version is not None:
        standing.sdk_versions.add(worker.sdk_version)
    standing.last_heartbeat_at = max(standing.last_heartbeat_at or 0, worker.heartbeat_at)
    seen = standing.first_seen_at
    standing.first_seen_at = (
        worker.registered_at if seen is None else min(seen, worker.registered_at)
    )
    for workflow_type, fingerprint in worker.fingerprints.items():
        standing.fingerprints.setdefault(workflow_type, set()).add(fingerprint)

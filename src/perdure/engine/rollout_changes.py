"""Operations on rollouts: a build is drained, goes on, or gets the new starts."""

from msgspec import structs

from perdure.core.fleet.rollout import (
    EMPTY_ROLLOUT,
    Intent,
    Rollout,
    drain,
    intent_of,
    promote,
    require_open,
    resume,
)
from perdure.core.fleet.worker import Cohort
from perdure.core.limits import ROLLOUT_QUEUES_MAX
from perdure.core.rejection import TaskQueueDraining
from perdure.core.run.start import StartRequest
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.store.interface import Record, RecordKey, Store

ROLLOUT = RecordKind("rollout", Rollout)
"""What is wanted of the builds of a queue, by its name."""


class ChangeRollout(Operation):
    """Something else is wanted of a build from now on. Wanting it twice changes nothing."""

    __slots__ = ("_cohort",)

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort

    def records(self) -> tuple[RecordKey, ...]:
        return (ROLLOUT.key(self._cohort.namespace, self._cohort.queue),)

    def decide(self, world: World) -> Intent:
        namespace, queue, build_id = self._cohort
        before = learn_rollout(world, namespace, queue)
        after = self.change(world, before)
        if after != before:
            world.rollouts.require_room((namespace, queue))
            _keep(world, namespace, queue, after)
        return intent_of(after, build_id)

    def change(self, world: World, rollout: Rollout) -> Rollout:
        raise NotImplementedError


class DrainBuild(ChangeRollout):
    """The workers of a build get nothing new. What they have, they may finish."""

    __slots__ = ()
    name = "drain_build"

    def change(self, world: World, rollout: Rollout) -> Rollout:
        return drain(rollout, self._cohort.build_id, world.ctx.now)


class ResumeBuild(ChangeRollout):
    """They go on."""

    __slots__ = ()
    name = "resume_build"

    def change(self, world: World, rollout: Rollout) -> Rollout:
        return resume(rollout, self._cohort.build_id)


class PromoteBuild(ChangeRollout):
    """New starts of the queue that name no build get this one."""

    __slots__ = ()
    name = "promote_build"

    def change(self, world: World, rollout: Rollout) -> Rollout:
        workers = list(world.workers_of_queue(self._cohort.namespace, self._cohort.queue))
        return promote(rollout, self._cohort, world.ctx.now, workers=workers)


class LoadRollouts(Operation):
    """What other nodes have changed. All rollouts: they change seldom, and are few."""

    __slots__ = ("_found",)
    name = "look_up_rollouts"
    reads_before_load = True

    def __init__(self) -> None:
        self._found: list[tuple[RecordKey, Record]] = []

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        self._found = await store.find_kind(ROLLOUT.name, ROLLOUT_QUEUES_MAX)
        return ()

    def decide(self, world: World) -> None:
        for name in world.rollouts.queues:
            world.learned_rollouts[name] = EMPTY_ROLLOUT
        for key, record in self._found:
            world.learned_rollouts[key.namespace, key.key] = ROLLOUT.decode(record)


def learn_rollout(world: World, namespace: str, queue: str) -> Rollout:
    """The rollout of a queue as it is on disk, which this node knows from then on."""
    rollout = ROLLOUT.find(world, namespace, queue) or EMPTY_ROLLOUT
    world.learned_rollouts[namespace, queue] = rollout
    return rollout


def _keep(world: World, namespace: str, queue: str, rollout: Rollout) -> None:
    if rollout.intents:
        ROLLOUT.put(world, namespace, queue, rollout)
    else:
        ROLLOUT.remove(world, namespace, queue)
    world.learned_rollouts[namespace, queue] = rollout
    world.tells_rollouts = True


# Starting -----------------------------------------------------------------------------------------


def require_open_queue(world: World, namespace: str, queue: str, **named: object) -> None:
    """Refuse what is to begin where all who could take it drain; `named` is told, too."""
    rollout = world.rollouts.find(namespace, queue)
    try:
        require_open(rollout, queue, world.workers_of_queue(namespace, queue), world.ctx.now)
    except TaskQueueDraining as refusal:
        refusal.details |= named
        raise


def rolled_out(world: World, request: StartRequest) -> StartRequest:
    """The request as the operators of its queue want it: refused, pinned, or as it is."""
    require_open_queue(
        world,
        request.namespace,
        request.queue,
        workflow_id=request.workflow_id,
        workflow_type=request.workflow_type,
    )
    build_id = request.build_id or selected_build(world, request.namespace, request.queue)
    return structs.replace(request, build_id=build_id)


def selected_build(world: World, namespace: str, queue: str) -> str | None:
    """The build that new starts of a queue are pinned to, if one is."""
    return world.rollouts.find(namespace, queue).selected

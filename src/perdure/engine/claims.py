"""Operations that nobody asked for: time passes, and waiting tasks meet late pollers."""

from collections.abc import Callable

from msgspec import Struct

from perdure.core.limits import READY_PER_CLAIM_MAX
from perdure.core.run.fire import fire_due
from perdure.core.run.state import WORKFLOW_TASK, Run
from perdure.core.run.sticky import find_sticky_worker
from perdure.core.run.task import task_name
from perdure.engine.leasing import Leasing, is_ready
from perdure.engine.matching import Matcher
from perdure.engine.operation import Operation
from perdure.engine.quotas import QuotaGate, Shut
from perdure.engine.usage_limits import ask_again, has_means, meter_keys
from perdure.engine.world import World
from perdure.store.interface import LeasedTask, QueueKey, ReadyTask, RecordKey, Store, shared

_SLACK = 8


class FireDue(Operation):
    """The deadline of a run has come. Firing early or twice does no harm."""

    __slots__ = ("_run_id",)
    name = "fire_due"

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def decide(self, world: World) -> bool:
        """Whether there was such a run."""
        run = world.runs.get(self._run_id)
        if run is None:
            return False
        fire_due(run, world.ctx)
        world.changed(run)
        return True


class ShowRun(Operation):
    """Copy something of a run as it stands between two decisions."""

    __slots__ = ("_copy", "_namespace", "_run_id")
    name = "show_run"

    def __init__(self, namespace: str, run_id: str, copy: Callable[[Run], object]) -> None:
        self._namespace = namespace
        self._run_id = run_id
        self._copy = copy

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def decide(self, world: World) -> object:
        run = world.runs.get(self._run_id)
        if run is None or run.namespace != self._namespace:
            return None
        return self._copy(run)


class ShowLeases(Operation):
    """Copy the first of a worker's leases that somebody asks for."""

    __slots__ = ("_copy", "_held", "_namespace", "_owner")
    name = "show_leases"
    reads_before_load = True

    def __init__(
        self, namespace: str, owner: str, copy: Callable[[Run, int], object | None]
    ) -> None:
        self._namespace = namespace
        self._owner = owner
        self._copy = copy
        self._held: list[LeasedTask] = []

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        self._held = await store.find_leases(self._namespace, self._owner)
        return tuple(task.run_id for task in self._held)

    def decide(self, world: World) -> tuple[object | None, bool]:
        """What was found, and whether the worker holds anything at all."""
        for run_id, place in self._held:
            run = world.runs.get(run_id)
            copied = None if run is None else self._copy(run, place)
            if copied is not None:
                return copied, True
        return None, bool(self._held)


class Claimed(Struct, frozen=True):
    """What became of a look at a queue."""

    is_crowded: bool = False
    """Whether there is more that could not be had now: another node looks at it."""
    shut: Shut | None = None
    """Why no more is leased from the queue, if that is so."""


class ClaimTasks(Operation):
    """Ready tasks of one queue for its parked pollers."""

    __slots__ = (
        "_found",
        "_is_all",
        "_is_crowded",
        "_key",
        "_leasing",
        "_matcher",
        "_names",
        "_turnstile",
    )
    name = "claim_tasks"
    reads_before_load = True
    reads_after_load = True
    locks_rows = True

    def __init__(self, key: QueueKey, matcher: Matcher, leasing: Leasing) -> None:
        self._key = key
        self._matcher = matcher
        self._leasing = leasing
        self._names: set[str] = set()
        self._found: list[ReadyTask] = []
        self._is_all = False
        self._is_crowded = False
        quotas = leasing.quotas(key)
        self._turnstile = QuotaGate(key.namespace, quotas) if quotas else None

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        names, count = self._matcher.wanted(self._key)
        self._names, self._found, self._is_all, self._is_crowded = names, [], False, False
        if names:
            # A few more than are wanted, so that a row that cannot be had is not in their way.
            limit = min(count + _SLACK, READY_PER_CLAIM_MAX)
            self._found = await store.load_ready(self._key, names, limit)
            if len(self._found) < limit:
                # What another node looks at in this moment was passed over, and is still there.
                self._is_crowded = await self._are_more(store)
                self._is_all = not self._is_crowded
        if self._turnstile is not None:
            await self._turnstile.look_at(store, len(self._found))
        return tuple(task.run_id for task in self._found)

    def records(self) -> tuple[RecordKey, ...]:
        return () if self._turnstile is None else self._turnstile.keys()

    def closer_records(self, world: World) -> tuple[RecordKey, ...]:
        """The budgets of those that waited for a runner: much may have been used meanwhile."""
        found = (world.runs.get(task.run_id) for task in self._found)
        return tuple(key for run in found if run is not None for key in meter_keys(run))

    async def _are_more(self, store: Store) -> bool:
        among = shared(store)
        found = len(self._found)
        if among is None:
            return False
        return await among.count_ready(self._key, self._names, found + 1) > found

    def decide(self, world: World) -> Claimed:
        unserved: set[str] = set()
        turnstile, shut = self._turnstile, None
        if turnstile is not None:
            turnstile.open(world)
        for run_id, place, name in self._found:
            run = world.runs.get(run_id)
            if run is None:
                # It cannot be read; asking for it again at once would change nothing.
                continue
            if not is_ready(run, place):
                # A row that says otherwise would be found again for ever.
                run.unsaved.ready.setdefault(place, False)
                world.changed(run)
                continue
            if place == WORKFLOW_TASK and name != task_name(run):
                # Another task took its place in this very beat, which rewrites the row.
                continue
            shut = None if turnstile is None else turnstile.shut(world)
            if shut is not None:
                # Nothing behind this one goes through, either.
                unserved = self._names
                break
            holder = find_sticky_worker(run, world.ctx.now) if place == WORKFLOW_TASK else None
            poller = self._matcher.reserve(self._key, name, holder)
            if poller is None:
                unserved.add(name)
            elif not has_means(world, run):
                # Only looked at: who claims holds rows, and shall wait for nobody.
                self._matcher.restore(poller)
                ask_again(world, run)
            else:
                self._leasing.grant(world, run, place, poller)
                if turnstile is not None:
                    turnstile.let_through(world, run, place)
        if turnstile is not None:
            turnstile.close(world)
        if self._is_all:
            world.exhausted.append((self._key, self._names - unserved))
        return Claimed(self._is_crowded, shut)

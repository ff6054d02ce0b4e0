"""The beat: many waiting operations, one transaction.

1 take what waits · 2 load what it touches · 3 let each decide · 4 match new tasks with parked
pollers · 5 commit once · 6 answer, hand over, wake. Nothing is answered before it is on disk.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from perdure.clock import Clock
from perdure.core.bounds import DEFAULT_BOUNDS, Bounds
from perdure.core.fleet.worker import Worker
from perdure.core.limits import (
    OPERATIONS_PER_BEAT_MAX,
    OPERATIONS_WAITING_MAX,
    ROLLOUT_QUEUES_MAX,
    SECOND,
    WORKER_STALE_AFTER_MAX,
)
from perdure.core.rejection import (
    HistoryDamaged,
    InvalidSignalArguments,
    InvalidUpdateArguments,
    MissingWorkerHeartbeat,
    NoCompatibleWorkers,
    Rejection,
    TaskQueueDraining,
    UnknownDeployment,
    UnknownSignal,
    UpdateRejected,
    UpdateValidatorIncompatible,
    UpdateValidatorUnavailable,
)
from perdure.core.run.context import Context, Ids
from perdure.core.run.state import Run
from perdure.engine.cache import RunCache
from perdure.engine.catalogue import Catalogue
from perdure.engine.fleet import LoadWorker
from perdure.engine.leasing import Leasing, ready_tasks, still_holds
from perdure.engine.matching import Matcher
from perdure.engine.operation import Operation
from perdure.engine.payloads import note_uses
from perdure.engine.registry import Registry
from perdure.engine.reply import Reply
from perdure.engine.rollout_changes import ROLLOUT, LoadRollouts
from perdure.engine.rollouts import Rollouts
from perdure.engine.world import World
from perdure.store.interface import Conflict, QueueKey, RecordKey, Store, Unavailable, shared

log = logging.getLogger(__name__)

Waiting = tuple[Operation, "asyncio.Future[Any]"]
WorkerKey = tuple[str, str]

_TRIES_TOGETHER = 4
"""How often a beat that lost a race is decided again as a whole, before each goes alone."""
_PATIENCE = 3 * SECOND
"""How long an operation that loses every race is tried before it is refused."""
_PAUSE_MAX = SECOND // 10
_STALENESS_MAX = 0.05
"""How much of what memory holds may be old for it to be trusted: then a beat loads nothing, and
the commit finds out. Nodes that share runs look first."""


class ClusterAnnouncer(Protocol):
    """Tells other nodes what they may want to know. It may be late, or say nothing at all."""

    def offered(self, key: QueueKey, name: str) -> None:
        """A ready task is on disk and nobody here took it."""
        ...

    def changed(self, topic: str) -> None:
        """A run has changed, or a record; its id or its target."""
        ...

    def registered(self, key: WorkerKey) -> None:
        """A registration has changed."""
        ...

    def rolled_out(self) -> None:
        """What is wanted of some build has changed."""
        ...


class Doubt(Exception):
    """A beat trusted its memory, and nothing that it writes would show whether it was right."""


class Engine:
    """One beat per store."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        ids: Ids,
        matcher: Matcher,
        leasing: Leasing,
        cache: RunCache,
        registry: Registry,
        on_change: Callable[[Run], None],
        on_due: Callable[[int], None],
        announcer: ClusterAnnouncer | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
        on_record: Callable[[RecordKey], None] = lambda key: None,
    ) -> None:
        # Known from `open` on: asking for it with every reply would cost a call of the system.
        self.loop: asyncio.AbstractEventLoop
        self.store = store
        self._shared = shared(store)
        self._announcer = announcer
        self.workers: dict[tuple[str, str], Worker] = {}
        self.rollouts = Rollouts()
        # Queues from which a look found that no more may be leased, and why.
        self.shut: Mapping[QueueKey, str] = {}
        self._clock = clock
        self._ids = ids
        self._bounds = bounds
        self._matcher = matcher
        self._leasing = leasing
        self._cache = cache
        self.registry = registry
        self._on_change = on_change
        self._on_record = on_record
        self._on_due = on_due
        self._catalogue = Catalogue()
        self._inbox: deque[Waiting] = deque()
        self._wake = asyncio.Event()
        self._stopping = False
        # How often, lately, memory held a run that another node had changed: 0 is never.
        self._staleness = 0.0
        # Likewise, how often a workflow id that was to be new was known.
        self._familiarity = 0.0
        # Operations that lost every race so far, and since when.
        self._losing: dict[asyncio.Future[Any], int] = {}
        # Those of them whose turn has come again. They go alone: others shall not wait for them.
        self._again: deque[Waiting] = deque()

    async def open(self) -> None:
        """Load what must be known from the start."""
        self.loop = asyncio.get_running_loop()
        for worker in await self.store.load_workers():
            self.workers[(worker.namespace, worker.worker_id)] = worker
        for key, record in await self.store.find_kind(ROLLOUT.name, ROLLOUT_QUEUES_MAX):
            self.rollouts.put((key.namespace, key.key), ROLLOUT.decode(record))
        await self.offer_ready_tasks()

    async def offer_ready_tasks(self) -> None:
        """Offer every ready task anew: a lost hint costs only time."""
        for key, name in await self.store.load_ready_names():
            self._matcher.offered(key, name)

    async def find_worker(self, key: WorkerKey) -> Worker | None:
        """A registration, also one that another node took."""
        known = self.workers.get(key)
        if known is None and self._shared is not None:
            return await self.refresh_worker(key)
        return known

    async def refresh_worker(self, key: WorkerKey) -> Worker | None:
        """A registration as it is on disk."""
        known: Worker | None = await self.submit(LoadWorker(key))
        self._note_worker(key, known)
        return known

    def take_in(self, workers: Iterable[Worker]) -> None:
        """Registrations as other nodes left them."""
        for worker in workers:
            self._note_worker((worker.namespace, worker.worker_id), worker)

    def adopt(self, run: Run) -> None:
        """Take in a run as another node has just committed it. If it is old, a commit finds out."""
        known = self._cache.find(run.run_id)
        if known is None or known.version < run.version:
            self._cache.keep(run)

    def submit(self, operation: Operation) -> Reply:
        """Have an operation decided. Await its reply: it comes when that is on disk."""
        if len(self._inbox) >= OPERATIONS_WAITING_MAX:
            raise Unavailable("server_overloaded", "too many operations are waiting")
        reply = Reply(loop=self.loop)
        self._inbox.append((operation, reply))
        if not self._wake.is_set():
            self._wake.set()
        return reply

    async def submit_knowing_workers(self, operation: Operation) -> Any:
        """Have an operation decided that depends on which workers live.

        Another node may know some that this one has not heard of yet, so before one is refused
        for want of a worker, the disk is asked.
        """
        try:
            return await self.submit(operation)
        except _UNINFORMED:
            if self._shared is None:
                raise
        await self.refresh_workers()
        await self.refresh_rollouts()
        return await self.submit(operation)

    async def refresh_workers(self) -> None:
        """Take in every registration that may be alive, whichever node it was made at."""
        if self._shared is not None:
            since = self._clock.now() - WORKER_STALE_AFTER_MAX
            self.take_in(await self._shared.load_changed_workers(since))

    async def refresh_rollouts(self) -> None:
        """Take in what is wanted of builds, whichever node was told."""
        if self._shared is not None:
            await self.submit(LoadRollouts())

    def send(self, operation: Operation) -> None:
        """Have an operation decided without waiting for it."""
        future: asyncio.Future[Any] = self.loop.create_future()
        future.add_done_callback(_log_failure)
        self._inbox.append((operation, future))
        self._wake.set()

    async def run(self) -> None:
        """Beat until stopped; what was taken up is finished first."""
        while not (self._stopping and not self._inbox and not self._losing):
            await self._wake.wait()
            self._wake.clear()
            while self._inbox or self._again:
                while self._again:
                    await self._go_on_without([self._again.popleft()], _busy())
                if self._inbox:
                    await self._gather()
                    await self._beat_safely(self._take())

    def _take(self) -> list[Waiting]:
        inbox = self._inbox
        count = min(len(inbox), OPERATIONS_PER_BEAT_MAX)
        if self._shared is None:
            return [inbox.popleft() for _ in range(count)]
        # What takes rows while it looks holds them until its beat ends, and shall then wait for
        # nobody: it shares no beat with operations that may.
        takes = inbox[0][0].locks_rows
        taken = [inbox.popleft()]
        while len(taken) < count and inbox[0][0].locks_rows is takes:
            taken.append(inbox.popleft())
        return taken

    async def _gather(self) -> None:
        """Let everybody who is already at the door come along: a commit costs the same for all.

        Ends with the first turn of the loop that brings nobody, so an idle server loses nothing.
        """
        before = -1
        while before < len(self._inbox) < OPERATIONS_PER_BEAT_MAX:
            before = len(self._inbox)
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Let the loop end when everything waiting is done."""
        self._stopping = True
        self._wake.set()

    async def _beat_safely(self, waiting: Sequence[Waiting]) -> None:
        """One poisonous operation takes no others down: after a failure each goes alone."""
        held: frozenset[str] = frozenset()
        records: frozenset[RecordKey] = frozenset()
        trusting = self._shared is not None and self._staleness < _STALENESS_MAX
        hoping = self._shared is not None and self._familiarity < _STALENESS_MAX
        for _ in range(_TRIES_TOGETHER):
            try:
                await self._beat(waiting, held, records, trusting=trusting, hoping=hoping)
            except Doubt:
                trusting = hoping = False
                continue
            except Conflict as conflict:
                if trusting or hoping:
                    # Memory was old, most likely, or an id not new: look before the next try.
                    trusting = hoping = False
                    if conflict.rested_on_memory:
                        self._staleness = min(self._staleness + 0.1, 1.0)
                    if conflict.assumed_new:
                        self._familiarity = min(self._familiarity + 0.1, 1.0)
                    continue
                if (held or records) and not (conflict.run_ids or conflict.records):
                    # We stood in line in vain: whoever holds them is no node.
                    break
                # A race that was lost once may be lost again, so the next time we stand in line.
                held |= conflict.run_ids
                records |= conflict.records
                continue
            except Exception as error:
                await self._recover(waiting, error)
            return
        await self._recover(waiting, _busy())

    async def _recover(self, waiting: Sequence[Waiting], error: Exception) -> None:
        reason = error.reason if isinstance(error, Unavailable) else ""
        if reason == "storage_busy" and self._shared is not None:
            await self._go_on_without(waiting, error)
            return
        if len(waiting) == 1 or reason in ("storage_busy", "storage_unavailable"):
            # Nobody has the disk, or somebody else; going one by one would only wait as often.
            for one in waiting:
                self._refuse(one, error)
            return
        log.warning(
            "committing %d operations together failed (%s); retrying them one by one",
            len(waiting),
            error,
        )
        for one in waiting:
            await self._beat_safely([one])

    async def _go_on_without(self, waiting: Sequence[Waiting], error: Exception) -> None:
        """Somebody holds what one of these needs: that one comes again later, the others go on."""
        for one in waiting:
            try:
                await self._beat([one])
            except (Conflict, Unavailable):
                self._postpone(one, error)
            except Exception as other:
                self._refuse(one, other)

    def _postpone(self, one: Waiting, error: Exception) -> None:
        future = one[1]
        now = self._clock.now()
        since = self._losing.setdefault(future, now)
        if future.done() or now - since > _PATIENCE or self._stopping:
            self._losing.pop(future, None)
            self._refuse(one, error)
            return
        if now == since:
            future.add_done_callback(self._lost_no_more)
        pause = min(now - since + SECOND // 200, _PAUSE_MAX) / SECOND
        self.loop.call_later(pause, self._bring_back, one)

    def _lost_no_more(self, future: "asyncio.Future[Any]") -> None:
        self._losing.pop(future, None)
        self._wake.set()

    def _bring_back(self, one: Waiting) -> None:
        self._again.append(one)
        self._wake.set()

    def _refuse(self, waiting: Waiting, error: Exception) -> None:
        operation, future = waiting
        if not isinstance(error, Unavailable):
            log.error(
                "operation %s failed with an unexpected error", operation.name, exc_info=error
            )
        if not future.done():
            future.set_exception(error)

    async def _beat(
        self,
        waiting: Sequence[Waiting],
        held: frozenset[str] = frozenset(),
        records: frozenset[RecordKey] = frozenset(),
        *,
        trusting: bool = False,
        hoping: bool = False,
    ) -> None:
        ctx = Context(self._clock.now(), self._ids, self._bounds)
        world = World(ctx, self.workers, self.rollouts, self.registry)
        world.trusts_memory = trusting
        world.catalogue = self._catalogue
        world.assumes_new_ids = hoping
        try:
            if (held or records) and self._shared is not None:
                await self._shared.hold(held, records)
            answers = await self._decide(world, waiting)
            self._leasing.match(world, self._matcher)
            if (world.remembered or world.changes.assumed) and _is_doubtful(world, answers):
                raise Doubt
            world.changes.runs = list(world.touched.values())
            if world.changes.is_empty:
                await self.store.release()
            else:
                await self.store.commit(world.changes)
        except BaseException as error:
            if isinstance(error, Conflict):
                error.run_ids = frozenset(world.touched)
                error.rested_on_memory = bool(world.remembered)
                error.assumed_new = bool(world.changes.assumed)
                error.records = frozenset(world.changes.records)
            await self.store.release()
            for run_id in world.touched if isinstance(error, Doubt) else world.runs:
                self._cache.drop(run_id)
            # In reverse, so that each gets back the place that it had.
            for grant in reversed(world.grants):
                self._matcher.restore(grant.poller)
            if world.remembered and isinstance(error, Exception) and not isinstance(error, _KNOWN):
                # What memory held may be to blame.
                raise Doubt from error
            raise
        # It is on disk: from here on nothing may fail in a way that would decide it again.
        self._saved(world)
        self._hand_over(world)
        for future, reply in answers:
            if future.done():
                continue
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)
        self._wake_others(world)

    def _hand_over(self, world: World) -> None:
        for grant in world.grants:
            if not still_holds(grant):
                self._matcher.restore(grant.poller)
                continue
            if grant.poller.is_elsewhere:
                self._cache.goes_elsewhere(grant.run.run_id)
            try:
                grant.poller.granted(grant.run, grant.place)
            except Exception:
                log.exception(
                    "handing a leased task of run %s to its poll failed", grant.run.run_id
                )

    async def _decide(
        self, world: World, waiting: Sequence[Waiting]
    ) -> list[tuple["asyncio.Future[Any]", Any]]:
        answers: list[tuple[asyncio.Future[Any], Any]] = []
        await self._load(world, [operation for operation, _ in waiting])
        for operation, future in waiting:
            if world.broken and (damage := self._needs_broken(world, operation)) is not None:
                answers.append((future, damage))
                continue
            try:
                answers.append((future, operation.decide(world)))
            except Rejection as rejection:
                answers.append((future, rejection))
        await self._follow(world)
        note_uses(world)
        await self._follow(world)
        return answers

    async def _follow(self, world: World) -> None:
        # What follows for other runs belongs to the same transaction. A family of runs is
        # finite and each effect leads to another member of it, so this ends.
        while world.follow_ups:
            following, world.follow_ups = world.follow_ups, []
            await self._load(world, following)
            for operation in following:
                operation.decide(world)

    async def _load(self, world: World, operations: Sequence[Operation]) -> None:
        wanted: dict[str, None] = {}
        instances = []
        receipts = []
        workers: dict[WorkerKey, None] = {}
        records: dict[RecordKey, None] = {}
        for operation in operations:
            for run_id in operation.run_ids():
                wanted[run_id] = None
            if operation.names_only_runs:
                continue
            if operation.reads_before_load:
                for run_id in await operation.prepare(self.store, world):
                    wanted[run_id] = None
            for instance in operation.instances():
                if instance not in world.loaded_instances:
                    world.loaded_instances.add(instance)
                    if world.assumes_new_ids and operation.expects_new_id:
                        world.changes.assumed.add(instance)
                    else:
                        instances.append(instance)
            for key in operation.receipts():
                if key not in world.loaded_receipts:
                    world.loaded_receipts.add(key)
                    receipts.append(key)
            for record_key in operation.records():
                if record_key not in world.records:
                    records[record_key] = None
            if self._shared is not None:
                workers.update(dict.fromkeys(operation.workers()))
        if instances:
            for instance, run_id in (await self.store.find_current(instances)).items():
                world.current.setdefault(instance, run_id)
                wanted[run_id] = None
            self._note_familiarity(world, operations)
        if receipts:
            world.receipts.update(await self.store.find_receipts(receipts))
        if records:
            await self._load_records(world, records)
        if self._shared is not None and workers:
            world.add_workers(workers, await self._shared.find_workers(workers))
        missing = []
        held: dict[str, Run] = {}
        for run_id in wanted:
            if run_id in world.runs or run_id in world.gone:
                continue
            run = self._cache.find(run_id)
            if run is None or self.store.damaged.of(run_id) is not None:
                # Of a damaged one the disk is asked again: it may have been restored.
                missing.append(run_id)
            elif self._shared is None:
                world.runs[run_id] = run
            elif world.trusts_memory and not self._cache.is_elsewhere(run_id):
                world.runs[run_id] = run
                world.remembered.add(run_id)
            else:
                # Another node may have gone on with it.
                missing.append(run_id)
                held[run_id] = run
        if missing:
            for run in await self._load_runs(world, missing, held):
                damage = self.store.damaged.of(run.run_id)
                if damage is None:
                    world.runs[run.run_id] = run
                else:
                    # Not all of a long history is read here, but somebody has read the rest.
                    world.broken[run.run_id] = HistoryDamaged(damage, run_id=run.run_id)
            for run_id in held:
                if run_id not in world.runs and run_id not in world.broken:
                    # Another node has removed it.
                    self._cache.drop(run_id)
            self._note_staleness(world, held)
        await self._look_closer(world, operations)

    async def _look_closer(self, world: World, operations: Sequence[Operation]) -> None:
        wanted = {
            key: None
            for operation in operations
            if operation.reads_after_load
            for key in operation.closer_records(world)
            if key not in world.records
        }
        if wanted:
            await self._load_records(world, wanted)

    async def _load_records(self, world: World, keys: Collection[RecordKey]) -> None:
        found = await self.store.find_records(keys)
        for key in keys:
            world.records[key] = found.get(key)

    def _note_familiarity(self, world: World, operations: Sequence[Operation]) -> None:
        found = [
            any(instance in world.current for instance in operation.instances())
            for operation in operations
            if operation.expects_new_id
        ]
        if found:
            self._familiarity += (sum(found) / len(found) - self._familiarity) * 0.05

    def _note_staleness(self, world: World, held: dict[str, Run]) -> None:
        """What was known to go on elsewhere says nothing about the rest."""
        found = [
            world.runs.get(run_id) is not run
            for run_id, run in held.items()
            if not self._cache.is_elsewhere(run_id)
        ]
        if found:
            self._staleness += (sum(found) / len(found) - self._staleness) * 0.05

    async def _load_runs(
        self, world: World, run_ids: Sequence[str], held: dict[str, Run]
    ) -> list[Run]:
        """Runs from disk. One that cannot be read does not keep the others from being read."""
        try:
            return await self.store.load_runs(run_ids, held)
        except (Unavailable, Conflict):
            raise
        except Exception as error:
            if len(run_ids) == 1:
                world.broken[run_ids[0]] = _damage(run_ids[0], error)
                return []
        loaded = []
        for run_id in run_ids:
            loaded += await self._load_runs(world, [run_id], {})
        return loaded

    @staticmethod
    def _needs_broken(world: World, operation: Operation) -> HistoryDamaged | None:
        needed = {world.current.get(instance) for instance in operation.instances()}
        for run_id in (*operation.run_ids(), *needed):
            if run_id in world.broken:
                known = world.broken[run_id]
                return HistoryDamaged(known.message, **known.details)
        return None

    def _saved(self, world: World) -> None:
        for worker_key, worker in world.changes.workers.items():
            if self._note_worker(worker_key, worker) and self._announcer is not None:
                self._announcer.registered(worker_key)
        if world.learned_rollouts:
            self._note_rollouts(world)
        for key, names in world.exhausted:
            self._matcher.exhausted(key, names)
        for change in world.changes.records.values():
            if change.after is not None and change.after.due_at is not None:
                self._on_due(change.after.due_at)
        for run_id in world.gone:
            self._cache.drop(run_id)
        for run in world.runs.values():
            if run.run_id in world.touched:
                if run.unsaved.ready:
                    for _, key, name in ready_tasks(run):
                        self._matcher.offered(key, name)
                        if self._announcer is not None:
                            self._announcer.offered(key, name)
                if run.due_at is not None and run.due_at != run.unsaved.due_at:
                    self._on_due(run.due_at)
                run.mark_saved()
            self._cache.keep(run)

    def _note_worker(self, key: WorkerKey, worker: Worker | None) -> bool:
        """Take a registration in; whether it is a new one, and not only a sign of life."""
        before = self.workers.get(key)
        has_ended = before is not None and _ended(before, worker)
        if before is not None and has_ended:
            self._matcher.registration_ended(before)
        if worker is None:
            self.workers.pop(key, None)
        else:
            self.workers[key] = worker
        return has_ended or before is None

    def _note_rollouts(self, world: World) -> None:
        for name, rollout in world.learned_rollouts.items():
            self.rollouts.put(name, rollout)
        if world.tells_rollouts and self._announcer is not None:
            self._announcer.rolled_out()

    def _wake_others(self, world: World) -> None:
        for run in world.touched.values():
            self._on_change(run)
            if self._announcer is not None:
                self._announcer.changed(run.run_id)
        for key in world.changes.records:
            self._on_record(key)
            if self._announcer is not None:
                self._announcer.changed(key.target)


_KNOWN = (Conflict, Doubt, Unavailable)

_UNINFORMED = (
    InvalidSignalArguments,
    InvalidUpdateArguments,
    MissingWorkerHeartbeat,
    NoCompatibleWorkers,
    TaskQueueDraining,
    UnknownDeployment,
    UnknownSignal,
    UpdateRejected,
    UpdateValidatorIncompatible,
    UpdateValidatorUnavailable,
)
"""Refusals that a worker unknown to this node may prove wrong, or a build that goes on again."""


def _is_doubtful(world: World, answers: Sequence[tuple[Any, Any]]) -> bool:
    """Whether something was decided on memory alone that the commit would not check."""
    if not world.remembered <= world.touched.keys():
        return True
    if any(world.current.get(instance) not in world.touched for instance in world.changes.assumed):
        return True
    return any(isinstance(reply, Exception) for _, reply in answers)


def _damage(run_id: str, error: Exception) -> HistoryDamaged:
    """Why a run cannot be read. What its store found wrong, the store has logged."""
    if isinstance(error, HistoryDamaged):
        return error
    log.error("run %s cannot be read", run_id, exc_info=error)
    return HistoryDamaged(f"run {run_id} cannot be read", run_id=run_id)


def _busy() -> Unavailable:
    return Unavailable("storage_busy", "somebody else holds what this needs")


def _ended(before: Worker, after: Worker | None) -> bool:
    """Whether a registration is over, and not only reported on."""
    if after is None or after.deregistered_at is not None:
        return before.deregistered_at is None
    return after.registration_token != before.registration_token


def _log_failure(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled() and future.exception() is not None:
        log.warning("a background operation was refused: %s", future.exception())

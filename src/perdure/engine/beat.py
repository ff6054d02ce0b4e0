"""The beat: many waiting operations, one transaction.

1 take what waits · 2 load what it touches · 3 let each decide · 4 match new tasks with parked
pollers · 5 commit once · 6 answer, hand over, wake. Nothing is answered before it is on disk.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from perdure.clock import Clock
from perdure.core.fleet.worker import Worker
from perdure.core.limits import OPERATIONS_PER_BEAT_MAX, OPERATIONS_WAITING_MAX
from perdure.core.rejection import Rejection
from perdure.core.run.moment import Ids, Moment
from perdure.core.run.state import Run
from perdure.engine.cache import RunCache
from perdure.engine.family import follow
from perdure.engine.granting import Granting, ready_tasks, still_holds
from perdure.engine.matching import Matcher
from perdure.engine.operation import Operation
from perdure.engine.reply import Reply
from perdure.engine.world import World
from perdure.store.interface import Store, Unavailable

log = logging.getLogger(__name__)

Waiting = tuple[Operation, "asyncio.Future[Any]"]


class BrokenRun(Exception):
    """An operation needs a run that is on disk and cannot be read."""


class Engine:
    """One beat per store."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        ids: Ids,
        matcher: Matcher,
        granting: Granting,
        cache: RunCache,
        on_change: Callable[[Run], None],
        on_due: Callable[[int], None],
    ) -> None:
        self.store = store
        self.workers: dict[tuple[str, str], Worker] = {}
        self._clock = clock
        self._ids = ids
        self._matcher = matcher
        self._granting = granting
        self._cache = cache
        self._on_change = on_change
        self._on_due = on_due
        self._inbox: deque[Waiting] = deque()
        self._wake = asyncio.Event()
        self._stopping = False

    async def open(self) -> None:
        """Load what must be known from the start."""
        for worker in await self.store.load_workers():
            self.workers[(worker.namespace, worker.worker_id)] = worker
        await self.look_again()

    async def look_again(self) -> None:
        """Offer every ready task anew: a lost hint costs only time."""
        for key, name in await self.store.load_ready_names():
            self._matcher.offered(key, name)

    def submit(self, operation: Operation) -> Reply:
        """Have an operation decided. Await its reply: it comes when that is on disk."""
        if len(self._inbox) >= OPERATIONS_WAITING_MAX:
            raise Unavailable("server_overloaded", "too many operations are waiting")
        reply = Reply()
        self._inbox.append((operation, reply))
        if not self._wake.is_set():
            self._wake.set()
        return reply

    def send(self, operation: Operation) -> None:
        """Have an operation decided without waiting for it."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_log_failure)
        self._inbox.append((operation, future))
        self._wake.set()

    async def run(self) -> None:
        """Beat until stopped; what was taken up is finished first."""
        while not (self._stopping and not self._inbox):
            await self._wake.wait()
            self._wake.clear()
            while self._inbox:
                await self._gather()
                count = min(len(self._inbox), OPERATIONS_PER_BEAT_MAX)
                await self._beat_safely([self._inbox.popleft() for _ in range(count)])

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
        try:
            await self._beat(waiting)
        except Exception as error:
            busy = isinstance(error, Unavailable) and error.reason == "storage_busy"
            if len(waiting) == 1 or busy:
                # Somebody else holds the disk; going one by one would only wait as often.
                for one in waiting:
                    self._refuse(one, error)
                return
            log.warning("a beat of %d operations failed (%s); each goes alone", len(waiting), error)
            for one in waiting:
                await self._beat_safely([one])

    def _refuse(self, waiting: Waiting, error: Exception) -> None:
        operation, future = waiting
        if not isinstance(error, Unavailable):
            log.error("operation %s is broken", operation.name, exc_info=error)
        if not future.done():
            future.set_exception(error)

    async def _beat(self, waiting: Sequence[Waiting]) -> None:
        world = World(Moment(self._clock.now(), self._ids), self.workers, follow)
        try:
            answers = await self._decide(world, waiting)
            self._granting.match(world, self._matcher)
            world.changes.runs = list(world.touched.values())
            if not world.changes.is_empty:
                await self.store.commit(world.changes)
        except BaseException:
            for run_id in world.runs:
                self._cache.drop(run_id)
            # In reverse, so that each gets back the place that it had.
            for grant in reversed(world.grants):
                self._matcher.restore(grant.poller)
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
            try:
                grant.poller.granted(grant.run, grant.place)
            except Exception:
                log.exception("a lease of run %s was not handed over", grant.run.run_id)

    async def _decide(
        self, world: World, waiting: Sequence[Waiting]
    ) -> list[tuple["asyncio.Future[Any]", Any]]:
        answers: list[tuple[asyncio.Future[Any], Any]] = []
        await self._load(world, [operation for operation, _ in waiting])
        for operation, future in waiting:
            if world.broken and self._needs_broken(world, operation):
                answers.append((future, BrokenRun(operation.name)))
                continue
            try:
                answers.append((future, operation.decide(world)))
            except Rejection as rejection:
                answers.append((future, rejection))
        # What follows for other runs belongs to the same transaction. A family of runs is
        # finite and each effect leads to another member of it, so this ends.
        while world.follow_ups:
            following, world.follow_ups = world.follow_ups, []
            await self._load(world, following)
            for operation in following:
                operation.decide(world)
        return answers

    async def _load(self, world: World, operations: Sequence[Operation]) -> None:
        wanted: dict[str, None] = {}
        instances = []
        receipts = []
        for operation in operations:
            for run_id in operation.run_ids():
                wanted[run_id] = None
            if operation.looks_around:
                for run_id in await operation.prepare(self.store, world):
                    wanted[run_id] = None
            for instance in operation.instances():
                if instance not in world.loaded_instances:
                    world.loaded_instances.add(instance)
                    instances.append(instance)
            for key in operation.receipts():
                if key not in world.loaded_receipts:
                    world.loaded_receipts.add(key)
                    receipts.append(key)
        if instances:
            for instance, run_id in (await self.store.find_current(instances)).items():
                world.current.setdefault(instance, run_id)
                wanted[run_id] = None
        if receipts:
            world.receipts.update(await self.store.find_receipts(receipts))
        missing = []
        for run_id in wanted:
            if run_id in world.runs:
                continue
            run = self._cache.find(run_id)
            if run is None:
                missing.append(run_id)
            else:
                world.runs[run_id] = run
        if missing:
            for run in await self._load_runs(world, missing):
                world.runs[run.run_id] = run

    async def _load_runs(self, world: World, run_ids: Sequence[str]) -> list[Run]:
        """Runs from disk. One that cannot be read does not keep the others from being read."""
        try:
            return await self.store.load_runs(run_ids)
        except Unavailable:
            raise
        except Exception:
            if len(run_ids) == 1:
                log.exception("run %s cannot be read", run_ids[0])
                world.broken.add(run_ids[0])
                return []
        loaded = []
        for run_id in run_ids:
            loaded += await self._load_runs(world, [run_id])
        return loaded

    @staticmethod
    def _needs_broken(world: World, operation: Operation) -> bool:
        needed = {world.current.get(instance) for instance in operation.instances()}
        return not world.broken.isdisjoint({*operation.run_ids(), *needed})

    def _saved(self, world: World) -> None:
        for worker_key, worker in world.changes.workers.items():
            before = self.workers.get(worker_key)
            if before is not None and _ended(before, worker):
                self._matcher.registration_ended(before)
            if worker is None:
                self.workers.pop(worker_key, None)
            else:
                self.workers[worker_key] = worker
        for key, names in world.exhausted:
            self._matcher.exhausted(key, names)
        for run in world.runs.values():
            if run.run_id in world.touched:
                if run.unsaved.ready:
                    for _, key, name in ready_tasks(run):
                        self._matcher.offered(key, name)
                if run.due_at is not None and run.due_at != run.unsaved.due_at:
                    self._on_due(run.due_at)
                run.unsaved.clear(run.due_at)
            self._cache.keep(run)

    def _wake_others(self, world: World) -> None:
        for run in world.touched.values():
            self._on_change(run)


def _ended(before: Worker, after: Worker | None) -> bool:
    """Whether a registration is over, and not only reported on."""
    if after is None or after.deregistered_at is not None:
        return before.deregistered_at is None
    return after.registration_token != before.registration_token


def _log_failure(future: "asyncio.Future[Any]") -> None:
    if not future.cancelled() and future.exception() is not None:
        log.warning("a background operation was refused: %s", future.exception())

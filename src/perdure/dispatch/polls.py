"""Polls from the outside: who may poll, how long, and what a repeated poll gets."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from msgspec import Struct

from perdure.core.fleet.contract import takeable
from perdure.core.fleet.worker import Worker, require_poll_allowed, require_taking
from perdure.core.limits import POLL_ANSWERS_MAX, SECOND
from perdure.core.rejection import WorkerNotRegistered
from perdure.core.run.state import Run
from perdure.dispatch.delivery import (
    ActivityDelivery,
    Claim,
    Delivery,
    PollName,
    claim_of,
    deliver_to_poll,
    poll_of,
)
from perdure.dispatch.parked_polls import ParkedPoller, ParkedPolls, PollKey
from perdure.dispatch.poll_timeouts import TimeoutQueue
from perdure.dispatch.task_waiters import TaskWaiterSet
from perdure.dispatch.throttled_queues import ThrottledQueues
from perdure.engine.activity_tasks import AttemptRef, ReleaseActivity
from perdure.engine.beat import Engine
from perdure.engine.claims import Claimed, ClaimTasks, ShowLeases, ShowRun
from perdure.engine.leasing import Leasing
from perdure.engine.reply import Reply
from perdure.engine.workflow_tasks import ReleaseWorkflowTask
from perdure.store.interface import (
    PollLease,
    QueueKey,
    SharedStore,
    Unavailable,
    queue_key,
)

log = logging.getLogger(__name__)

_CROWDED_SECONDS = 0.002
"""How long to leave a queue to another node at first; longer if it stays there."""


class PollStatus(StrEnum):
    """How a poll ended."""

    LEASED = "leased"
    EMPTY = "empty"
    THROTTLED = "throttled"
    NO_WORKFLOW_CAPABILITY = "no_workflow_capability"
    NO_ACTIVITY_CAPABILITY = "no_activity_capability"


class Poll(Struct, frozen=True, kw_only=True):
    """One poll, with the identity under which it may be repeated."""

    namespace: str
    worker_id: str
    queue: str
    kind: str
    timeout: int
    build_id: str | None = None
    request_id: str | None = None
    page_size: int
    progress: bool = True
    """Whether a workflow poll takes tasks in which the code goes on."""
    validations: bool = False
    """Whether it takes validations of updates."""
    sessions: bool = False
    """Whether an activity poll takes activities of worker sessions."""

    @property
    def poll_name(self) -> PollName:
        return PollName(self.namespace, self.kind, self.worker_id, str(self.request_id))


class PollAnswer(Struct, frozen=True):
    """A task, or why there is none."""

    status: PollStatus
    delivery: Delivery | None = None


_HASTY_SECONDS_MAX = 5.0
"""How long a poll with no time waits for a look at a disk that does not answer."""

_LEASED = PollStatus.LEASED

RunWatch = Callable[[Callable[[], object]], None]
"""Says whom to call when the client has left."""

_EMPTY = {
    "workflow": PollStatus.NO_WORKFLOW_CAPABILITY,
    "activity": PollStatus.NO_ACTIVITY_CAPABILITY,
}


class Polling:
    """Parks polls, and remembers the leases that recent polls were given."""

    def __init__(
        self,
        engine: Engine,
        parked_polls: ParkedPolls,
        leasing: Leasing,
        task_waiters: TaskWaiterSet | None = None,
        throttled_queues: ThrottledQueues | None = None,
    ) -> None:
        self._engine = engine
        self._parked_polls = parked_polls
        # Everybody for whom ready tasks are looked for; polls are only some of them.
        self._task_waiters: TaskWaiterSet = task_waiters or parked_polls
        self._leasing = leasing
        self._shut_queues = throttled_queues or ThrottledQueues(parked_polls)
        self._polls: OrderedDict[PollKey, ParkedPoller | Claim] = OrderedDict()
        # Workers that held leases when this process began: what their polls were given before
        # is on disk only.
        self._inherited: set[tuple[str, str]] = set()
        parked_polls.connect(self.look)
        self._health = engine.store.health
        self._health.on_change(self._store_changed)
        # Builds that get nothing more. It is the set of the engine: mostly empty, never replaced.
        self._draining = parked_polls.draining = engine.rollouts.draining
        engine.rollouts.connect(parked_polls.drained)
        self._crowded: dict[QueueKey, int] = {}
        # By the length of polls, in microseconds. Whole seconds up to a minute, so they are few.
        self._patience: dict[int, TimeoutQueue] = {}
        self._looks: set[asyncio.Task[None]] = set()

    def _store_changed(self) -> None:
        if self._health.trouble is not None:
            self._parked_polls.let_go(only_hasty=True)

    async def poll(self, poll: Poll, watch: RunWatch) -> PollAnswer:
        """Wait for a task. `watch` tells when the client has left; then nothing is leased.

        Raises `Unavailable` when nothing can be leased.
        """
        self._health.require_pollable(is_hasty=poll.timeout == 0)
        who = (poll.namespace, poll.worker_id)
        known = self._engine.workers.get(who) or await self._engine.find_worker(who)
        worker = _require_allowed(poll, known)
        key = _key_of(poll)
        if key is not None and (key in self._polls or who in self._inherited):
            answer = await self._answer_before(poll, key)
            if answer is not None:
                return answer
        # What such a poll was given before is its worker's, whatever became of its build since.
        require_taking(worker, self._draining)
        poller = self._park(poll, worker, key, watch)
        try:
            await poller.answer
        except asyncio.CancelledError:
            # Its time is up, its client has left, or the server is to stop.
            pass
        finally:
            delivery = self.end(poller)
        return PollAnswer(_LEASED, delivery) if delivery is not None else self.nothing_for(poller)

    def begin(self, poll: Poll, watch: RunWatch) -> ParkedPoller | None:
        """Park a poll at once, to be ended by `end` when it has its answer.

        None if something must be asked before, which `poll` does.
        """
        who = (poll.namespace, poll.worker_id)
        worker = self._engine.workers.get(who)
        key = _key_of(poll)
        if worker is None or worker.deregistered_at is not None:
            return None
        if key in self._polls or who in self._inherited:
            return None
        self._health.require_pollable(is_hasty=poll.timeout == 0)
        require_poll_allowed(worker, queue=poll.queue, build_id=poll.build_id)
        if self._draining:
            require_taking(worker, self._draining)
        return self._park(poll, worker, key, watch)

    def _park(
        self, poll: Poll, worker: Worker, key: PollKey | None, watch: RunWatch
    ) -> ParkedPoller:
        # A poll with no time waits until the engine has looked at what is ready; see the yard.
        patience = self._patience.get(poll.timeout) or self._patience_for(poll.timeout)
        answer = Reply(loop=self._engine.loop)
        poller = ParkedPoller(
            queue_key(poll.namespace, poll.queue, poll.kind),
            worker,
            takeable(worker, poll.kind, progress=poll.progress, validations=poll.validations),
            page_size=poll.page_size,
            poll_id=poll.request_id,
            on_abandoned=self._give_back,
            answer=answer,
            is_hasty=poll.timeout == 0,
            takes_sessions=poll.sessions,
            progress=poll.progress,
            validations=poll.validations,
            patience=patience,
            poll_key=key,
        )
        if poller.is_hasty and self._engine.store.is_shared:
            self._parked_polls.suspect(poller.key, poller.names)
        self._parked_polls.park(poller)
        if key is not None:
            self._remember(key, poller)
        patience.begin(poller)
        watch(answer.cancel)
        return poller

    def end(self, poller: ParkedPoller) -> Delivery | None:
        """Take a poll away that waits no longer; what it was given, if it was."""
        assert poller.patience is not None
        poller.patience.end(poller)
        answer = poller.answer
        given = answer.done() and not answer.cancelled()
        delivery: Delivery | None = answer.result() if given else None
        if delivery is None:
            # Who was given something has been taken away for it.
            self._parked_polls.leave(poller)
        key = poller.poll_key
        if key is not None and self._polls.get(key) is poller:
            # What was given is remembered, not what it looked like: that is in the run.
            if delivery is None:
                del self._polls[key]
            else:
                self._polls[key] = claim_of(delivery)
        return delivery

    def nothing_for(self, poller: ParkedPoller) -> PollAnswer:
        """The answer to a poll that was given nothing. One whose build was drained is refused."""
        if self._draining:
            require_taking(poller.worker, self._draining)
        if (trouble := self._health.trouble) is not None:
            raise trouble
        if not poller.names:
            return PollAnswer(_EMPTY[poller.key.kind])
        if poller.is_hasty and poller.is_over:
            raise Unavailable("storage_busy", "the store was not looked at in time")
        is_throttled = poller.key in self._parked_polls.shut
        return PollAnswer(PollStatus.THROTTLED if is_throttled else PollStatus.EMPTY)

    async def _answer_before(self, poll: Poll, key: PollKey) -> PollAnswer | None:
        """What this very poll was given already, at this process or before it began."""
        earlier = self._polls.get(key)
        answer = None if earlier is None else await self._repeat(poll, earlier)
        if answer is None and (poll.namespace, poll.worker_id) in self._inherited:
            answer = await self._inherit(poll)
        return answer

    async def open(self) -> None:
        """Find out who holds leases from before. On a shared store `recover` does that."""
        if not self._engine.store.is_shared:
            self._inherited = set(await self._engine.store.load_lease_owners())

    async def recover(self, store: SharedStore) -> int:
        """Give parked polls the leases that another node granted them and could not hand over.

        As when a node dies between its commit and its answer, and the poll is repeated here.
        Returns how many were found.
        """
        waiting: dict[PollName, list[ParkedPoller]] = {}
        for poller in self._parked_polls.awaiting():
            waiting.setdefault(poller.poll_name, []).append(poller)
        if not waiting:
            return 0
        owners = {name.owner for name in waiting}
        found = await store.find_poll_leases(owners, {name.poll_id for name in waiting})
        given = 0
        for lease in found:
            for poller in waiting.get(poll_of(lease), ()):
                if await self._hand_over(poller, lease):
                    given += 1
                    break
        return given

    async def _hand_over(self, poller: ParkedPoller, lease: PollLease) -> bool:
        def copy(run: Run) -> Delivery | None:
            return deliver_to_poll(run, lease.place, poller)

        delivery = await self._engine.submit(ShowRun(lease.namespace, lease.run_id, copy))
        if delivery is None or not self._parked_polls.is_parked(poller) or poller.answer.done():
            return False
        self._parked_polls.leave(poller)
        poller.answer.set_result(delivery)
        return True

    async def _inherit(self, poll: Poll) -> PollAnswer | None:
        """A lease that an earlier process granted to this very poll and could not hand over."""

        def copy(run: Run, place: int) -> Delivery | None:
            return deliver_to_poll(run, place, poll)

        found, any_left = await self._engine.submit(
            ShowLeases(poll.namespace, poll.worker_id, copy)
        )
        if not any_left:
            self._inherited.discard((poll.namespace, poll.worker_id))
        return None if found is None else PollAnswer(PollStatus.LEASED, found)

    def _patience_for(self, timeout: int) -> TimeoutQueue:
        patience = self._patience[timeout] = TimeoutQueue(timeout / SECOND or _HASTY_SECONDS_MAX)
        return patience

    def _remember(self, key: PollKey, poller: ParkedPoller) -> None:
        self._polls[key] = poller
        while len(self._polls) > POLL_ANSWERS_MAX:
            self._polls.popitem(last=False)

    async def _repeat(self, poll: Poll, earlier: ParkedPoller | Claim) -> PollAnswer | None:
        """The answer of the poll that is repeated, if it has one whose lease still stands."""
        if isinstance(earlier, ParkedPoller):
            if not earlier.answer.done():
                await asyncio.wait({earlier.answer}, timeout=poll.timeout / SECOND)
            if not earlier.answer.done() or earlier.answer.cancelled():
                return None
            earlier = claim_of(earlier.answer.result())

        def copy(run: Run) -> Delivery | None:
            # Attempts are counted anew with every task of a run; the lease knows its poll.
            return deliver_to_poll(run, earlier.place, poll)

        delivery = await self._engine.submit(ShowRun(poll.namespace, earlier.run_id, copy))
        return None if delivery is None else PollAnswer(PollStatus.LEASED, delivery)

    def _give_back(self, poller: ParkedPoller, delivery: Delivery) -> None:
        """A lease that nobody is there to receive goes back at once."""
        if not isinstance(delivery, ActivityDelivery):
            self._engine.send(
                ReleaseWorkflowTask(
                    delivery.run_id,
                    number=delivery.number,
                    owner=delivery.owner,
                    attempt=delivery.attempt,
                )
            )
        else:
            attempt = _attempt(poller.key.namespace, delivery)
            self._engine.send(ReleaseActivity(attempt, was_seen=False))

    def look(self, key: QueueKey) -> None:
        """Have ready tasks of a queue looked for."""
        task = asyncio.get_running_loop().create_task(self._claim(key), name=f"claim {key.queue}")
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _claim(self, key: QueueKey) -> None:
        claimed = Claimed()
        try:
            reply = self._engine.submit(ClaimTasks(key, self._task_waiters, self._leasing))
            # At once: a run that changed in the same beat shall find out who waits for it.
            reply.tell(partial(self._shut_queues.learn, key))
            claimed = await reply
        except Exception as error:
            # The rows are still there; looking again at once would only press a sick disk.
            log.warning(
                "claiming ready tasks of queue %s failed, retrying in 1 s: %s", key.queue, error
            )
            await asyncio.sleep(1)
        if claimed.shut is not None:
            self._parked_polls.let_hasty_go(key)
            await self._shut_queues.wait(key, is_shared=self._engine.store.is_shared)
        if claimed.is_crowded:
            # Another node looks at what we want. Mostly it is done in a moment.
            tries = self._crowded[key] = self._crowded.get(key, 0) + 1
            await asyncio.sleep(min(_CROWDED_SECONDS * 2**tries, 1))
        else:
            self._crowded.pop(key, None)
        self._task_waiters.claimed(key)


def _key_of(poll: Poll) -> PollKey | None:
    if poll.request_id is None:
        return None
    takes = (poll.kind, poll.progress, poll.validations)
    return (*takes, poll.namespace, poll.queue, poll.worker_id, poll.request_id)


def _require_allowed(poll: Poll, worker: Worker | None) -> Worker:
    if worker is None or worker.deregistered_at is not None:
        raise WorkerNotRegistered(
            f"worker {poll.worker_id} is not registered", worker_id=poll.worker_id
        )
    require_poll_allowed(worker, queue=poll.queue, build_id=poll.build_id)
    return worker


def _attempt(namespace: str, delivery: ActivityDelivery) -> AttemptRef:
    return AttemptRef(
        namespace=namespace,
        run_id=delivery.run_id,
        sequence=delivery.sequence,
        attempt_id=delivery.attempt_id,
        owner=delivery.owner,
    )

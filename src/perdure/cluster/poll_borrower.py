"""Polls that are parked at other nodes, and the tasks that this node leases to them.

The lease is committed like any other, and the other node receives the task after the commit. This
node stays responsible for the lease until the other one confirms it: when it is refused, or not
confirmed in time, the task becomes ready again.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

from msgspec import Struct

from perdure.clock import Clock
from perdure.cluster.messages import (
    LentPoll,
    LentQueue,
    MessageTransport,
    PollOffer,
    TaskHandover,
    pack,
)
from perdure.core.fleet.contract import takeable
from perdure.core.fleet.worker import Cohort, Worker
from perdure.core.limits import BORROWED_POLLS_MAX, HAND_OVER_RUN_BYTES_MAX, NODES_REMEMBERED_MAX
from perdure.core.run.operation import Activity
from perdure.core.run.state import Run
from perdure.dispatch.delivery import Claim, find_claim
from perdure.engine.activity_tasks import AttemptRef, ReleaseActivity
from perdure.engine.beat import Engine
from perdure.engine.matching import Poller
from perdure.engine.operation import Operation
from perdure.engine.workflow_tasks import ReleaseWorkflowTask
from perdure.store.interface import QueueKey
from perdure.store.run_codec import pack_run

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_TICKS_MAX = 2
"""How often a hand-over is looked at before it is given up."""


class RemotePoller:
    """A poll of another node."""

    __slots__ = ("_hand_over", "key", "name", "names", "node", "number", "poll_id", "worker")

    def __init__(
        self,
        node: str,
        key: QueueKey,
        lent: LentPoll,
        worker: Worker,
        hand_over: "Callable[[RemotePoller, Run, int], None]",
    ) -> None:
        self.node = node
        self.key = key
        self.number = lent.number
        self.poll_id: str | None = lent.poll_id
        self.worker = worker
        self.names = takeable(
            worker, key.kind, progress=lent.progress, validations=lent.validations
        )
        # The task that it was reserved for.
        self.name = ""
        self._hand_over = hand_over

    @property
    def is_elsewhere(self) -> bool:
        return True

    @property
    def identity(self) -> tuple[str, int]:
        return self.node, self.number

    def granted(self, run: Run, place: int) -> None:
        self._hand_over(self, run, place)


class PollRecall(NamedTuple):
    """What ends one lease and no other."""

    if_refused: Operation
    if_silent: Operation


class _UnderWay(Struct):
    """A hand-over of which nothing was heard yet."""

    poller: RemotePoller
    taking_back: PollRecall
    ticks: int = 0


class Borrower:
    """The polls that other nodes lend to this one."""

    def __init__(
        self, node_id: str, clock: Clock, engine: Engine, courier: MessageTransport
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._engine = engine
        self._courier = courier
        self._polls: dict[QueueKey, OrderedDict[tuple[str, int], RemotePoller]] = {}
        self._count = 0
        # Of each node, the number of its last telling.
        self._heard: OrderedDict[str, int] = OrderedDict()
        # Polls that a beat has in hand.
        self._reserved: dict[tuple[str, int], RemotePoller] = {}
        self._number = 0
        self._under_way: dict[int, _UnderWay] = {}
        self._timer: asyncio.Handle | None = None
        self._packed: tuple[str, int, bytes | None] = ("", 0, None)

    @property
    def count(self) -> int:
        """How many polls of others could be used."""
        return self._count

    # Hearing -------------------------------------------------------------------------------------

    def hear(self, telling: PollOffer) -> None:
        """Take in what a node lends, and what it did with what it was given."""
        for number in telling.taken:
            self._under_way.pop(number, None)
        for number in telling.refused:
            self._take_back(number, is_refused=True)
        if telling.number <= self._heard.get(telling.sender, 0):
            # A later one was heard before.
            return
        self._heard[telling.sender] = telling.number
        self._heard.move_to_end(telling.sender)
        while len(self._heard) > NODES_REMEMBERED_MAX:
            self._heard.popitem(last=False)
        for queue in telling.queues:
            self._replace(telling.sender, queue)

    def _replace(self, node: str, queue: LentQueue) -> None:
        key = QueueKey(*queue.key)
        polls = self._polls.setdefault(key, OrderedDict())
        self._drop(polls, [identity for identity in polls if identity[0] == node])
        told = {poll.number for poll in queue.polls}
        for identity, poller in list(self._reserved.items()):
            if identity[0] == node and poller.key == key and poller.number not in told:
                del self._reserved[identity]
        used = {each.poller.identity for each in self._under_way.values()}
        for lent in queue.polls:
            worker = self._engine.workers.get((key.namespace, lent.worker_id))
            identity = (node, lent.number)
            if worker is None or worker.registered_at != lent.registered_at:
                # We know another registration than its node does.
                continue
            if identity in used or identity in self._reserved or self._count >= BORROWED_POLLS_MAX:
                continue
            if worker.cohort in self._engine.rollouts.draining:
                # Its node has not heard of it yet.
                continue
            polls[identity] = RemotePoller(node, key, lent, worker, self._hand_over)
            self._count += 1
        if not polls:
            del self._polls[key]

    def forget(self, node: str) -> None:
        """A node is gone, with its polls and all that was under way to it."""
        self._heard.pop(node, None)
        self._forget_polls_of(node)
        for number, each in list(self._under_way.items()):
            if each.poller.node == node:
                self._take_back(number)

    def _forget_polls_of(self, node: str) -> None:
        self._forget_polls(lambda poller: poller.node == node)

    def registration_ended(self, worker: Worker) -> None:
        """Polls of an earlier registration get nothing more."""
        whose = (worker.namespace, worker.worker_id)
        self._forget_polls(lambda poller: (poller.key.namespace, poller.worker.worker_id) == whose)

    def drained(self, cohorts: Collection[Cohort]) -> None:
        """Polls of builds that drain get nothing more."""
        self._forget_polls(lambda poller: poller.worker.cohort in cohorts)

    def _forget_polls(self, is_gone: Callable[[RemotePoller], bool]) -> None:
        for key, polls in list(self._polls.items()):
            self._drop(polls, [identity for identity, each in polls.items() if is_gone(each)])
            if not polls:
                del self._polls[key]
        for identity, poller in list(self._reserved.items()):
            if is_gone(poller):
                del self._reserved[identity]

    def _drop(
        self,
        polls: OrderedDict[tuple[str, int], RemotePoller],
        identities: list[tuple[str, int]],
    ) -> None:
        for identity in identities:
            del polls[identity]
        self._count -= len(identities)

    # For the engine ------------------------------------------------------------------------------

    def reserve(self, key: QueueKey, name: str) -> RemotePoller | None:
        polls = self._polls.get(key)
        if not polls:
            return None
        for identity, poller in polls.items():
            if name in poller.names:
                self._drop(polls, [identity])
                if not polls:
                    del self._polls[key]
                poller.name = name
                self._reserved[identity] = poller
                return poller
        return None

    def restore(self, poller: Poller) -> None:
        """Its lease was not committed: it may be used again, unless its node says otherwise."""
        assert isinstance(poller, RemotePoller)
        if self._reserved.pop(poller.identity, None) is not None:
            polls = self._polls.setdefault(poller.key, OrderedDict())
            polls[poller.identity] = poller
            polls.move_to_end(poller.identity, last=False)
            self._count += 1

    # Handing over --------------------------------------------------------------------------------

    def _hand_over(self, poller: RemotePoller, run: Run, place: int) -> None:
        self._reserved.pop(poller.identity, None)
        self._number += 1
        claim = find_claim(run, place)
        assert claim is not None
        self._under_way[self._number] = _UnderWay(poller, _taking_back(run, claim))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self.tick)
        given = TaskHandover(
            sender=self._node_id,
            number=self._number,
            key=poller.key,
            poll=poller.number,
            name=poller.name,
            run_id=run.run_id,
            place=place,
            attempt=claim.number,
            owner=claim.owner,
            sent_at=self._clock.now(),
            run=self._carried(run) if self._courier.is_near(poller.node) else None,
            task=claim.task,
        )
        self._courier.carry(poller.node, pack(given))

    def _carried(self, run: Run) -> bytes | None:
        """The run as it now is; several tasks of one run need it to be packed only once."""
        run_id, version, packed = self._packed
        if (run_id, version) != (run.run_id, run.version):
            packed = pack_run(run, HAND_OVER_RUN_BYTES_MAX)
            self._packed = (run.run_id, run.version, packed)
        return packed

    def tick(self) -> None:
        """Some time has passed. Who was not heard of for so long is not counted on any more."""
        self._timer = None
        for number, each in list(self._under_way.items()):
            each.ticks += 1
            if each.ticks > _TICKS_MAX:
                log.info(
                    "stopped sharing polls with node %s: it no longer reports", each.poller.node
                )
                self._forget_polls_of(each.poller.node)
                self._take_back(number)
        if self._under_way:
            self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self.tick)

    def _take_back(self, number: int, *, is_refused: bool = False) -> None:
        each = self._under_way.pop(number, None)
        if each is not None:
            refused, silent = each.taking_back
            self._engine.send(refused if is_refused else silent)


def _taking_back(run: Run, claim: Claim) -> PollRecall:
    """What ends a lease that was just granted."""
    if claim.task is not None:
        release = ReleaseWorkflowTask(
            run.run_id, number=claim.task, owner=claim.owner, attempt=claim.number
        )
        return PollRecall(release, release)
    activity = run.operations[claim.place]
    assert isinstance(activity, Activity)
    ref = AttemptRef(
        namespace=run.namespace,
        run_id=run.run_id,
        sequence=activity.sequence,
        attempt_id=activity.attempt_id,
        owner=claim.owner,
    )
    # A node that says nothing may have delivered it.
    return PollRecall(ReleaseActivity(ref, was_seen=False), ReleaseActivity(ref, was_seen=True))

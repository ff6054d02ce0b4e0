"""Polls that are parked at this node and offered to other nodes.

A node without a poll for a ready task sends a hint. From then on it receives the polls of that
queue that are parked here, each offered to one node only, and it may lease a task to one of them
and hand it over. Correctness does not depend on it: a task that no longer fits is refused, and a
lost message is noticed by its sender.
"""

import asyncio
import logging
from collections import OrderedDict

import msgspec

from perdure.clock import Clock
from perdure.cluster.messages import (
    LentPoll,
    LentQueue,
    MessageTransport,
    PollOffer,
    TaskHandover,
    pack,
)
from perdure.core.limits import (
    HAND_OVERS_REMEMBERED_MAX,
    LENDING_QUEUES_MAX,
    LENT_POLLS_PER_QUEUE_MAX,
    LENT_POLLS_REMEMBERED_MAX,
    SECOND,
)
from perdure.core.run.state import Run
from perdure.dispatch.delivery import (
    Claim,
    Delivery,
    PollName,
    claim_of,
    deliver_again,
    deliver_to_poll,
    find_lease,
    poll_of,
)
from perdure.dispatch.parked_polls import ParkedPoller, ParkedPolls
from perdure.engine.beat import Engine
from perdure.engine.claims import ShowRun
from perdure.store.interface import PollLease, QueueKey, SharedStore
from perdure.store.run_codec import unpack_run

log = logging.getLogger(__name__)

_WANTED = 60 * SECOND
"""How long a node that had no poll for a queue is told about those that are here."""
_PROMPT = SECOND
"""How long what comes with a hand-over is believed; nobody takes a task back sooner."""
_TAKEN_SECONDS = 0.02
"""How long a receipt may wait for something else that is to be told."""


_Ended = dict[PollName, tuple[ParkedPoller, int]]
"""Polls, and when they ended."""


class Lender:
    """The polls of this node that others may have, and the tasks that they send for them."""

    def __init__(
        self,
        node_id: str,
        clock: Clock,
        parked_polls: ParkedPolls,
        engine: Engine,
        courier: MessageTransport,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._parked_polls = parked_polls
        self._engine = engine
        self._courier = courier
        self._number = 0
        self._poll_number = 0
        # Who wants to know of a queue, the latest last, and until when.
        self._wanted: OrderedDict[QueueKey, OrderedDict[str, int]] = OrderedDict()
        # What they were told last.
        self._told: dict[tuple[QueueKey, str], list[int]] = {}
        self._lent: dict[QueueKey, dict[int, ParkedPoller]] = {}
        self._recent: OrderedDict[int, ParkedPoller] = OrderedDict()
        self._handled: OrderedDict[tuple[str, int], bool] = OrderedDict()
        self._taken: dict[str, list[int]] = {}
        self._refused: dict[str, list[int]] = {}
        self._changed: set[QueueKey] = set()
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.Handle | None = None
        self._loading: set[asyncio.Task[None]] = set()
        # Lent polls that ended with nothing since the last look, and since the one before it.
        self._empty: _Ended = {}
        self._emptier: _Ended = {}
        parked_polls.on_parked, parked_polls.on_left = self._parked, self._left

    # Lending -------------------------------------------------------------------------------------

    def wanted_by(self, node: str, key: QueueKey, name: str) -> None:
        """A node has a task of this name for a queue, and no poll."""
        nodes = self._wanted.setdefault(key, OrderedDict())
        self._wanted.move_to_end(key)
        nodes[node] = self._clock.now() + _WANTED
        nodes.move_to_end(node)
        lent = self._lent.get(key, {}).values()
        if any(poller.lent_to == node and name in poller.names for poller in lent):
            # It would have used one of these if it knew of them.
            self._told.pop((key, node), None)
        while len(self._wanted) > LENDING_QUEUES_MAX:
            self._withdraw(next(iter(self._wanted)))
        self._note(key)

    def forget(self, node: str) -> None:
        """A node is gone: nothing is lent to it any more."""
        for key in [key for key, nodes in self._wanted.items() if node in nodes]:
            del self._wanted[key][node]
            self._told.pop((key, node), None)
            self._note(key)
        self._taken.pop(node, None)
        self._refused.pop(node, None)

    def _parked(self, poller: ParkedPoller) -> None:
        self._forget_ended(poller)
        if poller.key in self._wanted:
            self._note(poller.key)

    def _left(self, poller: ParkedPoller) -> None:
        if poller.lent_to is not None:
            poller.lent_to = None
            if poller.is_over and len(self._empty) < LENT_POLLS_REMEMBERED_MAX:
                self._empty[poller.poll_name] = (poller, self._clock.now())
            lent = self._lent.get(poller.key)
            if lent is not None and lent.pop(poller.number, None) is not None and not lent:
                del self._lent[poller.key]
            self._note(poller.key)

    def _note(self, key: QueueKey) -> None:
        self._changed.add(key)
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.tell)

    def _tell_later(self) -> None:
        if self._later is None and self._soon is None:
            self._later = asyncio.get_running_loop().call_later(_TAKEN_SECONDS, self.tell)

    def tell(self) -> None:
        """Tell every node what has changed for it."""
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = None
        changed, self._changed = self._changed, set()
        news: dict[str, list[LentQueue]] = {}
        for key in changed:
            for node, lent in self._share_out(key).items():
                numbers = [poller.number for poller in lent]
                if self._told.get((key, node), []) != numbers:
                    polls = [_described(poller) for poller in lent]
                    news.setdefault(node, []).append(LentQueue(key, polls))
                self._told[key, node] = numbers
                if not numbers:
                    del self._told[key, node]
        taken, self._taken = self._taken, {}
        refused, self._refused = self._refused, {}
        for node in news.keys() | taken.keys() | refused.keys():
            self._number += 1
            telling = PollOffer(
                sender=self._node_id,
                number=self._number,
                queues=news.get(node, []),
                taken=taken.get(node, []),
                refused=refused.get(node, []),
            )
            self._courier.carry(node, pack(telling))

    def _share_out(self, key: QueueKey) -> dict[str, list[ParkedPoller]]:
        """Lend what is parked for a queue to those who want it: who asked last comes first."""
        shares: dict[str, list[ParkedPoller]] = {}
        nodes = self._wanted.get(key)
        if nodes is None:
            return shares
        now = self._clock.now()
        for node in [node for node, until in nodes.items() if until < now]:
            del nodes[node]
            shares[node] = []
        lent = self._lent.setdefault(key, {})
        for poller in list(lent.values()):
            if poller.lent_to not in nodes:
                poller.lent_to = None
                del lent[poller.number]
        free = iter(self._parked_polls.newest(key))
        for node in reversed(nodes):
            share = [poller for poller in lent.values() if poller.lent_to == node]
            while len(share) < LENT_POLLS_PER_QUEUE_MAX:
                another = next((each for each in free if _can_be_lent(each)), None)
                if another is None:
                    break
                self._lend(another, node)
                share.append(another)
            shares[node] = share
        if not lent:
            del self._lent[key]
        if not nodes:
            del self._wanted[key]
        return shares

    def _lend(self, poller: ParkedPoller, node: str) -> None:
        self._poll_number += 1
        poller.number, poller.lent_to = self._poll_number, node
        self._lent[poller.key][poller.number] = poller
        self._recent[poller.number] = poller
        while len(self._recent) > LENT_POLLS_REMEMBERED_MAX:
            self._recent.popitem(last=False)

    def _withdraw(self, key: QueueKey) -> None:
        for node in self._wanted[key]:
            self._wanted[key][node] = 0
        self._note(key)
        self.tell()

    # Taking what was handed over -----------------------------------------------------------------

    def take(self, given: TaskHandover) -> None:
        """Another node leased a task to a poll of ours."""
        known = self._handled.get((given.sender, given.number))
        if known is None:
            self._handle(given, is_taken=False)
            self._take(given)
        elif known:
            self._receipt(given)

    def _take(self, given: TaskHandover) -> None:
        nodes = self._wanted.get(given.key)
        if nodes is not None and given.sender in nodes:
            nodes[given.sender] = self._clock.now() + _WANTED
        claim = Claim(given.run_id, given.place, given.task, given.attempt, given.owner)
        poller = self._recent.get(given.poll)
        if poller is not None and _was_given(poller, claim):
            # It was found on disk in the meantime.
            self._receipt(given)
            return
        is_prompt = self._clock.now() - given.sent_at < _PROMPT
        # What may have been taken back, and done by others, must say which task it was.
        is_doubtful = claim.is_vague and not is_prompt
        if poller is None or not self._fits(poller, given):
            if poller is not None:
                # What it was given is taken by another one, or refused.
                self._forget_ended(poller)
            poller, is_prompt = self._parked_polls.find(given.key, given.name, given.owner), False
        if poller is None or is_doubtful:
            self._refuse(given)
            return
        told = self._told.get((given.key, given.sender))
        if told is not None and poller.number in told:
            # Whoever used it need not be told that it is gone.
            told.remove(poller.number)
        self._parked_polls.leave(poller)
        # What took its time may have been taken back: then the disk says.
        run = _unpacked(given.run) if is_prompt and given.run is not None else None
        if run is not None and run.run_id == given.run_id:
            self._engine.adopt(run)
            self._deliver(given, poller, deliver_again(run, claim, poller.page_size))
        else:
            task = asyncio.get_running_loop().create_task(self._load(given, poller, claim))
            self._loading.add(task)
            task.add_done_callback(self._loading.discard)

    async def _load(self, given: TaskHandover, poller: ParkedPoller, claim: Claim) -> None:
        def copy(run: Run) -> Delivery | None:
            return deliver_again(run, claim, poller.page_size)

        delivery = None
        try:
            showing = ShowRun(given.key.namespace, given.run_id, copy)
            delivery = await self._engine.submit(showing)
        except Exception as error:
            log.warning("reading a task that another node handed over failed: %s", error)
        self._deliver(given, poller, delivery)

    def _deliver(
        self, given: TaskHandover, poller: ParkedPoller, delivery: Delivery | None
    ) -> None:
        if delivery is None:
            # The lease is over already, or nobody can read it.
            self._parked_polls.restore(poller)
            self._refuse(given)
            return
        self._receipt(given)
        poller.given(delivery)

    # What nobody handed over ---------------------------------------------------------------------

    async def recover(self, store: SharedStore) -> None:
        """Give back what was leased to polls that ended with nothing, by nodes that died with it.

        A node that lives has taken it back before the second look. What such a poll was granted
        after it had ended was granted where it was repeated, and is none of our business.
        """
        ended = self._emptier
        if ended:
            owners, poll_ids = {name.owner for name in ended}, {name.poll_id for name in ended}
            for lease in await store.find_poll_leases(owners, poll_ids):
                known = ended.get(poll_of(lease))
                if known is not None:
                    await self._give_back(*known, lease)
        self._emptier, self._empty = self._empty, {}

    async def _give_back(self, poller: ParkedPoller, left_at: int, lease: PollLease) -> None:
        def copy(run: Run) -> Delivery | None:
            held = find_lease(run, lease.place)
            if held is None or held.granted_at > left_at:
                return None
            return deliver_to_poll(run, lease.place, poller)

        delivery = await self._engine.submit(ShowRun(lease.namespace, lease.run_id, copy))
        if delivery is not None:
            poller.given(delivery)

    def _forget_ended(self, poller: ParkedPoller) -> None:
        if self._empty or self._emptier:
            self._empty.pop(poller.poll_name, None)
            self._emptier.pop(poller.poll_name, None)

    def _fits(self, poller: ParkedPoller, given: TaskHandover) -> bool:
        return (
            given.name in poller.names
            and poller.worker.worker_id == given.owner
            and poller.key == given.key
            and self._parked_polls.is_parked(poller)
            and not poller.answer.done()
        )

    def _receipt(self, given: TaskHandover) -> None:
        self._handle(given, is_taken=True)
        self._taken.setdefault(given.sender, []).append(given.number)
        self._tell_later()

    def _refuse(self, given: TaskHandover) -> None:
        self._refused.setdefault(given.sender, []).append(given.number)
        self._tell_soon()

    def _handle(self, given: TaskHandover, *, is_taken: bool) -> None:
        self._handled[given.sender, given.number] = is_taken
        while len(self._handled) > HAND_OVERS_REMEMBERED_MAX:
            self._handled.popitem(last=False)


def _can_be_lent(poller: ParkedPoller) -> bool:
    """One without an id could not be found again if its task were lost on the way."""
    return (
        poller.lent_to is None
        and poller.poll_id is not None
        and not poller.is_hasty
        and not poller.answer.done()
    )


def _described(poller: ParkedPoller) -> LentPoll:
    return LentPoll(
        number=poller.number,
        worker_id=poller.worker.worker_id,
        registered_at=poller.worker.registered_at,
        poll_id=str(poller.poll_id),
        progress=poller.progress,
        validations=poller.validations,
    )


def _was_given(poller: ParkedPoller, claim: Claim) -> bool:
    answer = poller.answer
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return False
    return claim.names(claim_of(answer.result()))


def _unpacked(packed: bytes) -> Run | None:
    try:
        return unpack_run(packed)
    except msgspec.MsgspecError:
        log.warning("dropped a malformed run that another node handed over")
        return None

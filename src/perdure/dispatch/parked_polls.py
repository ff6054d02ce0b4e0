"""Parked polls. A poll that finds nothing costs one small object, no thread and no query.

A hint that tasks of some name are ready on disk is kept per queue; a poller that can take one makes
the engine look. Correctness never depends on it: rows and conditions decide in the beat.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Protocol

from msgspec import Struct

from perdure.core.fleet.worker import Cohort, Worker
from perdure.core.limits import PARKED_POLLS_MAX
from perdure.core.rejection import LongPollCapacityExhausted
from perdure.core.run.operation import Activity
from perdure.core.run.state import WORKFLOW_TASK, Run
from perdure.dispatch.delivery import (
    Delivery,
    PollName,
    deliver_activity,
    deliver_workflow_task,
)
from perdure.dispatch.poll_timeouts import TimeoutQueue
from perdure.dispatch.ready_names import ReadyNames
from perdure.dispatch.turns import Turns
from perdure.engine.matching import Poller
from perdure.engine.reply import Reply
from perdure.store.interface import QueueKey

PollKey = tuple[str, bool, bool, str, str, str, str]
"""What a poll takes, where, for whom, and its id."""


class ParkedPoller(Struct, eq=False):
    """One poll that waits for a task."""

    key: QueueKey
    worker: Worker
    names: frozenset[str]
    page_size: int
    poll_id: str | None
    on_abandoned: "Callable[[ParkedPoller, Delivery], None]"
    answer: Reply
    # Whether it waits only until somebody has looked at what is ready now.
    is_hasty: bool = False
    # Whether it may be given activities of worker sessions.
    takes_sessions: bool = False
    was_looked_for: bool = False
    # Whether its time was up: its client was told that there is nothing.
    is_over: bool = False
    # What it takes, and the node that may have it besides this one; see `lending`.
    progress: bool = True
    validations: bool = False
    lent_to: str | None = None
    number: int = 0
    # When its time is up, by the clock of the loop.
    ends_at: float = 0.0
    # In which line it waits for that, and under which name it is remembered.
    patience: TimeoutQueue | None = None
    poll_key: PollKey | None = None

    @property
    def is_elsewhere(self) -> bool:
        return False

    @property
    def poll_name(self) -> PollName:
        """Of a poll that has an id."""
        return PollName(self.key.namespace, self.key.kind, self.worker.worker_id, str(self.poll_id))

    def granted(self, run: Run, place: int) -> None:
        if place == WORKFLOW_TASK:
            delivery: Delivery = deliver_workflow_task(run, self.page_size)
        else:
            activity = run.operations[place]
            assert isinstance(activity, Activity)
            delivery = deliver_activity(run, activity)
        self.given(delivery)

    def time_is_up(self) -> None:
        """It has waited for as long as it may."""
        self.is_over = self.answer.cancel()

    def given(self, delivery: Delivery) -> None:
        """Pass a lease on, or back if nobody waits for it any more."""
        if self.answer.done():
            self.on_abandoned(self, delivery)
        else:
            self.answer.set_result(delivery)


class Sessions(Protocol):
    """Keeps ready activities of worker sessions."""

    def offered(self, key: QueueKey, name: str) -> None: ...
    def parked(self, poller: ParkedPoller) -> bool: ...


class Others(Protocol):
    """Pollers that are parked at other nodes and may be used by this one."""

    def reserve(self, key: QueueKey, name: str) -> Poller | None: ...
    def restore(self, poller: Poller) -> None: ...
    def registration_ended(self, worker: Worker) -> None: ...
    def drained(self, cohorts: Collection[Cohort]) -> None: ...


class ParkedPolls:
    """Every parked poller of this process, by queue, the longest waiting first."""

    def __init__(self, *, parked_max: int = PARKED_POLLS_MAX) -> None:
        self.parked_max = parked_max
        self._parked: dict[QueueKey, OrderedDict[int, ParkedPoller]] = {}
        self._count = 0
        self._ready = ReadyNames()
        self._claim: Callable[[QueueKey], None] = lambda key: None
        self._on_registration_ended: Callable[[Worker], None] = lambda worker: None
        self._on_drained: Callable[[Collection[Cohort]], None] = lambda cohorts: None
        # Who gets nothing more; see `Rollouts`.
        self.draining: Collection[Cohort] = frozenset()
        self._sessions: Sessions | None = None
        self._is_closed = False
        self.others: Others | None = None
        # Queues from which no more is leased now, and why; see `throttled_queues`.
        self.shut: Mapping[QueueKey, str] = {}
        # Who minds which polls are here; see `lending`.
        self.on_parked: Callable[[ParkedPoller], None] | None = None
        self.on_left: Callable[[ParkedPoller], None] | None = None
        # Whose polls are ended for the sake of another kind.
        self.turns: Turns | None = None

    def connect_sessions(self, sessions: "Sessions") -> None:
        """Say who brings polls together with tasks that not everybody may have."""
        self._sessions = sessions

    def connect(self, claim: Callable[[QueueKey], None]) -> None:
        """Say how to make the engine look for ready tasks of a queue."""
        self._claim = claim

    def on_registration_ended(self, tell: Callable[[Worker], None]) -> None:
        """Say who else must hear of it: polls of other kinds are parked elsewhere."""
        self._on_registration_ended = tell

    def on_drained(self, tell: Callable[[Collection[Cohort]], None]) -> None:
        """The same for builds that drain."""
        self._on_drained = tell

    @property
    def count(self) -> int:
        return self._count

    def park(self, poller: ParkedPoller) -> None:
        if self._count >= self.parked_max:
            raise LongPollCapacityExhausted(f"{self._count} polls are parked already")
        if self._is_closed:
            poller.answer.cancel()
            return
        parked = self._parked.get(poller.key)
        if parked is None:
            parked = self._parked[poller.key] = OrderedDict()
        parked[id(poller)] = poller
        self._count += 1
        self._tell_parked(poller)
        is_looked_for = not poller.names.isdisjoint(self._ready.of(poller.key))
        if is_looked_for:
            self._look(poller.key)
        if self._sessions is not None and poller.takes_sessions:
            is_looked_for |= self._sessions.parked(poller)
        if poller.is_hasty and (not is_looked_for or poller.key in self.shut):
            poller.answer.cancel()
        if self.turns is not None:
            self.turns.asked(poller.key.kind, poller.worker)
            if not is_looked_for and not poller.answer.done():
                self.turns.look(poller.key.kind, poller)

    def connect_turns(self, turns: Turns) -> None:
        """Say who minds workers that poll for one kind of task at a time."""
        self.turns = turns
        for kind in ("workflow", "activity"):
            turns.connect(kind, partial(self._has_ready, kind))

    def _has_ready(self, kind: str, worker: Worker, names: frozenset[str]) -> bool:
        key = QueueKey(worker.namespace, worker.queue, kind)
        return key not in self.shut and not names.isdisjoint(self._ready.of(key))

    def _tell_parked(self, poller: ParkedPoller) -> None:
        if self.on_parked is not None:
            self.on_parked(poller)
        if self.turns is not None:
            self.turns.parked(poller.key.kind, poller, may_end=not poller.is_hasty)

    def parked_at(self, key: QueueKey) -> list[ParkedPoller]:
        return list(self._parked.get(key, {}).values())

    def take(self, poller: ParkedPoller) -> bool:
        """Reserve one certain poller; false if it has left."""
        is_there = self.is_parked(poller)
        self.leave(poller)
        return is_there

    def hurry(self, key: QueueKey) -> None:
        """Let polls go that waited only for a look, unless another one is under way."""
        if not self._ready.is_looked_at(key):
            self.let_hasty_go(key)

    def let_hasty_go(self, key: QueueKey) -> None:
        """A look was made, and there is nothing for those who waited for one."""
        for poller in self.parked_at(key):
            if poller.is_hasty:
                poller.answer.cancel()

    def awaiting(self) -> list[ParkedPoller]:
        """Parked polls that may have been given a lease by another node, and never learned it."""
        return [
            poller
            for parked in self._parked.values()
            for poller in parked.values()
            if poller.poll_id is not None
        ]

    def is_parked(self, poller: ParkedPoller) -> bool:
        return id(poller) in self._parked.get(poller.key, ())

    def suspect(self, key: QueueKey, names: Collection[str]) -> None:
        """There may be ready tasks of these names, for all that this node knows."""
        for name in names:
            self._ready.offer(key, name)

    def leave(self, poller: ParkedPoller) -> None:
        """Take a poller away that waits no longer; one that was reserved is gone already."""
        parked = self._parked.get(poller.key)
        if parked is not None and parked.pop(id(poller), None) is not None:
            self._count -= 1
            if not parked:
                del self._parked[poller.key]
            if self.on_left is not None:
                self.on_left(poller)
            if self.turns is not None:
                self.turns.left(poller.key.kind, poller)

    def release_all(self) -> None:
        """Answer every parked poll with nothing, now and from now on: the server is to stop."""
        self._is_closed = True
        for parked in list(self._parked.values()):
            for poller in list(parked.values()):
                if not poller.answer.done():
                    poller.answer.cancel()

    def let_go(self, *, only_hasty: bool) -> None:
        """End parked polls now, or those with no time: nothing can be leased."""
        for parked in list(self._parked.values()):
            for poller in list(parked.values()):
                if (poller.is_hasty or not only_hasty) and not poller.answer.done():
                    poller.answer.cancel()

    def registration_ended(self, worker: Worker) -> None:
        """Polls of an earlier registration get nothing more; their worker asks anew if it lives."""
        for parked in list(self._parked.values()):
            for poller in list(parked.values()):
                known = poller.worker
                same = (known.namespace, known.worker_id) == (worker.namespace, worker.worker_id)
                if same and not poller.answer.done():
                    self.leave(poller)
                    poller.answer.cancel()
        if self.others is not None:
            self.others.registration_ended(worker)
        if self.turns is not None:
            self.turns.registration_ended(worker)
        self._on_registration_ended(worker)

    def drained(self, cohorts: Collection[Cohort]) -> None:
        """Polls of builds that drain get nothing more; their workers are told so at once."""
        for parked in list(self._parked.values()):
            for poller in list(parked.values()):
                if poller.worker.cohort in cohorts and not poller.answer.done():
                    self.leave(poller)
                    poller.answer.cancel()
        if self.others is not None:
            self.others.drained(cohorts)
        self._on_drained(cohorts)

    def newest(self, key: QueueKey) -> Iterator[ParkedPoller]:
        """The polls of a queue, those that came last first."""
        return reversed(self._parked.get(key, OrderedDict()).values())

    def find(self, key: QueueKey, name: str, worker_id: str) -> ParkedPoller | None:
        """A poll of one worker that can have a task of this name. It keeps its place."""
        for poller in self._parked.get(key, {}).values():
            if (
                poller.worker.worker_id == worker_id
                and name in poller.names
                and not poller.answer.done()
            ):
                return poller
        return None

    # For the engine ------------------------------------------------------------------------------

    def reserve(self, key: QueueKey, name: str, wanted: str | None = None) -> ParkedPoller | None:
        parked = self._parked.get(key)
        if not parked:
            return None
        lent = None
        if wanted is not None:
            for poller in parked.values():
                if poller.worker.worker_id == wanted and name in poller.names:
                    self.leave(poller)
                    return poller
        for poller in parked.values():
            if name in poller.names:
                if poller.lent_to is None:
                    self.leave(poller)
                    return poller
                lent = lent or poller
        # Others count on those that are lent, so they come last.
        if lent is not None:
            self.leave(lent)
        return lent

    def reserve_elsewhere(self, key: QueueKey, name: str) -> Poller | None:
        return None if self.others is None else self.others.reserve(key, name)

    def restore(self, poller: Poller) -> None:
        if not isinstance(poller, ParkedPoller):
            assert self.others is not None
            self.others.restore(poller)
            return
        if self.draining and poller.worker.cohort in self.draining:
            # Its build was drained while a beat had it in hand.
            poller.answer.cancel()
        elif not poller.answer.done():
            parked = self._parked.setdefault(poller.key, OrderedDict())
            parked[id(poller)] = poller
            parked.move_to_end(id(poller), last=False)
            self._count += 1
            self._tell_parked(poller)

    def offered(self, key: QueueKey, name: str) -> None:
        if key.kind == "session":
            if self._sessions is not None:
                self._sessions.offered(key, name)
            return
        self._ready.offer(key, name)
        if any(name in poller.names for poller in self._parked.get(key, {}).values()):
            self._look(key)
        elif self.turns is not None and key not in self.shut:
            self.turns.ready(key.namespace, key.queue, key.kind, name)

    def wanted(self, key: QueueKey) -> tuple[set[str], int]:
        self._ready.reads(key)
        return self._wanted(key)

    def _wanted(self, key: QueueKey) -> tuple[set[str], int]:
        parked: Mapping[int, ParkedPoller] = self._parked.get(key, {})
        ready = self._ready.of(key)
        names = {name for poller in parked.values() for name in poller.names if name in ready}
        return names, len(parked)

    def exhausted(self, key: QueueKey, names: set[str]) -> None:
        self._ready.exhausted(key, names)

    def claimed(self, key: QueueKey) -> None:
        """The engine has looked; look again if somebody still waits for what is there."""
        self._ready.end_look(key)
        names, _ = self._wanted(key)
        for poller in self._parked.get(key, {}).values():
            if poller.is_hasty:
                # The look may have begun before it came; the next one did not.
                if poller.was_looked_for or poller.names.isdisjoint(names):
                    poller.answer.cancel()
                poller.was_looked_for = True
        if names:
            self._look(key)
        elif self.turns is not None:
            self.turns.looked(key.namespace, key.queue, key.kind)

    def _look(self, key: QueueKey) -> None:
        if self._ready.begin_look(key):
            self._claim(key)

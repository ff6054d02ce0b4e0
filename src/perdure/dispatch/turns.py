"""Turns of workers that poll for one kind of task after the other, as the PHP SDK does.

Such a worker waits in a poll for workflow tasks while an activity that only it can take is ready.
Its poll is ended early, with an empty answer, and it comes to the kind that waits for it. Workers
that keep polls of several kinds open at once, as the Python SDK does, are left alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec import Struct, field

from perdure.clock import Clock
from perdure.core.fleet.contract import takeable, workflow_names
from perdure.core.fleet.query_contract import QUERY_TASKS
from perdure.core.fleet.worker import Worker
from perdure.core.limits import SECOND, WORKERS_MAX

QUERY = "query"
KINDS = ("workflow", "activity", QUERY)

_REST_MIN = SECOND
_REST_MAX = 5 * SECOND
"""A worker that was woken for a kind and did not ask for it is left alone for so long."""
_LOOKED_AT_MAX = 100
"""So many workers are asked about one ready task; whoever comes later looks for itself."""

Find = Callable[[Worker, frozenset[str]], bool]
"""Whether a task of one of these names is ready on the queue of a worker."""


class Waiting(Protocol):
    """A parked poll of any kind."""

    worker: Worker

    def time_is_up(self) -> None:
        """End it with an empty answer."""
        ...


class _Worker(Struct):
    """How one registration polls."""

    token: str
    open: dict[str, int] = field(default_factory=dict)
    # The kinds that it has asked for. One that never asked for a kind is not expected to.
    polled: set[str] = field(default_factory=set)
    # Whether it ever had polls of two kinds open at once.
    is_concurrent: bool = False
    # The kind of the poll that was ended early, and the kind that it was ended for.
    ended: tuple[str, str] | None = None
    in_vain: int = 0
    rests_until: int = 0


class Turns:
    """Every poll that is parked at this node, by its worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._find: dict[str, Find] = {}
        self._workers: OrderedDict[tuple[str, str], _Worker] = OrderedDict()
        # Polls of workers that may be of one kind at a time, by namespace and queue.
        self._parked: dict[tuple[str, str], OrderedDict[int, tuple[str, Waiting]]] = {}
        self.ended_count = 0

    def connect(self, kind: str, find: Find) -> None:
        """Say how to find out what is ready of a kind."""
        self._find[kind] = find

    def parked(self, kind: str, poll: Waiting, *, may_end: bool = True) -> None:
        """A poll begins to wait, or waits again. One that waits for a look only is not ended."""
        worker = poll.worker
        known = self._know(worker)
        known.open[kind] = known.open.get(kind, 0) + 1
        if not known.is_concurrent and len(known.open) > 1:
            known.is_concurrent = True
            self._set_aside(worker)
        if may_end and not known.is_concurrent:
            place = (worker.namespace, worker.queue)
            self._parked.setdefault(place, OrderedDict())[id(poll)] = (kind, poll)

    def asked(self, kind: str, worker: Worker) -> None:
        """A worker polls: it has followed a call for another kind, or it has not."""
        known = self._know(worker)
        known.polled.add(kind)
        if known.ended is None:
            return
        before, wanted = known.ended
        if kind == wanted:
            known.ended, known.in_vain, known.rests_until = None, 0, 0
        elif kind == before:
            known.ended = None
            rest = min(_REST_MIN << min(known.in_vain, 8), _REST_MAX)
            known.in_vain += 1
            known.rests_until = self._clock.now() + rest

    def left(self, kind: str, poll: Waiting) -> None:
        """A poll waits no longer, or is in the hands of a beat."""
        worker = poll.worker
        known = self._workers.get((worker.namespace, worker.worker_id))
        if known is not None and known.token == worker.registration_token:
            count = known.open.get(kind, 0) - 1
            if count > 0:
                known.open[kind] = count
            else:
                known.open.pop(kind, None)
        self._forget(poll)

    def look(self, kind: str, poll: Waiting) -> None:
        """End a parked poll if something of another kind is ready for its worker."""
        worker = poll.worker
        for other in KINDS:
            names = _names(worker, other)
            if other == kind or not names or not self._may_end(worker, other):
                continue
            find = self._find.get(other)
            if find is not None and find(worker, names):
                self._end(kind, other, poll)
                return

    def looked(self, namespace: str, queue: str, kind: str) -> None:
        """There was nothing of a kind for those who wait for it: they may be needed elsewhere."""
        for waiting, poll in self._first(namespace, queue):
            if waiting == kind:
                self.look(kind, poll)

    def ready(self, namespace: str, queue: str, kind: str, name: str) -> None:
        """A task is ready, and no poll that is parked here can take it."""
        for waiting, poll in self._first(namespace, queue):
            if waiting == kind or name not in _names(poll.worker, kind):
                continue
            if self._may_end(poll.worker, kind):
                self._end(waiting, kind, poll)
                return

    def registration_ended(self, worker: Worker) -> None:
        self._workers.pop((worker.namespace, worker.worker_id), None)

    def _first(self, namespace: str, queue: str) -> Iterator[tuple[str, Waiting]]:
        parked = self._parked.get((namespace, queue))
        yield from list((parked or {}).values())[:_LOOKED_AT_MAX]

    def _may_end(self, worker: Worker, wanted: str) -> bool:
        known = self._workers.get((worker.namespace, worker.worker_id))
        if known is None or known.is_concurrent:
            return False
        if wanted in known.open or wanted not in known.polled:
            return False
        return _has_slot(worker, wanted) and known.rests_until <= self._clock.now()

    def _end(self, kind: str, wanted: str, poll: Waiting) -> None:
        worker = poll.worker
        self._know(worker).ended = (kind, wanted)
        self._forget(poll)
        self.ended_count += 1
        poll.time_is_up()

    def _know(self, worker: Worker) -> _Worker:
        key = (worker.namespace, worker.worker_id)
        known = self._workers.get(key)
        if known is None or known.token != worker.registration_token:
            known = self._workers[key] = _Worker(worker.registration_token)
            while len(self._workers) > WORKERS_MAX:
                self._workers.popitem(last=False)
        return known

    def _forget(self, poll: Waiting) -> None:
        place = (poll.worker.namespace, poll.worker.queue)
        parked = self._parked.get(place)
        if parked is not None:
            parked.pop(id(poll), None)
            if not parked:
                del self._parked[place]

    def _set_aside(self, worker: Worker) -> None:
        for _, poll in list((self._parked.get((worker.namespace, worker.queue)) or {}).values()):
            if poll.worker.worker_id == worker.worker_id:
                self._forget(poll)


def _names(worker: Worker, kind: str) -> frozenset[str]:
    """What a worker can take of a kind."""
    if kind == QUERY:
        return workflow_names(worker) if QUERY_TASKS in worker.capabilities else frozenset()
    return takeable(worker, kind, progress=True, validations=False)


def _has_slot(worker: Worker, kind: str) -> bool:
    """Whether a worker has room for a task, as far as it told. Queries need none."""
    if kind == QUERY:
        return True
    most = worker.workflow_slots if kind == "workflow" else worker.activity_slots
    return most > 0 and worker.task_slots.get(f"{kind}_available") != 0

"""The query desk: questions meet workers that wait for them.

A query ends answered, refused, or out of time, and its asker hears which.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine

from msgspec import structs

from perdure.clock import Clock
from perdure.core import rejection
from perdure.core.fleet.contract import workflow_names
from perdure.core.fleet.query_contract import QUERY_TASKS
from perdure.core.fleet.worker import Cohort, Worker
from perdure.core.limits import POLL_ANSWERS_MAX, POLL_TIMEOUT_MAX, SECOND, WORKERS_MAX
from perdure.core.rejection import Rejection
from perdure.core.run.context import Ids
from perdure.dispatch.query_messages import (
    AskedQuery,
    QueryAnswer,
    QueryLease,
    QueryReport,
    QueryView,
    QueryWanted,
    QueueName,
    home_of,
)
from perdure.dispatch.query_nodes import Hint, QueryHints, RemoteDesks, fetch_query
from perdure.dispatch.query_table import Query, QueryRules, QueryState, QueryTable
from perdure.dispatch.turns import QUERY, Turns

log = logging.getLogger(__name__)

RunWatch = Callable[[Callable[[], object]], None]

_ANNOUNCE_INTERVAL = SECOND
_POLLED_LATELY = 2 * POLL_TIMEOUT_MAX


class QueryPoll:
    """One worker that waits for a question."""

    __slots__ = ("answer", "key", "names", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.key = QueueName(worker.namespace, worker.queue)
        self.names = workflow_names(worker)
        self.answer: asyncio.Future[QueryLease] = asyncio.get_running_loop().create_future()

    def time_is_up(self) -> None:
        """It has waited for as long as it may."""
        self.answer.cancel()

    def is_of(self, worker: Worker) -> bool:
        known = self.worker
        return (known.namespace, known.worker_id) == (worker.namespace, worker.worker_id)


class QueryBroker:
    """Every open query that was asked at this node, and every query poll that is parked at it."""

    def __init__(
        self,
        clock: Clock,
        ids: Ids,
        rules: QueryRules,
        *,
        on_due: Callable[[int], None],
        node: str = "",
        remote: RemoteDesks | None = None,
    ) -> None:
        self._clock = clock
        self._rules = rules
        self._on_due = on_due
        self._node = node
        self._remote = remote
        self._book = QueryTable(clock, ids, rules, node)
        self._hints = QueryHints(clock, rules.timeout)
        self._parked: dict[QueueName, OrderedDict[int, QueryPoll]] = {}
        self._parked_count = 0
        self._polls: OrderedDict[tuple[str, ...], QueryPoll | QueryLease] = OrderedDict()
        self._polled_at: OrderedDict[tuple[str, str], int] = OrderedDict()
        # What is asked of other nodes, and the poll that waits for it.
        self._errands: dict[asyncio.Task[None], QueryPoll | None] = {}
        self._is_closed = False
        # Who gets nothing more; see `Rollouts`.
        self.draining: Collection[Cohort] = frozenset()
        # Whose polls are ended for the sake of another kind.
        self._turns: Turns | None = None

    def connect_turns(self, turns: Turns) -> None:
        """Say who minds workers that poll for one kind of task at a time."""
        self._turns = turns
        turns.connect(QUERY, self._has_waiting)

    def _has_waiting(self, worker: Worker, names: frozenset[str]) -> bool:
        key = QueueName(worker.namespace, worker.queue)
        if self._book.find_pending(key, names) is not None:
            return True
        return self._hints.find(key, names) is not None

    @property
    def open_count(self) -> int:
        """How many queries wait or are being answered."""
        return self._book.open_count

    @property
    def parked_count(self) -> int:
        return self._parked_count

    @property
    def pending_max(self) -> int:
        """How many queries may wait on a queue."""
        return self._rules.pending_max

    def pending_count(self, key: QueueName) -> int:
        """How many that were asked at this node wait on a queue."""
        return self._book.pending_count(key)

    # Asking --------------------------------------------------------------------------------------

    async def ask(self, asked: AskedQuery, watch: RunWatch) -> QueryAnswer:
        """Wait for an answer. An asker that leaves takes its question along."""
        if self._is_closed:
            raise _stopping()
        poll = self._find_poll(asked.key, asked.name)
        query = self._book.admit(asked, is_wanted=poll is not None)
        self._on_due(query.asked.deadline_at)
        self._offer(query)
        watch(lambda: self._book.withdraw(query))
        try:
            outcome = await query.outcome
        finally:
            self._book.withdraw(query)
        if isinstance(outcome, Rejection):
            raise outcome
        return outcome

    def _offer(self, query: Query) -> None:
        """Give a waiting query to whoever waits for it, or let others know of it."""
        poll = self._find_poll(query.asked.key, query.asked.name)
        if poll is not None:
            self._grant(query, poll)
            return
        key = query.asked.key
        if self._turns is not None:
            self._turns.ready(key.namespace, key.queue, QUERY, query.asked.name)
        if self._remote is not None:
            self._remote.announce(query.asked.key, query.asked.name)
            self._on_due(self._clock.now() + _ANNOUNCE_INTERVAL)

    def _grant(self, query: Query, poll: QueryPoll) -> None:
        self._leave(poll)
        poll.answer.set_result(self._lease(query, poll.worker.worker_id))

    def _lease(self, query: Query, owner: str) -> QueryLease:
        lease = self._book.lease(query, owner)
        self._on_due(lease.expires_at)
        return lease

    # Polling -------------------------------------------------------------------------------------

    async def poll(
        self, worker: Worker, *, poll_id: str | None, patience: int, watch: RunWatch
    ) -> QueryLease | None:
        """Wait for a question. A poll that is repeated gets what it was given, if that stands."""
        self._note_poll(worker)
        if self._turns is not None:
            self._turns.asked(QUERY, worker)
        key = None
        if poll_id is not None:
            key = (worker.namespace, worker.queue, worker.worker_id, poll_id)
            if (lease := await self._repeat(key, patience)) is not None:
                return lease
        if self._parked_count >= self._rules.polls_max:
            raise _crowded(self._parked_count, worker.queue)
        poll = QueryPoll(worker)
        self._park(poll)
        if key is not None:
            self._remember(key, poll)
        lease = await self._wait(poll, patience, watch)
        if key is not None and self._polls.get(key) is poll:
            if lease is None:
                del self._polls[key]
            else:
                light = structs.replace(lease.asked, arguments=None, plain=None)
                self._polls[key] = structs.replace(lease, asked=light)
        return lease

    async def _wait(self, poll: QueryPoll, patience: int, watch: RunWatch) -> QueryLease | None:
        answer = poll.answer
        timer = asyncio.get_running_loop().call_later(patience / SECOND, answer.cancel)
        watch(answer.cancel)
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                return None
            if answer.done() and not answer.cancelled():
                self.give_back(answer.result())
            raise
        finally:
            timer.cancel()
            self._leave(poll)

    async def _repeat(self, key: tuple[str, ...], patience: int) -> QueryLease | None:
        earlier = self._polls.get(key)
        if isinstance(earlier, QueryPoll):
            if not earlier.answer.done():
                await asyncio.wait({earlier.answer}, timeout=patience / SECOND)
            if not earlier.answer.done() or earlier.answer.cancelled():
                return None
            earlier = earlier.answer.result()
        # Only the home of a query has its arguments; from elsewhere it comes with its next lease.
        return None if earlier is None else self._book.find_lease(earlier)

    def _remember(self, key: tuple[str, ...], poll: QueryPoll) -> None:
        self._polls[key] = poll
        while len(self._polls) > POLL_ANSWERS_MAX:
            self._polls.popitem(last=False)

    def _park(self, poll: QueryPoll) -> None:
        """Give a poll the oldest query that it can take, here or elsewhere, or let it wait."""
        if self._is_closed or poll.worker.cohort in self.draining:
            poll.answer.cancel()
            return
        self._expire()
        query = self._book.find_pending(poll.key, poll.names)
        if query is not None:
            self._grant(query, poll)
            return
        hint = self._hints.find(poll.key, poll.names)
        if hint is not None:
            self._run_errand(self._fetch(poll, hint), poll)
            return
        self._parked.setdefault(poll.key, OrderedDict())[id(poll)] = poll
        self._parked_count += 1
        if self._turns is not None:
            self._turns.parked(QUERY, poll)
            self._turns.look(QUERY, poll)

    def _leave(self, poll: QueryPoll) -> None:
        parked = self._parked.get(poll.key)
        if parked is not None and parked.pop(id(poll), None) is not None:
            self._parked_count -= 1
            if not parked:
                del self._parked[poll.key]
            if self._turns is not None:
                self._turns.left(QUERY, poll)

    def _find_poll(self, key: QueueName, name: str) -> QueryPoll | None:
        for poll in self._parked.get(key, {}).values():
            if name in poll.names and not poll.answer.done():
                return poll
        return None

    # Who lives -----------------------------------------------------------------------------------

    def is_live(self, worker: Worker) -> bool:
        """Whether a worker can be expected to take queries.

        A poll that is parked says so best. Else the worker must have been heard of lately, and
        have promised to poll, or done it.
        """
        if worker.deregistered_at is not None or worker.cohort in self.draining:
            return False
        parked = self._parked.get(QueueName(worker.namespace, worker.queue))
        if parked and any(poll.is_of(worker) for poll in parked.values()):
            return True
        now = self._clock.now()
        if not worker.is_active(now):
            return False
        polled_at = self._polled_at.get((worker.namespace, worker.worker_id))
        polled = polled_at is not None and now - polled_at <= _POLLED_LATELY
        return polled or QUERY_TASKS in worker.capabilities

    def _note_poll(self, worker: Worker) -> None:
        key = (worker.namespace, worker.worker_id)
        self._polled_at[key] = self._clock.now()
        self._polled_at.move_to_end(key)
        while len(self._polled_at) > WORKERS_MAX:
            self._polled_at.popitem(last=False)

    def registration_ended(self, worker: Worker) -> None:
        """Polls of an earlier registration get nothing more, and what it held is free."""
        self._polled_at.pop((worker.namespace, worker.worker_id), None)
        for poll in self._all_parked():
            if poll.is_of(worker):
                self._leave(poll)
                poll.answer.cancel()
        for query in self._book.leased_by(worker.namespace, worker.worker_id):
            self._book.free(query)
            self._offer(query)

    def drained(self, cohorts: Collection[Cohort]) -> None:
        """Polls of builds that drain get nothing more. What their workers hold, they may answer."""
        for poll in self._all_parked():
            if poll.worker.cohort in cohorts:
                self._leave(poll)
                poll.answer.cancel()

    def _all_parked(self) -> list[QueryPoll]:
        return [poll for parked in self._parked.values() for poll in parked.values()]

    # Reports -------------------------------------------------------------------------------------

    async def report(self, report: QueryReport) -> QueryView:
        """A worker's word, which may have come to another node than the query's home."""
        home = home_of(report.query_id)
        if self._remote is None or home in ("", self._node):
            return self.report_here(report)
        return await self._remote.report(home, report)

    def report_here(self, report: QueryReport) -> QueryView:
        self._expire()
        return self._book.report(report)

    def give_back(self, lease: QueryLease) -> None:
        """Nobody is there to work on it."""
        home = home_of(lease.query_id)
        if self._remote is None or home in ("", self._node):
            self.give_back_here(lease)
        else:
            self._run_errand(self._remote.give_back(home, lease), None)

    def give_back_here(self, lease: QueryLease) -> None:
        query = self._book.take_back(lease)
        if query is not None:
            self._offer(query)

    # Time ----------------------------------------------------------------------------------------

    def pass_time(self) -> int | None:
        """End what is out of time, and tell others again what waits; returns when to come again."""
        self._expire()
        due_at = self._book.due_at
        if self._remote is None:
            return due_at
        is_waiting = False
        for key, name in self._book.pending_names():
            self._remote.announce(key, name)
            is_waiting = True
        announce_at = self._clock.now() + _ANNOUNCE_INTERVAL
        if not is_waiting or (due_at is not None and due_at < announce_at):
            return due_at
        return announce_at

    def _expire(self) -> None:
        for query in self._book.expire():
            self._offer(query)

    def let_polls_go(self) -> None:
        """End parked polls: without the store no query can be handed over."""
        for poll in self._all_parked():
            self._leave(poll)
            poll.answer.cancel()

    def release_all(self) -> None:
        """The server is to stop: polls get nothing, questions are refused, now and from now on."""
        self._is_closed = True
        for poll in self._all_parked():
            poll.answer.cancel()
        for query in self._book.open_queries():
            self._book.end(query, QueryState.WITHDRAWN, _stopping())
        for errand in list(self._errands):
            errand.cancel()

    # Other nodes ---------------------------------------------------------------------------------

    def announced(self, home: str, key: QueueName, name: str) -> None:
        """A query waits at another node; fetch it if somebody here can take it."""
        if self._remote is None or home == self._node:
            return
        hint = Hint(home, key, name)
        self._hints.note(hint)
        poll = self._find_poll(key, name)
        if poll is not None:
            self._leave(poll)
            self._run_errand(self._fetch(poll, hint), poll)
        elif self._turns is not None:
            self._turns.ready(key.namespace, key.queue, QUERY, name)

    def claim_here(self, wanted: QueryWanted) -> QueryLease | None:
        """A query for a poll that is parked at another node."""
        self._expire()
        key = QueueName(wanted.namespace, wanted.queue)
        query = self._book.find_pending(key, wanted.names)
        return None if query is None else self._lease(query, wanted.owner)

    async def _fetch(self, poll: QueryPoll, hint: Hint) -> None:
        """Ask another node on behalf of a poll, which nobody else may answer meanwhile."""
        assert self._remote is not None
        wanted = QueryWanted(
            namespace=poll.key.namespace,
            queue=poll.key.queue,
            names=poll.names,
            owner=poll.worker.worker_id,
        )
        lease = await fetch_query(self._remote, self._hints, hint, wanted)
        if poll.answer.done():
            if lease is not None:
                await self._remote.give_back(hint.home, lease)
        elif lease is not None:
            poll.answer.set_result(lease)
        else:
            self._park(poll)

    def _run_errand(self, errand: Coroutine[object, object, None], poll: QueryPoll | None) -> None:
        task = asyncio.get_running_loop().create_task(errand, name="query errand")
        self._errands[task] = poll
        task.add_done_callback(self._errand_done)

    def _errand_done(self, task: "asyncio.Task[None]") -> None:
        poll = self._errands.pop(task)
        if not task.cancelled() and task.exception() is None:
            return
        if poll is not None:
            poll.answer.cancel()
        if not task.cancelled():
            log.warning("fetching a query from another node failed: %s", task.exception())


def _stopping() -> Rejection:
    return rejection.QueryTaskQueueUnavailable(
        "the server is about to stop", retryable=True, retry_after_seconds=1
    )


def _crowded(count: int, queue: str) -> Rejection:
    return rejection.LongPollCapacityExhausted(
        f"{count} query polls are parked already",
        poll_status="long_poll_capacity_exhausted",
        task=None,
        task_kind="query_task",
        task_queue=queue,
        retryable=True,
        retry_after_seconds=1,
    )

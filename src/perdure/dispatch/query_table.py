"""The book of queries that were asked at this node: who waits, who holds what, and how it ended.

All of it is memory, and none of it is history. A query that was leased and comes back keeps its
place and gets the next attempt, so a report of its former owner is told apart.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum
from itertools import takewhile

from msgspec import Struct, structs

from perdure.clock import Clock
from perdure.core import limits, rejection
from perdure.core.rejection import Rejection
from perdure.core.run.context import Ids
from perdure.dispatch.query_messages import (
    AskedQuery,
    QueryAnswer,
    QueryFailure,
    QueryLease,
    QueryReport,
    QueryView,
    QueueName,
)

_FAILURES: dict[str, type[Rejection]] = {
    kind.reason: kind
    for kind in (
        rejection.UnknownQuery,
        rejection.InvalidQueryArguments,
        rejection.QueryRejected,
        rejection.QueryWorkflowStateUnavailable,
        rejection.QueryWorkflowTypeNotRegistered,
        rejection.QueryPayloadDecodeFailed,
        rejection.QueryResultEncodeFailed,
        rejection.QueryResultCompletionFailed,
    )
}
"""Reasons that a worker may give; any other is a plain refusal."""


class QueryState(StrEnum):
    """Where a query stands."""

    PENDING = "pending"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"


_OPEN = (QueryState.PENDING, QueryState.LEASED)


class Query:
    """One question at the node where it was asked."""

    __slots__ = (
        "asked",
        "attempt",
        "ended_at",
        "granted_at",
        "outcome",
        "owner",
        "query_id",
        "state",
    )

    def __init__(self, query_id: str, asked: AskedQuery) -> None:
        self.query_id = query_id
        self.asked = asked
        self.state = QueryState.PENDING
        self.attempt = 0
        self.owner = ""
        self.granted_at = 0
        self.ended_at = 0
        self.outcome: asyncio.Future[QueryAnswer | Rejection] = (
            asyncio.get_running_loop().create_future()
        )

    def is_held_by(self, owner: str, attempt: int) -> bool:
        """Whether this lease is, or was, the last one."""
        return (self.owner, self.attempt) == (owner, attempt)


class QueryRules(Struct, frozen=True, kw_only=True):
    """How long things last, and how many may wait."""

    timeout: int
    lease_timeout: int
    remembered: int = limits.QUERY_REMEMBERED
    pending_max: int = limits.QUERIES_PENDING_MAX
    polls_max: int = limits.PARKED_QUERY_POLLS_MAX


class QueryTable:
    """Every open query of this node, and those that ended lately."""

    def __init__(self, clock: Clock, ids: Ids, rules: QueryRules, node: str) -> None:
        self._clock = clock
        self._ids = ids
        self._rules = rules
        self._node = node
        # In the order of their deadlines, since all have the same time.
        self._open: OrderedDict[str, Query] = OrderedDict()
        self._pending: dict[QueueName, dict[str, OrderedDict[str, Query]]] = {}
        # In the order in which they were granted.
        self._leased: OrderedDict[str, Query] = OrderedDict()
        # Answers for workers that report twice, or too late.
        self._ended: OrderedDict[str, Query] = OrderedDict()
        self._argument_bytes = 0

    @property
    def open_count(self) -> int:
        return len(self._open)

    def open_queries(self) -> list[Query]:
        return list(self._open.values())

    def leased_by(self, namespace: str, owner: str) -> list[Query]:
        return [
            query
            for query in self._leased.values()
            if (query.asked.namespace, query.owner) == (namespace, owner)
        ]

    def pending_count(self, key: QueueName) -> int:
        return sum(len(waiting) for waiting in self._pending.get(key, {}).values())

    def pending_names(self) -> Iterator[tuple[QueueName, str]]:
        """Under what queries wait."""
        for key, names in self._pending.items():
            for name in names:
                yield key, name

    # The way of a query --------------------------------------------------------------------------

    def admit(self, asked: AskedQuery, *, is_wanted: bool) -> Query:
        """Take a question in. The bound of its queue is for those that must wait."""
        waiting = self.pending_count(asked.key)
        if not is_wanted and waiting >= self._rules.pending_max:
            raise rejection.QueryTaskQueueFull(
                f"{waiting} queries wait on queue {asked.queue}",
                max_pending_per_queue=self._rules.pending_max,
            )
        held = self._argument_bytes + asked.size
        is_full = len(self._open) >= limits.QUERIES_OPEN_MAX
        if is_full or held > limits.QUERY_ARGUMENTS_BYTES_MAX:
            raise rejection.QueryTaskQueueFull(
                f"{len(self._open)} queries with {held} bytes of arguments are open"
            )
        now = self._clock.now()
        asked = structs.replace(asked, admitted_at=now, deadline_at=now + self._rules.timeout)
        query_id = self._ids.ulid().upper()
        query = Query(f"{query_id}-{self._node}" if self._node else query_id, asked)
        self._open[query.query_id] = query
        self._argument_bytes = held
        self._enqueue(query)
        return query

    def find_pending(self, key: QueueName, names: frozenset[str]) -> Query | None:
        """The oldest query that somebody who knows these names can take."""
        waiting = self._pending.get(key, {})
        found = [next(iter(waiting[name].values())) for name in waiting if name in names]
        return min(found, key=lambda query: query.query_id, default=None)

    def lease(self, query: Query, owner: str) -> QueryLease:
        """Give a waiting query to a worker."""
        self._dequeue(query)
        query.state = QueryState.LEASED
        query.attempt += 1
        query.owner = owner
        query.granted_at = self._clock.now()
        self._leased[query.query_id] = query
        return self._lease_of(query)

    def find_lease(self, given: QueryLease) -> QueryLease | None:
        """The same lease with all that belongs to it, if it still stands."""
        query = self._leased.get(given.query_id)
        if query is None or not query.is_held_by(given.owner, given.attempt):
            return None
        return self._lease_of(query)

    def take_back(self, lease: QueryLease) -> Query | None:
        """End a lease that still stands; its query waits again."""
        query = self._leased.get(lease.query_id)
        if query is None or not query.is_held_by(lease.owner, lease.attempt):
            return None
        self.free(query)
        return query

    def free(self, query: Query) -> None:
        """Let a leased query wait again, at the place that its age gives it."""
        del self._leased[query.query_id]
        query.state = QueryState.PENDING
        self._enqueue(query)

    def end(self, query: Query, state: QueryState, outcome: QueryAnswer | Rejection) -> None:
        """Tell the asker, once."""
        if query.state not in _OPEN:
            return
        self._dequeue(query)
        self._leased.pop(query.query_id, None)
        del self._open[query.query_id]
        self._argument_bytes -= query.asked.size
        query.state, query.ended_at = state, self._clock.now()
        query.asked = structs.replace(query.asked, arguments=None, plain=None)
        if query.attempt:
            # Some worker knows its id.
            self._ended[query.query_id] = query
            self._forget(query.ended_at)
        if not query.outcome.done():
            query.outcome.set_result(outcome)

    def withdraw(self, query: Query) -> None:
        """The asker waits no longer."""
        self.end(query, QueryState.WITHDRAWN, rejection.QueryRejected("the asker has left"))

    def _lease_of(self, query: Query) -> QueryLease:
        return QueryLease(
            query_id=query.query_id,
            attempt=query.attempt,
            owner=query.owner,
            expires_at=self._lease_expires_at(query),
            asked=query.asked,
        )

    def _lease_expires_at(self, query: Query) -> int:
        return min(query.granted_at + self._rules.lease_timeout, query.asked.deadline_at)

    def _enqueue(self, query: Query) -> None:
        names = self._pending.setdefault(query.asked.key, {})
        waiting = names.setdefault(query.asked.name, OrderedDict())
        is_oldest = bool(waiting) and query.query_id < next(iter(waiting))
        is_newest = not waiting or query.query_id > next(reversed(waiting))
        waiting[query.query_id] = query
        if is_oldest:
            waiting.move_to_end(query.query_id, last=False)
        elif not is_newest:
            # Only one that comes back, while older ones came back before it.
            names[query.asked.name] = OrderedDict(sorted(waiting.items()))

    def _dequeue(self, query: Query) -> None:
        names = self._pending.get(query.asked.key, {})
        waiting = names.get(query.asked.name)
        if waiting is not None and waiting.pop(query.query_id, None) is not None and not waiting:
            del names[query.asked.name]
            if not names:
                del self._pending[query.asked.key]

    # Reports of workers --------------------------------------------------------------------------

    def report(self, report: QueryReport) -> QueryView:
        """Take a report if its sender holds the lease, or has said the same before."""
        query = self._open.get(report.query_id) or self._ended.get(report.query_id)
        if query is None or query.asked.namespace != report.namespace:
            raise rejection.QueryTaskNotFound("there is no such query task", **_named(report))
        outcome = report.outcome
        if query.state not in _OPEN:
            _require_same(query, report)
        else:
            _require_held(query, report)
            if isinstance(outcome, QueryAnswer):
                self.end(query, QueryState.COMPLETED, outcome)
            elif outcome is not None:
                self.end(query, QueryState.FAILED, _refusal(query, outcome))
        return QueryView(
            state=query.state.value,
            attempt=query.attempt,
            owner=query.owner,
            lease_expires_at=self._lease_expires_at(query),
            admitted_at=query.asked.admitted_at,
            deadline_at=query.asked.deadline_at,
        )

    # Time ----------------------------------------------------------------------------------------

    def expire(self) -> list[Query]:
        """End what is out of time. Returns queries whose lease has ended: they wait again."""
        now = self._clock.now()
        while self._open and _first(self._open).asked.deadline_at <= now:
            query = _first(self._open)
            self.end(query, QueryState.TIMED_OUT, _timed_out(query))
        freed = list(takewhile(lambda q: self._freed_at(q) <= now, self._leased.values()))
        # The youngest first, so that each is the oldest when it comes.
        for query in sorted(freed, key=lambda query: query.query_id, reverse=True):
            self.free(query)
        self._forget(now)
        return freed

    @property
    def due_at(self) -> int | None:
        """When something is out of time next."""
        due = [_first(self._open).asked.deadline_at] if self._open else []
        due += [self._freed_at(_first(self._leased))] if self._leased else []
        return min(due, default=None)

    def _freed_at(self, query: Query) -> int:
        # Without regard to the deadline, so that the order of granting is the order of ending.
        return query.granted_at + self._rules.lease_timeout

    def _forget(self, now: int) -> None:
        while self._ended:
            first = _first(self._ended)
            is_old = first.ended_at + self._rules.remembered <= now
            if not is_old and len(self._ended) <= limits.QUERIES_REMEMBERED_MAX:
                return
            del self._ended[first.query_id]


def _first(queries: OrderedDict[str, Query]) -> Query:
    return next(iter(queries.values()))


def _require_held(query: Query, report: QueryReport) -> None:
    named = _named(report)
    if query.state is QueryState.PENDING:
        if query.is_held_by(report.owner, report.attempt):
            raise rejection.LeaseExpired("the lease of the query task has ended", **named)
        raise rejection.QueryTaskNotLeased("the query task is not leased", **named)
    if query.owner != report.owner:
        raise rejection.LeaseOwnerMismatch(
            f"the query task is leased to {query.owner}", lease_owner=query.owner, **named
        )
    if query.attempt != report.attempt:
        raise rejection.QueryTaskAttemptMismatch(
            f"the query task is at attempt {query.attempt}",
            current_attempt=query.attempt,
            **named,
        )


def _require_same(query: Query, report: QueryReport) -> None:
    """A query that has ended takes only the report that ended it, and questions of its owner."""
    if query.is_held_by(report.owner, report.attempt):
        said = {
            QueryAnswer: QueryState.COMPLETED,
            QueryFailure: QueryState.FAILED,
            type(None): query.state,
        }
        if said[type(report.outcome)] is query.state:
            return
    if query.state is QueryState.TIMED_OUT:
        raise rejection.QueryTaskTimedOut("the query is out of time", **_named(report))
    raise rejection.QueryTaskNotLeased(f"the query is {query.state}", **_named(report))


def _named(report: QueryReport) -> dict[str, object]:
    return {
        "query_task_id": report.query_id,
        "query_task_attempt": report.attempt,
        "outcome": "rejected",
    }


def _timed_out(query: Query) -> Rejection:
    did = "was not taken by a worker" if query.state is QueryState.PENDING else "was not answered"
    return rejection.QueryWorkerTimeout(
        f"query {query.asked.query_name} {did} in time", query_task_status=query.state.value
    )


def _refusal(query: Query, failure: QueryFailure) -> Rejection:
    kind = _FAILURES.get(failure.reason, rejection.QueryRejected)
    details: dict[str, object] = {"failure_type": failure.failure_type}
    if kind.reason != failure.reason:
        details["failure_reason"] = failure.reason
    if failure.validation_errors is not None:
        details["validation_errors"] = failure.validation_errors
    return kind(failure.message or f"query {query.asked.query_name} failed", **details)

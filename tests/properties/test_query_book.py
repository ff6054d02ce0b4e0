"""Whatever askers, workers and time do, every query ends once, and none is lost."""

import asyncio
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from perdure.core.rejection import QueryTaskQueueFull, QueryWorkerTimeout, Rejection
from perdure.dispatch.query_messages import (
    AskedQuery,
    QueryAnswer,
    QueryFailure,
    QueryLease,
    QueryReport,
    QueueName,
)
from perdure.dispatch.query_table import Query, QueryRules, QueryState, QueryTable
from perdure.identity import IdSource
from tests.support.clock import SECOND, FakeClock

RULES = QueryRules(timeout=40 * SECOND, lease_timeout=15 * SECOND, pending_max=4)
NAMES = st.sampled_from(["Order", "Order@blue", "Child"])
OWNERS = st.sampled_from(["w1", "w2"])
KEY = QueueName("default", "q")


class Life(RuleBasedStateMachine):
    """The book, beside a plain list of what was asked."""

    leases: Bundle[QueryLease] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.book = QueryTable(self.clock, IdSource(self.clock.now, seed=1), RULES, "a")
        self.asked: list[Query] = []

    def teardown(self) -> None:
        self.loop.close()

    def _now(self) -> int:
        return self.clock.now()

    @rule(name=NAMES, size=st.integers(0, 50), wanted=st.booleans())
    def ask(self, name: str, size: int, wanted: bool) -> None:
        async def admit() -> Query:
            asked = AskedQuery(
                namespace=KEY.namespace,
                queue=KEY.queue,
                name=name,
                workflow_id="order-1",
                run_id="r",
                workflow_type="Order",
                query_name="total",
                arguments=b"x" * size,
            )
            return self.book.admit(asked, is_wanted=wanted)

        waiting = self.book.pending_count(KEY)
        try:
            self.asked.append(self.loop.run_until_complete(admit()))
        except QueryTaskQueueFull:
            assert waiting >= RULES.pending_max
            assert not wanted

    @rule(target=leases, names=st.sets(NAMES, min_size=1), owner=OWNERS)
    def take(self, names: set[str], owner: str) -> QueryLease:
        self.book.expire()
        query = self.book.find_pending(KEY, frozenset(names))
        able = [q for q in self.asked if q.state is QueryState.PENDING and q.asked.name in names]
        assert (query is None) == (not able)
        if query is None:
            return QueryLease(query_id="none", attempt=1, owner=owner, expires_at=0, asked=_NOTHING)
        assert query.query_id == min(q.query_id for q in able)
        lease = self.book.lease(query, owner)
        assert self._now() < lease.expires_at <= lease.asked.deadline_at
        return lease

    @rule(
        lease=leases,
        owner=st.one_of(st.none(), OWNERS),
        outcome=st.sampled_from([QueryAnswer(b"1"), QueryFailure("query_rejected", "no"), None]),
    )
    def report(
        self, lease: QueryLease, owner: str | None, outcome: QueryAnswer | QueryFailure | None
    ) -> None:
        self.book.expire()
        holder = self._find(lease)
        said = owner or lease.owner
        holds = (
            holder is not None
            and holder.state is QueryState.LEASED
            and (holder.owner, holder.attempt) == (said, lease.attempt)
        )
        was_over = holder is not None and holder.outcome.done()
        report = QueryReport(
            namespace="default",
            query_id=lease.query_id,
            owner=said,
            attempt=lease.attempt,
            outcome=outcome,
        )
        try:
            self.book.report(report)
        except Rejection:
            assert not holds
        else:
            assert holds or was_over
            assert holder is not None
            assert outcome is None or holder.outcome.done()

    @rule(lease=leases)
    def give_back(self, lease: QueryLease) -> None:
        query = self.book.take_back(lease)
        assert query is None or query.state is QueryState.PENDING

    @rule(owner=OWNERS)
    def say_goodbye(self, owner: str) -> None:
        for query in self.book.leased_by("default", owner):
            self.book.free(query)
        assert not self.book.leased_by("default", owner)

    @rule(number=st.integers(0, 20))
    def leave(self, number: int) -> None:
        if number < len(self.asked):
            self.book.withdraw(self.asked[number])

    @rule(seconds=st.integers(1, 30))
    def pass_time(self, seconds: int) -> None:
        self.clock.jump(seconds=seconds)
        self.book.expire()
        due_at = self.book.due_at
        assert due_at is None or due_at > self._now()

    def _find(self, lease: QueryLease) -> Query | None:
        return next((q for q in self.asked if q.query_id == lease.query_id), None)

    @invariant()
    def nobody_is_lost(self) -> None:
        still = [query for query in self.asked if not query.outcome.done()]
        assert self.book.open_queries() == still
        waiting = [q for q in still if q.state is QueryState.PENDING]
        held = [q for q in still if q.state is QueryState.LEASED]
        assert len(waiting) + len(held) == len(still)
        assert self.book.pending_count(KEY) == len(waiting)
        assert set(self.book.pending_names()) == {(KEY, q.asked.name) for q in waiting}
        by_owner = [q for owner in ("w1", "w2") for q in self.book.leased_by("default", owner)]
        assert len(by_owner) == len(held)
        assert self.book._argument_bytes == sum(query.asked.size for query in still)

    @invariant()
    def time_is_kept(self) -> None:
        for query in self.asked:
            outcome = query.outcome.result() if query.outcome.done() else None
            if isinstance(outcome, QueryWorkerTimeout):
                assert query.ended_at >= query.asked.deadline_at


_NOTHING = AskedQuery(
    namespace="default",
    queue="q",
    name="",
    workflow_id="",
    run_id="",
    workflow_type="",
    query_name="",
)

_EXAMPLES = os.environ.get("PERDURE_PROPERTY_EXAMPLES")

TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=int(_EXAMPLES or 100),
    stateful_step_count=50,
    deadline=None,
    derandomize=_EXAMPLES is None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

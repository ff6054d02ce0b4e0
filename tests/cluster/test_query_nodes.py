"""Queries between nodes: asked at one desk, polled at another, reported at a third.

The desks are real; only the way between them is played, and may lose what it carries.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest

from perdure.core.fleet.worker import Worker
from perdure.core.rejection import (
    LeaseOwnerMismatch,
    QueryRejected,
    QueryTaskNotFound,
    QueryWorkerTimeout,
)
from perdure.dispatch.query_broker import QueryBroker
from perdure.dispatch.query_messages import (
    AskedQuery,
    QueryAnswer,
    QueryFailure,
    QueryLease,
    QueryReport,
    QueryView,
    QueryWanted,
    QueueName,
)
from perdure.dispatch.query_table import QueryRules
from perdure.identity import IdSource
from perdure.store.interface import Unavailable
from tests.support.clock import SECOND, FakeClock

T = TypeVar("T")
KEY = QueueName("default", "q")
RULES = QueryRules(timeout=40 * SECOND, lease_timeout=10 * SECOND)


class Cable:
    """The way from one node to all others. Every message is encoded, as on a real one."""

    def __init__(self, node: str, desks: dict[str, QueryBroker]) -> None:
        self._node = node
        self._desks = desks
        self.is_cut = False
        self.claims = 0

    def announce(self, key: QueueName, name: str) -> None:
        if not self.is_cut:
            for node, query_broker in self._desks.items():
                if node != self._node:
                    asyncio.get_running_loop().call_soon(
                        query_broker.announced, self._node, key, name
                    )

    async def claim(self, home: str, wanted: QueryWanted) -> QueryLease | None:
        self.claims += 1
        query_broker = await self._reach(home)
        lease = query_broker.claim_here(carried(wanted, QueryWanted))
        return None if lease is None else carried(lease, QueryLease)

    async def report(self, home: str, report: QueryReport) -> QueryView:
        query_broker = await self._reach(home)
        return carried(query_broker.report_here(carried(report, QueryReport)), QueryView)

    async def give_back(self, home: str, lease: QueryLease) -> None:
        (await self._reach(home)).give_back_here(carried(lease, QueryLease))

    async def _reach(self, home: str) -> QueryBroker:
        await asyncio.sleep(0)
        if self.is_cut:
            raise Unavailable("storage_busy", f"node {home} cannot be reached")
        if home not in self._desks:
            raise QueryTaskNotFound("there is no such query task")
        return self._desks[home]


def carried(message: T, kind: type[T]) -> T:
    return msgspec.json.decode(msgspec.json.encode(message), type=kind)


class Nodes:
    """Three nodes with one clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.desks: dict[str, QueryBroker] = {}
        self.cables = {node: Cable(node, self.desks) for node in ("a", "b", "c")}
        ids = IdSource(self.clock.now, seed=1)
        for node, cable in self.cables.items():
            self.desks[node] = QueryBroker(
                self.clock, ids, RULES, on_due=lambda due_at: None, node=node, remote=cable
            )

    def ask(self, node: str, name: str = "Order") -> "asyncio.Task[QueryAnswer]":
        asked = AskedQuery(
            namespace="default",
            queue="q",
            name=name,
            workflow_id="order-1",
            run_id="r",
            workflow_type="Order",
            query_name="total",
            arguments=b'{"codec":"avro","blob":"AA=="}',
        )
        return asyncio.ensure_future(self.desks[node].ask(asked, lambda leave: None))

    def poll(
        self, node: str, *, worker_id: str = "w1", leave: list[Callable[[], object]] | None = None
    ) -> "asyncio.Task[QueryLease | None]":
        worker = Worker("default", worker_id, "q", "python", 0, 0, "", workflow_types=["Order"])
        gone: list[Callable[[], object]] = [] if leave is None else leave
        return asyncio.ensure_future(
            self.desks[node].poll(worker, poll_id=None, patience=20 * SECOND, watch=gone.append)
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.jump(seconds=seconds)
        for query_broker in self.desks.values():
            query_broker.pass_time()


async def soon(task: "asyncio.Task[T]") -> T:
    return await asyncio.wait_for(task, 90)


async def settle() -> None:
    """Let everything happen that can happen by itself."""
    for _ in range(20):
        await asyncio.sleep(0)


def answer_of(lease: QueryLease, outcome: QueryAnswer | QueryFailure | None) -> QueryReport:
    return QueryReport(
        namespace="default",
        query_id=lease.query_id,
        owner=lease.owner,
        attempt=lease.attempt,
        outcome=outcome,
    )


def played(story: Callable[[Nodes], Awaitable[None]]) -> None:
    async def play() -> None:
        nodes = Nodes()
        try:
            await story(nodes)
        finally:
            for query_broker in nodes.desks.values():
                query_broker.release_all()
            await settle()

    asyncio.run(play())


@pytest.mark.parametrize("polls_first", [True, False])
@pytest.mark.parametrize("reported_at", ["a", "b", "c"])
def test_a_query_reaches_a_poll_at_another_node_and_its_answer_comes_back(
    polls_first: bool, reported_at: str
) -> None:
    async def story(nodes: Nodes) -> None:
        if polls_first:
            poll = nodes.poll("b")
            await settle()
            asked = nodes.ask("a")
        else:
            asked = nodes.ask("a")
            await settle()
            poll = nodes.poll("b")
        lease = await soon(poll)
        assert lease is not None
        assert lease.asked.arguments == b'{"codec":"avro","blob":"AA=="}'
        view = await nodes.desks[reported_at].report(answer_of(lease, None))
        assert (view.state, view.owner) == ("leased", "w1")

        await nodes.desks[reported_at].report(answer_of(lease, QueryAnswer(b"3")))

        assert await soon(asked) == QueryAnswer(b"3")

    played(story)


def test_what_home_refuses_is_refused_everywhere() -> None:
    async def story(nodes: Nodes) -> None:
        poll, asked = nodes.poll("b"), nodes.ask("a")
        lease = await soon(poll)
        assert lease is not None
        stranger = msgspec.structs.replace(answer_of(lease, QueryAnswer(b"3")), owner="w2")
        with pytest.raises(LeaseOwnerMismatch):
            await nodes.desks["c"].report(stranger)
        gone = msgspec.structs.replace(answer_of(lease, None), query_id="01J-nowhere")
        with pytest.raises(QueryTaskNotFound):
            await nodes.desks["c"].report(gone)

        await nodes.desks["c"].report(answer_of(lease, QueryFailure("query_rejected", "no")))
        with pytest.raises(QueryRejected):
            await soon(asked)

    played(story)


def test_a_hint_that_was_lost_costs_only_time() -> None:
    async def story(nodes: Nodes) -> None:
        poll = nodes.poll("b")
        await settle()
        nodes.cables["a"].is_cut = True
        asked = nodes.ask("a")
        await settle()
        assert not poll.done()

        nodes.cables["a"].is_cut = False
        nodes.pass_time(1)

        assert await soon(poll) is not None
        assert not asked.done()

    played(story)


def test_two_nodes_with_polls_get_one_query_between_them() -> None:
    async def story(nodes: Nodes) -> None:
        polls = [nodes.poll("b"), nodes.poll("c", worker_id="w2")]
        await settle()
        nodes.ask("a")
        await settle()
        assert sum(poll.done() for poll in polls) == 1

        second = nodes.ask("a")
        await settle()
        leases = [await soon(poll) for poll in polls]
        assert len({lease.query_id for lease in leases if lease is not None}) == 2
        assert not second.done()

    played(story)


def test_a_poll_that_asked_in_vain_waits_on_and_is_served_at_home() -> None:
    async def story(nodes: Nodes) -> None:
        nodes.desks["b"].announced("a", KEY, "Order")
        poll = nodes.poll("b")
        await settle()
        assert nodes.cables["b"].claims == 1
        assert not poll.done()

        nodes.ask("b")

        assert await soon(poll) is not None
        assert nodes.cables["b"].claims == 1

    played(story)


def test_a_node_that_cannot_be_reached_costs_a_poll_nothing() -> None:
    async def story(nodes: Nodes) -> None:
        nodes.desks["b"].announced("a", KEY, "Order")
        nodes.cables["b"].is_cut = True
        poll = nodes.poll("b")
        await settle()
        assert not poll.done()
        nodes.ask("b")
        assert await soon(poll) is not None

    played(story)


def test_a_poll_that_left_meanwhile_gives_its_query_back() -> None:
    async def story(nodes: Nodes) -> None:
        leave: list[Callable[[], object]] = []
        poll = nodes.poll("b", leave=leave)
        await settle()
        nodes.ask("a")
        await asyncio.sleep(0)
        leave[0]()
        assert await soon(poll) is None
        await settle()

        lease = await soon(nodes.poll("a", worker_id="w2"))

        assert lease is not None
        assert lease.owner == "w2"

    played(story)


def test_a_worker_that_vanished_with_a_query_of_another_node_is_replaced_in_time() -> None:
    async def story(nodes: Nodes) -> None:
        poll, asked = nodes.poll("b"), nodes.ask("a")
        lost = await soon(poll)
        nodes.pass_time(11)
        lease = await soon(nodes.poll("c", worker_id="w2"))
        assert lost is not None
        assert lease is not None
        assert (lease.query_id, lease.attempt) == (lost.query_id, 2)
        nodes.pass_time(30)
        with pytest.raises(QueryWorkerTimeout):
            await soon(asked)

    played(story)


def test_a_stopping_node_ends_its_errands() -> None:
    async def story(nodes: Nodes) -> None:
        nodes.desks["b"].announced("a", KEY, "Order")
        poll = nodes.poll("b")
        await asyncio.sleep(0)
        nodes.desks["b"].release_all()
        assert await soon(poll) is None

    played(story)

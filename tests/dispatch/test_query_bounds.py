"""How many queries and polls a node takes, and how often it says what waits."""

import asyncio

import pytest

from perdure.core import limits
from perdure.core.rejection import QueryTaskQueueFull
from perdure.dispatch.query_messages import AskedQuery, QueueName
from perdure.dispatch.query_table import QueryRules, QueryTable
from perdure.identity import IdSource
from tests.cluster.test_query_nodes import KEY, RULES, Nodes, played, settle, soon
from tests.support.clock import SECOND, FakeClock


def a_book(**rules: int) -> QueryTable:
    clock = FakeClock()
    chosen = QueryRules(timeout=40 * SECOND, lease_timeout=10 * SECOND, **rules)
    return QueryTable(clock, IdSource(clock.now, seed=1), chosen, "a")


def asked(queue: str = "q", arguments: bytes | None = None) -> AskedQuery:
    return AskedQuery(
        namespace="default",
        queue=queue,
        name="Order",
        workflow_id="order-1",
        run_id="r",
        workflow_type="Order",
        query_name="total",
        arguments=arguments,
    )


def test_open_queries_of_all_queues_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(limits, "QUERIES_OPEN_MAX", 3)
        book = a_book()
        queries = [book.admit(asked(f"q{number}"), is_wanted=True) for number in range(3)]

        with pytest.raises(QueryTaskQueueFull, match="3 queries with"):
            book.admit(asked("another"), is_wanted=True)

        book.lease(queries[0], "w1")
        with pytest.raises(QueryTaskQueueFull):
            book.admit(asked("another"), is_wanted=True)
        book.withdraw(queries[0])
        book.admit(asked("another"), is_wanted=True)
        assert book.open_count == 3

    asyncio.run(story())


def test_arguments_of_open_queries_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        one = asked(arguments=b"x" * 100)
        monkeypatch.setattr(limits, "QUERY_ARGUMENTS_BYTES_MAX", 2 * one.size)
        book = a_book()
        first = book.admit(one, is_wanted=True)
        book.admit(one, is_wanted=True)

        with pytest.raises(QueryTaskQueueFull, match="bytes of arguments are open"):
            book.admit(one, is_wanted=True)

        book.withdraw(first)
        book.admit(one, is_wanted=True)

    asyncio.run(story())


def test_a_queue_has_a_bound_for_queries_that_no_poll_waits_for() -> None:
    async def story() -> None:
        book = a_book(pending_max=2)
        for _ in range(2):
            book.admit(asked(), is_wanted=False)
        with pytest.raises(QueryTaskQueueFull, match="2 queries wait on queue q"):
            book.admit(asked(), is_wanted=False)
        book.admit(asked(), is_wanted=True)
        book.admit(asked("another"), is_wanted=False)

    asyncio.run(story())


def test_a_poll_is_counted_once_while_it_is_parked() -> None:
    async def story(nodes: Nodes) -> None:
        broker = nodes.desks["b"]
        poll = nodes.poll("b")
        await settle()
        assert broker.parked_count == 1

        # A notice leads to nothing: the poll leaves its place to look, and takes it again.
        broker.announced("a", KEY, "Order")
        assert broker.parked_count == 0
        await settle()
        assert nodes.cables["b"].claims == 1
        assert broker.parked_count == 1
        broker.announced("a", KEY, "Order")
        broker.announced("c", KEY, "Order")
        await settle()
        assert broker.parked_count == 1

        nodes.ask("b")
        assert await soon(poll) is not None
        assert broker.parked_count == 0

    played(story)


def test_what_waits_is_announced_again_every_second_until_it_is_taken() -> None:
    async def story(nodes: Nodes) -> None:
        heard: list[tuple[str, QueueName, str]] = []
        nodes.cables["a"].announce = (  # type: ignore[method-assign]
            lambda key, name: heard.append(("a", key, name))
        )
        nodes.ask("a")
        await settle()
        assert heard == [("a", KEY, "Order")]

        due_at = nodes.desks["a"].pass_time()
        assert heard == [("a", KEY, "Order")] * 2
        assert due_at == nodes.clock.now() + SECOND

        lease = await soon(nodes.poll("a"))
        assert lease is not None
        heard.clear()
        due_at = nodes.desks["a"].pass_time()
        assert heard == []
        assert due_at == lease.expires_at

    played(story)


def test_a_query_is_announced_no_later_than_it_is_out_of_time() -> None:
    async def story(nodes: Nodes) -> None:
        nodes.ask("a")
        await settle()
        nodes.clock.jump(seconds=RULES.timeout / SECOND - 0.5)
        due_at = nodes.desks["a"].pass_time()
        assert due_at == nodes.clock.now() + SECOND // 2

    played(story)

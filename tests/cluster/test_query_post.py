"""Parcels between the desks of two nodes: lost, late, foreign, and in many parts."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from perdure.cluster import remote_queries as query_post
from perdure.cluster.remote_queries import Letter, QueryPost
from perdure.core.fleet.worker import Worker
from perdure.core.rejection import QueryTaskNotFound
from perdure.dispatch.query_broker import QueryBroker
from perdure.dispatch.query_messages import AskedQuery, QueryAnswer, QueryReport, QueryWanted
from perdure.dispatch.query_table import QueryRules
from perdure.identity import IdSource
from perdure.store.interface import Unavailable
from perdure.store.postgres.node_channel import PART_CHARACTERS, NodeChannel
from tests.support.clock import SECOND, FakeClock

RULES = QueryRules(timeout=40 * SECOND, lease_timeout=60 * SECOND)
WANTED = QueryWanted(namespace="default", queue="q", names=frozenset({"Order"}), owner="w1")
ASKED = AskedQuery(
    namespace="default",
    queue="q",
    name="Order",
    workflow_id="order-1",
    run_id="r",
    workflow_type="Order",
    query_name="total",
)


class Carrier:
    """Carries parcels to the other node; some kinds of letters may be lost, or wait."""

    def __init__(self) -> None:
        self.to: Callable[[bytes], None]
        self.refused: set[str] = set()
        self.swallowed: set[str] = set()
        self.kept: list[bytes] = []

    async def send(self, node: str, parcel: bytes) -> None:
        kind = msgspec.msgpack.decode(parcel, type=Letter).kind
        if kind in self.refused:
            raise Unavailable("storage_unavailable", "nobody hears")
        if kind in self.swallowed:
            self.kept.append(parcel)
        else:
            self.to(parcel)


class Pair:
    """Two nodes, `a` and `b`."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.carriers = {"a": Carrier(), "b": Carrier()}
        self.posts = {
            node: QueryPost(node, carrier, lambda key, name: None)
            for node, carrier in self.carriers.items()
        }
        self.desks = {}
        for node, other in (("a", "b"), ("b", "a")):
            self.carriers[node].to = self.posts[other].heard
            ids = IdSource(self.clock.now, seed=1)
            query_broker = QueryBroker(
                self.clock,
                ids,
                RULES,
                on_due=lambda due_at: None,
                node=node,
                remote=self.posts[node],
            )
            self.posts[node].connect(query_broker)
            self.desks[node] = query_broker

    def ask_at_a(self) -> "asyncio.Task[QueryAnswer]":
        return asyncio.ensure_future(self.desks["a"].ask(ASKED, lambda leave: None))


def played(story: Callable[[Pair], Awaitable[None]]) -> None:
    async def play() -> None:
        pair = Pair()
        loops = [asyncio.ensure_future(post.run()) for post in pair.posts.values()]
        try:
            await asyncio.wait_for(story(pair), 90)
        finally:
            for loop in loops:
                loop.cancel()
            for query_broker in pair.desks.values():
                query_broker.release_all()
            await asyncio.gather(*loops, return_exceptions=True)

    asyncio.run(play())


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_lease_that_cannot_be_handed_over_goes_back_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(query_post, "REPLY_SECONDS", 0.05)

    async def story(pair: Pair) -> None:
        pair.ask_at_a()
        await turn()
        pair.carriers["a"].refused.add("lease")
        with pytest.raises(TimeoutError):
            await pair.posts["b"].claim("a", WANTED)

        pair.carriers["a"].refused.clear()
        lease = await pair.posts["b"].claim("a", WANTED)

        assert lease is not None
        assert lease.attempt == 2

    played(story)


def test_a_lease_that_comes_too_late_goes_back_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_post, "REPLY_SECONDS", 0.05)

    async def story(pair: Pair) -> None:
        pair.ask_at_a()
        await turn()
        pair.carriers["a"].swallowed.add("lease")
        with pytest.raises(TimeoutError):
            await pair.posts["b"].claim("a", WANTED)
        pair.carriers["a"].swallowed.clear()
        pair.posts["b"].heard(pair.carriers["a"].kept.pop())
        await turn()

        lease = await pair.posts["b"].claim("a", WANTED)

        assert lease is not None
        assert lease.attempt == 2

    played(story)


def test_a_report_that_gets_no_reply_is_about_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_post, "REPLY_SECONDS", 0.05)

    async def story(pair: Pair) -> None:
        pair.carriers["b"].swallowed.add("report")
        report = QueryReport(namespace="default", query_id="01J-a", owner="w1", attempt=1)
        with pytest.raises(QueryTaskNotFound):
            await pair.desks["b"].report(report)

    played(story)


def test_a_report_that_cannot_be_sent_may_be_sent_again() -> None:
    async def story(pair: Pair) -> None:
        pair.carriers["b"].refused.add("report")
        report = QueryReport(namespace="default", query_id="01J-a", owner="w1", attempt=1)
        with pytest.raises(Unavailable):
            await pair.desks["b"].report(report)

    played(story)


def test_a_poll_outlives_a_node_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_post, "REPLY_SECONDS", 0.05)

    async def story(pair: Pair) -> None:
        pair.carriers["b"].swallowed.add("claim")
        pair.desks["b"].announced("a", ASKED.key, "Order")
        worker = Worker("default", "w1", "q", "python", 0, 0, "", workflow_types=["Order"])
        polling = pair.desks["b"].poll(
            worker, poll_id=None, patience=5 * SECOND, watch=lambda leave: None
        )
        poll = asyncio.ensure_future(polling)
        while not pair.desks["b"].parked_count:  # noqa: ASYNC110 (nobody would tell us)
            await asyncio.sleep(0)
        asked = asyncio.ensure_future(pair.desks["b"].ask(ASKED, lambda leave: None))
        lease = await poll
        assert lease is not None
        await pair.desks["b"].report(
            QueryReport(
                namespace="default",
                query_id=lease.query_id,
                owner="w1",
                attempt=1,
                outcome=QueryAnswer(b"1"),
            )
        )
        assert await asked == QueryAnswer(b"1")

    played(story)


@pytest.mark.parametrize(
    "parcel",
    [
        b"",
        b"nonsense",
        msgspec.msgpack.encode(Letter("b", 1, "claim", b"nonsense")),
        msgspec.msgpack.encode(Letter("b", 1, "report", b"")),
        msgspec.msgpack.encode(Letter("b", 1, "lease", b"?")),
        msgspec.msgpack.encode(Letter("b", 1, "tomorrow", b"")),
        msgspec.msgpack.encode(Letter("b", 1, "view", b"")),
    ],
)
def test_a_parcel_that_makes_no_sense_is_left_alone(parcel: bytes) -> None:
    async def story(pair: Pair) -> None:
        asked = pair.ask_at_a()
        await turn()
        pair.posts["a"].heard(parcel)
        await turn()
        assert not asked.done()
        assert await pair.posts["b"].claim("a", WANTED) is not None

    played(story)


# The wire ----------------------------------------------------------------------------------------


def test_parcels_of_any_size_arrive_whole_and_only_where_they_belong(postgres_url: str) -> None:
    async def story() -> None:
        wires = {node: NodeChannel(postgres_url, node) for node in ("n1", "n2", "n3")}
        heard: dict[str, list[bytes]] = {node: [] for node in wires}
        loops = [
            asyncio.ensure_future(wire.run(heard[node].append)) for node, wire in wires.items()
        ]
        sent = [b"", b"x", bytes(range(256)) * 4_000, b"y" * PART_CHARACTERS * 3, b"end"]
        try:
            async with asyncio.timeout(90):
                # Not before somebody listens.
                while not heard["n2"]:
                    await wires["n1"].send("n2", b"first")
                heard["n2"].clear()
                await asyncio.gather(*(wires["n1"].send("n2", parcel) for parcel in sent))
                await wires["n3"].send("n2", b"third")
                while not {b"end", b"third"} <= set(heard["n2"]):  # noqa: ASYNC110 (nobody would tell us)
                    await asyncio.sleep(0)
        finally:
            for loop in loops:
                loop.cancel()
            for wire in wires.values():
                await wire.close()
        arrived = [parcel for parcel in heard["n2"] if parcel != b"first"]
        assert arrived == [parcel for parcel in sent if parcel] + [b"third"]
        assert heard["n1"] == heard["n3"] == []

    asyncio.run(story())


@pytest.mark.parametrize(
    "texts",
    [
        ["n1 1 1 2 QQ=="],
        ["n1 1 0 2 QQ==", "n1 1 0 2 QQ=="],
        ["n1 1 0 1 ???"],
        ["n1 1 0 99999 QQ=="],
        ["what", "", "n1 x y z Q", "n1 1 -1 1 QQ=="],
    ],
)
def test_parts_without_a_beginning_or_a_sense_are_left_alone(texts: list[str]) -> None:
    async def story() -> None:
        wire = NodeChannel("postgresql://nowhere", "n2")
        heard: list[bytes] = []
        wire._on_message = heard.append
        for text in texts:
            wire._take(None, 0, "", text)
        assert heard == []
        wire._take(None, 0, "", "n1 2 0 1 QQ==")
        assert heard == [b"A"]

    asyncio.run(story())

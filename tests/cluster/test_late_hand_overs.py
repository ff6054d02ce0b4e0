"""A hand-over that arrives very late speaks of one task, not of the next one of its run."""

import msgspec

from perdure.cluster.messages import PollOffer, TaskHandover, unpack
from perdure.dispatch.delivery import WorkflowDelivery, claim_of
from perdure.store.interface import QueueKey
from tests.cluster.among import Node
from tests.cluster.test_lent_polls import (
    Way,
    any_distance,
    borrower,
    give_up,
    given,
    lent,
    parked,
    play,
)
from tests.cluster.test_lost_hand_overs import any_kind, finish, hand_over, never_take_back
from tests.engine.engine_harness import DONE, an_activity, completion, result
from tests.support.clock import SECOND


class EarlierHandOver(msgspec.Struct, array_like=True, frozen=True, tag="hand_over"):
    """What the release before knows of a hand-over."""

    sender: str
    number: int
    key: QueueKey
    poll: int
    name: str
    run_id: str
    place: int
    attempt: int
    owner: str
    sent_at: int
    run: bytes | None


def as_before(errand: bytes, *, sent_ago: float = 0) -> bytes:
    """A hand-over as a node of the release before sends it, so many seconds ago."""
    whole = msgspec.structs.asdict(unpack(errand))
    del whole["task"]
    whole["sent_at"] -= round(sent_ago * SECOND)
    return msgspec.msgpack.encode(EarlierHandOver(**whole))


async def overtaken(one: Node, two: Node, way: Way) -> WorkflowDelivery:
    """The next task of the run whose first one was handed over; all of that by other ways."""
    way.holds = (TaskHandover,)
    poll = await lent(one, two, "p1")
    await one.start()
    await give_up(one)
    first = await given(poll)
    assert first.attempt == 2, "it was taken back and given again"
    await two.play(completion(first, an_activity()))
    await two.play(result(await two.take_activity()))
    task = await two.take()
    (late,) = (errand for errand in way.sent if isinstance(errand, TaskHandover))
    assert (task.number, task.attempt, task.owner) == (2, late.attempt, late.owner)
    return task


def refusals(way: Way) -> int:
    return sum(len(told.refused) for told in way.sent if isinstance(told, PollOffer))


async def arrives_for_nobody(two: Node, way: Way) -> None:
    """What was held back arrives where the worker has another poll, which does not get it."""
    back = Way(two)
    spare = parked(two, "p2")
    await two.until(lambda: two.server.parked_polls.count == 1)
    way.let_go()
    await two.until(lambda: spare.done() or refusals(back) == 1)
    assert not spare.done()
    # That poll waits as before.
    run_id = await two.start("another order")
    assert (await given(spare)).run_id == run_id


@any_distance
def test_a_late_hand_over_does_not_give_away_the_next_task(
    migrated_url: str, *, near: bool
) -> None:
    """The same worker holds it at the same attempt; a second poll of it would do the work twice."""

    async def story(one: Node, two: Node) -> None:
        way = Way(one)
        task = await overtaken(one, two, way)
        await arrives_for_nobody(two, way)
        await two.play(completion(task, DONE))

    play(migrated_url, story, near=near)


def test_a_late_hand_over_of_the_release_before_is_refused(migrated_url: str) -> None:
    """It does not say which task it means, and may have been taken back."""

    async def story(one: Node, two: Node) -> None:
        way = Way(one)
        task = await overtaken(one, two, way)
        way.held = [(node, as_before(errand, sent_ago=60)) for node, errand in way.held]
        await arrives_for_nobody(two, way)
        await two.play(completion(task, DONE))

    play(migrated_url, story)


@any_distance
@any_kind
def test_a_hand_over_of_the_release_before_is_taken(
    migrated_url: str, kind: str, *, near: bool
) -> None:
    """It comes at once; and of an activity it says enough, however late it is."""

    async def story(one: Node, two: Node) -> None:
        never_take_back(one)
        way = Way(one)
        way.holds = (TaskHandover,)
        poll = await hand_over(one, two, kind)
        sent_ago = -60 if kind == "workflow" else 60
        way.held = [(node, as_before(errand, sent_ago=sent_ago)) for node, errand in way.held]
        way.let_go()
        task = await given(poll)
        assert claim_of(task).number == 1, "it was not refused and given again"
        await one.until(lambda: not borrower(one)._under_way)
        await finish(two, task, kind)

    play(migrated_url, story, near=near)


def test_the_release_before_reads_what_it_knows_of_a_hand_over() -> None:
    key = QueueKey("default", "orders", "workflow")
    whole = TaskHandover("one", 3, key, 5, "shop", "run", 0, 1, "w1", 9, b"packed", task=4)
    known = msgspec.msgpack.decode(msgspec.msgpack.encode(whole), type=EarlierHandOver)
    told = msgspec.structs.asdict(whole)
    assert told.pop("task") == 4
    assert msgspec.structs.asdict(known) == told

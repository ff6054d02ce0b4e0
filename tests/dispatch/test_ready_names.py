"""What is offered while a queue is looked at is not forgotten with what that look found."""

import asyncio
from collections.abc import Callable

import pytest

from perdure.core.fleet.routing import pass_name
from perdure.core.fleet.worker import Worker
from perdure.core.run.state import Run
from perdure.dispatch.connected_runners import Call, ConnectedRunners, Runner
from perdure.dispatch.parked_polls import ParkedPoller, ParkedPolls
from perdure.dispatch.ready_names import ReadyNames
from perdure.dispatch.task_waiters import TaskWaiterSet
from perdure.engine.reply import Reply
from perdure.store.interface import QueueKey

NAME = pass_name("order", "")
KEY = QueueKey("default", "shop", "pass")


def test_a_name_is_known_until_a_look_finds_nothing_of_it() -> None:
    ready = ReadyNames()
    assert KEY not in ready
    ready.offer(KEY, "a")
    ready.offer(KEY, "b")
    assert set(ready.of(KEY)) == {"a", "b"}
    assert ready.begin_look(KEY)
    assert not ready.begin_look(KEY), "one look at a time"
    ready.reads(KEY)
    ready.exhausted(KEY, {"a"})
    ready.end_look(KEY)
    assert set(ready.of(KEY)) == {"b"}
    ready.exhausted(KEY, {"b"})
    assert KEY not in ready


def test_what_is_offered_before_the_queue_is_read_is_found_by_that_look() -> None:
    ready = ReadyNames()
    ready.begin_look(KEY)
    ready.offer(KEY, "a")
    ready.reads(KEY)
    ready.exhausted(KEY, {"a"})
    assert KEY not in ready


def test_what_is_offered_after_the_queue_was_read_stays() -> None:
    ready = ReadyNames()
    ready.offer(KEY, "a")
    ready.begin_look(KEY)
    ready.reads(KEY)
    ready.offer(KEY, "a")
    ready.exhausted(KEY, {"a"})
    ready.end_look(KEY)
    assert set(ready.of(KEY)) == {"a"}
    ready.begin_look(KEY)
    ready.reads(KEY)
    ready.exhausted(KEY, {"a"})
    assert KEY not in ready, "once is enough"


class Deaf:
    """Takes passes and does nothing with them."""

    is_writable = True

    def carry(self, call: Call, run: Run) -> None:
        raise AssertionError("nothing is sent here")


def runners() -> tuple[TaskWaiterSet, list[QueueKey]]:
    parked_polls, looks = ConnectedRunners(), list[QueueKey]()
    parked_polls.connect(looks.append)
    parked_polls.add(
        Runner(
            KEY,
            owner="o",
            runner_id="r",
            workflows=frozenset({"order"}),
            link=Deaf(),
            send=lambda runner, run: None,
        )
    )
    return parked_polls, looks


def polls() -> tuple[TaskWaiterSet, list[QueueKey]]:
    parked_polls, looks = ParkedPolls(), list[QueueKey]()
    parked_polls.connect(looks.append)
    worker = Worker(
        namespace=KEY.namespace,
        worker_id="w",
        queue=KEY.queue,
        runtime="python",
        registered_at=0,
        heartbeat_at=0,
        registration_token="",
    )
    loop = asyncio.new_event_loop()
    try:
        parked_polls.park(
            ParkedPoller(
                KEY,
                worker,
                frozenset({NAME}),
                page_size=1,
                poll_id=None,
                on_abandoned=lambda poller, delivery: None,
                answer=Reply(loop=loop),
            )
        )
    finally:
        loop.close()
    return parked_polls, looks


@pytest.mark.parametrize("build", [runners, polls])
def test_an_offer_between_a_look_and_its_end_is_looked_for_again(
    build: Callable[[], tuple[TaskWaiterSet, list[QueueKey]]],
) -> None:
    parked_polls, looks = build()
    parked_polls.offered(KEY, NAME)
    assert looks == [KEY]
    assert parked_polls.wanted(KEY)[0] == {NAME}, "the look reads the queue"
    parked_polls.offered(KEY, NAME)  # another node has written one more
    assert looks == [KEY]
    parked_polls.exhausted(KEY, {NAME})
    parked_polls.claimed(KEY)
    assert looks == [KEY, KEY]
    assert parked_polls.wanted(KEY)[0] == {NAME}
    parked_polls.exhausted(KEY, {NAME})
    parked_polls.claimed(KEY)
    assert looks == [KEY, KEY], "and no more than that"

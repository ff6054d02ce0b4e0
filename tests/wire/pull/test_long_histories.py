"""Tasks whose history is longer than what memory keeps of it: a parked poll reads it from disk."""

import asyncio
import json
from typing import Any

import pytest

from perdure.core.limits import RUN_HISTORY_CACHE_BYTES_MAX, RUN_OPENING_CACHE_BYTES_MAX
from perdure.store.interface import Unavailable
from tests.support.http import (
    WORKER_VERSION,
    Json,
    Parked,
    Stream,
    Wire,
    complete_workflow,
    start_timer,
    wait_for_condition,
)

EVENT_BYTES = 20_000
EVENTS = RUN_HISTORY_CACHE_BYTES_MAX // EVENT_BYTES + 8
OPENING_EVENTS = RUN_OPENING_CACHE_BYTES_MAX // EVENT_BYTES
"""More of them than this do not stay in memory when the history is too long for it."""


class Shelves:
    """Where histories are read from; reading can be made to wait, or to fail."""

    def __init__(self, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.failure: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self._read = wire.server.store.read_history
        monkeypatch.setattr(wire.server.store, "read_history", self._read_history)

    async def _read_history(self, run_id: str, after: int, limit: int) -> list[bytes]:
        self.asked += 1
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        return await self._read(run_id, after, limit)


@pytest.fixture
def shelves(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Shelves:
    return Shelves(wire, monkeypatch)


def a_long_run(wire: Wire, *last: Json) -> None:
    """A run that waits, with a history that memory does not keep as a whole."""
    marker = {"type": "record_side_effect", "result": "x" * EVENT_BYTES}
    wire.run_to(*[marker] * EVENTS, *last)


def park(wire: Wire, **members: Any) -> Parked:
    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 60, **members}
    return wire.park("/workflow-tasks/poll", body)


def history_of(wire: Wire, task: Json) -> list[Json]:
    """All pages of a task's history."""
    events, token = list(task["history_events"]), task["next_history_page_token"]
    while token is not None:
        page = wire.report(task, "history", next_history_page_token=token).ok()
        events += page["history_events"]
        token = page["next_history_page_token"]
    return events


@pytest.mark.parametrize("size", [OPENING_EVENTS + 5, EVENTS, 500])
def test_a_parked_poll_is_given_the_history_from_disk(
    wire: Wire, shelves: Shelves, size: int
) -> None:
    wire.register()
    a_long_run(wire, start_timer(1))
    poll = park(wire, history_page_size=size)

    wire.advance(seconds=1)
    task = poll.answer().ok()["task"]

    assert shelves.asked == 1
    assert len(task["history_events"]) == min(size, task["total_history_events"])
    assert history_of(wire, task) == wire.events()
    wire.complete(task, complete_workflow())
    assert wire.describe()["status"] == "completed"


def test_what_memory_keeps_of_the_beginning_is_not_read_again(wire: Wire, shelves: Shelves) -> None:
    wire.register()
    a_long_run(wire, start_timer(1))
    poll = park(wire, history_page_size=OPENING_EVENTS // 2)

    wire.advance(seconds=1)
    task = poll.answer().ok()["task"]

    assert shelves.asked == 0
    assert task["history_events"] == wire.events()[: OPENING_EVENTS // 2]


def test_a_validation_is_given_the_whole_history_from_disk(wire: Wire, shelves: Shelves) -> None:
    wire.register_validator()
    a_long_run(wire, wait_for_condition())
    before = wire.events()
    shelves.asked = 0
    poll = park(wire, task_kinds=["workflow", "update_validation"])

    update = wire.update_later(input=[1], request_id="r1")
    task = poll.answer().ok()["task"]

    assert (shelves.asked, task["task_kind"]) == (1, "update_validation")
    assert task["history_events"] == before
    wire.judge(task, "approve").ok()
    assert update.answer().ok(202)["update_status"] == "accepted"


def a_bare_poll(wire: Wire, **members: Any) -> Stream:
    """A parked poll on a connection that can be cut."""
    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 60, **members}
    content = json.dumps(body).encode()
    stream = wire.stream()
    stream.send(
        f"POST /api/worker/workflow-tasks/poll HTTP/1.1\r\nHost: localhost\r\n"
        f"{WORKER_VERSION}: 1.20\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        + content
    )
    wire.until(lambda: wire.server.parked_polls.count == 1)
    return stream


def test_a_client_that_goes_while_its_history_is_read_may_ask_again(
    wire: Wire, shelves: Shelves
) -> None:
    """It has its lease by then. Whoever does not come again is waited for no longer than that."""
    wire.register()
    wire.register("w2")
    a_long_run(wire, start_timer(1))
    leaving = a_bare_poll(wire, poll_request_id="p1")
    shelves.open.clear()
    wire.advance(seconds=1)
    wire.until(lambda: shelves.asked == 1)
    (request,) = [c._busy for c in wire.connections.open if c._busy is not None]

    leaving.close()
    # The connection stays until its answer is written: it might have closed its side only.
    wire.until(lambda: request.is_gone)
    shelves.open.set()
    wire.until(lambda: wire.connections.answering == 0)

    again = wire.take(poll_request_id="p1")
    assert again["workflow_task_attempt"] == 1
    assert history_of(wire, again) == wire.events()
    assert wire.poll(worker_id="w2")["poll_status"] == "empty"
    wire.advance(seconds=60)
    assert wire.take(worker_id="w2")["workflow_task_attempt"] == 2


def test_a_poll_whose_history_cannot_be_read_gets_it_when_it_comes_again(
    wire: Wire, shelves: Shelves
) -> None:
    wire.register()
    a_long_run(wire, start_timer(1))
    poll = park(wire, poll_request_id="p1")
    shelves.failure = Unavailable("storage_unavailable", "the disk does not answer", 2)

    wire.advance(seconds=1)
    body = poll.answer().refused(503, "backend_unavailable")

    assert (body["task"], body["retry_same_poll_request_id"]) == (None, True)
    shelves.failure = None
    task = wire.take(poll_request_id="p1")
    assert task["workflow_task_attempt"] == 1
    assert history_of(wire, task) == wire.events()

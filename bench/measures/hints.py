"""(i) how fast a node hears of work that another node has made.

A poll is parked on one node, a workflow is started on a node: the same one, or another. On the same
node the task is handed over in the beat that makes it; another node lends its poll, and is handed
the task after the commit. Where nobody is known to poll, a hint is sent. It is heard by a listener
of our own beside the nodes, and timed from the answer to the start. It is sent when that answer is,
so it may well be the first to arrive: the figure is then below zero.
"""

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import asyncpg

from bench import wire
from bench.client import Connection
from bench.report import Figure, Target, at_most
from bench.server import Server
from bench.setup import Setup
from perdure.store.postgres.hints import CHANNEL

POLL_TIMEOUT: Final = 30
HINT_TIMEOUT: Final = 10.0
PAUSE: Final = 0.02
"""Long enough for a poll to be parked; nobody outside can see when it is."""


class Ear:
    """A listener beside the nodes: when it first heard that a queue has work."""

    def __init__(self) -> None:
        self._queue = ""
        self._heard: asyncio.Future[float] | None = None

    def listen_for(self, queue: bytes) -> asyncio.Future[float]:
        """The moment of the next hint about a queue."""
        self._queue = queue.decode()
        self._heard = asyncio.get_running_loop().create_future()
        return self._heard

    def take(self, connection: object, pid: int, channel: str, payload: object) -> None:
        """Called by the driver for everything that is heard."""
        heard_at, text = time.perf_counter(), str(payload)
        is_ours = f'"{self._queue}"' in text and '"ready"' in text
        if is_ours and self._heard is not None and not self._heard.done():
            self._heard.set_result(heard_at)


@dataclass(frozen=True, slots=True)
class Sample:
    """One task handed over, in milliseconds."""

    from_request: float
    """From the start request to the answer of the poll."""
    from_reply: float
    """From the answer to the start, when the task is durable, to the answer of the poll."""


async def measure(setup: Setup) -> list[Figure]:
    """Polls parked on the node that starts and on another one."""
    count, repetitions = setup.pick(100, 20), setup.pick(5, 2)
    async with (
        setup.store() as store,
        setup.nodes(store, 2) as (first, second),
        _listening(store.url) as ear,
    ):
        same = await _Handover.new(starts_on=first, polls_on=first)
        other = await _Handover.new(starts_on=first, polls_on=second)
        telling = first.connect()
        try:
            for handover in (same, other):
                await handover.repeat(count // 4)
            near, far, hints = [], [], []
            for _ in range(repetitions):  # In turns, so that a slow moment hits all.
                near.append(await same.repeat(count))
                far.append(await other.repeat(count))
                hints.append([await _hint(telling, ear) for _ in range(count)])
        finally:
            same.close()
            other.close()
            telling.close()
    return _figures(near, far, hints, note=f"{repetitions} × {count} samples")


async def _hint(starter: Connection, ear: Ear) -> float:
    """From the answer to a start to the hint that its queue has work; nobody polls there."""
    queue = b"bench-" + secrets.token_hex(4).encode()
    hint = ear.listen_for(queue)
    await starter.send(wire.start(queue, queue))
    replied_at = time.perf_counter()
    async with asyncio.timeout(HINT_TIMEOUT):
        return 1e3 * (await hint - replied_at)


@asynccontextmanager
async def _listening(url: str) -> AsyncIterator[Ear]:
    ear = Ear()
    connection = await asyncpg.connect(url)
    try:
        await connection.add_listener(CHANNEL, ear.take)
        yield ear
    finally:
        connection.terminate()


def _figures(
    near: Sequence[Sequence[Sample]],
    far: Sequence[Sequence[Sample]],
    hints_ms: Sequence[Sequence[float]],
    *,
    note: str,
) -> list[Figure]:
    near_ms = [[sample.from_request for sample in series] for series in near]
    far_ms = [[sample.from_request for sample in series] for series in far]
    durable_ms = [[sample.from_reply for sample in series] for series in far]

    def figure(
        name: str, series: Sequence[Sequence[float]], percent: int, target: Target | None = None
    ) -> Figure:
        samples = tuple(statistics.quantiles(one, n=100)[percent - 1] for one in series)
        return Figure("i", f"{name}, p{percent}", "ms", samples, target, note)

    return [
        figure("durable start to hint heard by others", hints_ms, 50, at_most(2)),
        figure("durable start to hint heard by others", hints_ms, 99),
        figure("durable start to poll on another node", durable_ms, 50),
        figure("durable start to poll on another node", durable_ms, 99),
        figure("start to poll on another node", far_ms, 50),
        figure("start to poll on another node", far_ms, 99),
        figure("start to poll on the same node", near_ms, 50),
        figure("start to poll on the same node", near_ms, 99),
    ]


class _Handover:
    """A worker with one poll at a time, and somebody who starts workflows for it."""

    def __init__(self, starter: Connection, poller: Connection) -> None:
        self._starter = starter
        self._poller = poller
        self._name = b"bench-" + secrets.token_hex(4).encode()
        self._number = 0

    @staticmethod
    async def new(*, starts_on: Server, polls_on: Server) -> "_Handover":
        """With a registered worker."""
        handover = _Handover(starts_on.connect(), polls_on.connect())
        await handover._poller.send(wire.register(handover._name, handover._name, slots=1))
        return handover

    async def repeat(self, count: int) -> list[Sample]:
        """Start while a poll is parked, again and again."""
        return [await self._hand_over() for _ in range(count)]

    def close(self) -> None:
        """Hang up."""
        self._starter.close()
        self._poller.close()

    async def _hand_over(self) -> Sample:
        self._number += 1
        async with asyncio.TaskGroup() as group:
            polling = group.create_task(self._poll(), name="poll")
            await asyncio.sleep(PAUSE)
            started_at = time.perf_counter()
            await self._starter.send(wire.start(b"%b-%d" % (self._name, self._number), self._name))
            replied_at = time.perf_counter()
        task, answered_at = polling.result()
        await self._complete(task)
        return Sample(1e3 * (answered_at - started_at), 1e3 * (answered_at - replied_at))

    async def _poll(self) -> tuple[wire.WorkflowTask, float]:
        request = wire.poll_workflow_task(
            self._name,
            self._name,
            poll_id=b"%b-%d" % (self._name, self._number),
            timeout_seconds=POLL_TIMEOUT,
            page_size=500,
        )
        reply = await self._poller.send(request)
        answered_at = time.perf_counter()
        task = wire.decode_workflow_poll(reply).task
        assert task is not None, f"no task in {POLL_TIMEOUT} s"
        return task, answered_at

    async def _complete(self, task: wire.WorkflowTask) -> None:
        await self._poller.send(wire.complete_workflow_task(task, self._name, wire.COMPLETE_RUN))

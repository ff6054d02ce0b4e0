"""(i) how fast a node hears of work that another node has made.

A poll is parked on one node, a workflow is started on a node: the same one, or another. On the same
node the task is handed over in the beat that makes it. Another node must first hear of it and then
claim it, so a claim alone is measured as well: a poll that finds a task which has been ready for a
while. What is left of the way between the nodes is the hint.
"""

import asyncio
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench import wire
from bench.client import Connection
from bench.report import Figure, Target, at_most
from bench.server import Server
from bench.setup import Setup

POLL_TIMEOUT: Final = 30
PAUSE: Final = 0.02
"""Long enough for a poll to be parked; nobody outside can see when it is."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One task handed over, in milliseconds."""

    from_request: float
    """From the start request to the answer of the poll."""
    from_reply: float
    """From the answer to the start, when the task is durable, to the answer of the poll."""


async def measure(setup: Setup) -> list[Figure]:
    """Polls parked on the node that starts and on another, and claims without any hint."""
    count, repetitions = setup.pick(100, 20), setup.pick(5, 2)
    async with setup.store() as store, setup.nodes(store, 2) as (first, second):
        same = await _Handover.new(starts_on=first, polls_on=first)
        other = await _Handover.new(starts_on=first, polls_on=second)
        try:
            for handover in (same, other):
                await handover.parked(count // 4)
            near, far, claims = [], [], []
            for _ in range(repetitions):  # In turns, so that a slow moment hits all three.
                near.append(await same.parked(count))
                far.append(await other.parked(count))
                claims.append(await other.claims(count))
        finally:
            same.close()
            other.close()
    return _figures(near, far, claims, note=f"{repetitions} × {count} samples")


def _figures(
    near: Sequence[Sequence[Sample]],
    far: Sequence[Sequence[Sample]],
    claims: Sequence[Sequence[float]],
    *,
    note: str,
) -> list[Figure]:
    near_ms = [[sample.from_request for sample in series] for series in near]
    far_ms = [[sample.from_request for sample in series] for series in far]
    heard_ms = [[sample.from_reply for sample in series] for series in far]
    hints = [
        statistics.median(heard) - statistics.median(claim)
        for heard, claim in zip(heard_ms, claims, strict=True)
    ]

    def figure(
        name: str, series: Sequence[Sequence[float]], percent: int, target: Target | None = None
    ) -> Figure:
        samples = tuple(statistics.quantiles(one, n=100)[percent - 1] for one in series)
        return Figure("i", f"{name}, p{percent}", "ms", samples, target, note)

    return [
        Figure(
            *("i", "hint to another node, p50", "ms", tuple(hints), at_most(2)),
            note="durable start to poll, less a claim",
        ),
        figure("durable start to poll on another node", heard_ms, 50),
        figure("durable start to poll on another node", heard_ms, 99),
        figure("claim of a ready task", claims, 50),
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

    async def parked(self, count: int) -> list[Sample]:
        """Start while a poll is parked, again and again."""
        return [await self._hand_to_parked() for _ in range(count)]

    async def claims(self, count: int) -> list[float]:
        """Poll for a task that is ready, again and again."""
        return [await self._claim_ready() for _ in range(count)]

    def close(self) -> None:
        """Hang up."""
        self._starter.close()
        self._poller.close()

    async def _hand_to_parked(self) -> Sample:
        self._number += 1
        async with asyncio.TaskGroup() as group:
            polling = group.create_task(self._poll(), name="poll")
            await asyncio.sleep(PAUSE)
            started_at = time.perf_counter()
            await self._start()
            replied_at = time.perf_counter()
        task, answered_at = polling.result()
        await self._complete(task)
        return Sample(1e3 * (answered_at - started_at), 1e3 * (answered_at - replied_at))

    async def _claim_ready(self) -> float:
        self._number += 1
        await self._start()
        await asyncio.sleep(PAUSE)
        started_at = time.perf_counter()
        task, answered_at = await self._poll()
        await self._complete(task)
        return 1e3 * (answered_at - started_at)

    async def _start(self) -> None:
        await self._starter.send(wire.start(b"%b-%d" % (self._name, self._number), self._name))

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

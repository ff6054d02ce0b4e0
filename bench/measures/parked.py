"""(f) what thousands of parked polls cost a server that has nothing to do."""

import asyncio
import resource
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from bench import wire
from bench.client import Connection
from bench.process import cpu_seconds, resident_bytes
from bench.report import Figure, known
from bench.server import Server
from bench.setup import Setup

POLLS: Final = 5000
WORKERS: Final = 50
QUEUES: Final = 10
POLL_TIMEOUT: Final = 60
CONNECTING_MAX: Final = 64
SETTLE_TIMEOUT: Final = 10.0
QUIET_PERCENT: Final = 5.0
FILES_SPARE: Final = 256
MEGABYTE: Final = 1e6


@dataclass(frozen=True, slots=True)
class Parked:
    """The polls that wait, and the tasks in which this client waits with them."""

    queues: tuple[bytes, ...]
    waits: list[asyncio.Task[None]] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answered(self) -> int:
        """How many polls are not parked any more."""
        return sum(wait.done() for wait in self.waits)

    async def park(self, connection: Connection, request: bytes) -> None:
        """Wait for the answer to one poll."""
        await connection.send(request)
        self.woken.set()


async def measure(setup: Setup) -> list[Figure]:
    """Memory and idle CPU with half the polls for workflow tasks and half for activity tasks."""
    polls = polls_allowed(setup.pick(POLLS, 500))
    idle_seconds = setup.pick(10, 2)
    windows = setup.pick(3, 2)
    async with setup.server() as server:
        before = resident_bytes(server.pid)
        async with parking(server, polls) as parked:
            await settle(server)
            idle = [await _idle_percent(server, idle_seconds) for _ in range(windows)]
            after = resident_bytes(server.pid)
            early = parked.answered
            woken = await _wake_one(server, parked)
    growth = None if after is None or before is None else (after - before) / MEGABYTE
    total = None if after is None else after / MEGABYTE
    assumed, label = setup.targets, f"{polls:,} parked polls"
    note = f"{early:,} polls answered early" if early else ""
    return [
        Figure("f", f"{label}, RSS", "MB", known([total]), assumed.parked_memory, note),
        Figure("f", f"{label}, RSS growth", "MB", known([growth]), note=note),
        Figure("f", f"{label}, idle CPU", "% of a core", known(idle), assumed.parked_cpu, note),
        Figure("f", f"{label}, start to woken poll", "ms", woken, note=note),
    ]


def polls_allowed(wanted: int) -> int:
    """As many as this process may open sockets for."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - FILES_SPARE)


@asynccontextmanager
async def parking(server: Server, polls: int) -> AsyncIterator[Parked]:
    """Polls that wait, half of them for workflow tasks and half for activity tasks."""
    prefix = secrets.token_hex(4)
    queues = tuple(f"bench-{prefix}-{number}".encode() for number in range(QUEUES))
    workers = await _register_workers(server, prefix, queues=queues)
    connections = [server.connect() for _ in range(polls)]
    gate = asyncio.Semaphore(CONNECTING_MAX)
    parked = Parked(queues)
    async with asyncio.TaskGroup() as group:
        try:
            # Opened before anything is sent, so that the burst of polls measures polls.
            await asyncio.gather(*(_open(connection, gate) for connection in connections))
            for number, connection in enumerate(connections):
                worker_id, queue = workers[number // 2 % len(workers)]
                request = _poll(worker_id, queue, number=number)
                wait = group.create_task(parked.park(connection, request), name=f"poll-{number}")
                parked.waits.append(wait)
            yield parked
        finally:
            for wait in parked.waits:
                wait.cancel()
            for connection in connections:
                connection.close()


async def _register_workers(
    server: Server, prefix: str, *, queues: tuple[bytes, ...]
) -> list[tuple[bytes, bytes]]:
    connection = server.connect()
    workers = []
    try:
        for number in range(WORKERS):
            worker_id, queue = f"bench-{prefix}-{number}".encode(), queues[number % len(queues)]
            await connection.send(wire.register(worker_id, queue, slots=POLLS // WORKERS))
            workers.append((worker_id, queue))
    finally:
        connection.close()
    return workers


async def _open(connection: Connection, gate: asyncio.Semaphore) -> None:
    async with gate:
        await connection.open()


def _poll(worker_id: bytes, queue: bytes, *, number: int) -> bytes:
    poll_id = b"%b-%d" % (worker_id, number)
    if number % 2:
        return wire.poll_activity_task(
            worker_id, queue, poll_id=poll_id, timeout_seconds=POLL_TIMEOUT
        )
    return wire.poll_workflow_task(
        worker_id, queue, poll_id=poll_id, timeout_seconds=POLL_TIMEOUT, page_size=500
    )


async def settle(server: Server) -> None:
    """Wait until the server has parked what it was sent: until it falls quiet."""
    deadline = time.perf_counter() + SETTLE_TIMEOUT
    while time.perf_counter() < deadline:
        percent = await _idle_percent(server, 0.5)
        if percent is None or percent < QUIET_PERCENT:
            return


async def _idle_percent(server: Server, seconds: float) -> float | None:
    started_at, before = time.perf_counter(), cpu_seconds(server.pid)
    await asyncio.sleep(seconds)
    wall, after = time.perf_counter() - started_at, cpu_seconds(server.pid)
    return None if before is None or after is None else 100 * (after - before) / wall


async def _wake_one(server: Server, parked: Parked) -> tuple[float, ...]:
    """Prove that the polls are alive: start one workflow per queue and see one poll return."""
    samples = []
    connection = server.connect()
    try:
        for queue in parked.queues:
            parked.woken.clear()
            started_at = time.perf_counter()
            await connection.send(wire.start(queue + b"-wake", queue))
            async with asyncio.timeout(SETTLE_TIMEOUT):
                await parked.woken.wait()
            samples.append(1e3 * (time.perf_counter() - started_at))
    finally:
        connection.close()
    return tuple(samples)

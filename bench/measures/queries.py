"""(k) how long a query takes through a worker that polls, and how many there can be."""

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from bench import wire
from bench.client import Connection
from bench.process import cpu_seconds
from bench.report import Figure, at_most, known
from bench.server import Server
from bench.setup import Setup

POLL_TIMEOUT: Final = 30
EVENTS: Final = 200
ASKERS: Final = 64

_HEADERS: Final = b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_CONTROL: Final = _HEADERS + b"X-Durable-Workflow-Control-Plane-Version: 2\r\n"
_WORKER: Final = _HEADERS + b"X-Durable-Workflow-Protocol-Version: 1.20\r\n"
_BODY: Final = b"Content-Length: %d\r\n\r\n%b"
_ASK: Final = b"POST /api/workflows/%b/query/total" + _CONTROL + _BODY
_SIGNAL: Final = b"POST /api/workflows/%b/signal/enter" + _CONTROL + _BODY
_POLL: Final = b"POST /api/worker/query-tasks/poll" + _WORKER + _BODY
_COMPLETE: Final = b"POST /api/worker/query-tasks/%b/complete" + _WORKER + _BODY
_INPUT: Final = b'{"input":' + wire.PAYLOAD + b"}"


class _Task(msgspec.Struct):
    query_task_id: str
    query_task_attempt: int
    history_events: msgspec.Raw


class _Poll(msgspec.Struct):
    task: _Task | None


_decode_poll = msgspec.json.Decoder(_Poll).decode


@dataclass(frozen=True, slots=True)
class Run:
    """The run that is asked, and the worker that answers for it."""

    worker_id: bytes
    workflow_id: bytes

    @property
    def ask(self) -> bytes:
        return _ASK % (self.workflow_id, len(_INPUT), _INPUT)


async def measure(setup: Setup) -> list[Figure]:
    """From the question to its answer, on a run with a short and with a longer history."""
    count, repetitions = setup.pick(500, 100), setup.pick(5, 2)
    async with setup.server() as server:
        async with _answering(server, pollers=2) as run:
            short = await _series(server, run, count, repetitions)
            await _prolong(server, run)
            longer = await _series(server, run, count, repetitions)
        async with _answering(server, pollers=8) as run:
            rates = [await _rate(server, run, 2 * count) for _ in range(repetitions)]
    note = f"{repetitions} × {count} samples"
    label = f"history of {EVENTS} events"
    return [
        Figure("k", "query, 1 in flight, p50", "ms", _percentiles(short, 50), at_most(10), note),
        Figure("k", "query, 1 in flight, p99", "ms", _percentiles(short, 99), None, note),
        Figure("k", f"query, {label}, p50", "ms", _percentiles(longer, 50), at_most(10), note),
        Figure("k", f"queries, {ASKERS} in flight", "/s", tuple(rate for rate, _ in rates)),
        Figure("k", "server CPU per query", "ms", known(cpu for _, cpu in rates)),
    ]


@asynccontextmanager
async def _answering(server: Server, *, pollers: int) -> AsyncIterator[Run]:
    """A started run, and `pollers` polls of a worker that answers at once."""
    worker_id = b"bench-" + secrets.token_hex(4).encode()
    run = Run(worker_id, worker_id + b"-run")
    connection = server.connect()
    await connection.send(wire.register(worker_id, worker_id, slots=pollers))
    await connection.send(wire.start(run.workflow_id, worker_id))
    connection.close()
    async with asyncio.TaskGroup() as group:
        loops = [group.create_task(_answer(server, worker_id)) for _ in range(pollers)]
        try:
            yield run
        finally:
            for loop in loops:
                loop.cancel()


async def _answer(server: Server, worker_id: bytes) -> None:
    connection = server.connect()
    body = b'{"worker_id":"%b","task_queue":"%b","timeout_seconds":%d}' % (
        worker_id,
        worker_id,
        POLL_TIMEOUT,
    )
    poll = _POLL % (len(body), body)
    try:
        while True:
            task = _decode_poll(await connection.send(poll)).task
            if task is not None:
                done = b'{"lease_owner":"%b","query_task_attempt":%d,"result":1,' % (
                    worker_id,
                    task.query_task_attempt,
                )
                done += b'"result_envelope":' + wire.PAYLOAD + b"}"
                query_id = task.query_task_id.encode()
                await connection.send(_COMPLETE % (query_id, len(done), done))
    finally:
        connection.close()


async def _prolong(server: Server, run: Run) -> None:
    """Signals that nobody has looked at yet are shown to a query as its history."""
    connection = server.connect()
    for _ in range(EVENTS):
        await connection.send(_SIGNAL % (run.workflow_id, len(_INPUT), _INPUT))
    connection.close()


async def _series(server: Server, run: Run, count: int, repetitions: int) -> list[list[float]]:
    connection = server.connect()
    try:
        await _latencies(connection, run, count // 2)
        return [await _latencies(connection, run, count) for _ in range(repetitions)]
    finally:
        connection.close()


async def _latencies(connection: Connection, run: Run, count: int) -> list[float]:
    latencies = []
    for _ in range(count):
        started_at = time.perf_counter()
        await connection.send(run.ask)
        latencies.append(1e3 * (time.perf_counter() - started_at))
    return latencies


async def _rate(server: Server, run: Run, count: int) -> tuple[float, float | None]:
    """Queries per second, and server CPU per query in milliseconds."""
    left = count

    async def ask() -> None:
        nonlocal left
        connection = server.connect()
        try:
            while left > 0:
                left -= 1
                await connection.send(run.ask)
        finally:
            connection.close()

    started_at, before = time.perf_counter(), cpu_seconds(server.pid)
    async with asyncio.TaskGroup() as group:
        for _ in range(ASKERS):
            group.create_task(ask())
    wall, after = time.perf_counter() - started_at, cpu_seconds(server.pid)
    cpu = None if before is None or after is None else 1e3 * (after - before) / count
    return count / wall, cpu


def _percentiles(series: Sequence[Sequence[float]], percent: int) -> tuple[float, ...]:
    return tuple(statistics.quantiles(one, n=100)[percent - 1] for one in series)

"""(z) what an exchange costs with a server that does nothing: how fast this machine is today."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from bench.client import Connection
from bench.process import cpu_seconds
from bench.report import Figure, known
from bench.server import listening_address
from bench.setup import Setup

CONNECTIONS: Final = 64
_BODY: Final = b'{"number":7,"text":"%s"}' % (b"x" * 478)
_REQUEST: Final = (
    b"POST /bare HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer nobody\r\nX-Version: 1\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
) + _BODY


async def measure(setup: Setup) -> list[Figure]:
    """Half a kilobyte of JSON one way and a kilobyte the other, on 64 connections."""
    rates, costs = [], []
    async with _bare_server() as (pid, host, port):
        connections = [Connection(host, port) for _ in range(CONNECTIONS)]
        each = setup.pick(500, 50)
        for repetition in range(setup.pick(6, 3)):
            started_at, before = time.perf_counter(), cpu_seconds(pid)
            await asyncio.gather(*(_ask(connection, each) for connection in connections))
            after, wall = cpu_seconds(pid), time.perf_counter() - started_at
            if repetition == 0:
                continue  # It connects, and warms up.
            count = each * CONNECTIONS
            rates.append(count / wall)
            costs.append(
                None if after is None or before is None else 1e6 * (after - before) / count
            )
        for connection in connections:
            connection.close()
    return [
        Figure("z", "exchanges with a server that does nothing", "/s", tuple(rates)),
        Figure("z", "its CPU per exchange", "µs", known(costs), note="reference machine: 19"),
    ]


async def _ask(connection: Connection, count: int) -> None:
    for _ in range(count):
        await connection.send(_REQUEST)


@asynccontextmanager
async def _bare_server() -> AsyncIterator[tuple[int, str, int]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.bare"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        host, port = await listening_address(process)
        yield process.pid, host, port
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()

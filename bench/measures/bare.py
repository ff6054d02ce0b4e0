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
REFERENCE_MICROSECONDS: Final = 19.0
"""What an exchange costs on the reference machine."""
_BODY: Final = b'{"number":7,"text":"%s"}' % (b"x" * 478)
_REQUEST: Final = (
    b"POST /bare HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer nobody\r\nX-Version: 1\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
) + _BODY


class BareServer:
    """A server that does nothing, and connections to it."""

    def __init__(self, pid: int, host: str, port: int) -> None:
        self._pid = pid
        self._connections = [Connection(host, port) for _ in range(CONNECTIONS)]

    async def exchange(self, each: int) -> tuple[float, float | None]:
        """So many exchanges on every connection: their rate, and microseconds of CPU for one."""
        started_at, before = time.perf_counter(), cpu_seconds(self._pid)
        await asyncio.gather(*(_ask(connection, each) for connection in self._connections))
        after, wall = cpu_seconds(self._pid), time.perf_counter() - started_at
        count = each * CONNECTIONS
        cost = None if after is None or before is None else 1e6 * (after - before) / count
        return count / wall, cost

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


async def measure(setup: Setup) -> list[Figure]:
    """Half a kilobyte of JSON one way and a kilobyte the other, on 64 connections."""
    async with bare_server() as bare:
        each = setup.pick(500, 50)
        await bare.exchange(each)  # It connects, and warms up.
        samples = [await bare.exchange(each) for _ in range(setup.pick(5, 2))]
    rates, costs = zip(*samples, strict=True)
    return [
        Figure("z", "exchanges with a server that does nothing", "/s", rates),
        Figure("z", "its CPU per exchange", "µs", known(costs), note="reference machine: 19"),
    ]


async def _ask(connection: Connection, count: int) -> None:
    for _ in range(count):
        await connection.send(_REQUEST)


@asynccontextmanager
async def bare_server() -> AsyncIterator[BareServer]:
    """A process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.bare"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        bare = BareServer(process.pid, *await listening_address(process))
        yield bare
        bare.close()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()

"""Events, runs and a runner of the push protocol, as far as the measurements need them."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from bench.client import Connection
from bench.server import Server

_HEADERS: Final = b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_PAUSE: Final = 0.005
KNOWN_TIMEOUT: Final = 30.0


class Accepted(msgspec.Struct):
    """The reply to an event."""

    runId: str | None = None
    woke: int = 0


class RunRow(msgspec.Struct):
    """How a run stands."""

    id: str
    status: str
    result: Any = None
    error: Any = None


class Change(msgspec.Struct):
    """A status that a run has come to."""

    runId: str
    status: str


_decode_change = msgspec.json.Decoder(Change).decode
_decode_accepted = msgspec.json.Decoder(Accepted).decode
_decode_run = msgspec.json.Decoder(RunRow).decode
_decode_runs = msgspec.json.Decoder(list[RunRow]).decode
_decode_any = msgspec.json.Decoder(list[dict[str, Any]]).decode


def event(name: str, data: object = None) -> bytes:
    """Send an event."""
    body = msgspec.json.encode({"name": name, "data": data})
    return b"POST /events" + _HEADERS + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def get(path: str) -> bytes:
    return b"GET " + path.encode() + _HEADERS + b"\r\n"


async def send(connection: Connection, name: str, data: object = None) -> Accepted:
    return _decode_accepted(await connection.send(event(name, data)))


async def ended(connection: Connection, run_id: str) -> RunRow:
    """Look at a run until it is over; nothing else is done meanwhile."""
    while True:
        run = _decode_run(await connection.send(get(f"/runs/{run_id}")))
        if run.status == "succeeded":
            return run
        if run.status in ("failed", "cancelled"):
            raise RuntimeError(f"run {run_id} {run.status}: {run.error}")


class Ends:
    """The ends of runs, as the server tells them to whoever listens."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}
        self._news = asyncio.Event()

    async def of(self, run_id: str) -> None:
        """Wait until a run is over."""
        while (status := self._told.pop(run_id, None)) is None:
            self._news.clear()
            await self._news.wait()
        if status != "succeeded":
            raise RuntimeError(f"run {run_id} {status}")

    async def hear(self, reader: asyncio.StreamReader) -> None:
        """Take in every status that the stream tells."""
        async for line in reader:
            if line.startswith(b"data: "):
                change = _decode_change(line[6:])
                if change.status in ("succeeded", "failed", "cancelled"):
                    self._told[change.runId] = change.status
                    self._news.set()


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[Ends]:
    """Hear of every run that ends, from here on."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    ends = Ends()
    try:
        writer.write(get("/runs/stream"))
        # The head of the answer comes when the server has begun to listen.
        await reader.readuntil(b"\r\n\r\n")
        hearing = asyncio.create_task(ends.hear(reader), name="run-ends")
        try:
            yield ends
        finally:
            hearing.cancel()
    finally:
        writer.close()


async def drained(connection: Connection, workflow: str = "") -> None:
    """Wait until no run is under way."""
    which = f"&workflow={workflow}" if workflow else ""
    for status in ("queued", "running"):
        request = get(f"/runs?status={status}&limit=1{which}")
        while _decode_runs(await connection.send(request)):  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(_PAUSE)
    failed = _decode_runs(await connection.send(get(f"/runs?status=failed&limit=1{which}")))
    if failed:
        raise RuntimeError(f"run {failed[0].id} failed")


async def flood(server: Server, name: str, count: int, *, connections: int = 32) -> None:
    """Send so many events, as fast as they are taken."""
    left = count
    request = event(name)

    async def sender() -> None:
        nonlocal left
        connection = server.connect()
        try:
            while left > 0:
                left -= 1
                await connection.send(request)
        finally:
            connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(sender())


@asynccontextmanager
async def runner(server: Server, *, over: str = "connect") -> AsyncIterator[None]:
    """One runner process, from its registration to its end."""
    engine = f"http://{server.host}:{server.port}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.runner", "--engine", engine, "--over", over),
        *("--port", str(_free_port())),
        env=dict(os.environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    connection = server.connect()
    try:
        async with asyncio.timeout(KNOWN_TIMEOUT):
            while not _decode_any(await connection.send(get("/workflows"))):
                if process.returncode is not None:
                    raise RuntimeError(f"the runner ended with {process.returncode}")
                await asyncio.sleep(_PAUSE)
        yield
    finally:
        connection.close()
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port

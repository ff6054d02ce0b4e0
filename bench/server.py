"""The server under test: a subprocess with a store of its own, started, timed and stopped here."""

import asyncio
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.client import Connection, Disconnected, Refused
from bench.process import Reading, read_usage
from bench.wire import READY
from tests.support.postgres import Cluster

READY_TIMEOUT = 30.0
STOP_TIMEOUT = 15.0
LISTENING = re.compile(rb"listening on http://([0-9.]+):(\d+)")


class ServerFailed(Exception):
    """The server did not become ready, or did not stop; says what it wrote."""


@dataclass(slots=True)
class Server:
    """A running server: where it listens, which process it is, how long it took to be ready."""

    process: asyncio.subprocess.Process
    host: str
    port: int
    seconds_to_ready: float
    database_pid: int | None = None

    @property
    def pid(self) -> int:
        """The process to measure."""
        return self.process.pid

    def read_usage(self) -> Reading:
        """The clocks of the server, of a database of our own, and of this client."""
        return read_usage(self.pid, self.database_pid)

    def connect(self) -> Connection:
        """A connection of the caller's own, opened on first use."""
        return Connection(self.host, self.port)

    async def stop(self) -> float:
        """Ask the server to drain and wait until it is gone; returns the seconds it took."""
        started_at = time.perf_counter()
        if self.process.returncode is None:
            self.process.terminate()
            await _wait_or_kill(self.process)
        return time.perf_counter() - started_at


@dataclass(frozen=True, slots=True)
class Store:
    """Where the server keeps its data, and a directory for what it writes besides."""

    directory: Path
    url: str
    cluster: Cluster | None = None

    def bytes_on_disk(self) -> int | None:
        """Size of the database, with its log files if it is a file; unknown if it is not ours."""
        if self.cluster is not None:
            name = urlsplit(self.url).path[1:]
            return int(self.cluster.execute(f"select pg_database_size('{name}')")[0][0])
        if self.url.startswith("sqlite:"):
            return sum(path.stat().st_size for path in self.directory.glob("bench.db*"))
        return None


@asynccontextmanager
async def temporary_store(
    *, cluster: Cluster | None = None, external_url: str | None = None
) -> AsyncIterator[Store]:
    """A fresh store, gone afterwards: a file, a database of our own server, or one given by URL."""
    directory = Path(tempfile.mkdtemp(prefix="perdure-bench-"))
    try:
        if cluster is None:
            yield Store(directory, external_url or f"sqlite:///{directory / 'bench.db'}")
        else:
            url = cluster.fresh_database()
            try:
                yield Store(directory, url, cluster)
            finally:
                cluster.drop_database(url)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def serving(store: Store, *, processes: int | None = None) -> AsyncIterator[Server]:
    """A ready server on the store, stopped on the way out."""
    several = () if processes is None else ("--processes", str(processes))
    log_path = store.directory / "server.log"
    started_at = time.perf_counter()
    with log_path.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", "serve", "--host", "127.0.0.1", "--port", "0"),
            *("--store", store.url, *several),
            env=_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            host, port = await listening_address(process)
            await _answer_ready(host, port)
    except (TimeoutError, EOFError) as error:
        await _kill(process)
        raise ServerFailed(f"not ready: {error!r}\n{_tail(log_path)}") from error
    except BaseException:
        await _kill(process)
        raise
    ready_after = time.perf_counter() - started_at
    database_pid = None if store.cluster is None else store.cluster.pid
    server = Server(process, host, port, ready_after, database_pid)
    drain = asyncio.create_task(_discard_output(process), name="server-output")
    try:
        yield server
    except Exception as error:
        error.add_note(f"server log:\n{_tail(log_path)}")
        raise
    finally:
        await server.stop()
        drain.cancel()


@asynccontextmanager
async def fresh_server(
    store: AbstractAsyncContextManager[Store], *, processes: int | None = None
) -> AsyncIterator[Server]:
    """A ready server on a store of its own."""
    async with store as opened, serving(opened, processes=processes) as server:
        yield server


def _environment() -> dict[str, str]:
    # The developer's own settings must not colour the figures.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DW_", "PERDURE_"))}
    return {**kept, "DW_AUTH_DRIVER": "none", "PYTHONUNBUFFERED": "1"}


async def listening_address(process: asyncio.subprocess.Process) -> tuple[str, int]:
    """Where a server says that it listens."""
    assert process.stdout is not None
    async for line in process.stdout:
        if found := LISTENING.search(line):
            return found[1].decode(), int(found[2])
    raise EOFError("the server ended before it was listening")


async def _answer_ready(host: str, port: int) -> None:
    connection = Connection(host, port)
    try:
        while True:
            with suppress(Refused, Disconnected, OSError):
                await connection.send(READY)
                return
            await asyncio.sleep(0.01)
    finally:
        connection.close()


async def _discard_output(process: asyncio.subprocess.Process) -> None:
    # A full pipe would block the server in the middle of a measurement.
    assert process.stdout is not None
    while await process.stdout.read(65536):
        pass


async def _wait_or_kill(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT):
            await process.wait()
    except TimeoutError as error:
        await _kill(process)
        raise ServerFailed(f"still running {STOP_TIMEOUT:g} s after SIGTERM") from error
    except BaseException:
        await _kill(process)
        raise


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _tail(log_path: Path) -> str:
    return log_path.read_text(errors="replace")[-3000:] if log_path.exists() else ""

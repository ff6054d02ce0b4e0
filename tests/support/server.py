"""A real server in a process of its own, for stories: started, killed, stopped, started again."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Self

READY_TIMEOUT = 120.0
STOP_TIMEOUT = 90.0
LISTENING = "perdure listening on "
STORES = ("sqlite", "postgres")


class ServerProcess:
    """`perdure` on a SQLite file, or on PostgreSQL with as many processes as are asked for.

    What it writes is kept in a file. All its processes live and die together.
    """

    def __init__(
        self,
        store: Path | str,
        *,
        log_path: Path | None = None,
        port: int = 0,
        processes: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(store, Path):
            log_path = log_path or store.absolute().with_suffix(".log")
            store = f"sqlite:///{store.absolute()}"
        assert log_path is not None, "say where the server shall write to"
        self.log_path = log_path
        """Everything that the server wrote, over all its lives."""
        self._store = store
        self._port = port
        self._processes = processes
        self._env = {"DW_AUTH_DRIVER": "none", **(env or {})}
        self._process: subprocess.Popen[str] | None = None
        self._reader: Thread | None = None
        self.url = ""
        self.exit_code: int | None = None
        """How its last life ended."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may use the same store."""
        return not self._store.startswith("sqlite:")

    @property
    def pid(self) -> int:
        """The process that was started; it may have others under it."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start and wait until the server listens; later starts use the same port."""
        assert self._process is None, "the server is already running"
        command = [sys.executable, "-m", "perdure", "serve", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--store", self._store]
        command += ["--processes", str(self._processes)]
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._env},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        listening: Future[str] = Future()
        self._reader = Thread(target=self._read, args=(self._process.stdout, listening))
        self._reader.start()
        try:
            self.url = listening.result(READY_TIMEOUT)
        except BaseException:
            self.kill()
            raise
        self._port = int(self.url.rpartition(":")[2])
        return self

    def kill_one(self, number: int) -> None:
        """One of the processes under a supervisor dies, and is replaced; the others live on."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        if listed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(listed[number % len(listed)]), signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL for every process: nothing is flushed, nobody is told."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._reap()

    def stop(self) -> None:
        """SIGTERM, then wait for the drain."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._reap()
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def restart(self) -> None:
        """Kill and start on the same port and store."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _reap(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        self.exit_code = self._process.wait(STOP_TIMEOUT)
        self._reader.join()
        self._process = None

    def _read(self, output: IO[str], listening: Future[str]) -> None:
        with output, self.log_path.open("a") as log:
            for line in output:
                log.write(line)
                log.flush()
                if line.startswith(LISTENING) and not listening.done():
                    listening.set_result(line.removeprefix(LISTENING).strip())
        if not listening.done():
            written = self.log_path.read_text()[-4000:]
            listening.set_exception(RuntimeError(f"the server did not start:\n{written}"))

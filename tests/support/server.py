"""A real server in a process of its own, for stories: started, killed, stopped, started again."""

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Self

READY_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0
LISTENING = "perdure listening on "


class ServerProcess:
    """`perdure dev` on a SQLite file; what it writes is kept beside the file."""

    def __init__(
        self, store_path: Path, *, port: int = 0, env: Mapping[str, str] | None = None
    ) -> None:
        self._store_path = store_path.absolute()
        self._port = port
        self._env = dict(env or {})
        self._process: subprocess.Popen[str] | None = None
        self._reader: Thread | None = None
        self.url = ""

    @property
    def log_path(self) -> Path:
        """Everything that the server wrote, over all its lives."""
        return self._store_path.with_suffix(".log")

    def start(self) -> Self:
        """Start and wait until the server listens; later starts use the same port."""
        assert self._process is None, "the server is already running"
        command = [sys.executable, "-m", "perdure", "dev", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--store", f"sqlite:///{self._store_path}"]
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._env},
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

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nobody is told."""
        if self._process is not None:
            self._process.kill()
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
        self._process.wait(STOP_TIMEOUT)
        self._reader.join()
        self._process = None

    def _read(self, output: IO[str], listening: Future[str]) -> None:
        with output, self.log_path.open("a") as log:
            for line in output:
                log.write(line)
                if line.startswith(LISTENING) and not listening.done():
                    listening.set_result(line.removeprefix(LISTENING).strip())
        if not listening.done():
            written = self.log_path.read_text()[-4000:]
            listening.set_exception(RuntimeError(f"the server did not start:\n{written}"))

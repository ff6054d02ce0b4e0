"""Servers in processes of their own, one after another, from `crashing_server`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.crashing_server import At
from tests.support.server import LISTENING

ROOT = Path(__file__).parents[2]


class Nursery:
    """Gives birth to one server at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._pid: int | None = None

    def open(self, store: Path | str, *, at: At | None = None, nth: int = 0) -> str:
        """Start a server, which dies at a moment if one is named; returns its address."""
        assert self._pid is None, "a server is alive"
        assert self._process.stdin is not None
        order = {"store": str(store), "at": at, "nth": nth}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        words: dict[str, str] = {}
        while LISTENING.strip() not in words:
            line = self._read()
            key = LISTENING.strip() if line.startswith(LISTENING) else line.split()[0]
            assert key != "exit", "the server did not start; see its words above"
            words[key] = line.split()[-1]
        self._pid = int(words["pid"])
        return words[LISTENING.strip()]

    def end_of_server(self) -> int:
        """Wait for the end of the server; returns its exit code."""
        line = self._read()
        assert line.startswith("exit "), line
        self._pid = None
        return int(line.split()[1])

    def stop(self) -> None:
        """SIGTERM, and a clean end."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGTERM)
        assert self.end_of_server() == 0

    def kill(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self.end_of_server()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery is gone"
        return line.strip()


@contextmanager
def a_nursery() -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.crashing_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        nursery = Nursery(process)
        try:
            yield nursery
        finally:
            nursery.kill()
            assert process.stdin is not None
            process.stdin.close()

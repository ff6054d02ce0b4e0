"""The process between a test and its PostgreSQL: when the test is gone, so is the server.

It obeys orders on its standard input, one JSON object a line, and answers each with one line. The
end of its input is the end of whoever started it, even by SIGKILL: the guard then stops the server
at once and removes the folder. It needs nothing but the standard library, so it starts in a moment.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

QUIT_TIMEOUT = 20.0


class Guard:
    """One folder, one account to act as, and at most one server at a time."""

    def __init__(self, folder: Path, account: tuple[int, int] | None) -> None:
        self._folder = folder
        self._account: dict[str, Any] = {}
        if account is not None:
            self._account = {"user": account[0], "group": account[1], "extra_groups": []}
        self._server: subprocess.Popen[bytes] | None = None

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do what one line asks."""
        match order["do"]:
            case "run":
                return self._run(order["command"])
            case "start":
                return self._start(order["command"])
            case "signal":
                self._signal(order["signal"])
                return {}
            case "wait":
                return {"code": self._wait(order["seconds"])}
            case unknown:
                raise ValueError(f"no such order: {unknown}")

    def end(self) -> None:
        """Stop the server without ceremony and leave nothing behind."""
        self._signal(signal.SIGQUIT)
        if self._wait(QUIT_TIMEOUT) is None:
            self._signal(signal.SIGKILL)
            self._wait(QUIT_TIMEOUT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, command: list[str]) -> dict[str, Any]:
        done = subprocess.run(
            command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **self._account,
        )
        return {"code": done.returncode, "output": done.stdout}

    def _start(self, command: list[str]) -> dict[str, Any]:
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._account,
            )
        return {"pid": self._server.pid}

    def _signal(self, number: int) -> None:
        if self._server is not None:
            self._server.send_signal(number)

    def _wait(self, seconds: float) -> int | None:
        if self._server is None:
            return 0
        try:
            return self._server.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def main(folder: str, account: str) -> None:
    """Obey until the input ends."""
    # Ctrl-C is for the tests, which then stop the server in their own order. Functions, because
    # SIG_IGN would be inherited by the server.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    user, _, group = account.partition(":")
    guard = Guard(Path(folder), (int(user), int(group)) if user else None)
    try:
        for line in sys.stdin:
            try:
                answer = guard.obey(json.loads(line))
            except OSError as error:
                answer = {"error": str(error)}
            os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
    finally:
        guard.end()


if __name__ == "__main__":
    main(*sys.argv[1:])

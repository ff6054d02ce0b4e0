"""The published SDK releases, each in an environment of its own, and processes that use them."""

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType
from typing import Any, Self

import pytest

ROOT = Path(__file__).parents[2]
LINE_TIMEOUT = 180.0
STOP_TIMEOUT = 60.0


def python_of(release: str) -> Path:
    """The interpreter that has this release installed, and nothing of ours."""
    environments = Path(os.environ.get("PERDURE_SDK_ENVS", ROOT / ".venv-sdk"))
    python = environments / release / "bin" / "python"
    assert python.exists(), f"{python} is missing: run `make sdks`"
    return python


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the driver said about one case."""

    case: str
    ok: bool
    story: str


@dataclass(frozen=True, slots=True)
class Report:
    """What the driver said about all cases of a release."""

    verdicts: dict[str, Verdict]
    complaints: str

    def of(self, case: str) -> Verdict:
        """The verdict on one case; a case the driver never came to has failed."""
        missing = f"the driver said nothing about {case}:\n{self.complaints}"
        return self.verdicts.get(case, Verdict(case, ok=False, story=missing))


def drive(
    release: str,
    url: str,
    *,
    cases: str = "all",
    at_once: int = 8,
    case_timeout: float = 240.0,
    deadline_seconds: float = 480.0,
) -> Report:
    """Play cases with this release against the server, in one process."""
    command = [str(python_of(release)), "-m", "tests.sdk.drive", "--server", url, "--case", cases]
    command += ["--at-once", str(at_once), "--timeout", str(case_timeout)]
    try:
        finished = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=deadline_seconds
        )
        output, complaints = finished.stdout, finished.stderr
    except subprocess.TimeoutExpired as expired:
        output, complaints = _text(expired.stdout), f"out of time\n{_text(expired.stderr)}"
    verdicts = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return Report({told["case"]: _verdict(told) for told in verdicts}, complaints)


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], str]) -> str:
    """The text that `make` makes, made once however many pytest processes ask for it."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    made = shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            made.write_text(make())
    return made.read_text()


class SdkProcess:
    """A program with one release of the SDK, known by the lines that it prints."""

    def __init__(self, release: str, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [str(python_of(release)), "-m", module, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: Queue[str | None] = Queue()
        self._heard: list[str] = []
        self._reader = Thread(target=self._read)
        self._reader.start()

    def lines(self, *, patience: float = LINE_TIMEOUT) -> Iterator[str]:
        """Lines as they are printed, until the program ends."""
        while True:
            try:
                line = self._lines.get(timeout=patience)
            except Empty:
                heard = "".join(self._heard[-40:])
                raise TimeoutError(f"silent for {patience} s after:\n{heard}") from None
            if line is None:
                return
            self._heard.append(line)
            yield line.rstrip("\n")

    def expect(self, beginning: str, *, patience: float = LINE_TIMEOUT) -> str:
        """Wait for a line that begins like this."""
        for line in self.lines(patience=patience):
            if line.startswith(beginning):
                return line
        raise AssertionError(f"ended without {beginning!r}:\n{''.join(self._heard[-40:])}")

    @property
    def ended(self) -> bool:
        """Whether the program is over."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL: the program cannot say goodbye."""
        self._process.kill()
        self._reap()

    def stop(self) -> None:
        """SIGTERM, then wait for its end."""
        self._process.terminate()
        try:
            self._reap()
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _reap(self) -> None:
        self._process.wait(STOP_TIMEOUT)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)


def _verdict(told: dict[str, Any]) -> Verdict:
    parts = [told.get("error", ""), *told.get("log", [])]
    parts += [f"{run}: {' '.join(kinds)}" for run, kinds in told.get("histories", {}).items()]
    return Verdict(told["case"], told["ok"], "\n".join(parts))


def _text(output: str | bytes | None) -> str:
    return output.decode() if isinstance(output, bytes) else output or ""

"""Servers in processes of their own, from `crashing_server`: one after another, or some at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import TextIO, TypeVar

from tests.faults.crashing_server import At
from tests.support.server import LISTENING

ROOT = Path(__file__).parents[2]


class Nursery:
    """Gives birth to one server at a time."""

    def __init__(self, orders: TextIO, words: TextIO) -> None:
        self._orders = orders
        self._words = words
        self._pid: int | None = None

    def open(
        self,
        store: Path | str,
        *,
        at: At | None = None,
        nth: int = 0,
        prunes: bool = False,
        **settings: str | int,
    ) -> str:
        """Start a server, which dies at a moment if one is named; returns its address."""
        assert self._pid is None, "a server is alive"
        order = {"store": str(store), "at": at, "nth": nth, "prunes": prunes, "settings": settings}
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
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
            # It may have died by itself a moment ago.
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self.end_of_server()

    def _read(self) -> str:
        line = self._words.readline()
        assert line, "the nursery is gone"
        return line.strip()


@contextmanager
def a_nursery() -> Iterator[Nursery]:
    with some_nurseries(1) as (nursery,):
        yield nursery


@contextmanager
def some_nurseries(number: int) -> Iterator[list[Nursery]]:
    """Several of them, which have learned everything only once."""
    with ExitStack() as stack:
        nurseries, theirs = [], []
        for _ in range(number):
            (heard, orders), (words, said) = os.pipe(), os.pipe()
            theirs += [heard, said]
            streams = [stack.enter_context(os.fdopen(orders, "w"))]
            streams.append(stack.enter_context(os.fdopen(words)))
            nurseries.append(Nursery(*streams))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.crashing_server", *map(str, theirs)],
            cwd=ROOT,
            pass_fds=theirs,
        )
        for end in theirs:
            os.close(end)
        try:
            yield nurseries
        finally:
            for nursery in nurseries:
                nursery.kill()
            stack.close()
            process.wait()


Place = TypeVar("Place")


def die_in_every_beat(
    places: list[Place], live: Callable[[Place, int], bool], *, step: int = 1
) -> int:
    """Live with a death in the first beat, in the next and so on, one life at each place.

    `live` says whether the server died before its story was over. Returns the first that did not:
    mostly they wait for leases to end, so they may wait together.
    """
    numbers, lock = count(1, step), Lock()
    survived: list[int] = []
    is_over = Event()

    def live_on(place: Place) -> None:
        try:
            while not is_over.is_set():
                with lock:
                    nth = next(numbers)
                if not live(place, nth):
                    survived.append(nth)
                    return
        finally:
            is_over.set()

    with ThreadPoolExecutor(len(places)) as pool:
        for ended in [pool.submit(live_on, place) for place in places]:
            ended.result()
    return min(survived)

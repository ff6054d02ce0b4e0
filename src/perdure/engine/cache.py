"""Recently used runs, kept in memory within a bound of bytes.

One process owns a SQLite file, so what is cached is what is on disk. A run whose beat failed is
dropped here and loaded again.
"""

from collections import OrderedDict

from perdure.core.limits import (
    CLOSED_RUNS_CACHED_MAX,
    RUN_CACHE_BYTES_MAX,
    RUN_HISTORY_CACHE_BYTES_MAX,
)
from perdure.core.run.state import Run
from perdure.core.run.status import CLOSED

_RUN_BYTES = 6_000
_OPERATION_BYTES = 1_200


class RunCache:
    """The least recently used run goes first when memory is short."""

    def __init__(self, bytes_max: int = RUN_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._runs: OrderedDict[str, tuple[Run, int]] = OrderedDict()
        # Runs that are closed: a late report or a reader may still ask for the last ones, and
        # thousands that nobody asks for would only give the garbage collector work.
        self._closed: OrderedDict[str, None] = OrderedDict()
        # Runs with which another node most likely goes on.
        self._elsewhere: set[str] = set()

    def find(self, run_id: str) -> Run | None:
        found = self._runs.get(run_id)
        if found is None:
            return None
        self._runs.move_to_end(run_id)
        return found[0]

    def keep(self, run: Run) -> None:
        """Hold a run as it now is on disk."""
        is_closed = run.status in CLOSED
        if is_closed or run.events_bytes > RUN_HISTORY_CACHE_BYTES_MAX:
            _trim(run)
        size = _size(run)
        run_id = run.run_id
        known = self._runs.get(run_id)
        if known is not None:
            # It was found in this beat, and so went to the end.
            self._bytes -= known[1]
            if self._elsewhere:
                self._elsewhere.discard(run_id)
        self._runs[run_id] = (run, size)
        self._bytes += size
        if is_closed:
            self._closed[run_id] = None
            self._closed.move_to_end(run_id)
            if len(self._closed) > CLOSED_RUNS_CACHED_MAX:
                self._forget(next(iter(self._closed)))
        while self._bytes > self._bytes_max and len(self._runs) > 1:
            self._forget(next(iter(self._runs)))

    def drop(self, run_id: str) -> None:
        """Forget a run that may differ from the disk."""
        self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        known = self._runs.pop(run_id, None)
        if known is not None:
            self._bytes -= known[1]
            self._closed.pop(run_id, None)
            self._elsewhere.discard(run_id)

    def goes_elsewhere(self, run_id: str) -> None:
        """Another node was given a task of a run: what memory holds will soon be old."""
        if run_id in self._runs:
            self._elsewhere.add(run_id)

    def is_elsewhere(self, run_id: str) -> bool:
        return run_id in self._elsewhere

    def clear(self) -> None:
        self._runs.clear()
        self._closed.clear()
        self._elsewhere.clear()
        self._bytes = 0

    @property
    def bytes_held(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._runs)


def _trim(run: Run) -> None:
    if run.is_closed:
        # Nobody replays a closed run from here; readers take its history from disk.
        run.events, run.events_bytes, run.arguments = [], 0, b"null"
        run.opening, run.opening_bytes = [], 0
        return
    if run.plain_input is not None:
        # Its start events may still be encoded anew, so they stay until the first lease.
        return
    while run.events_bytes > RUN_HISTORY_CACHE_BYTES_MAX:
        half = max(len(run.events) // 2, 1)
        if run.events_first == 1:
            run.keep_opening(run.events)
        gone, run.events = run.events[:half], run.events[half:]
        run.events_bytes -= sum(map(len, gone))


def _size(run: Run) -> int:
    size = _RUN_BYTES + run.events_bytes + run.opening_bytes + len(run.arguments)
    operations = run.operations
    if operations:
        size += _OPERATION_BYTES * len(operations)
        if len(operations) < 50:
            for operation in operations.values():
                size += len(getattr(operation, "arguments", b""))
    if run.inbox or run.unread:
        for message in (*run.inbox.values(), *run.unread.values()):
            size += 300 + len(message.arguments or b"")
    return size

"""How long parked polls wait.

Polls that may wait equally long end in the order in which they came, and workers ask for few
lengths. So each length has one timer of the loop, for its oldest poll; a timer for each poll would
cost more than parking it.
"""

import asyncio
from collections import OrderedDict
from typing import Protocol


class TimeoutEntry(Protocol):
    """One who waits. By identity: each is in one line at most."""

    ends_at: float

    def time_is_up(self) -> None: ...


class TimeoutQueue:
    """Those who may wait equally long, the oldest first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: OrderedDict[TimeoutEntry, None] = OrderedDict()
        self._is_timed = False

    def begin(self, patient: TimeoutEntry) -> None:
        """Tell somebody when their time is up, unless they end before."""
        patient.ends_at = self._loop.time() + self._seconds
        self._waiting[patient] = None
        if not self._is_timed:
            self._is_timed = True
            self._loop.call_at(patient.ends_at, self._look)

    def end(self, patient: TimeoutEntry) -> None:
        """Somebody waits no longer. The timer stays: it looks, and finds the next one or nobody."""
        self._waiting.pop(patient, None)

    def _look(self) -> None:
        self._is_timed = False
        now = self._loop.time()
        while self._waiting:
            oldest = next(iter(self._waiting))
            if oldest.ends_at > now:
                self._is_timed = True
                self._loop.call_at(oldest.ends_at, self._look)
                return
            del self._waiting[oldest]
            oldest.time_is_up()

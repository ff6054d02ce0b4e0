"""The only source of time. Instants are integers of microseconds since 1970, UTC."""

import asyncio
import sys
import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """What the server knows about time."""

    def now(self) -> int:
        """The present instant, in microseconds."""
        ...

    async def sleep(self, delay_us: int) -> None:
        """Wait for a length of time, in microseconds."""
        ...


# Time since some fixed point that nobody can set. Counts sleep where the system can.
_elapsed_ns = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    if sys.platform == "linux"
    else time.monotonic_ns
)


class SystemClock:
    """The machine's clock, kept from running backwards within one process.

    The wall clock is read once; from then on a clock that nobody can set moves it. A machine whose
    clock is changed while we run therefore neither fires timers early nor stops leases from ending.
    A laptop that slept wakes up with its timers due.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - _elapsed_ns()

    def now(self) -> int:
        return (self._offset_ns + _elapsed_ns()) // 1000

    async def sleep(self, delay_us: int) -> None:
        await asyncio.sleep(max(delay_us, 0) / 1_000_000)


def monotonic_seconds() -> float:
    """A reading for measuring lengths, not moments."""
    return time.monotonic()

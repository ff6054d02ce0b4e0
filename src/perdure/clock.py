"""The only source of time. Instants are integers of microseconds since 1970, UTC."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the server knows about time."""

    def now(self) -> int:
        """The present instant, in microseconds."""
        ...

    async def sleep(self, delay_us: int) -> None:
        """Wait for a length of time, in microseconds."""
        ...


class SystemClock:
    """The machine's clock, kept from running backwards within one process.

    The wall clock is read once; from then on a monotonic clock moves it. A machine whose clock
    jumps while we run therefore neither fires timers early nor stops leases from ending.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return (self._offset_ns + time.monotonic_ns()) // 1000

    async def sleep(self, delay_us: int) -> None:
        await asyncio.sleep(max(delay_us, 0) / 1_000_000)


def monotonic_seconds() -> float:
    """A reading for measuring lengths, not moments."""
    return time.monotonic()

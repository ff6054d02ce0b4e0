"""The only source of time. Instants are integers of microseconds since 1970, UTC."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
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
_elapsed_ns: Callable[[], int] = time.monotonic_ns
if sys.platform == "linux":
    _elapsed_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


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


class FollowingClock:
    """A clock that goes by another one: the database's, so that all nodes agree what time it is.

    Once it has been set it never runs backwards: corrected to an earlier time, it stands still
    until that is reached.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._offset = 0
        self._latest = 0
        self._is_set = False

    def now(self) -> int:
        now = self._own.now() + self._offset
        if now < self._latest:
            return self._latest
        self._latest = now
        return now

    async def sleep(self, delay_us: int) -> None:
        await self._own.sleep(delay_us)

    async def follow(self, ask: Callable[[], Awaitable[int]]) -> int:
        """Set by a clock that is somewhat away; returns by how much ours was wrong."""
        asked_at = self._own.now()
        told = await ask()
        answered_at = self._own.now()
        offset = told - (asked_at + answered_at) // 2
        wrong = offset - self._offset
        if not self._is_set:
            # Nothing was decided by the time of before, so there is nothing to wait for.
            self._is_set, self._latest = True, 0
        # Within the time that asking took, nobody knows which of the two is right.
        if abs(wrong) > answered_at - asked_at:
            self._offset = offset
        return wrong


def monotonic_seconds() -> float:
    """A reading for measuring lengths, not moments."""
    return time.monotonic()

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

    Set to a later time, it is there at once. If the other clock goes back, this one neither follows
    nor stands still: it goes on at nine tenths of its rate until the other one has caught up. What
    is due stays due in time, within a tenth, and time never runs backwards.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._offset = 0
        self._target = 0
        """The offset that the other clock asks for; ours is never below it."""
        self._turned_at = 0
        """When, by the own clock, ours began to slow down from `_offset` to `_target`."""
        self._latest = 0
        self._is_set = False

    def now(self) -> int:
        own = self._own.now()
        now = own + self._offset_at(own)
        if now < self._latest:
            return self._latest
        self._latest = now
        return now

    @property
    def ahead_us(self) -> int:
        """How far it is ahead of the other clock, as that was read last."""
        return self._offset_at(self._own.now()) - self._target

    async def sleep(self, delay_us: int) -> None:
        await self._own.sleep(delay_us)

    async def follow(self, ask: Callable[[], Awaitable[int]], *, others: int = 0) -> int:
        """Go by a clock that is somewhat away; returns by how much ours was wrong.

        `others` is what others who follow it have noted as their present. Set for the first time,
        ours begins there if they are ahead: the other clock went back, and they go on.
        """
        asked_at = self._own.now()
        told = await ask()
        answered_at = self._own.now()
        offset = told - (asked_at + answered_at) // 2
        current = self._offset_at(answered_at)
        wrong = offset - current
        # Within the time that asking took, nobody knows which of the two is right.
        if abs(wrong) <= answered_at - asked_at:
            offset = current
        if not self._is_set:
            # Nothing was decided by the time of before.
            self._is_set, self._latest = True, 0
            current = offset
            if AHEAD_MIN < others - told <= AHEAD_MAX:
                current += others - told
        self._target = offset
        self._offset = max(current, offset)
        self._turned_at = answered_at
        return wrong

    def _offset_at(self, own: int) -> int:
        slowed = max(own - self._turned_at, 0) // SLOWED_BY
        return max(self._offset - slowed, self._target)


AHEAD_MIN, AHEAD_MAX = 1_000_000, 24 * 3600 * 1_000_000
"""How far ahead of a clock, in microseconds, others must be to be joined, and may be."""
SLOWED_BY = 10
"""A clock that is ahead loses a tenth of the time that passes."""


def monotonic_seconds() -> float:
    """A reading for measuring lengths, not moments."""
    return time.monotonic()

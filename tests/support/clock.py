"""Time that passes only when a test says so."""

import asyncio

SECOND = 1_000_000
START = 1_767_225_600 * SECOND
"""2026-01-01T00:00:00Z."""


class FakeClock:
    """Stands still until it is moved. Every move wakes everybody who sleeps: they look again."""

    def __init__(self, at: int = START) -> None:
        self._now = at
        self._sleepers: set[asyncio.Future[None]] = set()
        self._observers: list[asyncio.Future[None]] = []

    def now(self) -> int:
        return self._now

    async def sleep(self, delay_us: int) -> None:
        """Wait for a move of the clock. Waking early is allowed; who wakes looks at the clock."""
        if delay_us <= 0:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.add(sleeper)
        for observer in self._observers:
            if not observer.done():
                observer.set_result(None)
        self._observers.clear()
        try:
            await sleeper
        finally:
            self._sleepers.discard(sleeper)

    @property
    def sleepers(self) -> int:
        """How many sleep at this moment."""
        return sum(not sleeper.done() for sleeper in self._sleepers)

    def jump(self, *, seconds: float) -> None:
        """Move the clock while everybody sleeps on: as on a machine that is too busy to wake."""
        self._now += round(seconds * SECOND)

    async def advance(self, *, seconds: float) -> None:
        """Move the clock, and return when whatever was due has happened."""
        self.jump(seconds=seconds)
        # Twice: somebody may have measured its sleep before the clock moved and lain down after.
        for _ in range(2):
            asleep_again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._observers.append(asleep_again)
            for sleeper in self._sleepers:
                if not sleeper.done():
                    sleeper.set_result(None)
            await asyncio.wait_for(asleep_again, 90)

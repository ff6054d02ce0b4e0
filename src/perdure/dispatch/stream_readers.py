"""Readers who wait for the next item of a stream.

A waiting reader is one small object. It is woken when the record of its stream changes, here or on
a node that tells; on a shared store somebody also looks now and then, for all of them at once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from perdure.core.limits import STREAM_TAILS_MAX
from perdure.core.rejection import LongPollCapacityExhausted
from perdure.store.interface import RecordKey


class WaitingReader:
    """One reader at the end of a stream. `seen` is the version of the record that it has read."""

    __slots__ = ("_woken", "seen")

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.seen = 0

    def wake(self) -> None:
        self._woken.set()

    def looks(self) -> None:
        """What comes from now on is news."""
        self._woken.clear()

    async def wait(self, seconds: float) -> bool:
        """Whether there is news before the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
                return True
        return False


class StreamReaders:
    """Wakes everybody who waits at a stream when it has changed."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[WaitingReader]] = {}
        self._count = 0
        self._on_watch: Callable[[str], None] = lambda topic: None
        self.is_closed = False

    def connect(self, on_watch: Callable[[str], None]) -> None:
        """Say who wants to hear that somebody waits at a stream."""
        self._on_watch = on_watch

    @property
    def count(self) -> int:
        return self._count

    @property
    def watched(self) -> list[RecordKey]:
        """The streams that somebody waits at."""
        return [RecordKey.of_target(topic) for topic in self._waiting]

    @contextlib.contextmanager
    def waiting_at(self, key: RecordKey) -> Iterator[WaitingReader]:
        """Hear of a stream for as long as the block lasts. Enter before reading."""
        if self._count >= STREAM_TAILS_MAX:
            raise LongPollCapacityExhausted(f"{self._count} readers wait already")
        topic, tail = key.target, WaitingReader()
        self._waiting.setdefault(topic, set()).add(tail)
        self._count += 1
        self._on_watch(topic)
        try:
            yield tail
        finally:
            self._count -= 1
            waiting = self._waiting[topic]
            waiting.discard(tail)
            if not waiting:
                del self._waiting[topic]

    def changed(self, topic: str) -> None:
        for tail in self._waiting.get(topic, ()):
            tail.wake()

    def found(self, key: RecordKey, version: int) -> None:
        """A look at the disk: whoever has read an older record has missed something."""
        for tail in self._waiting.get(key.target, ()):
            if tail.seen < version:
                tail.wake()

    def release_all(self) -> None:
        """The server is about to stop: everybody gets what there is."""
        self.is_closed = True
        for waiting in self._waiting.values():
            for tail in waiting:
                tail.wake()

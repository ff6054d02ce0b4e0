"""Commits of SQLite: on the event loop if they are likely to be short, else on a thread.

A thread costs two switches for every beat, more than a small beat on a fast disk takes. But while a
thread waits, the loop collects the next beat, and a stalling disk does not stall the loop.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

import apsw

from perdure.clock import monotonic_seconds

INLINE_RUNS_MAX = 8
"""A beat that changes more runs than this is committed on a thread."""
INLINE_SECONDS_MAX = 0.001
"""The loop waits for the disk only if a commit usually takes less than this."""
_MEMORY = 8
"""Over how many commits the usual duration is averaged."""


class Transaction(Protocol):
    """The part of a connection that ends its transaction."""

    def execute(self, statements: str, /) -> object: ...


_Job = tuple[Transaction, asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Committer:
    """Runs one COMMIT at a time. Leaner than an executor: it is on the path of every beat."""

    def __init__(self, clock: Callable[[], float] = monotonic_seconds) -> None:
        self._clock = clock
        # Until commits have been measured, the loop does not wait for them.
        self._usual_seconds = 2 * INLINE_SECONDS_MAX
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="perdure-commit", daemon=True)
        self._thread.start()

    async def commit(self, transaction: Transaction, *, runs: int) -> None:
        """Commit an open transaction. Not cut short: once begun, its outcome is awaited."""
        if runs <= INLINE_RUNS_MAX and self._usual_seconds < INLINE_SECONDS_MAX:
            self.commit_here(transaction)
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._jobs.put((transaction, loop, done))
        cancelled = False
        while not done.done():
            try:
                await asyncio.shield(done)
            except asyncio.CancelledError:
                cancelled = True
            except apsw.Error:
                break
        if cancelled:
            raise asyncio.CancelledError
        done.result()

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def commit_here(self, transaction: Transaction) -> None:
        """Commit on the calling thread."""
        began_at = self._clock()
        try:
            transaction.execute("commit")
        finally:
            # On the thread this includes waiting for the GIL. That errs on the safe
            # side: a busy loop should not wait for the disk as well.
            seconds = self._clock() - began_at
            self._usual_seconds += (seconds - self._usual_seconds) / _MEMORY

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            transaction, loop, done = job
            error: apsw.Error | None = None
            try:
                self.commit_here(transaction)
            except apsw.Error as raised:
                error = raised
            loop.call_soon_threadsafe(_finish, done, error)


def _finish(done: "asyncio.Future[None]", error: apsw.Error | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)

"""The thread that waits for the disk, so that the loop need not."""

import asyncio
from queue import SimpleQueue
from threading import Thread

import apsw

_Job = tuple[apsw.Connection, asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Committer:
    """Runs one COMMIT at a time. Leaner than an executor: it is on the path of every beat."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="perdure-commit", daemon=True)
        self._thread.start()

    async def commit(self, connection: apsw.Connection) -> None:
        """Commit the open transaction. Not cut short: once begun, its outcome is awaited."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._jobs.put((connection, loop, done))
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

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            connection, loop, done = job
            error: apsw.Error | None = None
            try:
                connection.execute("commit")
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

"""A watchdog that reports what blocks an event loop.

A thread has the loop answer a call every now and then. When the answer is late, the stack of the
loop's thread says which step or handler is at work.
"""

import asyncio
import logging
import os
import sys
import threading
from types import FrameType, TracebackType
from typing import Self

from perdure.sdk import limits
from perdure.sdk.clock import monotonic_seconds
from perdure.sdk.passes import Pass
from perdure.sdk.socket_thread import post

CHECKS_PER_LIMIT = 4

_LIBRARY = os.path.dirname(os.__file__) + os.sep

log = logging.getLogger("perdure.sdk")


class LoopWatchdog:
    """Watches the running loop from `start()` to `stop()`, or as a context."""

    def __init__(self) -> None:
        self._stopping: threading.Event | None = None

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._stopping = threading.Event()
        watch = _Watch(asyncio.get_running_loop(), threading.get_ident(), self._stopping)
        threading.Thread(target=watch.run, name="perdure-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        if self._stopping is not None:
            self._stopping.set()
            self._stopping = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class _Watch:
    """One loop under watch."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread_id: int, stopping: threading.Event
    ) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._stopping = stopping
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        """When the loop was asked what it has not answered yet."""
        self._blocker: str | None = None
        """What was reported since then."""

    def run(self) -> None:
        while not self._stopping.wait(limits.LOOP_BLOCKED_SECONDS / CHECKS_PER_LIMIT):
            with self._lock:
                self._check()

    def _check(self) -> None:
        now = monotonic_seconds()
        if self._asked_at is None:
            self._asked_at = now
            post(self._loop, self._answer)
        elif self._blocker is None and now - self._asked_at >= limits.LOOP_BLOCKED_SECONDS:
            self._blocker = blocker(sys._current_frames().get(self._thread_id))
            log.warning(
                "the event loop is blocked for %.1f s by %s; all passes of this runner wait",
                now - self._asked_at,
                self._blocker,
            )

    def _answer(self) -> None:
        """Called in the loop."""
        with self._lock:
            if self._blocker is not None and self._asked_at is not None:
                seconds = monotonic_seconds() - self._asked_at
                log.warning("the event loop was blocked for %.1f s by %s", seconds, self._blocker)
            self._asked_at = self._blocker = None


def blocker(innermost: FrameType | None) -> str:
    """Which step or handler a thread is at work for, and where in its code."""
    if innermost is None:
        return "unknown code"
    place = _place(innermost)
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code is Pass._await_body.__code__:
            at, name = frame.f_locals["self"], frame.f_locals["opcode"]["name"]
            return f"step {name!r} of workflow {at.workflow!r}, run {at.run_id}, in {place}"
        if frame.f_code is Pass._watched.__code__:
            at = frame.f_locals["self"]
            return f"the handler of workflow {at.workflow!r}, run {at.run_id}, in {place}"
        frame = frame.f_back
    return place


def _place(innermost: FrameType) -> str:
    """The innermost code that belongs to no library, or else the innermost."""
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    told = frame or innermost
    return f"{told.f_code.co_qualname} ({told.f_code.co_filename}:{told.f_lineno})"

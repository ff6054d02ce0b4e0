"""The threads in which the plain functions of steps run, so that they never block an event loop.

A thread cannot be stopped. A call that is dropped before it has a thread never runs; one that is
dropped later runs to its end, and its result goes nowhere.
"""

import asyncio
import contextvars
import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from perdure.sdk.limits import THREAD_IDLE_SECONDS

log = logging.getLogger("perdure.sdk")


@dataclass(eq=False, slots=True)
class ThreadCall:
    """One call of a plain function, as seen from the event loop that asked for it."""

    step: str
    function: Callable[[], object]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    begun: "asyncio.Future[None]"
    """Done once there is a thread for the call."""
    ended: "asyncio.Future[None]"
    value: object = None
    error: BaseException | None = None

    def take(self) -> object:
        """What the function returned or raised, once it has ended. The call forgets it."""
        value, self.value = self.value, None
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return value
        finally:
            error = None  # its traceback holds this frame

    def run(self) -> None:
        """Call the function; called in the thread."""
        try:
            self.value = self.context.run(self.function)
        except BaseException as error:  # also SystemExit: that ends the loop, not the thread
            self.error = error

    def note_begin(self) -> None:
        """There is a thread for the call; called in the event loop."""
        if not self.begun.done():
            self.begun.set_result(None)

    def note_end(self) -> None:
        """The function has ended; called in the event loop."""
        if not self.ended.done():
            self.ended.set_result(None)
            return
        self.value = self.error = None
        log.warning(
            "the function of step %r ended after its step was given up; its result is dropped",
            self.step,
        )


class StepThreads:
    """At most `size` daemon threads; they are started when needed and end when they are idle.

    The calls that wait for a thread are bounded by the passes that a runner works on at once.
    """

    def __init__(self, size: int, *, reports: bool = True) -> None:
        """With `reports`, the log says when all threads are busy and calls wait."""
        if size < 1:
            raise ValueError(f"step functions need at least 1 thread, not {size}")
        self._size = size
        self._reports = reports
        self._changed = threading.Condition()
        self._calls: OrderedDict[ThreadCall, None] = OrderedDict()
        """Not taken by a thread yet; for those that have begun one is idle or about to start."""
        self._threads = 0
        self._idle = 0
        self._queued: set[ThreadCall] = set()
        """The calls that wait because all threads are busy."""
        self._is_full = False
        self._queued_max = 0

    def call(self, step: str, function: Callable[[], object]) -> ThreadCall:
        """Have a function called in a thread, with the context variables of the caller."""
        loop = asyncio.get_running_loop()
        begun, ended = loop.create_future(), loop.create_future()
        call = ThreadCall(step, function, contextvars.copy_context(), loop, begun, ended)
        with self._changed:
            self._calls[call] = None
            if len(self._calls) <= self._idle:
                self._changed.notify()
            elif self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, name="perdure-step", daemon=True).start()
            else:
                self._queue(call)
                return call
        call.note_begin()
        return call

    def drop(self, call: ThreadCall) -> None:
        """Give a call up: it does not begin any more, or its result is ignored."""
        call.ended.cancel()
        if call.ended.cancelled():
            with self._changed:
                self._queued.discard(call)
                self._calls.pop(call, None)

    def _queue(self, call: ThreadCall) -> None:
        self._queued.add(call)
        self._queued_max = max(self._queued_max, len(self._queued))
        if self._reports and not self._is_full:
            self._is_full = True
            call.loop.call_soon(self._report_full)  # by then all calls of this turn are counted

    def _work(self) -> None:
        while (call := self._next_call()) is not None:
            call.run()
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                call.loop.call_soon_threadsafe(call.note_end)
            del call  # an idle thread keeps nothing alive

    def _next_call(self) -> ThreadCall | None:
        with self._changed:
            self._idle += 1
            self._report_free()
            while not self._calls:
                if not self._changed.wait(THREAD_IDLE_SECONDS) and not self._calls:
                    self._idle -= 1
                    self._threads -= 1
                    return None
            self._idle -= 1
            call, _ = self._calls.popitem(last=False)
            if call in self._queued:
                self._queued.discard(call)
                with suppress(RuntimeError):
                    call.loop.call_soon_threadsafe(call.note_begin)
            return call

    def _report_full(self) -> None:
        log.warning(
            "all %d threads for plain step functions are busy; %d calls wait for one",
            self._size,
            self._queued_max,
        )

    def _report_free(self) -> None:
        # Half of the threads must be free: a pool that is just busy enough reports once.
        busy = self._threads - self._idle
        if self._is_full and not self._calls and busy <= self._size // 2:
            log.info(
                "threads for plain step functions are free; %d calls waited at most",
                self._queued_max,
            )
            self._is_full = False
            self._queued_max = 0


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling this only makes a coroutine, which runs in the event loop."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object may be a function
    )

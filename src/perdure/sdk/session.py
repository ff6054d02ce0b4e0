"""The passes of one socket of a connected runner, in the event loop of the handlers."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from perdure.sdk.channel import Ending
from perdure.sdk.limits import PASSES_MAX
from perdure.sdk.link import CLOSE_SECONDS, Link, LinkTerms
from perdure.sdk.offload import ResultError, ResultStore, is_complete
from perdure.sdk.passes import Pass, begin
from perdure.sdk.socket_thread import SocketThread, post
from perdure.sdk.wire import Invoke, Reply, refusal
from perdure.sdk.workflows import App

HEARD_SECONDS = 2.0
"""How long the engine may take to hear that a runner leaves."""

log = logging.getLogger("perdure.sdk")


@dataclass(frozen=True, slots=True)
class Terms:
    """What every session of a connection is made of."""

    app: App
    link: LinkTerms
    clock: Callable[[], int]
    on_registered: Callable[[], None]
    store: ResultStore | None = None


class Session:
    """One socket's worth of a connection. The socket itself lives in a thread of its own."""

    def __init__(self, terms: Terms, thread: SocketThread) -> None:
        self._terms = terms
        self._thread = thread
        self._playing: dict[int, Pass | _Completing] = {}
        self._waiting: deque[tuple[int, Invoke]] = deque()
        self._is_draining = False
        self._is_over = False
        self._idle: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._leave_heard = asyncio.Event()
        self._link = Link(
            terms.link,
            partial(post, self._loop, terms.on_registered),
            partial(post, self._loop, self._admit),
            partial(post, self._loop, self._leave_heard.set),
        )

    async def serve(self) -> Ending:
        """Dial and serve the engine until the socket ends; `NoChannel`, if there is none."""
        try:
            return await self._thread.run(self._link.serve())
        finally:
            self._end()

    async def drain(self, seconds: float) -> None:
        """Ask for nothing more, refuse what comes, wait for what runs, say goodbye."""
        self._is_draining = True
        self._thread.post(self._link.leave)
        for number, _ in self._waiting:
            self._refuse(number)
        self._waiting.clear()
        try:
            async with asyncio.timeout(seconds):
                # What the engine sent before it heard that we leave is refused; unanswered, it
                # would be charged to its run.
                await self._wait_until_heard()
                if self._playing:
                    self._idle = self._loop.create_future()
                    await self._idle
        except TimeoutError:
            if self._playing:
                log.warning(
                    "the connection ended while %d passes were running; "
                    "the engine invokes them again",
                    len(self._playing),
                )
        self._thread.post(self._link.close)
        await asyncio.wait([self._ended], timeout=2 * CLOSE_SECONDS)

    # ----------------------------------------------------------------------------------------------

    async def _wait_until_heard(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARD_SECONDS):
                await self._leave_heard.wait()

    def _end(self) -> None:
        """The socket is gone, and with it everybody who waits for an answer."""
        self._is_over = True
        self._waiting.clear()
        for playing in list(self._playing.values()):
            playing.abandon()
        self._playing.clear()
        self._ended.set_result(None)
        self._leave_heard.set()

    def _admit(self, number: int, invoke: Invoke) -> None:
        if self._is_over:
            return
        if self._is_draining:
            self._refuse(number)
        elif len(self._playing) < PASSES_MAX:
            self._play(number, invoke)
        else:
            if not self._waiting:
                log.warning(
                    "all %d passes that may run at once are running; further invokes wait",
                    len(self._playing),
                )
            self._waiting.append((number, invoke))  # the link bounds them

    def _refuse(self, number: int) -> None:
        self._thread.post(self._link.answer, number, refusal(503, "this runner is going away"))

    def _play(self, number: int, invoke: Invoke) -> None:
        answer = partial(self._answer, number)
        store = self._terms.store
        if store is None or is_complete(invoke):
            self._begin(number, invoke, answer)
        else:
            self._playing[number] = _Completing(store, invoke, partial(self._begin, number), answer)

    def _begin(self, number: int, invoke: Invoke, answer: Callable[[Reply], None]) -> None:
        terms = self._terms
        playing = begin(
            terms.app, invoke, answer, clock=terms.clock, store=terms.store, is_endless=True
        )
        if playing is not None:
            self._playing[number] = playing

    def _answer(self, number: int, reply: Reply) -> None:
        self._thread.post(self._link.answer, number, reply)
        self._playing.pop(number, None)
        if self._waiting and len(self._playing) < PASSES_MAX:
            self._play(*self._waiting.popleft())
        if self._idle is not None and not self._playing and not self._idle.done():
            self._idle.set_result(None)


class _Completing:
    """A pass that cannot begin before the rest of its invoke has been fetched."""

    def __init__(
        self,
        store: ResultStore,
        invoke: Invoke,
        begin: Callable[[Invoke, Callable[[Reply], None]], None],
        answer: Callable[[Reply], None],
    ) -> None:
        self._store = store
        self._invoke = invoke
        self._begin = begin
        self._answer = answer
        self._task = asyncio.get_running_loop().create_task(self._run())

    def abandon(self) -> None:
        """End it without an answer."""
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._store.complete(self._invoke)
        except ResultError as error:
            log.warning("a pass cannot begin: %s", error)
            self._answer(refusal(500, str(error)))
        else:
            self._begin(self._invoke, self._answer)

"""Live views: the timeline of a run, what becomes of all runs, and events as they come."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from perdure.clock import Clock
from perdure.core import instant
from perdure.core.limits import HISTORY_PAGE_SIZE_MAX, LIST_PAGE_SIZE_MAX, SECOND
from perdure.core.run.history import encode
from perdure.core.run.state import Dialect, Run
from perdure.dispatch.watching import Watchers
from perdure.engine.beat import Engine
from perdure.engine.intake import EVENT
from perdure.protocols.durablex.requests import bad_request
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.timeline import CLOSED, Frames, facts_of
from perdure.protocols.durablex.views import event_view, status_of
from perdure.web.message import Request, Response
from perdure.web.stream import EventStream, stream

_KEEP_ALIVE_SECONDS = 15.0
_EVENTS_LOOK = SECOND // 2
_LISTENERS_MAX = 1_000
_QUEUED_MAX = 1_000
_REMEMBERED_MAX = 10_000


class Streaming:
    """The routes that end in /stream."""

    def __init__(self, engine: Engine, runs: Runs, watchers: Watchers, clock: Clock) -> None:
        self._store = engine.store
        self._runs = runs
        self._watchers = watchers
        self._clock = clock
        self._listeners: set[asyncio.Queue[bytes]] = set()
        # What each run was when it was last told of, so that only changes are.
        self._told: OrderedDict[str, str] = OrderedDict()

    async def run(self, request: Request) -> Response:
        """GET /runs/{id}/stream: what happened, then what happens, until the run is over."""
        run = await self._runs.require(request)
        asked = request.header(b"last-event-id") or request.query.get("from") or "0"
        if not asked.isascii() or not asked.isdecimal() or len(asked) > 12:
            raise bad_request("from is the number of an event")
        after = int(asked)

        async def feed(out: EventStream) -> None:
            await self._tell_run(out, run.run_id, after)

        return stream(feed)

    async def _tell_run(self, out: EventStream, run_id: str, after: int) -> None:
        frames, seen = Frames(run_id), 0
        while True:
            # Begun before the look, so that nothing is missed between the two.
            waiting = asyncio.ensure_future(
                self._watchers.wait(run_id, _KEEP_ALIVE_SECONDS, _nobody_leaves)
            )
            try:
                await asyncio.sleep(0)
                facts = facts_of(await self._store.read_history(run_id, seen, _PAGE))
                for fact in facts:
                    seen = fact.sequence
                    for frame in frames.of(fact):
                        if fact.sequence > after:
                            await out.send(frame["kind"], encode(frame), fact.sequence)
                    if fact.event_type in CLOSED:
                        return
                if not facts:
                    await waiting
                    await out.keep_alive()
            finally:
                waiting.cancel()

    async def all_runs(self, request: Request) -> Response:
        """GET /runs/stream: the statuses that runs come to at this node, from now on."""
        if len(self._listeners) >= _LISTENERS_MAX:
            raise bad_request("too many listen already")

        async def feed(out: EventStream) -> None:
            queue: asyncio.Queue[bytes] = asyncio.Queue(_QUEUED_MAX)
            self._listeners.add(queue)
            try:
                while True:
                    try:
                        async with asyncio.timeout(_KEEP_ALIVE_SECONDS):
                            frame = await queue.get()
                    except TimeoutError:
                        await out.keep_alive()
                    else:
                        await out.send("run_status", frame)
            finally:
                self._listeners.discard(queue)

        return stream(feed)

    def changed(self, run: Run) -> None:
        """A run has changed at this node."""
        if not self._listeners or run.dialect is not Dialect.PUSH:
            return
        status = status_of(run)
        if self._told.get(run.run_id) == status:
            return
        self._told[run.run_id] = status
        self._told.move_to_end(run.run_id)
        while len(self._told) > _REMEMBERED_MAX:
            self._told.popitem(last=False)
        frame = encode(
            {
                "kind": "run_status",
                "seq": run.history_count,
                "ts": instant.text(self._clock.now()),
                "runId": run.run_id,
                "status": status,
            }
        )
        for queue in self._listeners:
            # Who is too slow misses some.
            if not queue.full():
                queue.put_nowait(frame)

    async def events(self, request: Request) -> Response:
        """GET /events/stream: events of all nodes, soon after they came."""
        namespace = request.namespace
        newest = await EVENT.read_page(self._store, namespace, limit=1, newest_first=True)
        after = newest[0][0] if newest else None

        async def feed(out: EventStream) -> None:
            await self._tell_events(out, namespace, after)

        return stream(feed)

    async def _tell_events(self, out: EventStream, namespace: str, after: str | None) -> None:
        silent_since = self._clock.now()
        while True:
            page = await EVENT.read_page(
                self._store, namespace, limit=LIST_PAGE_SIZE_MAX, after=after
            )
            for key, event in page:
                after = key
                view: dict[str, Any] = {"kind": "event", **event_view(key, event)}
                await out.send("event", encode(view))
            now = self._clock.now()
            if page:
                silent_since = now
            elif now - silent_since > _KEEP_ALIVE_SECONDS * SECOND:
                silent_since = now
                await out.keep_alive()
            if len(page) < LIST_PAGE_SIZE_MAX:
                await self._clock.sleep(_EVENTS_LOOK)


_PAGE = HISTORY_PAGE_SIZE_MAX


def _nobody_leaves(tell: Callable[[], object]) -> None:
    """A stream whose client has left is cancelled as a whole."""

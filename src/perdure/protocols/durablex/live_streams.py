"""Server-sent event streams: the timeline of a run, statuses of all runs, incoming events."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.clock import Clock
from perdure.cluster.push_statuses import Statuses, Told
from perdure.core import instant
from perdure.core.limits import (
    EVENT_LISTENERS_MAX,
    EVENTS_SEEN_MAX,
    HISTORY_PAGE_SIZE_MAX,
    LIST_PAGE_SIZE_MAX,
    NAME_LENGTH_MAX,
    SECOND,
    STATUS_LISTENERS_MAX,
)
from perdure.core.push.step import push_of
from perdure.core.rejection import LongPollCapacityExhausted, Rejection
from perdure.core.run.history import encode
from perdure.core.run.state import Run
from perdure.dispatch.run_watchers import RunWatchers
from perdure.engine.beat import Engine
from perdure.engine.events import EVENT
from perdure.protocols.durablex.requests import bad_request
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.timeline import CLOSED, Frames, facts_of
from perdure.protocols.durablex.views import event_view, status_of
from perdure.store.interface import Unavailable
from perdure.web.message import Request, Response
from perdure.web.stream import EventStream, stream

log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 15.0
_EVENTS_LOOK = SECOND // 2
_EVENTS_LATE = 5 * SECOND
_EVENTS_PAGE = EVENTS_SEEN_MAX + LIST_PAGE_SIZE_MAX


class LiveStreams:
    """The routes that end in /stream."""

    def __init__(self, engine: Engine, runs: Runs, watchers: RunWatchers, clock: Clock) -> None:
        self._store = engine.store
        self._runs = runs
        self._watchers = watchers
        self._clock = clock
        self.statuses = Statuses(self._store, self._status_frame)
        self._event_listeners = 0

    async def run(self, request: Request) -> Response:
        """GET /runs/{id}/stream: past and then new facts, until the run has ended."""
        run = await self._runs.require(request)
        asked = request.header(b"last-event-id") or request.query.get("from") or "0"
        if not asked.isascii() or not asked.isdecimal() or len(asked) > 12:
            raise bad_request("from must be the number of an event")
        after = int(asked)

        async def feed(out: EventStream) -> None:
            await self._send_run(out, run.run_id, after)

        return _lasting(feed)

    async def _send_run(self, out: EventStream, run_id: str, after: int) -> None:
        frames, seen = Frames(run_id), 0
        with self._watchers.watching(run_id) as watch:
            while True:
                watch.looks()
                facts = facts_of(await self._store.read_history(run_id, seen, _PAGE))
                for fact in facts:
                    seen = fact.sequence
                    if fact.sequence <= after:
                        frames.of(fact)
                        continue
                    # Only the last frame of a fact has its number: a client that reconnects in
                    # between gets all frames of the fact again, and misses none.
                    fact_frames = frames.of(fact)
                    for place, frame in enumerate(fact_frames, 1):
                        number = fact.sequence if place == len(fact_frames) else None
                        await out.send(frame["kind"], encode(frame), number)
                    if fact.event_type in CLOSED:
                        return
                if not facts:
                    await self._send_begun(out, run_id, frames, seen)
                    await watch.wait(_KEEP_ALIVE_SECONDS)
                    await out.keep_alive()

    async def _send_begun(self, out: EventStream, run_id: str, frames: Frames, seen: int) -> None:
        """Report a pass in progress. Its start is in the row of the run, not in history."""
        run = await self._store.read_run(run_id) if frames.is_at_rest else None
        if run is not None and status_of(run) == "running":
            for frame in frames.begun(seen, instant.text(self._clock.now())):
                await out.send(frame["kind"], encode(frame))

    async def all_runs(self, request: Request) -> Response:
        """GET /runs/stream: new statuses of runs on any node, from now on."""
        namespace, now = request.namespace, self._clock.now()
        if self.statuses.count >= STATUS_LISTENERS_MAX:
            raise LongPollCapacityExhausted(
                f"{self.statuses.count} streams of statuses are open; retry later"
            )

        async def feed(out: EventStream) -> None:
            async with self.statuses.listening(namespace, now) as queue:
                while True:
                    try:
                        async with asyncio.timeout(_KEEP_ALIVE_SECONDS):
                            frame = await queue.get()
                    except TimeoutError:
                        self.statuses.still_listening()
                        await out.keep_alive()
                    else:
                        await out.send("run_status", frame)

        return _lasting(feed)

    def changed(self, run: Run) -> None:
        """Report a change of a run on this node."""
        self.statuses.changed(run)

    def _status_frame(self, run: Run) -> Told:
        """The frame of a status, for streams of all runs."""
        push, status = push_of(run), status_of(run)
        frame: dict[str, Any] = {
            "kind": "run_status",
            "seq": run.history_count,
            "ts": instant.text(self._clock.now()),
            "runId": run.run_id,
            "status": status,
            "attempt": push.attempt,
        }
        if push.current is not None and len(push.current) <= NAME_LENGTH_MAX:
            frame["currentStepName"] = push.current
        return Told(run.namespace, run.run_id, run.version, status, run.is_closed, encode(frame))

    async def events(self, request: Request) -> Response:
        """GET /events/stream: events of all nodes, soon after they arrive."""
        if self._event_listeners >= EVENT_LISTENERS_MAX:
            raise LongPollCapacityExhausted(
                f"{self._event_listeners} streams of events are open; retry later"
            )
        namespace = request.namespace
        newest = await EVENT.read_page(self._store, namespace, limit=1, newest_first=True)
        tail = _EventTail(newest[0][0] if newest else None, is_shared=self._store.is_shared)

        async def feed(out: EventStream) -> None:
            self._event_listeners += 1
            try:
                await self._send_events(out, namespace, tail)
            finally:
                self._event_listeners -= 1

        return _lasting(feed)

    async def _send_events(self, out: EventStream, namespace: str, tail: "_EventTail") -> None:
        silent_since = self._clock.now()
        while True:
            page = await EVENT.read_page(
                self._store, namespace, limit=_EVENTS_PAGE, after=tail.behind
            )
            now = self._clock.now()
            for key, event in page:
                if tail.is_new(key, now):
                    silent_since = now
                    view: dict[str, Any] = {"kind": "event", **event_view(key, event)}
                    await out.send("event", encode(view))
            if now - silent_since > _KEEP_ALIVE_SECONDS * SECOND:
                silent_since = now
                await out.keep_alive()
            tail.move(now)
            if len(page) < _EVENTS_PAGE:
                await self._clock.sleep(_EVENTS_LOOK)


def _lasting(feed: Callable[[EventStream], Awaitable[None]]) -> Response:
    """A stream that ends when the store is unavailable or a bound is reached; clients reconnect."""

    async def guarded(out: EventStream) -> None:
        try:
            await feed(out)
        except (Unavailable, Rejection) as error:
            log.info("closed a live stream: %s", error.message)

    return stream(guarded)


class _EventTail:
    """The position of a stream of events.

    Ids are made before the commit, so with several nodes an event may appear late, between ids
    that were already sent: the latest ids are read again for a while.
    """

    def __init__(self, behind: str | None, *, is_shared: bool) -> None:
        self.behind = behind
        self._kept = EVENTS_SEEN_MAX if is_shared else 0
        self._seen: OrderedDict[str, int] = OrderedDict()

    def is_new(self, key: str, now: int) -> bool:
        if key in self._seen:
            return False
        self._seen[key] = now
        return True

    def move(self, now: int) -> None:
        """Drop the keys of events sent a while ago, and continue reading after them."""
        while self._seen:
            key, sent_at = next(iter(self._seen.items()))
            if len(self._seen) <= self._kept and now - sent_at < _EVENTS_LATE:
                return
            del self._seen[key]
            self.behind = max(self.behind or "", key)


_PAGE = HISTORY_PAGE_SIZE_MAX

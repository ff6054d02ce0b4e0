"""Status changes of push runs, for readers at this node, wherever the change happens.

Changes of this node are passed on at once. Other nodes send theirs as hints while there are readers
here, and the database is read at intervals, so that a lost hint costs only time. The last status
that was passed on is remembered per run: each status is reported once, and none after a later one.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from perdure.cluster.hints import PUSHED, Hints
from perdure.core.limits import (
    LIST_PAGE_SIZE_MAX,
    SECOND,
    STATUS_LISTENERS_MAX,
    STATUSES_LOOKED_AT_MAX,
    STATUSES_QUEUED_MAX,
    STATUSES_REMEMBERED_MAX,
)
from perdure.core.rejection import LongPollCapacityExhausted
from perdure.core.run.state import Dialect, Run
from perdure.store.interface import PushedCursor, PushedFilter, Store, shared
from perdure.store.push_lists import cursor_behind

_SKEW = 10 * SECOND
"""How far back runs are looked for again: a slow commit may come late."""
_OPEN = ("pending", "running", "waiting", "needs_attention", "paused")


class Told(NamedTuple):
    """What is told of a run: a frame, and what it says in short."""

    namespace: str
    run_id: str
    version: int
    status: str
    is_over: bool
    frame: bytes


class Statuses:
    """Those who listen at this node, by namespace."""

    def __init__(self, store: Store, tell: Callable[[Run], Told]) -> None:
        self._store = store
        self._tell = tell
        self._listeners: dict[str, set[asyncio.Queue[bytes]]] = {}
        self._told: OrderedDict[str, Told] = OrderedDict()
        self._looked_at: dict[str, int] = {}
        self._hints: Hints | None = None

    def connect(self, hints: Hints) -> None:
        """Say how other nodes hear of this one, and it of them."""
        self._hints = hints
        hints.on_pushed = self.heard

    @property
    def count(self) -> int:
        return sum(map(len, self._listeners.values()))

    @contextlib.asynccontextmanager
    async def listening(self, namespace: str, now: int) -> AsyncIterator[asyncio.Queue[bytes]]:
        """Frames for as long as the block lasts. Who is too slow misses some."""
        if self.count >= STATUS_LISTENERS_MAX:
            raise LongPollCapacityExhausted(f"{self.count} listen already")
        queue: asyncio.Queue[bytes] = asyncio.Queue(STATUSES_QUEUED_MAX)
        is_first = namespace not in self._listeners
        self._listeners.setdefault(namespace, set()).add(queue)
        try:
            self.still_listening()
            if is_first:
                await self._begin(namespace, now)
            yield queue
        finally:
            self._listeners[namespace].discard(queue)
            if not self._listeners[namespace]:
                del self._listeners[namespace]
                self._looked_at.pop(namespace, None)
            if not self._listeners:
                self._told.clear()

    def still_listening(self) -> None:
        """Other nodes tell for a while only."""
        if self._hints is not None:
            self._hints.watching(PUSHED)

    # Hearing -------------------------------------------------------------------------------------

    def changed(self, run: Run) -> None:
        """A run has changed at this node."""
        if run.dialect is not Dialect.PUSH:
            return
        is_wanted = self._hints is not None and self._hints.is_watched(PUSHED)
        if not is_wanted and run.namespace not in self._listeners:
            return
        told = self._tell(run)
        self._pass_on(told)
        if is_wanted and self._hints is not None:
            self._hints.pushed(_packed(told))

    def heard(self, about: tuple[str, ...]) -> None:
        """A run has changed at another node."""
        told = _unpacked(about)
        if told is not None:
            self._pass_on(told)

    async def look(self, now: int) -> None:
        """At the disk, for what nobody told of. Within a bound, the newest runs first."""
        for namespace in list(self._listeners):
            since = self._looked_at.get(namespace, now) - _SKEW
            self._looked_at[namespace] = now
            known = set(self._told)
            async for run in self._newest(PushedFilter(namespace=namespace, since=since)):
                self._pass_on(self._tell(run))
            await self._look_at_known(namespace, known)

    async def _look_at_known(self, namespace: str, known: set[str]) -> None:
        """Runs that were open when they were last told of."""
        among = shared(self._store)
        if among is None:
            return
        still_open = [
            run_id
            for run_id, told in self._told.items()
            if not told.is_over and told.namespace == namespace and run_id in known
        ]
        for run_id, version in (await among.read_versions(still_open)).items():
            told = self._told.get(run_id)
            if told is not None and told.version < version:
                run = await self._store.read_run(run_id)
                if run is not None:
                    self._pass_on(self._tell(run))

    async def _begin(self, namespace: str, now: int) -> None:
        """Remember what is open, so that a look can find out what becomes of it."""
        self._looked_at[namespace] = now
        if self._hints is None:
            return
        async for run in self._newest(PushedFilter(namespace=namespace, statuses=_OPEN)):
            self._remember(self._tell(run))

    async def _newest(self, wanted: PushedFilter) -> AsyncIterator[Run]:
        after: PushedCursor | None = None
        for _ in range(STATUSES_LOOKED_AT_MAX // LIST_PAGE_SIZE_MAX):
            page = await self._store.read_pushed(wanted, after, LIST_PAGE_SIZE_MAX)
            for run in page:
                yield run
            if len(page) < LIST_PAGE_SIZE_MAX:
                return
            after = cursor_behind(page[-1], wanted.sort)

    # Telling -------------------------------------------------------------------------------------

    def _pass_on(self, told: Told) -> None:
        listeners = self._listeners.get(told.namespace)
        if not listeners or not self._remember(told):
            return
        for queue in listeners:
            if not queue.full():
                queue.put_nowait(told.frame)

    def _remember(self, told: Told) -> bool:
        """Whether this is news."""
        known = self._told.get(told.run_id)
        if known is not None and known.version > told.version:
            return False
        self._told[told.run_id] = told
        self._told.move_to_end(told.run_id)
        while len(self._told) > STATUSES_REMEMBERED_MAX:
            self._told.popitem(last=False)
        return known is None or known.status != told.status


def _packed(told: Told) -> tuple[str, ...]:
    over = "over" if told.is_over else "open"
    *_, frame = told
    return (told.namespace, told.run_id, str(told.version), told.status, over, frame.decode())


def _unpacked(about: tuple[str, ...]) -> Told | None:
    """What a node told, if it makes sense."""
    match about:
        case (namespace, run_id, version, status, over, frame) if version.isdecimal():
            return Told(namespace, run_id, int(version), status, over == "over", frame.encode())
    return None

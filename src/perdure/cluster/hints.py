"""Hints between nodes: short notices after a commit that something may be waited for elsewhere.

Hints are collected while the previous ones are being sent, and sent together. They may be lost:
every node also looks at the database at intervals; see `cluster/refresh.py`.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from perdure.clock import Clock
from perdure.core.limits import (
    HINT_BYTES_MAX,
    HINTS_WAITING_MAX,
    REMOTE_WATCHES_MAX,
    SECOND,
)
from perdure.dispatch.query_messages import QueueName
from perdure.dispatch.run_watchers import RunWatchers
from perdure.dispatch.task_waiters import TaskWaiterSet
from perdure.dispatch.update_waiters import UpdateWaiters
from perdure.store.interface import QueueKey, Unavailable

log = logging.getLogger(__name__)

PUSHED = "push-runs"
"""The topic of everything that becomes of push runs."""
_WATCH = 60 * SECOND
"""How long a node is told about a run that somebody there waits for."""


class Hint(msgspec.Struct, array_like=True, frozen=True):
    """One thing that others may want to know: `kind` and what it is about."""

    kind: str
    about: tuple[str, ...]


class Message(msgspec.Struct, array_like=True):
    """Hints of one node."""

    node: str
    hints: list[Hint]


class Wire(Protocol):
    """Carries texts from every node to every node, or loses them."""

    async def send(self, text: str) -> None: ...


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


class Hints:
    """What this node tells, and what it makes of what it is told."""

    def __init__(
        self,
        *,
        node_id: str,
        clock: Clock,
        parked_polls: TaskWaiterSet,
        watchers: RunWatchers,
        update_waiters: UpdateWaiters,
        refresh_worker: Callable[[tuple[str, str]], Awaitable[None]],
        refresh_rollouts: Callable[[], Awaitable[None]],
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._parked_polls = parked_polls
        self._watchers = watchers
        self._update_waiters = update_waiters
        self._refresh_worker = refresh_worker
        self._refresh_rollouts = refresh_rollouts
        self._waiting: OrderedDict[Hint, None] = OrderedDict()
        self._wake = asyncio.Event()
        self.on_query: Callable[[str, QueueName, str], None] = lambda node, key, name: None
        self.on_wanted: Callable[[str, QueueKey, str], None] = lambda node, key, name: None
        self.on_changed: Callable[[str], None] = lambda topic: None
        self.on_pushed: Callable[[tuple[str, ...]], None] = lambda about: None
        self.on_runners: Callable[[], None] = lambda: None
        # Runs and records that somebody on another node waits for, and until when.
        self._remote: OrderedDict[str, int] = OrderedDict()
        watchers.connect(self.watching)
        update_waiters.connect(self.watching)

    # Telling -------------------------------------------------------------------------------------

    def offered(self, key: QueueKey, name: str) -> None:
        self._tell(Hint("ready", (*key, name)))

    def changed(self, topic: str) -> None:
        if self.is_watched(topic):
            self._tell(Hint("changed", (topic,)))

    def is_watched(self, topic: str) -> bool:
        """Whether somebody on another node waits for news of something."""
        until = self._remote.get(topic)
        if until is None:
            return False
        if until < self._clock.now():
            del self._remote[topic]
            return False
        return True

    def pushed(self, about: tuple[str, ...]) -> None:
        """What became of a push run."""
        self._tell(Hint("pushed", about))

    def registered(self, key: tuple[str, str]) -> None:
        self._tell(Hint("worker", key))

    def served(self, namespace: str) -> None:
        """A runner that serves HTTP came, changed or left."""
        self._tell(Hint("runners", (namespace,)))

    def rolled_out(self) -> None:
        self._tell(Hint("rollouts", ()))

    def watching(self, topic: str) -> None:
        self._tell(Hint("watch", (topic,)))

    def asked(self, key: QueueName, name: str) -> None:
        """A query waits here, and nobody here polls for it."""
        self._tell(Hint("query", (*key, name)))

    def _tell(self, hint: Hint) -> None:
        self._waiting[hint] = None
        while len(self._waiting) > HINTS_WAITING_MAX:
            self._waiting.popitem(last=False)
        self._wake.set()

    async def run(self, wire: Wire) -> None:
        """Send what gathers, for as long as the server lives."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                text = self._next_message()
                try:
                    await wire.send(text)
                except Unavailable as error:
                    # Others find out by looking; there is nothing to be said twice.
                    log.info("sending hints to other nodes failed: %s", error.message)
                    self._waiting.clear()

    def _next_message(self) -> str:
        hints: list[Hint] = []
        size = len(self._node_id) + 16
        while self._waiting:
            hint = next(iter(self._waiting))
            size += len(_encoder.encode(hint)) + 1
            if hints and size > HINT_BYTES_MAX:
                break
            del self._waiting[hint]
            hints.append(hint)
        return _encoder.encode(Message(self._node_id, hints)).decode()

    # Hearing -------------------------------------------------------------------------------------

    async def heard(self, text: str) -> None:
        """Take in what a node told. What makes no sense is left alone."""
        try:
            message = _decoder.decode(text)
        except msgspec.MsgspecError:
            log.warning("dropped a malformed hint from another node")
            return
        if message.node == self._node_id:
            return
        for hint in message.hints:
            await self._take_in(message.node, hint)

    async def _take_in(self, node: str, hint: Hint) -> None:
        match hint:
            case Hint("ready", (namespace, queue, kind, name)):
                self._parked_polls.offered(QueueKey(namespace, queue, kind), name)
                self.on_wanted(node, QueueKey(namespace, queue, kind), name)
            case Hint("changed", (run_id,)):
                self._watchers.changed(run_id)
                self._update_waiters.changed_elsewhere(run_id)
                self.on_changed(run_id)
            case Hint("watch", (run_id,)):
                self._remote[run_id] = self._clock.now() + _WATCH
                self._remote.move_to_end(run_id)
                while len(self._remote) > REMOTE_WATCHES_MAX:
                    self._remote.popitem(last=False)
            case Hint("query", (namespace, queue, name)):
                self.on_query(node, QueueName(namespace, queue), name)
            case Hint("pushed", about):
                self.on_pushed(about)
            case Hint("runners", _):
                self.on_runners()
            case Hint("worker", (namespace, worker_id)):
                await self._refresh_worker((namespace, worker_id))
            case Hint("rollouts", _):
                await self._refresh_rollouts()
            case _:
                # A newer node knows more kinds than we do.
                pass

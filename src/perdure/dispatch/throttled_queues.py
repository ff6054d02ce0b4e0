"""Queues from which no more may be leased now, and who looks again when that may have changed.

A look that found a quota used up (`engine/quotas.py`) is repeated when a run that holds a lease
of it changes, when the minute is over that it was for, and on a shared store after a while, because
leases end at other nodes, too.
"""

import asyncio
from collections.abc import Callable

from perdure.core.limits import SECOND, SHUT_QUEUE_RELOOK
from perdure.dispatch.parked_polls import ParkedPolls
from perdure.engine.claims import Claimed
from perdure.engine.operation import Operation
from perdure.engine.quotas import Shut, StartQuotaMinute
from perdure.engine.reply import Reply
from perdure.store.interface import QueueKey, RecordKey


class ThrottledQueues:
    """Knows which queues are shut, on this node and as far as it has looked."""

    def __init__(self, parked_polls: ParkedPolls) -> None:
        self.queues: dict[QueueKey, str] = {}
        self._waiting: dict[QueueKey, asyncio.Event] = {}
        # Runs whose change may open a queue, and which.
        self.behind: dict[str, set[QueueKey]] = {}
        self._told: dict[QueueKey, frozenset[str]] = {}
        self._on_minute: Callable[[str], None] = lambda namespace: None
        parked_polls.shut = self.queues

    def add_listener(self, on_minute: Callable[[str], None]) -> None:
        """Say who else waits for a new minute in a namespace."""
        self._on_minute = on_minute

    def learn(self, key: QueueKey, reply: Reply) -> None:
        """Take in what a look at a queue found."""
        if reply.cancelled() or reply.exception() is not None:
            return
        claimed: Claimed = reply.result()
        if claimed.shut is None:
            self._open(key)
        else:
            self._note(key, claimed.shut)

    def _note(self, key: QueueKey, shut: Shut) -> None:
        self._open(key)
        self.queues[key] = shut.why
        self._waiting[key] = asyncio.Event()
        self._told[key] = shut.behind
        for run_id in shut.behind:
            self.behind.setdefault(run_id, set()).add(key)

    def _open(self, key: QueueKey) -> None:
        self.queues.pop(key, None)
        self._wake(key)
        for run_id in self._told.pop(key, ()):
            queues = self.behind.get(run_id, set())
            queues.discard(key)
            if not queues:
                self.behind.pop(run_id, None)

    async def wait(self, key: QueueKey, *, is_shared: bool) -> None:
        """Until it is worth looking at a queue again; it is shut until somebody has looked."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return
        try:
            async with asyncio.timeout(SHUT_QUEUE_RELOOK / SECOND if is_shared else None):
                await waiting.wait()
        except TimeoutError:
            # Another node may have given something back.
            pass

    def changed(self, run_id: str) -> None:
        """A run has changed; it may have given back what somebody waits for."""
        for key in self.behind.get(run_id, ()):
            self._wake(key)

    def on_due(self, key: RecordKey) -> Operation:
        """What happens when a minute is over."""
        return StartQuotaMinute(key)

    def minute_passed(self, key: RecordKey, operation: Operation, committed: bool) -> None:
        """The minute of a quota is over: everybody who waits in its namespace looks again."""
        for queue in list(self._waiting):
            if queue.namespace == key.namespace:
                self._wake(queue)
        self._on_minute(key.namespace)

    def _wake(self, key: QueueKey) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.set()

"""Queries that wait at other nodes: hints of where, and fetching one for a poll that waits here.

A query stays at the node where it was asked, its home. Whoever has a poll for it asks there. A
lost hint costs only time, since hints are repeated while a query waits.
"""

import logging
from collections import OrderedDict
from typing import NamedTuple, Protocol

from perdure.clock import Clock
from perdure.core.limits import QUERY_HINTS_MAX
from perdure.dispatch.query_messages import (
    QueryLease,
    QueryReport,
    QueryView,
    QueryWanted,
    QueueName,
)
from perdure.store.interface import Unavailable

log = logging.getLogger(__name__)


class RemoteDesks(Protocol):
    """How to reach the desks of other nodes. What does not arrive raises `Unavailable`."""

    def announce(self, key: QueueName, name: str) -> None:
        """Have `QueryBroker.announced` called at all other nodes, sooner or later or never."""
        ...

    async def claim(self, home: str, wanted: QueryWanted) -> QueryLease | None:
        """Have `QueryBroker.claim_here` called at home."""
        ...

    async def report(self, home: str, report: QueryReport) -> QueryView:
        """Have `QueryBroker.report_here` called at home, and raise what that raises."""
        ...

    async def give_back(self, home: str, lease: QueryLease) -> None:
        """Have `QueryBroker.give_back_here` called at home; if that is lost, the lease expires."""
        ...


class Hint(NamedTuple):
    """Where a query may wait."""

    home: str
    key: QueueName
    name: str


class QueryHints:
    """What other nodes said lately."""

    def __init__(self, clock: Clock, lifetime: int) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._until: OrderedDict[Hint, int] = OrderedDict()

    def note(self, hint: Hint) -> None:
        self._until[hint] = self._clock.now() + self._lifetime
        self._until.move_to_end(hint)
        while len(self._until) > QUERY_HINTS_MAX:
            self._until.popitem(last=False)

    def find(self, key: QueueName, names: frozenset[str]) -> Hint | None:
        """Where to ask for a query that somebody who knows these names can take."""
        now = self._clock.now()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        for hint in self._until:
            if hint.key == key and hint.name in names:
                return hint
        return None

    def drop(self, hint: Hint) -> None:
        self._until.pop(hint, None)


async def fetch_query(
    remote: RemoteDesks, hints: QueryHints, hint: Hint, wanted: QueryWanted
) -> QueryLease | None:
    """Ask where a hint points to. A hint that led to nothing is dropped."""
    lease = None
    try:
        lease = await remote.claim(hint.home, wanted)
    except (Unavailable, TimeoutError) as error:
        log.info("fetching a query from node %s failed: %s", hint.home, error)
    if lease is None:
        hints.drop(hint)
    return lease

"""All connections of a server: who is accepted, who waits too long, and the stop."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from perdure.web.app import Application
from perdure.web.connection import HttpConnection
from perdure.web.limits import SWEEP_SECONDS, ConnectionLimits
from perdure.web.memory import Memory
from perdure.web.message import Successor
from perdure.web.write_batch import WriteBatch

log = logging.getLogger(__name__)

_EVICTION_LOOKS_MAX = 64
"""How many connections are looked at for one that can make room."""


class Connections:
    """Every open connection of a server, so that a stop can wait for those at work."""

    def __init__(self, app: Application, limits: ConnectionLimits | None = None) -> None:
        self.app = app
        self.limits = limits or ConnectionLimits()
        self.memory = Memory(self.limits.memory_bytes_max)
        self.outbox = WriteBatch()
        # How often connections were checked. They count their time by it, since asking for the
        # time with every request would cost more.
        self.sweeps = 0
        self.open: set[HttpConnection] = set()
        # Connections that have shown no valid credential yet, the oldest first.
        self.strangers: dict[HttpConnection, None] = {}
        # Connections that have become something else.
        self.handed_over: set[Successor] = set()
        self.is_draining = False
        self.answering = 0
        self.refused = 0
        self._by_peer: dict[str, int] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._all_answered = asyncio.Event()

    def protocol(self) -> HttpConnection:
        return HttpConnection(self)

    # Who is accepted -----------------------------------------------------------------------------

    def enter(self, connection: HttpConnection, peer: str) -> bool:
        """Count a new connection. False if there is no room, not even for a look at its head.

        At the bound an idle connection of a stranger makes room. If there is none, a few more are
        accepted for one request: health and whoever has a credential are served nevertheless.
        """
        limits = self.limits
        count, of_peer = self.count, self._by_peer.get(peer, 0)
        if count >= limits.connections_max:
            evicted = self._evict(None)
        else:
            evicted = of_peer < limits.per_peer_max or self._evict(peer)
        if not evicted:
            connection.is_excess = True
            if count >= _with_reserve(limits.connections_max) or of_peer >= _with_reserve(
                limits.per_peer_max
            ):
                self.refused += 1
                return False
        self.open.add(connection)
        self.strangers[connection] = None
        self._by_peer[peer] = of_peer + 1
        return True

    def leave(self, connection: HttpConnection) -> None:
        """A connection is gone."""
        self.open.discard(connection)
        self.strangers.pop(connection, None)
        self._leave_peer(connection.peer)

    @property
    def count(self) -> int:
        return len(self.open) + len(self.handed_over)

    def _leave_peer(self, peer: str) -> None:
        left = self._by_peer.get(peer, 0) - 1
        if left > 0:
            self._by_peer[peer] = left
        else:
            self._by_peer.pop(peer, None)

    def _evict(self, peer: str | None) -> bool:
        """Close the oldest idle connection of a stranger, or of a stranger at this address."""
        looks = _EVICTION_LOOKS_MAX
        for stranger in self.strangers:
            if stranger.is_idle and peer in (None, stranger.peer):
                # It no longer counts, although the loop tells it a little later.
                self.open.discard(stranger)
                del self.strangers[stranger]
                stranger.abort()
                return True
            looks -= 1
            if not looks:
                break
        return False

    # Work ----------------------------------------------------------------------------------------

    def end(self) -> None:
        self.answering -= 1
        if self.is_draining and not self.answering:
            self._all_answered.set()

    def spawn(self, handling: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(handling)
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    def hand_over(
        self, connection: HttpConnection, successor: Successor, transport: asyncio.Transport
    ) -> None:
        """A connection goes on as something else."""
        peer = connection.peer
        self.open.discard(connection)
        self.strangers.pop(connection, None)
        self.handed_over.add(successor)

        def leave() -> None:
            self.handed_over.discard(successor)
            self._leave_peer(peer)

        successor.on_left = leave
        successor.memory = self.memory
        transport.set_protocol(successor)
        successor.connection_made(transport)
        if self.is_draining:
            successor.go_away()

    # Time ----------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Check all connections against their deadlines, for as long as the server lives."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.check_all()

    def check_all(self) -> None:
        """Sweep once."""
        self.sweeps += 1
        self.app.failed_logins.sweep()
        for connection in list(self.open):
            connection.check(self.sweeps)
        for successor in list(self.handed_over):
            successor.check(self.sweeps)
        if self.refused:
            log.warning(
                "%d connections or requests refused: all %d connections are in use "
                "(PERDURE_CONNECTIONS_MAX, PERDURE_CONNECTIONS_PER_PEER_MAX)",
                self.refused,
                self.count,
            )
            self.refused = 0
        if self.memory.refused:
            log.warning(
                "%d requests refused: %d bytes of request bodies are in memory "
                "(PERDURE_REQUEST_MEMORY_BYTES_MAX)",
                self.memory.refused,
                self.memory.held,
            )
            self.memory.refused = 0

    async def drain(self, seconds: float) -> None:
        """Close idle connections at once and the others after their answer."""
        self.is_draining = True
        for connection in list(self.open):
            connection.close_if_idle()
        for successor in list(self.handed_over):
            successor.go_away()
        if self.answering:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_answered.wait(), seconds)
        for connection in list(self.open):
            connection.abort()
        for successor in list(self.handed_over):
            successor.abort()


def _with_reserve(most: int) -> int:
    """A bound, and what is accepted beyond it to see who it is."""
    return most + most // 8 + 8


async def listen(connections: Connections, listener: Any) -> asyncio.Server:
    """Accept connections on a bound socket."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(connections.protocol, sock=listener, backlog=4096)

"""Connections of the tests' own that stay open, on a loop in a thread of their own.

A new one for every question took PostgreSQL longer than its answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import cache
from threading import Thread
from typing import TypeAlias, TypeVar

import asyncpg

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

KEPT_MAX = 3
"""How many connections are kept: that of the administrator, and those that were used last."""
CONNECT_SECONDS = 60.0
_STALE = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InvalidCachedStatementError,
)
"""What a kept connection meets when its server was stopped meanwhile, or its tables changed."""


class Desk:
    """Asks databases, each one thing at a time. What is asked must bear being asked twice."""

    def __init__(self) -> None:
        self._kept: dict[str, Connection] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="desk", daemon=True).start()

    def ask(self, url: str, talk: Callable[[Connection], Awaitable[T]]) -> "Future[T]":
        """What a talk with a database brings."""
        return asyncio.run_coroutine_threadsafe(self._ask(url, talk), self._loop)

    async def _ask(self, url: str, talk: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._turns.setdefault(url, asyncio.Lock()):
            kept = self._kept.pop(url, None)
            if kept is not None and not kept.is_closed():
                try:
                    return await self._talk(url, kept, talk)
                except _STALE:
                    self._kept.pop(url).terminate()
            fresh = await asyncpg.connect(url, timeout=CONNECT_SECONDS)
            return await self._talk(url, fresh, talk)

    async def _talk(
        self, url: str, connection: Connection, talk: Callable[[Connection], Awaitable[T]]
    ) -> T:
        try:
            return await talk(connection)
        finally:
            self._keep(url, connection)

    def _keep(self, url: str, connection: Connection) -> None:
        self._kept[url] = connection
        while len(self._kept) > KEPT_MAX:
            oldest = next(iter(self._kept))
            self._kept.pop(oldest).terminate()


@cache
def query_broker() -> Desk:
    """The one of this process."""
    return Desk()

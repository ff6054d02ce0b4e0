"""Hints between nodes over LISTEN and NOTIFY, on a connection of their own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.store.interface import Unavailable
from perdure.store.postgres.connection import SESSION, PostgresConnection
from perdure.store.postgres.errors import Lost
from perdure.store.postgres.statements import Statements

CHANNEL = "perdure_hints"
_RECEIVED_MAX = 10_000

log = logging.getLogger(__name__)


class HintChannel:
    """Sends and receives hints. It is never part of a transaction that writes."""

    def __init__(self, url: str) -> None:
        self._line = PostgresConnection(url, pooled=False, session=SESSION, greet=self._listen)
        self._notify = Statements()["notify"]
        self._sending = asyncio.Lock()
        self._received: asyncio.Queue[str] = asyncio.Queue(_RECEIVED_MAX)
        self._broken = asyncio.Event()

    async def _listen(self, line: PostgresConnection) -> None:
        connection = await line.connect()
        await connection.add_listener(CHANNEL, self._take)
        connection.add_termination_listener(lambda _: self._broken.set())

    def _take(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        if self._received.full():
            self._received.get_nowait()
        self._received.put_nowait(str(payload))

    async def send(self, text: str) -> None:
        """Send a hint to every listening node."""
        async with self._sending:
            try:
                await self._line.ask(self._notify, CHANNEL, text)
            except Lost as error:
                raise Unavailable("storage_unavailable", f"no listener: {error}") from error

    async def run(
        self, on_hint: Callable[[str], Awaitable[None]], on_listening: Callable[[], None]
    ) -> None:
        """Receive until cancelled; `on_listening` means that hints may have been lost."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stay_connected(on_listening), name="listen")
            group.create_task(self._handle_hints(on_hint), name="handle hints")

    async def _stay_connected(self, on_listening: Callable[[], None]) -> None:
        while True:
            self._broken.clear()
            try:
                async with self._sending:
                    await self._line.connect_with_retries()
            except Unavailable as error:
                log.warning("listening for hints failed, reconnecting: %s", error.message)
                await self._line.rest()
                continue
            on_listening()
            await self._broken.wait()

    async def _handle_hints(self, on_hint: Callable[[str], Awaitable[None]]) -> None:
        while True:
            text = await self._received.get()
            try:
                await on_hint(text)
            except Unavailable as error:
                log.info("handling a hint failed: %s", error.message)

    async def close(self) -> None:
        await self._line.close()

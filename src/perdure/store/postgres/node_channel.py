"""Messages to one node, over a channel of its own: too large, or too private, for a hint.

They pass through the memory of PostgreSQL and are never stored in a table. A message is sent in
parts, in one statement, so that its parts arrive in order and together.
"""

import asyncio
import base64
import binascii
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from perdure.store.interface import Unavailable
from perdure.store.postgres.connection import SESSION, PostgresConnection
from perdure.store.postgres.errors import Lost
from perdure.store.postgres.statements import Statements

PART_CHARACTERS = 7_600
"""NOTIFY carries less than 8,000 bytes; the header of a part is short."""
PARTS_MAX = 12_000
SENDERS_MAX = 64

log = logging.getLogger(__name__)


class NodeChannel:
    """Sends messages to nodes, and receives those for this node."""

    def __init__(self, url: str, node_id: str) -> None:
        self._node_id = node_id
        self._line = PostgresConnection(url, pooled=False, session=SESSION, greet=self._listen)
        self._notify_node = Statements()["notify_node"]
        self._sending = asyncio.Lock()
        self._broken = asyncio.Event()
        self._number = 0
        # The parts received of the message that a node is sending.
        self._parts: OrderedDict[str, list[str]] = OrderedDict()
        self._on_message: Callable[[bytes], None] = lambda message: None

    async def _listen(self, line: PostgresConnection) -> None:
        connection = await line.connect()
        await connection.add_listener(_channel(self._node_id), self._take)
        connection.add_termination_listener(lambda _: self._broken.set())

    async def send(self, node: str, message: bytes) -> None:
        """Send a message. Whether the node receives it is not known."""
        text = base64.b64encode(message).decode()
        parts = [text[at : at + PART_CHARACTERS] for at in range(0, len(text), PART_CHARACTERS)]
        if len(parts) > PARTS_MAX:
            raise Unavailable(
                "storage_unavailable", f"a message of {len(message)} bytes to a node is too large"
            )
        async with self._sending:
            self._number += 1
            head = f"{self._node_id} {self._number}"
            texts = [f"{head} {i} {len(parts)} {part}" for i, part in enumerate(parts)]
            try:
                await self._line.ask(self._notify_node, _channel(node), texts)
            except Lost as error:
                raise Unavailable("storage_unavailable", f"no listener: {error}") from error

    def _take(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        words = str(payload).split(" ")
        if len(words) != 5 or not (words[2].isdigit() and words[3].isdigit()):
            return
        sender, index, count = words[0], int(words[2]), int(words[3])
        parts = self._parts.setdefault(sender, [])
        if index == 0:
            parts.clear()
        if len(parts) != index or count > PARTS_MAX:
            # Its first part was lost.
            del self._parts[sender]
            return
        parts.append(words[4])
        if len(parts) == count:
            del self._parts[sender]
            try:
                message = base64.b64decode("".join(parts), validate=True)
            except binascii.Error:
                return
            self._on_message(message)
        while len(self._parts) > SENDERS_MAX:
            self._parts.popitem(last=False)

    async def run(self, on_message: Callable[[bytes], None]) -> None:
        """Receive until cancelled."""
        self._on_message = on_message
        while True:
            self._broken.clear()
            try:
                async with self._sending:
                    await self._line.connect_with_retries()
            except Unavailable as error:
                log.warning(
                    "listening for messages of other nodes failed, reconnecting: %s", error.message
                )
                await self._line.rest()
                continue
            self._parts.clear()
            await self._broken.wait()

    async def close(self) -> None:
        await self._line.close()


def _channel(node: str) -> str:
    return f"perdure_node_{node}"

"""How messages reach other nodes: over local sockets within a machine, else through PostgreSQL."""

import asyncio
import logging
from collections import deque
from typing import Protocol

import msgspec

from perdure.cluster.messages import PollOffer, TaskHandover, unpack
from perdure.cluster.poll_borrower import Borrower
from perdure.cluster.poll_lender import Lender
from perdure.cluster.remote_queries import Letter, Parcels
from perdure.core.limits import ERRANDS_WAITING_MAX
from perdure.store.interface import Unavailable

log = logging.getLogger(__name__)


class Near(Protocol):
    """The other processes under the same supervisor."""

    def knows(self, node: str) -> bool: ...

    def send(self, node: str, errand: bytes) -> bool:
        """Whether it was sent; whether it arrives nobody knows."""
        ...


class NodeTransport:
    """Sends errands, and brings those of others to whom they are for."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self.near: Near | None = None
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=ERRANDS_WAITING_MAX)
        self._wake = asyncio.Event()
        self._lender: Lender
        self._borrower: Borrower

    def connect(self, lender: Lender, borrower: Borrower) -> None:
        """Say for whom all this is."""
        self._lender, self._borrower = lender, borrower

    def is_near(self, node: str) -> bool:
        return self.near is not None and self.near.knows(node)

    def carry(self, node: str, errand: bytes) -> None:
        if self.near is not None and self.near.knows(node):
            if not self.near.send(node, errand):
                log.info("dropped a message to node %s: its queue is full", node)
            return
        self._waiting.append((node, errand))
        self._wake.set()

    async def run(self, parcels: Parcels) -> None:
        """Send what is for other machines, for as long as the server lives."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                node, errand = self._waiting.popleft()
                letter = Letter(self._node_id, 0, "errand", errand)
                try:
                    await parcels.send(node, msgspec.msgpack.encode(letter))
                except Unavailable as error:
                    log.info("sending a message to node %s failed: %s", node, error.message)

    def heard(self, data: bytes) -> None:
        """Take in what another node sent. What makes no sense is left alone."""
        try:
            errand = unpack(data)
        except msgspec.MsgspecError:
            log.warning("dropped a malformed message about a shared poll")
            return
        match errand:
            case PollOffer():
                self._borrower.hear(errand)
            case TaskHandover():
                self._lender.take(errand)

    def gone(self, node: str) -> None:
        """A node was replaced by another one."""
        self._lender.forget(node)
        self._borrower.forget(node)

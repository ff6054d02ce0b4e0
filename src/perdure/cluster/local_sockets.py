"""Sockets between the server processes of one machine: pairs that their supervisor created.

They have no names in the file system. Each process reads from one of them; every other process can
write to it. A message arrives whole or not at all.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

import msgspec

log = logging.getLogger(__name__)

_READS_AT_ONCE = 64
_BYTES_MAX = 150_000
"""More than that fits into no message; see net.core.wmem_default."""


class _Message(msgspec.Struct, array_like=True):
    slot: int
    sender: str
    to: str
    """Empty: whoever hears it."""
    body: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Message)


class Family(msgspec.Struct, frozen=True):
    """What one process inherits: its place, what it hears with, what it reaches others with."""

    slot: int
    ear: int
    mouths: dict[int, int]

    def __str__(self) -> str:
        return ",".join([f"{self.slot}:{self.ear}", *(f"{s}:{m}" for s, m in self.mouths.items())])

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.ear, *self.mouths.values())


def family_of(text: str) -> Family:
    """Raises `ValueError` when this is none."""
    pairs = [part.split(":") for part in text.split(",")]
    (slot, ear), *mouths = [(int(place), int(descriptor)) for place, descriptor in pairs]
    return Family(slot, ear, dict(mouths))


def socket_pairs(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """For every process one to hear with, and one to reach it."""
    return [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]


def families(pairs: Sequence[tuple[socket.socket, socket.socket]]) -> list[Family]:
    """The share of each process."""
    mouths = {slot: mouth.fileno() for slot, (_, mouth) in enumerate(pairs)}
    return [
        Family(slot, ear.fileno(), {other: m for other, m in mouths.items() if other != slot})
        for slot, (ear, _) in enumerate(pairs)
    ]


class LocalSockets:
    """The other processes under the same supervisor."""

    def __init__(self, family: Family, node_id: str) -> None:
        self._slot = family.slot
        self._node_id = node_id
        self._ear = socket.socket(fileno=family.ear)
        self._mouths = {
            slot: socket.socket(fileno=descriptor) for slot, descriptor in family.mouths.items()
        }
        for each in (self._ear, *self._mouths.values()):
            each.setblocking(False)
        self._nodes: dict[int, str] = {}
        self._slots: dict[str, int] = {}
        self._on_errand: Callable[[bytes], None] = lambda body: None
        self._on_gone: Callable[[str], None] = lambda node: None

    def knows(self, node: str) -> bool:
        return node in self._slots

    def send(self, node: str, errand: bytes) -> bool:
        slot = self._slots.get(node)
        return slot is not None and self._write(slot, node, errand)

    async def run(self, on_errand: Callable[[bytes], None], on_gone: Callable[[str], None]) -> None:
        """Hear for as long as the server lives."""
        self._on_errand, self._on_gone = on_errand, on_gone
        loop = asyncio.get_running_loop()
        loop.add_reader(self._ear, self._hear)
        try:
            for slot in self._mouths:
                self._write(slot, "", b"")
            await loop.create_future()
        finally:
            loop.remove_reader(self._ear)

    def _write(self, slot: int, to: str, body: bytes) -> bool:
        data = _encoder.encode(_Message(self._slot, self._node_id, to, body))
        if len(data) > _BYTES_MAX:
            return False
        try:
            self._mouths[slot].send(data)
        except OSError as error:
            log.info("dropped a message to process %s: its socket is full: %s", slot, error)
            return False
        return True

    def _hear(self) -> None:
        for _ in range(_READS_AT_ONCE):
            try:
                data = self._ear.recv(_BYTES_MAX)
            except BlockingIOError:
                return
            try:
                self._take_in(_decoder.decode(data))
            except msgspec.MsgspecError:
                log.warning("dropped a malformed message from another process of this machine")

    def _take_in(self, message: _Message) -> None:
        if message.slot not in self._mouths:
            return
        before = self._nodes.get(message.slot)
        if before != message.sender:
            # One process follows another in its place, and messages keep their order.
            self._nodes[message.slot] = message.sender
            self._slots[message.sender] = message.slot
            if before is not None:
                del self._slots[before]
                self._on_gone(before)
        if not message.to:
            self._write(message.slot, message.sender, b"")
        if message.to == self._node_id and message.body:
            self._on_errand(message.body)

    def close(self) -> None:
        for each in (self._ear, *self._mouths.values()):
            each.close()

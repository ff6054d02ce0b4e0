"""The messages by which nodes share parked polls. Each may be lost, delayed or doubled."""

from typing import Protocol

import msgspec

from perdure.store.interface import QueueKey


class LentPoll(msgspec.Struct, array_like=True, frozen=True):
    """A poll that is parked at its node, and that one other node may lease a task to."""

    number: int
    worker_id: str
    registered_at: int
    poll_id: str
    progress: bool
    validations: bool


class LentQueue(msgspec.Struct, array_like=True, frozen=True):
    """All polls of one queue that are lent to the node that is told so."""

    key: QueueKey
    polls: list[LentPoll]


class PollOffer(msgspec.Struct, array_like=True, frozen=True, tag="telling"):
    """What a node lends, and what became of the tasks that were handed over to it.

    Tellings are numbered: of two about the same queue the later one counts.
    """

    sender: str
    number: int
    queues: list[LentQueue]
    taken: list[int]
    refused: list[int]


class TaskHandover(msgspec.Struct, array_like=True, frozen=True, tag="hand_over"):
    """A lease that is on disk, for a poll that was lent. The run comes along if it is small.

    Members are only added at the end, and may be absent: nodes of the release before send and read
    those that they know. Of these `task`, the number of a workflow task, is the latest.
    """

    sender: str
    number: int
    key: QueueKey
    poll: int
    name: str
    run_id: str
    place: int
    attempt: int
    owner: str
    sent_at: int
    run: bytes | None
    task: int | None = None


Errand = PollOffer | TaskHandover


class MessageTransport(Protocol):
    """Carries errands to nodes, or loses them."""

    def carry(self, node: str, errand: bytes) -> None: ...

    def is_near(self, node: str) -> bool:
        """Whether what is carried there may be large, and is seen by nobody else."""
        ...


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Errand] = msgspec.msgpack.Decoder(Errand)


def pack(errand: Errand) -> bytes:
    return _encoder.encode(errand)


def unpack(data: bytes) -> Errand:
    """Raises `msgspec.MsgspecError` when this is no errand."""
    return _decoder.decode(data)

"""Inbox of a run: signals, updates and stream messages that wait for its code."""

from typing import TypeAlias

from msgspec import Struct, field


class Signal(Struct, tag="signal"):
    """A signal that waits in the inbox, or was received and not yet applied to a signal wait."""

    signal_id: str
    command_id: str
    name: str
    arguments: bytes | None
    received_at: int
    # The trace of its sender, as an encoded carrier.
    trace: bytes | None = None
    # The id under which the sender may repeat it, and a digest of the request.
    request_id: str | None = None
    digest: str = ""
    # The run that accepted it, for receipts: by now it may be in the inbox of a later one.
    accepted_by: str = ""


class Update(Struct, kw_only=True, tag="update"):
    """An update without an outcome. Its id is also that of the command that requested it.

    `validate_by` is set while a worker has to approve it before it is accepted. One that arrived
    before any worker reported which updates it validates is `unjudged` until a worker does.
    """

    update_id: str
    name: str
    arguments: bytes | None
    received_at: int
    accepted_at: int | None = None
    validate_by: int | None = None
    unjudged: bool = False
    request_id: str | None = None
    digest: str = ""
    trace: bytes | None = None

    @property
    def command_id(self) -> str:
        return self.update_id


MESSAGE_SIGNAL = "__durable_workflow_message_stream"
"""The reserved signal name under which stream messages are delivered to the code."""


class StreamMessage(Struct, kw_only=True, tag="message"):
    """A message of a message stream that the code has not read yet.

    `position` counts the messages of its stream, over all runs of the workflow id.
    """

    signal_id: str
    command_id: str
    stream_name: str
    message_id: str
    position: int
    arguments: bytes
    received_at: int
    digest: str = ""
    accepted_by: str = ""

    @property
    def name(self) -> str:
        return MESSAGE_SIGNAL


Message: TypeAlias = Signal | Update | StreamMessage
"""An entry of the inbox."""


class MessageStream(Struct, array_like=True):
    """Progress of a message stream: the last position given, and the last one read."""

    last: int = 0
    cursor: int = 0


class RejectedSignal(Struct, array_like=True):
    """A signal or a message that was accepted and never delivered to the code."""

    signal_id: str
    command_id: str
    name: str
    received_at: int


class RejectedSignals(Struct, array_like=True):
    """Messages that were not delivered when a run closed: their count, and the first of them."""

    count: int = 0
    first: list[RejectedSignal] = field(default_factory=list)


class Refusal(Struct, array_like=True):
    """Why an update was not accepted; `errors` is encoded JSON."""

    reason: str
    message: str
    errors: bytes | None = None


class EndedUpdate(Struct, array_like=True):
    """How a recent update ended, and the event of that; a refusal has no event."""

    update_id: str
    status: str
    event: int | None = None
    refusal: Refusal | None = None

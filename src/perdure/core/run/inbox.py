"""What waits in the inbox of a run: signals, updates and messages of streams."""

from typing import TypeAlias

from msgspec import Struct, field


class Signal(Struct, tag="signal"):
    """A signal that waits in the inbox, or was received and not yet applied to a signal wait."""

    signal_id: str
    command_id: str
    name: str
    arguments: bytes | None
    received_at: int
    # The trace that its sender was in, as an encoded carrier.
    trace: bytes | None = None
    # Under which the sender may repeat it, and a digest of what it asked.
    request_id: str | None = None
    digest: str = ""
    # The run that accepted it, for receipts: it may wait in a later one by now.
    accepted_by: str = ""


class Update(Struct, kw_only=True, tag="update"):
    """An update without an outcome. Its id is also that of the command that asked for it.

    `validate_by` is set as long as a worker has to approve it before it is accepted. One that came
    before any worker had told what it validates is `unjudged` until a worker has.
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
"""The name under which messages of streams reach the code; nobody else may use it."""


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
"""What waits in the inbox of a run."""


class MessageStream(Struct, array_like=True):
    """How far a stream of messages has come: the last position given, the last one read."""

    last: int = 0
    cursor: int = 0


class RejectedSignal(Struct, array_like=True):
    """A signal or a message that was accepted and that no task has shown to the code."""

    signal_id: str
    command_id: str
    name: str
    received_at: int


class RejectedSignals(Struct, array_like=True):
    """What a run was still to be shown when it closed: how many, and the first of them."""

    count: int = 0
    first: list[RejectedSignal] = field(default_factory=list)


class Refusal(Struct, array_like=True):
    """Why an update was not accepted; `errors` is encoded JSON."""

    reason: str
    message: str
    errors: bytes | None = None


class EndedUpdate(Struct, array_like=True):
    """How a recent update ended, and the event that tells it; a refusal leaves no event."""

    update_id: str
    status: str
    event: int | None = None
    refusal: Refusal | None = None

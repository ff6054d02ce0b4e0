"""Message streams: ordered input of a workflow id, which its code reads at its own pace.

A message gets its position when it is accepted. The code receives it as a signal of a reserved
name. It is kept until a worker reports that the code has read it; messages that a run has not read
go to the next run of its chain.
"""

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct, field

from perdure.core.payload import Frame, PayloadError, decode, encode
from perdure.core.rejection import InvalidCommands
from perdure.core.run.context import Context
from perdure.core.run.history import Raw, record
from perdure.core.run.history import encode as json_encode
from perdure.core.run.inbox import MESSAGE_SIGNAL, MessageStream, Signal, StreamMessage
from perdure.core.run.reframe import envelope_json, envelope_value
from perdure.core.run.state import Run

MESSAGE_SCHEMA = "durable-workflow.v2.message-stream.message"
CURSOR_SCHEMA = "durable-workflow.v2.message-stream.cursor"


class Consumption(Struct, frozen=True):
    """The positions up to which the code has read its streams, and behind which it waits."""

    cursors: dict[str, int] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)


def check_consumption(run: Run, consumption: Consumption) -> None:
    """Refuse cursors beyond the last message of a stream."""
    for name, position in consumption.cursors.items():
        stream = run.streams.get(name)
        if position > (0 if stream is None else stream.last):
            raise InvalidCommands(f"stream {name} has no message {position}")


def note_consumption(run: Run, consumption: Consumption) -> None:
    """Drop messages that the code has read. A cursor never moves back."""
    if run.stream_waits or consumption.waits:
        run.stream_waits = dict(consumption.waits)
    for name, position in consumption.cursors.items():
        stream = run.streams.get(name)
        if stream is not None:
            stream.cursor = max(stream.cursor, position)
    if not run.unread:
        return
    for place, message in list(run.unread.items()):
        if message.position <= run.streams[message.stream_name].cursor:
            del run.unread[place]
            run.unsaved.inbox.add(place)


def unread_messages(run: Run) -> list[Signal | StreamMessage]:
    """Messages that the code has not seen, or has seen and not read, in their order."""
    unread = [message for _, message in sorted(run.unread.items())]
    waiting = [m for _, m in sorted(run.inbox.items()) if isinstance(m, Signal | StreamMessage)]
    return [*unread, *waiting]


def hand_over_streams(
    run: Run, successor: Run, ctx: Context, messages: Sequence[Signal | StreamMessage]
) -> None:
    """Hand the unread messages of the streams, and their cursors, to the next run.

    Called right after the start events: the code must know its cursors before its first wait.
    """
    successor.streams = {
        name: MessageStream(stream.last, stream.cursor) for name, stream in run.streams.items()
    }
    for name, stream in sorted(successor.streams.items()):
        if stream.cursor:
            _record_cursor(successor, ctx, name, stream.cursor)
    for message in messages:
        successor.inbox[successor.inbox_next] = message
        successor.unsaved.inbox.add(successor.inbox_next)
        successor.inbox_next += 1


def message_of(signal: Signal) -> StreamMessage | None:
    """The stream message in a recorded signal of the reserved name."""
    if signal.name != MESSAGE_SIGNAL or signal.arguments is None:
        return None
    try:
        (value,) = cast(list[Any], decode(envelope_value(signal.arguments)["blob"]))
    except (KeyError, TypeError, ValueError, PayloadError):
        return None
    if value.get("schema") != MESSAGE_SCHEMA:
        return None
    return StreamMessage(
        signal_id=signal.signal_id,
        command_id=signal.command_id,
        stream_name=value["stream_name"],
        message_id=value["message_id"],
        position=value["position"],
        arguments=json_encode(value["payload_envelope"]),
        received_at=signal.received_at,
    )


def resume_streams(run: Run, previous: Run, handed_over: Sequence[StreamMessage]) -> None:
    """Take over the streams of a run whose events this run starts with.

    The replayed code reads the messages again and reports its cursors; positions continue.
    """
    run.streams = {name: MessageStream(stream.last) for name, stream in previous.streams.items()}
    for message in handed_over:
        run.unread[run.inbox_next] = message
        run.unsaved.inbox.add(run.inbox_next)
        run.inbox_next += 1
    run.inbox_first = run.inbox_next


def message_members(run: Run, message: StreamMessage) -> dict[str, Any]:
    """The payload of `SignalReceived` for a message that is handed over."""
    value = {
        "schema": MESSAGE_SCHEMA,
        "stream_name": message.stream_name,
        "message_id": message.message_id,
        "position": message.position,
        "payload_envelope": envelope_value(message.arguments),
    }
    return _members(run, value, message.command_id, message.signal_id)


def _record_cursor(run: Run, ctx: Context, name: str, position: int) -> None:
    value = {"schema": CURSOR_SCHEMA, "stream_name": name, "through_position": position}
    members = _members(run, value, ctx.ids.ulid(), ctx.ids.ulid())
    record(run, ctx, "SignalReceived", members)


def _members(run: Run, value: dict[str, Any], command_id: str, signal_id: str) -> dict[str, Any]:
    return {
        "workflow_command_id": command_id,
        "signal_id": signal_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
        "signal_name": MESSAGE_SIGNAL,
        "arguments": Raw(envelope_json(encode([value], Frame(run.frame)))),
        "payload_codec": run.codec,
    }

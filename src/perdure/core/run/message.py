"""Commands from outside: signals and updates wait their turn in the inbox."""

from msgspec import Raw, Struct, field, json

from perdure.core import limits
from perdure.core.rejection import (
    InboxFull,
    RunNotActive,
    StructuralLimitExceeded,
    UpdateRejected,
)
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.history import encode, encode_event
from perdure.core.run.inbox import Message, MessageStream, Signal, StreamMessage, Update
from perdure.core.run.message_stream import message_members
from perdure.core.run.operation import SignalWait
from perdure.core.run.settle import settle, signal_members
from perdure.core.run.state import Run


def require_active(run: Run) -> None:
    """Refuse commands to a closed run."""
    if run.is_closed:
        raise RunNotActive(
            f"run {run.run_id} is {run.status}",
            run_id=run.run_id,
            outcome="rejected_not_active",
            rejection_reason="run_not_active",
        )


def accept_signal(
    run: Run,
    ctx: Context,
    *,
    name: str,
    arguments: bytes | None,
    trace: bytes | None = None,
    request_id: str | None = None,
    digest: str = "",
) -> Signal:
    """Take a signal. It is durable from now on and enters history in its turn."""
    require_active(run)
    waiting = len(run.inbox) - waiting_updates(run) + len(run.unapplied)
    most = ctx.bounds.pending_signals_max
    if waiting >= most:
        message = f"run {run.run_id} has {waiting} signals waiting"
        raise _full(message, "pending_signal_count", waiting, most)
    _require_room_in_history(run, ctx)
    signal = Signal(
        signal_id=ctx.ids.ulid(),
        command_id=ctx.ids.ulid(),
        name=name,
        arguments=arguments,
        received_at=ctx.now,
        trace=trace,
        request_id=request_id,
        digest=digest,
        accepted_by="" if request_id is None else run.run_id,
    )
    _put(run, ctx, signal)
    return signal


def accept_message(
    run: Run,
    ctx: Context,
    *,
    stream_name: str,
    message_id: str,
    arguments: bytes,
    digest: str = "",
) -> StreamMessage:
    """Take a message of a stream and give it its position, which no other will have."""
    require_active(run)
    waiting = len(run.inbox) - waiting_updates(run) + len(run.unread)
    most = limits.PENDING_MESSAGES_MAX
    if waiting >= most:
        message = f"run {run.run_id} has {waiting} messages that its code has not read"
        raise _full(message, "pending_message_count", waiting, most)
    _require_room_in_history(run, ctx)
    held = (*run.inbox.values(), *run.unread.values())
    size = len(arguments) + sum(len(m.arguments) for m in held if isinstance(m, StreamMessage))
    most = limits.PENDING_MESSAGES_BYTES_MAX
    if size > most:
        message = f"the code of run {run.run_id} has not read {size} bytes of messages"
        raise _full(message, "pending_message_bytes", size, most)
    streams, most = len(run.streams), limits.MESSAGE_STREAMS_MAX
    if stream_name not in run.streams and streams >= most:
        message = f"run {run.run_id} has {streams} message streams"
        raise _exceeded(message, "message_stream_count", streams, most)
    stream = run.streams.setdefault(stream_name, MessageStream())
    stream.last += 1
    taken = StreamMessage(
        signal_id=ctx.ids.ulid(),
        command_id=ctx.ids.ulid(),
        stream_name=stream_name,
        message_id=message_id,
        position=stream.last,
        arguments=arguments,
        received_at=ctx.now,
        digest=digest,
        accepted_by=run.run_id,
    )
    _put(run, ctx, taken)
    return taken


def accept_update(
    run: Run,
    ctx: Context,
    *,
    name: str,
    arguments: bytes | None,
    validated: bool | None,
    request_id: str | None = None,
    digest: str = "",
    trace: bytes | None = None,
) -> Update:
    """Take an update. It is durable from now on; if it must be validated, not yet accepted.

    `validated` is none when no worker has told yet whether its code wants that.
    """
    require_open_for_updates(run)
    most = ctx.bounds.pending_updates_max
    if run.updates_open >= most:
        message = f"run {run.run_id} has {run.updates_open} updates without an outcome"
        raise _full(message, "pending_update_count", run.updates_open, most)
    _require_room_in_history(run, ctx)
    update = Update(
        update_id=ctx.ids.ulid(),
        name=name,
        arguments=arguments,
        received_at=ctx.now,
        accepted_at=None if validated else ctx.now,
        validate_by=ctx.now + limits.UPDATE_VALIDATION_TIMEOUT if validated else None,
        unjudged=validated is None,
        request_id=request_id,
        digest=digest,
        trace=trace,
    )
    run.updates_open += 1
    arm(run, update.validate_by)
    _put(run, ctx, update)
    return update


def require_open_for_updates(run: Run) -> None:
    """Refuse updates to a closed run, in the words that their callers know."""
    if run.is_closed:
        raise UpdateRejected(
            f"run {run.run_id} is {run.status}",
            run_id=run.run_id,
            outcome="rejected_not_active",
            rejection_reason="run_not_active",
            terminal_workflow_status=run.status.value,
        )


def waiting_updates(run: Run) -> int:
    """How many messages of the inbox are updates."""
    return run.updates_open - (run.update is not None)


def _require_room_in_history(run: Run, ctx: Context) -> None:
    """What is let in without a workflow task has an end, too: code that is busy cannot go on."""
    most = ctx.bounds.history_events_max
    if run.history_count >= most:
        message = f"run {run.run_id} has {run.history_count} events, and must continue as new"
        raise _exceeded(message, "history_event_count", run.history_count, most)


def _exceeded(message: str, kind: str, value: int, most: int) -> StructuralLimitExceeded:
    return StructuralLimitExceeded(
        message, limit_kind=kind, current_value=value, configured_limit=most
    )


def _full(message: str, kind: str, value: int, most: int) -> InboxFull:
    return InboxFull(message, limit_kind=kind, current_value=value, configured_limit=most)


def _put(run: Run, ctx: Context, message: Message) -> None:
    run.inbox[run.inbox_next] = message
    run.unsaved.inbox.add(run.inbox_next)
    run.inbox_next += 1
    settle(run, ctx)


class _Received(Struct):
    arguments: Raw = field(default_factory=Raw)


class _SignalReceived(Struct):
    payload: _Received


_received = json.Decoder(_SignalReceived)


def arguments_of_signal(run: Run, signal_id: str) -> bytes | None:
    """What the signal that woke a run brought, for the task that it asked for.

    From memory: it was recorded only just, or waits at the wait that it is for.
    """
    wait = None if run.wait is None else run.operations.get(run.wait)
    if isinstance(wait, SignalWait) and wait.signal is not None:
        return wait.signal.arguments
    mark = f'"signal_id":"{signal_id}"'.encode()
    for event in reversed(run.events):
        # Codes of all kinds may write such a member into what they tell.
        if mark in event and b'"event_type":"SignalReceived"' in event:
            return bytes(_received.decode(event).payload.arguments) or None
    return None


def show_waiting_signals(run: Run) -> list[bytes]:
    """The signals that wait in the inbox, as the events that history will have of them.

    For questions only: who has sent a signal and then asks shall be answered by code that has
    seen it. What they are is settled when they enter history.
    """
    if run.is_closed:
        return []
    shown = []
    waiting = [m for _, m in sorted(run.inbox.items()) if isinstance(m, Signal | StreamMessage)]
    for sequence, signal in enumerate(waiting, start=run.history_count + 1):
        if isinstance(signal, StreamMessage):
            members = message_members(run, signal)
        else:
            members = {k: v for k, v in signal_members(run, signal).items() if v is not None}
        at, payload = signal.received_at, encode(members)
        shown.append(encode_event(run, sequence, signal.signal_id, "SignalReceived", at, payload))
    return shown

"""Acceptance of signals, updates and stream messages into the inbox of a run."""

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
    """Accept a signal. It is durable from now on and enters history in its turn."""
    require_active(run)
    waiting = len(run.inbox) - waiting_updates(run) + len(run.unapplied)
    limit = ctx.bounds.pending_signals_max
    if waiting >= limit:
        message = f"run {run.run_id} has {waiting} signals that its code has not received"
        raise _full(message, "pending_signal_count", waiting, limit)
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
    """Accept a stream message and give it its unique position."""
    require_active(run)
    waiting = len(run.inbox) - waiting_updates(run) + len(run.unread)
    limit = limits.PENDING_MESSAGES_MAX
    if waiting >= limit:
        message = f"run {run.run_id} has {waiting} messages that its code has not read"
        raise _full(message, "pending_message_count", waiting, limit)
    _require_room_in_history(run, ctx)
    held = (*run.inbox.values(), *run.unread.values())
    size = len(arguments) + sum(len(m.arguments) for m in held if isinstance(m, StreamMessage))
    limit = limits.PENDING_MESSAGES_BYTES_MAX
    if size > limit:
        message = f"the code of run {run.run_id} has not read {size} bytes of messages"
        raise _full(message, "pending_message_bytes", size, limit)
    streams, limit = len(run.streams), limits.MESSAGE_STREAMS_MAX
    if stream_name not in run.streams and streams >= limit:
        message = f"run {run.run_id} has {streams} message streams"
        raise _exceeded(message, "message_stream_count", streams, limit)
    stream = run.streams.setdefault(stream_name, MessageStream())
    stream.last += 1
    accepted = StreamMessage(
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
    _put(run, ctx, accepted)
    return accepted


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
    """Add an update. It is durable from now on; if it must be validated, not yet accepted.

    `validated` is none if no worker has reported yet whether its code validates it.
    """
    require_open_for_updates(run)
    limit = ctx.bounds.pending_updates_max
    if run.updates_open >= limit:
        message = f"run {run.run_id} has {run.updates_open} updates without an outcome"
        raise _full(message, "pending_update_count", run.updates_open, limit)
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
    """Refuse updates to a closed run, with the details that update callers expect."""
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
    """Refuse messages at the history limit: code that is busy cannot continue as new in time."""
    limit = ctx.bounds.history_events_max
    if run.history_count >= limit:
        message = f"run {run.run_id} has {run.history_count} events, and must continue as new"
        raise _exceeded(message, "history_event_count", run.history_count, limit)


def _exceeded(message: str, kind: str, value: int, limit: int) -> StructuralLimitExceeded:
    return StructuralLimitExceeded(
        message, limit_kind=kind, current_value=value, configured_limit=limit
    )


def _full(message: str, kind: str, value: int, limit: int) -> InboxFull:
    return InboxFull(message, limit_kind=kind, current_value=value, configured_limit=limit)


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
    """The arguments of the signal that woke a run, for the task that it requested.

    Read from memory: it was just recorded, or is bound to its open wait.
    """
    wait = None if run.wait is None else run.operations.get(run.wait)
    if isinstance(wait, SignalWait) and wait.signal is not None:
        return wait.signal.arguments
    mark = f'"signal_id":"{signal_id}"'.encode()
    for event in reversed(run.events):
        # Payloads of other events may contain the same member.
        if mark in event and b'"event_type":"SignalReceived"' in event:
            return bytes(_received.decode(event).payload.arguments) or None
    return None


def show_waiting_signals(run: Run) -> list[bytes]:
    """The waiting signals, as the events that history will have of them.

    For queries only: a client that sends a signal and then a query gets an answer from code that
    has seen the signal. The final events are made when the signals enter history.
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

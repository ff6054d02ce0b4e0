"""Commands from outside: signals and updates wait their turn in the inbox."""

from perdure.core import limits
from perdure.core.rejection import RunNotActive, StructuralLimitExceeded, UpdateRejected
from perdure.core.run.deadline import arm
from perdure.core.run.history import encode, encode_event
from perdure.core.run.inbox import Message, MessageStream, Signal, StreamMessage, Update
from perdure.core.run.message_stream import message_members
from perdure.core.run.moment import Moment
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
    run: Run, moment: Moment, *, name: str, arguments: bytes | None, trace: bytes | None = None
) -> Signal:
    """Take a signal. It is durable from now on and enters history in its turn."""
    require_active(run)
    waiting = len(run.inbox) - _waiting_updates(run) + len(run.unapplied)
    if waiting >= limits.PENDING_SIGNALS_MAX:
        raise StructuralLimitExceeded(
            f"run {run.run_id} has {waiting} signals waiting",
            limit_kind="pending_signal_count",
            configured_limit=limits.PENDING_SIGNALS_MAX,
        )
    signal = Signal(
        signal_id=moment.ids.ulid(),
        command_id=moment.ids.ulid(),
        name=name,
        arguments=arguments,
        received_at=moment.now,
        trace=trace,
    )
    _put(run, moment, signal)
    return signal


def accept_message(
    run: Run, moment: Moment, *, stream_name: str, message_id: str, arguments: bytes
) -> StreamMessage:
    """Take a message of a stream and give it its position, which no other will have."""
    require_active(run)
    waiting = len(run.inbox) - _waiting_updates(run) + len(run.unread)
    if waiting >= limits.PENDING_MESSAGES_MAX:
        raise StructuralLimitExceeded(
            f"run {run.run_id} has {waiting} messages that its code has not read",
            limit_kind="pending_message_count",
            configured_limit=limits.PENDING_MESSAGES_MAX,
        )
    held = (*run.inbox.values(), *run.unread.values())
    size = len(arguments) + sum(len(m.arguments) for m in held if isinstance(m, StreamMessage))
    if size > limits.PENDING_MESSAGES_BYTES_MAX:
        raise StructuralLimitExceeded(
            f"the code of run {run.run_id} has not read {size} bytes of messages",
            limit_kind="pending_message_bytes",
            configured_limit=limits.PENDING_MESSAGES_BYTES_MAX,
        )
    if stream_name not in run.streams and len(run.streams) >= limits.MESSAGE_STREAMS_MAX:
        raise StructuralLimitExceeded(
            f"run {run.run_id} has {len(run.streams)} message streams",
            limit_kind="message_stream_count",
            configured_limit=limits.MESSAGE_STREAMS_MAX,
        )
    stream = run.streams.setdefault(stream_name, MessageStream())
    stream.last += 1
    message = StreamMessage(
        signal_id=moment.ids.ulid(),
        command_id=moment.ids.ulid(),
        stream_name=stream_name,
        message_id=message_id,
        position=stream.last,
        arguments=arguments,
        received_at=moment.now,
    )
    _put(run, moment, message)
    return message


def accept_update(
    run: Run,
    moment: Moment,
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
    if run.updates_open >= limits.PENDING_UPDATES_MAX:
        raise StructuralLimitExceeded(
            f"run {run.run_id} has {run.updates_open} updates without an outcome",
            limit_kind="pending_update_count",
            configured_limit=limits.PENDING_UPDATES_MAX,
        )
    update = Update(
        update_id=moment.ids.ulid(),
        name=name,
        arguments=arguments,
        received_at=moment.now,
        accepted_at=None if validated else moment.now,
        validate_by=moment.now + limits.UPDATE_VALIDATION_TIMEOUT if validated else None,
        unjudged=validated is None,
        request_id=request_id,
        digest=digest,
        trace=trace,
    )
    run.updates_open += 1
    arm(run, update.validate_by)
    _put(run, moment, update)
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


def _waiting_updates(run: Run) -> int:
    return run.updates_open - (run.update is not None)


def _put(run: Run, moment: Moment, message: Message) -> None:
    run.inbox[run.inbox_next] = message
    run.unsaved.inbox.add(run.inbox_next)
    run.inbox_next += 1
    settle(run, moment)


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

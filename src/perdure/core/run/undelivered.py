"""Signals and messages that a run accepted and its code never saw, because the run closed first.

Their senders got the answer that they were accepted. The close records their rejection before its
last event; workers skip such events in replay.
"""

from perdure.core.limits import REJECTED_SIGNALS_BYTES_MAX, REJECTED_SIGNALS_SHOWN_MAX
from perdure.core.run.context import Context
from perdure.core.run.history import record
from perdure.core.run.inbox import RejectedSignal, RejectedSignals, Signal, StreamMessage
from perdure.core.run.message_stream import message_members
from perdure.core.run.settle import signal_members
from perdure.core.run.state import Run


def reject_signals(run: Run, ctx: Context, reason: str) -> None:
    """Record messages that are still in the inbox of a run that is about to close.

    Their arguments are bounded in total, so that a close can always be written.
    """
    waiting = [m for _, m in sorted(run.inbox.items()) if isinstance(m, Signal | StreamMessage)]
    if not waiting:
        return
    room = REJECTED_SIGNALS_BYTES_MAX
    for message in waiting:
        if isinstance(message, Signal):
            members = signal_members(run, message)
        else:
            members = message_members(run, message)
        size = len(message.arguments or b"")
        room -= size
        if room < 0:
            del members["arguments"], members["payload_codec"]
            members["arguments_bytes"] = size
        record(run, ctx, "SignalRejected", {**members, "closed_reason": reason})
    run.rejected = RejectedSignals(
        len(waiting),
        [
            RejectedSignal(m.signal_id, m.command_id, m.name, m.received_at)
            for m in waiting[:REJECTED_SIGNALS_SHOWN_MAX]
        ],
    )
    run.unsaved.rejected = waiting

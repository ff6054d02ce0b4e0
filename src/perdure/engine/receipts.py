"""Receipts of signals and messages: what a repeat is told that comes after the run has closed.

A receipt says `signal_received` from the moment of acceptance. If the run closes before any task
has shown the signal to the code, the same commit makes the receipt say so; if another run takes
the signal over later (a child that is tried again, a redrive), it is accepted again.
"""

from perdure.core.rejection import RunNotActive
from perdure.core.run.inbox import Signal, StreamMessage
from perdure.core.run.state import Run
from perdure.store.interface import Instance, Receipt, ReceiptKey

SIGNAL = "signal"
SIGNAL_RECEIVED = "signal_received"
MESSAGE_ACCEPTED = "message_accepted"
REJECTED_AT_CLOSE = "rejected_at_close"


def message_key(instance: Instance, stream_name: str, message_id: str) -> ReceiptKey:
    """Where the receipt of a message of a stream is kept."""
    return ReceiptKey(*instance, f"message:{stream_name}", message_id)


def receipt_of(
    run: Run, message: Signal | StreamMessage, at: int, *, rejected: bool
) -> tuple[ReceiptKey, Receipt] | None:
    """What repeats of a message are to be told; nothing if it cannot be repeated."""
    instance = Instance(run.namespace, run.workflow_id)
    if isinstance(message, StreamMessage):
        key = message_key(instance, message.stream_name, message.message_id)
        accepted, position = MESSAGE_ACCEPTED, message.position
    elif message.request_id is None:
        return None
    else:
        key = ReceiptKey(*instance, SIGNAL, message.request_id)
        accepted, position = SIGNAL_RECEIVED, 0
    if not message.accepted_by:
        # It was accepted by a release that did not keep what a receipt needs.
        return None
    outcome = REJECTED_AT_CLOSE if rejected else accepted
    accepted_by, command_id = message.accepted_by, message.command_id
    return key, Receipt(message.digest, accepted_by, command_id, outcome, at, position)


def refuse_rejected(receipt: Receipt, kind: str, request_id: str | None) -> None:
    """Answer the repeat of what was accepted and then rejected by the close of its run."""
    if receipt.outcome != REJECTED_AT_CLOSE:
        return
    raise RunNotActive(
        f"{kind} {request_id} was accepted, but the run closed before its code saw it",
        run_id=receipt.run_id,
        command_id=receipt.command_id,
        outcome="rejected_not_active",
        rejection_reason="run_not_active",
        retained=True,
    )

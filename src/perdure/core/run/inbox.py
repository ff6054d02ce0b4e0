"""Rows of the inbox: those that wait, and those that were handed over and are kept."""

from perdure.core.run.state import Message, Run, StreamMessage


def place_message(run: Run, position: int, message: Message) -> None:
    """Take in a row: what stands before the first that waits was handed over."""
    if position < run.inbox_first and isinstance(message, StreamMessage):
        run.unread[position] = message
    else:
        run.inbox[position] = message


def message_at(run: Run, position: int) -> Message | None:
    """What a position holds, handed over or not."""
    return run.inbox.get(position) or run.unread.get(position)

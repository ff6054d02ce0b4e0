"""Messages that a run has not read, counted without reading them."""

from perdure.core.run.inbox import Message, Signal, StreamMessage
from perdure.core.run.limit_warnings import Unread
from perdure.core.run.state import Run
from tests.store.building import NOW, a_run
from tests.store.keeping import Keep


def a_signal() -> Signal:
    return Signal(signal_id="s", command_id="c", name="pay", arguments=None, received_at=NOW)


def a_message(position: int) -> StreamMessage:
    return StreamMessage(
        signal_id="s",
        command_id="c",
        stream_name="orders",
        message_id=f"m{position}",
        position=position,
        arguments=b"[]",
        received_at=NOW,
    )


def holding(run: Run, first: int, messages: dict[int, Message]) -> Run:
    """The run with messages at some places, and an inbox that begins at one of them."""
    run.inbox_first, run.inbox_next = first, max(messages, default=first) + 1
    for place, message in messages.items():
        run.place_message(place, message)
        run.unsaved.inbox.add(place)
    return run


def test_messages_are_counted_before_and_behind_the_place_where_the_inbox_begins(
    keep: Keep,
) -> None:
    places: dict[int, Message] = {
        1: a_message(1),
        2: a_message(2),
        5: a_signal(),
        7: a_message(3),
        9: a_signal(),
    }
    run = holding(a_run("one"), 5, places)
    other = holding(a_run("other"), 1, {1: a_signal()})
    with keep.opened() as store:
        keep.commit(store, run, other)

        assert keep.run(store.count_messages(run)) == Unread(waiting=3, handed_over=2)
        assert keep.run(store.count_messages(other)) == Unread(waiting=1, handed_over=0)


def test_a_run_without_messages_has_none(keep: Keep) -> None:
    run = a_run()
    with keep.opened() as store:
        keep.commit(store, run)

        assert keep.run(store.count_messages(run)) == Unread()

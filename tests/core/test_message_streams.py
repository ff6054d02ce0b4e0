"""Message streams: positions, what the code has read, and what the next run of a chain gets."""

from typing import Any, cast

import msgspec
import pytest

from perdure.core import limits
from perdure.core.payload import decode
from perdure.core.rejection import InboxFull, InvalidCommands, RunNotActive, StructuralLimitExceeded
from perdure.core.run.cause import next_cause
from perdure.core.run.command import Command
from perdure.core.run.context import Context
from perdure.core.run.inbox import MESSAGE_SIGNAL
from perdure.core.run.message import show_waiting_signals
from perdure.core.run.message_stream import Consumption
from perdure.core.run.operation import RetryPolicy
from perdure.core.run.redrive import read_prefix, redrive
from perdure.core.run.state import Run
from perdure.engine.message_streams import AppendMessage, MessageTaken
from perdure.engine.workflow_tasks import CompleteWorkflowTask
from perdure.identity import IdSource
from perdure.store.interface import Instance
from tests.support.commands import (
    ARGUMENTS,
    activity,
    child,
    complete_run,
    condition,
    continue_as_new,
    fail_run,
    in_selection,
    timer,
)
from tests.support.rule_harness import Story, event_of, report_of


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


def send(
    story: Story, run: Run, message_id: str, stream: str = "orders", arguments: bytes = ARGUMENTS
) -> MessageTaken:
    operation = AppendMessage(
        Instance(run.namespace, run.workflow_id),
        stream_name=stream,
        message_id=message_id,
        arguments=arguments,
        digest=f"{len(arguments)}",
    )
    return cast(MessageTaken, story.decide(operation))


def complete(
    story: Story,
    run: Run,
    *commands: Command,
    read: dict[str, int] | None = None,
    waits: dict[str, int] | None = None,
) -> None:
    """The worker answers, and says how far its code has read and what it waits for."""
    story.decide(
        CompleteWorkflowTask(
            run.namespace,
            run.run_id,
            report_of(run),
            commands,
            Consumption(read or {}, waits or {}),
        )
    )


def work(story: Story, run: Run, *commands: Command, **told: Any) -> None:
    story.lease(run)
    complete(story, run, *commands, **told)


def waiting_for(position: int, stream: str = "orders") -> Command:
    return condition(f"message-stream:{stream}:{position}")


def test_a_message_behind_something_of_a_loser_has_an_opening_of_its_own(
    story: Story, run: Run
) -> None:
    work(story, run, *in_selection({"clock": timer(1), "slow": activity()}))
    story.later(seconds=1)
    work(story, run, waiting_for(0))
    story.lease_activity(run, 2)

    send(story, run, "m-1")

    assert story.numbered(run)[-3:] == [
        ("ActivityStarted", 2),
        ("ConditionWaitOpened", 4),
        ("SignalReceived", None),
    ]


def opened(event_payload: dict[str, Any]) -> dict[str, Any]:
    (value,) = cast(list[Any], decode(event_payload["arguments"]["blob"]))
    return cast(dict[str, Any], value)


def messages(story: Story, run: Run) -> list[tuple[str, int]]:
    """What history records of streams: ids and positions, and cursors as `cursor` and position."""
    told = [
        opened(e.payload)
        for e in story.history(run)
        if e.event_type == "SignalReceived" and e.payload["signal_name"] == MESSAGE_SIGNAL
    ]
    return [
        (it["message_id"], it["position"])
        if it["schema"].endswith(".message")
        else ("cursor", it["through_position"])
        for it in told
    ]


# Positions --------------------------------------------------------------------------------------


def test_every_stream_counts_its_own_messages_from_one(story: Story, run: Run) -> None:
    taken = [send(story, run, "a"), send(story, run, "b"), send(story, run, "a", "notes")]

    assert [it.position for it in taken] == [1, 2, 1]
    assert not any(it.retained for it in taken)


def test_a_repeated_message_has_the_position_it_had(story: Story, run: Run) -> None:
    first, other = send(story, run, "a"), send(story, run, "b")
    story.crash()

    again = send(story, run, "a")

    assert (again.position, again.retained, again.is_same) == (1, True, True)
    assert (again.command_id, again.run_id) == (first.command_id, run.run_id)
    assert other.position == 2
    assert len(story.runs[run.run_id].inbox) == 2


def test_another_message_under_a_used_id_is_told_apart_and_not_taken(
    story: Story, run: Run
) -> None:
    send(story, run, "a")

    again = send(story, run, "a", arguments=b'{"codec":"avro","blob":"AAAA"}')

    assert (again.position, again.retained, again.is_same) == (1, True, False)
    assert len(run.inbox) == 1


def test_a_repeated_message_is_answered_after_the_end(story: Story, run: Run) -> None:
    send(story, run, "a")
    work(story, run, waiting_for(0), waits={"orders": 0})
    work(story, run, complete_run(), read={"orders": 1})

    assert send(story, run, "a").position == 1
    with story.refused(RunNotActive):
        send(story, run, "b")


# What the code sees -----------------------------------------------------------------------------


def test_a_message_reaches_the_code_as_a_signal_of_the_reserved_name(
    story: Story, run: Run
) -> None:
    work(story, run, waiting_for(0), waits={"orders": 0})

    taken = send(story, run, "a")

    told = story.last(run)
    assert (told["signal_name"], told["workflow_command_id"]) == (MESSAGE_SIGNAL, taken.command_id)
    assert opened(told) == {
        "schema": "durable-workflow.v2.message-stream.message",
        "stream_name": "orders",
        "message_id": "a",
        "position": 1,
        "payload_envelope": msgspec.json.decode(ARGUMENTS),
    }
    assert run.task is not None


def test_messages_are_handed_over_one_wake_up_at_a_time(story: Story, run: Run) -> None:
    for message_id in "abc":
        send(story, run, message_id)
    work(story, run, waiting_for(0), waits={"orders": 0})
    assert messages(story, run) == [("a", 1)]

    work(story, run, waiting_for(1), read={"orders": 1}, waits={"orders": 1})
    assert messages(story, run) == [("a", 1), ("b", 2)]


def test_beside_other_work_messages_are_recorded_and_wake_no_worker(story: Story, run: Run) -> None:
    work(story, run, activity())
    send(story, run, "a")
    send(story, run, "b")

    assert messages(story, run) == [("a", 1), ("b", 2)]
    assert run.task is None
    story.crash()
    kept = story.runs[run.run_id]
    assert (len(kept.inbox), [m.message_id for m in kept.unread.values()]) == (0, ["a", "b"])


def test_what_the_code_has_read_is_let_go(story: Story, run: Run) -> None:
    work(story, run, activity())
    for message_id in "abc":
        send(story, run, message_id)
    send(story, run, "n", "notes")
    story.do_activity(run, 1)

    work(story, run, timer(5), read={"orders": 2})

    assert [m.message_id for m in run.unread.values()] == ["c", "n"]
    assert (run.streams["orders"].last, run.streams["orders"].cursor) == (3, 2)
    story.crash()
    assert [m.message_id for m in story.runs[run.run_id].unread.values()] == ["c", "n"]


def test_a_cursor_never_goes_back(story: Story, run: Run) -> None:
    work(story, run, activity())
    send(story, run, "a")
    story.do_activity(run, 1)
    work(story, run, timer(1), read={"orders": 1})
    story.later(seconds=1)

    work(story, run, timer(1), read={"orders": 0})

    assert run.streams["orders"].cursor == 1


@pytest.mark.parametrize("read", [{"orders": 2}, {"nobody": 1}])
def test_a_cursor_beyond_the_last_message_is_refused(
    story: Story, run: Run, read: dict[str, int]
) -> None:
    send(story, run, "a")
    story.lease(run)

    with story.refused(InvalidCommands):
        complete(story, run, timer(1), read=read)


def test_a_question_sees_messages_that_still_wait(story: Story, run: Run) -> None:
    send(story, run, "a")

    (shown,) = show_waiting_signals(run)

    event = event_of(shown)
    assert (event.event_type, opened(event.payload)["message_id"]) == ("SignalReceived", "a")


def test_a_run_says_which_message_it_waits_for(story: Story, run: Run) -> None:
    work(story, run, waiting_for(0), waits={"orders": 0})

    cause = next_cause(run)

    assert cause is not None
    assert (cause.kind, cause.name) == ("message_stream", "orders")
    assert cause.text == "waits for a message of stream orders behind position 0"


def test_a_condition_that_only_looks_like_a_stream_is_a_condition(story: Story, run: Run) -> None:
    work(story, run, waiting_for(0))

    cause = next_cause(run)

    assert cause is not None
    assert cause.kind == "condition"


# The next run -----------------------------------------------------------------------------------


def test_the_next_run_begins_where_the_code_stopped_reading(story: Story, run: Run) -> None:
    work(story, run, activity())
    for message_id in "abcd":
        send(story, run, message_id)
    story.do_activity(run, 1)
    story.lease(run)
    send(story, run, "e")
    story.signal(run, "hello")
    complete(story, run, continue_as_new(), read={"orders": 2})
    following = story.runs[cast(str, run.continued_to_run_id)]

    assert story.types(following) == ["WorkflowStarted", "SignalReceived"]
    assert messages(story, following) == [("cursor", 2)]
    work(story, following, activity())
    assert messages(story, following) == [("cursor", 2), ("c", 3), ("d", 4), ("e", 5)]
    assert story.last(following)["signal_name"] == "hello"
    assert send(story, following, "f").position == 6
    assert (run.inbox, run.unread) == ({}, {})


def test_an_unread_stream_has_no_cursor_in_the_next_run(story: Story, run: Run) -> None:
    send(story, run, "a")
    work(story, run, continue_as_new())
    following = story.runs[cast(str, run.continued_to_run_id)]

    assert story.types(following) == ["WorkflowStarted"]
    work(story, following, waiting_for(0), waits={"orders": 0})
    assert messages(story, following) == [("a", 1)]


def test_a_child_that_is_tried_again_keeps_its_messages(story: Story, run: Run) -> None:
    work(story, run, child(retry=RetryPolicy(attempts_max=2)))
    (first,) = [it for it in story.runs.values() if it is not run]
    work(story, first, activity())
    for message_id in "ab":
        send(story, first, message_id)
    story.do_activity(first, 1)
    work(story, first, fail_run(), read={"orders": 1})

    (again,) = [it for it in story.runs.values() if it is not run and it is not first]
    work(story, again, activity())
    assert messages(story, again) == [("cursor", 1), ("b", 2)]
    assert send(story, again, "c").position == 3


def test_an_undelivered_message_is_rejected_by_the_close(story: Story, run: Run) -> None:
    story.lease(run)
    sent = send(story, run, "a")
    story.complete(run, complete_run())

    told = story.last(run, "SignalRejected")
    assert told["workflow_command_id"] == sent.command_id
    assert told["signal_name"] == MESSAGE_SIGNAL
    with story.refused(RunNotActive):
        send(story, run, "a")


def test_a_child_that_is_tried_again_has_accepted_what_it_rejected(story: Story, run: Run) -> None:
    work(story, run, child(retry=RetryPolicy(attempts_max=2)))
    (first,) = [it for it in story.runs.values() if it is not run]
    story.lease(first)
    send(story, first, "a")
    complete(story, first, fail_run())
    assert "SignalRejected" in story.types(first)

    assert send(story, first, "a").retained


# Bounds -----------------------------------------------------------------------------------------


def test_the_number_of_unread_messages_has_a_bound(
    story: Story, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PENDING_MESSAGES_MAX", 3)
    work(story, run, activity())
    for message_id in "abc":
        send(story, run, message_id)

    with story.refused(InboxFull) as refused:
        send(story, run, "d")
    assert refused.value.details["limit_kind"] == "pending_message_count"
    story.signal(run, "still")


def test_the_bytes_of_unread_messages_have_a_bound(
    story: Story, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PENDING_MESSAGES_BYTES_MAX", 2 * len(ARGUMENTS))
    send(story, run, "a")
    work(story, run, activity())
    send(story, run, "b")

    with story.refused(InboxFull) as refused:
        send(story, run, "c")
    assert refused.value.details["limit_kind"] == "pending_message_bytes"
    story.do_activity(run, 1)
    work(story, run, timer(1), read={"orders": 1})
    send(story, run, "c")


def test_a_run_has_so_many_streams(story: Story, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_STREAMS_MAX", 2)
    send(story, run, "a", "one")
    send(story, run, "a", "two")

    with story.refused(StructuralLimitExceeded) as refused:
        send(story, run, "a", "three")
    assert refused.value.details["limit_kind"] == "message_stream_count"
    send(story, run, "b", "two")


# A run that continues a failed one ----------------------------------------------------------------


def test_a_redriven_run_reads_its_streams_anew_and_goes_on(story: Story, run: Run) -> None:
    work(story, run, activity())
    send(story, run, "a")
    send(story, run, "b")
    story.do_activity(run, 1)
    work(story, run, activity(), read={"orders": 1})
    send(story, run, "c")
    story.fail_activity(run, story.lease_activity(run, 2).sequence)
    story.lease(run)
    send(story, run, "d")
    complete(story, run, fail_run())
    ctx = Context(story.clock.now(), IdSource(story.clock.now, 7))

    again = redrive(run, ctx, read_prefix(run.run_id, list(run.events)))

    assert [m.message_id for m in again.unread.values()] == ["a", "b"]
    assert [getattr(m, "message_id", None) for m in again.inbox.values()] == ["c", "d"]
    assert (again.streams["orders"].last, again.streams["orders"].cursor) == (4, 0)

"""Opening runs: what is recorded, when the first task comes, and in which frame input is read."""

from typing import Any

import msgspec
import pytest

from perdure.core.limits import SECOND
from perdure.core.payload import Frame, decode
from perdure.core.rejection import DuplicateNotAllowed
from perdure.core.run.lease import TaskState
from perdure.core.run.state import WORKFLOW_TASK, Run
from perdure.core.run.status import RunStatus
from tests.support.clock import START
from tests.support.commands import ARGUMENTS, complete_run
from tests.support.rule_harness import SDK_0_4, SDK_2, Story


def test_a_start_records_its_acceptance_and_then_the_start_itself(story: Story) -> None:
    run = story.start(
        business_key="customer-7",
        memo={"note": "gift"},
        search_attributes={"region": "north"},
        execution_timeout_seconds=3600,
        run_timeout_seconds=600,
    )

    accepted, started = story.history(run)
    assert (accepted.event_type, started.event_type) == ("StartAccepted", "WorkflowStarted")
    assert accepted.payload == {
        "workflow_command_id": started.payload["workflow_command_id"],
        "workflow_instance_id": "order-1",
        "workflow_run_id": run.run_id,
        "workflow_type": "order",
        "outcome": "started_new",
    }
    assert started.payload == {
        "workflow_command_id": accepted.payload["workflow_command_id"],
        "workflow_type": "order",
        "workflow_instance_id": "order-1",
        "workflow_run_id": run.run_id,
        "timestamp": "2026-01-01T00:00:00.000000Z",
        "payload_codec": "avro",
        "input": msgspec.json.decode(ARGUMENTS),
        "business_key": "customer-7",
        "memo": {"note": "gift"},
        "search_attributes": {"region": "north"},
        "execution_timeout_seconds": 3600,
        "run_timeout_seconds": 600,
        "execution_deadline_at": "2026-01-01T01:00:00.000000Z",
        "run_deadline_at": "2026-01-01T00:10:00.000000Z",
    }


def test_an_event_carries_its_place_its_instant_and_its_namespace(story: Story) -> None:
    run = story.start()

    first = msgspec.json.decode(run.events[0])
    assert list(first) == [
        "id", "sequence", "event_type", "recorded_at", "timestamp", "namespace", "payload",
    ]  # fmt: skip
    assert first["recorded_at"] == first["timestamp"] == "2026-01-01T00:00:00.000000Z"
    assert first["namespace"] == "default"
    assert first["id"] != story.history(run)[1].id


def test_a_new_run_is_pending_with_one_ready_task(story: Story) -> None:
    run = story.start()

    assert run.status is RunStatus.PENDING
    assert run.task is not None
    assert (run.task.number, run.task.state, run.task.attempt) == (1, TaskState.READY, 0)
    assert story.disk.ready[run.run_id] == {WORKFLOW_TASK}
    assert run.due_at is None


def test_a_second_start_of_an_id_is_refused(story: Story) -> None:
    run = story.start()

    with story.refused(DuplicateNotAllowed) as caught:
        story.start()
    assert caught.value.details["run_id"] == run.run_id


def test_a_delayed_start_shows_its_task_when_the_delay_is_over(story: Story) -> None:
    run = story.start(start_delay_seconds=90)

    assert run.task is not None
    assert run.task.state is TaskState.DELAYED
    assert not story.disk.ready[run.run_id]
    assert story.disk.due_at[run.run_id] == START + 90 * SECOND

    story.later(seconds=89)
    assert not story.disk.ready[run.run_id]

    story.later(seconds=1)
    assert story.disk.ready[run.run_id] == {WORKFLOW_TASK}
    story.work(run, complete_run())
    assert run.status is RunStatus.COMPLETED


def test_a_delayed_run_is_timed_from_when_its_code_may_begin(story: Story) -> None:
    """A run that was to begin in an hour and might take ten minutes was dead before it began."""
    run = story.start(
        start_delay_seconds=3600, run_timeout_seconds=600, execution_timeout_seconds=900
    )

    assert run.run_deadline_at == START + 4200 * SECOND
    assert run.execution_deadline_at == START + 4500 * SECOND
    assert story.last(run)["run_deadline_at"] == "2026-01-01T01:10:00.000000Z"
    story.later(seconds=4199)
    assert not run.is_closed
    story.later(seconds=1)
    assert run.closed_reason == "timed_out"


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        (b'["a",1]', ["a", 1]),
        (b'{"first":"a","second":{"b":2}}', ["a", {"b": 2}]),
        (b"null", []),
        (None, []),
    ],
    ids=["a list is the arguments", "an object gives its values", "null is empty", "so is nothing"],
)
@pytest.mark.parametrize(
    ("sdk_version", "frame"), [(SDK_2, Frame.VALUE), (SDK_0_4, Frame.WRAPPER)], ids=["2.x", "0.4"]
)
def test_plain_input_is_framed_for_the_first_worker_that_reads_it(
    story: Story, plain: bytes | None, expected: list[Any], sdk_version: str, frame: Frame
) -> None:
    run = story.start(plain=plain)
    before = [event.id for event in story.history(run)]

    story.lease(run, sdk_version=sdk_version)

    assert run.frame == frame.value
    assert _opened(run.arguments) == expected
    assert story.last(run, "WorkflowStarted")["input"] == msgspec.json.decode(run.arguments)
    assert [event.id for event in story.history(run)] == before
    assert run.history_bytes == sum(map(len, run.events))


def test_reframed_input_is_what_the_disk_has(story: Story) -> None:
    run_id = story.start(plain=b'["a"]').run_id
    story.crash()
    story.lease(story.runs[run_id], sdk_version=SDK_0_4)
    framed = story.runs[run_id].arguments

    story.crash()

    assert story.runs[run_id].arguments == framed
    assert _opened(framed) == ["a"]


def test_a_run_that_is_taken_in_the_beat_of_its_start_is_written_in_its_frame(
    story: Story,
) -> None:
    story.hold()
    run = story.start(plain=b'["a"]')
    story.lease(run, sdk_version=SDK_0_4)
    story.commit()

    story.crash()

    loaded = story.runs[run.run_id]
    assert loaded.frame == Frame.WRAPPER.value
    assert _opened(loaded.arguments) == ["a"]
    assert story.disk.ready[run.run_id] == set()


def test_input_is_framed_once_and_for_all(story: Story) -> None:
    run = story.start(plain=b"[1]")
    story.lease(run, sdk_version=SDK_2)
    arguments = run.arguments
    story.later(seconds=61)

    story.lease(run, sdk_version=SDK_0_4)

    assert (run.arguments, run.frame) == (arguments, "value")


def test_payloads_of_a_start_are_carried_as_they_came(story: Story) -> None:
    odd = b'{"codec":"avro","external_payload":{"reference":"r-1"}}'
    run = story.start(arguments=odd)

    story.lease(run, sdk_version=SDK_0_4)

    assert run.arguments == odd
    assert story.last(run, "WorkflowStarted")["input"] == msgspec.json.decode(odd)


def _opened(arguments: bytes) -> Any:
    return decode(msgspec.json.decode(arguments)["blob"])


def test_starting_leaves_the_request_alone(story: Story) -> None:
    """An operation may be decided again after a failed commit."""
    remembered = {"note": "gift"}
    run: Run = story.start(memo=remembered)
    run.memo = {**run.memo, "more": 1}

    assert remembered == {"note": "gift"}

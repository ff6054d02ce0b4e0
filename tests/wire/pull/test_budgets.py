"""What workers and people are told before a bound is reached."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core.bounds import Bounds
from tests.support.http import (
    Json,
    Wire,
    a_wire,
    avro,
    complete_update,
    complete_workflow,
    contract_of,
    schedule_activity,
    start_child,
    start_timer,
    wait_for_condition,
)

EFFECT = {"type": "record_side_effect", "result": avro("x")}
MEMBERS = (
    "total_history_events",
    "history_size_bytes",
    "history_fan_out",
    "continue_as_new_recommended",
    "history_budget_pressure",
    "history_budget_pressure_dimensions",
)


@pytest.fixture
def wire(wire_settings: dict[str, Any], tmp_path: Path) -> Iterator[Wire]:
    """A server that wants histories to be continued at 20 events, and says so from 16 on."""
    bounds = Bounds(
        continue_as_new_events=20,
        pending_activities_max=5,
        pending_children_max=5,
        pending_signals_max=5,
        pending_updates_max=5,
    )
    with a_wire(tmp_path, bounds=bounds, **wire_settings) as wire:
        yield wire


def budget(told: Json) -> Json:
    return {name: told[name] for name in MEMBERS}


def pressure(told: Json) -> tuple[str, list[str], bool]:
    return (
        told["history_budget_pressure"],
        told["history_budget_pressure_dimensions"],
        told["continue_as_new_recommended"],
    )


OK: tuple[str, list[str], bool] = ("ok", [], False)


def size_on_disk(wire: Wire, run_id: str) -> tuple[int, int]:
    events = wire.run(wire.server.store.read_history(run_id, 0, 10_000))
    return len(events), sum(map(len, events))


def grow(wire: Wire, events: int) -> Json:
    """The next task of the run, whose history has so many events; it waits for signals."""
    task = wire.take()
    wire.complete(
        task, *[EFFECT] * (events - task["total_history_events"] - 2), wait_for_condition()
    )
    wire.signal("go")
    grown = wire.take()
    assert grown["total_history_events"] == events
    return grown


def give_back(wire: Wire, task: Json) -> None:
    """The code waits again; the same task comes with the next signal."""
    wire.report(task, "fail", failure={"message": "later"}).ok()
    wire.advance(seconds=61)


# Workers ----------------------------------------------------------------------------------------


def test_a_task_tells_how_large_its_history_is(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    count, size = size_on_disk(wire, task["run_id"])

    assert budget(task) == {
        "total_history_events": count,
        "history_size_bytes": size,
        "history_fan_out": 0,
        "continue_as_new_recommended": False,
        "history_budget_pressure": "ok",
        "history_budget_pressure_dimensions": [],
    }
    assert task["last_history_sequence"] == count


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (15, OK),
        (16, ("approaching", ["events"], False)),
        (19, ("approaching", ["events"], False)),
        (20, ("continue_as_new_recommended", ["events"], True)),
    ],
)
def test_a_worker_is_told_when_to_continue_as_new(
    wire: Wire, events: int, told: tuple[str, list[str], bool]
) -> None:
    wire.register()
    wire.start()

    task = grow(wire, events)

    assert pressure(task) == told
    assert task["history_fan_out"] == 1, "the condition"
    for token in ("MA==", task["next_history_page_token"] or "MQ=="):
        page = wire.report(task, "history", next_history_page_token=token).ok()
        assert budget(page) == budget(task)
    assert budget(wire.describe()) == budget(task)


def test_a_run_that_continued_begins_anew(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = grow(wire, 20)

    wire.complete(task, {"type": "continue_as_new", "arguments": avro([])})

    assert pressure(wire.take()) == OK


def test_a_task_that_comes_again_tells_the_same(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = grow(wire, 16)
    give_back(wire, task)

    again = wire.take(poll_request_id="p1")

    assert budget(again) == budget(task)
    assert budget(wire.take(poll_request_id="p1")) == budget(task)


def test_a_history_is_measured_in_bytes_too(wire_settings: dict[str, Any], tmp_path: Path) -> None:
    with a_wire(tmp_path, bounds=Bounds(continue_as_new_bytes=20_000), **wire_settings) as wire:
        wire.register()
        wire.start()
        assert pressure(wire.take()) == OK
        wire.advance(seconds=61)
        wire.complete(
            wire.take(),
            {"type": "record_side_effect", "result": avro("x" * 12_000)},
            wait_for_condition(),
        )
        wire.signal("go")

        task = wire.take()
        assert 16_000 <= task["history_size_bytes"] < 20_000
        assert pressure(task) == ("approaching", ["size_bytes"], False)
        wire.complete(
            task, {"type": "record_side_effect", "result": avro("x" * 4_000)}, wait_for_condition()
        )
        wire.signal("go")

        task = wire.take()
        assert task["history_size_bytes"] == size_on_disk(wire, task["run_id"])[1] > 20_000
        assert pressure(task) == ("continue_as_new_recommended", ["size_bytes"], True)


@pytest.mark.parametrize(
    ("open_steps", "told"),
    [
        (159, OK),
        (160, ("approaching", ["fan_out"], False)),
        (200, ("continue_as_new_recommended", ["fan_out"], True)),
    ],
)
def test_a_history_is_measured_by_what_is_open(
    wire_settings: dict[str, Any],
    tmp_path: Path,
    open_steps: int,
    told: tuple[str, list[str], bool],
) -> None:
    with a_wire(tmp_path, **wire_settings) as wire:
        wire.register()
        wire.run_to(*[start_timer(60)] * open_steps)
        wire.update("add").ok(202)

        task = wire.take()

        assert task["history_fan_out"] == open_steps
        assert pressure(task) == told
        assert budget(wire.describe()) == budget(task)


def test_a_validation_tells_how_large_the_history_is(wire: Wire) -> None:
    wire.register_validator()
    wire.start()
    wire.complete(wire.take(), *[EFFECT] * 13, wait_for_condition())
    wire.update_later("add", input=avro([1]))

    task = wire.take_validation()

    assert (task["total_history_events"], task["history_fan_out"]) == (16, 1)
    assert pressure(task) == ("approaching", ["events"], False)


def test_a_history_that_is_on_disk_only_is_measured_the_same(wire: Wire) -> None:
    wire.register()
    wire.start()
    before = budget(grow(wire, 20))

    wire.restart()
    wire.advance(seconds=61)

    task = wire.take()
    assert budget(task) == before
    page = wire.report(task, "history", next_history_page_token="MA==").ok()
    assert budget(page) == before


# People -----------------------------------------------------------------------------------------


def test_a_closed_run_is_under_no_pressure(wire: Wire) -> None:
    wire.register()
    wire.start()
    wire.complete(grow(wire, 20), complete_workflow())

    told = wire.describe()

    assert (told["total_history_events"], told["history_events"]) == (22, 22)
    assert told["history_size_bytes"] == told["history_bytes"]
    assert pressure(told) == OK
    assert told["limits_near"] == []


def near(wire: Wire) -> list[tuple[str, int, int]]:
    told = wire.describe()["limits_near"]
    assert all(set(each) == {"limit_kind", "current_value", "configured_limit"} for each in told)
    return [(each["limit_kind"], each["current_value"], each["configured_limit"]) for each in told]


def test_describe_tells_which_steps_are_near_to_their_bound(wire: Wire) -> None:
    wire.register()
    wire.start()
    assert near(wire) == []

    wire.complete(wire.take(), *[schedule_activity()] * 3, *[start_child()] * 5)

    assert near(wire) == [("pending_child_count", 5, 5)]


def test_describe_tells_which_messages_are_near_to_their_bound(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition())
    for _ in range(4):
        wire.update("add").ok(202)
    for _ in range(3):
        wire.signal("go")
    assert near(wire) == [("pending_update_count", 4, 5)]

    wire.signal("go")

    assert near(wire) == [("pending_signal_count", 4, 5), ("pending_update_count", 4, 5)]
    task = wire.take()
    wire.complete(task, complete_update(task))
    assert near(wire) == [("pending_signal_count", 4, 5)]


def test_an_update_that_left_the_inbox_from_its_middle_is_not_counted(wire: Wire) -> None:
    contract = contract_of("Order", signals={"go": 0}, updates={"add": 0}, validators=["add"])
    able = ["update_validation_tasks"]
    wire.register(workflow_command_contracts=contract, capabilities=able)
    wire.start()
    wire.take()
    wire.signal("go")
    update = wire.update_later("add")
    for _ in range(3):
        wire.signal("go")

    wire.advance(seconds=21)

    update.answer().refused(409, "update_validation_task_not_claimed")
    assert near(wire) == [("pending_signal_count", 4, 5)]


def test_describe_tells_messages_of_streams_until_they_are_read(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.core.limits.PENDING_MESSAGES_MAX", 5)
    wire.register()
    wire.start()
    waits = {"message_stream_waits": [{"stream_name": "orders", "after_position": 0}]}
    wire.report(wire.take(), "complete", commands=[wait_for_condition()], **waits).ok()
    for number in range(4):
        body = {"message_id": f"m{number}", "input": avro([number])}
        wire.control("POST", "/workflows/order-1/message-streams/orders/messages", body).ok(202)
    assert near(wire) == [("pending_message_count", 4, 5)]

    task = wire.take()
    assert near(wire) == [("pending_message_count", 4, 5)], "handed over, and not read"
    read = {"message_stream_cursors": [{"stream_name": "orders", "through_position": 1}]}
    wire.report(task, "complete", commands=[wait_for_condition("more")], **read).ok()

    assert near(wire) == []

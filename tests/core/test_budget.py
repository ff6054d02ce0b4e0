"""How near a run is to its bounds, and when its code is advised to continue as new."""

import pytest

from perdure.core.bounds import Bounds, Reached
from perdure.core.run.history_budget import (
    Budget,
    HistoryBudget,
    HistorySize,
    Pressure,
    history_size,
)
from perdure.core.run.inbox import MessageStream
from perdure.core.run.limit_warnings import Unread, near_limits
from perdure.core.run.state import Run
from tests.support.commands import (
    activity,
    attributes,
    child,
    complete_run,
    condition,
    in_selection,
    memo,
    side_effect,
    timer,
)
from tests.support.rule_harness import Story

MIB = 1_048_576


@pytest.fixture
def run(story: Story) -> Run:
    return story.start()


# The budget of a history ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "pressure", "dimensions"),
    [
        ((0, 0, 0), "ok", ()),
        ((7_999, 4 * MIB - 1, 159), "ok", ()),
        ((8_000, 0, 0), "approaching", ("events",)),
        ((0, 4 * MIB, 0), "approaching", ("size_bytes",)),
        ((0, 0, 160), "approaching", ("fan_out",)),
        ((9_999, 5 * MIB - 1, 199), "approaching", ("events", "size_bytes", "fan_out")),
        ((10_000, 0, 0), "continue_as_new_recommended", ("events",)),
        ((0, 5 * MIB, 0), "continue_as_new_recommended", ("size_bytes",)),
        ((0, 0, 200), "continue_as_new_recommended", ("fan_out",)),
        ((8_000, 0, 200), "continue_as_new_recommended", ("events", "fan_out")),
    ],
)
def test_a_history_presses_from_four_fifths_of_where_it_should_be_continued(
    size: tuple[int, int, int], pressure: str, dimensions: tuple[str, ...]
) -> None:
    spent = pressure == "continue_as_new_recommended"

    told = HistoryBudget(Bounds()).of(HistorySize(*size))

    assert told == Budget(Pressure(pressure), dimensions, spent)


def test_thresholds_and_the_warning_can_be_chosen() -> None:
    budget = HistoryBudget(
        Bounds(continue_as_new_events=100, continue_as_new_bytes=1_000, warning_percent=50)
    )

    assert budget.of(HistorySize(49, 499, 99)).pressure is Pressure.OK
    assert budget.of(HistorySize(50, 500, 100)).dimensions == ("events", "size_bytes", "fan_out")
    assert budget.of(HistorySize(50, 500, 100)).pressure is Pressure.APPROACHING
    assert budget.of(HistorySize(100, 0, 0)).is_spent
    assert budget.of(HistorySize(0, 1_000, 0)).is_spent


def test_code_is_told_to_continue_before_its_history_is_at_its_end() -> None:
    """An operator who lowers only the bound of histories does not lose runs by it."""
    budget = HistoryBudget(Bounds(history_events_max=1_000))

    assert budget.of(HistorySize(639, 0, 0)).pressure is Pressure.OK
    assert budget.of(HistorySize(640, 0, 0)).pressure is Pressure.APPROACHING
    assert budget.of(HistorySize(800, 0, 0)).is_spent


def test_the_fan_out_of_a_run_is_what_it_holds_open(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"a": activity(), "b": child(), "clock": timer(9)}))
    assert history_size(run) == HistorySize(run.history_count, run.history_bytes, 3)

    story.do_activity(run, 1)
    story.lease(run)
    assert history_size(run).fan_out == 2
    story.complete(run, condition())
    assert history_size(run).fan_out == 3


# Bounds that a run is near to -------------------------------------------------------------------


@pytest.mark.parametrize(("percent", "least"), [(80, 8), (1, 1), (100, 10), (75, 8)])
def test_a_bound_is_near_from_so_many_per_cent_on(percent: int, least: int) -> None:
    assert Bounds(warning_percent=percent).warns_from(10) == least


def test_a_new_run_is_near_to_nothing(run: Run) -> None:
    assert near_limits(run, Bounds(), Unread()) == []


def test_steps_are_told_by_their_kind(story: Story, run: Run) -> None:
    bounds = Bounds(pending_activities_max=5, pending_children_max=2, pending_timers_max=5)
    story.work(run, *[activity()] * 4, *[child()] * 2, *[timer(1)] * 3)

    assert near_limits(run, bounds, Unread()) == [
        Reached("pending_activity_count", 4, 5),
        Reached("pending_child_count", 2, 2),
    ]


def test_what_lies_in_the_row_is_told(story: Story, run: Run) -> None:
    story.work(run, memo(a="x" * 80), attributes(a="y" * 80, b=1), side_effect(), condition())
    bounds = Bounds(
        memo_bytes_max=100,
        search_attributes_max=2,
        search_attributes_bytes_max=100,
        history_events_max=run.history_count,
    )

    assert near_limits(run, bounds, Unread()) == [
        Reached("memo_size", len(b'{"a":""}') + 80, 100),
        Reached("search_attribute_count", 2, 2),
        Reached("search_attribute_size", len(b'{"a":"","b":1}') + 80, 100),
        Reached("history_event_count", run.history_count, run.history_count),
    ]


def test_messages_are_counted_as_they_are_where_they_are_refused(story: Story, run: Run) -> None:
    """Updates share the inbox with signals, and have a bound of their own."""
    story.work(run, condition())
    for _ in range(4):
        story.update(run)
    story.signal(run)
    story.signal(run)
    bounds = Bounds(pending_signals_max=2, pending_updates_max=5)

    told = near_limits(run, bounds, Unread(len(run.inbox)))

    assert told == [Reached("pending_signal_count", 2, 2), Reached("pending_update_count", 4, 5)]
    assert near_limits(run, bounds, Unread()) == [Reached("pending_update_count", 4, 5)]


def test_messages_of_streams_are_told_until_they_are_read(run: Run) -> None:
    run.streams = {f"s{number}": MessageStream() for number in range(80)}

    assert near_limits(run, Bounds(), Unread(1_000, 3_000)) == [
        Reached("pending_message_count", 4_000, 5_000),
        Reached("message_stream_count", 80, 100),
    ]


def test_a_closed_run_is_near_to_nothing(story: Story, run: Run) -> None:
    story.work(run, complete_run())

    assert near_limits(run, Bounds(history_events_max=run.history_count), Unread()) == []

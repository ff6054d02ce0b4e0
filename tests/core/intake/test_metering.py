"""What a workflow used up in a window, and when there is room again."""

import pytest

from perdure.core import limits
from perdure.core.intake.usage_log import (
    UseLog,
    charge,
    crosses_warning,
    end_paced,
    forgotten_at,
    free_at,
    in_words,
    settle_paced,
    start_paced,
    used,
)
from perdure.core.push.usage import SUM_MAX, billionths
from perdure.core.run.push import Meter, Meters

WINDOW = 512_000
GRAIN = 1_000
EMPTY = UseLog(app="shop", workflow="write", policy="budget")


def a_log(*uses: tuple[int, int]) -> UseLog:
    log = EMPTY
    for now, tokens in uses:
        log = charge(log, WINDOW, now, tokens=tokens, cost=tokens)
    return log


def test_what_is_used_counts_for_a_window_and_at_most_a_grain_longer() -> None:
    log = a_log((GRAIN * 5 + 1, 7))

    assert used(log, WINDOW, GRAIN * 5 + 1) == (7, 7)
    assert used(log, WINDOW, GRAIN * 5 + WINDOW) == (7, 7)
    assert used(log, WINDOW, GRAIN * 6 + WINDOW) == (0, 0)


def test_a_log_is_as_long_as_its_window_has_grains() -> None:
    log = a_log(*((now * 10, 1) for now in range(3 * WINDOW // 10)))

    assert len(log.entries) <= limits.METER_ENTRIES_MAX + 1
    assert used(log, WINDOW, 3 * WINDOW)[0] >= WINDOW // 10 - 1


def test_there_is_room_when_enough_has_left_the_window() -> None:
    log = a_log((GRAIN, 60), (GRAIN * 50, 30), (GRAIN * 100, 30))
    meter = Meter(key="k", window=WINDOW, tokens=100)

    now = GRAIN * 101
    assert free_at(log, meter, now) == GRAIN + WINDOW
    assert free_at(log, Meter(key="k", window=WINDOW, tokens=50), now) == GRAIN * 50 + WINDOW
    assert free_at(log, Meter(key="k", window=WINDOW, tokens=121), now) == now
    assert free_at(log, Meter(key="k", window=WINDOW, cost=61), now) == GRAIN + WINDOW
    assert free_at(log, Meter(key="k", window=WINDOW), now) == now
    assert free_at(EMPTY, Meter(key="k", window=WINDOW, cost=0), now) is None


def test_sums_stay_small_enough_for_a_row() -> None:
    log = a_log((1, SUM_MAX), (1, SUM_MAX))

    assert used(log, WINDOW, 1) == (SUM_MAX, SUM_MAX)


def test_a_run_is_charged_beforehand_until_it_tells_what_it_used() -> None:
    meters = Meters(pace=Meter(key="k", window=WINDOW, tokens=100))
    log = end_paced(EMPTY, Meters(), 40)
    assert log.typical == 40

    log = start_paced(log, meters, GRAIN)
    assert (used(log, WINDOW, GRAIN)[0], meters.estimated) == (40, 40)
    log = settle_paced(log, meters, GRAIN * 9, 30)
    assert (used(log, WINDOW, GRAIN * 9)[0], meters.estimated) == (40, 10)
    log = settle_paced(log, meters, GRAIN * 10, 30)
    assert (used(log, WINDOW, GRAIN * 10)[0], meters.estimated) == (60, 0)
    # What was used counts from when it was used, not from the start.
    assert used(log, WINDOW, GRAIN * 8 + WINDOW)[0] == 60
    log = end_paced(log, meters, 60)
    assert log.typical == 45


def test_what_a_run_does_not_use_is_given_back_when_it_ends() -> None:
    meters = Meters(pace=Meter(key="k", window=WINDOW, tokens=100))
    log = start_paced(end_paced(EMPTY, Meters(), 40), meters, GRAIN)

    log = end_paced(log, meters, 0)

    assert used(log, WINDOW, GRAIN)[0] == 0
    assert log.typical == 30


@pytest.mark.parametrize(
    ("before", "more", "warns"), [(70, 9, False), (70, 10, True), (80, 10, False), (0, 500, True)]
)
def test_people_are_warned_when_a_share_is_reached(before: int, more: int, warns: bool) -> None:
    meter = Meter(key="k", window=WINDOW, tokens=100, warn_at=80)
    log = a_log((GRAIN, before))

    after = charge(log, WINDOW, GRAIN * 2, tokens=more, cost=0)

    assert crosses_warning(after, log, meter, GRAIN * 2) is warns
    assert not crosses_warning(after, log, Meter(key="k", window=WINDOW, tokens=1), GRAIN * 2)


def test_a_budget_is_told_in_words() -> None:
    meter = Meter(key="k", window=WINDOW, tokens=100, cost=billionths(1.5))
    log = charge(EMPTY, WINDOW, GRAIN, tokens=7, cost=billionths(0.25))

    assert in_words(log, meter, GRAIN) == "7 of 100 tokens and a cost of 0.25 of 1.5 in 512 ms"
    assert forgotten_at(log, WINDOW, GRAIN) > GRAIN + WINDOW

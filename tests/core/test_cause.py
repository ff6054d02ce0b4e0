"""Every open run has exactly one next cause, and it is the one that will move the run."""

from collections.abc import Callable

import pytest

from perdure.core.limits import SECOND
from perdure.core.run.cause import next_cause
from perdure.core.run.state import Run
from tests.support.clock import START
from tests.support.commands import (
    activity,
    child,
    complete_run,
    condition,
    in_parallel,
    in_selection,
    retries,
    side_effect,
    signal_wait,
    timer,
)
from tests.support.rule_harness import Story

Scene = Callable[[Story, Run], object]


def _retrying(story: Story, run: Run) -> None:
    story.work(run, activity("charge", retry=retries(3, 10)))
    story.lease_activity(run, 1)
    story.fail_activity(run, 1)


def _leased_activity(story: Story, run: Run) -> None:
    story.work(run, activity("charge"))
    story.lease_activity(run, 1, "w7")


def _failed_task(story: Story, run: Run) -> None:
    story.lease(run)
    story.fail_task(run, "no such module")


def _half_a_list(story: Story, run: Run) -> None:
    story.work(run, timer(5), activity("charge"))
    story.later(seconds=5)


def _half_a_group(story: Story, run: Run) -> None:
    story.work(run, *in_parallel(activity("a"), activity("b")))
    story.do_activity(run, 1)


def _behind_a_loser(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"clock": timer(1), "slow": activity("slow")}))
    story.later(seconds=1)
    story.work(run, timer(60))


def _only_a_loser(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"clock": timer(1), "slow": activity("slow")}))
    story.later(seconds=1)
    story.work(run)


def _gate_beside_a_loser(story: Story, run: Run) -> None:
    story.work(run, *in_selection({"clock": timer(1), "slow": activity("slow")}))
    story.later(seconds=1)
    story.work(run, condition("gate"))


def _selected_conditions(story: Story, run: Run) -> None:
    gates = {"endless": condition("a"), "gate": condition("b", timeout=30), "slow": timer(60)}
    story.work(run, *in_selection(gates))


SCENES: list[tuple[str, Scene, str, str, int | None]] = [
    ("ready", lambda s, r: None, "workflow_task_ready", "no worker of queue orders", None),
    ("leased", lambda s, r: s.lease(r, "w7"), "workflow_task_leased", "worker w7", 60),
    ("failed task", _failed_task, "backoff", "no such module", 1),
    ("ready activity", lambda s, r: s.work(r, activity("charge")), "activity", "is ready", None),
    ("leased activity", _leased_activity, "activity", "worker w7 runs activity charge", 300),
    ("retrying activity", _retrying, "activity", "attempt 2 at", 10),
    ("timer", lambda s, r: s.work(r, timer(90)), "timer", "sleeps until", 90),
    ("child", lambda s, r: s.work(r, child("shipment")), "child", "child shipment", None),
    ("condition", lambda s, r: s.work(r, condition("paid")), "condition", "condition paid", None),
    (
        "condition with an end",
        lambda s, r: s.work(r, condition("paid", timeout=30)),
        "condition",
        "until 2026-01-01T00:00:30",
        30,
    ),
    (
        "nameless condition",
        lambda s, r: s.work(r, condition(None)),
        "condition",
        "a condition",
        None,
    ),
    ("signal", lambda s, r: s.work(r, signal_wait("approve")), "signal", "signal approve", None),
    ("nothing", lambda s, r: s.work(r, side_effect()), "signal", "nothing else is open", None),
    ("half a list", _half_a_list, "activity", "activity charge is ready", None),
    ("half a group", _half_a_group, "activity", "activity b is ready", None),
    ("behind a loser", _behind_a_loser, "timer", "sleeps until", 61),
    ("only a loser", _only_a_loser, "activity", "activity slow is ready", None),
    ("selected conditions", _selected_conditions, "condition", "b until 2026", 30),
    ("a gate beside a loser", _gate_beside_a_loser, "condition", "condition gate", None),
]


@pytest.mark.parametrize(
    ("scene", "kind", "words", "until"),
    [case[1:] for case in SCENES],
    ids=[case[0] for case in SCENES],
)
def test_the_next_cause_says_what_moves_the_run(
    story: Story, scene: Scene, kind: str, words: str, until: int | None
) -> None:
    run = story.start()

    scene(story, run)

    cause = next_cause(run)
    assert cause is not None
    assert cause.kind == kind
    assert words in cause.text
    assert cause.until == (None if until is None else START + until * SECOND)


def test_a_delayed_start_is_not_a_backoff(story: Story) -> None:
    run = story.start(start_delay_seconds=60)

    cause = next_cause(run)
    assert cause is not None
    assert (cause.kind, cause.until) == ("delayed_start", START + 60 * SECOND)


def test_a_closed_run_has_no_cause(story: Story) -> None:
    run = story.start()
    story.work(run, complete_run())

    assert next_cause(run) is None


def test_the_cause_of_a_retry_remembers_the_last_failure(story: Story) -> None:
    run = story.start()
    _retrying(story, run)

    cause = next_cause(run)
    assert cause is not None
    assert (cause.last_failure, cause.attempt) == ("card refused", 1)

"""How many tasks may be leased from a queue: what was said, and what follows from it."""

import pytest

from perdure.core.fleet.quota import (
    MINUTE,
    Allowance,
    Allowances,
    Hold,
    Ledger,
    Quota,
    Scope,
    let_through,
    room,
    throttle_reason,
    without_ended,
)

NOW = 7 * MINUTE + 1
QUOTA = Quota(
    scope=Scope.QUEUE, key="activity/queue/q", name="queue q", leases_max=2, dispatches_max=3
)
A, B, C = Hold("a", 1), Hold("b", 1), Hold("c", 0)


def said(*quotas: Quota) -> list[tuple[str, int | None, int | None]]:
    return [(quota.name, quota.leases_max, quota.dispatches_max) for quota in quotas]


def test_where_nothing_was_said_there_are_no_quotas() -> None:
    assert Allowances().is_empty
    assert Allowances().quotas("n", "q", "activity") == ()
    told = Allowances({"workflow": Allowance(leases_per_queue=2)})
    assert not told.is_empty
    assert told.quotas("n", "q", "activity") == ()
    assert told.quotas("n", "q", "pass") == (), "runners have limits of their own"


def test_a_queue_has_a_gate_for_itself_its_namespace_and_its_group() -> None:
    told = Allowances(
        {"activity": Allowance(leases_per_queue=5, dispatches_per_namespace=60)},
        {"q": {"activity": Allowance(group="bank", dispatches_per_group=9)}},
    )
    assert said(*told.quotas("n", "q", "activity")) == [
        ("queue q", 5, None),
        ("namespace n", None, 60),
        ("group bank", None, 9),
    ]
    assert said(*told.quotas("n", "other", "activity")) == [
        ("queue other", 5, None),
        ("namespace n", None, 60),
    ]


def test_activities_of_sessions_go_through_the_gates_of_activities() -> None:
    told = Allowances({"activity": Allowance(leases_per_queue=5)})
    assert told.quotas("n", "q", "session") == told.quotas("n", "q", "activity")


@pytest.mark.parametrize(
    ("namespace", "queue", "leases"),
    [("n", "q", 1), ("n", "other", 2), ("m", "q", 3), ("m", "other", 4)],
)
def test_the_narrowest_word_counts(namespace: str, queue: str, leases: int) -> None:
    words = {
        pattern: {"activity": Allowance(leases_per_queue=number)}
        for number, pattern in enumerate(["n:q", "n:*", "q", "*"], start=1)
    }
    told = Allowances({"activity": Allowance(leases_per_queue=9)}, words)
    assert said(*told.quotas(namespace, queue, "activity")) == [(f"queue {queue}", leases, None)]


def test_each_member_is_found_for_itself_and_a_word_may_be_that_there_is_no_limit() -> None:
    told = Allowances(
        {"activity": Allowance(leases_per_queue=9, dispatches_per_queue=90)},
        {
            "n:q": {"activity": Allowance(leases_per_queue=None)},
            "q": {"activity": Allowance(leases_per_queue=1, dispatches_per_queue=10)},
            "free": {"activity": Allowance(leases_per_queue=None, dispatches_per_queue=None)},
        },
    )
    assert said(*told.quotas("n", "q", "activity")) == [("queue q", None, 10)]
    assert told.quotas("n", "free", "activity") == ()


def test_a_gate_has_room_until_as_many_are_held() -> None:
    quota = Quota(scope=Scope.QUEUE, key="k", name="queue q", leases_max=2)
    ledger = let_through(quota, Ledger(), NOW, A)
    assert room(quota, ledger, NOW) == 1
    ledger = let_through(quota, ledger, NOW, B)
    assert room(quota, ledger, NOW) == 0
    assert room(quota, ledger, NOW + 100 * MINUTE) == 0, "time alone ends no lease"
    assert throttle_reason(quota, ledger, NOW) == "queue q has 2 leases, its maximum"
    assert room(quota, without_ended(ledger, {B}), NOW) == 1


def test_a_task_that_is_leased_again_is_held_once() -> None:
    quota = Quota(scope=Scope.QUEUE, key="k", name="queue q", leases_max=2)
    ledger = let_through(quota, let_through(quota, Ledger(), NOW, A), NOW, A)
    assert ledger.holds == (A,)
    assert ledger.count == 2, "it was dispatched twice"


def test_what_was_dispatched_counts_until_the_minute_is_over() -> None:
    quota = Quota(scope=Scope.QUEUE, key="k", name="group bank", dispatches_max=2)
    ledger = Ledger()
    for hold in (A, B):
        ledger = let_through(quota, ledger, NOW, hold)
    assert ledger.holds == (), "where leases are not counted, nobody remembers them"
    assert room(quota, ledger, NOW) == 0
    assert throttle_reason(quota, ledger, NOW) == "group bank has leased its 2 tasks of this minute"
    assert room(quota, ledger, 8 * MINUTE - 1) == 0
    assert room(quota, ledger, 8 * MINUTE) == 2
    assert let_through(quota, ledger, 8 * MINUTE, C).count == 1


def test_the_tighter_bound_of_a_gate_counts() -> None:
    ledger = Ledger()
    for hold in (A, B):
        ledger = let_through(QUOTA, ledger, NOW, hold)
    assert room(QUOTA, without_ended(ledger, ()), NOW) == 1, "one more in this minute"
    assert room(QUOTA, ledger, NOW + MINUTE) == 0, "both are still held"


def test_a_limit_that_was_lowered_lets_nobody_through_until_enough_have_ended() -> None:
    lower = Quota(scope=Scope.QUEUE, key="k", name="queue q", leases_max=1)
    assert room(lower, Ledger(holds=(A, B)), NOW) == 0
    assert room(lower, Ledger(holds=(A,)), NOW) == 0
    assert room(lower, Ledger(), NOW) == 1

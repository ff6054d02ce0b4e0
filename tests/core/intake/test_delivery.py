"""Outgoing webhooks: which tries there are, when, and how they end."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import limits
from perdure.features.webhooks.rules import (
    ATTEMPTS_MAX,
    DELAYS,
    Attempt,
    Delivery,
    Outcome,
    begin,
    conclude,
    headers_of,
    message,
    opened,
    redeliver,
)

NOW = 1_700_000_000_000_000


def fresh() -> Delivery:
    return opened("d1", app="shop", url="https://x", kind="custom", body=b"{}", now=NOW)


def tried(delivery: Delivery, outcome: Outcome = "http_error", code: int | None = None) -> Delivery:
    assert delivery.due_at is not None
    now = delivery.due_at
    begun = begin(delivery, now)
    assert begun is not None
    assert begun.status == "delivering"
    attempt = Attempt(
        attempt=begun.attempt_count,
        outcome=outcome,
        created_at=now,
        duration_ms=5,
        status_code=code,
    )
    return conclude(begun, attempt, now + 5_000)


def test_a_success_ends_it() -> None:
    done = tried(fresh(), "succeeded", 204)
    assert (done.status, done.due_at, done.last_status_code) == ("succeeded", None, 204)
    assert [a.outcome for a in done.attempts] == ["succeeded"]
    assert begin(done, NOW + 9 * DELAYS[-1]) is None


@pytest.mark.parametrize(
    ("outcome", "code", "status"),
    [
        ("http_error", 500, "failed"),
        ("http_error", 599, "failed"),
        ("http_error", 408, "failed"),
        ("http_error", 429, "failed"),
        ("timeout", None, "failed"),
        ("connection_error", None, "failed"),
        ("http_error", 400, "dead"),
        ("http_error", 410, "dead"),
        ("http_error", 301, "dead"),
        ("skipped", None, "dead"),
    ],
)
def test_what_may_get_better_is_tried_again(
    outcome: Outcome, code: int | None, status: str
) -> None:
    assert tried(fresh(), outcome, code).status == status


def test_the_tries_are_spaced_and_used_up() -> None:
    delivery, waited = fresh(), []
    for _ in range(ATTEMPTS_MAX - 1):
        delivery = tried(delivery, "timeout")
        assert delivery.status == "failed"
        assert delivery.due_at is not None
        waited.append(delivery.due_at - delivery.updated_at)
    assert tuple(waited) == DELAYS
    delivery = tried(delivery, "timeout")
    assert (delivery.status, delivery.due_at, delivery.attempt_count) == ("exhausted", None, 7)


def test_before_its_time_nothing_is_tried() -> None:
    failed = tried(fresh(), "timeout")
    assert failed.due_at is not None
    assert begin(failed, failed.due_at - 1) is None


def test_a_try_that_nobody_reported_of_counts() -> None:
    begun = begin(fresh(), NOW)
    assert begun is not None
    assert begin(begun, NOW + 1) is None
    later = NOW + limits.DELIVERY_LEASE_TIMEOUT
    lost = begin(begun, later)
    assert lost is not None
    assert (lost.status, lost.due_at) == ("failed", later + DELAYS[0])
    assert [a.error for a in lost.attempts] == ["the server stopped during this try"]
    late = Attempt(attempt=1, outcome="succeeded", created_at=NOW, duration_ms=1)
    assert conclude(lost, late, later) == lost


def test_redelivery_is_a_fresh_start() -> None:
    dead = tried(fresh(), "http_error", 404)
    again = redeliver(dead, NOW + 77)
    assert (again.status, again.due_at) == ("pending", NOW + 77)
    failed = tried(again, "timeout")
    assert failed.due_at == failed.updated_at + DELAYS[0]
    assert failed.attempt_count == 2
    for _ in range(ATTEMPTS_MAX - 1):
        failed = tried(failed, "timeout")
    assert failed.status == "exhausted"
    begun = begin(fresh(), NOW)
    assert begun is not None
    assert redeliver(begun, NOW) is begun


def test_a_notification_says_what_it_is() -> None:
    body = json.loads(message("d1", "run.failed", b'{"id":"r1"}', NOW))
    assert body == {
        "id": "d1",
        "type": "run.failed",
        "createdAt": "2023-11-14T22:13:20.000000Z",
        "data": {"id": "r1"},
    }
    assert headers_of(fresh())["X-Durablex-Delivery"] == "d1"
    assert headers_of(fresh())["X-Durablex-Event"] == "custom"


OUTCOMES: list[Outcome] = ["succeeded", "http_error", "timeout", "connection_error", "skipped"]
REPORTS = st.lists(
    st.tuples(st.sampled_from(OUTCOMES), st.sampled_from([200, 404, 500, 429]), st.booleans()),
    max_size=40,
)


@given(REPORTS)
def test_whatever_happens_it_settles_and_its_log_is_bounded(
    reports: list[tuple[Outcome, int, bool]],
) -> None:
    delivery = fresh()
    for outcome, code, again in reports:
        if delivery.due_at is not None:
            delivery = tried(delivery, outcome, code)
        elif again:
            delivery = redeliver(delivery, delivery.updated_at + 1)
        assert delivery.is_settled == (delivery.due_at is None)
        assert len(delivery.attempts) <= limits.DELIVERY_ATTEMPTS_KEPT
        assert delivery.attempt_count - delivery.tries_before <= ATTEMPTS_MAX

"""Retry policies in every spelling; no server is needed to read them."""

from typing import Any

import msgspec
import pytest

from perdure.core.rejection import InvalidRequest
from perdure.protocols.durable_workflow.retry_policies import (
    DELAY_MAX,
    WireLocalRetryPolicy,
    WireRetryPolicy,
    local_retry_policy,
    retry_policy,
)


def delays(**members: Any) -> tuple[int | None, list[int]]:
    wire = msgspec.convert(members, WireRetryPolicy, strict=False)
    policy = retry_policy(wire, "retry_policy")
    assert policy is not None
    return policy.attempts_max, policy.backoff_seconds


@pytest.mark.parametrize(
    ("members", "attempts", "backoff"),
    [
        ({}, 1, []),
        ({"max_attempts": 3}, 3, []),
        ({"maximum_attempts": 3}, 3, []),
        ({"maximum_attempts": None, "backoff_seconds": [7]}, None, [7]),
        ({"max_attempts": 3, "maximum_attempts": 3}, 3, []),
        ({"max_attempts": 4, "initial_interval_seconds": 2}, 4, [2, 4, 8]),
        ({"max_attempts": 4, "backoff_coefficient": 3}, 4, [1, 3, 9]),
        ({"max_attempts": 3, "initial_interval_seconds": 0.5}, 3, [1, 1]),
        ({"max_attempts": 9, "maximum_interval_seconds": 5}, 9, [1, 2, 4, 5]),
        ({"max_attempts": 9, "initial_interval_seconds": 9, "maximum_interval_seconds": 5}, 9, [5]),
        ({"max_attempts": 3, "initial_interval_seconds": 0}, 3, [0, 0]),
        ({"max_attempts": 3, "initial_interval_seconds": 9, "backoff_seconds": [1]}, 3, [1]),
        ({"initial_interval_seconds": 5}, 1, []),
    ],
)
def test_every_spelling_means_attempts_and_seconds(
    members: dict[str, Any], attempts: int | None, backoff: list[int]
) -> None:
    assert delays(**members) == (attempts, backoff)


def test_delays_without_an_end_are_bounded() -> None:
    _, growing = delays(max_attempts=None, initial_interval_seconds=1)
    assert growing[-1] == DELAY_MAX
    _, steady = delays(max_attempts=None, initial_interval_seconds=3, backoff_coefficient=1)
    assert steady == [3] * 100


def test_two_numbers_of_attempts_that_differ_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        delays(max_attempts=3, maximum_attempts=4)
    with pytest.raises(InvalidRequest):
        local_retry_policy(WireLocalRetryPolicy(max_attempts=3, maximum_attempts=4), "retry_policy")


@pytest.mark.parametrize("kind", [WireRetryPolicy, WireLocalRetryPolicy])
def test_an_unknown_member_is_refused(kind: type[Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `retries`"):
        msgspec.convert({"retries": 3}, kind)


def test_a_local_policy_knows_the_same_spellings() -> None:
    wire = WireLocalRetryPolicy(maximum_attempts=3, initial_interval_seconds=2.0)
    policy = local_retry_policy(wire, "retry_policy")
    assert policy is not None
    assert (policy.attempts_max, policy.backoff_seconds) == (3, [2, 4])


def test_no_policy_is_none() -> None:
    assert retry_policy(None, "retry_policy") is None
    assert local_retry_policy(None, "retry_policy") is None
    assert retry_policy([], "retry_policy") == retry_policy(WireRetryPolicy(), "retry_policy")

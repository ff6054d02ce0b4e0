"""Retry policies of activities and children, in every form that clients send.

A policy is a number of attempts, the seconds between them, and the failures that end it. The SDKs
compute those seconds from a growing interval; a client that sends the interval itself gets the same
seconds. Unknown members are refused, because they would have no effect.
"""

import math
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.core import limits
from perdure.core.maps import EmptyList, structure_of
from perdure.core.rejection import InvalidRequest
from perdure.core.run.operation import RetryPolicy
from perdure.protocols.durable_workflow.bodies import Count, Name255

DELAY_MAX = 10_000_000_000
Delay = Annotated[int, Meta(ge=0, le=DELAY_MAX)]
Interval = Annotated[float, Meta(ge=0, le=DELAY_MAX)]

_INTERVAL = 1.0
_COEFFICIENT = 2.0
_BACKOFFS_MAX = 100
"""Number of delays that are computed. The last one repeats."""


class _Policy(Struct, kw_only=True, forbid_unknown_fields=True):
    """Members from which the delays are computed."""

    initial_interval_seconds: Interval | None = None
    maximum_interval_seconds: Interval | None = None
    backoff_coefficient: Annotated[float, Meta(ge=1, le=1_000)] | None = None


class WireRetryPolicy(_Policy):
    """The policy of a queue activity or of a child."""

    max_attempts: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType | None = UNSET
    maximum_attempts: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType | None = UNSET
    backoff_seconds: list[Delay] | Delay | None = None
    non_retryable_error_types: list[Annotated[str, Meta(min_length=1)]] | None = None


class WireLocalRetryPolicy(_Policy):
    """The policy of a local activity."""

    max_attempts: Annotated[int, Meta(ge=1, le=limits.LOCAL_ATTEMPTS_MAX)] | None = None
    maximum_attempts: Annotated[int, Meta(ge=1, le=limits.LOCAL_ATTEMPTS_MAX)] | None = None
    backoff_seconds: Annotated[list[Count], Meta(max_length=limits.LOCAL_ATTEMPTS_MAX)] | None = (
        None
    )
    non_retryable_error_types: list[Name255] | None = None


def retry_policy(sent: WireRetryPolicy | EmptyList | None, at: str) -> RetryPolicy | None:
    """The policy of the core. Without a number of attempts there is one; null is no limit."""
    wire = structure_of(sent, WireRetryPolicy)
    if wire is None:
        return None
    attempts = wire.max_attempts
    if wire.maximum_attempts is not UNSET:
        if attempts not in (UNSET, wire.maximum_attempts):
            raise InvalidRequest(f"{at}.maximum_attempts", "contradicts max_attempts")
        attempts = wire.maximum_attempts
    attempts_max = 1 if isinstance(attempts, UnsetType) else attempts
    backoff = wire.backoff_seconds
    backoff_sent = [backoff] if isinstance(backoff, int) else backoff
    return RetryPolicy(
        attempts_max=attempts_max,
        backoff_seconds=_delays(wire, attempts_max) if backoff_sent is None else list(backoff_sent),
        non_retryable_types=list(wire.non_retryable_error_types or ()),
    )


def local_retry_policy(
    sent: WireLocalRetryPolicy | EmptyList | None, at: str
) -> RetryPolicy | None:
    """The policy of the core. Without a number of attempts there is one."""
    wire = structure_of(sent, WireLocalRetryPolicy)
    if wire is None:
        return None
    if None not in (wire.max_attempts, wire.maximum_attempts) and (
        wire.max_attempts != wire.maximum_attempts
    ):
        raise InvalidRequest(f"{at}.maximum_attempts", "contradicts max_attempts")
    attempts_max = wire.max_attempts or wire.maximum_attempts or 1
    backoff_sent = wire.backoff_seconds
    return RetryPolicy(
        attempts_max=attempts_max,
        backoff_seconds=_delays(wire, attempts_max) if backoff_sent is None else list(backoff_sent),
        non_retryable_types=list(wire.non_retryable_error_types or ()),
    )


def _delays(wire: _Policy, attempts_max: int | None) -> list[int]:
    """The seconds before each further attempt, as the Python SDK computes them from an interval."""
    intervals = (
        wire.initial_interval_seconds,
        wire.maximum_interval_seconds,
        wire.backoff_coefficient,
    )
    if intervals == (None, None, None):
        return []
    initial, maximum, coefficient = intervals
    delay = _INTERVAL if initial is None else initial
    most = DELAY_MAX if maximum is None else maximum
    growth = _COEFFICIENT if coefficient is None else coefficient
    count = _BACKOFFS_MAX if attempts_max is None else min(attempts_max - 1, _BACKOFFS_MAX)
    delays: list[int] = []
    while len(delays) < count:
        delays.append(math.ceil(min(delay, most)))
        if delay >= most:
            break
        delay *= growth
    return delays

"""Figures over runs, as the overview shows them. All of them are integers."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from perdure.core import limits

STATUSES = (
    *("queued", "running", "waiting", "paused", "needs_attention"),
    *("succeeded", "failed", "cancelled"),
)
_RUNNING = ("running", "waiting", "needs_attention")
_ACTIVE = ("queued", "paused", *_RUNNING)
_STEPS = tuple(s * limits.SECOND for s in (60, 300, 900, 3_600, 21_600, 86_400))
DEFAULT_SPAN = 86_400 * limits.SECOND


class Totals(Struct, frozen=True, rename="camel"):
    """How many runs there are of which kind."""

    total: int
    active: int
    queued: int
    running: int
    succeeded: int
    failed: int
    success_rate: int


def totals(counts: Mapping[str, int]) -> Totals:
    """The figures of a selection of runs, of their number by status."""
    succeeded, failed = counts.get("succeeded", 0), counts.get("failed", 0)
    ended = succeeded + failed
    return Totals(
        total=sum(counts.values()),
        active=sum(counts.get(status, 0) for status in _ACTIVE),
        queued=counts.get("queued", 0),
        running=sum(counts.get(status, 0) for status in _RUNNING),
        succeeded=succeeded,
        failed=failed,
        # Half a percent counts up, as people round.
        success_rate=(200 * succeeded + ended) // (2 * ended) if ended else 0,
    )


class Started(NamedTuple):
    """A run, as far as a series over time cares."""

    started_at: int
    status: str
    duration_ms: int | None


class Bucket(Struct, rename="camel", omit_defaults=True):
    """The runs that started in one stretch of time."""

    started_at: int
    counts: dict[str, int]
    total: int
    avg_ms: int | None = None
    max_ms: int | None = None


def bucket_step(since: int, until: int, wanted: int | None = None) -> int:
    """How long a stretch is: as wanted, else the shortest that makes few of them."""
    span = max(1, until - since)
    if wanted is not None and span // wanted < limits.BUCKETS_MAX:
        return wanted
    few = limits.BUCKETS_DEFAULT_MAX if wanted is None else limits.BUCKETS_MAX
    fitting = (step for step in _STEPS if -(-span // step) <= few)
    return next(fitting, -(-span // (few * _STEPS[-1])) * _STEPS[-1])


def series(runs: Iterable[Started], since: int, until: int, step: int) -> list[Bucket]:
    """The stretches from one moment to another, also those in which nothing started."""
    first = since // step
    buckets = [
        Bucket(started_at=place * step, counts={}, total=0)
        for place in range(first, max(first, (until - 1) // step) + 1)
    ]
    durations: list[list[int]] = [[] for _ in buckets]
    for run in runs:
        place = run.started_at // step - first
        if not since <= run.started_at < until or not 0 <= place < len(buckets):
            continue
        bucket = buckets[place]
        bucket.counts[run.status] = bucket.counts.get(run.status, 0) + 1
        bucket.total += 1
        if run.duration_ms is not None:
            durations[place].append(run.duration_ms)
    for bucket, lasted in zip(buckets, durations, strict=True):
        if lasted:
            bucket.avg_ms = (2 * sum(lasted) + len(lasted)) // (2 * len(lasted))
            bucket.max_ms = max(lasted)
    return buckets

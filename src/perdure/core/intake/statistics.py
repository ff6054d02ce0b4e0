"""Statistics of runs for the overview. All numbers are integers."""

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
    """The numbers of runs by state."""

    total: int
    active: int
    queued: int
    running: int
    succeeded: int
    failed: int
    success_rate: int


def totals(counts: Mapping[str, int]) -> Totals:
    """The totals of a selection of runs, from their numbers by status."""
    succeeded, failed = counts.get("succeeded", 0), counts.get("failed", 0)
    ended = succeeded + failed
    return Totals(
        total=sum(counts.values()),
        active=sum(counts.get(status, 0) for status in _ACTIVE),
        queued=counts.get("queued", 0),
        running=sum(counts.get(status, 0) for status in _RUNNING),
        succeeded=succeeded,
        failed=failed,
        # Half a percent is rounded up.
        success_rate=(200 * succeeded + ended) // (2 * ended) if ended else 0,
    )


class Started(NamedTuple):
    """The members of a run that a time series needs."""

    started_at: int
    status: str
    duration_ms: int | None


class Bucket(Struct, rename="camel", omit_defaults=True):
    """The runs that started in one interval."""

    started_at: int
    counts: dict[str, int]
    total: int
    avg_ms: int | None = None
    max_ms: int | None = None


def bucket_step(since: int, until: int, requested: int | None = None) -> int:
    """The length of an interval: as requested, else the shortest that gives few enough."""
    span = max(1, until - since)
    if requested is not None and span // requested < limits.BUCKETS_MAX:
        return requested
    few = limits.BUCKETS_DEFAULT_MAX if requested is None else limits.BUCKETS_MAX
    fitting = (step for step in _STEPS if -(-span // step) <= few)
    return next(fitting, -(-span // (few * _STEPS[-1])) * _STEPS[-1])


def series(runs: Iterable[Started], since: int, until: int, step: int) -> list[Bucket]:
    """All intervals between two instants, including those in which no run started."""
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

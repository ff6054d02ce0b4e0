"""Statuses of a run and their transitions, as data."""

from collections.abc import Mapping
from enum import StrEnum


class RunStatus(StrEnum):
    """The statuses of the protocol. A timed-out run is failed, with its own closed reason.

    Only push runs are ever paused, or need the attention of people.
    """

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    NEEDS_ATTENTION = "needs_attention"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"


CLOSED = frozenset(
    {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TERMINATED}
)

_AT_REST = frozenset({RunStatus.WAITING, RunStatus.PAUSED, RunStatus.NEEDS_ATTENTION})

TRANSITIONS: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PENDING: frozenset({RunStatus.RUNNING}) | _AT_REST | CLOSED,
    RunStatus.RUNNING: _AT_REST | CLOSED,
    RunStatus.WAITING: frozenset({RunStatus.RUNNING, RunStatus.PAUSED}) | CLOSED,
    RunStatus.PAUSED: frozenset({RunStatus.PENDING}) | CLOSED,
    RunStatus.NEEDS_ATTENTION: frozenset({RunStatus.RUNNING, RunStatus.PAUSED}) | CLOSED,
    **{closed: frozenset() for closed in CLOSED},
}


class StatusBucket(StrEnum):
    """The three coarse statuses that lists filter by."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


def bucket(status: RunStatus) -> StatusBucket:
    """The coarse status of a status."""
    if status is RunStatus.COMPLETED:
        return StatusBucket.COMPLETED
    return StatusBucket.FAILED if status in CLOSED else StatusBucket.RUNNING

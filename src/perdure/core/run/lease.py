"""States of a task, and leases."""

from enum import StrEnum
from typing import Final

from msgspec import Struct


class TaskState(StrEnum):
    """The state of a task. Only a ready task is visible to pollers."""

    DELAYED = "delayed"
    READY = "ready"
    LEASED = "leased"


# Python 3.11 looks a member up on its enum as slowly as ten names of a module.
DELAYED: Final = TaskState.DELAYED
READY: Final = TaskState.READY
LEASED: Final = TaskState.LEASED


class Lease(Struct):
    """One owner's right to a task until an instant.

    `poll_id` names the poll that got the lease, so that a poll which is repeated because its
    answer was lost finds its lease again, also after a restart.
    """

    owner: str
    granted_at: int
    expires_at: int
    poll_id: str | None = None

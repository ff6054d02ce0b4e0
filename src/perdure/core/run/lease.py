"""Where a task stands, and who may work on it until when."""

from enum import StrEnum

from msgspec import Struct


class TaskState(StrEnum):
    """Where a task stands. Only a ready task is visible to pollers."""

    DELAYED = "delayed"
    READY = "ready"
    LEASED = "leased"


class Lease(Struct):
    """One owner's right to a task until an instant.

    `poll_id` names the poll it was granted to, so that a poll which is repeated because its
    answer was lost finds its lease again, also after a restart.
    """

    owner: str
    granted_at: int
    expires_at: int
    poll_id: str | None = None

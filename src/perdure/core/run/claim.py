"""Answers to a worker about the local activities that it prepared under one lease.

Every answer is kept until another lease begins, so that a worker that lost one gets it again
unchanged.
"""

from msgspec import Struct, field

from perdure.core.limits import PREPARED_ANSWERS_MAX


class Claim(Struct, frozen=True, array_like=True):
    """One lease of a workflow task."""

    number: int
    attempt: int
    owner: str


class Opened(Struct, frozen=True, array_like=True):
    """A local activity that was opened in a group."""

    sequence: int
    execution_id: str


class Checkpoint(Struct, frozen=True, array_like=True):
    """Steps that were committed in the middle of a task, and the local activities among them."""

    start: int
    behind: int
    activities: list[Opened]


class LocalEnd(Struct, frozen=True, array_like=True):
    """How an attempt ended: by its outcome, or recovered, because its worker was lost.

    `created` is the task for the next attempt; the lease was released for it.
    """

    sequence: int
    execution_id: str
    attempt_id: str
    nonce: str
    event_type: str
    event_id: str
    recorded_at: int
    created: str | None = None
    recovered: bool = False


class Answers(Struct):
    """The answers under one lease, the newest last."""

    claim: Claim
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    ends: dict[str, LocalEnd] = field(default_factory=dict)

    def keep_checkpoint(self, checkpoint_id: str, checkpoint: Checkpoint) -> None:
        self.checkpoints[checkpoint_id] = checkpoint
        if len(self.checkpoints) > PREPARED_ANSWERS_MAX:
            del self.checkpoints[next(iter(self.checkpoints))]

    def keep_end(self, end: LocalEnd) -> None:
        self.ends[end.attempt_id] = end
        if len(self.ends) > PREPARED_ANSWERS_MAX:
            del self.ends[next(iter(self.ends))]

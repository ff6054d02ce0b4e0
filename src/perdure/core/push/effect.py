"""Effects of push runs on other records. They are carried out in the same beat and transaction."""

from typing import TypeAlias

from msgspec import Struct

from perdure.core.external import Reference
from perdure.core.push.approval import Approval, ApprovalStatus
from perdure.core.push.command import (
    AskModel,
    CallWorkflow,
    EmitEvent,
    GiveScore,
    SendWebhook,
    StepError,
)
from perdure.core.push.score import Score
from perdure.core.push.usage import Metered
from perdure.core.run.operation import PushStep
from perdure.core.run.state import Run


class Emitted(Struct, frozen=True):
    """A step of a run sends an event."""

    run: Run
    command: EmitEvent


class Called(Struct, frozen=True):
    """A step of a run, at some sequence, calls a workflow."""

    run: Run
    sequence: int
    command: CallWorkflow


class Ended(Struct, frozen=True):
    """A push run has closed."""

    run: Run
    result: bytes | None = None


class Listened(Struct, frozen=True):
    """A step starts or stops waiting for an event."""

    run: Run
    sequence: int
    event_name: str
    begins: bool
    index: str = ""
    paths: tuple[str, ...] = ()
    """The key of its index entry, and the event members that are compared."""


class Posted(Struct, frozen=True):
    """A step of a run sends a webhook."""

    run: Run
    command: SendWebhook


class Asked(Struct, frozen=True):
    """A step of a run, at some sequence, calls a model."""

    run: Run
    sequence: int
    command: AskModel


class Broken(Struct, frozen=True):
    """The last attempt of a step has failed."""

    run: Run
    step: PushStep
    error: StepError


class Pinned(Struct, frozen=True):
    """A pass of a pinned run has waited too long: check whether its runner still exists."""

    run: Run


class Joined(Struct, frozen=True):
    """A run that belongs to a conversation starts."""

    run: Run


class WantsSlot(Struct, frozen=True):
    """A run needs a slot for its next pass, and since when."""

    run: Run
    since: int


class WantsMeter(Struct, frozen=True):
    """A run needs its meters to clear its next pass, and since when."""

    run: Run
    since: int


class LeavesSlot(Struct, frozen=True):
    """A run needs no pass now: its slot, or its place in the queue for one, becomes free."""

    run: Run


class AskedPeople(Struct, frozen=True):
    """A step of a run asks for an approval."""

    run: Run
    approval_id: str
    approval: Approval


class ApprovalMoved(Struct, frozen=True):
    """An approval was escalated, denied by its timeout, or cancelled with its run."""

    run: Run
    approval_id: str
    status: ApprovalStatus
    decided_by: str | None = None
    expires_at: int | None = None


class Scored(Struct, frozen=True):
    """A step of a run scored that run."""

    run: Run
    score: Score


class ScoredElsewhere(Struct, frozen=True):
    """A step of a run, at some sequence, scores another run."""

    run: Run
    sequence: int
    command: GiveScore


class Offloaded(Struct, frozen=True):
    """The result of a step is stored apart from its run."""

    run: Run
    reference: Reference
    data: bytes


class ResultsGrew(Struct, frozen=True):
    """The step results of a run came near to their bound, or exceeded it."""

    run: Run
    total_bytes: int
    bytes_max: int


PushEffect: TypeAlias = (
    Pinned
    | Joined
    | Emitted
    | Called
    | Ended
    | Listened
    | Posted
    | Asked
    | Broken
    | Metered
    | WantsMeter
    | WantsSlot
    | LeavesSlot
    | AskedPeople
    | ApprovalMoved
    | Scored
    | ScoredElsewhere
    | Offloaded
    | ResultsGrew
)

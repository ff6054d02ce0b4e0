"""What a decision on a push run means beyond it. Carried out in the same beat and transaction."""

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
    """A step begins to wait for an event, or waits no more."""

    run: Run
    sequence: int
    event_name: str
    begins: bool
    index: str = ""
    paths: tuple[str, ...] = ()
    """Where it is found, and which members of an event it compares."""


class Posted(Struct, frozen=True):
    """A step of a run sends a webhook."""

    run: Run
    command: SendWebhook


class Asked(Struct, frozen=True):
    """A step of a run, at some sequence, asks a model."""

    run: Run
    sequence: int
    command: AskModel


class Broken(Struct, frozen=True):
    """The last try of a step has failed."""

    run: Run
    step: PushStep
    error: StepError


class Pinned(Struct, frozen=True):
    """A run begins that only one runner may have."""

    run: Run


class Joined(Struct, frozen=True):
    """A run with a label begins."""

    run: Run


class WantsSlot(Struct, frozen=True):
    """A run that wants a pass, and the moment from which on it does."""

    run: Run
    since: int


class WantsMeter(Struct, frozen=True):
    """A run that wants a pass which its meters are asked about, and since when it does."""

    run: Run
    since: int


class LeavesSlot(Struct, frozen=True):
    """A run needs no pass now."""

    run: Run


class AskedPeople(Struct, frozen=True):
    """A step of a run asks people for something."""

    run: Run
    approval_id: str
    approval: Approval


class ApprovalMoved(Struct, frozen=True):
    """What a step asked for was escalated, denied by the clock, or is not wanted any more."""

    run: Run
    approval_id: str
    status: ApprovalStatus
    decided_by: str | None = None
    expires_at: int | None = None


class Scored(Struct, frozen=True):
    """A step of a run judged that run."""

    run: Run
    score: Score


class ScoredElsewhere(Struct, frozen=True):
    """A step of a run, at some sequence, judges another run."""

    run: Run
    sequence: int
    command: GiveScore


class Offloaded(Struct, frozen=True):
    """The result of a step is stored apart from its run."""

    run: Run
    reference: Reference
    data: bytes


class ResultsGrew(Struct, frozen=True):
    """The step results of a run came near to what they may come to, or passed it."""

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

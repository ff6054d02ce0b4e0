"""What a decision on one run means for others. Carried out in the same beat and transaction."""

from typing import TypeAlias

from msgspec import Struct

from perdure.core.push.effect import PushEffect
from perdure.core.run.state import Cancellation, Run


class StartRun(Struct, frozen=True):
    """A new run came to be: a child, a retried child, or the next run of a chain."""

    run: Run


class TellParent(Struct, frozen=True):
    """A child closed; the run that waits for it learns the outcome."""

    child: Run
    output: bytes | None


class TellParentContinued(Struct, frozen=True):
    """A child continued as new; its parent now waits for the next run."""

    child: Run
    successor: Run


class CloseChild(Struct, frozen=True):
    """The parent closed, and its policy closes this child too."""

    run_id: str
    policy: str
    reason: str


class CancelChild(Struct, frozen=True):
    """The parent was asked to cancel itself, and its policy asks this child too."""

    run_id: str
    origin: Cancellation


Effect: TypeAlias = (
    StartRun | TellParent | TellParentContinued | CloseChild | CancelChild | PushEffect
)

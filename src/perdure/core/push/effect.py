"""What a decision on a push run means beyond it. Carried out in the same beat and transaction."""

from typing import TypeAlias

from msgspec import Struct

from perdure.core.push.command import CallWorkflow, EmitEvent
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


PushEffect: TypeAlias = Emitted | Called | Ended | Listened

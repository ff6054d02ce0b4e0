"""What a decision on one run means for others. Carried out in the same beat and transaction."""

from typing import TypeAlias

from msgspec import Struct

from perdure.core.push.effect import PushEffect
from perdure.core.run.command import StartServiceOperation
from perdure.core.run.operation import ServiceCall
from perdure.core.run.service_binding import Binding
from perdure.core.run.state import Run
from perdure.core.run.state_parts import Cancellation


class StartRun(Struct, frozen=True):
    """A new run came to be: a child, a retried child, or the next run of a chain."""

    run: Run


class ParentNotice(Struct, frozen=True):
    """A child closed; the run that waits for it learns the outcome."""

    child: Run
    output: bytes | None


class ParentContinuedNotice(Struct, frozen=True):
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


class StartServiceCall(Struct, frozen=True):
    """A run calls a service operation. `attached` calls were made before, under the same key."""

    run: Run
    command: StartServiceOperation
    call: ServiceCall
    binding: Binding | None
    attached: bool
    waits: bool


class CallersNotice(Struct, frozen=True):
    """A run that handled a service call has ended; those who wait for the call learn it."""

    handler: Run
    output: bytes | None


class LeaveServiceCall(Struct, frozen=True):
    """A run closed that waited for a service call."""

    run_id: str
    call: ServiceCall
    reason: str


Effect: TypeAlias = (
    StartRun
    | ParentNotice
    | ParentContinuedNotice
    | CloseChild
    | CancelChild
    | StartServiceCall
    | CallersNotice
    | LeaveServiceCall
    | PushEffect
)

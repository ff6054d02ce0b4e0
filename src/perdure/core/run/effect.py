"""Effects: what a decision on one run changes in others, in the same beat and transaction."""

from typing import TypeAlias

from msgspec import Struct

from perdure.core.push.effect import PushEffect
from perdure.core.run.command import StartServiceOperation
from perdure.core.run.operation import ServiceCall
from perdure.core.run.service_binding import Binding
from perdure.core.run.state import Run
from perdure.core.run.state_parts import Cancellation


class StartRun(Struct, frozen=True):
    """Add a new run: a child, a retried child, or the next run of a chain."""

    run: Run


class ParentNotice(Struct, frozen=True):
    """Report the outcome of a closed child to its parent."""

    child: Run
    output: bytes | None


class ParentContinuedNotice(Struct, frozen=True):
    """Make the parent of a child that continued as new wait for the next run."""

    child: Run
    successor: Run


class CloseChild(Struct, frozen=True):
    """Close a child whose parent closed, by its policy."""

    run_id: str
    policy: str
    reason: str


class CancelChild(Struct, frozen=True):
    """Ask a child to cancel itself because its parent was asked."""

    run_id: str
    origin: Cancellation


class StartServiceCall(Struct, frozen=True):
    """Start the call of a service operation. `attached`: the call exists under the same key."""

    run: Run
    command: StartServiceOperation
    call: ServiceCall
    binding: Binding | None
    attached: bool
    waits: bool


class CallersNotice(Struct, frozen=True):
    """Report the end of a run that handled a service call to the runs that wait for the call."""

    handler: Run
    output: bytes | None


class LeaveServiceCall(Struct, frozen=True):
    """Remove a closed run from the runs that wait for a service call."""

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

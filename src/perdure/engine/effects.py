"""Effects of one run on its parent and children, and which operation carries out which effect."""

from collections.abc import Callable, Mapping

from msgspec import structs

from perdure.core.limits import CLEANUP_TIMEOUT_SECONDS_DEFAULT
from perdure.core.push.effect import (
    Called,
    Emitted,
    Ended,
    LeavesSlot,
    Listened,
    Offloaded,
    Pinned,
    ResultsGrew,
    WantsMeter,
    WantsSlot,
)
from perdure.core.run.cancellation import PARENT_CLOSE, ask_to_cancel, propagate_request
from perdure.core.run.child import child_closed, child_continued
from perdure.core.run.close import cancel_run, terminate_run
from perdure.core.run.context import Context
from perdure.core.run.effect import (
    CallersNotice,
    CancelChild,
    CloseChild,
    LeaveServiceCall,
    ParentContinuedNotice,
    ParentNotice,
    StartServiceCall,
)
from perdure.core.run.settle import settle
from perdure.core.run.state import Dialect, Run
from perdure.engine.events import emitted
from perdure.engine.operation import Operation
from perdure.engine.push_runs import FollowEnd, RequirePinned, StartCalled, call_ended
from perdure.engine.registry import Extension
from perdure.engine.run_control import BEGUN
from perdure.engine.service_calls import AttachCall, DetachCaller, DispatchCall, EndServiceCall
from perdure.engine.slots import ReleaseSlot, TakeSlot
from perdure.engine.step_results import BoundResults, KeepResult
from perdure.engine.usage_limits import CheckUsageLimits
from perdure.engine.waiters import RegisterWaiter
from perdure.engine.world import World


class NotifyParent(Operation):
    """A child has closed."""

    __slots__ = ("_effect",)
    name = "parent_learns"

    def __init__(self, effect: ParentNotice) -> None:
        self._effect = effect

    def run_ids(self) -> tuple[str, ...]:
        parent = self._effect.child.parent
        return () if parent is None else (parent.run_id,)

    def decide(self, world: World) -> None:
        (parent_id,) = self.run_ids()
        parent = world.runs.get(parent_id)
        if parent is not None and not parent.is_closed:
            learn = _LEARNING[parent.dialect]
            learn(parent, world.ctx, self._effect.child, self._effect.output)
            world.changed(parent)


_LEARNING: Mapping[Dialect, Callable[[Run, Context, Run, bytes | None], None]] = {
    Dialect.PULL: child_closed,
    Dialect.PUSH: call_ended,
}
"""How a parent takes in that a child of it has closed."""


class NotifyParentContinued(Operation):
    """A child goes on under a new run."""

    __slots__ = ("_effect",)
    name = "parent_learns_continued"

    def __init__(self, effect: ParentContinuedNotice) -> None:
        self._effect = effect

    def run_ids(self) -> tuple[str, ...]:
        parent = self._effect.child.parent
        return () if parent is None else (parent.run_id,)

    def decide(self, world: World) -> None:
        (parent_id,) = self.run_ids()
        parent = world.runs.get(parent_id)
        if parent is not None and not parent.is_closed:
            child_continued(parent, world.ctx, self._effect.child, self._effect.successor)
            world.changed(parent)


class CloseChildRun(Operation):
    """The parent's close policy reaches a child."""

    __slots__ = ("_effect",)
    name = "child_closes"

    def __init__(self, effect: CloseChild) -> None:
        self._effect = effect

    def run_ids(self) -> tuple[str, ...]:
        return (self._effect.run_id,)

    def decide(self, world: World) -> None:
        child = world.runs.get(self._effect.run_id)
        if child is None:
            return
        if child.continued_to_run_id is not None:
            # It went on in the same beat; the policy means the child, not one run of it.
            world.follow_ups.append(
                CloseChildRun(structs.replace(self._effect, run_id=child.continued_to_run_id))
            )
            return
        if child.is_closed:
            return
        if self._effect.policy == "request_cancellation":
            self._ask(world, child)
            return
        close = terminate_run if self._effect.policy == "terminate" else cancel_run
        command_id = world.ctx.ids.ulid()
        close(child, world.ctx, command_id=command_id, reason=self._effect.reason)
        world.changed(child)

    def _ask(self, world: World, child: Run) -> None:
        if child.cancellation is not None:
            return
        ask_to_cancel(
            child,
            world.ctx,
            reason=self._effect.reason,
            timeout_seconds=CLEANUP_TIMEOUT_SECONDS_DEFAULT,
            source=PARENT_CLOSE,
        )
        settle(child, world.ctx)
        world.changed(child)


class RequestChildCancellation(Operation):
    """The request to cancel reaches a child."""

    __slots__ = ("_effect",)
    name = "child_is_asked_to_cancel"

    def __init__(self, effect: CancelChild) -> None:
        self._effect = effect

    def run_ids(self) -> tuple[str, ...]:
        return (self._effect.run_id,)

    def decide(self, world: World) -> None:
        child = world.runs.get(self._effect.run_id)
        if child is None:
            return
        if child.continued_to_run_id is not None:
            world.follow_ups.append(
                RequestChildCancellation(
                    structs.replace(self._effect, run_id=child.continued_to_run_id)
                )
            )
            return
        if child.is_closed or child.cancellation is not None:
            return
        propagate_request(child, world.ctx, self._effect.origin)
        settle(child, world.ctx)
        world.changed(child)


RUN_FAMILY = Extension(
    name="run family",
    follow_ups={
        ParentNotice: NotifyParent,
        ParentContinuedNotice: NotifyParentContinued,
        CloseChild: CloseChildRun,
        CancelChild: RequestChildCancellation,
    },
)
SERVICE_CALLS = Extension(
    name="service calls",
    follow_ups={
        StartServiceCall: lambda one: AttachCall(one) if one.attached else DispatchCall(one),
        CallersNotice: EndServiceCall,
        LeaveServiceCall: DetachCaller,
    },
)
PUSH_RUNS = Extension(
    name="push runs",
    follow_ups={
        Emitted: emitted,
        Called: StartCalled,
        Ended: FollowEnd,
        Pinned: RequirePinned,
        Listened: RegisterWaiter,
        WantsMeter: CheckUsageLimits,
        WantsSlot: TakeSlot,
        LeavesSlot: ReleaseSlot,
        Offloaded: KeepResult,
        ResultsGrew: BoundResults,
    },
    run_records=(BEGUN.name,),
)
KERNEL = (RUN_FAMILY, SERVICE_CALLS, PUSH_RUNS)
"""What the engine brings itself; features come on top."""

"""Effects of one run on its relatives, as operations of the same beat."""

from collections.abc import Callable, Mapping
from typing import assert_never

from msgspec import structs

from perdure.core.limits import CLEANUP_TIMEOUT_SECONDS_DEFAULT
from perdure.core.push.effect import (
    ApprovalMoved,
    Asked,
    AskedPeople,
    Broken,
    Called,
    Emitted,
    Ended,
    Joined,
    LeavesSlot,
    Listened,
    Offloaded,
    Pinned,
    Posted,
    ResultsGrew,
    Scored,
    ScoredElsewhere,
    WantsMeter,
    WantsSlot,
)
from perdure.core.push.usage import Metered
from perdure.core.run.cancellation import PARENT_CLOSE, ask_to_cancel, pass_on
from perdure.core.run.child import child_closed, child_continued
from perdure.core.run.close import cancel_run, terminate_run
from perdure.core.run.context import Context
from perdure.core.run.effect import (
    CallersNotice,
    CancelChild,
    CloseChild,
    Effect,
    LeaveServiceCall,
    ParentContinuedNotice,
    ParentNotice,
    StartRun,
    StartServiceCall,
)
from perdure.core.run.settle import settle
from perdure.core.run.state import Dialect, Run
from perdure.engine.events import emitted
from perdure.engine.operation import Operation
from perdure.engine.push_runs import FollowEnd, RequirePinned, StartCalled, call_ended
from perdure.engine.service_calls import AttachCall, DetachCaller, DispatchCall, EndServiceCall
from perdure.engine.slots import ReleaseSlot, TakeSlot
from perdure.engine.step_results import BoundResults, KeepResult
from perdure.engine.usage_limits import CheckUsageLimits
from perdure.engine.waiters import RegisterWaiter
from perdure.engine.world import World
from perdure.features.approvals.operations import KeepApproval, MoveApproval
from perdure.features.conversations.operations import JoinConversation
from perdure.features.model_calls.operations import OpenInference
from perdure.features.model_calls.usage_operations import RecordSpend
from perdure.features.scores.operations import KeepScore, ScoreAnother
from perdure.features.webhooks.effect_operations import PostWebhook, announce_failure


def follow(effect: Effect) -> Operation:
    """The operation that carries an effect out."""
    match effect:
        case ParentNotice():
            return NotifyParent(effect)
        case ParentContinuedNotice():
            return NotifyParentContinued(effect)
        case CloseChild():
            return CloseChildRun(effect)
        case CancelChild():
            return RequestChildCancellation(effect)
        case Emitted():
            return emitted(effect)
        case Called():
            return StartCalled(effect)
        case Ended():
            return FollowEnd(effect)
        case Pinned():
            return RequirePinned(effect)
        case Joined():
            return JoinConversation(effect)
        case Listened():
            return RegisterWaiter(effect)
        case StartServiceCall():
            return AttachCall(effect) if effect.attached else DispatchCall(effect)
        case CallersNotice():
            return EndServiceCall(effect)
        case LeaveServiceCall():
            return DetachCaller(effect)
        case Posted():
            return PostWebhook(effect)
        case Broken():
            return announce_failure(effect)
        case Asked():
            return OpenInference(effect)
        case Metered():
            return RecordSpend(effect)
        case WantsMeter():
            return CheckUsageLimits(effect)
        case WantsSlot():
            return TakeSlot(effect)
        case LeavesSlot():
            return ReleaseSlot(effect)
        case AskedPeople():
            return KeepApproval(effect)
        case ApprovalMoved():
            return MoveApproval(effect)
        case Scored():
            return KeepScore(effect)
        case ScoredElsewhere():
            return ScoreAnother(effect)
        case Offloaded():
            return KeepResult(effect)
        case ResultsGrew():
            return BoundResults(effect)
        case StartRun():
            raise AssertionError("a new run is taken in at once")
        case _:
            assert_never(effect)


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
        pass_on(child, world.ctx, self._effect.origin)
        settle(child, world.ctx)
        world.changed(child)

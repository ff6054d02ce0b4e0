"""Operations of cooperative cancellation: asking, delivering, hearing that work has stopped."""

from msgspec import Struct

from perdure.core.run.completion import TaskReport
from perdure.core.run.interruption import (
    Acknowledged,
    Delivery,
    acknowledge_stop,
    deliver_cancellation,
    request_cancellation,
)
from perdure.core.run.state_parts import Boundary, Cancellation
from perdure.engine.activity_tasks import AttemptOperation, AttemptRef
from perdure.engine.operation import Operation
from perdure.engine.run_commands import CommandTarget
from perdure.engine.workflow_tasks import TaskOperation
from perdure.engine.world import World
from perdure.store.interface import Instance


class Observation(Struct, frozen=True):
    """A request to cancel, as clients and workers see it."""

    request_id: str
    requested_at: int
    deadline_at: int


def observe(cancellation: Cancellation) -> Observation:
    return Observation(cancellation.request_id, cancellation.requested_at, cancellation.deadline_at)


class Requested(Struct, frozen=True):
    """A request that was taken, now or, as a duplicate, before."""

    run_id: str
    workflow_type: str
    observation: Observation
    duplicate: bool


class RequestCancellation(Operation):
    """Ask the newest run of an id to cancel itself."""

    __slots__ = ("_reason", "_target", "_timeout_seconds")
    name = "request_cancellation"

    def __init__(self, target: CommandTarget, *, reason: str | None, timeout_seconds: int) -> None:
        self._target = target
        self._reason = reason
        self._timeout_seconds = timeout_seconds

    def instances(self) -> tuple[Instance, ...]:
        return (self._target.instance,)

    def run_ids(self) -> tuple[str, ...]:
        return () if self._target.run_id is None else (self._target.run_id,)

    def decide(self, world: World) -> Requested:
        run = world.require_target(self._target.instance, self._target.run_id)
        cancellation, duplicate = request_cancellation(
            run, world.ctx, reason=self._reason, timeout_seconds=self._timeout_seconds
        )
        if not duplicate:
            world.changed(run)
        return Requested(run.run_id, run.workflow_type, observe(cancellation), duplicate)


class DeliverCancellation(TaskOperation):
    """The worker names the call at which its code is to be interrupted."""

    __slots__ = ("_boundary", "_request_id")
    name = "deliver_cancellation"

    def __init__(
        self,
        namespace: str,
        run_id: str,
        report: TaskReport,
        *,
        request_id: str,
        boundary: Boundary,
    ) -> None:
        super().__init__(namespace, run_id, report)
        self._request_id = request_id
        self._boundary = boundary

    def decide(self, world: World) -> Delivery:
        run = self.require_run(world)
        before = run.history_count, run.last_task
        delivery = deliver_cancellation(
            run, world.ctx, self._report, self._request_id, self._boundary
        )
        if (run.history_count, run.last_task) != before:
            world.changed(run)
        return delivery


class AcknowledgeStop(AttemptOperation):
    """The worker has stopped what was cancelled."""

    __slots__ = ("_request_id",)
    name = "acknowledge_stop"

    def __init__(self, ref: AttemptRef, request_id: str) -> None:
        super().__init__(ref)
        self._request_id = request_id

    def decide(self, world: World) -> Acknowledged:
        run, ref = self.require_run(world), self._ref
        acknowledged = acknowledge_stop(
            run,
            world.ctx,
            sequence=ref.sequence,
            attempt_id=ref.attempt_id,
            owner=ref.owner,
            request_id=self._request_id,
        )
        if not acknowledged.duplicate and not run.is_closed:
            world.changed(run)
        return acknowledged

"""Starting standalone activities."""

from msgspec import Struct

from perdure.core.rejection import RequestIdConflict
from perdure.core.run.standalone import ActivityRequest, start_standalone
from perdure.engine.operation import Operation
from perdure.engine.rollout_changes import require_open_queue
from perdure.engine.world import World
from perdure.store.interface import Instance, Receipt, ReceiptKey

KIND = "start_activity"


class ActivityStart(Struct, frozen=True):
    """The run of an activity, now or, when `retained`, since before."""

    activity_id: str
    run_id: str
    retained: bool = False


class StartActivity(Operation):
    """Have one activity done. A repeated request id finds the run that it led to."""

    __slots__ = ("_digest", "_named", "_request", "_request_id")
    name = KIND

    def __init__(
        self,
        request: ActivityRequest,
        *,
        named: bool,
        request_id: str | None = None,
        digest: str = "",
    ) -> None:
        self._request = request
        self._named = named
        self._request_id = request_id
        self._digest = digest

    def instances(self) -> tuple[Instance, ...]:
        return (Instance(self._request.namespace, self._request.activity_id),)

    def receipts(self) -> tuple[ReceiptKey, ...]:
        if self._request_id is None:
            return ()
        # Who gave no id for the activity cannot name it when the request comes again.
        workflow_id = self._request.activity_id if self._named else ""
        return (ReceiptKey(self._request.namespace, workflow_id, KIND, self._request_id),)

    def decide(self, world: World) -> ActivityStart:
        receipts = self.receipts()
        known = world.receipts.get(receipts[0]) if receipts else None
        if known is not None:
            return self._repeated(known)
        before = world.find_current(self.instances()[0])
        request = self._request
        run = start_standalone(request, world.ctx, before=before)
        if world.rollouts:
            named = {"activity_id": request.activity_id, "activity_type": request.activity_type}
            require_open_queue(world, request.namespace, request.queue, **named)
        world.opened(run)
        if receipts:
            # The outcome is the id that the activity was given.
            kept = Receipt(self._digest, run.run_id, run.run_id, run.workflow_id, world.ctx.now)
            world.put_receipt(receipts[0], kept)
        return ActivityStart(run.workflow_id, run.run_id)

    def _repeated(self, known: Receipt) -> ActivityStart:
        if known.digest != self._digest:
            raise RequestIdConflict(
                f"request id {self._request_id} was used for another activity",
                request_id=self._request_id,
                retained_command_id=known.command_id,
                retained_command_type=KIND,
                retained_outcome="started_new",
                conflict=["arguments"],
            )
        return ActivityStart(known.outcome, known.run_id, retained=True)

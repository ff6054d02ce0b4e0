"""Operations on updates: of clients who ask for them, of workers who judge them."""

from msgspec import Struct

from perdure.core.fleet.contract import Place, argument_errors, is_unknown, needs_validation
from perdure.core.rejection import (
    InvalidUpdateArguments,
    Rejection,
    UpdateRejected,
    UpdateValidationNotFound,
)
from perdure.core.run.completion import TaskReport
from perdure.core.run.inbox import Refusal, Update
from perdure.core.run.message import accept_update, require_open_for_updates
from perdure.core.run.standalone import refuse_update
from perdure.core.run.state import Run
from perdure.core.run.validation import VerdictResult, approve_update, reject_update
from perdure.engine.operation import Operation
from perdure.engine.run_commands import CommandTarget
from perdure.engine.workflow_tasks import TaskOperation
from perdure.engine.world import World
from perdure.store.interface import Instance, Receipt, ReceiptKey

KIND = "update"
ACCEPTED = "update_accepted"


class Admitted(Struct, frozen=True):
    """An update that is on its way, now or, when `retained`, since before."""

    run_id: str
    workflow_type: str
    update_id: str
    accepted_at: int | None
    retained: bool = False


class UpdateRun(Operation):
    """Send an update to the newest run of an id. A repeated request id finds the first one."""

    __slots__ = ("_arguments", "_count", "_name", "_target", "_trace")
    name = "update"

    def __init__(
        self,
        target: CommandTarget,
        *,
        name: str,
        arguments: bytes | None,
        count: int | None = None,
        trace: bytes | None = None,
    ) -> None:
        self._target = target
        self._name = name
        self._arguments = arguments
        self._count = count
        self._trace = trace

    def instances(self) -> tuple[Instance, ...]:
        return (self._target.instance,)

    def run_ids(self) -> tuple[str, ...]:
        return () if self._target.run_id is None else (self._target.run_id,)

    def receipts(self) -> tuple[ReceiptKey, ...]:
        request_id = self._target.request_id
        return () if request_id is None else (_key(self._target.instance, request_id),)

    def decide(self, world: World) -> Admitted:
        target = self._target
        receipt = world.receipts.get(self.receipts()[0]) if target.request_id else None
        if receipt is not None:
            target.require_same(KIND, receipt)
            known = world.find_current(target.instance)
            workflow_type = "" if known is None else known.workflow_type
            return Admitted(receipt.run_id, workflow_type, receipt.command_id, None, retained=True)
        run = world.require_target(target.instance, target.run_id)
        require_open_for_updates(run)
        refuse_update(run, self._name)
        judged = self._find_judged(run)
        if judged is not None:
            target.require_same(KIND, _receipt(run, judged, judged.received_at))
            return Admitted(run.run_id, run.workflow_type, judged.update_id, None, retained=True)
        update = accept_update(
            run,
            world.ctx,
            name=self._name,
            arguments=self._arguments,
            validated=self._must_be_validated(world, run),
            request_id=target.request_id,
            digest=target.digest,
            trace=self._trace,
        )
        if update.accepted_at is not None:
            keep_receipt(world, run, update)
        world.changed(run)
        return Admitted(run.run_id, run.workflow_type, update.update_id, update.accepted_at)

    def _find_judged(self, run: Run) -> Update | None:
        """The update of the same request id that still waits for its validator.

        Only what is accepted has a receipt: who was refused may ask again under the same id.
        """
        if self._target.request_id is None or not run.updates_open:
            return None
        waiting = (message for message in run.inbox.values() if isinstance(message, Update))
        return next((u for u in waiting if u.request_id == self._target.request_id), None)

    def _must_be_validated(self, world: World, run: Run) -> bool | None:
        place = Place(run.namespace, run.queue, run.workflow_type, run.build_id)
        live = world.live_workers(place)
        if is_unknown(live, run.workflow_type, "updates", self._name):
            raise UpdateRejected(
                f"workflow type {run.workflow_type} has no update {self._name}",
                run_id=run.run_id,
                outcome="rejected_unknown_update",
                rejection_reason="unknown_update",
            )
        if self._count is not None:
            errors = argument_errors(live, run.workflow_type, KIND, self._name, self._count)
            if errors:
                raise InvalidUpdateArguments(
                    f"the arguments do not fit update {self._name}",
                    run_id=run.run_id,
                    outcome="rejected_invalid_arguments",
                    rejection_reason="invalid_update_arguments",
                    errors=errors,
                )
        # Who drains knows the code, but would not take the validation.
        active = world.active_workers(place)
        any_build = Place(run.namespace, run.queue, run.workflow_type, None)
        others = run.build_id is not None and bool(world.active_workers(any_build))
        return needs_validation(
            active, place, self._name, last_validators=run.validators, others=others
        )


def keep_receipt(world: World, run: Run, update: Update) -> None:
    """Remember under which request id an update was accepted."""
    if update.request_id is not None:
        key = _key(Instance(run.namespace, run.workflow_id), update.request_id)
        world.put_receipt(key, _receipt(run, update, world.ctx.now))


def _key(instance: Instance, request_id: str) -> ReceiptKey:
    return ReceiptKey(*instance, KIND, request_id)


def _receipt(run: Run, update: Update, at: int) -> Receipt:
    return Receipt(update.digest, run.run_id, update.update_id, ACCEPTED, at)


class UpdateView(Struct, frozen=True, kw_only=True):
    """Where an update stands. Of one that ended, the event that tells it, or where that is."""

    status: str
    accepted_at: int | None = None
    event: bytes | None = None
    position: int | None = None
    refusal: Refusal | None = None


VALIDATING = "validating"
UNKNOWN = "unknown"
OPEN = frozenset({VALIDATING, "accepted"})


class ReadUpdate(Operation):
    """Where an update stands, as far as its run remembers."""

    __slots__ = ("_namespace", "_run_id", "_update_id")
    name = "look_at_update"

    def __init__(self, namespace: str, run_id: str, update_id: str) -> None:
        self._namespace = namespace
        self._run_id = run_id
        self._update_id = update_id

    def run_ids(self) -> tuple[str, ...]:
        return (self._run_id,)

    def decide(self, world: World) -> UpdateView:
        run = world.runs.get(self._run_id)
        if run is None or run.namespace != self._namespace:
            return UpdateView(status=UNKNOWN)
        return _look(run, self._update_id)


def _look(run: Run, update_id: str) -> UpdateView:
    for ended in run.updates_ended:
        if ended.update_id == update_id:
            event = None
            if ended.event is not None and ended.event >= run.events_first:
                event = run.events[ended.event - run.events_first]
            return UpdateView(
                status=ended.status, event=event, position=ended.event, refusal=ended.refusal
            )
    update = _find_open(run, update_id)
    if update is None:
        return UpdateView(status=UNKNOWN)
    status = "accepted" if update.validate_by is None else VALIDATING
    return UpdateView(status=status, accepted_at=update.accepted_at)


def _find_open(run: Run, update_id: str) -> Update | None:
    if run.update is not None and run.update.update_id == update_id:
        return run.update
    for message in run.inbox.values():
        if isinstance(message, Update) and message.update_id == update_id:
            return message
    return None


class VerdictOperation(TaskOperation):
    """The word of a validator on one update of one namespace."""

    __slots__ = ()

    def not_found(self) -> Rejection:
        return UpdateValidationNotFound("the validation does not exist")


class ApproveUpdate(VerdictOperation):
    """The update may be accepted."""

    name = "approve_update"

    def decide(self, world: World) -> VerdictResult:
        run = self.require_run(world)
        judged = approve_update(run, world.ctx, self._report)
        if judged.update is not None:
            if judged.is_new:
                keep_receipt(world, run, judged.update)
            world.changed(run)
        return judged


class RejectUpdate(VerdictOperation):
    """The update may not be accepted, or nobody knows."""

    __slots__ = ("_refusal",)
    name = "reject_update"

    def __init__(self, namespace: str, run_id: str, report: TaskReport, refusal: Refusal) -> None:
        super().__init__(namespace, run_id, report)
        self._refusal = refusal

    def decide(self, world: World) -> VerdictResult:
        run = self.require_run(world)
        judged = reject_update(run, world.ctx, self._report, self._refusal)
        if judged.update is not None:
            world.changed(run)
        return judged

"""Operations of clients: start, signal, cancel, terminate."""

from msgspec import Struct

from perdure.core.fleet.contract import Place, argument_errors, is_unknown
from perdure.core.rejection import (
    DuplicateNotAllowed,
    InvalidRequest,
    InvalidSignalArguments,
    RequestIdConflict,
    UnknownSignal,
)
from perdure.core.run.close import cancel_run, terminate_run
from perdure.core.run.message import accept_signal, require_active
from perdure.core.run.standalone import refuse_signal
from perdure.core.run.start import StartRequest, start_run
from perdure.core.run.state import Run
from perdure.engine.operation import Operation
from perdure.engine.receipts import SIGNAL, SIGNAL_RECEIVED, refuse_rejected
from perdure.engine.rollout_changes import rolled_out
from perdure.engine.world import World
from perdure.store.interface import Instance, Receipt, ReceiptKey


class Started(Struct, frozen=True):
    """A run that is open under the wanted id, new or not."""

    run_id: str
    workflow_type: str
    queue: str
    status: str
    business_key: str | None
    is_new: bool


class StartWorkflow(Operation):
    """Open a run of an id that has none."""

    __slots__ = ("_request", "_use_existing")
    name = "start"

    def __init__(self, request: StartRequest, *, use_existing: bool) -> None:
        self._request = request
        self._use_existing = use_existing

    @property
    def expects_new_id(self) -> bool:
        return not self._use_existing

    def instances(self) -> tuple[Instance, ...]:
        return (Instance(self._request.namespace, self._request.workflow_id),)

    def keeps_payloads(self, reply: Started) -> bool:
        return reply.is_new

    def decide(self, world: World) -> Started:
        existing = world.find_current(self.instances()[0])
        if existing is None:
            request = self._request
            if world.rollouts:
                request = rolled_out(world, request)
            run = start_run(request, world.ctx)
            world.opened(run)
            return _started(run, is_new=True)
        if self._use_existing and not existing.is_closed and existing.hosted is None:
            if existing.workflow_type != self._request.workflow_type:
                raise InvalidRequest(
                    "workflow_type",
                    f"workflow {existing.workflow_id} runs as {existing.workflow_type}",
                )
            return _started(existing, is_new=False)
        raise DuplicateNotAllowed(
            f"workflow {existing.workflow_id} was started already",
            workflow_id=existing.workflow_id,
            run_id=existing.run_id,
            workflow_type=existing.workflow_type,
            outcome="rejected_duplicate",
            rejection_reason="instance_already_started",
        )


def _started(run: Run, *, is_new: bool) -> Started:
    return Started(
        run.run_id, run.workflow_type, run.queue, run.status.value, run.business_key, is_new
    )


class CommandTarget(Struct, frozen=True, kw_only=True):
    """Which run a command is meant for, and the identity under which it may be repeated.

    `digest` is of all that is asked, then, behind a dash, of the name alone.
    """

    instance: Instance
    run_id: str | None = None
    request_id: str | None = None
    digest: str = ""

    def require_same(self, kind: str, known: Receipt) -> None:
        """Refuse to repeat a command that asked for something else."""
        conflict = []
        if self.run_id is not None and self.run_id != known.run_id:
            conflict.append("run_id")
        if self.digest != known.digest:
            same_name = self.digest.rpartition("-")[2] == known.digest.rpartition("-")[2]
            conflict.append("arguments" if same_name else "name")
        if conflict:
            raise RequestIdConflict(
                f"request id {self.request_id} was used for another {kind}",
                request_id=self.request_id,
                retained_command_id=known.command_id,
                retained_command_type=kind,
                retained_outcome=known.outcome,
                conflict=conflict,
            )


class Commanded(Struct, frozen=True):
    """An accepted command, now or, when `retained`, before."""

    run_id: str
    workflow_type: str
    command_id: str
    outcome: str
    retained: bool = False


class RunCommand(Operation):
    """A command to the newest run of an id. A repeated request id gets the recorded answer."""

    __slots__ = ("_target",)
    kind = "command"

    def __init__(self, target: CommandTarget) -> None:
        self._target = target

    @property
    def request_id(self) -> str | None:
        return self._target.request_id

    def instances(self) -> tuple[Instance, ...]:
        return (self._target.instance,)

    def run_ids(self) -> tuple[str, ...]:
        return () if self._target.run_id is None else (self._target.run_id,)

    def receipts(self) -> tuple[ReceiptKey, ...]:
        target = self._target
        if target.request_id is None:
            return ()
        return (ReceiptKey(*target.instance, self.kind, target.request_id),)

    def decide(self, world: World) -> Commanded:
        target = self._target
        receipt = world.receipts.get(self.receipts()[0]) if target.request_id else None
        if receipt is not None:
            return self._repeat(world, receipt)
        run = world.require_target(target.instance, target.run_id)
        require_active(run)
        command_id, outcome = self.apply(world, run)
        if target.request_id is not None:
            recorded = Receipt(target.digest, run.run_id, command_id, outcome, world.ctx.now)
            world.put_receipt(self.receipts()[0], recorded)
        world.changed(run)
        return Commanded(run.run_id, run.workflow_type, command_id, outcome)

    def apply(self, world: World, run: Run) -> tuple[str, str]:
        """Do it; returns the command's id and outcome."""
        raise NotImplementedError

    def _repeat(self, world: World, receipt: Receipt) -> Commanded:
        target = self._target
        target.require_same(self.kind, receipt)
        refuse_rejected(receipt, self.kind, target.request_id)
        run = world.find_current(target.instance)
        workflow_type = "" if run is None else run.workflow_type
        return Commanded(receipt.run_id, workflow_type, receipt.command_id, receipt.outcome, True)


class SignalRun(RunCommand):
    """Send a signal."""

    __slots__ = ("_arguments", "_count", "_name", "_trace")
    name = kind = SIGNAL

    def __init__(
        self,
        target: CommandTarget,
        *,
        name: str,
        arguments: bytes | None,
        count: int | None = None,
        trace: bytes | None = None,
    ) -> None:
        super().__init__(target)
        self._name = name
        self._arguments = arguments
        self._count = count
        self._trace = trace

    def apply(self, world: World, run: Run) -> tuple[str, str]:
        self._require_fitting(world, run)
        signal = accept_signal(
            run,
            world.ctx,
            name=self._name,
            arguments=self._arguments,
            trace=self._trace,
            request_id=self.request_id,
            digest=self._target.digest,
        )
        return signal.command_id, SIGNAL_RECEIVED

    def _require_fitting(self, world: World, run: Run) -> None:
        """Refuse what the code does not take, if everybody who could run it has told."""
        refuse_signal(run, self._name)
        place = Place(run.namespace, run.queue, run.workflow_type, run.build_id)
        live = world.live_workers(place)
        if is_unknown(live, run.workflow_type, "signals", self._name):
            raise UnknownSignal(
                f"workflow type {run.workflow_type} has no signal {self._name}",
                run_id=run.run_id,
                outcome="rejected_unknown_signal",
                rejection_reason="unknown_signal",
            )
        if self._count is None:
            return
        errors = argument_errors(live, run.workflow_type, self.kind, self._name, self._count)
        if errors:
            raise InvalidSignalArguments(
                f"the arguments do not fit signal {self._name}",
                run_id=run.run_id,
                outcome="rejected_invalid_arguments",
                rejection_reason="invalid_signal_arguments",
                errors=errors,
            )


class CancelRun(RunCommand):
    """Ask a run to end: it is closed at once and its code is not resumed."""

    __slots__ = ("_reason",)
    name = kind = "cancel"

    def __init__(self, target: CommandTarget, *, reason: str | None) -> None:
        super().__init__(target)
        self._reason = reason

    def apply(self, world: World, run: Run) -> tuple[str, str]:
        command_id = world.ctx.ids.ulid()
        cancel_run(run, world.ctx, command_id=command_id, reason=self._reason)
        return command_id, "cancelled"


class TerminateRun(RunCommand):
    """End a run by force."""

    __slots__ = ("_reason",)
    name = kind = "terminate"

    def __init__(self, target: CommandTarget, *, reason: str | None) -> None:
        super().__init__(target)
        self._reason = reason

    def apply(self, world: World, run: Run) -> tuple[str, str]:
        command_id = world.ctx.ids.ulid()
        terminate_run(run, world.ctx, command_id=command_id, reason=self._reason)
        return command_id, "terminated"

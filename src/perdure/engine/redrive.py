"""Continuing failed runs."""

from perdure.core.run.redrive import Prefix, redrive, require_failed
from perdure.core.run.state import Run
from perdure.engine.operation import Operation
from perdure.engine.run_commands import Commanded, CommandTarget
from perdure.engine.world import World
from perdure.store.interface import Instance, Receipt, ReceiptKey

KIND = "redrive"
REDRIVEN = "redriven"


class RedriveRun(Operation):
    """Open the next run of an id whose newest run has failed.

    The command is known by the run that it led to. Without a prefix that fits the run's history
    nothing is decided, and the answer is none.
    """

    __slots__ = ("_prefix", "_target")
    name = KIND

    def __init__(self, target: CommandTarget, prefix: Prefix | None) -> None:
        self._target = target
        self._prefix = prefix

    def instances(self) -> tuple[Instance, ...]:
        return (self._target.instance,)

    def run_ids(self) -> tuple[str, ...]:
        return () if self._target.run_id is None else (self._target.run_id,)

    def receipts(self) -> tuple[ReceiptKey, ...]:
        target = self._target
        if target.request_id is None:
            return ()
        return (ReceiptKey(*target.instance, KIND, target.request_id),)

    def decide(self, world: World) -> Commanded | None:
        target = self._target
        receipt = world.receipts.get(self.receipts()[0]) if target.request_id else None
        if receipt is not None:
            target.require_same(KIND, receipt)
            run = world.find_current(target.instance)
            workflow_type = "" if run is None else run.workflow_type
            return Commanded(receipt.command_id, workflow_type, receipt.command_id, REDRIVEN, True)
        failed = world.require_target(target.instance, target.run_id)
        require_failed(failed)
        if self._prefix is None or not _fits(failed, self._prefix):
            return None
        run = redrive(failed, world.ctx, self._prefix)
        world.opened(run)
        if target.request_id is not None:
            kept = Receipt(target.digest, failed.run_id, run.run_id, REDRIVEN, world.ctx.now)
            world.put_receipt(self.receipts()[0], kept)
        return Commanded(run.run_id, run.workflow_type, run.run_id, REDRIVEN)


def _fits(failed: Run, prefix: Prefix) -> bool:
    return (failed.run_id, failed.history_count) == (prefix.run_id, prefix.event_count)

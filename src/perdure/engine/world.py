"""What one beat knows and changes: loaded runs, new facts, and what follows from them."""

from collections.abc import Iterable, Iterator, Mapping

from perdure.core.fleet.contract import Place, live_workers
from perdure.core.fleet.rollout import Rollout
from perdure.core.fleet.worker import Worker
from perdure.core.limits import WORKERS_MAX
from perdure.core.push.pin import check_pin
from perdure.core.push.slot import check_slot
from perdure.core.push.usage_check import check_budget, check_pace
from perdure.core.rejection import (
    HistoricalRunCommandRejected,
    HistoryDamaged,
    InstanceNotFound,
    RunNotFound,
    StructuralLimitExceeded,
)
from perdure.core.run.context import Context
from perdure.core.run.effect import Effect, StartRun
from perdure.core.run.inbox import Signal, StreamMessage
from perdure.core.run.state import Run
from perdure.engine.catalogue import Catalogue
from perdure.engine.matching import Grant
from perdure.engine.operation import Operation
from perdure.engine.receipts import receipt_of
from perdure.engine.registry import Registry
from perdure.engine.rollouts import QueueName, Rollouts
from perdure.store.interface import (
    Changes,
    Instance,
    PayloadFate,
    PayloadKey,
    PayloadPut,
    QueueKey,
    Receipt,
    ReceiptKey,
    Record,
    RecordChange,
    RecordKey,
    RunRow,
    StreamKey,
)


class World:
    """Two operations of one beat see each other: the second decides on what the first left."""

    def __init__(
        self,
        ctx: Context,
        workers: dict[tuple[str, str], Worker],
        rollouts: Rollouts,
        registry: Registry,
    ) -> None:
        self.ctx = ctx
        self.runs: dict[str, Run] = {}
        self.current: dict[Instance, str] = {}
        self.receipts: dict[ReceiptKey, Receipt] = {}
        self.touched: dict[str, Run] = {}
        self.changes = Changes()
        self.follow_ups: list[Operation] = []
        self.grants: list[Grant] = []
        # Hints that turned out empty; they go only if the beat is committed.
        self.exhausted: list[tuple[QueueKey, set[str]]] = []
        # Runs that this beat removes.
        self.gone: set[str] = set()
        # Runs that are there and cannot be read.
        self.broken: dict[str, HistoryDamaged] = {}
        # Whether runs that memory holds are taken as they are, and which were.
        self.trusts_memory = False
        self.remembered: set[str] = set()
        # Whether workflow ids that are most likely new are taken as such.
        self.assumes_new_ids = False
        self.loaded_instances: set[Instance] = set()
        self.loaded_receipts: set[ReceiptKey] = set()
        # Every record that was asked for: as it was on disk, or None when there is none.
        self.records: dict[RecordKey, Record | None] = {}
        # What applications have registered, as far as operations have looked.
        self.catalogue = Catalogue()
        # What operators want of builds, as this node has heard; what operations of this beat
        # found on disk; and whether one of them changed it.
        self.rollouts = rollouts
        self.learned_rollouts: dict[QueueName, Rollout] = {}
        self.tells_rollouts = False
        # Where items of streams stand that this beat appends, by their idempotency keys.
        self.item_keys: dict[StreamKey, dict[str, int]] = {}
        self._workers = workers
        # Registrations as a shared store has them; what memory has may be old.
        self._learned: dict[tuple[str, str], Worker | None] = {}
        self.registry = registry

    # Finding -------------------------------------------------------------------------------------

    def find_current(self, instance: Instance) -> Run | None:
        run_id = self.current.get(instance)
        return None if run_id is None else self.runs.get(run_id)

    def require_target(self, instance: Instance, run_id: str | None) -> Run:
        """The run that a command is meant for: the newest one, which a given run id must name."""
        run = self.find_current(instance)
        if run is None:
            raise InstanceNotFound(f"workflow {instance.workflow_id} does not exist")
        if run_id is None or run.run_id == run_id:
            return run
        named = self.runs.get(run_id)
        if named is None or (named.namespace, named.workflow_id) != instance:
            raise RunNotFound(f"workflow {instance.workflow_id} has no run {run_id}", run_id=run_id)
        raise HistoricalRunCommandRejected(
            f"run {run_id} is not the newest run of workflow {instance.workflow_id}",
            target_scope="run",
            run_id=run_id,
            current_run_id=run.run_id,
            outcome="rejected_not_current",
            rejection_reason="selected_run_not_current",
        )

    def find_worker(self, namespace: str, worker_id: str) -> Worker | None:
        key = (namespace, worker_id)
        if key in self.changes.workers:
            return self.changes.workers[key]
        if key in self._learned:
            return self._learned[key]
        return self._workers.get(key)

    def add_workers(
        self,
        keys: Iterable[tuple[str, str]],
        found: Mapping[tuple[str, str], tuple[int, Worker]],
    ) -> None:
        """Take in registrations from a shared store."""
        for key in keys:
            revision, worker = found.get(key, (0, None))
            self._learned[key] = worker
            self.changes.worker_revisions[key] = revision

    def live_workers(self, place: Place) -> list[Worker]:
        """Those who know the code of a run there; some may drain."""
        return live_workers(self._known_workers(), place, self.ctx.now)

    def active_workers(self, place: Place) -> list[Worker]:
        """Those of them who could be given something new."""
        live, draining = self.live_workers(place), self.rollouts.draining
        return [worker for worker in live if worker.cohort not in draining] if draining else live

    def workers_of_queue(self, namespace: str, queue: str) -> Iterator[Worker]:
        """Who is registered for a queue, alive or not."""
        for worker in self._known_workers():
            is_there = worker.deregistered_at is None
            if is_there and (worker.namespace, worker.queue) == (namespace, queue):
                yield worker

    def _known_workers(self) -> Iterable[Worker]:
        if not self.changes.workers:
            return self._workers.values()
        merged = {**self._workers, **self.changes.workers}
        return [worker for worker in merged.values() if worker is not None]

    def require_room_for_worker(self) -> None:
        """Registrations are kept in memory, so there is an end to them."""
        known = len(self._workers) + len(self.changes.workers)
        if known >= WORKERS_MAX:
            raise StructuralLimitExceeded(
                f"{WORKERS_MAX} workers are registered",
                limit_kind="worker_count",
                current_value=known,
                configured_limit=WORKERS_MAX,
            )

    def find_record(self, key: RecordKey) -> Record | None:
        """A record as it stands now; it must have been asked for by an operation."""
        changed = self.changes.records.get(key)
        return self.records[key] if changed is None else changed.after

    # Changing ------------------------------------------------------------------------------------

    def changed(self, run: Run) -> None:
        """Note that a run was changed, and take up what follows for other runs."""
        self.touched[run.run_id] = run
        rejected = run.unsaved.rejected
        if rejected:
            run.unsaved.rejected = []
            self._renew_receipts(run, rejected, are_rejected=True)
        effects = run.unsaved.effects
        if effects:
            run.unsaved.effects = []
            for effect in effects:
                self.carry_out(effect)
        push = run.push
        if push is None:
            return
        ctx = self.ctx
        if push.meters is None:
            wanted: Effect | None = check_slot(run, ctx)
        else:
            # Who waits to begin has no slot, and who has one may find the budget used up.
            wanted = check_pace(run, ctx) or check_slot(run, ctx)
            wanted = wanted or check_budget(run, ctx)
        if wanted is not None:
            self.carry_out(wanted)
        if push.pin:
            check_pin(run, ctx.now)

    def carry_out(self, effect: Effect) -> None:
        if isinstance(effect, StartRun):
            self.opened(effect.run)
            return
        self.follow_ups.extend(self.registry.operations_for(effect))

    def opened(self, run: Run) -> None:
        """Take in a run that did not exist before."""
        self.runs[run.run_id] = run
        self.current[Instance(run.namespace, run.workflow_id)] = run.run_id
        if run.inbox and run.continued_from_run_id is None:
            # It takes over what an earlier run of its id had to reject.
            taken = [m for m in run.inbox.values() if isinstance(m, Signal | StreamMessage)]
            self._renew_receipts(run, taken, are_rejected=False)
        self.changed(run)

    def remove(self, row: RunRow) -> None:
        """A closed run is no more; nobody in this beat finds it again."""
        self.changes.gone.append(row)
        self.gone.add(row.run_id)
        self.runs.pop(row.run_id, None)

    def put_worker(self, worker: Worker) -> None:
        self.changes.workers[(worker.namespace, worker.worker_id)] = worker

    def put_record(self, key: RecordKey, after: Record | None) -> None:
        """Write a record, or remove it. Nothing is checked against it unless it was loaded."""
        self.changes.records[key] = RecordChange(self.records[key], after)

    def put_payload(self, key: PayloadKey, data: bytes) -> None:
        """Write the bytes of a payload that nothing durable names yet."""
        self.changes.payloads[key] = PayloadPut(data, is_loose=True)

    def keep_payload(self, key: PayloadKey) -> None:
        """Something durable names a payload from now on."""
        put = self.changes.payloads.get(key)
        if isinstance(put, PayloadPut):
            self.changes.payloads[key] = PayloadPut(put.data, is_loose=False)
        else:
            self.changes.payloads[key] = PayloadFate.KEPT

    def drop_payload(self, key: PayloadKey) -> None:
        """Nobody will ask for a payload any more."""
        self.changes.payloads[key] = PayloadFate.GONE

    def put_receipt(self, key: ReceiptKey, receipt: Receipt) -> None:
        self.receipts[key] = receipt
        self.changes.receipts[key] = receipt

    def _renew_receipts(
        self, run: Run, messages: Iterable[Signal | StreamMessage], *, are_rejected: bool
    ) -> None:
        """From this commit on repeats of these messages get another answer."""
        for message in messages:
            renewed = receipt_of(run, message, self.ctx.now, rejected=are_rejected)
            if renewed is None:
                continue
            key, receipt = renewed
            self.receipts[key] = receipt
            self.loaded_receipts.add(key)
            if key in self.changes.receipts:
                self.changes.receipts[key] = receipt
            else:
                self.changes.renewed_receipts[key] = receipt

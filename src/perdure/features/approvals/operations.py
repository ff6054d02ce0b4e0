"""Approvals as records, listed by their status and by their run, changed together with the run."""

from collections.abc import Iterator
from typing import get_args

from msgspec import structs

from perdure.core.push.approval import OPEN, Approval, ApprovalStatus, Decision, decided
from perdure.core.push.approval_step import find_asking, finish_approval
from perdure.core.push.effect import ApprovalMoved, AskedPeople
from perdure.core.rejection import ApprovalNotFound, ApprovalNotPending
from perdure.engine.operation import Operation
from perdure.engine.records import Listed, RecordKind
from perdure.engine.registration import SEPARATOR
from perdure.engine.run_control import note_action
from perdure.engine.world import World
from perdure.store.interface import RecordKey, Store

APPROVAL = RecordKind("approval", Approval)
BY_STATUS = RecordKind("approval_by_status", Listed)
BY_RUN = RecordKind("approval_by_run", Listed)

_ACTIONS = {"approved": "approve", "denied": "deny"}


def place_of(group: str, approval_id: str) -> str:
    """The key of an approval in the list of a status or of a run."""
    return group + SEPARATOR + approval_id


def approval_records(key: RecordKey) -> Iterator[RecordKey]:
    """The approval that an entry of a run's list names, and its keys in all other lists."""
    if key.kind == BY_RUN.name:
        approval_id = key.key.rpartition(SEPARATOR)[2]
        yield APPROVAL.key(key.namespace, approval_id)
        for status in get_args(ApprovalStatus):
            yield BY_STATUS.key(key.namespace, place_of(status, approval_id))


class KeepApproval(Operation):
    """Stores the approval that a step requests."""

    __slots__ = ("_asked",)
    name = "keep_approval"

    def __init__(self, asked: AskedPeople) -> None:
        self._asked = asked

    def decide(self, world: World) -> None:
        asked, namespace = self._asked, self._asked.run.namespace
        APPROVAL.add(world, namespace, asked.approval_id, asked.approval)
        status = place_of(asked.approval.status, asked.approval_id)
        BY_STATUS.add(world, namespace, status, Listed())
        BY_RUN.add(world, namespace, place_of(asked.run.run_id, asked.approval_id), Listed())


class ChangesApproval(Operation):
    """A change of one approval."""

    __slots__ = ("_approval_id", "_namespace")

    def __init__(self, namespace: str, approval_id: str) -> None:
        self._namespace = namespace
        self._approval_id = approval_id

    def records(self) -> tuple[RecordKey, ...]:
        lists = [place_of(status, self._approval_id) for status in OPEN]
        return (self.key, *(BY_STATUS.key(self._namespace, place) for place in lists))

    @property
    def key(self) -> RecordKey:
        return APPROVAL.key(self._namespace, self._approval_id)

    def put(self, world: World, before: Approval, after: Approval) -> None:
        """Write the approval, and move it to the list of its new status."""
        namespace, approval_id = self._namespace, self._approval_id
        APPROVAL.put(world, namespace, approval_id, after)
        BY_STATUS.remove(world, namespace, place_of(before.status, approval_id))
        BY_STATUS.add(world, namespace, place_of(after.status, approval_id), Listed())
        if after.status in _ACTIONS:
            note_action(
                world,
                namespace,
                _ACTIONS[after.status],
                actor=after.decided_by or "",
                run_id=after.run_id,
                detail=after.step,
            )


class MoveApproval(ChangesApproval):
    """Escalates, expires or cancels an approval, because time passed or its run closed."""

    __slots__ = ("_moved",)
    name = "move_approval"

    def __init__(self, moved: ApprovalMoved) -> None:
        super().__init__(moved.run.namespace, moved.approval_id)
        self._moved = moved

    def decide(self, world: World) -> None:
        moved = self._moved
        before = APPROVAL.find(world, self._namespace, self._approval_id)
        if before is None or before.status not in OPEN:
            return
        after = structs.replace(before, status=moved.status, decided_by=moved.decided_by)
        if moved.expires_at is not None:
            after = structs.replace(after, expires_at=moved.expires_at)
        if moved.decided_by is not None:
            after = structs.replace(after, decided_at=world.ctx.now)
        self.put(world, before, after)


class DecideApproval(ChangesApproval):
    """Approves or denies. The same decision again changes nothing; a different one is refused."""

    __slots__ = ("_decision",)
    name = "decide_approval"
    reads_before_load = True

    def __init__(self, namespace: str, approval_id: str, decision: Decision) -> None:
        super().__init__(namespace, approval_id)
        self._decision = decision

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        if self.key not in world.records:
            world.records[self.key] = (await store.find_records([self.key])).get(self.key)
        approval = APPROVAL.find(world, self._namespace, self._approval_id)
        return () if approval is None else (approval.run_id,)

    def decide(self, world: World) -> Approval:
        before = APPROVAL.find(world, self._namespace, self._approval_id)
        if before is None:
            raise ApprovalNotFound(f"there is no approval {self._approval_id[:64]}")
        after = decided(before, self._decision, world.ctx.now)
        if after is before:
            return before
        run = world.runs.get(before.run_id)
        step = None if run is None else find_asking(run, before)
        if run is None or step is None:
            raise ApprovalNotPending("its run does not wait for it", status=before.status)
        finish_approval(run, world.ctx, step, self._decision)
        world.changed(run)
        self.put(world, before, after)
        return after

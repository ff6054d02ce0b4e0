"""Concurrency of push workflows: a run has a slot while its passes run, and waits for one in order.

A run that wants a pass and has no slot is held back (`core/push/slot.py`), until there is room and
its turn has come; one that sleeps or waits for something gives its slot back. The counts and the
waiting runs are records, so limits hold across nodes.
"""

from msgspec import Struct

from perdure.core.intake.concurrency import (
    admissible,
    enter,
    leave,
    stop_waiting,
    turn_key,
    turn_prefix,
    wait,
)
from perdure.core.intake.flow_state import Slots
from perdure.core.limits import SLOT_CANDIDATES_MAX
from perdure.core.push.effect import LeavesSlot, WantsSlot
from perdure.core.push.slot import needs_no_slot
from perdure.core.run.push import Push
from perdure.core.run.state import Run
from perdure.core.run.task import hasten_task
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.store.interface import RecordKey, RecordRange, Store


class Turn(Struct):
    """A run that waits for a slot; its key says when its turn is."""

    run_id: str


SLOTS = RecordKind("slots", Slots)
TURN = RecordKind("slot_turn", Turn)


class TakeSlot(Operation):
    """A run wants a pass: it gets a slot, or its turn is noted."""

    __slots__ = ("_run", "_since")
    name = "take_slot"

    def __init__(self, wanted: WantsSlot) -> None:
        self._run = wanted.run
        self._since = wanted.since

    def records(self) -> tuple[RecordKey, ...]:
        return (SLOTS.key(self._run.namespace, _push(self._run).slot or ""),)

    def decide(self, world: World) -> None:
        run, push = self._run, _push(self._run)
        slot = push.slot
        if slot is None or push.has_slot or run.is_closed or run.task is None:
            return
        slots = SLOTS.find(world, run.namespace, slot)
        entered = None if push.turn else enter(slots, push.slot_limit, waited=False)
        if entered is not None:
            SLOTS.put(world, run.namespace, slot, entered)
            _let_in(world, run)
        elif push.turn is None:
            SLOTS.put(world, run.namespace, slot, wait(slots))
            push.turn = turn_key(slot, self._since, run.run_id)
            TURN.add(world, run.namespace, push.turn, Turn(run.run_id))
            world.changed(run)
        # One that waits already was woken by its own clock: perhaps somebody left unnoticed.
        elif admissible(slots, push.slot_limit):
            world.follow_ups.append(CallNext(run.namespace, slot, push.slot_limit))


class ReleaseSlot(Operation):
    """A run needs no pass now: what it has is given back, and where it waits it waits no more."""

    __slots__ = ("_run",)
    name = "let_slot_go"

    def __init__(self, left: LeavesSlot) -> None:
        self._run = left.run

    def records(self) -> tuple[RecordKey, ...]:
        push, namespace = _push(self._run), self._run.namespace
        turn = () if push.turn is None else (TURN.key(namespace, push.turn),)
        return (SLOTS.key(namespace, push.slot or ""), *turn)

    def decide(self, world: World) -> None:
        run, push = self._run, _push(self._run)
        slot, namespace = push.slot, run.namespace
        if slot is None or not needs_no_slot(run):
            return
        slots = SLOTS.find(world, namespace, slot)
        if push.has_slot:
            push.has_slot = False
            _put(world, namespace, slot, leave(slots))
            world.follow_ups.append(CallNext(namespace, slot, push.slot_limit))
        elif push.turn is not None:
            TURN.remove(world, namespace, push.turn)
            push.turn = None
            _put(world, namespace, slot, stop_waiting(slots))
        world.changed(run)


class CallNext(Operation):
    """There may be room: those whose turn it is get in."""

    __slots__ = ("_limit", "_namespace", "_slot", "_turns")
    name = "call_next"
    reads_before_load = True

    def __init__(self, namespace: str, slot: str, limit: int) -> None:
        self._namespace = namespace
        self._slot = slot
        self._limit = limit
        self._turns: tuple[RecordKey, ...] = ()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        wanted = RecordRange(
            kind=TURN.name,
            namespace=self._namespace,
            prefix=turn_prefix(self._slot),
            limit=SLOT_CANDIDATES_MAX,
        )
        self._turns = tuple(await store.find_record_keys(wanted))
        return tuple(_run_id(key) for key in self._turns)

    def records(self) -> tuple[RecordKey, ...]:
        return (SLOTS.key(self._namespace, self._slot), *self._turns)

    def decide(self, world: World) -> None:
        # Whose turn began in this very beat is not on disk yet.
        fresh = (k for k in world.changes.records if self._is_turn(k))
        for key in sorted({*self._turns, *fresh}):
            slots = SLOTS.find(world, self._namespace, self._slot)
            if not admissible(slots, self._limit):
                return
            run = world.runs.get(_run_id(key))
            if world.find_record(key) is None or run is None or run.is_closed:
                continue
            entered = enter(slots, self._limit, waited=True)
            assert entered is not None
            SLOTS.put(world, self._namespace, self._slot, entered)
            world.put_record(key, None)
            _push(run).turn = None
            _let_in(world, run)

    def _is_turn(self, key: RecordKey) -> bool:
        here = key.kind == TURN.name and key.namespace == self._namespace
        return here and key.key.startswith(turn_prefix(self._slot))


def _let_in(world: World, run: Run) -> None:
    push = _push(run)
    push.has_slot = True
    if push.meters is not None:
        # Whatever its budget said before, much may have been used while it waited.
        push.meters.cleared = 0
    hasten_task(run, world.ctx, {})
    world.changed(run)


def _put(world: World, namespace: str, slot: str, slots: Slots | None) -> None:
    if slots is None:
        SLOTS.remove(world, namespace, slot)
    else:
        SLOTS.put(world, namespace, slot, slots)


def _run_id(key: RecordKey) -> str:
    return key.key.rpartition("/")[2]


def _push(run: Run) -> Push:
    assert run.push is not None
    return run.push

"""Budgets and token throttles of push workflows: asked before passes, told what was used.

A run that wants a pass is held back until its meters have answered (`core/push/usage_check.py`).
The logs and the waiting runs are records, so limits hold across nodes, and a log is due when
there is room again.
"""

from collections.abc import Iterable

from msgspec import structs

from perdure.core.intake.concurrency import turn_key, turn_prefix
from perdure.core.intake.usage_log import (
    Policy,
    UseLog,
    charge,
    crosses_warning,
    end_paced,
    forgotten_at,
    free_at,
    in_words,
    settle_paced,
    start_paced,
)
from perdure.core.limits import METER_CANDIDATES_MAX, METER_KEPT
from perdure.core.push.control import release_run
from perdure.core.push.effect import WantsMeter
from perdure.core.push.logs import engine_log
from perdure.core.push.slot import lacks_slot
from perdure.core.push.step import push_of
from perdure.core.push.usage import Metered
from perdure.core.push.usage_check import clear_pass, meters_of, pause_for_budget
from perdure.core.run.lease import TaskState
from perdure.core.run.push import Meter, Meters
from perdure.core.run.state import Run
from perdure.core.run.task import hasten_task
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.slots import Turn
from perdure.engine.world import World
from perdure.store.interface import Record, RecordKey, RecordRange, Store

METER = RecordKind("meter", UseLog)
WAITING = RecordKind("meter_turn", Turn)


class CheckUsageLimits(Operation):
    """A run wants a pass: it may have it, or it is noted that it waits."""

    __slots__ = ("_run", "_since")
    name = "ask_meters"

    def __init__(self, wanted: WantsMeter) -> None:
        self._run = wanted.run
        self._since = wanted.since

    def records(self) -> tuple[RecordKey, ...]:
        return meter_keys(self._run)

    def decide(self, world: World) -> None:
        run, meters = self._run, meters_of(self._run)
        task = run.task
        if run.is_closed or meters is None or task is None or task.state is TaskState.LEASED:
            return
        if not meters.is_paced:
            self._ask_pace(world, run, meters)
        elif lacks_slot(run):
            # Its throttle has let it go meanwhile. The budget is asked when it has a slot, for
            # others may use it up before that.
            return
        elif may_spend(world, run):
            clear_pass(run, world.ctx)
        else:
            self._pause(world, run, meters)
        world.changed(run)

    def _ask_pace(self, world: World, run: Run, meters: Meters) -> None:
        pace, now = meters.pace, world.ctx.now
        assert pace is not None
        log = _find(world, run, pace, "tokenThrottle")
        if meters.turn is None:
            if not log.waiting and free_at(log, pace, now) == now:
                _start(world, run, meters, log)
                hasten_task(run, world.ctx, {})
                return
            meters.turn = turn_key(pace.key, self._since, run.run_id)
            _wait(world, run, pace, log, meters.turn)
        # Who waits already was woken by its own clock; who comes new may find the line overdue.
        _call_if_due(world, run.namespace, pace.key)

    def _pause(self, world: World, run: Run, meters: Meters) -> None:
        budget = meters.budget
        assert budget is not None
        log = _find(world, run, budget, "budget")
        turn = turn_key(budget.key, self._since, run.run_id)
        pause_for_budget(run, world.ctx, turn, in_words(log, budget, world.ctx.now))
        _wait(world, run, budget, log, turn)


def has_means(world: World, run: Run) -> bool:
    """Whether something is left of the budget of a run, whose log is loaded."""
    meters, now = meters_of(run), world.ctx.now
    budget = None if meters is None or meters.is_waived else meters.budget
    return budget is None or free_at(_find(world, run, budget, "budget"), budget, now) == now


def may_spend(world: World, run: Run) -> bool:
    """Whether the budget of a run lets a pass go now; if so, that is counted."""
    meters = meters_of(run)
    budget = None if meters is None or meters.is_waived else meters.budget
    if budget is None:
        return True
    if not has_means(world, run):
        return False
    log = _find(world, run, budget, "budget")
    _put(world, run.namespace, budget, structs.replace(log, passes=log.passes + 1))
    _call_if_due(world, run.namespace, budget.key)
    return True


def ask_again(world: World, run: Run) -> None:
    """The budget of a run was used up before anybody took its pass."""
    meters = meters_of(run)
    assert meters is not None
    meters.cleared = 0
    world.changed(run)


class RecordUse(Operation):
    """A run has ended: now it is known what it used."""

    __slots__ = ("_run",)
    name = "learn_use"

    def __init__(self, run: Run) -> None:
        self._run = run

    def records(self) -> tuple[RecordKey, ...]:
        return meter_keys(self._run)

    def decide(self, world: World) -> None:
        meters, spent = meters_of(self._run), push_of(self._run).spent
        if meters is not None and meters.pace is not None:
            log = _find(world, self._run, meters.pace, "tokenThrottle")
            log = end_paced(log, meters, 0 if spent is None else spent.tokens)
            _put(world, self._run.namespace, meters.pace, log)
            world.changed(self._run)


class MeterDue(Operation):
    """There may be room: those who wait go on in order, or there is nothing left to remember."""

    __slots__ = ("_record", "_turns")
    name = "meter_due"
    reads_before_load = True

    def __init__(self, record: RecordKey) -> None:
        self._record = record
        self._turns: tuple[RecordKey, ...] = ()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        wanted = RecordRange(
            kind=WAITING.name,
            namespace=self._record.namespace,
            prefix=turn_prefix(self._record.key),
            limit=METER_CANDIDATES_MAX,
        )
        self._turns = tuple(await store.find_record_keys(wanted))
        return tuple(_run_id(key) for key in self._turns)

    def records(self) -> tuple[RecordKey, ...]:
        return (self._record, *self._turns)

    def decide(self, world: World) -> bool:
        record, now = world.find_record(self._record), world.ctx.now
        if record is None or record.due_at is None or now < record.due_at:
            return True
        log = METER.decode(record)
        if not log.waiting:
            world.put_record(self._record, None)
            return True
        # Whose turn began in this very beat is not on disk yet.
        fresh = (key for key in world.changes.records if self._is_turn(key))
        turns = sorted({*self._turns, *fresh})
        known = [turn for turn in turns if world.find_record(turn) is not None]
        again = self._call(world, known)
        after = METER.decode(_require(world, self._record))
        due_at = now + METER_KEPT
        if again:
            due_at = min(again)
        elif len(turns) < METER_CANDIDATES_MAX:
            # All have been looked at. Who is left waits for somebody: a budget of nothing.
            after = structs.replace(after, waiting=min(after.waiting, len(known)))
        elif after.waiting < log.waiting or not known:
            # There are more, whom the disk shows when these are gone from it.
            due_at = now
        METER.put(world, self._record.namespace, self._record.key, after, due_at=due_at)
        return True

    def _call(self, world: World, turns: Iterable[RecordKey]) -> list[int]:
        """Let those go on who may; returns when the others may."""
        again: list[int] = []
        for turn in turns:
            run = world.runs.get(_run_id(turn))
            meters = None if run is None else meters_of(run)
            if run is None or meters is None or not _waits(run, meters, turn.key):
                self._leave(world, turn, meters)
                continue
            meter = _meter_of(meters, turn.key)
            log = METER.decode(_require(world, self._record))
            free = free_at(log, meter, world.ctx.now)
            if free == world.ctx.now:
                self._leave(world, turn, meters)
                _go_on(world, run, meters, meter)
            elif free is not None:
                again.append(free)
                if meter is meters.pace:
                    break
        return again

    def _leave(self, world: World, turn: RecordKey, meters: Meters | None) -> None:
        """A turn is over, or nobody has it any more."""
        world.put_record(turn, None)
        record = _require(world, self._record)
        log = METER.decode(record)
        log = structs.replace(log, waiting=max(0, log.waiting - 1))
        METER.put(world, self._record.namespace, self._record.key, log, due_at=record.due_at)
        if meters is not None and meters.turn == turn.key:
            meters.turn = None

    def _is_turn(self, key: RecordKey) -> bool:
        here = key.kind == WAITING.name and key.namespace == self._record.namespace
        return here and key.key.startswith(turn_prefix(self._record.key))


def charge_meters(world: World, metered: Metered) -> None:
    """A run used something up. Its logs must have been loaded."""
    run, usage, now = metered.run, metered.usage, world.ctx.now
    meters = meters_of(run)
    if meters is None:
        return
    if meters.budget is not None:
        before = _find(world, run, meters.budget, "budget")
        log = charge(before, meters.budget.window, now, tokens=usage.tokens, cost=usage.cost or 0)
        _put(world, run.namespace, meters.budget, log)
        if crosses_warning(log, before, meters.budget, now) and not run.is_closed:
            told = f"much of the budget is used up: {in_words(log, meters.budget, now)}"
            engine_log(run, world.ctx, "@root", push_of(run).attempt, told)
    if meters.pace is not None:
        log = _find(world, run, meters.pace, "tokenThrottle")
        log = settle_paced(log, meters, now, usage.tokens)
        _put(world, run.namespace, meters.pace, log)


def meter_keys(run: Run) -> tuple[RecordKey, ...]:
    """Where it is counted what a run uses."""
    meters = meters_of(run)
    told = () if meters is None else (meters.budget, meters.pace)
    return tuple(METER.key(run.namespace, meter.key) for meter in told if meter is not None)


def _waits(run: Run, meters: Meters, turn: str) -> bool:
    """Whether a run waits where its turn says. Others may have resumed, paused or ended it."""
    if run.is_closed or meters.turn != turn:
        return False
    pause = push_of(run).pause
    if meters.pace is not None and turn.startswith(turn_prefix(meters.pace.key)):
        return pause is None and run.task is not None
    return pause is not None and pause.reason == "budget"


def _meter_of(meters: Meters, turn: str) -> Meter:
    pace, budget = meters.pace, meters.budget
    if pace is not None and turn.startswith(turn_prefix(pace.key)):
        return pace
    assert budget is not None
    return budget


def _go_on(world: World, run: Run, meters: Meters, meter: Meter) -> None:
    if meter is meters.pace:
        _start(world, run, meters, _find(world, run, meter, "tokenThrottle"))
        hasten_task(run, world.ctx, {})
    else:
        release_run(run, world.ctx)
    # Its budget, and its slot, are asked for now.
    world.changed(run)


def _start(world: World, run: Run, meters: Meters, log: UseLog) -> None:
    assert meters.pace is not None
    _put(world, run.namespace, meters.pace, start_paced(log, meters, world.ctx.now))


def _find(world: World, run: Run, meter: Meter, policy: Policy) -> UseLog:
    known = METER.find(world, run.namespace, meter.key)
    return known or UseLog(app=run.queue, workflow=run.workflow_type, policy=policy)


def _put(world: World, namespace: str, meter: Meter, log: UseLog) -> None:
    """Write a log. While somebody waits it is due no later than it was, for others may have other
    limits, and looking early does no harm."""
    now = world.ctx.now
    record = world.find_record(METER.key(namespace, meter.key))
    due_at = None if record is None else record.due_at
    if not log.waiting or due_at is None:
        due_at = forgotten_at(log, meter.window, now)
    elif (free := free_at(log, meter, now)) is not None:
        due_at = min(due_at, free)
    METER.put(world, namespace, meter.key, log, due_at=due_at)


def _wait(world: World, run: Run, meter: Meter, log: UseLog, turn: str) -> None:
    """Note that a run waits, and look when there is room for it."""
    now = world.ctx.now
    WAITING.add(world, run.namespace, turn, Turn(run.run_id))
    record = world.find_record(METER.key(run.namespace, meter.key))
    due = [] if record is None or not log.waiting else [record.due_at]
    due.append(free_at(log, meter, now))
    known = [ctx for ctx in due if ctx is not None]
    log = structs.replace(log, waiting=log.waiting + 1)
    due_at = min(known, default=forgotten_at(log, meter.window, now))
    METER.put(world, run.namespace, meter.key, log, due_at=due_at)


def _call_if_due(world: World, namespace: str, key: str) -> None:
    """The deadline loop may be late, and nobody shall pass those who wait."""
    record = world.find_record(METER.key(namespace, key))
    if record is None or record.due_at is None or record.due_at > world.ctx.now:
        return
    if METER.decode(record).waiting:
        world.follow_ups.append(MeterDue(METER.key(namespace, key)))


def _require(world: World, key: RecordKey) -> Record:
    record = world.find_record(key)
    assert record is not None
    return record


def _run_id(key: RecordKey) -> str:
    return key.key.rpartition("/")[2]

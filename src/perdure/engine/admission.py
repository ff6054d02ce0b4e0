"""Triggers of push workflows on their way through flow control: some become runs.

Whoever has triggers names the states that they are decided on (`gather`), has them loaded, and asks
`admit_trigger`, all in one beat; see `core/intake/flow.py` for the rules. A buffer comes back when
it is due, a singleton is given back when its run ends.
"""

from typing import TypedDict

import msgspec
from msgspec import Struct

from perdure.core.intake.concurrency import concurrency_gate
from perdure.core.intake.definition import Cap, Flow, Retry, Workflow
from perdure.core.intake.flow import Admission, Outcome, Start, admit, flush, release
from perdure.core.intake.flow_state import (
    Arrival,
    Buffer,
    Gate,
    Policy,
    SingletonHolder,
    State,
    buffer_gates,
    due_at,
    gates_of,
    record_key,
    scope_of,
)
from perdure.core.limits import SECOND
from perdure.core.push.start import PushStart, event_arguments, start_push_run
from perdure.core.push.usage import billionths
from perdure.core.run.close import cancel_run
from perdure.core.run.push import Meter, Meters, SpendCap, StepRetry
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registration import open_book
from perdure.engine.world import World
from perdure.store.interface import Record, RecordKey, Store

FLOW = "flow"
"""The kind of the records of flow control."""

_UNLIMITED = Flow()
_encode = msgspec.msgpack.Encoder().encode


class LimitMembers(TypedDict):
    """What of a start says what it may use, of passes and of models."""

    slot: str | None
    slot_limit: int
    cap: SpendCap | None
    meters: Meters | None
    pass_timeout: int | None


class Home(Struct, frozen=True):
    """A workflow that may be started, and where it is at home."""

    namespace: str
    app: str
    workflow: Workflow

    def key(self, gate: Gate) -> RecordKey:
        return RecordKey(FLOW, self.namespace, record_key(self.app, self.workflow.name, gate))


class Kept(Struct, frozen=True, kw_only=True):
    """A state with what its name says, as names may be told by their digest only."""

    app: str
    workflow: str
    policy: Policy
    scope: str
    state: State


KEPT = RecordKind(FLOW, Kept)
_decode = msgspec.msgpack.Decoder(Kept).decode


class Admitted(Struct, frozen=True):
    """What became of a trigger."""

    outcome: Outcome
    run_id: str | None


class Gathered(Struct, frozen=True):
    """What must be loaded before a trigger is decided."""

    records: tuple[RecordKey, ...] = ()
    run_ids: tuple[str, ...] = ()


async def gather(store: Store, world: World, home: Home, data: object) -> Gathered:
    """The states that a trigger with this decoded data is decided on, and runs it may cancel."""
    flow = home.workflow.flow
    gates = gates_of(flow, data)
    run_ids: list[str] = []
    for gate in list(gates):
        if gate.policy in ("debounce", "batch"):
            buffer = await _peek(store, world, home.key(gate))
            if isinstance(buffer, Buffer):
                gates += buffer_gates(flow, buffer)
    for gate in gates:
        if gate.policy == "singleton":
            held = await _peek(store, world, home.key(gate))
            if isinstance(held, SingletonHolder):
                run_ids.append(held.run_id)
    return Gathered(tuple(home.key(gate) for gate in gates), tuple(run_ids))


def admit_trigger(world: World, home: Home, arrival: Arrival, data: object) -> Admitted:
    """Decide on one trigger whose states are loaded."""
    run_id = world.ctx.ids.ulid()
    admission = admit(
        home.workflow.flow,
        _States(world, home),
        arrival,
        data,
        run_id=run_id,
        now=world.ctx.now,
    )
    _apply(world, home, admission)
    return Admitted(admission.outcome, admission.run_id)


class FlowDue(Operation):
    """A state of flow control is due: a buffer is flushed, anything else forgotten."""

    __slots__ = ("_gathered", "_home", "_record")
    name = "flow_due"
    reads_before_load = True

    def __init__(self, record: RecordKey) -> None:
        self._record = record
        self._home: Home | None = None
        self._gathered = Gathered()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        book = await open_book(store, world, self._record.namespace)
        kept = await _peek_kept(store, world, self._record)
        self._home, self._gathered = None, Gathered()
        if kept is None or not isinstance(kept.state, Buffer):
            return ()
        definition = book.find(kept.app, kept.workflow)
        if definition is None:
            return ()
        self._home = Home(self._record.namespace, kept.app, definition.workflow)
        gates = buffer_gates(definition.workflow.flow, kept.state)
        held = [await _peek(store, world, self._home.key(gate)) for gate in gates]
        self._gathered = Gathered(
            tuple(self._home.key(gate) for gate in gates),
            tuple(one.run_id for one in held if isinstance(one, SingletonHolder)),
        )
        return self._gathered.run_ids

    def records(self) -> tuple[RecordKey, ...]:
        return (self._record, *self._gathered.records)

    def decide(self, world: World) -> bool:
        record = world.find_record(self._record)
        now = world.ctx.now
        if record is None or record.due_at is None or now < record.due_at:
            return True
        kept = _decode(record.data)
        if not isinstance(kept.state, Buffer) or self._home is None:
            # What it remembered is over, or its workflow is gone.
            world.put_record(self._record, None)
            return True
        admission = flush(
            self._home.workflow.flow,
            _States(world, self._home),
            Gate(kept.policy, kept.scope),
            kept.state,
            run_id=world.ctx.ids.ulid(),
            now=now,
        )
        _apply(world, self._home, admission)
        return True


class ReleaseSingleton(Operation):
    """A run that was the only one of its kind has ended."""

    __slots__ = ("_record", "_run_id")
    name = "release_singleton"

    def __init__(self, record: RecordKey, run_id: str) -> None:
        self._record = record
        self._run_id = run_id

    def records(self) -> tuple[RecordKey, ...]:
        return (self._record,)

    def decide(self, world: World) -> None:
        record = world.find_record(self._record)
        if record is not None and release(_decode(record.data).state, self._run_id) is None:
            world.put_record(self._record, None)


def step_retry(told: Retry) -> StepRetry:
    """The policy of a workflow's steps, in our unit of time."""
    longest = told.max_delay_ms
    return StepRetry(
        attempts_max=told.max_attempts,
        backoff=told.backoff,
        initial_delay=told.initial_delay_ms * (SECOND // 1000),
        max_delay=None if longest is None else longest * (SECOND // 1000),
    )


class _States:
    """The states of one workflow as they stand in the beat. Each must have been loaded."""

    def __init__(self, world: World, home: Home) -> None:
        self._world = world
        self._home = home

    def get(self, gate: Gate, /) -> State | None:
        record = self._world.find_record(self._home.key(gate))
        return None if record is None else _decode(record.data).state


def _apply(world: World, home: Home, admission: Admission) -> None:
    for gate, state in admission.changes.items():
        world.put_record(home.key(gate), None if state is None else _record(home, gate, state))
    if admission.start is not None:
        _open(world, home, admission.start)


def _open(world: World, home: Home, start: Start) -> None:
    ctx = world.ctx
    if start.cancels is not None:
        old = world.runs.get(start.cancels)
        if old is not None and not old.is_closed:
            reason = "a newer trigger of a singleton"
            cancel_run(old, ctx, command_id=ctx.ids.ulid(), reason=reason)
            world.changed(old)
    first, workflow = start.arrivals[0], home.workflow
    arguments = (
        batch_arguments(start.arrivals)
        if start.is_batch
        else event_arguments(first.name, first.data or None)
    )
    singleton = None if start.singleton is None else home.key(start.singleton).key
    run = start_push_run(
        PushStart(
            namespace=home.namespace,
            app=home.app,
            workflow=workflow.name,
            arguments=arguments,
            event_name=first.name,
            event_id=first.event_id,
            trigger=first.trigger,
            pin=first.pin,
            retry=step_retry(workflow.retry),
            handles_failure=workflow.on_failure,
            session=first.session,
            tags=first.tags,
            delay=start.not_before - ctx.now,
            shift=start.not_before - start.position,
            singleton=singleton,
            **limits_of(home.app, workflow, first.data),
        ),
        ctx,
        start.run_id,
    )
    world.opened(run)


def limits_of(
    app: str, workflow: Workflow, data: bytes | None, *, is_admitted: bool = False
) -> LimitMembers:
    """What a run with this data may use: of passes at once, and of models.

    One that is admitted already is not delayed by what others use.
    """
    flow = workflow.flow
    told = workflow.pass_timeout_ms
    timeout = None if told is None else told * (SECOND // 1000)
    if flow == _UNLIMITED:
        return {
            "slot": None,
            "slot_limit": 0,
            "cap": None,
            "meters": None,
            "pass_timeout": timeout,
        }
    value = msgspec.json.decode(data) if data else None
    gate = concurrency_gate(flow, value)
    return {
        "slot": None if gate is None else record_key(app, workflow.name, gate),
        "slot_limit": 0 if flow.concurrency is None else flow.concurrency.limit,
        "cap": None if flow.cap is None else spend_cap(flow.cap),
        "meters": _meters(app, workflow, value, is_admitted),
        "pass_timeout": timeout,
    }


def _meters(app: str, workflow: Workflow, value: object, is_admitted: bool) -> Meters | None:
    budget, pace = workflow.flow.budget, workflow.flow.token_throttle
    if budget is None and pace is None:
        return None
    meters = Meters(is_paced=is_admitted or pace is None)
    if budget is not None:
        meters.budget = Meter(
            key=record_key(app, workflow.name, Gate("budget", "")),
            window=budget.window_ms * (SECOND // 1000),
            tokens=budget.max_tokens,
            cost=None if budget.max_cost is None else billionths(budget.max_cost),
            warn_at=budget.warn_at_pct,
        )
    if pace is not None:
        meters.pace = Meter(
            key=record_key(app, workflow.name, Gate("tokenThrottle", scope_of(pace.key, value))),
            window=pace.per_ms * (SECOND // 1000),
            tokens=pace.tokens,
        )
    return meters


def spend_cap(told: Cap) -> SpendCap:
    """What a run may use up, in our unit of money."""
    cost = None if told.max_cost is None else billionths(told.max_cost)
    return SpendCap(cost=cost, tokens=told.max_tokens)


def batch_arguments(arrivals: tuple[Arrival, ...]) -> bytes:
    """The head of the passes of a run that several events started: the first, and all."""
    heads = [event_arguments(one.name, one.data or None) for one in arrivals]
    # Each is `{"event":…}`; what stands behind the colon is the event.
    events = [head[len(b'{"event":') : -1] for head in heads]
    return b'{"event":%b,"events":[%b]}' % (events[0], b",".join(events))


async def _peek(store: Store, world: World, key: RecordKey) -> State | None:
    """A state as it is known before this is decided."""
    kept = await _peek_kept(store, world, key)
    return None if kept is None else kept.state


async def _peek_kept(store: Store, world: World, key: RecordKey) -> Kept | None:
    if key not in world.records:
        world.records[key] = (await store.find_records([key])).get(key)
    record = world.find_record(key)
    return None if record is None else _decode(record.data)


def _record(home: Home, gate: Gate, state: State) -> Record:
    kept = Kept(
        app=home.app,
        workflow=home.workflow.name,
        policy=gate.policy,
        scope=gate.scope,
        state=state,
    )
    return Record(_encode(kept), due_at(state))

"""Flow control: which triggers become runs, when, and the outcome of the others.

Each policy with state stores one small record per workflow and scope (`flow_state.py`). It is
changed in the beat that accepts the event, so that limits hold exactly on any number of nodes. The
engine uses this module as follows.

- **A trigger** (a matching event, a manual start, a tick of a schedule): load the states of
  `gates_of(flow, data)`, and those of `buffer_gates(flow, buffer)` if there is a buffer among them.
  Call `admit`. Write `changes` (None removes), each with `due_at` of its state. If there is a
  `start`, create that run; the response names `run_id` and the boolean of `outcome`.
- **A start** contains its events, the earliest time of its first task (`not_before`), its
  place in the queue (`position`), the run to cancel first, and the singleton that it holds.
- **A due record**: pass a buffer to `flush`, with the states of `buffer_gates`; remove every other
  due state, which has expired.
- **A run that ends** and holds a singleton: load that state, write the result of `release`.
- **A pass** of a run under `concurrency` needs a slot (`concurrency.py`), at the gate that the run
  stores from its start: `enter` and `leave`. If `enter` refuses, call `wait` and write a record
  under `turn_key`; after a `leave`, `admissible` is the number of waiting runs that may `enter`.

The order of gates is: idempotency, rateLimit, singleton that skips, debounce, batch; then, when a
run is created, singleton that cancels, throttle, priority. The first that stops a trigger is
reported. Only a trigger that is admitted, as a run or into a buffer, counts against limits: one
that is dropped or skipped may be sent again and is not a duplicate (decision 42). Replays,
children, failure handlers and evals bypass all of this; concurrency still applies to them, except
to failure handlers.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from perdure.core import limits
from perdure.core.intake.definition import Flow, RateLimit
from perdure.core.intake.flow_state import (
    Arrival,
    Buffer,
    Gate,
    Pace,
    RateLog,
    Seen,
    SingletonHolder,
    State,
    States,
    buffer_gates,
    gates_of,
)

Outcome = Literal["started", "skipped", "dropped", "debounced", "batched", "deduped"]
BOOLEANS: tuple[Outcome, ...] = ("skipped", "dropped", "debounced", "batched", "deduped")
"""The outcomes that a response reports as booleans, for each matched workflow."""

_MILLISECOND = 1_000


class Start(Struct, frozen=True, kw_only=True):
    """A run to create."""

    run_id: str
    arrivals: tuple[Arrival, ...]
    """Its triggers: one, or all of a batch in order."""
    is_batch: bool
    not_before: int
    position: int
    """Its place in every queue, as an instant; a priority moves it."""
    cancels: str | None = None
    """An open run to cancel first."""
    singleton: Gate | None = None
    """The singleton that it holds until it ends."""


class Admission(Struct, frozen=True, kw_only=True):
    """The decision on a trigger, or on a buffer."""

    outcome: Outcome
    start: Start | None = None
    carries_trigger: bool = False
    """Whether the started run carries the trigger that was decided on."""
    changes: Mapping[Gate, State | None] = {}
    shed: int = 0
    """How many buffered triggers were discarded because a singleton run is open."""

    @property
    def run_id(self) -> str | None:
        """The run id in the response."""
        return self.start.run_id if self.start is not None and self.carries_trigger else None


def admit(
    flow: Flow, states: States, arrival: Arrival, data: object, *, run_id: str, now: int
) -> Admission:
    """Decide on one trigger. `data` is decoded; `run_id` is for the run, if one starts."""
    gates = {gate.policy: gate for gate in gates_of(flow, data)}
    spent: dict[Gate, State | None] = {}
    if flow.idempotency is not None:
        gate = gates["idempotency"]
        seen = states.get(gate)
        if isinstance(seen, Seen) and now < seen.until:
            return Admission(outcome="deduped")
        spent[gate] = Seen(now + flow.idempotency.period_ms * _MILLISECOND)
    if flow.rate_limit is not None:
        gate = gates["rateLimit"]
        counted = _counted(states.get(gate), flow.rate_limit, now)
        if counted is None:
            return Admission(outcome="dropped")
        spent[gate] = counted
    if flow.singleton is not None and flow.singleton.mode == "skip":
        held = states.get(gates["singleton"])
        if isinstance(held, SingletonHolder):
            return Admission(outcome="skipped")
    if flow.debounce is not None or flow.batch is not None:
        gate = gates["batch" if flow.batch is not None else "debounce"]
        return _buffered(flow, states, gate, arrival, spent, run_id=run_id, now=now)
    made = _made(flow, states, gates.values(), (arrival,), run_id=run_id, now=now)
    return msgspec.structs.replace(made, carries_trigger=True, changes={**spent, **made.changes})


def flush(
    flow: Flow, states: States, gate: Gate, buffer: Buffer, *, run_id: str, now: int
) -> Admission:
    """Decide on a due buffer, with the current definition. A buffer that is not due stays."""
    if now < buffer.fire_at:
        return Admission(outcome=_outcome(gate), changes={gate: buffer})
    made = _made_of(flow, states, gate, buffer, run_id=run_id, now=now)
    return msgspec.structs.replace(made, changes={**made.changes, gate: None})


def release(state: State | None, run_id: str) -> State | None:
    """A singleton after the end of a run: free, unless another run holds it by now."""
    return None if isinstance(state, SingletonHolder) and state.run_id == run_id else state


# Runs ---------------------------------------------------------------------------------------------


def _made_of(
    flow: Flow, states: States, gate: Gate, buffer: Buffer, *, run_id: str, now: int
) -> Admission:
    """The run of a buffer."""
    gates = buffer_gates(flow, buffer)
    made = _made(flow, states, gates, buffer.arrivals, run_id=run_id, now=now)
    start = made.start and msgspec.structs.replace(made.start, is_batch=gate.policy == "batch")
    return msgspec.structs.replace(made, start=start)


def _made(
    flow: Flow,
    states: States,
    gates: Iterable[Gate],
    arrivals: tuple[Arrival, ...],
    *,
    run_id: str,
    now: int,
) -> Admission:
    """The start of a run, unless a singleton that skips is held by an open run."""
    by_policy = {gate.policy: gate for gate in gates}
    changes: dict[Gate, State | None] = {}
    cancels: str | None = None
    singleton: Gate | None = None
    if flow.singleton is not None:
        singleton = by_policy["singleton"]
        held = states.get(singleton)
        if isinstance(held, SingletonHolder):
            if flow.singleton.mode == "skip":
                return Admission(outcome="skipped", shed=len(arrivals))
            cancels = held.run_id
        changes[singleton] = SingletonHolder(run_id)
    not_before = now
    if flow.throttle is not None:
        gate = by_policy["throttle"]
        pace = states.get(gate)
        if isinstance(pace, Pace):
            not_before = max(now, pace.free_at)
        changes[gate] = Pace(not_before + _interval(flow.throttle.limit, flow.throttle.per_ms))
    shift = 0 if flow.priority is None else flow.priority.shift_ms * _MILLISECOND
    start = Start(
        run_id=run_id,
        arrivals=arrivals,
        is_batch=False,
        not_before=not_before,
        position=max(0, not_before - shift),
        cancels=cancels,
        singleton=singleton,
    )
    return Admission(outcome="started", start=start, changes=changes)


def _interval(limit: int, per_ms: int) -> int:
    """The time between two slots; rounded up, so that no window holds one slot too many."""
    return -(-per_ms * _MILLISECOND // limit)


# Buffers ------------------------------------------------------------------------------------------


def _buffered(
    flow: Flow,
    states: States,
    gate: Gate,
    arrival: Arrival,
    spent: dict[Gate, State | None],
    *,
    run_id: str,
    now: int,
) -> Admission:
    """Add a trigger to the buffer of a debounce or a batch, which may be full then, or overdue."""
    held = states.get(gate)
    alone = _opened(flow, arrival, now)
    left: Buffer | None = None
    if not isinstance(held, Buffer):
        current = alone
    elif now >= held.fire_at or _is_too_much(flow, held, arrival):
        # The buffer is due, or a pass could not carry more: this trigger opens the next one.
        current, left = held, alone
    else:
        current = _joined(flow, held, arrival, alone)
    if left is None and not _is_full(flow, current):
        return Admission(outcome=_outcome(gate), changes={**spent, gate: current})
    made = _made_of(flow, states, gate, current, run_id=run_id, now=now)
    skipped = made.start is None and left is None
    return Admission(
        outcome="skipped" if skipped else _outcome(gate),
        start=made.start,
        carries_trigger=left is None,
        changes={**({} if skipped else spent), **made.changes, gate: left},
        shed=made.shed,
    )


def _opened(flow: Flow, arrival: Arrival, now: int) -> Buffer:
    quiet = flow.debounce.period_ms if flow.debounce is not None else 0
    timeout = flow.batch.timeout_ms if flow.batch is not None else quiet
    fire_at = now + timeout * _MILLISECOND
    buffer = Buffer(arrivals=(arrival,), opened_at=now, fire_at=fire_at, count=1)
    return msgspec.structs.replace(buffer, fire_at=now) if _is_full(flow, buffer) else buffer


def _joined(flow: Flow, held: Buffer, arrival: Arrival, alone: Buffer) -> Buffer:
    """A debounce keeps the last trigger and restarts its delay; a batch keeps all of them."""
    count = held.count + 1
    if flow.batch is None:
        return msgspec.structs.replace(alone, opened_at=held.opened_at, count=count)
    return msgspec.structs.replace(held, arrivals=(*held.arrivals, arrival), count=count)


def _is_full(flow: Flow, buffer: Buffer) -> bool:
    return flow.batch is not None and (
        len(buffer.arrivals) >= flow.batch.max_size or buffer.size >= limits.BATCH_BYTES_MAX
    )


def _is_too_much(flow: Flow, held: Buffer, arrival: Arrival) -> bool:
    return flow.batch is not None and held.size + len(arrival.data) > limits.BATCH_BYTES_MAX


def _outcome(gate: Gate) -> Outcome:
    return "batched" if gate.policy == "batch" else "debounced"


# Rates --------------------------------------------------------------------------------------------


def _counted(state: State | None, policy: RateLimit, now: int) -> RateLog | None:
    """The log with one more trigger; None if the limit is reached.

    Long logs are coarse: instants within one grain are recorded as its end, so that each leaves the
    window a little late and the limit holds all the same.
    """
    window = policy.per_ms * _MILLISECOND
    entries = state.entries if isinstance(state, RateLog) else ()
    entries = tuple(entry for entry in entries if entry[0] > now - window)
    if sum(count for _, count in entries) >= policy.limit:
        return None
    grain = max(1, window // limits.RATE_LOG_ENTRIES_MAX)
    when = now if policy.limit <= limits.RATE_LOG_ENTRIES_MAX else -(-now // grain) * grain
    if entries and entries[-1][0] >= when:
        when, count = entries[-1]
        entries = (*entries[:-1], (when, count + 1))
    else:
        entries = (*entries, (when, 1))
    return RateLog(entries, when + window)

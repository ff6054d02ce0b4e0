"""Concurrency limits: how many runs of a workflow execute passes at once, and in which order.

A run acquires a slot before a pass, keeps it for passes that follow at once, and releases it when
it parks or ends; a sleeping or waiting run holds none. The state counts slots, and every run stores
whether it holds one. Runs that find no slot wait in records of their own, whose keys sort in the
order in which they are admitted.
"""

from perdure.core.intake.definition import Flow
from perdure.core.intake.flow_state import Gate, Slots, State, scope_of


def concurrency_gate(flow: Flow, data: object) -> Gate | None:
    """The gate of a run with this decoded data, if its workflow limits concurrency."""
    if flow.concurrency is None:
        return None
    return Gate("concurrency", scope_of(flow.concurrency.key, data))


def turn_key(slot: str, since: int, run_id: str) -> str:
    """The record key of a waiting run; keys of one slot sort in the order of admission."""
    return f"{turn_prefix(slot)}{since:020d}/{run_id}"


def turn_prefix(slot: str) -> str:
    return f"{slot}/"


def enter(state: State | None, limit: int, *, waited: bool) -> Slots | None:
    """Acquire a slot for a pass; None if none is free, or if other runs wait for one.

    `waited` admits the first waiting run, whose record the caller then removes.
    """
    slots = state if isinstance(state, Slots) else Slots()
    if slots.in_use >= limit or (slots.waiting > 0 and not waited):
        return None
    return Slots(slots.in_use + 1, slots.waiting - waited)


def leave(state: State | None) -> Slots | None:
    """Release a slot; None if the state is empty afterwards."""
    assert isinstance(state, Slots)
    assert state.in_use > 0, "a slot is released that is not in use"
    return _kept(Slots(state.in_use - 1, state.waiting))


def wait(state: State | None) -> Slots:
    """Count one more waiting run, which has a record under `turn_key`."""
    slots = state if isinstance(state, Slots) else Slots()
    return Slots(slots.in_use, slots.waiting + 1)


def stop_waiting(state: State | None) -> Slots | None:
    """Count one waiting run less, because it ended or was paused."""
    assert isinstance(state, Slots)
    assert state.waiting > 0, "no run waits"
    return _kept(Slots(state.in_use, state.waiting - 1))


def admissible(state: State | None, limit: int) -> int:
    """How many waiting runs may acquire a slot now."""
    if not isinstance(state, Slots):
        return 0
    return max(0, min(state.waiting, limit - state.in_use))


def _kept(slots: Slots) -> Slots | None:
    return slots if slots.in_use or slots.waiting else None

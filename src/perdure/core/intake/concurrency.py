"""How many passes of a workflow run at once, and whose turn is next.

A slot is taken when a run wants a pass, kept for passes that follow at once, and given back when
the run parks or ends; one that sleeps or waits for something has none. The state counts, the runs
know that they are counted. Runs that find no room wait in records of their own, whose names sort in
the order of their turn.
"""

from perdure.core.intake.definition import Flow
from perdure.core.intake.flow_state import Gate, Slots, State, scope_of


def concurrency_gate(flow: Flow, data: object) -> Gate | None:
    """Where a run with this decoded data counts its passes, if anywhere."""
    if flow.concurrency is None:
        return None
    return Gate("concurrency", scope_of(flow.concurrency.key, data))


def turn_key(slot: str, since: int, run_id: str) -> str:
    """The name of a waiting run; names of one slot record sort in the order of their turn."""
    return f"{turn_prefix(slot)}{since:020d}/{run_id}"


def turn_prefix(slot: str) -> str:
    return f"{slot}/"


def enter(state: State | None, limit: int, *, waited: bool) -> Slots | None:
    """Take a slot for a pass; none: there is no room, or others are before it.

    `waited` is for the first of those that wait, whose record is then removed.
    """
    slots = state if isinstance(state, Slots) else Slots()
    if slots.in_use >= limit or (slots.waiting > 0 and not waited):
        return None
    return Slots(slots.in_use + 1, slots.waiting - waited)


def leave(state: State | None) -> Slots | None:
    """Give a slot back; none when nothing is left to remember."""
    assert isinstance(state, Slots)
    assert state.in_use > 0, "a slot is given back that nobody has"
    return _kept(Slots(state.in_use - 1, state.waiting))


def wait(state: State | None) -> Slots:
    """One more run waits, with a record under `turn_key`."""
    slots = state if isinstance(state, Slots) else Slots()
    return Slots(slots.in_use, slots.waiting + 1)


def stop_waiting(state: State | None) -> Slots | None:
    """A waiting run ended, or was paused: it waits no more."""
    assert isinstance(state, Slots)
    assert state.waiting > 0, "nobody waits"
    return _kept(Slots(state.in_use, state.waiting - 1))


def admissible(state: State | None, limit: int) -> int:
    """How many of those that wait may enter now."""
    if not isinstance(state, Slots):
        return 0
    return max(0, min(state.waiting, limit - state.in_use))


def _kept(slots: Slots) -> Slots | None:
    return slots if slots.in_use or slots.waiting else None

"""A little engine for tests of flow control: states in memory, a clock that is moved by hand."""

import json

from perdure.core.intake.definition import Flow
from perdure.core.intake.flow import Admission, Start, admit, flush, release
from perdure.core.intake.flow_state import (
    Arrival,
    Buffer,
    Gate,
    State,
    buffer_gates,
    due_at,
    gates_of,
)


class Desk:
    """Where triggers arrive, buffers are flushed and runs end."""

    def __init__(self, flow: Flow, *, flushes: bool = True) -> None:
        self.flow = flow
        self.now = 1_700_000_000_000_000
        self.states: dict[Gate, State] = {}
        self.started: list[Start] = []
        self.live: dict[str, Start] = {}
        self.shed = 0
        self._flushes = flushes
        self._runs = 0

    def send(self, data: object = None) -> Admission:
        """A trigger arrives."""
        arrival = Arrival("event", json.dumps(data).encode())
        known = {gate: self.states.get(gate) for gate in gates_of(self.flow, data)}
        for state in list(known.values()):
            if isinstance(state, Buffer):
                more = buffer_gates(self.flow, state)
                known |= {gate: self.states.get(gate) for gate in more}
        admission = admit(self.flow, known, arrival, data, run_id=self._name(), now=self.now)
        self._take(admission)
        return admission

    def pass_ms(self, milliseconds: int) -> None:
        """Time passes; what is due on the way is seen to at its moment."""
        until = self.now + milliseconds * 1_000
        while self._flushes:
            due = [(ctx, gate) for gate, ctx in self._deadlines() if ctx <= until]
            if not due:
                break
            ctx, gate = min(due)
            self.now = max(self.now, ctx)
            self._fire(gate)
        self.now = until

    def end(self, run_id: str) -> None:
        """A run ends."""
        run = self.live.pop(run_id, None) or next(s for s in self.started if s.run_id == run_id)
        if run.singleton is not None:
            self._put(run.singleton, release(self.states.get(run.singleton), run_id))

    def _deadlines(self) -> list[tuple[Gate, int]]:
        return [
            (gate, ctx) for gate, state in self.states.items() if (ctx := due_at(state)) is not None
        ]

    def _fire(self, gate: Gate) -> None:
        state = self.states[gate]
        if not isinstance(state, Buffer):
            del self.states[gate]
            return
        known = {one: self.states.get(one) for one in buffer_gates(self.flow, state)}
        self._take(flush(self.flow, known, gate, state, run_id=self._name(), now=self.now))

    def _take(self, admission: Admission) -> None:
        for gate, state in admission.changes.items():
            self._put(gate, state)
        self.shed += admission.shed
        if admission.start is not None:
            self._runs += 1
            if admission.start.cancels is not None:
                self.live.pop(admission.start.cancels, None)
            self.started.append(admission.start)
            self.live[admission.start.run_id] = admission.start

    def _put(self, gate: Gate, state: State | None) -> None:
        if state is None:
            self.states.pop(gate, None)
        else:
            self.states[gate] = state

    def _name(self) -> str:
        return f"run-{self._runs + 1}"

"""An independent reading of a history: events in, what must be true of its run out.

It knows the protocol and nothing of the rules that wrote the events. What the protocol forbids is
an `AssertionError`: gaps, second endings, endings of what was never opened, words after the end.
"""

from dataclasses import dataclass, field
from typing import Any

from perdure.core.payload import decode
from tests.support.rule_harness import Event

OPENINGS = {
    "ActivityScheduled": "activity",
    "TimerScheduled": "timer",
    "ChildWorkflowScheduled": "child",
    "ConditionWaitOpened": "condition",
    "SignalWaitOpened": "signal",
}
NOTES = {
    "ActivityStarted": "activity",
    "ActivityHeartbeatRecorded": "activity",
    "ActivityRetryScheduled": "activity",
    "ChildRunStarted": "child",
}
ENDINGS = {
    "ActivityCompleted": "activity",
    "ActivityFailed": "activity",
    "ActivityTimedOut": "activity",
    "ActivityCancelled": "activity",
    "TimerFired": "timer",
    "TimerCancelled": "timer",
    "ChildRunCompleted": "child",
    "ChildRunFailed": "child",
    "ChildRunCancelled": "child",
    "ChildRunTerminated": "child",
    "ConditionWaitSatisfied": "condition",
    "ConditionWaitTimedOut": "condition",
    "SignalApplied": "signal",
}
FAILED = {
    "ActivityFailed",
    "ActivityTimedOut",
    "ActivityCancelled",
    "ChildRunFailed",
    "ChildRunCancelled",
    "ChildRunTerminated",
}
MARKERS = {
    "SideEffectRecorded",
    "VersionMarkerRecorded",
    "SearchAttributesUpserted",
    "MemoUpserted",
}
CLOSINGS = {
    "WorkflowCompleted": ("completed", "completed"),
    "WorkflowFailed": ("failed", "failed"),
    "WorkflowCancelled": ("cancelled", "cancelled"),
    "WorkflowTerminated": ("terminated", "terminated"),
    "WorkflowTimedOut": ("failed", "timed_out"),
    "WorkflowContinuedAsNew": ("completed", "continued"),
}
OTHERS = {"StartAccepted", "CancelRequested", "TerminateRequested"}


@dataclass
class Selected:
    """One member of a selection: the leaves of it that are still open."""

    open: set[int] = field(default_factory=set)
    cancelled: bool = False


@dataclass
class Selection:
    members: dict[int, Selected] = field(default_factory=dict)
    resolved: bool = False


@dataclass
class Fold:
    """What the events so far say."""

    count: int = 0
    next_sequence: int = 1
    open: dict[int, str] = field(default_factory=dict)
    wait: int | None = None
    closed: tuple[str, str] | None = None
    memo: dict[str, Any] = field(default_factory=dict)
    search_attributes: dict[str, Any] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)
    """Command ids of signals."""
    rejected: set[str] = field(default_factory=set)
    """Those that the run closed on before they were received."""
    attempts: dict[str, set[str]] = field(default_factory=dict)
    """Attempt ids and the types of their events."""
    let_go: set[int] = field(default_factory=set)
    """Sequences of cancelled selection members."""
    closed_children: set[str] = field(default_factory=set)
    """Runs that the parent-close policy reached."""
    asked_children: set[str] = field(default_factory=set)
    """Runs that it asked to cancel themselves."""
    undecided: set[str] = field(default_factory=set)
    """Selections with a member that ended and no winner yet."""
    update: str | None = None
    """The update that was accepted and has no outcome yet."""
    ended_updates: set[str] = field(default_factory=set)
    requested: str | None = None
    """The request to cancel."""
    delivered: int | None = None
    """The call at which it was delivered."""

    _ids: set[str] = field(default_factory=set)
    _last: Event | None = None
    _openings: dict[int, dict[str, Any]] = field(default_factory=dict)
    _timeouts: dict[int, str] = field(default_factory=dict)
    _selections: dict[str, Selection] = field(default_factory=dict)
    _applied: bool = False
    _messages: int = 0
    """How many signals stand behind the newest opening of a condition."""
    _unopened: set[int] = field(default_factory=set)
    """Members of the newest selection that history has not told of yet."""
    _before: tuple[str, int] = ("condition", 0)
    """The kind and the number of its member that was told of last."""

    def take(self, event: Event) -> None:
        """Read the next event."""
        self.count += 1
        assert event.sequence == self.count, f"a gap before event {event.sequence}"
        assert event.id not in self._ids, f"the id {event.id} was used before"
        assert self.closed is None, f"{event.event_type} after the end"
        assert event.recorded_at == event.timestamp
        assert self._last is None or self._last.recorded_at <= event.recorded_at
        self._ids.add(event.id)
        self._read(event, event.event_type, event.payload)
        self._last = event

    def _read(self, event: Event, kind: str, payload: dict[str, Any]) -> None:
        if kind == "TimerCancelled" and "sequence" not in payload:
            # The same is about to be asked again, and what came so far is for the opening before.
            assert self.wait is not None
            assert self._openings[self.wait]["condition_wait_id"] == payload["condition_wait_id"]
            assert self._messages > 1
            self._messages = 0
        elif kind == "TimerCancelled" and "timer_id" not in payload:
            # A wait that was opened again is told to be over, before a request to cancel.
            assert self._openings[payload["sequence"]]["condition_wait_id"]
            assert payload["sequence"] not in self.open
        elif payload.get("timer_kind", "sleep") != "sleep":
            self._read_timeout(event, payload)
        elif kind in OPENINGS:
            self._open(OPENINGS[kind], payload)
        elif kind in NOTES:
            self._require_open(NOTES[kind], payload)
            self._note_attempt(kind, payload)
        elif kind in ENDINGS:
            self._end(event, ENDINGS[kind], payload)
        elif kind in MARKERS:
            self._allot(payload)
            self._merge(kind, payload)
        elif kind in CLOSINGS:
            self._close(kind, payload)
        elif kind == "WorkflowStarted":
            self.memo = payload.get("memo", {})
            self.search_attributes = payload.get("search_attributes", {})
        elif kind == "ParentClosePolicyApplied":
            asked = payload["policy"] == "request_cancellation"
            (self.asked_children if asked else self.closed_children).add(payload["child_run_id"])
        elif kind in ("SignalReceived", "SignalRejected"):
            known = self.received if kind == "SignalReceived" else self.rejected
            assert payload["workflow_command_id"] not in self.received | self.rejected
            known.add(payload["workflow_command_id"])
            self._messages += 1
        elif kind.startswith("Update"):
            self._read_update(kind, payload)
        elif kind.startswith("CooperativeCancellation"):
            self._read_cancellation(kind, payload)
        elif kind == "SelectionResolved":
            self._resolve(payload)
        elif kind == "SelectionOperationCancelled":
            self._let_member_go(payload)
        else:
            assert kind in OTHERS, f"{kind} is no event that we know"

    # Operations ----------------------------------------------------------------------------------

    def _allot(self, payload: dict[str, Any]) -> int:
        sequence = payload["sequence"]
        assert not self._unopened, f"members {self._unopened} of a selection are missing"
        assert sequence == self.next_sequence, f"{sequence} instead of {self.next_sequence}"
        self.next_sequence += 1
        assert isinstance(sequence, int)
        return sequence

    def _allot_selected(self, kind: str, payload: dict[str, Any], group: dict[str, Any]) -> int:
        """A member of a selection: the conditions come first, each under its own number."""
        if not self._unopened:
            base, size = group["parallel_group_base_sequence"], group["parallel_group_size"]
            assert base == self.next_sequence, f"{base} instead of {self.next_sequence}"
            self.next_sequence += size
            self._unopened = set(range(base, base + size))
            self._before = ("condition", 0)
        sequence = payload["sequence"]
        self._unopened.remove(sequence)
        was, number = self._before
        turned = was == "condition" and kind != "condition"
        assert turned or ((was == "condition") == (kind == "condition") and sequence > number)
        self._before = (kind, sequence)
        assert isinstance(sequence, int)
        return sequence

    def _open(self, kind: str, payload: dict[str, Any]) -> None:
        path = payload.get("parallel_group_path")
        if path is not None and path[0].get("parallel_group_mode") == "select":
            sequence = self._allot_selected(kind, payload, path[0])
        else:
            sequence = self._allot(payload)
        if kind == "condition" and path is None:
            assert self._messages <= 1 or self.wait is None, "they must be bound to this opening"
            self._messages = 0
        if kind in ("condition", "signal") and path is None:
            self._supersede(payload)
            self.wait = sequence
        self.open[sequence] = kind
        self._openings[sequence] = payload
        if path is not None:
            self._require_own_place(sequence, path)
            if path[0].get("parallel_group_mode") == "select":
                selection = self._selections.setdefault(path[0]["parallel_group_id"], Selection())
                index = path[0]["selection_member_index"]
                selection.members.setdefault(index, Selected()).open.add(sequence)

    def _require_own_place(self, sequence: int, path: list[dict[str, Any]]) -> None:
        for entry in path:
            base, index = entry["parallel_group_base_sequence"], entry["parallel_group_index"]
            assert base + index == sequence, "a group stands at the numbers it was given"
            assert entry["parallel_group_id"].endswith(f":{base}:{entry['parallel_group_size']}")

    def _supersede(self, payload: dict[str, Any]) -> None:
        """A plain wait may follow an open one only if it asks the same again."""
        if self.wait is None:
            return
        before = self._openings[self.wait]
        names = ("condition_key", "condition_definition_fingerprint")
        assert self.open[self.wait] == "condition"
        assert [before.get(name) for name in names] == [payload.get(name) for name in names]
        del self.open[self.wait]
        self._timeouts.pop(self.wait, None)

    def _require_open(self, kind: str, payload: dict[str, Any]) -> int:
        sequence = payload["sequence"]
        assert self.open.get(sequence) == kind, f"{kind} {sequence} is not open"
        opening = self._openings[sequence]
        for name in ("activity_execution_id", "timer_id", "condition_wait_id", "child_call_id"):
            assert payload.get(name, opening.get(name)) == opening.get(name) or name == "timer_id"
        group = payload.get("parallel_group_path")
        assert group == opening.get("parallel_group_path"), "every event of a leaf has its group"
        assert isinstance(sequence, int)
        return sequence

    def _end(self, event: Event, kind: str, payload: dict[str, Any]) -> None:
        sequence = self._require_open(kind, payload)
        self._note_attempt(event.event_type, payload)
        self._drop(sequence)
        path = payload.get("parallel_group_path")
        if path is None or path[0].get("parallel_group_mode") != "select":
            return
        group_id = path[0]["parallel_group_id"]
        selection = self._selections[group_id]
        member = selection.members[path[0]["selection_member_index"]]
        member.open.discard(sequence)
        if not selection.resolved and (event.event_type in FAILED or not member.open):
            self.undecided.add(group_id)

    def _drop(self, sequence: int) -> None:
        del self.open[sequence]
        if self.wait == sequence:
            self.wait = None

    def _note_attempt(self, event_type: str, payload: dict[str, Any]) -> None:
        attempt_id = payload.get("activity_attempt_id")
        if attempt_id is not None:
            self.attempts.setdefault(attempt_id, set()).add(event_type)

    def _read_timeout(self, event: Event, payload: dict[str, Any]) -> None:
        """The internal timer of a wait, which shares the number of the wait."""
        sequence, timer_id = payload["sequence"], payload["timer_id"]
        kind = {"condition_timeout": "condition", "signal_timeout": "signal"}[payload["timer_kind"]]
        wait_id = f"{kind}_wait_id"
        assert payload[wait_id] == self._openings[sequence][wait_id]
        if event.event_type == "TimerScheduled":
            assert self.open[sequence] == kind
            self._timeouts[sequence] = timer_id
            return
        assert self._timeouts.pop(sequence) == timer_id
        if event.event_type == "TimerFired":
            assert kind == "signal"
            self._drop(sequence)

    # Updates -------------------------------------------------------------------------------------

    def _read_update(self, kind: str, payload: dict[str, Any]) -> None:
        update_id = payload["update_id"]
        assert update_id not in self.ended_updates, "an update ends once"
        if kind == "UpdateAccepted":
            assert self.update is None, "one update at a time"
            self.update, self._applied = update_id, False
        elif kind == "UpdateApplied":
            assert (self.update, self._applied) == (update_id, False)
            self._applied = True
        elif kind == "UpdateCompleted":
            assert self.update == update_id
            assert self._applied == ("failure_id" not in payload), "what failed is never applied"
            self.update = None
            self.ended_updates.add(update_id)
        else:
            assert kind == "UpdateRejected"
            assert self.update != update_id, "what was accepted cannot be rejected"
            self.ended_updates.add(update_id)

    # Cancellation --------------------------------------------------------------------------------

    def _read_cancellation(self, kind: str, payload: dict[str, Any]) -> None:
        request_id = payload["workflow_command_id"]
        if kind == "CooperativeCancellationRequested":
            assert self.requested is None, "a run is asked once"
            self.requested = request_id
            return
        assert kind == "CooperativeCancellationDelivered"
        assert self.requested == request_id
        assert self.delivered is None, "it is delivered once"
        sequence, span = payload["sequence"], payload["sequence_span"]
        self.delivered = sequence
        assert sequence <= self.next_sequence
        assert sequence == self.next_sequence or sequence + span <= self.next_sequence
        self.next_sequence = max(self.next_sequence, sequence + span)
        first, size = sequence, span
        if "operation_sequence" in payload:
            first, size = payload["operation_sequence"], payload["operation_sequence_span"]
        for member in range(first, first + size):
            if self.open.get(member) in ("condition", "signal"):
                self._drop(member)
                self._timeouts.pop(member, None)
            # Timers are told to be cancelled; activities too, but for abandoned ones, and children
            # go on.
            assert self.open.get(member) in (None, "activity", "child")
        for group_id, selection in self._selections.items():
            base = int(group_id.rsplit(":", 2)[1])
            if first <= base < first + size:
                self.undecided.discard(group_id)
                selection.resolved = True

    # Selections ----------------------------------------------------------------------------------

    def _resolve(self, payload: dict[str, Any]) -> None:
        deciding = self._last
        assert deciding is not None
        group_id = payload["selection_group_id"]
        selection = self._selections[group_id]
        assert not selection.resolved, "a selection is decided once"
        selection.resolved = True
        self.undecided.remove(group_id)
        assert payload["resolution_event_id"] == deciding.id
        assert payload["resolution_event_type"] == deciding.event_type
        failed = deciding.event_type in FAILED
        assert payload["outcome"] == ("failed" if failed else "completed")
        base, size = payload["member_base_sequence"], payload["member_size"]
        assert base <= deciding.payload["sequence"] < base + size
        assert failed or not selection.members[payload["member_index"]].open

    def _let_member_go(self, payload: dict[str, Any]) -> None:
        member = self._selections[payload["selection_group_id"]].members[payload["member_index"]]
        assert not member.cancelled, "a member is cancelled once"
        assert member.open, "a member that ended cannot be cancelled"
        member.cancelled = True
        for sequence in member.open:
            self._drop(sequence)
            self.let_go.add(sequence)
        member.open.clear()

    # The run -------------------------------------------------------------------------------------

    def _merge(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "SearchAttributesUpserted":
            merged = {**self.search_attributes, **payload["attributes"]}
            self.search_attributes = {k: v for k, v in merged.items() if v is not None}
            assert payload["merged"] == self.search_attributes
        elif kind == "MemoUpserted":
            entries = decode(payload["entries"]["blob"])
            assert isinstance(entries, dict)
            self.memo = {k: v for k, v in {**self.memo, **entries}.items() if v is not None}
            assert decode(payload["merged"]["blob"]) == self.memo

    def _close(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "WorkflowContinuedAsNew":
            assert payload["sequence"] == self.next_sequence
        self.closed = CLOSINGS[kind]
        assert self.update is None, "no run closes with an update in the air"
        self.open.clear()
        self.wait = None
        self.undecided.clear()

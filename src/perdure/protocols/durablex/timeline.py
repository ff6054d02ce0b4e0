"""Views of the history of a push run: steps, log lines, frames of a timeline."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.core import instant
from perdure.core.external import Reference
from perdure.core.push.control import Carried
from perdure.core.push.result import member_of, reference_view


class Fact(Struct):
    """One event of a history."""

    sequence: int
    event_type: str
    recorded_at: str
    payload: Raw


class StoredFact(Struct):
    """The reference of a result that is stored outside of the history."""

    external_payload: Reference

    @property
    def reference(self) -> Reference:
        return self.external_payload


class StepFact(Struct):
    """The members of events of steps; each event has some."""

    index: int
    name: str
    kind: str
    step_id: str = ""
    attempt: int = 1
    output: Raw | UnsetType = UNSET
    output_ref: StoredFact | None = None
    error: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    ai: Raw | UnsetType = UNSET
    started_at: str | None = None
    fire_at: str | None = None
    will_retry: bool = False
    next_attempt_at: str | None = None
    event_name: str | None = None
    approval_id: str | None = None


class ParkedFact(Struct):
    status: str = "waiting"


class LogFact(Struct):
    level: str
    message: str
    scope: str
    attempt: int
    fields: Raw | UnsetType = UNSET


_fact_decoder = msgspec.json.Decoder(Fact)
_step_decoder = msgspec.json.Decoder(StepFact)
_log_decoder = msgspec.json.Decoder(LogFact)
_parked_decoder = msgspec.json.Decoder(ParkedFact)

_WAITING_EVENTS = frozenset({"StepOpened", "ApprovalEscalated"})
_STEP_EVENTS = _WAITING_EVENTS | {"StepCompleted", "StepFailed", "StepCancelled"}


def facts_of(events: Iterable[bytes]) -> list[Fact]:
    return [_fact_decoder.decode(event) for event in events]


def steps_of(facts: Iterable[Fact]) -> list[dict[str, Any]]:
    """Every step once, in the order in which the code reached it."""
    rows: dict[int, dict[str, Any]] = {}
    for fact in facts:
        if fact.event_type not in _STEP_EVENTS:
            continue
        details = _step_decoder.decode(fact.payload)
        row = rows.setdefault(details.index, {"name": details.name, "index": details.index})
        row["attempt"] = details.attempt
        row["status"] = step_status(fact.event_type, details)
        _add_times(row, fact, details)
        for name, value in (
            ("input", details.input),
            ("output", details.output),
            ("ai", details.ai),
        ):
            if value is not UNSET:
                row[name] = value
        if details.output_ref is not None:
            row["outputRef"] = reference_view(details.output_ref.reference)
        row.pop("error", None)
        if details.error is not UNSET:
            row["error"] = details.error
        if details.event_name is not None:
            row["eventName"] = details.event_name
        if details.approval_id is not None:
            row["approvalId"] = details.approval_id
    return [row for _, row in sorted(rows.items())]


def carried_before(facts: Iterable[Fact], name: str) -> list[Carried] | None:
    """The finished steps before one, with their memos; none if there is no such step."""
    finished: dict[int, Carried] = {}
    place: int | None = None
    for fact in facts:
        if fact.event_type not in _STEP_EVENTS:
            continue
        details = _step_decoder.decode(fact.payload)
        if details.name == name:
            place = details.index
        if fact.event_type == "StepCompleted":
            member, stored = b'"data":null', None
            if details.error is not UNSET:
                member = b'"error":' + bytes(details.error)
            elif details.output is not UNSET:
                member = b'"data":' + bytes(details.output)
            elif details.output_ref is not None:
                stored = details.output_ref.reference
                member = member_of(stored)
            finished[details.index] = Carried(
                details.step_id, details.name, details.kind, member, stored
            )
    if place is None:
        return None
    return [one for index, one in sorted(finished.items()) if index < place]


def step_status(event_type: str, details: StepFact) -> str:
    """The status of a step after an event."""
    match event_type:
        case "StepOpened" | "ApprovalEscalated":
            return "waiting"
        case "StepCancelled":
            return "cancelled"
        case "StepFailed":
            return "waiting" if details.will_retry else "failed"
        case _:
            if details.error is not UNSET:
                return "failed"
            return "skipped" if details.kind == "skip" else "succeeded"


def _add_times(row: dict[str, Any], fact: Fact, details: StepFact) -> None:
    for name in ("willRetry", "nextAttemptAt", "runAfter"):
        row.pop(name, None)
    row.setdefault("startedAt", details.started_at or fact.recorded_at)
    if details.will_retry:
        row["willRetry"] = True
        row["nextAttemptAt"] = details.next_attempt_at
    elif fact.event_type in _WAITING_EVENTS:
        if details.fire_at is not None:
            row["runAfter"] = details.fire_at
    else:
        row["endedAt"] = fact.recorded_at
        length = instant.parse(fact.recorded_at) - instant.parse(row["startedAt"])
        row["durationMs"] = max(length // 1000, 0)


def logs_of(facts: Iterable[Fact]) -> list[dict[str, Any]]:
    """Log lines, oldest first."""
    rows = []
    for fact in facts:
        if fact.event_type == "LogRecorded":
            details = _log_decoder.decode(fact.payload)
            row = {
                "seq": fact.sequence,
                "ts": fact.recorded_at,
                "level": details.level,
                "message": details.message,
                "scope": details.scope,
                "attempt": details.attempt,
            }
            if details.fields is not UNSET:
                row["fields"] = details.fields
            rows.append(row)
    return rows


CLOSED = {
    "WorkflowCompleted": "succeeded",
    "WorkflowFailed": "failed",
    "WorkflowTimedOut": "failed",
    "WorkflowCancelled": "cancelled",
    "WorkflowTerminated": "cancelled",
}
_STATUSES = {
    "WorkflowStarted": "queued",
    "RunPaused": "paused",
    "RunResumed": "queued",
    **CLOSED,
}
_AT_REST = ("queued", "waiting", "needs_attention")
_AT_WORK = frozenset({"StepOpened", "StepCompleted", "StepFailed", "PassFailed", "LogRecorded"})


class Frames:
    """The facts of one run as frames of its timeline, in order."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._status = ""

    def of(self, fact: Fact) -> list[dict[str, Any]]:
        """The frames of a fact. That a run is running follows from facts that a pass caused."""
        frames = []
        status = _STATUSES.get(fact.event_type)
        if fact.event_type == "RunParked":
            status = _parked_decoder.decode(fact.payload).status
        if fact.event_type in _AT_WORK and self._status in _AT_REST:
            status = "running"
        if status is not None and status != self._status:
            self._status = status
            frames.append(self._frame(fact, "run_status", {"status": status}))
        if fact.event_type in _STEP_EVENTS:
            frames.append(self._frame(fact, "step_status", _step_frame(fact)))
        elif fact.event_type == "LogRecorded":
            (line,) = logs_of([fact])
            frames.append(self._frame(fact, "log", line))
        return frames

    def begun(self, sequence: int, at: str) -> list[dict[str, Any]]:
        """The frame of a pass in progress, which no fact reports yet."""
        if self._status not in _AT_REST:
            return []
        self._status = "running"
        return [
            {
                "kind": "run_status",
                "seq": sequence,
                "ts": at,
                "runId": self._run_id,
                "status": "running",
            }
        ]

    @property
    def is_at_rest(self) -> bool:
        """Whether the last frame reported that no pass is in progress."""
        return self._status in _AT_REST

    def _frame(self, fact: Fact, kind: str, members: dict[str, Any]) -> dict[str, Any]:
        head = {
            "kind": kind,
            "seq": fact.sequence,
            "ts": fact.recorded_at,
            "runId": self._run_id,
        }
        return {**head, **members}


def _step_frame(fact: Fact) -> dict[str, Any]:
    details = _step_decoder.decode(fact.payload)
    frame: dict[str, Any] = {
        "name": details.name,
        "status": "failed" if details.will_retry else step_status(fact.event_type, details),
        "attempt": details.attempt,
        "index": details.index,
    }
    if details.error is not UNSET:
        frame["error"] = details.error
    if details.will_retry:
        frame |= {"willRetry": True, "nextAttemptAt": details.next_attempt_at}
    return frame

"""The history of a push run as its readers see it: steps, log lines, frames of a timeline."""

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
    """Where a result is stored that history only refers to."""

    external_payload: Reference

    @property
    def reference(self) -> Reference:
        return self.external_payload


class StepFact(Struct):
    """What events of steps say; each says some of it."""

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
    """Every step once, in the order in which the code came to it."""
    rows: dict[int, dict[str, Any]] = {}
    for fact in facts:
        if fact.event_type not in _STEP_EVENTS:
            continue
        told = _step_decoder.decode(fact.payload)
        row = rows.setdefault(told.index, {"name": told.name, "index": told.index})
        row["attempt"] = told.attempt
        row["status"] = step_status(fact.event_type, told)
        _tell_times(row, fact, told)
        for name, value in (("input", told.input), ("output", told.output), ("ai", told.ai)):
            if value is not UNSET:
                row[name] = value
        if told.output_ref is not None:
            row["outputRef"] = reference_view(told.output_ref.reference)
        row.pop("error", None)
        if told.error is not UNSET:
            row["error"] = told.error
        if told.event_name is not None:
            row["eventName"] = told.event_name
        if told.approval_id is not None:
            row["approvalId"] = told.approval_id
    return [row for _, row in sorted(rows.items())]


def carried_before(facts: Iterable[Fact], name: str) -> list[Carried] | None:
    """The finished steps before one, with their memos; none if there is no such step."""
    finished: dict[int, Carried] = {}
    place: int | None = None
    for fact in facts:
        if fact.event_type not in _STEP_EVENTS:
            continue
        told = _step_decoder.decode(fact.payload)
        if told.name == name:
            place = told.index
        if fact.event_type == "StepCompleted":
            member, stored = b'"data":null', None
            if told.error is not UNSET:
                member = b'"error":' + bytes(told.error)
            elif told.output is not UNSET:
                member = b'"data":' + bytes(told.output)
            elif told.output_ref is not None:
                stored = told.output_ref.reference
                member = member_of(stored)
            finished[told.index] = Carried(told.step_id, told.name, told.kind, member, stored)
    if place is None:
        return None
    return [one for index, one in sorted(finished.items()) if index < place]


def step_status(event_type: str, told: StepFact) -> str:
    """What a step is after an event."""
    match event_type:
        case "StepOpened" | "ApprovalEscalated":
            return "waiting"
        case "StepCancelled":
            return "cancelled"
        case "StepFailed":
            return "waiting" if told.will_retry else "failed"
        case _:
            if told.error is not UNSET:
                return "failed"
            return "skipped" if told.kind == "skip" else "succeeded"


def _tell_times(row: dict[str, Any], fact: Fact, told: StepFact) -> None:
    for name in ("willRetry", "nextAttemptAt", "runAfter"):
        row.pop(name, None)
    row.setdefault("startedAt", told.started_at or fact.recorded_at)
    if told.will_retry:
        row["willRetry"] = True
        row["nextAttemptAt"] = told.next_attempt_at
    elif fact.event_type in _WAITING_EVENTS:
        if told.fire_at is not None:
            row["runAfter"] = told.fire_at
    else:
        row["endedAt"] = fact.recorded_at
        length = instant.parse(fact.recorded_at) - instant.parse(row["startedAt"])
        row["durationMs"] = max(length // 1000, 0)


def logs_of(facts: Iterable[Fact]) -> list[dict[str, Any]]:
    """Log lines, oldest first."""
    rows = []
    for fact in facts:
        if fact.event_type == "LogRecorded":
            told = _log_decoder.decode(fact.payload)
            row = {
                "seq": fact.sequence,
                "ts": fact.recorded_at,
                "level": told.level,
                "message": told.message,
                "scope": told.scope,
                "attempt": told.attempt,
            }
            if told.fields is not UNSET:
                row["fields"] = told.fields
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
        """The frames of a fact. That somebody works on a run is told by what comes of it."""
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
        """The frame of a pass that has begun, of which no fact tells yet."""
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
        """Whether the last that was told of the run is that nobody works on it."""
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
    told = _step_decoder.decode(fact.payload)
    frame: dict[str, Any] = {
        "name": told.name,
        "status": "failed" if told.will_retry else step_status(fact.event_type, told),
        "attempt": told.attempt,
        "index": told.index,
    }
    if told.error is not UNSET:
        frame["error"] = told.error
    if told.will_retry:
        frame |= {"willRetry": True, "nextAttemptAt": told.next_attempt_at}
    return frame

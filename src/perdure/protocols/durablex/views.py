"""JSON views of runs and events. Members without a value are left out."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core import instant
from perdure.core.bounds import Reached
from perdure.core.intake.failures import FailedCondition
from perdure.core.push.step import push_of
from perdure.core.push.usage import amount
from perdure.core.run.cause import next_cause
from perdure.core.run.lease import TaskState
from perdure.core.run.push import Spent
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.engine.events import Ingested, LoggedEvent, Triggered

GATES = ("skipped", "dropped", "debounced", "batched", "deduped")
"""The names that responses use for what delays the start of a run."""

_CLOSED = {
    RunStatus.COMPLETED: "succeeded",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
    RunStatus.TERMINATED: "cancelled",
}


def closed_status(status: RunStatus) -> str:
    """The name of the status of a closed run."""
    return _CLOSED[status]


def status_of(run: Run) -> str:
    """The status that readers see."""
    if run.is_closed:
        return _CLOSED[run.status]
    if push_of(run).pause is not None:
        return "paused"
    task = run.task
    if task is None:
        return "needs_attention" if run.status is RunStatus.NEEDS_ATTENTION else "waiting"
    if run.status is RunStatus.PENDING and task.state is not TaskState.LEASED:
        return "queued"
    return "running"


def run_view(run: Run) -> dict[str, Any]:
    """A run without its payloads."""
    push = push_of(run)
    view: dict[str, Any] = {
        "id": run.run_id,
        "workflowName": run.workflow_type,
        "app": run.queue,
        "status": status_of(run),
        "errorCount": push.errors,
        "attempt": push.attempt,
        "triggerKind": push.trigger,
        "stepCount": push.steps,
        "stepResultsBytes": push.result_bytes or None,
        "currentStepIndex": max(push.steps - 1, 0),
        "startedAt": instant.text(run.started_at),
        "currentStepName": push.current,
        "eventName": push.event_name,
        "eventId": push.event_id,
        "runner": push.pin or None,
        "replayOf": push.replay_of,
        "failureOf": push.failure_of,
        "parentRunId": None if run.parent is None else run.parent.run_id,
        "session": push.session,
        "executedBy": push.executed_by,
        "traceId": push.trace_id,
        "rootSpanId": push.span_id,
        "tags": push.tags or None,
        **spent_view(push.spent),
        "eval": push.case and {"setId": push.case.set_id, "itemId": push.case.item_id},
        "fork": None if push.fork is None else Raw(push.fork),
        "scoreCount": sum(one.count for one in push.judged.values()) or None,
    }
    if run.closed_at is not None:
        view["endedAt"] = instant.text(run.closed_at)
        view["durationMs"] = (run.closed_at - run.started_at) // 1000
    view["error"] = failure_of(run)
    if push.pause is not None:
        view["pausedBy"] = _present(
            {
                "reason": push.pause.reason,
                "detail": push.pause.detail,
                "since": instant.text(push.pause.since),
            }
        )
    return _present(view)


def spent_view(spent: Spent | None) -> dict[str, Any]:
    """The usage of model calls; an unknown cost is left out."""
    if spent is None:
        return {}
    cost = None if spent.cost is None else amount(spent.cost)
    return {"aiTokens": spent.tokens, "aiCost": cost}


def waiting_view(run: Run) -> dict[str, Any]:
    """What an open run waits for, as text and as a member; empty for a closed one."""
    cause = next_cause(run)
    if cause is None:
        return {}
    member = {_camel(name): value for name, value in msgspec.to_builtins(cause).items()}
    if cause.until is not None:
        member["until"] = instant.text(cause.until)
    return {"waitReason": cause.text, "nextCause": member}


def reached_view(reached: Reached) -> dict[str, Any]:
    """A bound that a run is close to."""
    return {_camel(name): value for name, value in reached._asdict().items()}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def failure_of(run: Run) -> object | None:
    """Why a run failed, if it did."""
    if run.failure is None or run.status is not RunStatus.FAILED:
        return None
    exception = run.failure.exception
    return Raw(exception) if exception else {"message": run.failure.message}


class _Event(Struct):
    name: str
    data: Raw


class _Head(Struct):
    event: _Event


class _Started(Struct):
    input: Raw


class _First(Struct):
    payload: _Started


class _Output(Struct):
    output: Raw = Raw(b"null")


class _Last(Struct):
    event_type: str
    payload: _Output


def input_of(first: bytes) -> Raw:
    """The data of the event that started a run, from its first fact."""
    return msgspec.json.decode(arguments_of(first), type=_Head).event.data


def arguments_of(first: bytes) -> bytes:
    """The arguments of every pass of a run, from its first fact."""
    return bytes(msgspec.json.decode(first, type=_First).payload.input)


def result_of(last: Sequence[bytes]) -> Raw | None:
    """What a run returned, from its last facts."""
    for event in reversed(last):
        fact = msgspec.json.decode(event, type=_Last)
        if fact.event_type == "WorkflowCompleted":
            return fact.payload.output
    return None


def ingested_view(ingested: Ingested) -> dict[str, Any]:
    """The answer to an event."""
    first = ingested.triggered[0] if ingested.triggered else None
    gate = None if first is None else first.gate
    if ingested.event_id is None:
        gate = "deduped"
    return _present(
        {
            "eventId": ingested.event_id,
            "runId": None if first is None else first.run_id,
            "woke": ingested.woke,
            "continues": ingested.continues or None,
            **{name: gate == name for name in GATES},
            "suspended": False,
            "triggered": [triggered_view(one) for one in ingested.triggered],
        }
    )


def triggered_view(one: Triggered) -> dict[str, Any]:
    return _present(
        {
            "workflow": one.workflow,
            "app": one.app,
            "runId": one.run_id,
            **{name: one.gate == name for name in GATES},
        }
    )


def event_view(event_id: str, event: LoggedEvent) -> dict[str, Any]:
    """The JSON of an event in the log."""
    return _present(
        {
            "id": event_id,
            "name": event.name,
            "app": event.app,
            "source": event.source,
            "receivedAt": instant.text(event.received_at),
            "woke": event.woke,
            "continues": event.continues or None,
            "triggered": [triggered_view(one) for one in event.triggered],
            "runner": event.runner or None,
            "data": None if event.data is None else Raw(event.data),
            "session": event.session,
            "tags": event.tags or None,
            "failedConditions": [_failed_view(one) for one in event.failed] or None,
            "failedConditionCount": event.failed_count or None,
        }
    )


def _failed_view(failed: FailedCondition) -> dict[str, Any]:
    return _present(
        {
            "workflow": failed.workflow,
            "app": failed.app,
            "condition": failed.condition,
            "reason": failed.reason,
            "runId": failed.run_id,
            "step": failed.step,
        }
    )


def _present(view: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if value is not None}

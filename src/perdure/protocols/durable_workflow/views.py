"""JSON views of runs for clients."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.core import instant
from perdure.core.bounds import Bounds
from perdure.core.fleet.worker_availability import WorkerAvailability
from perdure.core.rejection import HistoryDamaged, Rejection
from perdure.core.run.cause import next_cause
from perdure.core.run.history_budget import IN_TIME, HistoryBudget, history_size
from perdure.core.run.limit_warnings import Unread, near_limits
from perdure.core.run.redrive import require_failed
from perdure.core.run.state import Run
from perdure.core.run.status import CLOSED, bucket
from perdure.protocols.durable_workflow.history_pages import budget_members
from perdure.protocols.durable_workflow.payloads import shown
from perdure.protocols.durable_workflow.refusals import Refused
from perdure.store.interface import Store


class _Payload(Struct):
    input: Raw = Raw(b"null")
    output: Raw = Raw(b"null")


class _Event(Struct):
    event_type: str
    payload: _Payload = msgspec.field(default_factory=_Payload)


_event_decoder = msgspec.json.Decoder(_Event)

_WAIT_KINDS = {
    "workflow_task_leased": "workflow-task",
    "workflow_task_ready": "workflow-task",
    "backoff": "workflow-task",
    "delayed_start": "workflow-task",
    "update_validation": "update",
}


def summary(run: Run) -> dict[str, Any]:
    """One run in a list."""
    return {
        "workflow_id": run.workflow_id,
        "run_id": run.run_id,
        "namespace": run.namespace,
        "workflow_type": run.workflow_type,
        "business_key": run.business_key,
        "status": run.status.value,
        "status_bucket": bucket(run.status).value,
        "is_terminal": run.is_closed,
        "task_queue": run.queue,
        "run_number": run.run_number,
        "started_at": instant.text(run.started_at),
        "closed_at": instant.text_or_none(run.closed_at),
        "closed_reason": run.closed_reason,
        "payload_codec": run.codec,
        "memo": run.memo,
        "search_attributes": run.search_attributes,
        "compatibility": run.build_id,
    }


def waiting(
    run: Run,
    availability: WorkerAvailability | None,
    damage: str | None = None,
    refused: Refused | None = None,
) -> dict[str, Any]:
    """What an open run waits for, as text and as a typed member."""
    cause = next_cause(run, availability, damage)
    if cause is None:
        return {"wait_kind": None, "wait_reason": None, "next_cause": None}
    member = msgspec.to_builtins(cause)
    if cause.until is not None:
        member["until"] = instant.text(cause.until)
    text = cause.text
    if refused is not None:
        text = f"{_without_availability(run, text)}; {_refusals_text(refused)}"
        member["text"] = text
        member["refusals"] = {
            **msgspec.structs.asdict(refused),
            "last_at": instant.text(refused.last_at),
        }
    return {
        "wait_kind": _WAIT_KINDS.get(cause.kind, cause.kind),
        "wait_reason": text,
        "next_cause": member,
    }


def _without_availability(run: Run, text: str) -> str:
    """The text of a cause without the part about missing workers: one did report, in vain."""
    return text.partition("; no worker of queue")[0] if run.task is not None else text


def _refusals_text(refused: Refused) -> str:
    many = (
        "a completion of it was"
        if refused.count == 1
        else (f"{refused.count} completions of it were")
    )
    return (
        f"{many} refused, the last at {instant.text(refused.last_at)}: "
        f"{refused.reason}: {refused.message}"
    )


async def description(
    store: Store,
    run: Run,
    runs: Sequence[Run],
    *,
    availability: WorkerAvailability | None,
    can_query: Callable[[Run], bool],
    bounds: Bounds,
    budget: HistoryBudget,
    refused: Refused | None = None,
) -> dict[str, Any]:
    """One run in full. `run` has its open operations, `runs` are all runs of its id."""
    is_current = runs[-1].run_id == run.run_id
    is_open = is_current and run.status not in CLOSED
    view = {
        **summary(run),
        "run_count": len(runs),
        "is_current_run": is_current,
        "execution_timeout_seconds": run.execution_timeout_seconds,
        "run_timeout_seconds": run.run_timeout_seconds,
        "execution_deadline_at": instant.text_or_none(run.execution_deadline_at),
        "run_deadline_at": instant.text_or_none(run.run_deadline_at),
        "last_progress_at": instant.text(run.last_progress_at),
        "history_events": run.history_count,
        "history_bytes": run.history_bytes,
        **_budget(run, budget),
        "limits_near": await _limits_near(store, run, bounds),
        "continued_from_run_id": run.continued_from_run_id,
        "continued_to_run_id": run.continued_to_run_id,
        "redriven_from_run_id": run.redriven_from_run_id,
        "open_update_count": run.updates_open,
        "rejected_signals": _rejected_signals(run),
        "cancellation": _cancellation(run),
        "actions": {
            "can_signal": is_open and run.hosted is None,
            "can_query": is_current and can_query(run),
            "can_update": is_open and run.hosted is None,
            "can_cancel": is_open,
            "can_terminate": is_open,
            "can_repair": False,
            "can_archive": False,
            "can_redrive": is_current and _can_be_redriven(run),
        },
    }
    started = await _intact(store.read_history(run.run_id, 0, 2))
    view |= _payload_members("input", _member(started, "WorkflowStarted", "input"))
    if run.is_closed:
        ending = await _intact(store.read_last_events(run.run_id))
        view |= _payload_members("output", _member(ending, "WorkflowCompleted", "output"))
        view |= failure(run)
    else:
        view["output"] = None
    # Last: the reads above may have found that the history is damaged.
    return view | waiting(run, availability, store.damaged.of(run.run_id), refused)


async def _intact(reading: Awaitable[list[bytes]]) -> list[bytes]:
    """The events, or none if they are damaged: the rest of the run is still shown."""
    try:
        return await reading
    except HistoryDamaged:
        return []


def _budget(run: Run, budget: HistoryBudget) -> dict[str, Any]:
    """The used part of the history budget of an open run."""
    size = history_size(run)
    return budget_members(size, IN_TIME if run.is_closed else budget.of(size))


async def _limits_near(store: Store, run: Run, bounds: Bounds) -> list[dict[str, Any]]:
    has_inbox = run.inbox_next > 1 and not run.is_closed
    unread = await store.count_messages(run) if has_inbox else Unread()
    return [reached._asdict() for reached in near_limits(run, bounds, unread)]


def _can_be_redriven(run: Run) -> bool:
    try:
        require_failed(run)
    except Rejection:
        return False
    return True


def _member(events: list[bytes], event_type: str, name: str) -> bytes | None:
    for encoded in events:
        event = _event_decoder.decode(encoded)
        if event.event_type == event_type:
            return bytes(getattr(event.payload, name))
    return None


def _payload_members(name: str, encoded: bytes | None) -> dict[str, Any]:
    """The value if JSON can represent it, otherwise the envelope."""
    value, complete = shown(encoded)
    if complete or encoded is None:
        return {name: value}
    return {name: None, f"{name}_envelope": Raw(encoded)}


def _rejected_signals(run: Run) -> dict[str, Any] | None:
    """Signals that were accepted, but that the code of the closed run never received."""
    rejected = run.rejected
    if rejected is None:
        return None
    first = [
        {
            "signal_id": signal.signal_id,
            "command_id": signal.command_id,
            "signal_name": signal.name,
            "received_at": instant.text(signal.received_at),
        }
        for signal in rejected.first
    ]
    return {"count": rejected.count, "signals": first}


def _cancellation(run: Run) -> dict[str, Any] | None:
    """The cancellation request of a run and its progress."""
    cancellation = run.cancellation
    if cancellation is None:
        return None
    stage = "requested" if cancellation.delivered is None else "delivered"
    if run.is_closed:
        expired = run.closed_at is not None and run.closed_at >= cancellation.deadline_at
        stage = "deadline_expired" if expired else run.status.value
    return {
        "request_id": cancellation.request_id,
        "root_request_id": cancellation.root_request_id,
        "reason": cancellation.reason,
        "requested_at": instant.text(cancellation.requested_at),
        "cleanup_deadline_at": instant.text(cancellation.deadline_at),
        "status": stage,
    }


def failure(run: Run) -> dict[str, Any]:
    """The failure of a run."""
    cause = run.failure
    if cause is None:
        return {}
    exception = {
        "type": cause.exception_type,
        "class": cause.exception_class,
        "message": cause.message,
    }
    return {
        "error": cause.message,
        "exception": exception,
        "failure": {
            "failure_id": cause.failure_id,
            "message": cause.message,
            "exception_type": cause.exception_type,
            "exception_class": cause.exception_class,
            "failure_category": cause.category,
            "non_retryable": cause.non_retryable,
        },
    }

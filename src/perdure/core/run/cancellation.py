"""Requests to the code of a run to cancel itself: their source, reason, deadline and lineage.

A request is durable at once and is recorded in history when the history is not frozen. From then on
only workers that support such requests get tasks of the run. Delivery is in `interruption`.
"""

from typing import Any

import msgspec

from perdure.core import instant
from perdure.core.limits import SECOND
from perdure.core.run.condition_reopen import (
    open_condition,
    record_superseded_waits,
    reopen_with_new_sequence,
)
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.history import Raw, encode, record
from perdure.core.run.state import Run
from perdure.core.run.state_parts import Cancellation, Stopped
from perdure.core.run.task import hasten_task

SCHEMA = "durable-workflow.cancellation-context/v1"
CONTROL_PLANE = "control_plane"
PARENT_CLOSE = "parent_close"


def ask_to_cancel(
    run: Run,
    ctx: Context,
    *,
    reason: str | None,
    timeout_seconds: int,
    source: str = CONTROL_PLANE,
) -> Cancellation:
    """Create a request for this run. `settle` records it in history."""
    assert run.cancellation is None
    request_id = ctx.ids.ulid()
    deadline_at = ctx.now + timeout_seconds * SECOND
    origin = _entry(request_id, run)
    context = {
        "root_request_id": request_id,
        "root_workflow_instance_id": run.workflow_id,
        "root_workflow_run_id": run.run_id,
        "parent_request_id": None,
        "reason": reason,
        "requester": {"type": source},
        "source": source,
        "requested_at": instant.text(ctx.now),
        "cleanup_deadline_at": instant.text(deadline_at),
        "lineage": [origin],
    }
    return _put(run, ctx, request_id, context, requested_at=ctx.now, deadline_at=deadline_at)


def propagate_request(run: Run, ctx: Context, origin: Cancellation) -> Cancellation:
    """Create the request of a child: with its own id, and the time and deadline of its origin."""
    assert run.cancellation is None
    request_id = ctx.ids.ulid()
    context = msgspec.json.decode(origin.context)
    context["parent_request_id"] = origin.request_id
    context["lineage"].append(_entry(request_id, run))
    return _put(
        run,
        ctx,
        request_id,
        context,
        requested_at=origin.requested_at,
        deadline_at=origin.deadline_at,
    )


def carry_over(run: Run, ctx: Context, successor: Run) -> None:
    """Pass an undelivered request on to the successor of the run."""
    origin = run.cancellation
    if origin is None or origin.delivered is not None:
        return
    context = msgspec.json.decode(origin.context)
    context["lineage"][-1] = _entry(origin.request_id, successor)
    if len(context["lineage"]) == 1:
        context["root_workflow_run_id"] = successor.run_id
    _put(
        successor,
        ctx,
        origin.request_id,
        context,
        requested_at=origin.requested_at,
        deadline_at=origin.deadline_at,
    )


def record_request(run: Run, ctx: Context) -> None:
    """Record the request. Operations that are open now may be cancelled; ended ones stay ended."""
    cancellation = run.cancellation
    assert cancellation is not None
    assert cancellation.event_id is None
    _record_superseded_waits(run, ctx)
    cancellation.open_calls = sorted(run.operations)
    cancellation.first_later_call = run.next_sequence
    cancellation.decided_groups = sorted(
        base for base, group in run.groups.items() if group.failed or group.winner is not None
    )
    cancellation.event_id = record(
        run,
        ctx,
        "CooperativeCancellationRequested",
        {
            "workflow_command_id": cancellation.request_id,
            "workflow_instance_id": run.workflow_id,
            "workflow_run_id": run.run_id,
            "requested_at": instant.text(cancellation.requested_at),
            "cleanup_deadline_at": instant.text(cancellation.deadline_at),
            "reason": cancellation.reason,
            "cancellation": Raw(cancellation.context),
        },
    )


def _record_superseded_waits(run: Run, ctx: Context) -> None:
    """Keep the worker from delivering the request at an opening that its code has left.

    Of several openings under one number it would skip only the first, so the last one gets a new
    number.
    """
    wait = open_condition(run)
    if run.reopened_from is None or wait is None:
        return
    record_superseded_waits(run, ctx, wait.sequence if run.repeats else wait.sequence - 1)
    if run.repeats:
        reopen_with_new_sequence(run, ctx, wait)


def record_due_request(run: Run, ctx: Context) -> None:
    """Record a new request in history, and request a task for it."""
    cancellation = run.cancellation
    if cancellation is None or cancellation.event_id is not None:
        return
    if run.plain_input is not None:
        # The start event may still be rewritten for the first worker; it must be the only event.
        return
    record_request(run, ctx)
    hasten_task(
        run,
        ctx,
        {
            "workflow_wait_kind": "cancellation",
            "open_wait_id": f"cancellation:{cancellation.request_id}",
            "resume_source_kind": "cancellation_request",
            "resume_source_id": cancellation.request_id,
            "workflow_command_id": cancellation.request_id,
        },
    )


def is_unseen(run: Run) -> bool:
    """Whether history contains a request and no worker has completed a task since."""
    cancellation = run.cancellation
    return cancellation is not None and cancellation.event_id is not None and not cancellation.seen


def find_stopped(run: Run, attempt_id: str) -> Stopped | None:
    """The attempt that was running when its activity was cancelled."""
    if run.cancellation is None:
        return None
    return next((s for s in run.cancellation.stopped if s.attempt_id == attempt_id), None)


def _put(
    run: Run,
    ctx: Context,
    request_id: str,
    context: dict[str, Any],
    *,
    requested_at: int,
    deadline_at: int,
) -> Cancellation:
    members = {**context, "schema": SCHEMA, "request_id": request_id}
    run.cancellation = Cancellation(
        request_id=request_id,
        root_request_id=context["root_request_id"],
        requested_at=requested_at,
        deadline_at=deadline_at,
        reason=context["reason"],
        context=encode(members),
    )
    arm(run, deadline_at)
    return run.cancellation


def _entry(request_id: str, run: Run) -> dict[str, str]:
    return {
        "request_id": request_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
    }

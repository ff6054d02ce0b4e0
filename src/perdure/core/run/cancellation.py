"""That somebody asked the code of a run to cancel itself: who, until when, and on whose behalf.

The request is durable at once and enters history in its turn. From then on only workers that know
of such requests get tasks of the run. What the code does about it is in `interruption`.
"""

from typing import Any

import msgspec

from perdure.core import instant
from perdure.core.limits import SECOND
from perdure.core.run.condition_reopen import (
    open_condition,
    reopen_with_new_sequence,
    tell_superseded,
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
    """A request that begins here. It waits for its turn; see `settle`."""
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


def pass_on(run: Run, ctx: Context, origin: Cancellation) -> Cancellation:
    """The request that reaches a child: its own id, the time and the budget of the first one."""
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
    """A request that this run has not delivered is meant for whoever goes on."""
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
    """History learns of the request. What is open now may be cancelled, what has ended stands."""
    cancellation = run.cancellation
    assert cancellation is not None
    assert cancellation.event_id is None
    _tell_superseded_waits(run, ctx)
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


def _tell_superseded_waits(run: Run, ctx: Context) -> None:
    """The worker shall not be cancelled at an opening that its code has left.

    Of openings under one number it would pass over the first alone, so the last one gets another.
    """
    wait = open_condition(run)
    if run.reopened_from is None or wait is None:
        return
    tell_superseded(run, ctx, wait.sequence if run.repeats else wait.sequence - 1)
    if run.repeats:
        reopen_with_new_sequence(run, ctx, wait)


def let_request_in(run: Run, ctx: Context) -> None:
    """The turn of the request has come: history tells of it, and a worker is asked to look."""
    cancellation = run.cancellation
    if cancellation is None or cancellation.event_id is not None:
        return
    if run.plain_input is not None:
        # The start may still be rewritten for its first worker; until then it is all there is.
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
    """Whether history tells of a request that no worker has answered yet."""
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
    told = {**context, "schema": SCHEMA, "request_id": request_id}
    run.cancellation = Cancellation(
        request_id=request_id,
        root_request_id=context["root_request_id"],
        requested_at=requested_at,
        deadline_at=deadline_at,
        reason=context["reason"],
        context=encode(told),
    )
    arm(run, deadline_at)
    return run.cancellation


def _entry(request_id: str, run: Run) -> dict[str, str]:
    return {
        "request_id": request_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
    }

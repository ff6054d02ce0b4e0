"""Expiry of deadlines of a run. Rules react to the passing of time only here."""

from perdure.core import instant
from perdure.core.push.pin import fire_pin
from perdure.core.push.step_deadline import fire_step
from perdure.core.run.activity import end_backoff, redeliver_activity, time_out_activity
from perdure.core.run.close import end_cancelled_run, overdue, time_out_run
from perdure.core.run.context import Context
from perdure.core.run.deadline import (
    activity_deadlines,
    local_deadlines,
    next_due,
    operation_due,
)
from perdure.core.run.history import held
from perdure.core.run.lease import TaskState
from perdure.core.run.local.activity import end_local_backoff, time_out_local
from perdure.core.run.operation import (
    Activity,
    ConditionWait,
    LocalActivity,
    Operation,
    PushStep,
    ServiceCall,
    SignalWait,
    Timer,
)
from perdure.core.run.service import time_out_service_call
from perdure.core.run.settle import resolve, settle
from perdure.core.run.state import WORKFLOW_TASK, Run
from perdure.core.run.task import release_task
from perdure.core.run.update import expire_validations
from perdure.core.run.wait import time_out_wait


def fire_due(run: Run, ctx: Context) -> None:
    """Fire everything of the run that is due, then set its next deadline."""
    if run.is_closed:
        run.due_at = None
        return
    if overdue(run, ctx.now):
        time_out_run(run, ctx)
        return
    if run.cancellation is not None and run.cancellation.deadline_at <= ctx.now:
        end_cancelled_run(run, ctx, run.cancellation, expired=True)
        return
    if run.updates_open:
        expire_validations(run, ctx)
    _fire_task(run, ctx)
    due = [o for o in run.operations.values() if _is_due(o, ctx.now)]
    for operation in sorted(due, key=lambda o: (operation_due(o) or 0, o.sequence)):
        _fire_operation(run, ctx, operation)
    fire_pin(run, ctx.now)
    settle(run, ctx)
    run.due_at = next_due(run)


def _is_due(operation: Operation, now: int) -> bool:
    at = operation_due(operation)
    return at is not None and at <= now


def _fire_task(run: Run, ctx: Context) -> None:
    task = run.task
    if task is None:
        return
    if task.lease is not None and task.lease.expires_at <= ctx.now:
        release_task(run, ctx)
    elif task.state is TaskState.DELAYED and task.available_at <= ctx.now:
        task.state = TaskState.READY
        run.unsaved.ready[WORKFLOW_TASK] = True


def _fire_operation(run: Run, ctx: Context, operation: Operation) -> None:
    match operation:
        case Activity():
            kind = next(k for k, at in activity_deadlines(operation) if at <= ctx.now)
            if kind == "available":
                end_backoff(run, operation, ctx.now)
            elif kind == "lease":
                redeliver_activity(run, ctx, operation)
            else:
                time_out_activity(run, ctx, operation, kind)
        case LocalActivity():
            kind = next(k for k, at in local_deadlines(operation) if at <= ctx.now)
            if kind == "available":
                end_local_backoff(run, operation)
            else:
                time_out_local(run, ctx, operation, kind)
        case Timer():
            fired = {
                "sequence": operation.sequence,
                "timer_id": operation.timer_id,
                "delay_seconds": operation.delay_seconds,
                "fire_at": instant.text(operation.fire_at),
                "fired_at": instant.text(ctx.now),
            }
            resolve(run, operation, held("TimerFired", fired, operation))
        case ServiceCall():
            time_out_service_call(run, operation)
        case ConditionWait() | SignalWait():
            time_out_wait(run, ctx, operation)
        case PushStep():
            fire_step(run, ctx, operation)
        case _:
            raise AssertionError(f"{operation} has no deadline")

"""Updates of a run: validated, accepted, completed by the code, or dropped by a close.

An update waits in the inbox like a signal. In its turn it is validated first, if the code has a
validator for it; then its acceptance is recorded and a task of its own asks a worker for the
outcome. No other message is handed over until that outcome is recorded and the code has seen it.
"""

from typing import Any

from perdure.core import limits
from perdure.core.run.command import CompleteUpdate, UpdateOutcome
from perdure.core.run.condition_reopen import reopen_before_message
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.group import is_blocked
from perdure.core.run.history import Raw, raw, record
from perdure.core.run.inbox import EndedUpdate, Refusal, Update
from perdure.core.run.lease import TaskState
from perdure.core.run.state import WORKFLOW_TASK, Run, TaskKind
from perdure.core.run.task import request_task, withdraw
from perdure.core.run.trace import link_command

NOT_CLAIMED = "update_validation_task_not_claimed"
WORKER_LOST = "update_validator_worker_lost"
OUT_OF_TIME = "update_validation_execution_timeout"


def hand_over_update(run: Run, ctx: Context, position: int, update: Update) -> None:
    """Request the validation of an update, or accept it."""
    if update.unjudged and update.name in run.validators:
        update.unjudged = False
        update.validate_by = ctx.now + limits.UPDATE_VALIDATION_TIMEOUT
        run.unsaved.inbox.add(position)
        arm(run, update.validate_by)
    if update.validate_by is None:
        leave_inbox(run, position)
        accept(run, ctx, update)
        return
    judged: dict[str, str | int] = {
        "workflow_update_id": update.update_id,
        "update_name": update.name,
    }
    request_task(run, ctx, judged, TaskKind.VALIDATION)


def accept(run: Run, ctx: Context, update: Update) -> None:
    """Record the acceptance, and request a task for the outcome."""
    run.update = update
    link_command(run, update)
    members = {**_identity(run, update), "arguments": raw(update.arguments)}
    record(run, ctx, "UpdateAccepted", {**members, "payload_codec": run.codec})
    request_update_task(run, ctx, update)


def request_update_task(run: Run, ctx: Context, update: Update) -> None:
    """Request a task that runs only the handler of the update."""
    resume: dict[str, str | int] = {
        "workflow_wait_kind": "update",
        "open_wait_id": f"update:{update.update_id}",
        "resume_source_kind": "workflow_update",
        "resume_source_id": update.update_id,
        "workflow_update_id": update.update_id,
        "workflow_command_id": update.command_id,
    }
    request_task(run, ctx, resume, TaskKind.UPDATE)


def finish_update(run: Run, ctx: Context, outcome: UpdateOutcome, *, wake: bool) -> None:
    """Record the outcome of the handler. Later replays run only handlers that completed."""
    update = run.update
    assert update is not None
    assert update.update_id == outcome.update_id
    run.update = None
    members = _identity(run, update)
    if not isinstance(outcome, CompleteUpdate):
        failure = {
            "failure_id": ctx.ids.ulid(),
            "failure_category": "application",
            "non_retryable": outcome.non_retryable,
            "exception_type": outcome.exception_type,
            "exception_class": outcome.exception_class,
            "message": outcome.message,
        }
        record(run, ctx, "UpdateCompleted", {**members, **failure})
        _end(run, update, "failed", event=run.history_count)
        return
    applied = {"arguments": raw(update.arguments), "payload_codec": run.codec}
    reopen_before_message(run, ctx)
    record(run, ctx, "UpdateApplied", {**members, **applied})
    result = {"result": Raw(outcome.result or b"null"), "payload_codec": run.codec}
    record(run, ctx, "UpdateCompleted", {**members, **result})
    _end(run, update, "completed", event=run.history_count)
    if wake and not is_blocked(run):
        # The handler may have made the condition of the code true.
        request_task(run, ctx)


def refuse(run: Run, position: int, update: Update, refusal: Refusal) -> None:
    """Drop an update that was not accepted. Its callers get the refusal; history has no event."""
    task = run.task
    if task is not None and update_in_validation(run) is update:
        if task.state is TaskState.READY:
            withdraw(run, WORKFLOW_TASK)
        run.task = None
    leave_inbox(run, position)
    _end(run, update, "rejected", refusal=refusal)


def expire_validations(run: Run, ctx: Context) -> None:
    """Refuse updates that were not validated in time."""
    late = [
        (position, message)
        for position, message in sorted(run.inbox.items())
        if isinstance(message, Update)
        and message.validate_by is not None
        and message.validate_by <= ctx.now
    ]
    for position, update in late:
        refuse(run, position, update, _timeout_refusal(run, update))


def _timeout_refusal(run: Run, update: Update) -> Refusal:
    task = run.task if update_in_validation(run) is update else None
    if task is None or task.attempt == 0:
        return Refusal(NOT_CLAIMED, f"no worker has taken the validation of update {update.name}")
    if task.lease is None:
        return Refusal(WORKER_LOST, f"the worker that validated update {update.name} was lost")
    owner = task.lease.owner
    return Refusal(OUT_OF_TIME, f"worker {owner} did not validate update {update.name} in time")


def update_in_validation(run: Run) -> Update | None:
    """The update that the run's task asks a worker to validate."""
    task = run.task
    if task is None or task.kind is not TaskKind.VALIDATION:
        return None
    update = run.inbox[oldest_position(run)]
    assert isinstance(update, Update)
    return update


def oldest_position(run: Run) -> int:
    """The position of the oldest message. Refused updates leave gaps."""
    while run.inbox_first not in run.inbox:
        run.inbox_first += 1
    return run.inbox_first


def leave_inbox(run: Run, position: int) -> None:
    del run.inbox[position]
    run.unsaved.inbox.add(position)


def close_updates(run: Run, ctx: Context, *, category: str, ended: str) -> None:
    """Before a close: fail the accepted update, reject the waiting ones, and record both."""
    update, run.update = run.update, None
    if update is not None:
        record(
            run,
            ctx,
            "UpdateCompleted",
            {
                **_identity(run, update),
                "failure_id": ctx.ids.ulid(),
                "failure_category": category,
                "non_retryable": True,
                "exception_type": "WorkflowClosed",
                "exception_class": "WorkflowClosed",
                "message": f"the run {ended} before the update had an outcome",
            },
        )
        _end(run, update, "failed", event=run.history_count)
    for _, message in sorted(run.inbox.items()):
        if isinstance(message, Update):
            arguments = {"arguments": raw(message.arguments)}
            record(run, ctx, "UpdateRejected", {**_identity(run, message), **arguments})
            _end(run, message, "rejected", event=run.history_count)


def _end(
    run: Run,
    update: Update,
    status: str,
    *,
    event: int | None = None,
    refusal: Refusal | None = None,
) -> None:
    run.updates_open -= 1
    run.updates_ended.append(EndedUpdate(update.update_id, status, event, refusal))
    del run.updates_ended[: -limits.ENDED_UPDATES_KEPT]


def _identity(run: Run, update: Update) -> dict[str, Any]:
    return {
        "workflow_command_id": update.command_id,
        "update_id": update.update_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
        "update_name": update.name,
    }

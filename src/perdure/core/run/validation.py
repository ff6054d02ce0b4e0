"""Verdicts of a worker on an update before it is accepted."""

from msgspec import Struct

from perdure.core.rejection import (
    UpdateValidationDuplicate,
    UpdateValidationLeaseExpired,
    UpdateValidationNotFound,
    UpdateValidationNotLeased,
    UpdateValidationStale,
)
from perdure.core.run.completion import TaskReport
from perdure.core.run.context import Context
from perdure.core.run.inbox import Refusal, Update
from perdure.core.run.settle import settle
from perdure.core.run.state import Run, TaskKind, WorkflowTask
from perdure.core.run.task import APPROVED, REJECTED, find_receipt, finish_task
from perdure.core.run.update import (
    accept,
    leave_inbox,
    oldest_position,
    refuse,
    update_in_validation,
)


class VerdictResult(Struct, frozen=True):
    """The result of a verdict; `update` is none if the verdict is a repeat.

    `is_new`: the update's callers have not been informed of its acceptance before.
    """

    outcome: str
    update: Update | None
    is_new: bool = False


def approve_update(run: Run, ctx: Context, report: TaskReport) -> VerdictResult:
    """Accept the update at once."""
    task = _require_task(run, ctx, report, APPROVED)
    if task is None:
        return VerdictResult(APPROVED, None)
    update = update_in_validation(run)
    assert update is not None
    finish_task(run, task, APPROVED)
    leave_inbox(run, oldest_position(run))
    update.validate_by = None
    is_new = update.accepted_at is None
    if is_new:
        update.accepted_at = ctx.now
    accept(run, ctx, update)
    settle(run, ctx)
    return VerdictResult(APPROVED, update, is_new)


def reject_update(run: Run, ctx: Context, report: TaskReport, refusal: Refusal) -> VerdictResult:
    """Refuse an update whose validator refused it or could not run. History has no event."""
    task = _require_task(run, ctx, report, REJECTED)
    if task is None:
        return VerdictResult(REJECTED, None)
    update = update_in_validation(run)
    assert update is not None
    position = oldest_position(run)
    finish_task(run, task, REJECTED)
    refuse(run, position, update, refusal)
    settle(run, ctx)
    return VerdictResult(REJECTED, update)


def _require_task(run: Run, ctx: Context, report: TaskReport, verdict: str) -> WorkflowTask | None:
    """The leased task that a verdict names, or none if the same verdict is repeated."""
    receipt = find_receipt(
        run, number=report.number, owner=report.owner, attempt=report.attempt, verdict=True
    )
    if receipt is not None:
        if receipt.outcome == verdict:
            return None
        raise UpdateValidationDuplicate(
            f"validation {report.number} of run {run.run_id} was already {receipt.outcome}"
        )
    if not 1 <= report.number <= run.task_count:
        raise UpdateValidationNotFound(f"run {run.run_id} has no validation {report.number}")
    task = run.task
    if task is not None and task.number == report.number and task.kind is not TaskKind.VALIDATION:
        raise UpdateValidationNotFound(
            f"task {report.number} of run {run.run_id} is not a validation"
        )
    if task is None or task.number != report.number or task.lease is None:
        raise UpdateValidationNotLeased(
            f"validation {report.number} of run {run.run_id} is not leased"
        )
    lease = task.lease
    if lease.expires_at <= ctx.now:
        raise UpdateValidationLeaseExpired(
            f"the lease of validation {report.number} has expired",
            lease_expires_at=lease.expires_at,
        )
    if (lease.owner, task.attempt) != (report.owner, report.attempt):
        raise UpdateValidationStale(
            f"validation {report.number} is leased by {lease.owner}, attempt {task.attempt}",
            lease_owner=lease.owner,
            current_attempt=task.attempt,
        )
    return task

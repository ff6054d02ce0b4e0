"""Steps that wait for an approval or its timeout.

Step and approval change in one transaction, so only the first decision counts.
"""

from typing import Any

from perdure.core import instant
from perdure.core.push.approval import TIMEOUT, Approval, Decision
from perdure.core.push.command import AskApproval
from perdure.core.push.effect import ApprovalMoved, AskedPeople
from perdure.core.push.step import (
    APPROVAL,
    NULL,
    await_step,
    complete_step,
    identity,
    new_step,
)
from perdure.core.run.context import Context
from perdure.core.run.deadline import arm
from perdure.core.run.history import Raw, encode, record
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.push import ApprovalWait
from perdure.core.run.state import Run


def ask_approval(run: Run, ctx: Context, command: AskApproval) -> None:
    """Open a step that waits for an approval."""
    step = new_step(run, ctx, command.step_id, command.name, APPROVAL)
    if command.timeout is not None:
        step.fire_at = ctx.now + command.timeout
    wait = ApprovalWait(
        approval_id=ctx.ids.ulid(),
        tool=command.tool,
        args=command.args or NULL,
        timeout=command.timeout,
        escalates_to=command.escalates_to,
    )
    step.approval = wait
    await_step(
        run,
        ctx,
        step,
        {"approval_id": wait.approval_id, "tool": command.tool, "input": Raw(wait.args)},
    )
    asked = Approval(
        run_id=run.run_id,
        sequence=step.sequence,
        app=run.queue,
        workflow=run.workflow_type,
        step=command.name,
        tool=command.tool,
        risk=command.risk,
        requested_at=ctx.now,
        args=command.args,
        policy=command.policy,
        summary=command.summary,
        context=command.context,
        escalates_to=command.escalates_to,
        expires_at=step.fire_at,
    )
    run.unsaved.effects.append(AskedPeople(run, wait.approval_id, asked))


def time_out_approval(run: Run, ctx: Context, step: PushStep) -> None:
    """The approval timed out: escalate it once if it has an escalation target, else deny it."""
    wait = step.approval
    assert wait is not None
    if wait.escalates_to is not None and not wait.is_escalated and wait.timeout:
        wait.is_escalated = True
        step.fire_at = ctx.now + wait.timeout
        run.unsaved.operations.add(step.sequence)
        details = {
            "approval_id": wait.approval_id,
            "escalates_to": wait.escalates_to,
            "fire_at": instant.text(step.fire_at),
        }
        record(run, ctx, "ApprovalEscalated", {**identity(step), **details})
        arm(run, step.fire_at)
        moved = ApprovalMoved(run, wait.approval_id, "escalated", expires_at=step.fire_at)
    else:
        denied = Decision(status="denied", decided_by=TIMEOUT)
        finish_approval(run, ctx, step, denied)
        moved = ApprovalMoved(run, wait.approval_id, "denied", decided_by=TIMEOUT)
    run.unsaved.effects.append(moved)


def finish_approval(run: Run, ctx: Context, step: PushStep, decision: Decision) -> None:
    """Complete the step with the decision."""
    wait = step.approval
    assert wait is not None
    args = wait.args if decision.args is None else decision.args
    result: dict[str, Any] = {
        "status": decision.status,
        "args": Raw(args),
        "decidedBy": decision.decided_by,
    }
    # The arguments are part of the memo from now on.
    wait.args = NULL
    details = {"approval_id": wait.approval_id}
    complete_step(run, ctx, step, encode(result), details)


def find_asking(run: Run, approval: Approval) -> PushStep | None:
    """The step of a run that still waits for this approval."""
    step = run.operations.get(approval.sequence)
    if not isinstance(step, PushStep) or step.approval is None:
        return None
    return step if step.state is StepState.WAITING else None

"""Approvals: questions to people, stored apart from their run, so that lists keep them after it."""

from typing import Literal, TypeAlias

from msgspec import Struct, structs

from perdure.core.rejection import ApprovalNotPending

SYSTEM = "system:"
TIMEOUT = f"{SYSTEM}timeout"
"""The recorded decider of an approval that timed out."""

Verdict: TypeAlias = Literal["approved", "denied"]
ApprovalStatus: TypeAlias = Literal["pending", "escalated", "approved", "denied", "cancelled"]
OPEN = ("pending", "escalated")


class Approval(Struct, frozen=True, kw_only=True):
    """A question to people, and its outcome."""

    run_id: str
    sequence: int
    app: str
    workflow: str
    step: str
    tool: str
    risk: str
    requested_at: int
    status: ApprovalStatus = "pending"
    args: bytes | None = None
    policy: str | None = None
    summary: str | None = None
    context: str | None = None
    escalates_to: str | None = None
    expires_at: int | None = None
    decided_at: int | None = None
    decided_by: str | None = None
    edited_args: bytes | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """A decision on an approval. `args` replaces the requested arguments."""

    status: Verdict
    decided_by: str
    args: bytes | None = None


def decided(approval: Approval, decision: Decision, now: int) -> Approval:
    """The approval after a decision; unchanged if the same decision was recorded before."""
    if approval.status in OPEN:
        return structs.replace(
            approval,
            status=decision.status,
            decided_at=now,
            decided_by=decision.decided_by,
            edited_args=decision.args,
        )
    made = (approval.status, approval.decided_by, approval.edited_args)
    if made == (decision.status, decision.decided_by, decision.args):
        return approval
    who = f" by {approval.decided_by}" if approval.decided_by else ""
    message = f"the approval of step {approval.step} is {approval.status}{who}"
    raise ApprovalNotPending(message, status=approval.status)

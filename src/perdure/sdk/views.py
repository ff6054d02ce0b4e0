"""What the engine shows of approvals, sessions and scores."""

import msgspec

from perdure.sdk.wire import Json


class ApprovalRow(msgspec.Struct, frozen=True, rename="camel"):
    """A question to people, and what became of it."""

    id: str
    run_id: str
    status: str
    risk: str = ""
    workflow: str | None = None
    app: str | None = None
    step: str | None = None
    tool: str | None = None
    args: Json = None
    policy: str | None = None
    summary: str | None = None
    context: str | None = None
    escalates_to: str | None = None
    requested_at: str | None = None
    expires_at: str | None = None
    decided_at: str | None = None
    decided_by: str | None = None
    edited_args: Json = None

    @property
    def is_open(self) -> bool:
        """Whether somebody may still decide."""
        return self.status in ("pending", "escalated")


class SessionRow(msgspec.Struct, frozen=True, rename="camel"):
    """The runs that share a label, summed up."""

    session: str
    run_count: int = 0
    status_counts: dict[str, int] = {}
    first_started_at: str | None = None
    last_started_at: str | None = None
    ai_tokens: int | None = None
    ai_cost: float | None = None


class ScoreRow(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody said about a run."""

    id: str
    run_id: str
    name: str
    data_type: str = ""
    source: str = ""
    value: float | None = None
    string_value: str | None = None
    comment: str | None = None
    step: str | None = None
    scorer: str | None = None
    created_at: str | None = None

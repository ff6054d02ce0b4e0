"""HTTP routes of approvals: list, show, decide."""

from collections.abc import Collection
from typing import Any, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.core import instant
from perdure.core.limits import (
    APPROVAL_ARGUMENT_BYTES_MAX,
    LIST_PAGE_SIZE_DEFAULT,
    LIST_PAGE_SIZE_MAX,
    NAME_LENGTH_MAX,
    STEPS_PER_RUN_MAX,
)
from perdure.core.push.approval import SYSTEM, Approval, ApprovalStatus, Decision, Verdict
from perdure.engine.beat import Engine
from perdure.engine.records import Listed, RecordKind
from perdure.features.approvals.operations import (
    APPROVAL,
    BY_RUN,
    BY_STATUS,
    DecideApproval,
    place_of,
)
from perdure.protocols.durablex.requests import bad_request, choice, integer, read_body
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.message import HttpError, Request, Response

_SCAN_PAGES_MAX = STEPS_PER_RUN_MAX // LIST_PAGE_SIZE_MAX
"""Pages read per request at most; a run has no more approvals than steps."""
_STATUSES: Collection[str] = get_args(ApprovalStatus)


class DecisionBody(Struct, rename="camel"):
    """The decision of a person."""

    status: Verdict
    decided_by: str | None = None
    args: Raw | UnsetType = UNSET


_decoder = msgspec.json.Decoder(DecisionBody)


class Approvals:
    """The routes under /approvals."""

    def __init__(self, engine: Engine, surface: DurablexSurface) -> None:
        self._engine = engine
        self._store = engine.store
        self._surface = surface

    async def find(self, request: Request) -> Response:
        """GET /approvals, newest first."""
        query, namespace = request.query, request.namespace
        limit = integer(query, "limit", 1, LIST_PAGE_SIZE_MAX, LIST_PAGE_SIZE_DEFAULT)
        status, run_id = choice(query, "status", _STATUSES), query.get("runId")
        if run_id:
            found = await self._listed(BY_RUN, namespace, run_id, status, limit)
        elif status is not None:
            found = await self._listed(BY_STATUS, namespace, status, status, limit)
        else:
            found = list(
                await APPROVAL.read_page(self._store, namespace, limit=limit, newest_first=True)
            )
        return self._surface.answer(200, [approval_view(*one) for one in found])

    async def _listed(
        self,
        kind: RecordKind[Listed],
        namespace: str,
        group: str,
        status: str | None,
        limit: int,
    ) -> list[tuple[str, Approval]]:
        """Entries of a list that have a status: it may have changed since the list was read."""
        prefix = place_of(group, "")
        found: list[tuple[str, Approval]] = []
        after = None
        for _ in range(_SCAN_PAGES_MAX):
            page = await kind.read_page(
                self._store,
                namespace,
                prefix=prefix,
                limit=LIST_PAGE_SIZE_MAX,
                after=after,
                newest_first=True,
            )
            for key, _ in page:
                approval_id = key.removeprefix(prefix)
                approval = await APPROVAL.read(self._store, namespace, approval_id)
                if approval is not None and status in (None, approval.status):
                    found.append((approval_id, approval))
                if len(found) == limit:
                    return found
            if len(page) < LIST_PAGE_SIZE_MAX:
                break
            after = page[-1][0]
        return found

    async def show(self, request: Request) -> Response:
        """GET /approvals/{id}."""
        approval_id = request.params["approval_id"]
        approval = await APPROVAL.read(self._store, request.namespace, approval_id)
        if approval is None:
            message = f"there is no approval {approval_id[:64]}"
            raise HttpError(404, "approval_not_found", message)
        return self._surface.answer(200, approval_view(approval_id, approval))

    async def decide(self, request: Request) -> Response:
        """POST /approvals/{id}/decision."""
        approval_id = request.params["approval_id"]
        body = read_body(request, _decoder)
        by = body.decided_by
        if by is not None and (not by.strip() or len(by) > NAME_LENGTH_MAX):
            raise bad_request(f"decidedBy has 1 to {NAME_LENGTH_MAX} characters")
        if by is not None and by.startswith(SYSTEM):
            raise bad_request(f"decidedBy must not begin with {SYSTEM}")
        args = None if body.args is UNSET else bytes(body.args)
        if args is not None and len(args) > APPROVAL_ARGUMENT_BYTES_MAX:
            raise bad_request(f"args has more than {APPROVAL_ARGUMENT_BYTES_MAX} bytes")
        decision = Decision(
            status=body.status, decided_by=by or request.principal.subject, args=args
        )
        operation = DecideApproval(request.namespace, approval_id, decision)
        approval: Approval = await self._engine.submit(operation)
        return self._surface.answer(200, approval_view(approval_id, approval))


def approval_view(approval_id: str, approval: Approval) -> dict[str, Any]:
    """The JSON of an approval. Members without a value are left out."""
    view = {
        "id": approval_id,
        "runId": approval.run_id,
        "risk": approval.risk,
        "status": approval.status,
        "requestedAt": instant.text(approval.requested_at),
        "workflow": approval.workflow,
        "app": approval.app,
        "step": approval.step,
        "tool": approval.tool,
        "args": _raw(approval.args),
        "policy": approval.policy,
        "summary": approval.summary,
        "context": approval.context,
        "escalatesTo": approval.escalates_to,
        "expiresAt": instant.text_or_none(approval.expires_at),
        "decidedAt": instant.text_or_none(approval.decided_at),
        "decidedBy": approval.decided_by,
        "editedArgs": _raw(approval.edited_args),
    }
    return {name: value for name, value in view.items() if value is not None}


def _raw(text: bytes | None) -> Raw | None:
    return None if text is None else Raw(text)

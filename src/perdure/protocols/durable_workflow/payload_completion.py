"""Uploads for leased tasks: admitted although other uploads have to wait for room.

A header of the upload names the task that the worker is about to report on. It counts if the
worker holds the lease of that task.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from perdure.clock import Clock
from perdure.core.rejection import Rejection
from perdure.core.run.activity import require_attempt
from perdure.core.run.state import Run, parse_task_id
from perdure.dispatch.query_broker import QueryBroker
from perdure.dispatch.query_messages import QueryReport
from perdure.dispatch.query_table import QueryState
from perdure.engine.beat import Engine
from perdure.engine.claims import ShowRun
from perdure.web.message import Request

CONTEXT_SCHEMA = "durable-workflow.v2.payload-completion-context.v1"
PREPARED_SCHEMA = "durable-workflow.v2.payload-completion-context.v2"
CONTEXT_HEADER = "X-Durable-Workflow-Payload-Completion"
_HEADER = CONTEXT_HEADER.lower().encode()
_HEADER_BYTES_MAX = 4_096
_OPERATIONS = {
    CONTEXT_SCHEMA: {"complete", "fail"},
    PREPARED_SCHEMA: {
        "local_activity_checkpoint",
        "local_activity_group_checkpoint",
        "local_activity_prepare",
        "local_activity_recover",
        "local_activity_outcome",
    },
}
"""Names of the reports that an upload may belong to, by schema."""


class Context(Struct):
    """The report that an upload belongs to."""

    schema: str
    kind: Literal["workflow", "activity", "query"]
    task_id: str
    attempt: int | str
    lease_owner: str
    operation: str


class PayloadCompletion:
    """Checks whether an upload belongs to a report on a task that its worker has leased."""

    def __init__(self, engine: Engine, query_broker: QueryBroker, clock: Clock) -> None:
        self._engine = engine
        self._query_broker = query_broker
        self._clock = clock

    async def is_for_leased_task(self, request: Request) -> bool:
        context = _context(request)
        if context is None:
            return False
        try:
            if context.kind == "query":
                return await self._holds_query(request.namespace, context)
            return await self._holds_task(request.namespace, context)
        except Rejection:
            return False

    async def _holds_query(self, namespace: str, context: Context) -> bool:
        view = await self._query_broker.report(
            QueryReport(
                namespace=namespace,
                query_id=context.task_id,
                owner=context.lease_owner,
                attempt=context.attempt if isinstance(context.attempt, int) else 0,
                outcome=None,
            )
        )
        return view.state == QueryState.LEASED

    async def _holds_task(self, namespace: str, context: Context) -> bool:
        ref = parse_task_id(context.task_id, context.kind[0])
        if ref is None:
            return False
        now = self._clock.now()

        def holds(run: Run) -> bool:
            if context.kind == "activity":
                return _holds_attempt(run, ref.number, context)
            task = run.task
            return (
                task is not None
                and task.lease is not None
                and task.lease.expires_at > now
                and (task.number, task.attempt) == (ref.number, context.attempt)
                and task.lease.owner == context.lease_owner
            )

        return bool(await self._engine.submit(ShowRun(namespace, ref.run_id, holds)))


def _holds_attempt(run: Run, sequence: int, context: Context) -> bool:
    if not isinstance(context.attempt, str):
        return False
    require_attempt(run, sequence=sequence, attempt_id=context.attempt, owner=context.lease_owner)
    return True


def _context(request: Request) -> Context | None:
    header = request.headers.get(_HEADER)
    if header is None or len(header) > _HEADER_BYTES_MAX:
        return None
    try:
        context = msgspec.json.decode(header, type=Context)
    except msgspec.DecodeError:
        return None
    if context.operation not in _OPERATIONS.get(context.schema, ()):
        return None
    return context if context.schema == CONTEXT_SCHEMA or context.kind == "workflow" else None

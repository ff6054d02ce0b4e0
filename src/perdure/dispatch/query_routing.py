"""Asking a run: which run is meant, who may answer, and what they told about the query."""

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from perdure.core.fleet.query_contract import (
    Target,
    find_answerers,
    match_arguments,
    require_answerers,
    require_known,
)
from perdure.core.fleet.routing import routing_name
from perdure.core.fleet.worker import Worker
from perdure.core.limits import QUERY_MATCHED_BYTES_MAX
from perdure.core.payload import PayloadError, decode
from perdure.core.rejection import InvalidRequest, RunNotActive
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.core.run.task import workflow_name
from perdure.dispatch.query_broker import QueryBroker, RunWatch
from perdure.dispatch.query_messages import AskedQuery, QueryAnswer
from perdure.engine.beat import Engine
from perdure.engine.query_target import ShowTarget
from perdure.store.interface import Instance


class Question(Struct, frozen=True, kw_only=True):
    """A query as it was asked: arguments in an envelope, or plain, or none."""

    instance: Instance
    run_id: str | None
    query_name: str
    arguments: bytes | None
    blob: str | None
    """The blob of an inline envelope, to be matched with what workers told."""
    plain: bytes | None


class QueryRouter:
    """Puts questions on the desk."""

    def __init__(self, engine: Engine, query_broker: QueryBroker) -> None:
        self._engine = engine
        self._query_broker = query_broker
        self._refresh_workers: Callable[[], Awaitable[None]] | None = None

    def connect(self, refresh_workers: Callable[[], Awaitable[None]]) -> None:
        """Say how to hear of workers that registered at other nodes."""
        self._refresh_workers = refresh_workers

    async def ask(self, question: Question, watch: RunWatch) -> tuple[str, QueryAnswer]:
        """The id of the run that was asked, and its answer."""
        run_id, target = await self._engine.submit(
            ShowTarget(question.instance, question.run_id, _require_queryable)
        )
        able = await self._require_answerers(target)
        plain = _match(question, able, target.workflow_type)
        asked = AskedQuery(
            namespace=target.namespace,
            queue=target.queue,
            name=target.name,
            workflow_id=question.instance.workflow_id,
            run_id=run_id,
            workflow_type=target.workflow_type,
            query_name=question.query_name,
            arguments=question.arguments,
            plain=plain,
        )
        return run_id, await self._query_broker.ask(asked, watch)

    async def _require_answerers(self, target: Target) -> list[Worker]:
        workers = self._engine.workers
        if self._refresh_workers is not None:
            able, _ = find_answerers(workers.values(), target, self._query_broker.is_live)
            if able:
                return able
            await self._refresh_workers()
        return require_answerers(workers.values(), target, self._query_broker.is_live)

    def can_ask(self, run: Run) -> bool:
        """Whether a query to this run would find a worker now."""
        if run.is_closed and run.status is not RunStatus.COMPLETED:
            return False
        workers = self._engine.workers.values()
        return bool(find_answerers(workers, _target(run), self._query_broker.is_live)[0])


def _require_queryable(run: Run) -> tuple[str, Target]:
    """Open runs have a state to ask for, and completed ones still do."""
    if run.is_closed and run.status is not RunStatus.COMPLETED:
        raise RunNotActive(
            f"run {run.run_id} is {run.status}",
            run_id=run.run_id,
            run_status=run.status.value,
            is_terminal=True,
        )
    return run.run_id, _target(run)


def _target(run: Run) -> Target:
    name = routing_name(workflow_name(run), run.build_id)
    return Target(run.namespace, run.queue, run.workflow_type, name)


def _match(question: Question, able: list[Worker], workflow_type: str) -> bytes | None:
    """Plain arguments as a list; refuses what all who may answer would refuse."""
    contract = require_known(able, workflow_type, question.query_name)
    if contract is None:
        return question.plain
    if question.plain is not None:
        return msgspec.json.encode(match_arguments(contract, msgspec.json.decode(question.plain)))
    if question.arguments is None:
        match_arguments(contract, [])
    elif question.blob is not None and len(question.blob) <= QUERY_MATCHED_BYTES_MAX:
        # Opening a large payload would hold everybody up; its worker will say what is wrong.
        try:
            given = decode(question.blob)
        except PayloadError as error:
            raise InvalidRequest("input.blob", error.message) from None
        match_arguments(contract, given if isinstance(given, list) else [given])
    return None

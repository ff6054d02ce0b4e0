"""HTTP routes that control runs: cancel, pause, resume, replay, retry, fork."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from perdure.core import instant
from perdure.core.limits import (
    EVENT_DATA_BYTES_MAX,
    FORK_BYTES_MAX,
    HISTORY_READ_MAX,
    LIST_PAGE_SIZE_DEFAULT,
    LIST_PAGE_SIZE_MAX,
    NAME_LENGTH_MAX,
    WORKFLOWS_MAX,
)
from perdure.core.maps import Map, optional_members_of
from perdure.core.push.result import vault_of
from perdure.core.push.start import PushStart, event_arguments
from perdure.core.push.step import push_of
from perdure.core.push.usage_check import once_more
from perdure.core.rejection import Rejection
from perdure.core.run.state import Run
from perdure.engine.beat import Engine
from perdure.engine.registration import DEFINITION
from perdure.engine.run_control import (
    ACTION,
    BEGUN,
    BeginAgain,
    CancelPushRun,
    ControlAction,
    ControlRun,
    PauseRun,
    ResumeRun,
    begun_key,
)
from perdure.protocols.durablex.record_pages import Row, find_rows
from perdure.protocols.durablex.requests import bad_request, choice, integer, read_body
from perdure.protocols.durablex.run_lists import find_runs, finished, read_filter
from perdure.protocols.durablex.runs import Runs, no_run
from perdure.protocols.durablex.surface import DurablexSurface, encode
from perdure.protocols.durablex.timeline import carried_before, facts_of
from perdure.protocols.durablex.views import arguments_of
from perdure.web.message import HttpError, Request, Response

BULK_MAX = 1_000
_ACTIONS = frozenset(
    {
        *("cancel", "pause", "resume", "replay", "retry_from_step", "bulk_replay"),
        *("approve", "deny", "fork"),
    }
)


class ReplayBody(Struct, rename="camel"):
    input: Raw | UnsetType = UNSET
    dedupe_id: str | None = None


class RetryBody(Struct, rename="camel"):
    step: str
    dedupe_id: str | None = None


class ForkBody(RetryBody, rename="camel"):
    """What the new run shall do differently; the engine only passes it on."""

    model: str | None = None
    prompt: str | None = None
    params: Map[Any] | None = None


class BulkBody(Struct, rename="camel"):
    app: str | None = None
    workflow: str | None = None
    status: str | None = None
    run_type: str | None = None
    since: str | None = None
    dedupe_id: str | None = None


_replay_decoder = msgspec.json.Decoder(ReplayBody)
_retry_decoder = msgspec.json.Decoder(RetryBody)
_fork_decoder = msgspec.json.Decoder(ForkBody)
_bulk_decoder = msgspec.json.Decoder(BulkBody)


class RunControl:
    """The routes under /runs that change something."""

    def __init__(self, engine: Engine, runs: Runs, surface: DurablexSurface) -> None:
        self._engine = engine
        self._runs = runs
        self._surface = surface

    async def cancel(self, request: Request) -> Response:
        """POST /runs/{id}/cancel."""
        return await self._control(request, CancelPushRun)

    async def pause(self, request: Request) -> Response:
        """POST /runs/{id}/pause."""
        return await self._control(request, PauseRun)

    async def resume(self, request: Request) -> Response:
        """POST /runs/{id}/resume."""
        return await self._control(request, ResumeRun)

    async def _control(self, request: Request, command: type[ControlRun]) -> Response:
        actor = request.principal.subject
        run_id = request.params["run_id"]
        await self._engine.submit(command(request.namespace, run_id, actor))
        run = await self._runs.require(request)
        return self._surface.answer(200, await self._runs.view(run))

    async def replay(self, request: Request) -> Response:
        """POST /runs/{id}/replay: the same event, or another payload, from the start."""
        source = await self._require_over(request)
        body = read_body(request, _replay_decoder)
        data = None if body.input is UNSET else bytes(body.input)
        if data is not None and len(data) > EVENT_DATA_BYTES_MAX:
            raise HttpError(413, "event_too_large", "the input is too large")
        run_id = await self._replay(
            source,
            data,
            actor=request.principal.subject,
            dedupe_id=_identity(body.dedupe_id),
        )
        return await self._shown(request, run_id)

    async def retry_from_step(self, request: Request) -> Response:
        """POST /runs/{id}/retry-from-step: with the results of the steps before it."""
        source = await self._require_over(request)
        body = read_body(request, _retry_decoder)
        # The changes of a fork stay in effect: only the steps before this one are kept.
        return await self._from_step(request, source, body, push_of(source).fork)

    async def fork(self, request: Request) -> Response:
        """POST /runs/{id}/fork: as retry-from-step, with changes that the code receives."""
        source = await self._require_over(request)
        body = read_body(request, _fork_decoder)
        changes = {
            "step": body.step,
            "model": body.model,
            "prompt": body.prompt,
            "params": optional_members_of(body.params),
        }
        fork = encode({name: value for name, value in changes.items() if value is not None})
        if len(fork) > FORK_BYTES_MAX:
            raise bad_request(f"a fork has more than {FORK_BYTES_MAX} bytes")
        return await self._from_step(request, source, body, fork, action="fork")

    async def _from_step(
        self,
        request: Request,
        source: Run,
        body: RetryBody,
        fork: bytes | None,
        action: str = "retry_from_step",
    ) -> Response:
        step = body.step
        events = await self._engine.store.read_history(source.run_id, 0, HISTORY_READ_MAX)
        if not events:
            raise no_run(source.run_id)
        carried = carried_before(facts_of(events), step)
        if carried is None:
            raise bad_request(f"run {source.run_id} has no step {step[:64]}")
        operation = BeginAgain(
            structs.replace(
                again(source, arguments_of(events[0])), fork=fork, vault=vault_of(source)
            ),
            carried,
            action=action,
            actor=request.principal.subject,
            detail=step,
            dedupe_id=_identity(body.dedupe_id),
        )
        return await self._shown(request, await self._engine.submit(operation))

    async def bulk_replay(self, request: Request) -> Response:
        """POST /runs/bulk-replay: a bounded number of finished runs that a filter finds."""
        body = read_body(request, _bulk_decoder)
        asked = {
            "app": body.app,
            "workflow": body.workflow,
            "status": body.status,
            "runType": body.run_type,
            "since": body.since,
        }
        query = {name: value for name, value in asked.items() if value}
        if not query:
            raise bad_request("a filter is needed")
        question = finished(read_filter(request.namespace, query, limit=BULK_MAX))
        found, cursor = await find_runs(self._engine.store, question)
        dedupe_id = _identity(body.dedupe_id)
        over = [run for run in found if not await self._is_own(run, dedupe_id)]
        known = await self._known_workflows(request.namespace)
        failed = skipped = 0
        for run in over:
            if (run.queue, run.workflow_type) not in known:
                skipped += 1
                continue
            try:
                await self._replay(
                    run,
                    None,
                    actor=request.principal.subject,
                    action="bulk_replay",
                    dedupe_id=dedupe_id,
                )
            except (HttpError, Rejection):
                failed += 1
        answer = {
            "matched": len(over),
            "replayed": len(over) - skipped - failed,
            "skipped": skipped,
            "failed": failed,
            "capped": cursor is not None,
        }
        return self._surface.answer(200, answer)

    async def _is_own(self, run: Run, dedupe_id: str | None) -> bool:
        """Whether an earlier copy of this request started the run, which has ended since."""
        source_id = push_of(run).replay_of
        if dedupe_id is None or source_id is None:
            return False
        key = begun_key(source_id, "bulk_replay", dedupe_id)
        begun = await BEGUN.read(self._engine.store, run.namespace, key)
        return begun is not None and begun.run_id == run.run_id

    async def _known_workflows(self, namespace: str) -> set[tuple[str, str]]:
        found = await DEFINITION.read_page(self._engine.store, namespace, limit=WORKFLOWS_MAX)
        return {(one.app, one.workflow.name) for _, one in found}

    async def actions(self, request: Request) -> Response:
        """GET /control-actions, newest first."""
        query = request.query
        limit = integer(query, "limit", 1, LIST_PAGE_SIZE_MAX, LIST_PAGE_SIZE_DEFAULT)
        wanted, run_id = choice(query, "action", _ACTIONS), query.get("runId") or None

        def show(key: str, done: ControlAction) -> Row | None:
            fits = wanted in (None, done.action)
            fits = fits and run_id in (None, done.run_id, done.new_run_id)
            return _action_view(key, done) if fits else None

        rows, _ = await find_rows(ACTION, self._engine.store, request.namespace, show, limit=limit)
        return self._surface.answer(200, rows)

    async def _replay(
        self,
        source: Run,
        data: bytes | None,
        *,
        actor: str,
        action: str = "replay",
        dedupe_id: str | None = None,
    ) -> str:
        first = await self._engine.store.read_history(source.run_id, 0, 1)
        if not first:
            raise no_run(source.run_id)
        arguments = arguments_of(first[0])
        if data is not None:
            arguments = event_arguments(push_of(source).event_name, data)
        operation = BeginAgain(
            again(source, arguments), [], action=action, actor=actor, dedupe_id=dedupe_id
        )
        run_id: str = await self._engine.submit(operation)
        return run_id

    async def _require_over(self, request: Request) -> Run:
        run = await self._runs.require(request)
        if not run.is_closed:
            raise HttpError(409, "run_not_finished", f"run {run.run_id} is not over yet")
        return run

    async def _shown(self, request: Request, run_id: str) -> Response:
        request.params["run_id"] = run_id
        run = await self._runs.require(request)
        return self._surface.answer(200, await self._runs.view(run))


def _identity(dedupe_id: str | None) -> str | None:
    if dedupe_id is not None and not 0 < len(dedupe_id) <= NAME_LENGTH_MAX:
        raise bad_request(f"a dedupeId has 1 to {NAME_LENGTH_MAX} characters")
    return dedupe_id


def again(source: Run, arguments: bytes) -> PushStart:
    """The start parameters of a run, for a new run."""
    push = push_of(source)
    return PushStart(
        namespace=source.namespace,
        app=source.queue,
        workflow=source.workflow_type,
        arguments=arguments,
        event_name=push.event_name,
        trigger=push.trigger,
        event_id=push.event_id,
        pin=push.pin,
        retry=push.retry,
        handles_failure=push.handles_failure,
        session=push.session,
        tags=push.tags,
        replay_of=source.run_id,
        slot=push.slot,
        slot_limit=push.slot_limit,
        cap=push.cap,
        pass_timeout=push.pass_timeout,
        meters=once_more(push.meters),
        case=push.case,
    )


def _action_view(key: str, done: ControlAction) -> Row:
    view: Row = {
        "id": key,
        "action": done.action,
        "createdAt": instant.text(done.created_at),
        "runId": done.run_id,
        "newRunId": done.new_run_id,
        "actor": done.actor,
        "detail": done.detail,
    }
    return {name: value for name, value in view.items() if value is not None}

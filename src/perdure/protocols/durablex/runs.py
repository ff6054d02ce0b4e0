"""HTTP routes that read runs, their steps and their logs."""

from typing import Any

from msgspec import Raw

from perdure.core.bounds import Bounds
from perdure.core.limits import HISTORY_READ_MAX, STORED_RESULTS_SHOWN_BYTES_MAX
from perdure.core.push.result import near_results
from perdure.core.run.state import Dialect, Run
from perdure.engine.beat import Engine
from perdure.protocols.durablex.requests import integer
from perdure.protocols.durablex.run_lists import find_runs, narrowed, read_question
from perdure.protocols.durablex.surface import DurablexSurface, encode
from perdure.protocols.durablex.timeline import Fact, facts_of, logs_of, steps_of
from perdure.protocols.durablex.views import (
    input_of,
    reached_view,
    result_of,
    run_view,
    waiting_view,
)
from perdure.store.interface import PayloadKey
from perdure.web.message import HttpError, Request, Response

_LOG_LINES_DEFAULT = 1_000
_LOG_LINES_MAX = 10_000


class Runs:
    """The routes under /runs that only read."""

    def __init__(self, engine: Engine, surface: DurablexSurface, bounds: Bounds) -> None:
        self._bounds = bounds
        self._engine = engine
        self._store = engine.store
        self._surface = surface

    async def find(self, request: Request) -> Response:
        """GET /runs: one page, with the cursor of the next one in a header."""
        asked = await narrowed(self._store, request.query, read_question(request))
        found, cursor = ([], None) if asked is None else await find_runs(self._store, asked)
        headers = () if cursor is None else ((b"x-next-cursor", cursor.encode()),)
        return Response(200, encode([run_view(run) for run in found]), headers)

    async def show(self, request: Request) -> Response:
        """GET /runs/{id}."""
        run = await self.require(request)
        return self._surface.answer(200, await self.view(run))

    async def steps(self, request: Request) -> Response:
        """GET /runs/{id}/steps."""
        run = await self.require(request)
        rows = steps_of(await self._facts(run))
        await self._show_stored(run, rows)
        return self._surface.answer(200, rows)

    async def _show_stored(self, run: Run, rows: list[dict[str, Any]]) -> None:
        """Insert stored results into their rows, up to a bound of bytes."""
        room = STORED_RESULTS_SHOWN_BYTES_MAX
        for row in rows:
            reference = row.get("outputRef")
            if reference is None or reference["size"] > room:
                continue
            key = PayloadKey(run.namespace, reference["id"])
            data = await self._store.read_payload(key)
            if data is not None:
                room -= len(data)
                row["output"] = Raw(data)

    async def logs(self, request: Request) -> Response:
        """GET /runs/{id}/logs."""
        run = await self.require(request)
        after = integer(request.query, "from", 0, 2**40, 0)
        limit = integer(request.query, "limit", 1, _LOG_LINES_MAX, _LOG_LINES_DEFAULT)
        facts = facts_of(await self._store.read_history(run.run_id, after, HISTORY_READ_MAX))
        return self._surface.answer(200, logs_of(facts)[:limit])

    async def view(self, run: Run) -> dict[str, Any]:
        """A run with its payloads."""
        view = run_view(run)
        first = await self._store.read_history(run.run_id, 0, 1)
        if not first:
            # It was pruned after it had been found.
            raise no_run(run.run_id)
        view["input"] = input_of(first[0])
        view |= waiting_view(run)
        near = near_results(run, self._bounds)
        if near:
            view["limitsNear"] = [reached_view(reached) for reached in near]
        if run.is_closed:
            result = result_of(await self._store.read_last_events(run.run_id))
            if result is not None:
                view["result"] = result
        return view

    async def require(self, request: Request) -> Run:
        """The run that a path names."""
        return await self.find_run(request, request.params["run_id"])

    async def find_run(self, request: Request, run_id: str) -> Run:
        """A push run of the namespace of a request."""
        run = await self._store.read_run(run_id)
        if run is None or run.namespace != request.namespace or run.dialect is not Dialect.PUSH:
            raise no_run(run_id)
        return run

    async def _facts(self, run: Run) -> list[Fact]:
        return facts_of(await self._store.read_history(run.run_id, 0, HISTORY_READ_MAX))


def no_run(run_id: str) -> HttpError:
    return HttpError(404, "run_not_found", f"there is no run {run_id[:64]}")

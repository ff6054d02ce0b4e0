"""HTTP routes of retention: which closed runs are too old, and a pass that removes them."""

from typing import Annotated, Any

from msgspec import Meta

from perdure.core import instant, limits
from perdure.core.run.state import Dialect
from perdure.engine.beat import Engine
from perdure.features.retention.loops import RunPruner
from perdure.features.retention.operations import Pruned, PrunedRun
from perdure.protocols.durable_workflow.bodies import Body, decode
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.store.interface import ClosedFilter
from perdure.web.message import Request, Response

_DAY = 86_400 * limits.SECOND
_RunId = Annotated[str, Meta(min_length=1, max_length=128)]
_Limit = Annotated[int, Meta(ge=1, le=limits.RUNS_PRUNED_AT_ONCE_MAX)]


def retention_view(age: int) -> dict[str, Any]:
    """How long closed runs are kept; an age of 0 is for ever."""
    mode = "bounded" if age else "forever"
    return {"retention_mode": mode, "retention_days": age // _DAY or None}


class PassBody(Body):
    run_ids: Annotated[list[_RunId], Meta(max_length=limits.RETENTION_RUN_IDS_MAX)] | None = None
    limit: _Limit | None = None


class SystemRetention:
    """The handlers of `/api/system/retention`. An age of 0 is for ever."""

    def __init__(
        self, engine: Engine, pruner: RunPruner, surface: ControlSurface, age: int
    ) -> None:
        self._engine = engine
        self._pruner = pruner
        self._age = age
        self.surface = surface

    async def show(self, request: Request) -> Response:
        most = limits.RUNS_PRUNED_AT_ONCE_MAX
        cutoff = self._pruner.cutoff(self._age) if self._age else None
        found: list[str] = []
        if cutoff is not None:
            closed_before = ClosedFilter(
                namespace=request.namespace, is_pushed=False, before=cutoff, limit=most + 1
            )
            found = await self._engine.store.read_closed(closed_before)
        answer = {
            "namespace": request.namespace,
            **retention_view(self._age),
            "cutoff": instant.text_or_none(cutoff),
            "expired_run_count": len(found[:most]),
            "expired_run_ids": found[:most],
            "scan_limit": most,
            "scan_pressure": len(found) > most,
        }
        return self.surface.answer(request, 200, answer)

    async def enforce(self, request: Request) -> Response:
        """Safe to repeat: runs that were removed before are reported as not found."""
        body = decode(request.body, PassBody)
        limit = body.limit or limits.RUNS_PRUNED_AT_ONCE_MAX
        selection = limit if body.run_ids is None else list(dict.fromkeys(body.run_ids))[:limit]
        pruned = await self._pruner.prune_some(
            request.namespace, Dialect.PULL, self._age, selection
        )
        results = _results(pruned)
        if not isinstance(selection, int):
            results.sort(key=lambda result: selection.index(result["run_id"]))
        answer = {
            "processed": len(results),
            "pruned": len(pruned.runs),
            "skipped": len(pruned.skipped),
            "failed": len(pruned.failed),
            "results": results,
        }
        return self.surface.answer(request, 207 if pruned.failed else 200, answer)


def _results(pruned: Pruned) -> list[dict[str, Any]]:
    results = [_pruned_view(run, pruned.payloads[run.run_id]) for run in pruned.runs]
    for outcome, reasons in (("skipped", pruned.skipped), ("error", pruned.failed)):
        results += [
            {"run_id": run_id, "outcome": outcome, "reason": reason}
            for run_id, reason in reasons.items()
        ]
    return results


def _pruned_view(run: PrunedRun, payloads: int) -> dict[str, Any]:
    counts = {
        "external_payloads_deleted": payloads,
        "workflow_runs": 1,
        "workflow_history_events": run.events,
        "workflow_tasks": run.tasks,
    }
    return {
        "run_id": run.run_id,
        "outcome": "pruned",
        "history_events_deleted": run.events,
        "tasks_deleted": run.tasks,
        "external_payloads_deleted": payloads,
        "deleted": {name: count for name, count in counts.items() if count},
    }

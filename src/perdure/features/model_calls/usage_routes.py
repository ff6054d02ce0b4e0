"""HTTP route of the usage of model calls: totals, by time, by model and by workflow."""

from typing import Any

from perdure.clock import Clock
from perdure.core import instant
from perdure.core.intake.statistics import DEFAULT_SPAN, bucket_step
from perdure.core.limits import SECOND, SPEND_ROWS_READ_MAX, SPEND_STRETCH
from perdure.core.push.usage import amount
from perdure.engine.beat import Engine
from perdure.features.model_calls.usage_operations import Sums, read_spend
from perdure.protocols.durablex.requests import bad_request, integer, read_instant
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.message import Request, Response

_HOUR = 3_600
_YEAR = 366 * 86_400


class ModelUsageRoutes:
    """The route /ai/spend."""

    def __init__(self, engine: Engine, surface: DurablexSurface, clock: Clock) -> None:
        self._store = engine.store
        self._surface = surface
        self._clock = clock

    async def spend(self, request: Request) -> Response:
        """GET /ai/spend."""
        now, query = self._clock.now(), request.query
        since_given = read_instant(query, "since")
        since = now - DEFAULT_SPAN if since_given is None else max(since_given, 0)
        bucket = integer(query, "bucket", 1, _YEAR, _HOUR) * SECOND
        step = _whole(bucket_step(since, now + 1, bucket))
        total = Sums()
        buckets = {place: Sums() for place in range(since // step, now // step + 1)}
        models: dict[str, Sums] = {}
        workflows: dict[tuple[str, str], tuple[Sums, int]] = {}
        app, workflow = query.get("app"), query.get("workflow")
        read = 0
        async for stretch in read_spend(self._store, request.namespace, since):
            read += 1
            if read > SPEND_ROWS_READ_MAX:
                raise bad_request("there are too many entries since then; use a later since")
            if app not in (None, "", stretch.app) or workflow not in (None, "", stretch.workflow):
                continue
            names = (stretch.workflow, stretch.app)
            sums, runs = workflows.get(names, (Sums(), 0))
            workflows[names] = (sums, runs + stretch.runs)
            place = buckets.setdefault(stretch.started_at // step, Sums())
            for model, used in stretch.models.items():
                for target in (total, place, sums, models.setdefault(model, Sums())):
                    target.add(used)
        answer = {
            **_sums(total),
            "bucketSeconds": step // SECOND,
            "hourly": [
                {"ts": instant.text(place * step), **_sums(used)}
                for place, used in sorted(buckets.items())
            ],
            "byModel": [{"model": model, **_sums(models[model])} for model in _largest(models)],
            "byWorkflow": [
                _by_workflow(names, *workflows[names])
                for names in _largest({names: sums for names, (sums, _) in workflows.items()})
            ],
            "cacheHits": total.cache_hits,
            "cacheEligible": total.cache_eligible,
        }
        if total.timed_calls:
            answer["avgLatencyMs"] = total.latency_ms / total.timed_calls
        return self._surface.answer(200, answer)


def _whole(step: int) -> int:
    """The step rounded up to a multiple of the stored intervals."""
    return -(-step // SPEND_STRETCH) * SPEND_STRETCH


def _sums(sums: Sums) -> dict[str, Any]:
    view: dict[str, Any] = {"tokens": sums.tokens, "calls": sums.calls}
    return view if sums.cost is None else {**view, "cost": amount(sums.cost)}


def _by_workflow(names: tuple[str, str], sums: Sums, runs: int) -> dict[str, Any]:
    workflow, app = names
    view = {"workflow": workflow, "app": app, "tokens": sums.tokens, "runs": runs}
    return view if sums.cost is None else {**view, "cost": amount(sums.cost)}


def _largest(sums: dict[Any, Sums]) -> list[Any]:
    return sorted(sums, key=lambda of: (-sums[of].tokens, of))

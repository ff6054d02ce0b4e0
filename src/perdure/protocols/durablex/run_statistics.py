"""Statistics of runs: totals, and a time series."""

from collections import Counter
from typing import Any

from perdure.clock import Clock
from perdure.core import instant
from perdure.core.intake.statistics import DEFAULT_SPAN, bucket_step, totals
from perdure.core.limits import BUCKETS_MAX, SECOND
from perdure.core.run.state import Run
from perdure.engine.beat import Engine
from perdure.protocols.durablex.requests import bad_request, integer, read_instant
from perdure.protocols.durablex.run_lists import find_runs, narrowed, read_filter
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.protocols.durablex.views import status_of
from perdure.store.interface import PushedFilter
from perdure.store.push_lists import SHOWN_STATUSES
from perdure.web.message import Request, Response

_EVER = 2**62
_BEGUN_AGAIN_MAX = 10_000


class RunStatistics:
    """The routes /runs/stats and /runs/timeseries."""

    def __init__(self, engine: Engine, surface: DurablexSurface, clock: Clock) -> None:
        self._store = engine.store
        self._surface = surface
        self._clock = clock

    async def stats(self, request: Request) -> Response:
        """GET /runs/stats."""
        counts: Counter[str] = Counter()
        if request.query.get("replayOf"):
            for run in await self._begun_again(request):
                counts[status_of(run)] += 1
            return self._surface.answer(200, totals(counts))
        for found in await self._store.read_pushed_figures(_filters(request, 0), _EVER):
            counts[SHOWN_STATUSES.get(found.status, found.status)] += found.runs
        return self._surface.answer(200, totals(counts))

    async def _begun_again(self, request: Request) -> list[Run]:
        """The replays of a run and their replays, up to a bound."""
        names = ("app", "workflow", "since", "replayOf")
        query = {name: request.query[name] for name in names if name in request.query}
        question = read_filter(request.namespace, query, limit=_BEGUN_AGAIN_MAX)
        asked = await narrowed(self._store, query, question)
        return [] if asked is None else (await find_runs(self._store, asked))[0]

    async def timeseries(self, request: Request) -> Response:
        """GET /runs/timeseries: every interval, also those in which no run started."""
        now = self._clock.now()
        filters = _filters(request, now - DEFAULT_SPAN)
        asked = integer(request.query, "bucket", 1, 366 * 86_400, 0)
        step = asked * SECOND or bucket_step(filters.since, now + 1)
        if now // step - filters.since // step >= BUCKETS_MAX:
            least = (now - filters.since) // (BUCKETS_MAX - 1) // SECOND + 1
            raise bad_request(f"that is more than {BUCKETS_MAX} buckets; take {least} s or more")
        buckets: dict[int, dict[str, Any]] = {
            stretch: {"ts": instant.text(stretch * step), "counts": {}, "total": 0}
            for stretch in range(filters.since // step, now // step + 1)
        }
        lasted: Counter[int] = Counter()
        over: Counter[int] = Counter()
        for found in await self._store.read_pushed_figures(filters, step):
            bucket = buckets.get(found.stretch)
            if bucket is None:
                continue
            status = SHOWN_STATUSES.get(found.status, found.status)
            bucket["counts"][status] = bucket["counts"].get(status, 0) + found.runs
            bucket["total"] += found.runs
            if found.lasted is not None and found.longest is not None:
                lasted[found.stretch] += found.lasted
                over[found.stretch] += found.runs
                longest = found.longest // 1000
                bucket["maxMs"] = max(bucket.get("maxMs", 0), longest)
        for stretch, count in over.items():
            buckets[stretch]["avgMs"] = lasted[stretch] // count // 1000
        answer = {"bucketSeconds": step // SECOND, "buckets": list(buckets.values())}
        return self._surface.answer(200, answer)


def _filters(request: Request, since: int) -> PushedFilter:
    query = request.query
    asked = read_instant(query, "since")
    return PushedFilter(
        namespace=request.namespace,
        app=query.get("app") or None,
        workflow=query.get("workflow") or None,
        since=since if asked is None else max(asked, 0),
    )

"""Usage of model calls, summed per workflow and interval of time, for the statistics.

An interval of a workflow is one record: its calls come seconds apart, and readers want sums.
"""

from collections.abc import AsyncIterator

from msgspec import Struct, field

from perdure.core.intake.flow_state import record_prefix
from perdure.core.limits import (
    SPEND_KEPT,
    SPEND_MODELS_MAX,
    SPEND_PAGE_SIZE,
    SPEND_STRETCH,
)
from perdure.core.push.usage import SUM_MAX, Metered, Usage, add_cost
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.usage_limits import charge_meters, meter_keys
from perdure.engine.world import World
from perdure.store.interface import RecordKey, Store

UNKNOWN = "unknown"
"""The model of calls that name none."""
OTHERS = "others"
"""The name under which further models are summed when there are too many."""


class Sums(Struct):
    """Sums over model calls."""

    calls: int = 0
    tokens: int = 0
    cost: int | None = None
    latency_ms: int = 0
    timed_calls: int = 0
    """How many of them reported a latency."""
    cache_hits: int = 0
    cache_eligible: int = 0
    """How many reported whether a cache of the provider was used."""

    def count(self, usage: Usage) -> None:
        """Add one call."""
        cached = usage.cached_tokens
        self.add(
            Sums(
                calls=1,
                tokens=usage.tokens,
                cost=usage.cost,
                latency_ms=usage.latency_ms or 0,
                timed_calls=int(usage.latency_ms is not None),
                cache_hits=int(bool(cached)),
                cache_eligible=int(cached is not None),
            )
        )

    def add(self, other: "Sums") -> None:
        self.calls += other.calls
        self.tokens = min(self.tokens + other.tokens, SUM_MAX)
        self.cost = add_cost(self.cost, other.cost)
        self.latency_ms = min(self.latency_ms + other.latency_ms, SUM_MAX)
        self.timed_calls += other.timed_calls
        self.cache_hits += other.cache_hits
        self.cache_eligible += other.cache_eligible


class Stretch(Struct, kw_only=True):
    """The usage of one workflow within one interval."""

    started_at: int
    app: str
    workflow: str
    runs: int = 0
    """How many runs made their first call in this interval."""
    models: dict[str, Sums] = field(default_factory=dict)


SPEND = RecordKind("ai_spend", Stretch)


class RecordSpend(Operation):
    """Adds the usage of a run to its interval."""

    __slots__ = ("_metered",)
    name = "record_spend"

    def __init__(self, metered: Metered) -> None:
        self._metered = metered

    def records(self) -> tuple[RecordKey, ...]:
        run = self._metered.run
        return (SPEND.key(run.namespace, self._key()), *meter_keys(run))

    def decide(self, world: World) -> None:
        charge_meters(world, self._metered)
        metered, key = self._metered, self._key()
        run = metered.run
        stretch = SPEND.find(world, run.namespace, key)
        if stretch is None:
            stretch = Stretch(
                started_at=self._started_at(), app=run.queue, workflow=run.workflow_type
            )
        stretch.runs += metered.is_first
        model = metered.usage.model or UNKNOWN
        if model not in stretch.models and len(stretch.models) >= SPEND_MODELS_MAX:
            model = OTHERS
        stretch.models.setdefault(model, Sums()).count(metered.usage)
        SPEND.put(world, run.namespace, key, stretch, due_at=stretch.started_at + SPEND_KEPT)

    def _started_at(self) -> int:
        return self._metered.at // SPEND_STRETCH * SPEND_STRETCH

    def _key(self) -> str:
        run = self._metered.run
        return _place(self._started_at()) + "/" + record_prefix(run.queue, run.workflow_type)


async def read_spend(store: Store, namespace: str, since: int) -> AsyncIterator[Stretch]:
    """Every interval since an instant, oldest first."""
    after = _place(since // SPEND_STRETCH * SPEND_STRETCH)
    while True:
        page = await SPEND.read_page(store, namespace, limit=SPEND_PAGE_SIZE, after=after)
        for _, stretch in page:
            yield stretch
        if len(page) < SPEND_PAGE_SIZE:
            return
        after = page[-1][0]


def _place(when: int) -> str:
    return f"{when:020d}"

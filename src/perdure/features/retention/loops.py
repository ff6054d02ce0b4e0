"""The loop that removes closed runs past their retention, in batches with pauses.

Several nodes may run it at once: the second to remove a run finds that it does not exist.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from perdure.clock import Clock
from perdure.core.limits import (
    FORGET_EVERY,
    FORGET_PAUSE,
    REMAINS_RELOOK,
    RUNS_PRUNED_AT_ONCE_MAX,
)
from perdure.core.run.state import Dialect
from perdure.engine.beat import Engine
from perdure.engine.operation import Operation
from perdure.features.retention.operations import ClearLeftover, Pruned, PruneNamed, PruneOld
from perdure.identity import jitter
from perdure.store.interface import RecordKey, Unavailable

log = logging.getLogger(__name__)

_REQUESTED_BATCHES = 4
"""How many batches of clearing a requested pass waits for."""


class Retention(NamedTuple):
    """How long closed runs of a dialect are kept, and in which namespaces."""

    dialect: Dialect
    age: int
    namespaces: Callable[[], Collection[str]]


class RunPruner:
    """Prunes by rules, in batches with pauses between them."""

    def __init__(self, engine: Engine, clock: Clock, rules: Sequence[Retention]) -> None:
        self._engine = engine
        self._clock = clock
        self._rules = rules

    async def run(self) -> None:
        """Prune for as long as the server lives."""
        while True:
            # Spread over time, so that nodes do not prune at once or at their start.
            await self._clock.sleep(FORGET_EVERY + jitter(FORGET_EVERY))
            try:
                await self.prune()
            except Unavailable as error:
                log.warning("removing closed runs failed, retrying later: %s", error.message)
            except Exception:
                log.exception("removing closed runs failed; retrying later")

    async def prune(self) -> int:
        """Remove every run that is old enough by now; returns their number."""
        count = 0
        for rule in self._rules:
            for namespace in sorted(rule.namespaces()):
                pruned = await self._prune_namespace(namespace, rule)
                if pruned:
                    log.info("removed %d closed runs of namespace %s", pruned, namespace)
                count += pruned
        return count

    async def _prune_namespace(self, namespace: str, rule: Retention) -> int:
        before = self.cutoff(rule.age)
        after: tuple[int, str] | None = None
        count = 0
        while True:
            batch = PruneOld(
                namespace,
                rule.dialect,
                before=before,
                limit=RUNS_PRUNED_AT_ONCE_MAX,
                after=after,
            )
            pruned = await self._prune(batch)
            count += len(pruned.runs)
            if pruned.behind is None:
                return count
            after = pruned.behind
            await self._clock.sleep(FORGET_PAUSE)

    def cutoff(self, age: int) -> int:
        """The instant before which a run must have closed to be removed."""
        return max(0, self._clock.now() - age)

    async def prune_some(
        self, namespace: str, dialect: Dialect, age: int, selection: int | Sequence[str]
    ) -> Pruned:
        """Remove one batch now: a number of the oldest runs, or runs by id, if they are old enough.

        An age of 0 keeps runs for ever. Clearing that takes long is left to the deadline loop.
        """
        before = self.cutoff(age) if age else 0
        batch: Operation
        if isinstance(selection, int):
            batch = PruneOld(namespace, dialect, before=before, limit=selection)
        else:
            batch = PruneNamed(namespace, dialect, before=before, run_ids=selection)
        return await self._prune(batch, batches=_REQUESTED_BATCHES)

    async def _prune(self, operation: Operation, batches: int | None = None) -> Pruned:
        pruned: Pruned = await self._engine.submit(operation)
        for run_id, reason in pruned.failed.items():
            log.error("run %s is past its retention and could not be removed: %s", run_id, reason)
        if pruned.leftover is not None:
            await self._clear(pruned, pruned.leftover, batches)
        return pruned

    async def _clear(self, pruned: Pruned, key: RecordKey, batches: int | None) -> None:
        """Clear a leftover record completely, or a number of batches of it."""
        while True:
            batch = ClearLeftover(key, relook=REMAINS_RELOOK)
            await self._engine.submit(batch)
            pruned.payloads += batch.released
            if batches is not None:
                batches -= 1
            if batch.is_done or batches == 0:
                return
            await self._clock.sleep(FORGET_PAUSE)

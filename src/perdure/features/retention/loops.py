"""The loop that removes closed runs when their time is over. Slow, and never in a hurry.

Several nodes may do the same: each takes runs that no other has in hand, and who comes second finds
nothing.
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

_BITES_ASKED_FOR = 4
"""How long somebody who asks for a pass waits for it to be cleared."""


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
            # Not all nodes at once, and not all at their start.
            await self._clock.sleep(FORGET_EVERY + jitter(FORGET_EVERY))
            try:
                await self.prune()
            except Unavailable as error:
                log.warning("removing closed runs failed, retrying later: %s", error.message)
            except Exception:
                log.exception("removing closed runs failed; retrying later")

    async def prune(self) -> int:
        """Every run that is old enough by now; returns how many they were."""
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
        """Runs that closed before this are too old."""
        return max(0, self._clock.now() - age)

    async def prune_some(
        self, namespace: str, dialect: Dialect, age: int, wanted: int | Sequence[str]
    ) -> Pruned:
        """One batch now: so many of the oldest, or certain ones, if they are old enough.

        An age of 0 is for ever. What takes long to clear is left to the deadline loop.
        """
        before = self.cutoff(age) if age else 0
        batch: Operation
        if isinstance(wanted, int):
            batch = PruneOld(namespace, dialect, before=before, limit=wanted)
        else:
            batch = PruneNamed(namespace, dialect, before=before, run_ids=wanted)
        return await self._prune(batch, bites=_BITES_ASKED_FOR)

    async def _prune(self, batch: Operation, bites: int | None = None) -> Pruned:
        pruned: Pruned = await self._engine.submit(batch)
        for run_id, reason in pruned.failed.items():
            log.error("run %s is past its retention and could not be removed: %s", run_id, reason)
        if pruned.leftover is not None:
            await self._clear(pruned, pruned.leftover, bites)
        return pruned

    async def _clear(self, pruned: Pruned, key: RecordKey, bites: int | None) -> None:
        """To its end, or so many bites of it; each makes it smaller."""
        while True:
            bite = ClearLeftover(key, relook=REMAINS_RELOOK)
            await self._engine.submit(bite)
            pruned.payloads += bite.let_go
            if bites is not None:
                bites -= 1
            if bite.is_done or bites == 0:
                return
            await self._clock.sleep(FORGET_PAUSE)

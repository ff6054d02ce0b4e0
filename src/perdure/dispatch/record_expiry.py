"""The loop that forgets what is older than the operator wants to keep. Slow, and never in a hurry.

Several nodes may do the same: who comes second finds nothing.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from perdure.clock import Clock
from perdure.core.limits import FORGET_EVERY, FORGET_PAUSE, SECOND
from perdure.engine.beat import Engine
from perdure.engine.record_expiry import ExpireRecords, Forgotten
from perdure.engine.records import RecordKind
from perdure.identity import first_ulid, jitter
from perdure.store.interface import Unavailable

log = logging.getLogger(__name__)


class Rule(NamedTuple):
    """How long records of a kind are kept, and which may go then."""

    kind: RecordKind[Any]
    age: int
    may_go: Callable[[Any], bool] = lambda value: True


class RecordExpiry:
    """Forgets by rules, in batches with pauses between them."""

    def __init__(self, engine: Engine, clock: Clock, namespace: str, rules: list[Rule]) -> None:
        self._engine = engine
        self._clock = clock
        self._namespace = namespace
        self._rules = rules

    async def run(self) -> None:
        """Forget for as long as the server lives."""
        while True:
            # Not all nodes at once, and not all at their start.
            await self._clock.sleep(FORGET_EVERY + jitter(FORGET_EVERY))
            try:
                await self.forget()
            except Unavailable as error:
                log.warning("removing expired records failed, retrying later: %s", error.message)
            except Exception:
                log.exception("removing expired records failed; retrying later")

    async def forget(self) -> int:
        """Everything that is old by now; returns how much that was."""
        count = 0
        for rule in self._rules:
            before = first_ulid(max(0, self._clock.now() - rule.age) * 1_000 // SECOND)
            behind: str | None = None
            while True:
                forgotten: Forgotten = await self._engine.submit(
                    ExpireRecords(
                        rule.kind,
                        self._namespace,
                        before=before,
                        behind=behind,
                        may_go=rule.may_go,
                    )
                )
                count += forgotten.removed
                if forgotten.behind is None:
                    break
                behind = forgotten.behind
                await self._clock.sleep(FORGET_PAUSE)
        return count

"""The one loop in which time passes: it sleeps until something is due, and has it decided."""

import asyncio
import logging
from collections.abc import Callable

from perdure.clock import Clock
from perdure.core.limits import DUE_PER_BEAT_MAX, SECOND
from perdure.engine.beat import Engine
from perdure.engine.claims import FireDue
from perdure.engine.fleet import RemoveWorkers, is_forgettable
from perdure.engine.operation import Operation
from perdure.identity import jitter
from perdure.store.interface import RecordKey, Unavailable

log = logging.getLogger(__name__)

_IDLE_LOOK = 30 * SECOND
"""How often to look at the disk even if nobody armed anything."""
_SHARED_LOOK = 5 * SECOND
"""How often where another node may have armed something and died."""


class DeadlineLoop:
    """Fires due runs in batches, in the order of their deadlines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._armed = asyncio.Event()
        self._next_at: int | None = None
        self._look_at = 0
        self._stuck: set[str | RecordKey] = set()
        self._idle_look = _IDLE_LOOK
        self._others: list[Callable[[], int | None]] = []
        self._rules: dict[str, Callable[[RecordKey], Operation]] = {}
        self._followers: dict[str, Callable[[RecordKey, Operation, bool], None]] = {}

    def also(self, pass_time: Callable[[], int | None]) -> None:
        """Time passes for something in memory as well; it returns when it is due next."""
        self._others.append(pass_time)

    def on_record(
        self,
        kind: str,
        rule: Callable[[RecordKey], Operation],
        then: Callable[[RecordKey, Operation, bool], None] | None = None,
    ) -> None:
        """What is decided when a record of a kind is due.

        The operation looks for itself whether it is, arms the record anew or disarms it, and
        returns true. It may be decided twice, and for a record that is gone. `then` hears of each
        operation that the rule made, when it is committed (true) or never will be (false).
        """
        assert kind not in self._rules
        self._rules[kind] = rule
        if then is not None:
            self._followers[kind] = then

    def arm(self, due_at: int) -> None:
        """Something is due at an instant; wake earlier if that is earlier than expected."""
        if self._next_at is None or due_at < self._next_at:
            self._next_at = due_at
            self._armed.set()

    async def run(self, engine: Engine) -> None:
        """Loop for as long as the server lives."""
        while True:
            try:
                await self._fire(engine)
            except Unavailable as error:
                log.warning("firing deadlines failed, retrying soon: %s", error.message)
                self._next_at = self._clock.now() + error.retry_after_seconds * SECOND
            except Exception:
                log.exception("firing deadlines failed; retrying in 1 s")
                self._next_at = self._clock.now() + SECOND
            await self._sleep()

    async def _fire(self, engine: Engine) -> None:
        self._next_at = None
        for pass_time in self._others:
            due_at = pass_time()
            if due_at is not None:
                self.arm(due_at)
        on_disk = await engine.store.find_next_due(self._clock.now())
        if on_disk is not None and on_disk <= self._clock.now():
            await self._fire_due(engine)
            on_disk = await engine.store.find_next_due(self._clock.now())
        await self._look_after(engine)
        if on_disk is not None:
            # Behind a stuck deadline the next one cannot be seen, so look now and then.
            self.arm(max(on_disk, self._clock.now() + SECOND) if self._stuck else on_disk)

    async def _fire_due(self, engine: Engine) -> None:
        while due := await self._find_due(engine):
            operations = [self._operation_of(target) for target in due]
            results = await asyncio.gather(
                *(engine.submit(operation) for operation in operations), return_exceptions=True
            )
            self._follow(due, operations, results)
            for target, result in zip(due, results, strict=True):
                if isinstance(result, Unavailable):
                    raise result
                if result is not True:
                    # Gone or broken: logged where it broke, and left alone for a while.
                    self._stuck.add(target)

    def _follow(
        self,
        due: list[str | RecordKey],
        operations: list[Operation],
        results: list[object],
    ) -> None:
        for target, operation, result in zip(due, operations, results, strict=True):
            if isinstance(target, RecordKey) and target.kind in self._followers:
                self._followers[target.kind](target, operation, result is True)

    async def _find_due(self, engine: Engine) -> list[str | RecordKey]:
        limit = DUE_PER_BEAT_MAX + len(self._stuck)
        found = await engine.store.load_due(self._clock.now(), limit)
        for target in found:
            if isinstance(target, RecordKey) and target.kind not in self._rules:
                # A newer release made it, and its nodes will see to it.
                self._stuck.add(target)
        return [target for target in found if target not in self._stuck]

    def _operation_of(self, target: str | RecordKey) -> Operation:
        return FireDue(target) if isinstance(target, str) else self._rules[target.kind](target)

    async def _look_after(self, engine: Engine) -> None:
        """Now and then: try again what was stuck, and look for what a lost hint left behind."""
        now = self._clock.now()
        if now < self._look_at:
            return
        self._look_at = now + _IDLE_LOOK
        self._stuck.clear()
        if engine.store.is_shared:
            self._idle_look = _SHARED_LOOK - SECOND // 4 + jitter(SECOND)
        else:
            await engine.offer_ready_tasks()
        old = [key for key, worker in engine.workers.items() if is_forgettable(worker, now)]
        if old:
            engine.send(RemoveWorkers(old))

    async def _sleep(self) -> None:
        self._armed.clear()
        now = self._clock.now()
        wake_at = min(self._next_at or now + self._idle_look, now + self._idle_look)
        if wake_at <= now:
            return
        timer = asyncio.ensure_future(self._clock.sleep(wake_at - now))
        armed = asyncio.ensure_future(self._armed.wait())
        try:
            await asyncio.wait({timer, armed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            armed.cancel()

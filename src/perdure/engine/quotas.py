"""Leasing no more from a queue than it may: the ledgers of its quotas, kept in the beat.

In a queue with quotas (`core/fleet/quota.py`) no task meets a parked poll in the beat that
made it ready: it is written, and claimed in a beat that looks at the ledgers. They are records, so
a lease that another node granted meanwhile makes the commit fail, and limits hold across nodes.
A hold that ended is found when its quota is full, so nobody has to say that a lease is over.
"""

from collections.abc import Sequence

from msgspec import Struct

from perdure.core.fleet.quota import (
    MINUTE,
    Hold,
    Ledger,
    Quota,
    let_through,
    minute_of,
    next_minute_at,
    room,
    throttle_reason,
    without_ended,
)
from perdure.core.run.state import Run
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.store.interface import LeasedTask, RecordKey, Store

LEDGER = RecordKind("queue_ledger", Ledger)


class Shut(Struct, frozen=True):
    """A quota with no room: why, and the runs that a lease may come back from."""

    why: str
    behind: frozenset[str]


class QuotaGate:
    """The quotas of one queue, for one claim."""

    def __init__(self, namespace: str, quotas: Sequence[Quota]) -> None:
        self._namespace = namespace
        self._quotas = quotas
        self._standing: frozenset[Hold] = frozenset()
        self._asked: frozenset[Hold] = frozenset()
        self._ledgers: dict[str, Ledger] = {}
        self._is_used = False

    def keys(self) -> tuple[RecordKey, ...]:
        return tuple(LEDGER.key(self._namespace, quota.key) for quota in self._quotas)

    async def look_at(self, store: Store, wanted: int) -> None:
        """Find out which holds have ended, of quotas that may not have room for so many more."""
        bounded = [quota for quota in self._quotas if quota.leases_max is not None]
        keys = {quota.key: LEDGER.key(self._namespace, quota.key) for quota in bounded}
        ledgers = await store.find_records(keys.values()) if keys else {}
        asked: set[Hold] = set()
        for quota in bounded:
            record = ledgers.get(keys[quota.key])
            holds = () if record is None else LEDGER.decode(record).holds
            if quota.leases_max is not None and len(holds) + wanted > quota.leases_max:
                asked.update(holds)
        self._asked = frozenset(asked)
        tasks = [LeasedTask(*hold) for hold in sorted(asked)]
        found = await store.find_standing(tasks) if tasks else []
        self._standing = frozenset(Hold(*task) for task in found)

    def open(self, world: World) -> None:
        """Begin to count from where the ledgers are in this beat."""
        self._ledgers, self._is_used = {}, False
        for quota in self._quotas:
            ledger = LEDGER.find(world, self._namespace, quota.key) or Ledger()
            # Holds that came in this very beat were not asked about, and stand.
            standing = [h for h in ledger.holds if h in self._standing or h not in self._asked]
            self._ledgers[quota.key] = without_ended(ledger, frozenset(standing))

    def shut(self, world: World) -> Shut | None:
        """The quota that lets nobody through now, if there is one."""
        now = world.ctx.now
        for quota in self._quotas:
            ledger = self._ledgers[quota.key]
            if room(quota, ledger, now) == 0:
                behind = frozenset(hold.run_id for hold in ledger.holds)
                return Shut(throttle_reason(quota, ledger, now), behind)
        return None

    def let_through(self, world: World, run: Run, place: int) -> None:
        """One task was leased."""
        now, hold = world.ctx.now, Hold(run.run_id, place)
        for quota in self._quotas:
            ledger = self._ledgers[quota.key]
            self._ledgers[quota.key] = let_through(quota, ledger, now, hold)
        self._is_used = True

    def close(self, world: World) -> None:
        """Write what was let through. Who let nobody through has relied on nothing."""
        if not self._is_used:
            return
        next_minute = next_minute_at(world.ctx.now)
        for quota in self._quotas:
            due_at = None if quota.dispatches_max is None else next_minute
            ledger = self._ledgers[quota.key]
            LEDGER.put(world, self._namespace, quota.key, ledger, due_at=due_at)


class StartQuotaMinute(Operation):
    """A minute is over: what was counted in it counts no more."""

    __slots__ = ("_key",)
    name = "pass_minute"

    def __init__(self, key: RecordKey) -> None:
        self._key = key

    def records(self) -> tuple[RecordKey, ...]:
        return (self._key,)

    def decide(self, world: World) -> bool:
        namespace, key = self._key.namespace, self._key.key
        ledger = LEDGER.find(world, namespace, key)
        if ledger is None:
            return True
        now = world.ctx.now
        if ledger.minute >= minute_of(now):
            due_at = (ledger.minute + 1) * MINUTE
            LEDGER.put(world, namespace, key, ledger, due_at=due_at)
        elif ledger.holds:
            LEDGER.put(world, namespace, key, Ledger(holds=ledger.holds))
        else:
            LEDGER.remove(world, namespace, key)
        return True

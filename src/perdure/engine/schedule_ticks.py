"""Ticks of schedules: each starts a run, through flow control, in the beat that moves it on."""

import msgspec
from msgspec import structs

from perdure.core import instant
from perdure.core.intake import cron
from perdure.core.intake.flow_state import Arrival
from perdure.core.limits import SECOND
from perdure.engine.admission import Gathered, Home, admit_trigger, gather
from perdure.engine.operation import Operation
from perdure.engine.registration import open_book
from perdure.engine.schedules import SCHEDULE, Schedule
from perdure.engine.world import World
from perdure.store.interface import RecordKey, Store

_NO_DATA: dict[str, object] = {}
"""What keys of flow control are looked for in: a tick has no data of its own."""


class ScheduleDue(Operation):
    """A schedule is due. One run per tick, whoever sees to it; what was missed is made up once."""

    __slots__ = ("_gathered", "_home", "_record")
    name = "schedule_due"
    reads_before_load = True

    def __init__(self, record: RecordKey) -> None:
        self._record = record
        self._home: Home | None = None
        self._gathered = Gathered()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        namespace = self._record.namespace
        book = await open_book(store, world, namespace)
        if self._record not in world.records:
            found = await store.find_records([self._record])
            world.records[self._record] = found.get(self._record)
        self._home, self._gathered = None, Gathered()
        schedule = SCHEDULE.find(world, namespace, self._record.key)
        if schedule is None:
            return ()
        definition = book.find(schedule.app, schedule.workflow)
        if definition is not None and schedule.cron in definition.workflow.crons:
            self._home = Home(namespace, schedule.app, definition.workflow)
            self._gathered = await gather(store, world, self._home, _NO_DATA)
        return self._gathered.run_ids

    def records(self) -> tuple[RecordKey, ...]:
        return (self._record, *self._gathered.records)

    def decide(self, world: World) -> bool:
        _, namespace, key = self._record
        schedule = SCHEDULE.find(world, namespace, key)
        if schedule is None:
            return True
        if self._home is None:
            # The workflow has it no more.
            SCHEDULE.remove(world, namespace, key)
            return True
        firing = cron.parse(schedule.cron).fire(schedule.next_at, world.ctx.now)
        if firing.tick_at is not None:
            admit_trigger(world, self._home, _arrival(schedule, firing.tick_at), _NO_DATA)
            schedule = structs.replace(schedule, last_tick_at=firing.tick_at)
        if firing.next_at is None:
            SCHEDULE.remove(world, namespace, key)
            return True
        moved = structs.replace(schedule, next_at=firing.next_at)
        SCHEDULE.put(world, namespace, key, moved, due_at=firing.next_at)
        return True


def _arrival(schedule: Schedule, tick_at: int) -> Arrival:
    """What a run is told that a tick started."""
    told = {"cron": schedule.cron, "scheduledFor": instant.text(tick_at // SECOND * SECOND)}
    return Arrival("cron", msgspec.json.encode(told), trigger="cron")

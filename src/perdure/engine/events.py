"""Events from outside and from runs: they wake who waits for them and start what they trigger."""

from msgspec import Struct, field, structs

from perdure.core.intake.definition import Flow
from perdure.core.intake.expression import Event as Condition
from perdure.core.intake.failures import FailedCondition, FailedConditions
from perdure.core.intake.flow_state import Arrival
from perdure.core.intake.trigger_index import Registered
from perdure.core.limits import DEDUPE_WINDOW
from perdure.core.push.effect import Emitted
from perdure.core.push.step import NULL
from perdure.engine.admission import Home, admit_trigger, gather
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registration import SEPARATOR, open_book
from perdure.engine.waiters import (
    Page,
    Sought,
    Woken,
    epoch_key,
    find_page,
    open_epoch,
    steps_of,
    wake_runs,
)
from perdure.engine.world import World
from perdure.store.interface import RecordKey, Store


class Incoming(Struct, frozen=True, kw_only=True):
    """An event that is to be taken in. `target` is the app it is for; none is all of them."""

    namespace: str
    name: str
    data: bytes | None = None
    app: str = ""
    target: str | None = None
    pin: str = ""
    dedupe_id: str | None = None
    session: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    source: str = "api"


class Triggered(Struct, kw_only=True):
    """What an event meant for one workflow: a run, or the gate that kept it out."""

    workflow: str
    app: str
    run_id: str | None = None
    gate: str | None = None


class LoggedEvent(Struct, kw_only=True):
    """An event as it is remembered. `woke` is complete when the event does not continue."""

    name: str
    app: str
    source: str
    received_at: int
    woke: int = 0
    triggered: list[Triggered] = field(default_factory=list)
    runner: str = ""
    data: bytes | None = None
    session: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    continues: bool = False
    failed: list[FailedCondition] = field(default_factory=list)
    failed_count: int = 0


class Seen(Struct):
    """An identity under which an event came."""

    event_id: str


class Remainder(Struct):
    """What is left to be done for an event that more wait for than one beat wakes."""

    begin: str
    """The key behind which its waiters go on."""
    epoch: int
    woke: int
    target: str | None = None
    failed: list[FailedCondition] = field(default_factory=list)
    failed_count: int = 0


EVENT = RecordKind("event", LoggedEvent)
SEEN = RecordKind("event_seen", Seen)
REMAINDER = RecordKind("event_remainder", Remainder)
UNCONTROLLED = Flow()


class Ingested(Struct, frozen=True, kw_only=True):
    """What became of an event. One that came before has no id.

    `woke` counts runs; if it continues, those that it has woken so far.
    """

    event_id: str | None
    woke: int = 0
    continues: bool = False
    triggered: list[Triggered] = field(default_factory=list)


class IngestEvent(Operation):
    """Take an event in: log it, wake who waits, start what it triggers, all at once.

    If more wait than one beat wakes, the rest is a record that is due at once: `WakeRemaining`.
    """

    __slots__ = ("_condition", "_failed", "_incoming", "_matched", "_page", "_sought", "_states")
    name = "ingest_event"
    reads_before_load = True
    reads_after_load = True

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._condition = Condition(incoming.name, incoming.data or NULL)
        self._matched: list[Registered] = []
        self._failed = FailedConditions()
        self._sought = self._search()
        self._page = Page()
        self._states: tuple[RecordKey, ...] = ()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        incoming = self._incoming
        book = await open_book(store, world, incoming.namespace)
        found = book.triggers.find(self._condition, incoming.target)
        self._matched, self._failed = found
        self._sought = self._search()
        self._page = await find_page(store, world, self._sought)
        gathered = [
            await gather(store, world, self._home(one), self._condition.value)
            for one in self._matched
            if one.workflow.flow != UNCONTROLLED
        ]
        self._states = tuple(key for one in gathered for key in one.records)
        cancelled = (run_id for one in gathered for run_id in one.run_ids)
        return (*self._page.run_ids, *cancelled)

    def records(self) -> tuple[RecordKey, ...]:
        incoming = self._incoming
        known = self._states
        if incoming.dedupe_id is not None:
            known = (SEEN.key(incoming.namespace, self._identity()), *known)
        if self._page.candidates or self._page.end is not None:
            known = (epoch_key(incoming.namespace), *known)
        return known

    def closer_records(self, world: World) -> tuple[RecordKey, ...]:
        return steps_of(world, self._page, self._sought)

    def decide(self, world: World) -> Ingested:
        incoming, ctx = self._incoming, world.ctx
        if self._is_seen(world):
            return Ingested(event_id=None)
        event_id = ctx.ids.ulid()
        if incoming.dedupe_id is not None:
            until = ctx.now + DEDUPE_WINDOW
            SEEN.put(world, incoming.namespace, self._identity(), Seen(event_id), due_at=until)
        woken = wake_runs(world, self._page, self._sought)
        failed = self._failed.joined(woken.failed)
        if woken.end is not None:
            self._continue(world, event_id, woken)
        triggered = [self._start(world, one, event_id) for one in self._matched]
        logged = LoggedEvent(
            name=incoming.name,
            app=incoming.app,
            source=incoming.source,
            received_at=ctx.now,
            woke=woken.runs,
            triggered=triggered,
            runner=incoming.pin,
            data=incoming.data,
            session=incoming.session,
            tags=incoming.tags,
            continues=woken.end is not None,
            failed=failed.first,
            failed_count=failed.count,
        )
        EVENT.add(world, incoming.namespace, event_id, logged)
        return Ingested(
            event_id=event_id,
            woke=woken.runs,
            continues=logged.continues,
            triggered=triggered,
        )

    def _search(self) -> Sought:
        incoming = self._incoming
        # What filters of waits may cost begins anew with each page, also when that is repeated.
        event = Condition(incoming.name, incoming.data or NULL)
        return Sought(incoming.namespace, event, incoming.target)

    def _continue(self, world: World, event_id: str, woken: Woken) -> None:
        """Leave the other waiters to the next beats, and to whoever comes after a crash."""
        incoming = self._incoming
        assert woken.end is not None
        epoch = open_epoch(world, incoming.namespace, incoming.name)
        left = Remainder(woken.end, epoch, woken.runs, incoming.target)
        REMAINDER.add(world, incoming.namespace, event_id, left, due_at=world.ctx.now)

    def _is_seen(self, world: World) -> bool:
        if self._incoming.dedupe_id is None:
            return False
        return SEEN.find(world, self._incoming.namespace, self._identity()) is not None

    def _identity(self) -> str:
        return self._incoming.app + SEPARATOR + (self._incoming.dedupe_id or "")

    def _start(self, world: World, one: Registered, event_id: str) -> Triggered:
        incoming = self._incoming
        arrival = Arrival(
            incoming.name,
            incoming.data or b"",
            event_id,
            pin=incoming.pin,
            session=incoming.session,
            tags=incoming.tags,
        )
        # Most workflows have no flow control, and nobody looks into their data.
        data = None if one.workflow.flow == UNCONTROLLED else self._condition.value
        admitted = admit_trigger(world, self._home(one), arrival, data)
        return Triggered(
            workflow=one.workflow.name,
            app=one.app,
            run_id=admitted.run_id,
            gate=None if admitted.outcome == "started" else admitted.outcome,
        )

    def _home(self, one: Registered) -> Home:
        return Home(self._incoming.namespace, one.app, one.workflow)


class WakeRemaining(Operation):
    """The next page of those who wait for an event, until there is none."""

    __slots__ = ("_key", "_page", "_sought")
    name = "wake_remaining"
    reads_before_load = True
    reads_after_load = True

    def __init__(self, key: RecordKey) -> None:
        self._key = key
        self._sought: Sought | None = None
        self._page = Page()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        _, namespace, event_id = self._key
        keys = [key for key in self._named() if key not in world.records]
        found = await store.find_records(keys)
        world.records.update({key: found.get(key) for key in keys})
        left = REMAINDER.find(world, namespace, event_id)
        event = EVENT.find(world, namespace, event_id)
        self._sought, self._page = None, Page()
        if left is None or event is None:
            return ()
        condition = Condition(event.name, event.data or NULL)
        self._sought = Sought(namespace, condition, left.target, left.epoch)
        self._page = await find_page(store, world, self._sought, left.begin)
        return self._page.run_ids

    def _named(self) -> tuple[RecordKey, RecordKey]:
        return self._key, EVENT.key(self._key.namespace, self._key.key)

    def records(self) -> tuple[RecordKey, ...]:
        return self._named()

    def closer_records(self, world: World) -> tuple[RecordKey, ...]:
        return () if self._sought is None else steps_of(world, self._page, self._sought)

    def decide(self, world: World) -> bool:
        _, namespace, event_id = self._key
        left = REMAINDER.find(world, namespace, event_id)
        event = EVENT.find(world, namespace, event_id)
        if left is None:
            return True
        if event is None or self._sought is None:
            # The event was removed by hand: nothing says any more what it was.
            REMAINDER.remove(world, namespace, event_id)
            return True
        woken = wake_runs(world, self._page, self._sought)
        failed = FailedConditions(left.failed, left.failed_count).joined(woken.failed)
        left = structs.replace(
            left,
            woke=left.woke + woken.runs,
            failed=failed.first,
            failed_count=failed.count,
        )
        if woken.end is None:
            REMAINDER.remove(world, namespace, event_id)
            failed = FailedConditions(event.failed, event.failed_count).joined(failed)
            logged = structs.replace(
                event,
                woke=left.woke,
                continues=False,
                failed=failed.first,
                failed_count=failed.count,
            )
            EVENT.put(world, namespace, event_id, logged)
        else:
            left = structs.replace(left, begin=woken.end)
            REMAINDER.put(world, namespace, event_id, left, due_at=world.ctx.now)
        return True


def emitted(effect: Emitted) -> IngestEvent:
    """The event that a step of a run sends."""
    run, command = effect.run, effect.command
    return IngestEvent(
        Incoming(
            namespace=run.namespace,
            name=command.event_name,
            data=command.data,
            app=run.queue,
            target=command.target_app,
            dedupe_id=command.dedupe_id,
            session=None if run.push is None else run.push.session,
            source="emit",
        )
    )


class ExpireDedupeId(Operation):
    """An event may come again under an identity that was used long ago."""

    __slots__ = ("_record",)
    name = "forget_seen"

    def __init__(self, record: RecordKey) -> None:
        self._record = record

    def records(self) -> tuple[RecordKey, ...]:
        return (self._record,)

    def decide(self, world: World) -> bool:
        if world.find_record(self._record) is not None:
            world.put_record(self._record, None)
        return True

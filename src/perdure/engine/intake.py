"""Events from outside and from runs: they wake who waits for them and start what they trigger."""

from msgspec import Struct, field

from perdure.core.intake.definition import Flow
from perdure.core.intake.expression import Event as Condition
from perdure.core.intake.expression import judge_wait
from perdure.core.intake.failures import FailedCondition, FailedConditions
from perdure.core.intake.fanout import Registered
from perdure.core.intake.gates import Arrival
from perdure.core.limits import DEDUPE_WINDOW, WAITERS_PER_EVENT_MAX
from perdure.core.push.effect import Emitted, Listened
from perdure.core.push.start import trigger_of
from perdure.core.push.step import NULL, WAIT, complete_step
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.state import Run
from perdure.engine.admission import Home, admit_trigger, gather
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registering import SEPARATOR, open_book
from perdure.engine.world import World
from perdure.store.interface import RecordKey, RecordRange, Store


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
    """An event as it is remembered."""

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
    failed: list[FailedCondition] = field(default_factory=list)
    failed_count: int = 0


class Seen(Struct):
    """An identity under which an event came."""

    event_id: str


class Waiter(Struct):
    """A step that waits for an event; the run has the rest."""

    app: str


EVENT = RecordKind("event", LoggedEvent)
SEEN = RecordKind("event_seen", Seen)
WAITER = RecordKind("waiter", Waiter)
UNCONTROLLED = Flow()


class Ingested(Struct, frozen=True, kw_only=True):
    """What became of an event. One that came before has no id."""

    event_id: str | None
    woke: int = 0
    triggered: list[Triggered] = field(default_factory=list)


def waiter_key(event_name: str, run_id: str, sequence: int) -> str:
    return SEPARATOR.join((event_name, run_id, str(sequence)))


class IngestEvent(Operation):
    """Take an event in: log it, wake who waits, start what it triggers, all at once."""

    __slots__ = ("_condition", "_failed", "_incoming", "_matched", "_states", "_waiters")
    name = "ingest_event"
    looks_around = True

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._condition = Condition(incoming.name, incoming.data or NULL)
        self._matched: list[Registered] = []
        self._failed = FailedConditions()
        self._waiters: list[tuple[str, int]] = []
        self._states: tuple[RecordKey, ...] = ()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        incoming = self._incoming
        book = await open_book(store, world, incoming.namespace)
        found_triggers = book.triggers.find(self._condition, incoming.target)
        self._matched, self._failed = found_triggers
        wanted = RecordRange(
            kind=WAITER.name,
            namespace=incoming.namespace,
            prefix=incoming.name + SEPARATOR,
            limit=WAITERS_PER_EVENT_MAX,
        )
        found = [key.key.split(SEPARATOR) for key in await store.find_record_keys(wanted)]
        self._waiters = [(run_id, int(sequence)) for *_, run_id, sequence in found]
        gathered = [
            await gather(store, world, self._home(one), self._condition.value)
            for one in self._matched
            if one.workflow.flow != UNCONTROLLED
        ]
        self._states = tuple(key for one in gathered for key in one.records)
        cancelled = (run_id for one in gathered for run_id in one.run_ids)
        return (*(run_id for run_id, _ in self._waiters), *cancelled)

    def records(self) -> tuple[RecordKey, ...]:
        incoming = self._incoming
        if incoming.dedupe_id is None:
            return self._states
        return (SEEN.key(incoming.namespace, self._identity()), *self._states)

    def decide(self, world: World) -> Ingested:
        incoming, moment = self._incoming, world.moment
        if self._is_seen(world):
            return Ingested(event_id=None)
        event_id = moment.ids.ulid()
        if incoming.dedupe_id is not None:
            until = moment.now + DEDUPE_WINDOW
            SEEN.put(world, incoming.namespace, self._identity(), Seen(event_id), due_at=until)
        waits = FailedConditions()
        woke = sum([self._wake(world, *waiter, waits) for waiter in self._waiters])
        failed = self._failed.joined(waits)
        triggered = [self._start(world, one, event_id) for one in self._matched]
        logged = LoggedEvent(
            name=incoming.name,
            app=incoming.app,
            source=incoming.source,
            received_at=moment.now,
            woke=woke,
            triggered=triggered,
            runner=incoming.pin,
            data=incoming.data,
            session=incoming.session,
            tags=incoming.tags,
            failed=failed.first,
            failed_count=failed.count,
        )
        EVENT.add(world, incoming.namespace, event_id, logged)
        return Ingested(event_id=event_id, woke=woke, triggered=triggered)

    def _is_seen(self, world: World) -> bool:
        if self._incoming.dedupe_id is None:
            return False
        return SEEN.find(world, self._incoming.namespace, self._identity()) is not None

    def _identity(self) -> str:
        return self._incoming.app + SEPARATOR + (self._incoming.dedupe_id or "")

    def _wake(self, world: World, run_id: str, sequence: int, failed: FailedConditions) -> bool:
        incoming = self._incoming
        run = world.runs.get(run_id)
        step = None if run is None else run.operations.get(sequence)
        if run is None or not isinstance(step, PushStep) or not _awaits(step, incoming.name):
            return False
        if incoming.target is not None and run.queue != incoming.target:
            return False
        if step.event_filter is not None and not self._holds(step, run, failed):
            return False
        data = incoming.data or NULL
        complete_step(run, world.moment, step, data, {"event_name": incoming.name})
        world.changed(run)
        return True

    def _holds(self, step: PushStep, run: Run, failed: FailedConditions) -> bool:
        source = step.event_filter or ""
        verdict = judge_wait(source, self._condition, lambda: trigger_of(run))
        if verdict.failure:
            failed.add(
                FailedCondition(
                    workflow=run.workflow_type,
                    app=run.queue,
                    condition=source,
                    reason=verdict.failure,
                    run_id=run.run_id,
                    step=step.name,
                )
            )
        return verdict.holds

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


def _awaits(step: PushStep, event_name: str) -> bool:
    waits = step.kind == WAIT and step.state is StepState.WAITING
    return waits and step.event_name == event_name


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


class NoteWaiter(Operation):
    """A step begins to wait for an event, or waits no more."""

    __slots__ = ("_effect",)
    name = "note_waiter"

    def __init__(self, effect: Listened) -> None:
        self._effect = effect

    def records(self) -> tuple[RecordKey, ...]:
        return (WAITER.key(self._effect.run.namespace, self._key()),)

    def decide(self, world: World) -> None:
        run: Run = self._effect.run
        if self._effect.begins:
            WAITER.put(world, run.namespace, self._key(), Waiter(run.queue))
        elif WAITER.find(world, run.namespace, self._key()) is not None:
            WAITER.remove(world, run.namespace, self._key())

    def _key(self) -> str:
        effect = self._effect
        return waiter_key(effect.event_name, effect.run.run_id, effect.sequence)


class ForgetSeen(Operation):
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

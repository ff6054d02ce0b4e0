"""Workflows that somebody starts by name: no event, no triggers, but every gate."""

from msgspec import Struct, field

from perdure.core.intake.flow_state import Arrival
from perdure.core.limits import DEDUPE_WINDOW
from perdure.engine.admission import Admitted, Gathered, Home, admit_trigger, gather
from perdure.engine.events import Seen
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registration import SEPARATOR, open_book
from perdure.engine.world import World
from perdure.store.interface import RecordKey, Store

STARTED = RecordKind("manual_seen", Seen)
"""Identities under which somebody started a workflow."""


class ManualStart(Struct, frozen=True, kw_only=True):
    """What is to be started, and with what."""

    namespace: str
    app: str
    workflow: str
    data: bytes
    value: object
    """The data, decoded."""
    event_name: str
    dedupe_id: str | None = None
    pin: str = ""
    tags: dict[str, str] = field(default_factory=dict)


class StartManually(Operation):
    """Start exactly one workflow. None when there is no such workflow."""

    __slots__ = ("_gathered", "_home", "_wanted")
    name = "start_manually"
    reads_before_load = True

    def __init__(self, wanted: ManualStart) -> None:
        self._wanted = wanted
        self._home: Home | None = None
        self._gathered = Gathered()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        wanted = self._wanted
        book = await open_book(store, world, wanted.namespace)
        definition = book.find(wanted.app, wanted.workflow)
        self._home, self._gathered = None, Gathered()
        if definition is not None:
            self._home = Home(wanted.namespace, wanted.app, definition.workflow)
            self._gathered = await gather(store, world, self._home, wanted.value)
        return self._gathered.run_ids

    def records(self) -> tuple[RecordKey, ...]:
        if self._wanted.dedupe_id is None:
            return self._gathered.records
        key = STARTED.key(self._wanted.namespace, self._identity())
        return (key, *self._gathered.records)

    def decide(self, world: World) -> Admitted | None:
        wanted = self._wanted
        if self._home is None:
            return None
        if wanted.dedupe_id is not None:
            if STARTED.find(world, wanted.namespace, self._identity()) is not None:
                return Admitted("deduped", None)
            until = world.ctx.now + DEDUPE_WINDOW
            seen = Seen(world.ctx.ids.ulid())
            STARTED.put(world, wanted.namespace, self._identity(), seen, due_at=until)
        arrival = Arrival(
            wanted.event_name,
            wanted.data,
            trigger="manual",
            pin=wanted.pin,
            tags=wanted.tags,
        )
        return admit_trigger(world, self._home, arrival, wanted.value)

    def _identity(self) -> str:
        wanted = self._wanted
        return SEPARATOR.join((wanted.app, wanted.workflow, wanted.dedupe_id or ""))

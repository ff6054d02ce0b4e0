"""Steps that wait for events: an index of them, read in pages.

A step that waits is one record, under the name of the event. Those that compare members of the
event with known values stand under a digest of these, before all others, so that an event finds
them without a look at the rest. The others are tried one by one. An event reads pages of bounded
size; where one ends is where the next goes on, in another beat.

What began to wait after an event is not woken by its later pages. An event that has more than one
page opens a new epoch of its namespace, and each record says in which epoch it was made.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, structs

from perdure.core.intake.expression import Event, compile_filter, judge_wait
from perdure.core.intake.failures import FailedCondition, FailedConditions
from perdure.core.intake.match import digest_in, holds, read_match
from perdure.core.limits import (
    WAITER_BYTES_PER_PAGE_MAX,
    WAITER_FILTERS_PER_PAGE_MAX,
    WAITER_LOOKUPS_PER_PAGE_MAX,
    WAITERS_PER_PAGE_MAX,
)
from perdure.core.push.effect import Listened
from perdure.core.push.start import trigger_of
from perdure.core.push.step import NULL, WAIT, complete_step
from perdure.core.run.operation import PushStep, StepState
from perdure.core.run.state import Run
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registration import SEPARATOR
from perdure.engine.world import World
from perdure.store.interface import LAST_CHARACTER, RecordKey, RecordRange, Store

_MARK = "!"
"""Before a digest; it sorts before every run id."""
_EPOCH = "latest"


class Waiter(Struct):
    """A step that waits for an event; the run has the rest."""

    app: str
    filter: str | None = None
    """What can be tried without the run, to spare its loading."""
    workflow: str = ""
    step: str = ""
    paths: tuple[str, ...] = ()
    """Which members of an event it compares, if it is found by their values."""
    epoch: int = 0


class Epoch(Struct):
    """How many events of a namespace had more than one page so far."""

    number: int


WAITER = RecordKind("waiter", Waiter)
EPOCH = RecordKind("waiter_epoch", Epoch)


class Sought(Struct, frozen=True):
    """An event for which waiters are sought. `epoch` leaves out those of it and later ones."""

    namespace: str
    event: Event
    target: str | None
    epoch: int | None = None

    def accepts(self, waiter: Waiter) -> bool:
        """Whether it is for an app, and not for those who came later."""
        if self.target not in (None, waiter.app):
            return False
        return self.epoch is None or waiter.epoch < self.epoch


class Page(NamedTuple):
    """Waiters that an event may be for, by their keys, and where the next page begins."""

    begin: str = ""
    candidates: tuple[tuple[str, str], ...] = ()
    """Key and run."""
    end: str | None = None
    """The key behind which to go on; none after the last page."""
    failed: Mapping[str, FailedCondition] = MappingProxyType({})
    """Filters that could not be tried, by the keys of their waiters."""

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run_id for _, run_id in self.candidates))


class Woken(NamedTuple):
    """How many runs were woken, which filters failed, and where to go on."""

    runs: int
    failed: FailedConditions
    end: str | None


def waiter_key(event_name: str, index: str, run_id: str, sequence: int) -> str:
    place = (run_id, str(sequence))
    named = (event_name, *place) if not index else (event_name, _MARK + index, *place)
    return SEPARATOR.join(named)


def step_key(run: Run, step: PushStep) -> RecordKey:
    """The record of a step that waits."""
    key = waiter_key(step.event_name or "", step.event_index, run.run_id, step.sequence)
    return WAITER.key(run.namespace, key)


class _Search:
    """One page of the waiters of an event, in the order of their keys."""

    def __init__(self, store: Store, world: World, sought: Sought, begin: str) -> None:
        self._store = store
        self._world = world
        self._sought = sought
        self._begin = begin
        self._after = begin
        self._prefix = sought.event.name + SEPARATOR
        self._found: list[tuple[str, str]] = []
        self._failed: dict[str, FailedCondition] = {}
        self._left = WAITERS_PER_PAGE_MAX
        self._tried: set[str] = set()

    async def page(self) -> Page:
        for _ in range(WAITER_LOOKUPS_PER_PAGE_MAX):
            first = await self._read(self._prefix, 1)
            if not first:
                return self._page(None)
            key, waiter = first[0]
            shape = self._shape_of(key, waiter)
            if shape is None:
                if not await self._try_each():
                    return self._page(self._after)
            elif not await self._look_up(shape, waiter.paths):
                return self._page(self._after)
        return self._page(self._after)

    def _page(self, end: str | None) -> Page:
        return Page(self._begin, tuple(self._found), end, self._failed)

    async def _look_up(self, shape: str, paths: tuple[str, ...]) -> bool:
        """Find those that compare the same members with the values that the event has there.
        Whether that was all of them."""
        digest = digest_in(paths, self._sought.event)
        if digest is not None:
            for key, waiter in await self._read(f"{self._prefix}{shape}{digest}{SEPARATOR}"):
                self._note(key, waiter)
        if self._left == 0:
            return False
        self._after = self._prefix + shape + LAST_CHARACTER
        return True

    async def _try_each(self) -> bool:
        """Try the next ones that are not found by values. Whether there is room for more."""
        for key, waiter in await self._read(self._prefix):
            if self._shape_of(key, waiter) is not None:
                break
            self._note(key, waiter)
            if not self._sought.event.has_room:
                return False
            if len(self._tried) >= WAITER_FILTERS_PER_PAGE_MAX:
                return False
        return self._left > 0

    async def _read(self, prefix: str, limit: int | None = None) -> list[tuple[str, Waiter]]:
        wanted = RecordRange(
            kind=WAITER.name,
            namespace=self._sought.namespace,
            prefix=prefix,
            after=self._after,
            limit=self._left if limit is None else limit,
        )
        found = await self._store.find_record_page(wanted)
        for key, record in found:
            self._world.records.setdefault(key, record)
        return [(key.key, WAITER.decode(record)) for key, record in found]

    def _note(self, key: str, waiter: Waiter) -> None:
        self._after = key
        self._left -= 1
        run_id = key.split(SEPARATOR)[-2]
        if self._sought.accepts(waiter) and self._holds(key, run_id, waiter):
            self._found.append((key, run_id))

    def _holds(self, key: str, run_id: str, waiter: Waiter) -> bool:
        """Whether the filter, as far as it is known without the run, lets the event through."""
        if waiter.filter is None:
            return True
        self._tried.add(waiter.filter)
        verdict = judge_wait(waiter.filter, self._sought.event, lambda: self._sought.event)
        if verdict.failure:
            self._failed[key] = FailedCondition(
                workflow=waiter.workflow,
                app=waiter.app,
                condition=waiter.filter,
                reason=verdict.failure,
                run_id=run_id,
                step=waiter.step,
            )
        return verdict.holds

    def _shape_of(self, key: str, waiter: Waiter) -> str | None:
        """The part of a key that says which members are compared; none where none are."""
        index, *place = key[len(self._prefix) :].split(SEPARATOR)
        # Names of events may hold anything, so that the key of another event may look like one.
        if not waiter.paths or len(place) != 2 or not index.startswith(_MARK):
            return None
        return index.partition(":")[0] + ":"


async def find_page(store: Store, world: World, sought: Sought, begin: str = "") -> Page:
    """The waiters behind a key that an event may be for, at most so many as a beat can bear."""
    return await _Search(store, world, sought, begin).page()


def steps_of(world: World, page: Page, sought: Sought) -> tuple[RecordKey, ...]:
    """The records of all steps of the runs of a page that wait for this event."""
    runs = (world.runs.get(run_id) for _, run_id in page.candidates)
    return tuple(
        step_key(run, step)
        for run in runs
        if run is not None
        for step in _waiting(run, sought.event.name)
    )


def wake_runs(world: World, page: Page, sought: Sought) -> Woken:
    """Wake the runs of a page that wait for an event, each once with all its steps that do."""
    # Conditions on an event share a bound, which the search has used up in part.
    judged = Event(sought.event.name, sought.event.data)
    failed = dict(page.failed)
    handed = count = 0
    end = page.begin
    seen: set[str] = set()
    for key, run_id in page.candidates:
        if handed > WAITER_BYTES_PER_PAGE_MAX or not judged.has_room:
            return Woken(count, _between(page.begin, end, failed), end)
        end = key
        if run_id in seen:
            continue
        seen.add(run_id)
        run = world.runs.get(run_id)
        if run is not None and not run.is_closed:
            handed += len(sought.event.data)
            count += _wake(world, run, sought, judged, failed)
    return Woken(count, _between(page.begin, page.end, failed), page.end)


def _wake(
    world: World, run: Run, sought: Sought, event: Event, failed: dict[str, FailedCondition]
) -> bool:
    # Once a step is finished the run may want to go on, so all are looked at before.
    meant = [
        step
        for step in _waiting(run, event.name)
        if _is_on_disk(world, run, step, sought) and _fits(run, step, event, failed)
    ]
    for step in meant:
        complete_step(run, world.ctx, step, event.data or NULL, {"event_name": event.name})
    if meant:
        world.changed(run)
    return bool(meant)


def _between(
    begin: str, end: str | None, failed: Mapping[str, FailedCondition]
) -> FailedConditions:
    """Those whose waiters stand in the page, as each stands in one page only."""
    found = FailedConditions()
    for key, one in sorted(failed.items()):
        if begin < key and (end is None or key <= end):
            found.add(one)
    return found


def _waiting(run: Run, event_name: str) -> Iterator[PushStep]:
    for step in run.operations.values():
        if not isinstance(step, PushStep) or step.event_name != event_name:
            continue
        if step.kind == WAIT and step.state is StepState.WAITING:
            yield step


def _is_on_disk(world: World, run: Run, step: PushStep, sought: Sought) -> bool:
    """Whether a step began to wait before the event came, and not in the very beat."""
    record = world.records.get(step_key(run, step))
    return record is not None and sought.accepts(WAITER.decode(record))


def _fits(run: Run, step: PushStep, event: Event, failed: dict[str, FailedCondition]) -> bool:
    if step.event_match is not None and not holds(read_match(step.event_match), event):
        return False
    if step.event_filter is None:
        return True
    verdict = judge_wait(step.event_filter, event, lambda: trigger_of(run))
    if verdict.failure:
        failed[step_key(run, step).key] = FailedCondition(
            workflow=run.workflow_type,
            app=run.queue,
            condition=step.event_filter,
            reason=verdict.failure,
            run_id=run.run_id,
            step=step.name,
        )
    return verdict.holds


# Beginning and ending -----------------------------------------------------------------------------


class RegisterWaiter(Operation):
    """A step begins to wait for an event, or waits no more."""

    __slots__ = ("_effect",)
    name = "note_waiter"

    def __init__(self, effect: Listened) -> None:
        self._effect = effect

    def records(self) -> tuple[RecordKey, ...]:
        namespace = self._effect.run.namespace
        key = WAITER.key(namespace, self._key())
        return (key, epoch_key(namespace)) if self._effect.begins else (key,)

    def decide(self, world: World) -> None:
        run = self._effect.run
        if self._effect.begins:
            WAITER.put(world, run.namespace, self._key(), self._waiter(world))
        elif WAITER.find(world, run.namespace, self._key()) is not None:
            WAITER.remove(world, run.namespace, self._key())

    def _waiter(self, world: World) -> Waiter:
        effect = self._effect
        run, step = effect.run, effect.run.operations.get(effect.sequence)
        waiter = Waiter(run.queue, paths=effect.paths, epoch=_epoch(world, run.namespace))
        assert isinstance(step, PushStep)
        source = step.event_filter
        if effect.paths or source is None or compile_filter(source, of_wait=True).needs_trigger:
            return waiter
        return structs.replace(waiter, filter=source, workflow=run.workflow_type, step=step.name)

    def _key(self) -> str:
        effect = self._effect
        return waiter_key(effect.event_name, effect.index, effect.run.run_id, effect.sequence)


def epoch_key(namespace: str) -> RecordKey:
    return EPOCH.key(namespace, _EPOCH)


def open_epoch(world: World, namespace: str, event_name: str) -> int:
    """The epoch from which on waiters are too late for an event. Its key must be loaded."""
    number = _epoch(world, namespace) + 1
    EPOCH.put(world, namespace, _EPOCH, Epoch(number))
    for key in tuple(_begun_in(world, namespace, event_name)):
        waiter = WAITER.find(world, namespace, key)
        assert waiter is not None
        WAITER.put(world, namespace, key, structs.replace(waiter, epoch=number))
    return number


def _epoch(world: World, namespace: str) -> int:
    known = EPOCH.find(world, namespace, _EPOCH)
    return 0 if known is None else known.number


def _begun_in(world: World, namespace: str, event_name: str) -> Iterator[str]:
    """The waiters that this beat adds: they are as late as those of the next."""
    for key, change in world.changes.records.items():
        if (key.kind, key.namespace) != (WAITER.name, namespace) or change.before is not None:
            continue
        if change.after is not None and key.key.startswith(event_name + SEPARATOR):
            yield key.key

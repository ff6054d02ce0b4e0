"""What features add to the engine: follow-up operations, due records, and rows that go with a run.

The engine asks the registry and knows no feature. The parts list of the server fills it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from perdure.core.run.effect import Effect
from perdure.core.run.state import Run
from perdure.engine.operation import Operation
from perdure.store.interface import RecordKey

FollowUp = Callable[[Any], Operation | None]
"""Makes the operation that carries out an effect; none when there is nothing to do."""


class Extension(Struct, frozen=True, kw_only=True):
    """What one feature adds. `when_due` is registered with the deadline loop, by record kind."""

    name: str
    follow_ups: Mapping[type, FollowUp] = field(default_factory=dict)
    when_due: Mapping[str, Callable[[RecordKey], Operation]] = field(default_factory=dict)
    run_records: Sequence[str] = ()
    """Kinds of records whose keys begin with the id of a push run. They are removed with it."""
    when_removed: Sequence[Callable[[Run], Operation | None]] = ()
    """Follow-ups of the removal of a run."""
    linked_records: Sequence[Callable[[RecordKey], Iterable[RecordKey]]] = ()
    """Further records that a removed record of a run names."""


class Registry:
    """All extensions together, in the order in which they were given."""

    def __init__(self, extensions: Iterable[Extension]) -> None:
        self.extensions = tuple(extensions)
        names = [one.name for one in self.extensions]
        assert len(names) == len(set(names)), f"an extension is registered twice: {names}"
        self._follow_ups: dict[type, list[FollowUp]] = {}
        for extension in self.extensions:
            for effect, follow_up in extension.follow_ups.items():
                self._follow_ups.setdefault(effect, []).append(follow_up)
        self.run_records = tuple(kind for one in self.extensions for kind in one.run_records)
        self._when_removed = [make for one in self.extensions for make in one.when_removed]
        self._linked_records = [find for one in self.extensions for find in one.linked_records]

    @property
    def effects(self) -> frozenset[type]:
        """The effects that some extension carries out."""
        return frozenset(self._follow_ups)

    def operations_for(self, effect: Effect) -> Iterator[Operation]:
        """The operations that carry an effect out, in the same transaction."""
        for make in self._follow_ups[type(effect)]:
            operation = make(effect)
            if operation is not None:
                yield operation

    def after_removal(self, run: Run) -> Iterator[Operation]:
        """The operations that follow when a run is removed."""
        for make in self._when_removed:
            operation = make(run)
            if operation is not None:
                yield operation

    def linked_records(self, keys: Iterable[RecordKey]) -> Iterator[RecordKey]:
        """The records that go when these records of a removed run go."""
        for key in keys:
            for find in self._linked_records:
                yield from find(key)

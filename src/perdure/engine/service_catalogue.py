"""The catalogue of service operations: endpoints, their services, and what handles each call."""

from perdure.core.rejection import (
    EndpointHasServices,
    OperationHasServiceCalls,
    Rejection,
    ServiceEntryNotFound,
    ServiceHasOperations,
)
from perdure.core.run.service_binding import Binding
from perdure.core.service import Entry
from perdure.engine.operation import Operation
from perdure.engine.service_calls import CALL, ENTRY
from perdure.engine.world import World
from perdure.store.interface import RecordKey, RecordRange, Store

_STILL_USED: dict[int, type[Rejection]] = {
    1: EndpointHasServices,
    2: ServiceHasOperations,
    3: OperationHasServiceCalls,
}


class PutEntry(Operation):
    """Add a line to the catalogue, or change it. Writing the same twice changes nothing."""

    __slots__ = ("_binding", "_description", "_mode", "_namespace", "_path")
    name = "put_service_entry"

    def __init__(
        self,
        namespace: str,
        path: str,
        *,
        description: str | None = None,
        mode: str = "sync",
        binding: Binding | None = None,
    ) -> None:
        self._namespace = namespace
        self._path = path
        self._description = description
        self._mode = mode
        self._binding = binding

    @property
    def _parent(self) -> str:
        return self._path.rpartition("/")[0]

    def records(self) -> tuple[RecordKey, ...]:
        paths = [self._path, self._parent] if self._parent else [self._path]
        return tuple(ENTRY.key(self._namespace, path) for path in paths)

    def decide(self, world: World) -> tuple[Entry, bool]:
        """The line, and whether it is new."""
        now = world.ctx.now
        parent = None
        if self._parent:
            parent = ENTRY.find(world, self._namespace, self._parent)
            if parent is None:
                raise ServiceEntryNotFound(f"{self._parent} is not in the catalogue")
        known = ENTRY.find(world, self._namespace, self._path)
        entry = Entry(
            created_at=now if known is None else known.created_at,
            updated_at=now,
            description=self._description,
            mode=self._mode,
            binding=self._binding,
        )
        if known is not None:
            same = (known.description, known.mode, known.binding)
            if same == (entry.description, entry.mode, entry.binding):
                return known, False
        ENTRY.put(world, self._namespace, self._path, entry)
        if parent is not None and known is None:
            # Whoever removes the parent meanwhile must notice.
            ENTRY.put(world, self._namespace, self._parent, parent)
        return entry, known is None


class RemoveEntry(Operation):
    """Take a line out of the catalogue, if nothing hangs on it."""

    __slots__ = ("_is_used", "_namespace", "_path")
    name = "remove_service_entry"
    reads_before_load = True

    def __init__(self, namespace: str, path: str) -> None:
        self._namespace = namespace
        self._path = path
        self._is_used = False

    def records(self) -> tuple[RecordKey, ...]:
        return (ENTRY.key(self._namespace, self._path),)

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        kind = CALL.name if self._path.count("/") == 2 else ENTRY.name
        below = RecordRange(kind=kind, namespace=self._namespace, prefix=f"{self._path}/", limit=1)
        self._is_used = bool(await store.find_record_keys(below))
        return ()

    def decide(self, world: World) -> None:
        if ENTRY.find(world, self._namespace, self._path) is None:
            raise ServiceEntryNotFound(f"{self._path} is not in the catalogue")
        if self._is_used:
            raise _STILL_USED[self._path.count("/") + 1](f"{self._path} is still used")
        ENTRY.remove(world, self._namespace, self._path)

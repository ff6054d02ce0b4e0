"""Forgetting what is old: records whose keys begin with the time of their making, in batches."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from perdure.core.limits import FORGOTTEN_AT_ONCE_MAX
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.store.interface import RecordKey, RecordRange, Store

T = TypeVar("T", bound=msgspec.Struct)


class Forgotten(NamedTuple):
    """How far a batch came."""

    removed: int
    behind: str | None
    """The last key that it looked at; none when nothing old is left."""


class ExpireRecords(Operation, Generic[T]):
    """Remove one batch of the records of a kind that were made before a moment."""

    __slots__ = ("_before", "_behind", "_keys", "_kind", "_may_go", "_namespace")
    name = "forget_old"
    reads_before_load = True

    def __init__(
        self,
        kind: RecordKind[T],
        namespace: str,
        *,
        before: str,
        behind: str | None,
        may_go: Callable[[T], bool],
    ) -> None:
        self._kind = kind
        self._namespace = namespace
        self._before = before
        self._behind = behind
        self._may_go = may_go
        self._keys: tuple[RecordKey, ...] = ()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        wanted = RecordRange(
            kind=self._kind.name,
            namespace=self._namespace,
            after=self._behind,
            limit=FORGOTTEN_AT_ONCE_MAX,
        )
        found = await store.find_record_keys(wanted)
        self._keys = tuple(key for key in found if key.key < self._before)
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        return self._keys

    def decide(self, world: World) -> Forgotten:
        count = 0
        for key in self._keys:
            value = self._kind.find(world, self._namespace, key.key)
            if value is not None and self._may_go(value):
                self._kind.remove(world, self._namespace, key.key)
                count += 1
        is_full = len(self._keys) == FORGOTTEN_AT_ONCE_MAX
        return Forgotten(count, self._keys[-1].key if is_full else None)

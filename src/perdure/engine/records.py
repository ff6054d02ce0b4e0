"""Records: small durable things that are no runs, typed, and changed in the beat like runs.

A kind gives its records a shape. An operation names those that it needs in `records()`, looks at
them and changes them in `decide`. On a shared store a change is checked against what it was
decided on, and a record that is not there must still not be there. What was only looked at is
not checked: who relies on a record writes it.

    SESSION = RecordKind("worker_session", Session)

    class CloseSession(Operation):
        def records(self) -> tuple[RecordKey, ...]:
            return (SESSION.key(self._namespace, self._session_id),)

        def decide(self, world: World) -> None:
            session = SESSION.find(world, self._namespace, self._session_id)
            ...
            SESSION.put(world, self._namespace, self._session_id, changed, due_at=...)

A record with a `due_at` comes back through the one deadline loop (`DeadlineLoop.on_record`).
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from perdure.engine.world import World
from perdure.store.interface import Record, RecordKey, RecordRange, Store

T = TypeVar("T", bound=msgspec.Struct)

_encode = msgspec.msgpack.Encoder().encode


class Listed(msgspec.Struct):
    """A line of a list, whose key says everything."""


class RecordKind(Generic[T]):
    """All records of one shape. Fields may be added with defaults, never removed."""

    def __init__(self, name: str, shape: type[T]) -> None:
        self.name = name
        self._decoder = msgspec.msgpack.Decoder(shape)

    def key(self, namespace: str, key: str) -> RecordKey:
        return RecordKey(self.name, namespace, key)

    def decode(self, record: Record) -> T:
        return self._decoder.decode(record.data)

    # In the beat ---------------------------------------------------------------------------------

    def find(self, world: World, namespace: str, key: str) -> T | None:
        record = world.find_record(self.key(namespace, key))
        return None if record is None else self._decoder.decode(record.data)

    def put(
        self, world: World, namespace: str, key: str, value: T, *, due_at: int | None = None
    ) -> None:
        """Write a value. It must have been looked for; without `due_at` it is due never more."""
        world.put_record(self.key(namespace, key), Record(_encode(value), due_at))

    def add(
        self, world: World, namespace: str, key: str, value: T, *, due_at: int | None = None
    ) -> None:
        """Write a value under a key that was just made up, so that nobody has to look for it."""
        world.records.setdefault(self.key(namespace, key), None)
        self.put(world, namespace, key, value, due_at=due_at)

    def remove(self, world: World, namespace: str, key: str) -> None:
        world.put_record(self.key(namespace, key), None)

    # Outside -------------------------------------------------------------------------------------

    async def read(self, store: Store, namespace: str, key: str) -> T | None:
        record = await store.read_record(self.key(namespace, key))
        return None if record is None else self._decoder.decode(record.data)

    async def read_page(
        self,
        store: Store,
        namespace: str,
        *,
        limit: int,
        after: str | None = None,
        prefix: str = "",
        newest_first: bool = False,
    ) -> Sequence[tuple[str, T]]:
        """Keys and values in the order of the keys, at most `limit`."""
        wanted = RecordRange(
            kind=self.name,
            namespace=namespace,
            prefix=prefix,
            after=after,
            newest_first=newest_first,
            limit=limit,
        )
        found = await store.read_records(wanted)
        return [(key.key, self._decoder.decode(record.data)) for key, record in found]

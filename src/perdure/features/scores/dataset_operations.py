"""Datasets: cases and their expected results, for evals.

Items are records under their dataset. The dataset stores their number and total size, and is
written with every item.
"""

from typing import TypeAlias

from msgspec import Struct

from perdure.core.limits import (
    DATASET_BYTES_MAX,
    DATASET_ITEMS_MAX,
    DATASETS_MAX,
    DEDUPE_WINDOW,
)
from perdure.core.rejection import DatasetNotFound, ItemNotFound, StructuralLimitExceeded
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.registration import SEPARATOR
from perdure.engine.world import World
from perdure.store.interface import RecordKey, RecordRange, Store


class Dataset(Struct, kw_only=True):
    """A named list of cases."""

    name: str
    created_at: int
    description: str | None = None
    items: int = 0
    """How many are not archived."""
    kept_items: int = 0
    kept_bytes: int = 0


class Item(Struct, kw_only=True):
    """One case. Its contents are JSON that is not decoded here."""

    created_at: int
    input: bytes
    expected: bytes | None = None
    metadata: bytes | None = None
    archived: bool = False

    @property
    def size(self) -> int:
        return len(self.input) + len(self.expected or b"") + len(self.metadata or b"")


class Made(Struct):
    """What was made under a dedupe id."""

    id: str


DATASET = RecordKind("dataset", Dataset)
ITEM = RecordKind("dataset_item", Item)
MADE = RecordKind("dataset_made", Made)

Identity: TypeAlias = str | None


def item_key(dataset_id: str, item_id: str) -> str:
    return dataset_id + SEPARATOR + item_id


class MakingOperation(Operation):
    """Makes something once per dedupe id."""

    __slots__ = ("_identity", "_namespace")

    def __init__(self, namespace: str, *parts: str, dedupe_id: Identity) -> None:
        self._namespace = namespace
        self._identity = None if dedupe_id is None else SEPARATOR.join((*parts, dedupe_id))

    def identity_records(self) -> tuple[RecordKey, ...]:
        return () if self._identity is None else (MADE.key(self._namespace, self._identity),)

    def find_made(self, world: World) -> str | None:
        """The id of what was made under this dedupe id before."""
        if self._identity is None:
            return None
        made = MADE.find(world, self._namespace, self._identity)
        return None if made is None else made.id

    def note_made(self, world: World, made_id: str) -> None:
        if self._identity is not None:
            until = world.ctx.now + DEDUPE_WINDOW
            MADE.put(world, self._namespace, self._identity, Made(made_id), due_at=until)


class MakeDataset(MakingOperation):
    """Makes a dataset; returns its id."""

    __slots__ = ("_count", "_description", "_name")
    name = "make_dataset"
    reads_before_load = True

    def __init__(
        self, namespace: str, name: str, description: str | None, *, dedupe_id: Identity
    ) -> None:
        super().__init__(namespace, "dataset", dedupe_id=dedupe_id)
        self._name = name
        self._description = description
        self._count = 0

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        datasets = RecordRange(kind=DATASET.name, namespace=self._namespace, limit=DATASETS_MAX)
        self._count = len(await store.find_record_keys(datasets))
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        return self.identity_records()

    def decide(self, world: World) -> str:
        made = self.find_made(world)
        if made is not None:
            return made
        if self._count >= DATASETS_MAX:
            raise _too_many("datasets", DATASETS_MAX)
        dataset_id, now = world.ctx.ids.ulid(), world.ctx.now
        dataset = Dataset(name=self._name, description=self._description, created_at=now)
        DATASET.add(world, self._namespace, dataset_id, dataset)
        self.note_made(world, dataset_id)
        return dataset_id


class AddItem(MakingOperation):
    """Adds a case; returns its id."""

    __slots__ = ("_dataset_id", "_input", "_more")
    name = "add_item"

    def __init__(
        self,
        namespace: str,
        dataset_id: str,
        input: bytes,
        *more: bytes | None,
        dedupe_id: Identity,
    ) -> None:
        super().__init__(namespace, "item", dataset_id, dedupe_id=dedupe_id)
        self._dataset_id = dataset_id
        self._input = input
        self._more = more

    def records(self) -> tuple[RecordKey, ...]:
        return (DATASET.key(self._namespace, self._dataset_id), *self.identity_records())

    def decide(self, world: World) -> str:
        dataset = require_dataset(world, self._namespace, self._dataset_id)
        made = self.find_made(world)
        if made is not None:
            return made
        expected, metadata = self._more
        now = world.ctx.now
        item = Item(created_at=now, input=self._input, expected=expected, metadata=metadata)
        if dataset.kept_items >= DATASET_ITEMS_MAX:
            raise _too_many("items of a dataset", DATASET_ITEMS_MAX)
        if dataset.kept_bytes + item.size > DATASET_BYTES_MAX:
            raise _too_many("bytes in a dataset", DATASET_BYTES_MAX)
        item_id = world.ctx.ids.ulid()
        dataset.items += 1
        dataset.kept_items += 1
        dataset.kept_bytes += item.size
        DATASET.put(world, self._namespace, self._dataset_id, dataset)
        ITEM.add(world, self._namespace, item_key(self._dataset_id, item_id), item)
        self.note_made(world, item_id)
        return item_id


class ArchiveItem(Operation):
    """Excludes a case from evals, or includes it again."""

    __slots__ = ("_archived", "_dataset_id", "_item_id", "_namespace")
    name = "archive_item"

    def __init__(self, namespace: str, dataset_id: str, item_id: str, *, archived: bool) -> None:
        self._namespace = namespace
        self._dataset_id = dataset_id
        self._item_id = item_id
        self._archived = archived

    def records(self) -> tuple[RecordKey, ...]:
        key = item_key(self._dataset_id, self._item_id)
        return (DATASET.key(self._namespace, self._dataset_id), ITEM.key(self._namespace, key))

    def decide(self, world: World) -> None:
        dataset = require_dataset(world, self._namespace, self._dataset_id)
        key = item_key(self._dataset_id, self._item_id)
        item = ITEM.find(world, self._namespace, key)
        if item is None:
            raise ItemNotFound(f"there is no item {self._item_id[:64]}")
        if item.archived is self._archived:
            return
        item.archived = self._archived
        dataset.items += -1 if self._archived else 1
        ITEM.put(world, self._namespace, key, item)
        DATASET.put(world, self._namespace, self._dataset_id, dataset)


def require_dataset(world: World, namespace: str, dataset_id: str) -> Dataset:
    dataset = DATASET.find(world, namespace, dataset_id)
    if dataset is None:
        raise DatasetNotFound(f"there is no dataset {dataset_id[:64]}")
    return dataset


def _too_many(what: str, most: int) -> StructuralLimitExceeded:
    return StructuralLimitExceeded(
        f"there may be {most} {what}", limit_kind=what.replace(" ", "_"), configured_limit=most
    )

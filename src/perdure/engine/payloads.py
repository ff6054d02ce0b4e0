"""External payloads in the beat: uploaded, named by something durable, or forgotten.

What names payloads is wrapped in `NamePayloads`: it is refused while one of them is not there, and
if it is done and still names them, they are kept from the same transaction on.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core import external, limits
from perdure.core.external import PayloadOwner, Reference, Stored
from perdure.core.references import MARK, find_references, references_in
from perdure.core.run.state import Run
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.store.interface import (
    Instance,
    PayloadKey,
    ReceiptKey,
    RecordKey,
    RecordRange,
    Store,
)

PAYLOADS = RecordKind("payload", Stored)
"""What is known of every payload besides its bytes, under its reference id."""


class Use(Struct):
    """That a run names a payload; its key says all."""


USED_BY = RecordKind("payload_used_by", Use)
"""By payload, then by run."""
USES = RecordKind("payload_uses", Use)
"""By run, then by payload."""


def used_by_key(reference_id: str, run_id: str) -> str:
    return f"{reference_id}/{run_id}"


def uses_key(run_id: str, reference_id: str) -> str:
    return f"{run_id}/{reference_id}"


async def find_uses(store: Store, namespace: str, reference_id: str, *, limit: int) -> list[str]:
    """Runs that name a payload."""
    prefix = used_by_key(reference_id, "")
    wanted = RecordRange(kind=USED_BY.name, namespace=namespace, prefix=prefix, limit=limit)
    return [key.key.removeprefix(prefix) for key in await store.find_record_keys(wanted)]


def note_uses(world: World) -> None:
    """Have it written down which payloads the runs of a beat name in what they write."""
    for run in world.touched.values():
        unsaved = run.unsaved
        texts = unsaved.events
        if unsaved.inbox or unsaved.operations:
            texts = texts + _kept(run)
        for text in texts:
            if MARK in text:
                named = [each for each in texts if MARK in each]
                found = {one.reference_id: None for each in named for one in references_in(each)}
                world.follow_ups.append(RecordPayloadUses(run.namespace, run.run_id, list(found)))
                break


def _kept(run: Run) -> list[bytes]:
    """What a run keeps to record it later: messages, and outcomes, perhaps of other runs.

    Whatever else is held back at a step tells of attempts, and names no payloads.
    """
    unsaved = run.unsaved
    kept: list[bytes] = []
    for position in unsaved.inbox:
        message = run.message_at(position)
        if message is not None and message.arguments is not None:
            kept.append(message.arguments)
    for sequence in unsaved.operations:
        step = run.operations.get(sequence)
        if step is not None and step.outcome is not None:
            kept.append(step.outcome.payload)
    return kept


class RecordPayloadUses(Operation):
    """A run names some payloads; of those whose uses are counted, this is one."""

    __slots__ = ("_namespace", "_reference_ids", "_run_id")
    name = "note_uses"

    def __init__(self, namespace: str, run_id: str, reference_ids: Sequence[str]) -> None:
        self._namespace = namespace
        self._run_id = run_id
        self._reference_ids = reference_ids

    def records(self) -> tuple[RecordKey, ...]:
        return tuple(
            key
            for reference_id in self._reference_ids
            for key in (PAYLOADS.key(self._namespace, reference_id), *self._keys(reference_id))
        )

    def _keys(self, reference_id: str) -> tuple[RecordKey, RecordKey]:
        return (
            USED_BY.key(self._namespace, used_by_key(reference_id, self._run_id)),
            USES.key(self._namespace, uses_key(self._run_id, reference_id)),
        )

    def decide(self, world: World) -> None:
        for reference_id in self._reference_ids:
            stored = PAYLOADS.find(world, self._namespace, reference_id)
            if stored is None or not stored.counted:
                continue
            for kind, key in zip((USED_BY, USES), self._keys(reference_id), strict=True):
                if world.find_record(key) is None:
                    kind.put(world, self._namespace, key.key, Use())


class UploadPayload(Operation):
    """Bytes that something may name soon. Repeating it gives them time anew."""

    __slots__ = ("_data", "_namespace", "_reference")
    name = "upload_payload"

    def __init__(self, namespace: str, reference: Reference, data: bytes) -> None:
        self._namespace = namespace
        self._reference = reference
        self._data = data

    def records(self) -> tuple[RecordKey, ...]:
        return (PAYLOADS.key(self._namespace, self._reference.reference_id),)

    def decide(self, world: World) -> None:
        key = PayloadKey(self._namespace, self._reference.reference_id)
        known = PAYLOADS.find(world, *key)
        stored = external.uploaded(known, self._reference, world.ctx.now)
        if stored is None:
            return
        PAYLOADS.put(world, *key, stored, due_at=stored.until)
        if known is None or known.custody is PayloadOwner.GONE:
            world.put_payload(key, self._data)


class ExpirePayload(Operation):
    """A payload that nobody named in time, and later the memory of it."""

    __slots__ = ("_is_used", "_key")
    name = "forget_payload"
    reads_before_load = True

    def __init__(self, key: RecordKey) -> None:
        self._key = key
        self._is_used = False

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        _, namespace, reference_id = self._key
        self._is_used = bool(await find_uses(store, namespace, reference_id, limit=1))
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        return (self._key,)

    def decide(self, world: World) -> bool:
        _, namespace, reference_id = self._key
        known = PAYLOADS.find(world, namespace, reference_id)
        if known is None:
            return True
        if self._is_used and known.custody is PayloadOwner.LOOSE:
            # A run came to name it while the last one before went.
            kept = msgspec.structs.replace(known, custody=PayloadOwner.KEPT, until=None)
            PAYLOADS.put(world, namespace, reference_id, kept)
            return True
        stored = external.passed(known, world.ctx.now)
        if stored is None:
            PAYLOADS.remove(world, namespace, reference_id)
        elif stored is not known:
            PAYLOADS.put(world, namespace, reference_id, stored, due_at=stored.until)
            world.drop_payload(PayloadKey(namespace, reference_id))
        return True


class NamePayloads(Operation):
    """An operation that names payloads."""

    __slots__ = ("_inner", "_namespace", "_references")
    name = "name_payloads"
    reads_before_load = True

    def __init__(self, inner: Operation, namespace: str, references: Sequence[Reference]) -> None:
        assert not inner.locks_rows
        self._inner = inner
        self._namespace = namespace
        self._references = references

    def run_ids(self) -> tuple[str, ...]:
        return self._inner.run_ids()

    def instances(self) -> tuple[Instance, ...]:
        return self._inner.instances()

    def receipts(self) -> tuple[ReceiptKey, ...]:
        return self._inner.receipts()

    def workers(self) -> tuple[tuple[str, str], ...]:
        return self._inner.workers()

    def records(self) -> tuple[RecordKey, ...]:
        named = (PAYLOADS.key(self._namespace, one.reference_id) for one in self._references)
        return (*self._inner.records(), *named)

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        return await self._inner.prepare(store, world) if self._inner.reads_before_load else ()

    def decide(self, world: World) -> Any:
        kept: dict[PayloadKey, Stored] = {}
        for reference in self._references:
            key = PayloadKey(self._namespace, reference.reference_id)
            stored = external.named(PAYLOADS.find(world, *key), reference, world.ctx.now)
            if stored is not None:
                kept[key] = stored
        reply = self._inner.decide(world)
        if not self._inner.keeps_payloads(reply):
            return reply
        for key, stored in kept.items():
            PAYLOADS.put(world, *key, stored)
            world.keep_payload(key)
        names = [reference.reference_id for reference in self._references]
        for run_id in self._inner.naming_runs():
            world.follow_ups.append(RecordPayloadUses(self._namespace, run_id, names))
        return reply


class SharePayloads(Operation):
    """What one namespace handed to another can be fetched there too. The bytes stay at home."""

    __slots__ = ("_references", "_source", "_target")
    name = "share_payloads"

    def __init__(self, source: str, target: str, references: Sequence[Reference]) -> None:
        self._source = source
        self._target = target
        self._references = references

    def records(self) -> tuple[RecordKey, ...]:
        return tuple(
            PAYLOADS.key(namespace, reference.reference_id)
            for namespace in (self._source, self._target)
            for reference in self._references
        )

    def decide(self, world: World) -> None:
        for reference in self._references:
            reference_id = reference.reference_id
            known = PAYLOADS.find(world, self._source, reference_id)
            if known is None or PAYLOADS.find(world, self._target, reference_id) is not None:
                continue
            # Who names it there is not counted here.
            known = msgspec.structs.replace(known, counted=False)
            PAYLOADS.put(world, self._source, reference_id, known, due_at=known.until)
            shared = msgspec.structs.replace(known, home=known.home or self._source)
            PAYLOADS.put(world, self._target, reference_id, shared)


def share_payloads(world: World, source: str, target: str, encoded: bytes | None) -> None:
    """Let a namespace fetch what another one hands to it."""
    if encoded is None or source == target:
        return
    references = find_references(encoded)
    if references:
        world.follow_ups.append(SharePayloads(source, target, references))


async def loose_part(store: Store) -> float:
    """Which part of what may be loose is so: uploaded, and named by nothing yet."""
    loose = await store.read_loose_payloads()
    return max(
        loose.number / limits.LOOSE_PAYLOADS_MAX, loose.size_bytes / limits.LOOSE_PAYLOADS_BYTES_MAX
    )


async def require_payloads(
    store: Store, namespace: str, references: Collection[Reference], now: int
) -> None:
    """Refuse references whose payloads are not there. Nothing is kept by this."""
    for reference in references:
        known = await PAYLOADS.read(store, namespace, reference.reference_id)
        external.require_there(known, reference, now)

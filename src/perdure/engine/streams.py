"""Operations on the streams that runs put out. Readers of streams never come here."""

from collections.abc import Sequence

from msgspec import Struct

from perdure.core import limits
from perdure.core.rejection import (
    CompletionOverflows,
    InstanceNotFound,
    StreamFull,
    StreamNotFound,
    StructuralLimitExceeded,
)
from perdure.core.run.command import Command, RecordSideEffect
from perdure.core.run.stream import (
    CloseStream,
    Directive,
    Item,
    OutputStream,
    append,
    close,
    expire,
)
from perdure.core.run.task import find_receipt, require_lease
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.workflow_tasks import CompleteWorkflowTask, TaskCompleted
from perdure.engine.world import World
from perdure.store.interface import RecordKey, RecordRange, Store, StreamItem, StreamKey

STREAMS = RecordKind("stream", OutputStream)
"""One record for every stream; its key is that of its run, then its name."""


def record_key(namespace: str, run_id: str, stream_name: str) -> RecordKey:
    return STREAMS.key(namespace, f"{run_id}/{stream_name}")


def stream_of(key: RecordKey) -> StreamKey:
    run_id, _, name = key.key.partition("/")
    return StreamKey(run_id, name)


class Written(Struct, frozen=True):
    """A stream after a change, and where each of the wanted items stands."""

    stream: OutputStream
    offsets: list[int]
    accepted: int = 0


class _Change(Struct, frozen=True):
    key: RecordKey
    stream: OutputStream
    fresh: list[Item]


class Outlets:
    """The streams that one operation writes to, as they stand in its beat."""

    def __init__(self, namespace: str, run_id: str, directives: Sequence[Directive]) -> None:
        self._namespace = namespace
        self._run_id = run_id
        self._directives = directives
        # Of the keys that come with new items, those that are known, and how many other streams
        # the run has. Both are of the disk; `world` knows what this beat has added.
        self._known: dict[RecordKey, dict[str, int]] = {}
        self._others: dict[RecordKey, int] = {}

    def records(self) -> tuple[RecordKey, ...]:
        return tuple(dict.fromkeys(self._key(it.stream_name) for it in self._directives))

    def _key(self, stream_name: str) -> RecordKey:
        return record_key(self._namespace, self._run_id, stream_name)

    async def prepare(self, store: Store, world: World) -> None:
        """Look where items with known keys stand, and how many streams there are."""
        wanted: dict[RecordKey, dict[str, None]] = {}
        for directive in self._directives:
            named = wanted.setdefault(self._key(directive.stream_name), {})
            named.update(dict.fromkeys(directive.keys))
        missing = [key for key in wanted if key not in world.records]
        if missing:
            # Before the keys: who appends meanwhile changes the record, and the commit finds out.
            records = await store.find_records(missing)
            world.records.update({key: records.get(key) for key in missing})
        for key, keys in wanted.items():
            if world.records[key] is None:
                self._others[key] = await self._count(store)
                self._known[key] = {}
            else:
                found = await store.find_items(stream_of(key), keys) if keys else {}
                self._known[key] = dict(found)

    async def _count(self, store: Store) -> int:
        wanted = RecordRange(
            kind=STREAMS.name,
            namespace=self._namespace,
            prefix=f"{self._run_id}/",
            limit=limits.STREAMS_PER_RUN_MAX,
        )
        return len(await store.find_record_keys(wanted))

    def plan(self, world: World) -> tuple[list[_Change], list[Written]]:
        """What the directives come to, one after the other. Refuses before anything is changed."""
        now = world.ctx.now
        streams: dict[RecordKey, OutputStream | None] = {}
        known: dict[RecordKey, dict[str, int]] = {}
        changes: list[_Change] = []
        written: list[Written] = []
        for directive in self._directives:
            key = self._key(directive.stream_name)
            if key not in streams:
                streams[key] = STREAMS.find(world, key.namespace, key.key)
                known[key] = {**self._known.get(key, {}), **world.item_keys.get(stream_of(key), {})}
            before = streams[key]
            if before is None:
                self._require_room_for_stream(world, key, streams)
            if isinstance(directive, CloseStream):
                after, fresh = close(before, directive, now), list[Item]()
                written.append(Written(after, []))
            else:
                done = append(before, known[key], directive, now)
                after, fresh = done.stream, done.new_items
                known[key].update({i.idempotency_key: i.offset for i in fresh if i.idempotency_key})
                written.append(Written(after, done.offsets, len(fresh)))
            streams[key] = after
            if after is not before:
                changes.append(_Change(key, after, fresh))
        return changes, written

    def _require_room_for_stream(
        self, world: World, key: RecordKey, planned: dict[RecordKey, OutputStream | None]
    ) -> None:
        new = {other for other, stream in planned.items() if stream is not None}
        prefix = f"{self._run_id}/"
        new |= {k for k in world.changes.records if k[:2] == key[:2] and k.key.startswith(prefix)}
        opened = sum(world.records.get(other) is None for other in new)
        held = self._others.get(key, 0) + opened
        if held >= limits.STREAMS_PER_RUN_MAX:
            raise StructuralLimitExceeded(
                f"run {self._run_id} has {limits.STREAMS_PER_RUN_MAX} streams",
                limit_kind="stream_count",
                current_value=held,
                configured_limit=limits.STREAMS_PER_RUN_MAX,
            )

    @staticmethod
    def write(world: World, changes: Sequence[_Change]) -> None:
        for change in changes:
            stream = stream_of(change.key)
            _put(world, change.key, change.stream)
            keys = world.item_keys.setdefault(stream, {})
            for item in change.fresh:
                row = StreamItem(*stream, item.offset, item.idempotency_key, item.data)
                world.changes.items.append(row)
                if item.idempotency_key is not None:
                    keys[item.idempotency_key] = item.offset


def _put(world: World, key: RecordKey, stream: OutputStream) -> None:
    STREAMS.put(world, key.namespace, key.key, stream, due_at=stream.expires_at)


class WriteStream(Operation):
    """A client appends to a stream of a run, or ends it. That the run exists was looked at.

    One that is closed may go at any time, and what is written then would be nobody's. So whoever
    writes to a stream of a closed run writes the run, too.
    """

    __slots__ = ("_closed_run", "_directive", "_outlets", "_run_id")
    name = "write_stream"
    reads_before_load = True

    def __init__(
        self, namespace: str, run_id: str, directive: Directive, *, is_closed: bool = False
    ) -> None:
        self._directive = directive
        self._outlets = Outlets(namespace, run_id, [directive])
        self._run_id = run_id
        self._closed_run = run_id if is_closed else None

    def naming_runs(self) -> tuple[str, ...]:
        return (self._run_id,)

    def run_ids(self) -> tuple[str, ...]:
        return () if self._closed_run is None else (self._closed_run,)

    def records(self) -> tuple[RecordKey, ...]:
        return self._outlets.records()

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        await self._outlets.prepare(store, world)
        return ()

    def decide(self, world: World) -> Written:
        (key,) = self.records()
        name = self._directive.stream_name
        if isinstance(self._directive, CloseStream) and world.find_record(key) is None:
            raise StreamNotFound(f"the run has no stream {name}", stream_name=name)
        run = None if self._closed_run is None else world.runs.get(self._closed_run)
        if self._closed_run is not None and run is None:
            raise InstanceNotFound(f"run {self._closed_run} is gone")
        changes, (written,) = self._outlets.plan(world)
        self._outlets.write(world, changes)
        if changes and run is not None:
            world.changed(run)
        return written


class CompleteStreamingTask(CompleteWorkflowTask):
    """A completion whose commands write to streams, in the same transaction."""

    __slots__ = ("_outlets",)
    reads_before_load = True

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        self._outlets = Outlets(self._namespace, self._run_id, directives_of(self._commands))
        await self._outlets.prepare(store, world)
        return ()

    def decide(self, world: World) -> TaskCompleted:
        run, report = self.require_run(world), self._report
        if find_receipt(run, number=report.number, owner=report.owner, attempt=report.attempt):
            # It is a repeat, and so are its items.
            return super().decide(world)
        require_lease(
            run, world.ctx, number=report.number, owner=report.owner, attempt=report.attempt
        )
        try:
            changes, _ = self._outlets.plan(world)
        except StreamFull as full:
            raise CompletionOverflows(full.message, **full.details) from None
        done = super().decide(world)
        self._outlets.write(world, changes)
        return done


def directives_of(commands: Sequence[Command]) -> list[Directive]:
    """What commands ask of streams, in their order."""
    return [
        command.stream
        for command in commands
        if isinstance(command, RecordSideEffect) and command.stream is not None
    ]


class ExpireStream(Operation):
    """The time of a stream's items is up."""

    __slots__ = ("_key",)
    name = "expire_stream"

    def __init__(self, key: RecordKey) -> None:
        self._key = key

    def records(self) -> tuple[RecordKey, ...]:
        return (self._key,)

    def decide(self, world: World) -> bool:
        stream = STREAMS.find(world, self._key.namespace, self._key.key)
        if stream is None:
            return True
        after = expire(stream, world.ctx.now)
        _put(world, self._key, after)
        if after.first > stream.first:
            world.changes.trimmed[stream_of(self._key)] = after.first
        return True

"""The real store, told to fail: the nth load or commit, before or after it happened."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from perdure.core.run.state import Run
from perdure.store.interface import (
    Changes,
    QueueKey,
    ReadyTask,
    Record,
    RecordKey,
    RecordRange,
    Unavailable,
)
from perdure.store.sqlite.store import SqliteStore


def disk_full() -> Unavailable:
    return Unavailable("storage_full", "the store cannot write now: no space left")


class FaultyStore(SqliteStore):
    """Counts what it is asked, and fails what it was told to fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commits: list[Changes] = []
        """Every attempt to commit, refused or not."""
        self.runs_loaded: list[str] = []
        """Every run that was asked for."""
        self.records_paged: list[RecordKey] = []
        """Every record that was found in a page."""
        self.refused = 0
        self.dues = 0
        self.looks = 0
        self._loads: list[Exception | None] = []
        self._before: list[Exception | None] = []
        self._after: list[Exception | None] = []
        self._dues: list[Exception | None] = []
        self._gate: asyncio.Event | None = None

    def fail_loads(self, *errors: Exception | None) -> None:
        """What the next loads of runs end with; None lets one pass."""
        self._loads += errors

    def fail_commits(self, *errors: Exception | None) -> None:
        """What the next commits end with, before anything is written."""
        self._before += errors

    def fail_after_commits(self, *errors: Exception | None) -> None:
        """What the next commits end with although they are on disk: the answer was lost."""
        self._after += errors

    def fail_looks_at_deadlines(self, *errors: Exception | None) -> None:
        self._dues += errors

    def heal(self) -> None:
        """Forget every failure that is still to come."""
        for errors in (self._loads, self._before, self._after, self._dues):
            errors.clear()

    def hold_commits(self) -> asyncio.Event:
        """Keep commits from beginning until the event is set."""
        self._gate = asyncio.Event()
        return self._gate

    async def load_runs(
        self, run_ids: Collection[str], held: Mapping[str, Run] = MappingProxyType({})
    ) -> list[Run]:
        _strike(self._loads)
        self.runs_loaded += run_ids
        return await super().load_runs(run_ids, held)

    async def find_record_page(self, wanted: RecordRange) -> list[tuple[RecordKey, Record]]:
        found = await super().find_record_page(wanted)
        self.records_paged += [key for key, _ in found]
        return found

    async def commit(self, changes: Changes) -> None:
        self.commits.append(changes)
        if self._gate is not None:
            await self._gate.wait()
        self.refused += bool(self._before and self._before[0])
        _strike(self._before)
        await super().commit(changes)
        _strike(self._after)

    async def load_ready(
        self, key: QueueKey, names: Collection[str], limit: int
    ) -> list[ReadyTask]:
        self.looks += 1
        return await super().load_ready(key, names, limit)

    async def load_due(self, now: int, limit: int) -> list[str | RecordKey]:
        self.dues += 1
        _strike(self._dues)
        return await super().load_due(now, limit)

    def rows(self, query: str, *values: str) -> Sequence[tuple[object, ...]]:
        """What is on disk, by a query of our own."""
        found: Sequence[tuple[object, ...]] = self._reader.execute(query, values).fetchall()
        return found


def _strike(errors: list[Exception | None]) -> None:
    error = errors.pop(0) if errors else None
    if error is not None:
        raise error

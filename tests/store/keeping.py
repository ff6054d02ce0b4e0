"""A place where a store lives, opened and closed as often as a test likes."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from perdure.clock import SystemClock
from perdure.core.run.state import Run
from perdure.store.interface import Changes, Store
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore

T = TypeVar("T")


class Keep:
    """Makes stores that all look at the same place, and plays coroutines on one loop."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._runner = asyncio.Runner()

    @classmethod
    def sqlite(cls, path: Path) -> "Keep":
        return cls(lambda: SqliteStore(path))

    @classmethod
    def postgres(cls, url: str) -> "Keep":
        return cls(lambda: PostgresStore(url, node_id="a-node", clock=SystemClock()))

    @contextmanager
    def opened(self) -> Iterator[Store]:
        with self._runner:
            store = self._make()
            self.run(store.open())
            try:
                yield store
            finally:
                self.run(store.close())
        self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def commit(self, store: Store, *runs: Run) -> None:
        """Write what is new in some runs, and forget like the engine that it was new."""
        self.run(store.commit(Changes(runs=list(runs))))
        for run in runs:
            run.mark_saved()

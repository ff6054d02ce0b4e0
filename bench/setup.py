"""What every measurement is given: the store to use and how much to do."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bench.server import Server, Store, fresh_server, serving, temporary_store
from bench.targets import POSTGRESQL, POSTGRESQL_ONE_PROCESS, SQLITE, Targets
from tests.support.postgres import Cluster


@dataclass(frozen=True, slots=True)
class Setup:
    """The choices made on the command line, and the database that they led to."""

    quick: bool
    processes: int | None = None
    """How many server processes; `None` leaves it to the server, which has one on SQLite."""
    cluster: Cluster | None = None
    external_url: str | None = None

    @property
    def targets(self) -> Targets:
        """What to hope for with this store."""
        if self.processes is None:
            return SQLITE
        return POSTGRESQL_ONE_PROCESS if self.processes == 1 else POSTGRESQL

    @property
    def label(self) -> str:
        """What the name of every figure ends with."""
        if self.processes is None:
            return ""
        return f", {self.processes} process{'es' if self.processes > 1 else ''}"

    def pick(self, full: int, quick: int) -> int:
        """A count: the real one, or the one that only shows that everything works."""
        return quick if self.quick else full

    def store(self) -> AbstractAsyncContextManager[Store]:
        """A store that outlives the servers started on it."""
        return temporary_store(cluster=self.cluster, external_url=self.external_url)

    def serving(self, store: Store) -> AbstractAsyncContextManager[Server]:
        """A server on a store."""
        return serving(store, processes=self.processes)

    def server(self) -> AbstractAsyncContextManager[Server]:
        """A server of the measurement's own."""
        return fresh_server(self.store(), processes=self.processes)

    @asynccontextmanager
    async def nodes(self, store: Store, count: int) -> AsyncIterator[list[Server]]:
        """Several servers on one store, each with a port of its own, as on several machines."""
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(serving(store, processes=1)) for _ in range(count)
            ]

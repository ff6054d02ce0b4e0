"""What every measurement is given: the store to use and how much to do."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from bench.server import Server, Store, fresh_server, temporary_store


@dataclass(frozen=True, slots=True)
class Setup:
    """The choices made on the command line."""

    external_url: str | None
    quick: bool

    def pick(self, full: int, quick: int) -> int:
        """A count: the real one, or the one that only shows that everything works."""
        return quick if self.quick else full

    def server(self) -> AbstractAsyncContextManager[Server]:
        """A server of the measurement's own."""
        return fresh_server(self.external_url)

    def store(self) -> AbstractAsyncContextManager[Store]:
        """A store that outlives the servers started on it."""
        return temporary_store(self.external_url)

"""What the engine asks of those who hold the parked pollers."""

from typing import Protocol

from msgspec import Struct

from perdure.core.fleet.worker import Worker
from perdure.core.run.lease import Lease
from perdure.core.run.state import Run
from perdure.store.interface import QueueKey


class Poller(Protocol):
    """Somebody who waits for a task."""

    @property
    def worker(self) -> Worker: ...

    @property
    def poll_id(self) -> str | None: ...

    @property
    def is_elsewhere(self) -> bool:
        """Whether it waits at another node, which then goes on with the run."""
        ...

    def granted(self, run: Run, place: int) -> None:
        """The lease is on disk: hand it over. Called at once after the commit."""
        ...


class Grant(Struct, frozen=True):
    """A lease that is decided and, once committed, handed to its poller."""

    poller: Poller
    run: Run
    place: int
    lease: Lease


class Matcher(Protocol):
    """Keeps parked pollers."""

    def reserve(self, key: QueueKey, name: str, wanted: str | None = None) -> Poller | None:
        """Take a poller that can have a task of this name out of its place.

        One of the wanted worker, if there is one; else whoever waits longest.
        """
        ...

    def reserve_elsewhere(self, key: QueueKey, name: str) -> Poller | None:
        """Likewise one that is parked at another node, which lets us use it."""
        ...

    def restore(self, poller: Poller) -> None:
        """Put a reserved poller back: its lease was not committed."""
        ...

    def registration_ended(self, worker: Worker) -> None:
        """Let go of the polls of a worker that registered anew or said goodbye."""
        ...

    def offered(self, key: QueueKey, name: str) -> None:
        """A ready task is on disk and nobody took it yet."""
        ...

    def wanted(self, key: QueueKey) -> tuple[set[str], int]:
        """The names that parked pollers of a queue can take, and how many they are."""
        ...

    def exhausted(self, key: QueueKey, names: set[str]) -> None:
        """No ready task of these names was left on disk."""
        ...

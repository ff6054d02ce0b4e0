"""Who waits for tasks, whichever kind: parked polls of workers, and runners that we invoke."""

from collections.abc import Mapping
from typing import Protocol

from perdure.core.fleet.worker import Worker
from perdure.engine.matching import Matcher, Poller
from perdure.store.interface import QueueKey


class TaskWaiterSet(Matcher, Protocol):
    """Some of those who wait."""

    def claimed(self, key: QueueKey) -> None:
        """The engine has looked for ready tasks of a queue."""
        ...


class TaskWaiters:
    """One yard per kind of task, and one for all other kinds."""

    def __init__(self, others: TaskWaiterSet, by_kind: Mapping[str, TaskWaiterSet]) -> None:
        self._others = others
        self._by_kind = by_kind

    def _of(self, key: QueueKey) -> TaskWaiterSet:
        return self._by_kind.get(key.kind, self._others)

    def reserve(self, key: QueueKey, name: str, wanted: str | None = None) -> Poller | None:
        return self._of(key).reserve(key, name, wanted)

    def reserve_elsewhere(self, key: QueueKey, name: str) -> Poller | None:
        return self._of(key).reserve_elsewhere(key, name)

    def restore(self, poller: Poller) -> None:
        key: QueueKey = poller.key  # type: ignore[attr-defined]  # every poller of ours has one
        self._of(key).restore(poller)

    def registration_ended(self, worker: Worker) -> None:
        self._others.registration_ended(worker)

    def offered(self, key: QueueKey, name: str) -> None:
        self._of(key).offered(key, name)

    def wanted(self, key: QueueKey) -> tuple[set[str], int]:
        return self._of(key).wanted(key)

    def exhausted(self, key: QueueKey, names: set[str]) -> None:
        self._of(key).exhausted(key, names)

    def claimed(self, key: QueueKey) -> None:
        self._of(key).claimed(key)

"""Names of tasks that are ready, by queue, as far as this node knows: heard of, until a look at the
queue finds no more of them.

A look reads the queue and learns that nothing is left some time later. What is offered between the
two may be younger than what was read, so it stays and is looked for again.
"""

from collections.abc import Collection

from perdure.store.interface import QueueKey

_NONE: frozenset[str] = frozenset()


class ReadyNames:
    """Which names are worth a look, and which queues are being looked at."""

    def __init__(self) -> None:
        self._names: dict[QueueKey, set[str]] = {}
        # The queues that are being looked at, with what was offered since they were read.
        self._looks: dict[QueueKey, set[str]] = {}

    def __contains__(self, key: QueueKey) -> bool:
        return key in self._names

    def of(self, key: QueueKey) -> Collection[str]:
        """The names of a queue."""
        return self._names.get(key, _NONE)

    def offer(self, key: QueueKey, name: str) -> None:
        """A task of this name may be ready."""
        self._names.setdefault(key, set()).add(name)
        if (since := self._looks.get(key)) is not None:
            since.add(name)

    def is_looked_at(self, key: QueueKey) -> bool:
        return key in self._looks

    def begin_look(self, key: QueueKey) -> bool:
        """Whether a look at a queue may begin; false while another is under way."""
        if key in self._looks:
            return False
        self._looks[key] = set()
        return True

    def reads(self, key: QueueKey) -> None:
        """The look reads the queue now: whatever was offered before will be found."""
        if (since := self._looks.get(key)) is not None:
            since.clear()

    def exhausted(self, key: QueueKey, names: Collection[str]) -> None:
        """There was nothing left of these names when the queue was read."""
        known = self._names.get(key)
        if known is not None:
            known.difference_update(set(names) - self._looks.get(key, _NONE))
            if not known:
                del self._names[key]

    def end_look(self, key: QueueKey) -> None:
        self._looks.pop(key, None)

"""Whether a store can be used now, as its last statements showed.

A store notes here what it finds: that the database is away, that the disk is full, that it works
again. Readers of this state never wait for the store.
"""

from collections.abc import Callable

from perdure.clock import monotonic_seconds
from perdure.store.interface import Unavailable

_ATTEMPT_FRESH_SECONDS = 1.0
"""How long a failed attempt to connect answers for all others."""

PROBE_BYTES = 65_536
"""How much a store that refused a write must take before it is said to work again."""
LASTING = frozenset({"storage_full", "storage_read_only", "storage_unavailable"})
"""Refusals that the next write will get, too."""


class StoreHealth:
    """The present trouble of a store, or none."""

    def __init__(self, seconds: Callable[[], float] = monotonic_seconds) -> None:
        self._seconds = seconds
        self._trouble: Unavailable | None = None
        self._since = 0.0
        self._attempts = 0
        self._attempted_at = float("-inf")
        self._listeners: list[Callable[[], None]] = []
        self.is_outage = False
        """Whether the trouble has lasted too long for polls to wait for its end."""

    @property
    def trouble(self) -> Unavailable | None:
        """Why the store cannot be used, as an error that may be raised."""
        if self._trouble is None:
            return None
        known = self._trouble
        return Unavailable(known.reason, known.message, known.retry_after_seconds)

    @property
    def lasting_seconds(self) -> float:
        """How long the present trouble has lasted."""
        return 0.0 if self._trouble is None else self._seconds() - self._since

    def require_pollable(self, *, is_hasty: bool) -> None:
        """Refuse a poll that can be given nothing now; one with time waits for a short while."""
        trouble = self.trouble
        if trouble is not None and (is_hasty or self.is_outage):
            raise trouble

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call somebody whenever trouble begins, changes its reason, or ends."""
        self._listeners.append(listener)

    def failed(self, error: Unavailable) -> None:
        """The store cannot be used."""
        known, self._trouble = self._trouble, error
        if known is None:
            self._since = self._seconds()
        if known is None or known.reason != error.reason:
            self._changed()

    def refused(self, error: Unavailable) -> None:
        """A write was refused; whether the next one will be, its reason says."""
        if error.reason in LASTING:
            self.failed(error)

    def worked(self) -> None:
        """The store took a write."""
        if self._trouble is not None:
            self._trouble = None
            self.is_outage = False
            self._changed()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    # Attempts to reach a database that is away ---------------------------------------------------

    def attempt_begins(self) -> None:
        self._attempts += 1

    def attempt_ended(self) -> None:
        self._attempts -= 1
        self._attempted_at = self._seconds()

    @property
    def is_being_tried(self) -> bool:
        """Whether another attempt would tell no more than one under way or just made."""
        return self._attempts > 0 or self._seconds() - self._attempted_at < _ATTEMPT_FRESH_SECONDS

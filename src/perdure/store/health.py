"""The health of a store: whether its last statements succeeded.

The store records here that the database is unreachable, that the disk is full, and that it works
again. Reading this state never waits for the store.
"""

from collections.abc import Callable

from perdure.clock import monotonic_seconds
from perdure.store.interface import Unavailable

_ATTEMPT_FRESH_SECONDS = 1.0
"""How long a failed connection attempt counts for all connections."""

PROBE_BYTES = 65_536
"""How many bytes a store must accept, after it refused a write, to count as working again."""
LASTING = frozenset({"storage_full", "storage_read_only", "storage_unavailable"})
"""Reasons that the next write will run into, too."""


class StoreHealth:
    """The current failure of a store, or none."""

    def __init__(self, seconds: Callable[[], float] = monotonic_seconds) -> None:
        self._seconds = seconds
        self._trouble: Unavailable | None = None
        self._since = 0.0
        self._attempts = 0
        self._attempted_at = float("-inf")
        self._listeners: list[Callable[[], None]] = []
        self.is_outage = False
        """Whether the failure has lasted too long for polls to wait for its end."""

    @property
    def trouble(self) -> Unavailable | None:
        """The current failure, as a new error to raise."""
        if self._trouble is None:
            return None
        error = self._trouble
        return Unavailable(error.reason, error.message, error.retry_after_seconds)

    @property
    def lasting_seconds(self) -> float:
        """How long the current failure has lasted."""
        return 0.0 if self._trouble is None else self._seconds() - self._since

    def require_pollable(self, *, is_hasty: bool) -> None:
        """Refuse polls during an outage; a short failure refuses only those that do not wait."""
        trouble = self.trouble
        if trouble is not None and (is_hasty or self.is_outage):
            raise trouble

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a listener whenever a failure begins, changes its reason, or ends."""
        self._listeners.append(listener)

    def failed(self, error: Unavailable) -> None:
        """Record that the store cannot be used."""
        before, self._trouble = self._trouble, error
        if before is None:
            self._since = self._seconds()
        if before is None or before.reason != error.reason:
            self._changed()

    def refused(self, error: Unavailable) -> None:
        """Record a refused write; only some reasons mean that the next one fails, too."""
        if error.reason in LASTING:
            self.failed(error)

    def worked(self) -> None:
        """Record a successful write."""
        if self._trouble is not None:
            self._trouble = None
            self.is_outage = False
            self._changed()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    # Connection attempts -------------------------------------------------------------------------

    def attempt_begins(self) -> None:
        self._attempts += 1

    def attempt_ended(self) -> None:
        self._attempts -= 1
        self._attempted_at = self._seconds()

    @property
    def is_being_tried(self) -> bool:
        """Whether an attempt to connect is under way or has just failed."""
        return self._attempts > 0 or self._seconds() - self._attempted_at < _ATTEMPT_FRESH_SECONDS

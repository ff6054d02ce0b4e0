"""What SQLite's errors mean for callers."""

import apsw

from perdure.store.interface import Unavailable

_UNAVAILABLE: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.BusyError, "storage_busy"),
    (apsw.LockedError, "storage_busy"),
    (apsw.FullError, "storage_full"),
    (apsw.IOError, "storage_error"),
    (apsw.ReadOnlyError, "storage_read_only"),
    (apsw.CantOpenError, "storage_error"),
    (apsw.CorruptError, "storage_corrupt"),
    (apsw.NotADBError, "storage_corrupt"),
)


def unavailable(error: apsw.Error) -> Unavailable:
    """The refusal that an error is. One that is our own mistake is raised as it is."""
    for kind, reason in _UNAVAILABLE:
        if isinstance(error, kind):
            return Unavailable(reason, f"the store refuses: {error}", 2)
    raise error

"""Translation of SQLite's errors."""

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
    """The refusal for an error. An error in our own use of SQLite is raised as it is."""
    for kind, reason in _UNAVAILABLE:
        if isinstance(error, kind):
            return Unavailable(reason, f"the store refuses: {error}", 2)
    raise error

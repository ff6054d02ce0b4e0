"""Translation of PostgreSQL's errors."""

import asyncpg

from perdure.store.interface import Conflict, Unavailable


class Lost(Exception):
    """The connection broke. Its last statement may or may not have been carried out."""


LOST: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""Errors after which the connection is unusable: broken, being shut down, or to a standby."""

_RACES: tuple[type[asyncpg.PostgresError], ...] = (
    asyncpg.UniqueViolationError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
"""Errors of a lost race with another node. The transaction wrote nothing."""

_REFUSALS: tuple[tuple[type[asyncpg.PostgresError], str], ...] = (
    (asyncpg.QueryCanceledError, "storage_busy"),
    (asyncpg.DiskFullError, "storage_full"),
    (asyncpg.InsufficientResourcesError, "storage_busy"),
    (asyncpg.PostgresSystemError, "storage_error"),
    (asyncpg.PostgresIOError, "storage_error"),
    (asyncpg.DataCorruptedError, "storage_corrupt"),
    (asyncpg.IndexCorruptedError, "storage_corrupt"),
    (asyncpg.InvalidAuthorizationSpecificationError, "storage_unavailable"),
    (asyncpg.InvalidCatalogNameError, "storage_unavailable"),
    (asyncpg.InsufficientPrivilegeError, "storage_error"),
    (asyncpg.UndefinedTableError, "storage_error"),
    (asyncpg.InvalidSchemaNameError, "storage_error"),
)


def is_lost(error: BaseException) -> bool:
    """Whether a connection is unusable after an error."""
    if isinstance(error, asyncpg.QueryCanceledError | ValueError):
        # Interrupted by its time limit, or by the driver because of a value that it cannot encode.
        return False
    return isinstance(error, LOST)


def translated(error: asyncpg.PostgresError) -> Exception:
    """The error as one of the store interface; an unknown error stays as it is."""
    if isinstance(error, _RACES):
        return Conflict(f"another node changed the data first: {error}")
    for kind, reason in _REFUSALS:
        if isinstance(error, kind):
            return Unavailable(reason, f"the store refuses: {error}", 2)
    return error

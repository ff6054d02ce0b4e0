"""What PostgreSQL's errors mean for a beat."""

import asyncpg

from perdure.store.interface import Conflict, Unavailable


class Lost(Exception):
    """The connection broke. What was under way on it may or may not have happened."""


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
"""Errors after which the connection is of no use: broken, being shut down, or to a standby."""

_RACES: tuple[type[asyncpg.PostgresError], ...] = (
    asyncpg.UniqueViolationError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
"""Errors that say that another node changed the data first. The transaction wrote nothing."""

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
    """Whether a connection can be used no more after an error."""
    if isinstance(error, asyncpg.QueryCanceledError | ValueError):
        # Cut short by its time limit, or by the driver because a value made no sense.
        return False
    return isinstance(error, LOST)


def translated(error: asyncpg.PostgresError) -> Exception:
    """The error in words that the engine knows; one that it does not know stays as it is."""
    if isinstance(error, _RACES):
        return Conflict(f"another node changed the data first: {error}")
    for kind, reason in _REFUSALS:
        if isinstance(error, kind):
            return Unavailable(reason, f"the store refuses: {error}", 2)
    return error

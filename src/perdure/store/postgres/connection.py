"""A connection to PostgreSQL that reconnects when it is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import asyncpg

from perdure.clock import monotonic_seconds
from perdure.store.health import StoreHealth
from perdure.store.interface import Conflict, Unavailable
from perdure.store.postgres.errors import Lost, is_lost, translated

CONNECT_SECONDS = 5.0
"""How long one attempt to connect may take."""
PATIENCE_SECONDS = 10.0
"""How long callers wait for an unreachable database, counted from the start of the outage; after
that they are refused at once."""
STATEMENT_SECONDS = 15.0
"""How long a statement may take before it is aborted."""
_GRACE_SECONDS = 1.0
"""How long a statement whose caller was cancelled may take to finish."""
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4)

SESSION = {
    "application_name": "perdure",
    "statement_timeout": "10s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "20s",
    "jit": "off",
}
BEAT_SESSION = {
    **SESSION,
    # The beat accesses rows by key only, and one plan suits all sizes.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

T = TypeVar("T")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class PostgresConnection:
    """A connection that runs one statement at a time.

    Behind a pooler every transaction may run in another session. So with `pooled` no session state
    is used: no settings, no prepared statements, and each query is a transaction of its own.
    """

    def __init__(
        self,
        url: str,
        *,
        pooled: bool,
        session: dict[str, str],
        greet: Callable[["PostgresConnection"], Awaitable[None]] | None = None,
        health: StoreHealth | None = None,
        is_closed: bool = False,
    ) -> None:
        self._url = url
        self._pooled = pooled
        self._session = session
        self._greet = greet
        # Shared by the connections of one store: a failure of one counts for all of them.
        self._health = StoreHealth() if health is None else health
        self._connection: Connection | None = None
        self._is_closed = is_closed

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self) -> Connection:
        """The connection, reconnected if needed."""
        if self._connection is not None:
            if not self._connection.is_closed():
                return self._connection
            self.drop()
        if self._is_closed:
            raise Unavailable("storage_unavailable", "the store is closed")
        self._health.attempt_begins()
        try:
            connection = await self._connect_anew()
        except (Lost, Unavailable) as error:
            if not self._is_closed:
                self._health.failed(_away(error))
            raise
        finally:
            self._health.attempt_ended()
        if self._greet is not None:
            # The greeting writes, so writes work, too.
            self._health.worked()
        return connection

    async def _connect_anew(self) -> Connection:
        try:
            # In its own task: the driver's timeouts need one, and the caller may not run in a task.
            connection = await asyncio.ensure_future(self._new_connection())
        except Exception as error:
            raise _no_connection(error) from error
        if self._greet is not None:
            try:
                await self._greet(self)
            except (Conflict, Unavailable) as error:
                self.drop()
                if isinstance(error, Unavailable) and error.reason != "storage_busy":
                    raise
                # A statement of an earlier connection still runs: retry until it has ended.
                raise Lost(str(error)) from error
            except BaseException:
                self.drop()
                raise
        return connection

    async def _new_connection(self) -> Connection:
        connection = await asyncpg.connect(
            self._url,
            timeout=CONNECT_SECONDS,
            command_timeout=STATEMENT_SECONDS,
            statement_cache_size=0 if self._pooled else 256,
            max_cacheable_statement_size=0,
            server_settings=None if self._pooled else self._session,
        )
        if self._is_closed:
            connection.terminate()
            raise Lost("the store is closed")
        # Assigned here and not by the caller, which may be cancelled at this very moment.
        self._connection = connection
        return connection

    async def connect_with_retries(self) -> None:
        """Connect, retrying for as long as a caller may wait."""
        if self.is_open:
            return
        remaining = PATIENCE_SECONDS - self._health.lasting_seconds
        trouble = self._health.trouble
        if trouble is not None and remaining < 0 and self._health.is_being_tried:
            raise trouble
        give_up_at = monotonic_seconds() + remaining
        tries = 0
        while True:
            try:
                await self.connect()
                return
            except Lost as error:
                if monotonic_seconds() > give_up_at:
                    raise _away(error) from error
            await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
            tries += 1

    async def ask(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        """Run one statement. Raises `Lost` if the connection broke meanwhile."""
        connection = await self.connect()
        try:
            return await self._run_to_end(self._fetch(connection, sql, values))
        except Exception as error:
            if is_lost(error):
                self.drop()
                raise Lost(str(error)) from error
            if isinstance(error, asyncpg.PostgresError):
                raise translated(error) from error
            raise

    async def _fetch(
        self, connection: Connection, sql: str, values: tuple[Any, ...]
    ) -> list[asyncpg.Record]:
        if self._pooled and not connection.is_in_transaction():
            async with connection.transaction():
                return await connection.fetch(sql, *map(stored, values))
        return await connection.fetch(sql, *map(stored, values))

    async def _run_to_end(self, statement: Coroutine[Any, Any, T]) -> T:
        """Let a statement finish even if its caller is cancelled; after a grace time, disconnect.

        The driver would open another connection to cancel the statement, and an event loop that is
        closed during that never ends.
        """
        running = asyncio.ensure_future(statement)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_ignore_outcome)
            try:
                await asyncio.wait({running}, timeout=_GRACE_SECONDS)
            finally:
                if not running.done():
                    self.drop()
            raise

    async def ask_with_retries(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        """Run a statement that may run twice: it is repeated if the connection breaks."""
        for _ in range(3):
            await self.connect_with_retries()
            try:
                return await self.ask(sql, *values)
            except Lost as error:
                last = error
        raise Unavailable(
            "storage_unavailable", f"the connection to the store was lost: {last}", 1
        ) from last

    async def command(self, text: str) -> None:
        """Run a transaction command."""
        connection = await self.connect()
        try:
            await self._run_to_end(connection.execute(text))
        except Exception as error:
            if is_lost(error):
                self.drop()
                raise Lost(str(error)) from error
            if isinstance(error, asyncpg.PostgresError):
                raise translated(error) from error
            raise

    async def rest(self) -> None:
        """Wait for a moment before the next attempt to connect."""
        await asyncio.sleep(_PAUSES[-1])

    def drop(self) -> None:
        """Close the connection; the next statement opens another."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    def reopen(self) -> None:
        """Allow connecting again after `close`."""
        self._is_closed = False

    async def close(self) -> None:
        """Disconnect. Statements and attempts to connect are refused from now on."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=2)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


def _ignore_outcome(running: "asyncio.Future[Any]") -> None:
    """Retrieve the outcome, so that asyncio does not log it as never retrieved."""
    if not running.cancelled():
        running.exception()


def _away(error: Lost | Unavailable) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    return Unavailable("storage_unavailable", f"the store cannot be reached: {error}", 1)


def _no_connection(error: Exception) -> Exception:
    """The error of a failed attempt: `Lost` if a retry may help, else `Unavailable`."""
    if is_lost(error) or isinstance(error, asyncpg.CannotConnectNowError):
        return Lost(str(error) or type(error).__name__)
    if isinstance(error, asyncpg.PostgresError):
        return Unavailable("storage_unavailable", f"the store refuses the connection: {error}", 2)
    if isinstance(error, ValueError):
        return Unavailable("storage_unavailable", "the address of the store is not valid", 2)
    return error


# PostgreSQL cannot store a NUL in a text. Names of clients are escaped and restored.


def stored(value: Any) -> Any:
    """A value in the form that PostgreSQL can store."""
    if type(value) is str:
        return _escaped(value) if "\0" in value or "\x1b" in value else value
    if type(value) is list:
        for item in value:
            if type(item) is str and ("\0" in item or "\x1b" in item):
                return [_escaped(each) if type(each) is str else each for each in value]
    return value


def plain(text: str) -> str:
    """A stored text in its original form."""
    return text.replace("\x1b0", "\0").replace("\x1b[", "\x1b") if "\x1b" in text else text


def _escaped(text: str) -> str:
    return text.replace("\x1b", "\x1b[").replace("\0", "\x1b0")

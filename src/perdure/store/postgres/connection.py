"""One connection to PostgreSQL that comes back when it is lost."""

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
"""How long callers wait for a database that is away, from when it went away; then they are refused
at once."""
STATEMENT_SECONDS = 15.0
"""How long a statement may take before it is given up."""
_GRACE_SECONDS = 1.0
"""How long a statement whose caller is cancelled may take to its end."""
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
    # Every access of the beat is by key, and one plan fits all its sizes.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

T = TypeVar("T")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class PostgresConnection:
    """Asks one thing at a time.

    Behind a pooler every transaction may meet another session, so nothing is kept in it: no
    settings, no prepared statements, and each question is a transaction of its own.
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
        # Lines of one store share it; what a line finds holds for all of them.
        self._health = StoreHealth() if health is None else health
        self._connection: Connection | None = None
        self._is_closed = is_closed

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self) -> Connection:
        """The connection, made anew if need be."""
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
            # A greeting writes, so more than reading works.
            self._health.worked()
        return connection

    async def _connect_anew(self) -> Connection:
        try:
            # In a task of its own: the driver needs one to measure time, and a caller may be none.
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
                # Something of an earlier connection is still under way: it is waited for.
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
        # Here, and not where it is waited for: who waits may be cancelled at this very moment.
        self._connection = connection
        return connection

    async def connect_patiently(self) -> None:
        """Connect, for as long as a caller may wait."""
        if self.is_open:
            return
        patience = PATIENCE_SECONDS - self._health.lasting_seconds
        trouble = self._health.trouble
        if trouble is not None and patience < 0 and self._health.is_being_tried:
            raise trouble
        give_up_at = monotonic_seconds() + patience
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
        """One statement. Raises `Lost` when the connection broke meanwhile."""
        connection = await self.connect()
        try:
            return await self._undisturbed(self._fetch(connection, sql, values))
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

    async def _undisturbed(self, talk: Coroutine[Any, Any, T]) -> T:
        """Let a statement end, also when its caller is cancelled, or hang up.

        The driver would open another connection only to have the statement cancelled; and a loop
        that is closed while that is under way never ends.
        """
        talking = asyncio.ensure_future(talk)
        try:
            return await asyncio.shield(talking)
        except asyncio.CancelledError:
            talking.add_done_callback(_heard)
            try:
                await asyncio.wait({talking}, timeout=_GRACE_SECONDS)
            finally:
                if not talking.done():
                    self.drop()
            raise

    async def ask_patiently(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        """A question that may be asked twice: when the connection breaks, it is."""
        for _ in range(3):
            await self.connect_patiently()
            try:
                return await self.ask(sql, *values)
            except Lost as error:
                last = error
        raise Unavailable("storage_unavailable", f"the store went away: {last}", 1) from last

    async def command(self, text: str) -> None:
        """A word about the transaction."""
        connection = await self.connect()
        try:
            await self._undisturbed(connection.execute(text))
        except Exception as error:
            if is_lost(error):
                self.drop()
                raise Lost(str(error)) from error
            if isinstance(error, asyncpg.PostgresError):
                raise translated(error) from error
            raise

    async def rest(self) -> None:
        """Leave a database that does not want us alone for a moment."""
        await asyncio.sleep(_PAUSES[-1])

    def drop(self) -> None:
        """Forget the connection; the next question makes another."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    def reopen(self) -> None:
        """Connections may be made again."""
        self._is_closed = False

    async def close(self) -> None:
        """Hang up. Whoever still asks, or is about to connect, is refused."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=2)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()


def _heard(talking: "asyncio.Future[Any]") -> None:
    """Nobody is left who would want to know how it ended."""
    if not talking.cancelled():
        talking.exception()


def _away(error: Lost | Unavailable) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    return Unavailable("storage_unavailable", f"the store cannot be reached: {error}", 1)


def _no_connection(error: Exception) -> Exception:
    """A database that is away may come back; one that does not know us will not."""
    if is_lost(error) or isinstance(error, asyncpg.CannotConnectNowError):
        return Lost(str(error) or type(error).__name__)
    if isinstance(error, asyncpg.PostgresError):
        return Unavailable("storage_unavailable", f"the store refuses us: {error}", 2)
    if isinstance(error, ValueError):
        return Unavailable("storage_unavailable", "the address of the store is not valid", 2)
    return error


# PostgreSQL cannot keep a NUL in a text. Whatever a client names comes back as it was.


def stored(value: Any) -> Any:
    """A value as PostgreSQL can keep it."""
    if type(value) is str:
        return _escaped(value) if "\0" in value or "\x1b" in value else value
    if type(value) is list:
        for item in value:
            if type(item) is str and ("\0" in item or "\x1b" in item):
                return [_escaped(each) if type(each) is str else each for each in value]
    return value


def plain(text: str) -> str:
    """A stored text as it was."""
    return text.replace("\x1b0", "\0").replace("\x1b[", "\x1b") if "\x1b" in text else text


def _escaped(text: str) -> str:
    return text.replace("\x1b", "\x1b[").replace("\0", "\x1b0")

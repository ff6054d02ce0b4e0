"""A proxy in front of PostgreSQL that breaks connections at the moment that a test names.

It reads what the client sends, so that a trap can wait for a message: "the third commit". What the
client is told, and whether the server has done it, is then exact and not a matter of luck.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Self

from tests.support.pgwire import (
    ENDING,
    EXECUTE,
    QUERY,
    READY,
    Cancel,
    Frame,
    LoopbackServer,
    address_of,
    moved,
    read_frame,
    read_opening,
    words_of,
)

WAIT_TIMEOUT = 90.0


class Action(Enum):
    """What happens when a trap springs."""

    CUT_BEFORE = auto()
    CUT_AFTER = auto()
    SWALLOW = auto()
    HOLD = auto()


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a client; `sql` is the statement that it is about, also of a prepared one."""

    connection: int
    kind: bytes
    body: bytes
    sql: str


Predicate = Callable[[Message], bool]


def executing(text: str) -> Predicate:
    """The execution of a statement that contains a text, prepared or not, in any case."""
    wanted = text.lower()
    return lambda message: message.kind in (QUERY, EXECUTE) and wanted in message.sql.lower()


def of_kind(kind: bytes) -> Predicate:
    """Any message of a kind, as SYNC."""
    return lambda message: message.kind == kind


@dataclass(slots=True, eq=False)
class Trap:
    """Waits for the nth message of a kind, springs once."""

    predicate: Predicate
    action: Action
    remaining: int
    sprung: Future[Message] = field(default_factory=Future)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    _release: Callable[[Callable[[], None]], None] = lambda act: act()

    def wait(self) -> Message:
        """Block until the trap has done its work; a loop awaits `asyncio.wrap_future(sprung)`."""
        return self.sprung.result(WAIT_TIMEOUT)

    def release(self) -> None:
        """Let a held message go on."""
        self._release(self.released.set)


class Proxy:
    """Everything passes until a trap is set. Its methods may be called from any thread."""

    def __init__(self, upstream_url: str) -> None:
        self._upstream_url = upstream_url
        self._server = LoopbackServer(self._serve, name="proxy")
        self._relays: set[_Relay] = set()
        self._numbers = 0
        self.traps: list[Trap] = []
        self.refusing = False
        self.delay_seconds = 0.0
        self.counts: Counter[bytes] = Counter()
        """How many messages of each kind clients have sent."""

    @property
    def url(self) -> str:
        """The same database, through the proxy."""
        return moved(self._upstream_url, self._server.port)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._relays)

    def cut(self) -> int:
        """Cut every connection now; returns how many there were."""
        return self._server.call(self._cut_all)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Cut everything, and every new connection at once, until the end of the block."""
        self.refusing = True
        try:
            self.cut()
            yield
        finally:
            self.refusing = False

    def cut_before(self, predicate: Predicate, *, nth: int = 1) -> Trap:
        """Cut a connection instead of forwarding the message: it never happened."""
        return self._set(Trap(predicate, Action.CUT_BEFORE, nth))

    def cut_after(self, predicate: Predicate, *, nth: int = 1) -> Trap:
        """Forward, wait until the server has done it, and cut: it happened, and nobody was told.

        The answers to everything that is under way on the connection are lost with it.
        """
        return self._set(Trap(predicate, Action.CUT_AFTER, nth))

    def swallow(self, predicate: Predicate, *, nth: int = 1) -> Trap:
        """Forward, and let no answer back from then on: the connection stays open and silent."""
        return self._set(Trap(predicate, Action.SWALLOW, nth))

    def hold(self, predicate: Predicate, *, nth: int = 1) -> Trap:
        """Keep the message, and all behind it on the connection, until the trap is released."""
        return self._set(Trap(predicate, Action.HOLD, nth))

    def clear(self) -> None:
        """Forget the traps that have not sprung."""
        self._server.call(self.traps.clear)

    def __enter__(self) -> Self:
        self._server.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()

    def _set(self, trap: Trap) -> Trap:
        trap._release = self._server.call
        self._server.call(lambda: self.traps.append(trap))
        return trap

    def _cut_all(self) -> int:
        relays = list(self._relays)
        for relay in relays:
            relay.cut()
        return len(relays)

    def spring(self, message: Message) -> Trap | None:
        """The trap for which a message is the one, if there is any; it is gone then."""
        self.counts[message.kind] += 1
        for trap in self.traps:
            if trap.predicate(message):
                trap.remaining -= 1
                if trap.remaining == 0:
                    self.traps.remove(trap)
                    return trap
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = None if self.refusing else await read_opening(reader, writer)
        if opening is None:
            return
        try:
            upstream = await asyncio.open_connection(*address_of(self._upstream_url))
        except OSError:
            return
        upstream[1].write(opening.raw)
        if isinstance(opening, Cancel):
            await upstream[0].read()
            upstream[1].transport.abort()
            return
        self._numbers += 1
        relay = _Relay(self, self._numbers, (reader, writer), upstream)
        self._relays.add(relay)
        try:
            await relay.run()
        finally:
            self._relays.discard(relay)
            relay.cut()


End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Relay:
    """One client and its session at the server."""

    def __init__(self, proxy: Proxy, number: int, client: End, upstream: End) -> None:
        self._proxy = proxy
        self._number = number
        self._client, self._to_client = client
        self._upstream, self._to_upstream = upstream
        self._statements: dict[str, str] = {}
        self._portals: dict[str, str] = {}
        self._owed = 1  # The answer to the startup ends like the answer to a request.
        self._answered = asyncio.Event()
        self._withholding = False

    async def run(self) -> None:
        """Carry messages until one side is gone or a trap cuts."""
        pumps = {
            asyncio.create_task(self._pump_requests()),
            asyncio.create_task(self._pump_answers()),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def cut(self) -> None:
        """End both sides without a word."""
        self._to_client.transport.abort()
        self._to_upstream.transport.abort()

    async def _pump_requests(self) -> None:
        while (frame := await read_frame(self._client)) is not None:
            if self._proxy.delay_seconds:
                await asyncio.sleep(self._proxy.delay_seconds)
            message = self._message(frame)
            trap = self._proxy.spring(message)
            if trap is None:
                await self._forward(frame)
            elif not await self._carry_out(trap, frame, message):
                return

    async def _carry_out(self, trap: Trap, frame: Frame, message: Message) -> bool:
        """Whether the connection goes on."""
        match trap.action:
            case Action.CUT_BEFORE:
                self.cut()
                trap.sprung.set_result(message)
                return False
            case Action.CUT_AFTER:
                await self._do_unheard(trap, frame, message)
                return False
            case Action.SWALLOW:
                self._withholding = True
                await self._forward(frame)
                trap.sprung.set_result(message)
            case Action.HOLD:
                trap.sprung.set_result(message)
                await trap.released.wait()
                await self._forward(frame)
        return True

    async def _do_unheard(self, trap: Trap, frame: Frame, message: Message) -> None:
        self._withholding = True
        try:
            await self._forward(frame)
            last: Frame | None = frame
            # An execution is made durable by the sync behind it, so that must pass as well.
            while last is not None and last.kind not in ENDING:
                last = await read_frame(self._client)
                if last is not None:
                    await self._forward(last)
            if last is None:
                raise ConnectionError("the client left before it had finished its request")
            while self._owed:
                self._answered.clear()
                await self._answered.wait()
            self.cut()
            trap.sprung.set_result(message)
        except (ConnectionError, asyncio.CancelledError) as error:
            trap.sprung.set_exception(ConnectionError(f"ended before the server answered: {error}"))
            raise

    async def _forward(self, frame: Frame) -> None:
        if frame.kind in ENDING:
            self._owed += 1
        self._to_upstream.write(frame.raw)
        with contextlib.suppress(ConnectionError):
            await self._to_upstream.drain()

    async def _pump_answers(self) -> None:
        while (frame := await read_frame(self._upstream)) is not None:
            if frame.kind == READY:
                self._owed -= 1
                self._answered.set()
            if not self._withholding:
                self._to_client.write(frame.raw)
                with contextlib.suppress(ConnectionError):
                    await self._to_client.drain()

    def _message(self, frame: Frame) -> Message:
        return Message(self._number, frame.kind, frame.body, self._sql_of(frame))

    def _sql_of(self, frame: Frame) -> str:
        """What a message is about; statements and portals are remembered by their names."""
        match frame.kind:
            case b"Q":
                [sql] = words_of(frame.body, 1)
                return sql
            case b"P":
                name, self._statements[name] = words_of(frame.body, 2)
                return self._statements[name]
            case b"B":
                portal, name = words_of(frame.body, 2)
                self._portals[portal] = self._statements.get(name, "")
                return self._portals[portal]
            case b"E":
                return self._portals.get(words_of(frame.body, 1)[0], "")
            case b"D":
                [name] = words_of(frame.body[1:], 1)
                known = self._statements if frame.body[:1] == b"S" else self._portals
                return known.get(name, "")
            case _:
                return ""

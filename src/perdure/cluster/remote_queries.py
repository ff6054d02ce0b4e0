"""Queries between nodes: calls and their replies, as messages that may be lost.

A call without a reply in time counts as refused. A query lease that could not be handed over, or
that arrived too late, is returned at once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct, structs

from perdure.core import rejection
from perdure.core.limits import QUERIES_OPEN_MAX
from perdure.core.rejection import Rejection
from perdure.dispatch.query_broker import QueryBroker
from perdure.dispatch.query_messages import (
    QueryLease,
    QueryReport,
    QueryView,
    QueryWanted,
    QueueName,
)
from perdure.store.interface import Unavailable

log = logging.getLogger(__name__)

REPLY_SECONDS = 4.0
"""Workers ask for at most five seconds whether a query still matters."""

T = TypeVar("T")

_REFUSALS: dict[str, type[Rejection]] = {
    kind.reason: kind
    for kind in (
        rejection.QueryTaskNotFound,
        rejection.QueryTaskNotLeased,
        rejection.QueryTaskTimedOut,
        rejection.QueryTaskAttemptMismatch,
        rejection.LeaseExpired,
        rejection.LeaseOwnerMismatch,
    )
}
"""What a desk may refuse a report with."""


class Parcels(Protocol):
    """Carries bytes to one node."""

    async def send(self, node: str, parcel: bytes) -> None:
        """Raises `Unavailable` when it surely does not arrive."""
        ...


class Letter(Struct, array_like=True, frozen=True):
    """One call, or the reply to the call of the same number."""

    sender: str
    number: int
    kind: str
    body: bytes = b""


class _Refused(Struct, frozen=True):
    reason: str
    message: str
    details: dict[str, Any]


_letters = msgspec.msgpack.Decoder(Letter)


def _pack(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def _unpack(body: bytes, kind: type[T]) -> T:
    return msgspec.msgpack.decode(body, type=kind)


class QueryPost:
    """Calls the desks of other nodes, and answers for the one of this node."""

    def __init__(
        self, node_id: str, parcels: Parcels, announce: Callable[[QueueName, str], None]
    ) -> None:
        self._node_id = node_id
        self._parcels = parcels
        self._announce = announce
        self._query_broker: QueryBroker
        self._number = 0
        self._calls: dict[int, asyncio.Future[Letter]] = {}
        self._outbox: deque[tuple[str, Letter]] = deque(maxlen=QUERIES_OPEN_MAX)
        self._wake = asyncio.Event()
        self.on_errand: Callable[[bytes], None] = lambda errand: None

    def connect(self, query_broker: QueryBroker) -> None:
        """Say for whom all this is."""
        self._query_broker = query_broker

    # Calling -------------------------------------------------------------------------------------

    def announce(self, key: QueueName, name: str) -> None:
        self._announce(key, name)

    async def claim(self, home: str, wanted: QueryWanted) -> QueryLease | None:
        reply = await self._call(home, "claim", wanted)
        return _unpack(reply.body, QueryLease) if reply.kind == "lease" else None

    async def report(self, home: str, report: QueryReport) -> QueryView:
        try:
            reply = await self._call(home, "report", report)
        except TimeoutError:
            # The asker went with its node.
            raise rejection.QueryTaskNotFound(
                "the node where the query was asked does not answer",
                query_task_id=report.query_id,
                query_task_attempt=report.attempt,
                outcome="rejected",
            ) from None
        if reply.kind == "refused":
            refused = _unpack(reply.body, _Refused)
            kind = _REFUSALS.get(refused.reason, rejection.QueryTaskNotLeased)
            raise kind(refused.message, **refused.details)
        return _unpack(reply.body, QueryView)

    async def give_back(self, home: str, lease: QueryLease) -> None:
        await self._parcels.send(home, _pack(self._letter("give_back", _light(lease))))

    async def _call(self, home: str, kind: str, body: object) -> Letter:
        letter = self._letter(kind, body)
        future: asyncio.Future[Letter] = asyncio.get_running_loop().create_future()
        self._calls[letter.number] = future
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                await self._parcels.send(home, _pack(letter))
                return await future
        finally:
            del self._calls[letter.number]

    def _letter(self, kind: str, body: object) -> Letter:
        self._number += 1
        return Letter(self._node_id, self._number, kind, _pack(body))

    # Answering -----------------------------------------------------------------------------------

    def heard(self, parcel: bytes) -> None:
        """Take in what another node sent. What makes no sense is left alone."""
        try:
            letter = _letters.decode(parcel)
            self._take_in(letter)
        except msgspec.MsgspecError:
            log.warning("dropped a malformed message from another node")

    def _take_in(self, letter: Letter) -> None:
        match letter.kind:
            case "claim":
                lease = self._query_broker.claim_here(_unpack(letter.body, QueryWanted))
                self._reply(letter, "nothing" if lease is None else "lease", lease)
            case "report":
                self._answer_report(letter)
            case "give_back":
                self._query_broker.give_back_here(_unpack(letter.body, QueryLease))
            case "errand":
                self.on_errand(letter.body)
            case "lease" | "nothing" | "view" | "refused":
                self._take_reply(letter)
            case _:
                # A newer node knows more kinds than we do.
                pass

    def _answer_report(self, letter: Letter) -> None:
        try:
            view = self._query_broker.report_here(_unpack(letter.body, QueryReport))
        except Rejection as refusal:
            refused = _Refused(refusal.reason, refusal.message, refusal.details)
            self._reply(letter, "refused", refused)
        else:
            self._reply(letter, "view", view)

    def _take_reply(self, letter: Letter) -> None:
        call = self._calls.get(letter.number)
        if call is not None and not call.done():
            call.set_result(letter)
        elif letter.kind == "lease":
            lease = _unpack(letter.body, QueryLease)
            self._post(letter.sender, self._letter("give_back", _light(lease)))

    def _reply(self, call: Letter, kind: str, body: object) -> None:
        self._post(call.sender, Letter(self._node_id, call.number, kind, _pack(body)))

    def _post(self, node: str, letter: Letter) -> None:
        self._outbox.append((node, letter))
        self._wake.set()

    async def run(self) -> None:
        """Send replies for as long as the server lives."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                node, letter = self._outbox.popleft()
                try:
                    await self._parcels.send(node, _pack(letter))
                except Unavailable as error:
                    log.info("sending a message to node %s failed: %s", node, error.message)
                    if letter.kind == "lease":
                        self._query_broker.give_back_here(_unpack(letter.body, QueryLease))


def _light(lease: QueryLease) -> QueryLease:
    """A lease without what only its worker needs."""
    return structs.replace(lease, asked=structs.replace(lease.asked, arguments=None, plain=None))

"""One socket of a connected runner, from the dialling to its end; it lives in the socket's thread.

It answers hellos, pings, and reports which invokes are worked on, whatever the event loop of the
handlers does. Invokes are handed to that loop and their replies come back, in order. As many cross
as are not yet answered, and those are bounded: the engine is refused what is more.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from perdure.sdk.channel import Channel, Ending, NoChannel, dial
from perdure.sdk.limits import MESSAGE_BYTES_MAX, PASSES_MAX, PASSES_WAITING_MAX
from perdure.sdk.versions import OWN_RANGE, common, range_of
from perdure.sdk.wire import Invoke, Json, Reply, encode, refusal, too_large

SUBPROTOCOLS = ("durablex.connect.v0", "duraton.connect.v0")
DIAL_SECONDS = 10.0
CLOSE_SECONDS = 2.0

log = logging.getLogger("perdure.sdk")


class Incompatible(Exception):
    """The engine speaks no version of the protocol that this SDK does."""


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """What every socket of a connection needs."""

    engine_url: str
    headers: Mapping[str, str]
    registration: bytes
    ping_seconds: float
    pong_seconds: float


class _Hello(msgspec.Struct, frozen=True, tag_field="type", tag="hello"):
    payload: dict[str, Json]


class _Invoked(msgspec.Struct, frozen=True, tag_field="type", tag="invoke"):
    id: str
    payload: Invoke


class _Pong(msgspec.Struct, frozen=True, tag_field="type", tag="pong"):
    pass


class _Envelope(msgspec.Struct, frozen=True):
    type: str = ""
    id: str | None = None


_read = msgspec.json.Decoder(_Hello | _Invoked | _Pong).decode
_read_envelope = msgspec.json.Decoder(_Envelope).decode
_PING = encode({"type": "ping"})
_LEAVE = encode({"type": "runner.leave"})


class Link:
    """One socket. All of it runs in the socket's thread, and so do the two callbacks."""

    def __init__(
        self,
        terms: LinkTerms,
        on_registered: Callable[[], None],
        on_invoke: Callable[[int, Invoke], None],
        on_leave_heard: Callable[[], None],
    ) -> None:
        self._terms = terms
        self._on_registered = on_registered
        self._on_invoke = on_invoke
        self._on_leave_heard = on_leave_heard
        self._dialling: asyncio.Task[Channel] | None = None
        self._channel: Channel | None = None
        self._early: list[bytes] = []
        self._ids: dict[int, str] = {}
        """Of the invokes that are not answered yet."""
        self._count = 0
        self._is_leaving = False
        self._is_refusing = False
        self._pings = 0
        self._pongs = 0
        self._last_ping = 0
        """The number of the ping whose pong tells that the engine has heard that we leave."""
        self._failure: Incompatible | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def serve(self) -> Ending:
        """Dial and stay until the socket ends. `NoChannel` and `Incompatible` end it, too."""
        channel = await self._dial()
        try:
            if self._is_leaving:
                channel.begin_close()
            self._channel = channel
            for message in self._early:  # it came in the same breath as the upgrade
                self._hear(message)
            self._early.clear()
            ending = await asyncio.shield(channel.ended)
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._ids.clear()
            channel.abort()
        if self._failure is not None:
            raise self._failure
        return ending

    def leave(self) -> None:
        """Ask the engine for nothing more, and refuse what it sent before it heard that."""
        self._is_leaving = True
        if self._channel is not None:
            self._channel.send(_LEAVE)
            self._channel.send(_PING)
            self._pings += 1
            self._last_ping = self._pings
        elif self._dialling is not None:
            self._dialling.cancel()

    def close(self) -> None:
        """Say goodbye; an engine that does not answer it is left."""
        if self._channel is not None:
            self._channel.begin_close()
            self._call_later("close", CLOSE_SECONDS, self._channel.abort)

    def answer(self, number: int, reply: Reply) -> None:
        """Send the reply to an invoke."""
        id = self._ids.pop(number, None)
        if id is not None:
            self._send(id, reply)

    # ----------------------------------------------------------------------------------------------

    async def _dial(self) -> Channel:
        if self._is_leaving:
            raise NoChannel("this runner is closing")
        dialling = dial(
            self._terms.engine_url,
            headers=self._terms.headers,
            subprotocols=SUBPROTOCOLS,
            on_message=self._hear,
            seconds=DIAL_SECONDS,
        )
        self._dialling = asyncio.get_running_loop().create_task(dialling)
        try:
            return await self._dialling
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise NoChannel("this runner is closing") from None
        finally:
            self._dialling = None

    def _hear(self, message: bytes) -> None:
        if self._channel is None:
            self._early.append(message)
            return
        self._stop_timer("pong")
        try:
            told = _read(message)
        except msgspec.MsgspecError as error:
            self._hear_misfit(message, error)
            return
        if isinstance(told, _Invoked):
            self._admit(told)
        elif isinstance(told, _Hello):
            self._greet(told.payload)
        else:
            self._pongs += 1
            if self._pongs == self._last_ping:
                self._on_leave_heard()

    def _greet(self, hello: dict[str, Json]) -> None:
        assert self._channel is not None
        theirs = range_of(hello)
        if common(OWN_RANGE, theirs) is None:
            self._failure = Incompatible(
                f"the engine speaks versions {theirs[0]} to {theirs[1]} of the protocol, "
                f"this SDK {OWN_RANGE[0]} to {OWN_RANGE[1]}"
            )
            self._channel.begin_close(1002, "no common version")
            return
        self._channel.send(self._terms.registration)
        self._on_registered()
        heartbeat = hello.get("heartbeatMs")
        every = self._terms.ping_seconds
        if isinstance(heartbeat, int | float) and heartbeat > 0:
            every = min(every, heartbeat / 1000)
        if "ping" not in self._timers:
            self._call_later("ping", every, self._send_ping, every)

    def _send_ping(self, every: float) -> None:
        assert self._channel is not None
        self._channel.send(_PING)
        self._pings += 1
        if self._ids:
            # What is worked on may take any time, as long as the engine hears of it.
            told = {"type": "invoke.heartbeat", "payload": {"ids": list(self._ids.values())}}
            self._channel.send(encode(told))
        self._call_later("ping", every, self._send_ping, every)
        # The time for the pong counts from the first ping without an answer.
        if "pong" not in self._timers:
            self._call_later("pong", self._terms.pong_seconds, self._channel.abort)

    def _hear_misfit(self, message: bytes, error: Exception) -> None:
        """A message that is none of ours is left alone; an invoke deserves an answer."""
        try:
            told = _read_envelope(message)
        except msgspec.MsgspecError:
            return
        if told.type == "invoke" and told.id is not None:
            self._send(told.id, refusal(400, f"not an invoke: {error}"))

    def _admit(self, invoked: _Invoked) -> None:
        if self._is_leaving:
            self._send(invoked.id, refusal(503, "this runner is going away"))
        elif len(self._ids) < PASSES_MAX + PASSES_WAITING_MAX:
            self._is_refusing = False
            self._count += 1
            self._ids[self._count] = invoked.id
            self._on_invoke(self._count, invoked.payload)
        else:
            if not self._is_refusing:
                self._is_refusing = True
                log.warning("%d invokes are not answered yet; refusing more", len(self._ids))
            self._send(invoked.id, refusal(503, "this runner has too many passes waiting"))

    def _send(self, id: str, reply: Reply) -> None:
        assert self._channel is not None
        message = _result(id, reply)
        if len(message) > MESSAGE_BYTES_MAX:
            message = _result(id, refusal(500, f"this reply: {too_large(len(message))}"))
        self._channel.send(message)

    def _call_later(
        self, name: str, seconds: float, callback: Callable[..., object], *args: object
    ) -> None:
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, callback, *args)

    def _stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def _result(id: str, reply: Reply) -> bytes:
    head = b'{"type":"invoke.result","id":%b,"payload":{"status":%d,"body":'
    return head % (encode(id), reply.status) + reply.body + b"}}"

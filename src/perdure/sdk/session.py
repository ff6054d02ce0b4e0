"""What happens on one socket of a connected runner, from the engine's hello to its end."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from perdure.sdk.channel import Channel
from perdure.sdk.limits import MESSAGE_BYTES_MAX, PASSES_MAX, PASSES_WAITING_MAX
from perdure.sdk.offload import ResultError, ResultStore, is_complete
from perdure.sdk.passes import Pass, begin
from perdure.sdk.versions import OWN_RANGE, common, range_of
from perdure.sdk.wire import Invoke, Json, Reply, encode, refusal, too_large
from perdure.sdk.workflows import App

CLOSE_SECONDS = 2.0

log = logging.getLogger("perdure.sdk")


class Incompatible(Exception):
    """The engine speaks no version of the protocol that this SDK does."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What every session of a connection is made of."""

    app: App
    registration: bytes
    ping_seconds: float
    pong_seconds: float
    clock: Callable[[], int]
    on_registered: Callable[[], None]
    store: ResultStore | None = None


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


class Session:
    """One socket's worth of a connection."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._channel: Channel | None = None
        self._early: list[bytes] = []
        self._playing: dict[int, Pass | _Completing] = {}
        self._ids: dict[int, str] = {}
        self._waiting: deque[_Invoked] = deque()
        self._count = 0
        self._is_draining = False
        self._idle: asyncio.Future[None] | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.failure: Incompatible | None = None

    def begin(self, channel: Channel) -> None:
        """The channel is open; what came in the same breath as the upgrade is heard now."""
        self._channel = channel
        for message in self._early:
            self.hear(message)
        self._early.clear()

    def hear(self, message: bytes) -> None:
        """One message of the engine."""
        if self._channel is None:
            self._early.append(message)
            return
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        try:
            told = _read(message)
        except msgspec.MsgspecError as error:
            self._hear_misfit(message, error)
            return
        if isinstance(told, _Invoked):
            self._admit(told)
        elif isinstance(told, _Hello):
            self._greet(told.payload)

    async def drain(self, seconds: float) -> None:
        """Ask for nothing more, refuse what comes, wait for what runs, say goodbye."""
        self._is_draining = True
        if self._channel is not None:
            self._channel.send(_LEAVE)
        for invoked in self._waiting:
            self._send(invoked.id, refusal(503, "this runner is going away"))
        self._waiting.clear()
        try:
            async with asyncio.timeout(seconds):
                if self._playing:
                    self._idle = self._loop.create_future()
                    await self._idle
        except TimeoutError:
            log.warning(
                "the connection ended while %d passes were running; the engine invokes them again",
                len(self._playing),
            )
        channel = self._channel
        if channel is None:
            return
        channel.begin_close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.shield(channel.ended)
        except TimeoutError:
            channel.abort()

    def end(self) -> None:
        """The socket is gone, and with it everybody who waits for an answer."""
        for timer in (self._ping, self._watchdog):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        for playing in list(self._playing.values()):
            playing.abandon()
        self._playing.clear()
        self._ids.clear()

    # ----------------------------------------------------------------------------------------------

    def _greet(self, hello: dict[str, Json]) -> None:
        assert self._channel is not None
        theirs = range_of(hello)
        if common(OWN_RANGE, theirs) is None:
            self.failure = Incompatible(
                f"the engine speaks versions {theirs[0]} to {theirs[1]} of the protocol, "
                f"this SDK {OWN_RANGE[0]} to {OWN_RANGE[1]}"
            )
            self._channel.begin_close(1002, "no common version")
            return
        self._channel.send(self._terms.registration)
        self._terms.on_registered()
        heartbeat = hello.get("heartbeatMs")
        every = self._terms.ping_seconds
        if isinstance(heartbeat, int | float) and heartbeat > 0:
            every = min(every, heartbeat / 1000)
        if self._ping is None:
            self._ping = self._loop.call_later(every, self._send_ping, every)

    def _send_ping(self, every: float) -> None:
        assert self._channel is not None
        self._channel.send(_PING)
        if self._ids:
            # What is worked on may take any time, as long as the engine hears of it.
            told = {"type": "invoke.heartbeat", "payload": {"ids": list(self._ids.values())}}
            self._channel.send(encode(told))
        self._ping = self._loop.call_later(every, self._send_ping, every)
        # The watchdog counts from the first ping without an answer.
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._terms.pong_seconds, self._channel.abort)

    def _hear_misfit(self, message: bytes, error: Exception) -> None:
        """A message that is none of ours is left alone; an invoke deserves an answer."""
        try:
            told = _read_envelope(message)
        except msgspec.MsgspecError:
            return
        if told.type == "invoke" and told.id is not None:
            self._send(told.id, refusal(400, f"not an invoke: {error}"))

    def _admit(self, invoked: _Invoked) -> None:
        if self._is_draining:
            self._send(invoked.id, refusal(503, "this runner is going away"))
        elif len(self._playing) < PASSES_MAX:
            self._play(invoked)
        elif len(self._waiting) < PASSES_WAITING_MAX:
            if not self._waiting:
                log.warning(
                    "all %d passes that may run at once are running; further invokes wait",
                    len(self._playing),
                )
            self._waiting.append(invoked)
        else:
            self._send(invoked.id, refusal(503, "this runner has too many passes waiting"))

    def _play(self, invoked: _Invoked) -> None:
        self._count += 1
        answer = partial(self._answer, self._count, invoked.id)
        self._ids[self._count] = invoked.id
        store = self._terms.store
        if store is None or is_complete(invoked.payload):
            self._begin(self._count, invoked.payload, answer)
        else:
            self._playing[self._count] = _Completing(
                store, invoked.payload, partial(self._begin, self._count), answer
            )

    def _begin(self, number: int, invoke: Invoke, answer: Callable[[Reply], None]) -> None:
        terms = self._terms
        playing = begin(
            terms.app, invoke, answer, clock=terms.clock, store=terms.store, is_endless=True
        )
        if playing is not None:
            self._playing[number] = playing

    def _answer(self, number: int, id: str, reply: Reply) -> None:
        self._send(id, reply)
        self._playing.pop(number, None)
        self._ids.pop(number, None)
        if self._waiting and len(self._playing) < PASSES_MAX:
            self._play(self._waiting.popleft())
        if self._idle is not None and not self._playing and not self._idle.done():
            self._idle.set_result(None)

    def _send(self, id: str, reply: Reply) -> None:
        assert self._channel is not None
        message = _result(id, reply)
        if len(message) > MESSAGE_BYTES_MAX:
            message = _result(id, refusal(500, f"this reply: {too_large(len(message))}"))
        self._channel.send(message)


class _Completing:
    """A pass that cannot begin before the rest of its invoke has been fetched."""

    def __init__(
        self,
        store: ResultStore,
        invoke: Invoke,
        begin: Callable[[Invoke, Callable[[Reply], None]], None],
        answer: Callable[[Reply], None],
    ) -> None:
        self._store = store
        self._invoke = invoke
        self._begin = begin
        self._answer = answer
        self._task = asyncio.get_running_loop().create_task(self._run())

    def abandon(self) -> None:
        """End it without an answer."""
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._store.complete(self._invoke)
        except ResultError as error:
            log.warning("a pass cannot begin: %s", error)
            self._answer(refusal(500, str(error)))
        else:
            self._begin(self._invoke, self._answer)


def _result(id: str, reply: Reply) -> bytes:
    head = b'{"type":"invoke.result","id":%b,"payload":{"status":%d,"body":'
    return head % (encode(id), reply.status) + reply.body + b"}}"

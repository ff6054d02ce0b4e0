"""The WebSocket that a runner opens: a handshake, then passes out and results in."""

import asyncio
import logging
import re
from collections.abc import Coroutine
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.clock import Clock
from perdure.core.intake.definition import Manifest, read_manifest
from perdure.core.intake.definition import Runner as RunnerSelf
from perdure.core.limits import (
    PASS_BYTES_MAX,
    RUNNER_HEARTBEAT,
    RUNNER_REGISTER_TIMEOUT,
    RUNNER_STALE_AFTER,
    SECOND,
)
from perdure.core.push.apply_pass import error_of
from perdure.core.push.command import Broke
from perdure.core.rejection import Rejection
from perdure.core.run.history import encode
from perdure.core.run.state import TASK_KINDS, Dialect, Run
from perdure.dispatch.connected_runners import Call, ConnectedRunners, Runner
from perdure.dispatch.runner_invoker import OWNER_PREFIX, RunnerInvoker
from perdure.engine.beat import Engine
from perdure.engine.registration import RegisterRunner, RenewRunner, RunnerLink, link_key
from perdure.identity import IdSource
from perdure.protocols.durablex.invoke import PassBody, ResultLost, body_of, does_not_fit, reply_of
from perdure.protocols.durablex.json_depth import find_obstacle
from perdure.protocols.durablex.version import PROTOCOL_VERSION, speaks_ours
from perdure.store.interface import QueueKey, Unavailable
from perdure.web import frames
from perdure.web.message import Request, Response
from perdure.web.websocket import WebSocket, upgrade

log = logging.getLogger(__name__)

SUBPROTOCOLS = ("duraton.connect.v0", "durablex.connect.v0")
_FRAME_BYTES = 100
"""The bytes that an envelope adds to the body of a pass, at most."""


class _Envelope(Struct):
    type: str
    id: str | None = None
    payload: Raw = Raw(b"null")


class _Result(Struct):
    status: int
    body: Raw = Raw(b"{}")


class _Heartbeat(Struct):
    ids: list[str]


_HEAD_BYTES = 256
_ID = re.compile(rb'"id"\s*:\s*"([\w-]{1,64})"', re.ASCII)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_heartbeat_decoder = msgspec.json.Decoder(_Heartbeat)
_result_decoder = msgspec.json.Decoder(_Result)

_HELLO = encode(
    {
        "type": "hello",
        "payload": {
            "protocolVersion": PROTOCOL_VERSION,
            "minProtocolVersion": PROTOCOL_VERSION,
            "maxProtocolVersion": PROTOCOL_VERSION,
            "heartbeatMs": RUNNER_HEARTBEAT * 1000 // SECOND,
        },
    }
)
_PONG = b'{"type":"pong"}'


class Connect:
    """The runners that have a socket to this node."""

    def __init__(
        self,
        engine: Engine,
        invoker: RunnerInvoker,
        runners: ConnectedRunners,
        clock: Clock,
        ids: IdSource,
        *,
        node_id: str,
    ) -> None:
        self.engine = engine
        self.invoker = invoker
        self.runners = runners
        self.node_id = node_id
        self._clock = clock
        self._ids = ids
        self.sessions: set[Session] = set()
        self._sending: set[asyncio.Task[None]] = set()

    async def connect(self, request: Request) -> Response:
        """GET /connect."""
        session = Session(self, request.namespace, self._ids.ulid())
        return upgrade(
            request,
            session,
            protocols=SUBPROTOCOLS,
            bytes_max=PASS_BYTES_MAX,
            ping_seconds=RUNNER_HEARTBEAT / SECOND,
        )

    def spawn(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def close(self) -> None:
        for task in self._sending:
            task.cancel()

    async def run(self) -> None:
        """Renew the records of the connected runners, for as long as the server lives."""
        while True:
            await self._clock.sleep(RUNNER_STALE_AFTER // 3)
            for session in list(self.sessions):
                session.seen()


class Session:
    """One socket of one runner."""

    def __init__(self, plane: Connect, namespace: str, link_id: str) -> None:
        self._plane = plane
        self._namespace = namespace
        self._link_id = link_id
        self._socket: WebSocket
        self._runner: Runner | None = None
        self._calls: dict[str, Call] = {}
        self._registration_timer: asyncio.TimerHandle | None = None
        self._is_lost = False
        self._is_leaving = False

    # The socket ----------------------------------------------------------------------------------

    def opened(self, socket: WebSocket) -> None:
        self._socket = socket
        self._plane.sessions.add(self)
        socket.on_writable = self._dispatch
        socket.send(_HELLO)
        loop = asyncio.get_running_loop()
        self._registration_timer = loop.call_later(
            RUNNER_REGISTER_TIMEOUT / SECOND, self._end_unregistered
        )

    def received(self, message: bytes) -> None:
        obstacle = find_obstacle(message)
        if obstacle is not None:
            self._refuse_unreadable(message, obstacle)
            return
        try:
            envelope = _envelope_decoder.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Unknown messages of newer peers are ignored.
            return
        if envelope.type == "invoke.result":
            self._take_result(envelope)
        elif envelope.type == "ping":
            self._socket.send(_PONG)
        elif envelope.type == "runner.register":
            self._is_leaving = False
            self._register(bytes(envelope.payload))
        elif envelope.type == "invoke.heartbeat":
            self._read_heartbeat(envelope)
        elif envelope.type == "runner.leave":
            self._begin_leaving()

    def lost(self) -> None:
        self._is_lost = True
        self._plane.sessions.discard(self)
        if self._registration_timer is not None:
            self._registration_timer.cancel()
        if self._runner is not None:
            self._leave(self._runner)

    def _end_unregistered(self) -> None:
        if self._runner is None:
            self._socket.close(frames.PROTOCOL_ERROR, "no registration came")

    # Registration --------------------------------------------------------------------------------

    def _register(self, payload: bytes) -> None:
        try:
            registration = msgspec.json.decode(payload)
            if not speaks_ours(registration):
                self._socket.close(frames.POLICY, f"this engine speaks version {PROTOCOL_VERSION}")
                return
            manifest = read_manifest(registration, with_url=False)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._socket.close(frames.POLICY, "the registration is not JSON")
            return
        except Rejection as refused:
            self._socket.close(frames.POLICY, refused.message)
            return
        known = self._runner
        if known is not None and known.key.queue != manifest.app:
            self._socket.close(frames.PROTOCOL_ERROR, "a socket is for one app")
            return
        url = f"conn://{self._link_id}"
        operation = RegisterRunner(
            self._namespace,
            manifest,
            runner_id=manifest.runner_id or url,
            link_id=self._link_id,
            url=url,
        )
        try:
            decided = self._plane.engine.submit(operation)
        except Unavailable as error:
            self._socket.close(frames.TRY_LATER, error.message)
            return
        decided.add_done_callback(lambda future: self._registered(manifest, future))

    def _registered(self, manifest: Manifest, decided: "asyncio.Future[RunnerLink]") -> None:
        error = None if decided.cancelled() else decided.exception()
        if decided.cancelled() or isinstance(error, Unavailable):
            self._socket.close(frames.TRY_LATER, "the engine cannot take registrations now")
            return
        if isinstance(error, Rejection):
            self._socket.close(frames.POLICY, error.message)
            return
        if error is not None:
            self._socket.close(frames.INTERNAL, "internal error of the engine")
            return
        link = decided.result()
        if self._is_lost or self._is_leaving:
            self._mark_lost(link.app, link.runner_id)
            return
        runners, previous = self._plane.runners, self._runner
        self._runner = Runner(
            QueueKey(self._namespace, link.app, TASK_KINDS[Dialect.PUSH]),
            owner=f"{OWNER_PREFIX}{self._plane.node_id}:{self._link_id}",
            runner_id=link.runner_id,
            workflows=frozenset(link.workflows),
            link=self,
            send=self._plane.invoker.send,
            is_impatient=is_impatient(manifest.runner),
            fetches_results=manifest.runner.offload is True,
        )
        if previous is not None:
            # The same runner registered again. Its passes in progress continue.
            self._runner.in_flight = previous.in_flight
            runners.remove(previous)
            for call in self._calls.values():
                call.runner = self._runner
        try:
            runners.add(self._runner)
        except Unavailable as full:
            self._socket.close(frames.TRY_LATER, full.message)

    def seen(self) -> None:
        """Renew the record of the runner."""
        runner = self._runner
        if runner is not None and not self._is_leaving:
            key = link_key(runner.key.queue, runner.runner_id, self._link_id)
            self._plane.engine.send(RenewRunner(self._namespace, key, is_live=True))

    def _begin_leaving(self) -> None:
        """The runner will stop: it answers its passes in progress and gets no new ones."""
        self._is_leaving = True
        runner = self._runner
        if runner is not None and not runner.is_gone:
            self._plane.runners.remove(runner)
            self._mark_lost(runner.key.queue, runner.runner_id)

    def _leave(self, runner: Runner) -> None:
        self._plane.runners.remove(runner)
        self._calls.clear()
        self._plane.invoker.lost(runner, "the socket of the runner closed")
        self._mark_lost(runner.key.queue, runner.runner_id)

    def _mark_lost(self, app: str, runner_id: str) -> None:
        key = link_key(app, runner_id, self._link_id)
        self._plane.engine.send(RenewRunner(self._namespace, key, is_live=False))

    def _dispatch(self) -> None:
        if self._runner is not None:
            self._plane.runners.look_for(self._runner.key)

    # Passes --------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        return self._socket.is_writable and self._socket.is_open

    def carry(self, call: Call, run: Run) -> None:
        runner = call.runner
        body = body_of(
            run,
            is_impatient=runner.is_impatient,
            timeout=call.timeout,
            fetches_results=runner.fetches_results,
        )
        call.has_pending = body.has_pending
        if body.size + _FRAME_BYTES > PASS_BYTES_MAX:
            # The runner would close the socket, connect again, and receive the same pass again.
            self._plane.invoker.finish(call, does_not_fit(PASS_BYTES_MAX))
        elif body.is_whole:
            self._send(call, body.data)
        else:
            self._plane.spawn(self._read_and_send(call, body))

    async def _read_and_send(self, call: Call, body: PassBody) -> None:
        """Send a pass to a runner that is sent stored results inline."""
        try:
            data = await body.read(self._plane.engine.store, call.namespace)
        except (ResultLost, Unavailable) as error:
            self._plane.invoker.finish(call, Broke(error=error_of(str(error)), logs=[]))
            return
        if not call.is_over:
            self._send(call, data)

    def _send(self, call: Call, body: bytes) -> None:
        self._calls[call.call_id] = call
        self._socket.send(
            b'{"type":"invoke","id":"%b","payload":%b}' % (call.call_id.encode(), body)
        )

    def _refuse_unreadable(self, message: bytes, obstacle: str) -> None:
        """Finish the pass that an unreadable message names at its beginning, if it names one."""
        named = _ID.search(message, 0, _HEAD_BYTES)
        call = None if named is None else self._calls.pop(named[1].decode(), None)
        if call is not None:
            self._plane.invoker.finish(call, reply_of(206, message))
        elif self._runner is None:
            self._socket.close(frames.POLICY, f"the registration cannot be read: {obstacle}")

    def _read_heartbeat(self, envelope: _Envelope) -> None:
        """Read a heartbeat, which names the passes that the runner works on."""
        try:
            heartbeat = _heartbeat_decoder.decode(envelope.payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        for call_id in heartbeat.ids:
            call = self._calls.get(call_id)
            if call is not None:
                self._plane.invoker.heard_of(call)

    def _take_result(self, envelope: _Envelope) -> None:
        call = self._calls.pop(envelope.id or "", None)
        if call is None:
            # A late or repeated result.
            return
        try:
            result = _result_decoder.decode(envelope.payload)
        except msgspec.DecodeError:
            result = _Result(500, Raw(b'{"error":"the answer of the runner cannot be read"}'))
        self._plane.invoker.finish(call, reply_of(result.status, bytes(result.body)))


def is_impatient(runner: RunnerSelf) -> bool:
    """Whether a runner sends no answer while all steps that its code waits for are in progress.

    The published Python runner behaves so up to 0.1.2, and later ones may not report a fix.
    """
    return runner.sdk_name == "duraton" and runner.language == "python"

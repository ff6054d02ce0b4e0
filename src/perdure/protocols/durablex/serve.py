"""Runners that serve HTTP: they register their URL periodically, and the engine posts passes."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from perdure.clock import Clock
from perdure.core.intake.definition import read_departure, read_manifest
from perdure.core.intake.signature import HEADERS, fingerprint, sign
from perdure.core.limits import (
    PASS_BYTES_MAX,
    RUNNER_STALE_AFTER,
    RUNNERS_MAX,
    SECOND,
    SERVED_PASS_BYTES_MAX,
)
from perdure.core.push.apply_pass import error_of
from perdure.core.push.command import Broke, Lost, PassReply, Refused, StepError, Unreached
from perdure.core.run.state import TASK_KINDS, Dialect, Run
from perdure.dispatch.connected_runners import Call, ConnectedRunners, Runner
from perdure.dispatch.egress import Blocked, RunnerGuard, read_target
from perdure.dispatch.runner_invoker import OWNER_PREFIX, RunnerInvoker
from perdure.engine.beat import Engine
from perdure.engine.registration import RUNNER, LeaveRunner, RegisterRunner, RunnerLink
from perdure.protocols.durablex.connect import is_impatient
from perdure.protocols.durablex.invoke import (
    PassBody,
    ResultLost,
    body_of,
    does_not_fit,
    reply_over_http,
)
from perdure.protocols.durablex.requests import read_body
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.protocols.durablex.version import PROTOCOL_VERSION, speaks_ours
from perdure.store.interface import QueueKey, Unavailable
from perdure.web.client import (
    AnswerTooLarge,
    ClientError,
    ConnectionLost,
    HttpClient,
    Unreachable,
)
from perdure.web.message import HttpError, Request, Response

log = logging.getLogger(__name__)

HEARTBEAT = 30 * SECOND
_REFRESH = 10 * SECOND
_MARGIN_SECONDS = 5
"""Time beyond the timeout of a pass for which its connection stays open for the answer."""
_VERSIONS = {"X-Durablex-Protocol": "1", "X-Duraton-Protocol": "1"}

Place = tuple[str, str, str, str]
"""Namespace, app, runner id and URL."""


_register_decoder: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder()


class Serve:
    """The runners with a URL that this node has loaded."""

    def __init__(
        self,
        engine: Engine,
        invoker: RunnerInvoker,
        runners: ConnectedRunners,
        clock: Clock,
        surface: DurablexSurface,
        *,
        node_id: str,
        signing_key: str | None,
        guard: RunnerGuard,
        warns_of_addresses: bool,
        namespaces: set[str],
    ) -> None:
        self.invoker = invoker
        self.client = HttpClient(self._addresses)
        self._guard = guard
        self._warns = warns_of_addresses
        self.clock = clock
        self.signing_key = signing_key
        self.engine = engine
        self._runners = runners
        self._surface = surface
        self._node_id = node_id
        self._namespaces = namespaces
        # Notifies other nodes of a registration, a change or a departure.
        self.on_served: Callable[[str], None] = lambda namespace: None
        self._refresh_requested = asyncio.Event()
        self._links: dict[Place, Endpoint] = {}
        # Runners with another signing key than this server. They would refuse every pass.
        self._mistrusted: set[Place] = set()
        self._posting: set[asyncio.Task[None]] = set()

    async def register(self, request: Request) -> Response:
        """POST /register."""
        registration = read_body(request, _register_decoder)
        if not speaks_ours(registration):
            message = f"this engine speaks protocol version {PROTOCOL_VERSION}"
            raise HttpError(400, "protocol_mismatch", message)
        manifest = read_manifest(registration, with_url=True)
        assert manifest.url is not None
        self._check_address(manifest.url)
        link: RunnerLink = await self.engine.submit(
            RegisterRunner(
                request.namespace,
                manifest,
                runner_id=manifest.runner_id or manifest.url,
                link_id=manifest.url,
                url=manifest.url,
            )
        )
        if self._apply(request.namespace, link):
            self.on_served(request.namespace)
        answer = {
            "ok": True,
            "app": link.app,
            "runner": link.runner_id,
            "protocolVersion": PROTOCOL_VERSION,
            "heartbeatMs": HEARTBEAT * 1000 // SECOND,
        }
        return self._surface.answer(200, answer)

    async def deregister(self, request: Request) -> Response:
        """POST /deregister."""
        departure = read_departure(read_body(request, _register_decoder))
        namespace = request.namespace
        if await self.engine.submit(LeaveRunner(namespace, departure)):
            self._remove((namespace, departure.app, departure.runner_id, departure.url))
            self.on_served(namespace)
        return self._surface.answer(200, {"ok": True})

    def refresh_soon(self) -> None:
        """Refresh now: another node reports a registration, a change or a departure."""
        self._refresh_requested.set()

    def _check_address(self, url: str) -> None:
        try:
            self._guard.require_possible(url)
        except Blocked as error:
            raise HttpError(400, "runner_address_refused", f"url: {error}") from None
        if self._warns and not self._guard.is_restricted:
            self._warns = False
            log.warning(
                "a runner at %s registered; set PERDURE_RUNNER_ALLOW to limit where registrations "
                "may make this server post to",
                read_target(url).authority,
            )

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            return await self._guard.addresses(host, port)
        except Blocked as error:
            raise Unreachable(str(error)) from None

    async def run(self) -> None:
        """Refresh the runners from the store periodically, for as long as the server lives."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                log.info(
                    "loading the runners that serve HTTP failed; retrying in 10 s: %s",
                    error.message,
                )
            await self._wait_for_refresh()

    async def look(self) -> None:
        """Load the registrations of all nodes; add and remove runners to match them."""
        stale = self.clock.now() - RUNNER_STALE_AFTER
        live: set[Place] = set()
        for namespace in list(self._namespaces):
            found = await RUNNER.read_page(self.engine.store, namespace, limit=RUNNERS_MAX)
            for _, link in found:
                if link.is_live and link.seen_at > stale and "://" in link.link_id:
                    live.add((namespace, link.app, link.runner_id, link.url))
                    self._apply(namespace, link)
        for place in [place for place in self._links if place not in live]:
            self._remove(place)
        self._mistrusted &= live

    async def _wait_for_refresh(self) -> None:
        timer = asyncio.ensure_future(self.clock.sleep(_REFRESH))
        called = asyncio.ensure_future(self._refresh_requested.wait())
        try:
            await asyncio.wait({timer, called}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            called.cancel()
            self._refresh_requested.clear()

    def _apply(self, namespace: str, link: RunnerLink) -> bool:
        """Apply a registration. Returns whether it changes the runners of this node."""
        place = (namespace, link.app, link.runner_id, link.url)
        known = self._links.get(place)
        if self._is_mistrusted(link):
            if place not in self._mistrusted:
                message = "runner %s of app %s has another signing key and gets no passes"
                log.warning(message, link.runner_id, link.app)
            self._mistrusted.add(place)
            self._remove(place)
            return known is not None
        self._mistrusted.discard(place)
        workflows = frozenset(link.workflows)
        fetches = link.told.offload is True
        if known is not None and (known.runner.workflows, known.runner.fetches_results) == (
            workflows,
            fetches,
        ):
            if link.registered_at > known.registered_at:
                # A new registration ends the state of being unreachable.
                known.registered_at = link.registered_at
                self._runners.wake(known.runner)
            return False
        endpoint = self._links[place] = Endpoint(self, link.url, link.registered_at)
        endpoint.runner = Runner(
            QueueKey(namespace, link.app, TASK_KINDS[Dialect.PUSH]),
            owner=f"{OWNER_PREFIX}{self._node_id}:{link.url}"[:200],
            runner_id=link.runner_id,
            workflows=workflows,
            link=endpoint,
            send=self.invoker.send,
            is_impatient=is_impatient(link.told),
            fetches_results=fetches,
        )
        if known is not None:
            self._runners.remove(known.runner)
        self._runners.add(endpoint.runner)
        return True

    def _is_mistrusted(self, link: RunnerLink) -> bool:
        key_fingerprint = link.told.key_fingerprint
        return None not in (key_fingerprint, self.signing_key) and key_fingerprint != fingerprint(
            self.signing_key or ""
        )

    def _remove(self, place: Place) -> None:
        """Remove a runner: it gets no new passes. Those in progress continue."""
        endpoint = self._links.pop(place, None)
        if endpoint is not None:
            self._runners.remove(endpoint.runner)

    def spawn(self, posting: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(posting)
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)

    def close(self) -> None:
        for task in self._posting:
            task.cancel()
        self.client.close()


class Endpoint:
    """One URL of one runner."""

    is_writable = True

    def __init__(self, plane: Serve, url: str, registered_at: int) -> None:
        self._plane = plane
        self._url = url
        self.registered_at = registered_at
        self.runner: Runner

    def carry(self, call: Call, run: Run) -> None:
        runner = call.runner
        body = body_of(
            run,
            is_impatient=runner.is_impatient,
            timeout=call.timeout,
            fetches_results=runner.fetches_results,
        )
        call.has_pending = body.has_pending
        if body.size > SERVED_PASS_BYTES_MAX:
            self._plane.invoker.finish(call, does_not_fit(SERVED_PASS_BYTES_MAX))
            return
        self._plane.spawn(self._post(call, body))

    async def _post(self, call: Call, memo: PassBody) -> None:
        headers = dict(_VERSIONS)
        plane = self._plane
        try:
            body = await memo.read(plane.engine.store, call.namespace)
        except (ResultLost, Unavailable) as error:
            plane.invoker.finish(call, Broke(error=error_of(str(error)), logs=[]))
            return
        if plane.signing_key:
            signature = sign(plane.signing_key, body, plane.clock.now() // SECOND)
            headers |= dict.fromkeys(HEADERS, signature)
        reply: PassReply
        try:
            async with asyncio.timeout(call.timeout / SECOND + _MARGIN_SECONDS):
                status, answer = await plane.client.post(
                    self._url, body, headers, bytes_max=PASS_BYTES_MAX
                )
            answer.decode()
            reply = reply_over_http(status, answer)
        except AnswerTooLarge as error:
            # A retry would only repeat the effects of the steps.
            reply = Refused(error=error_of(str(error)), logs=[])
        except Unreachable as error:
            reply = Unreached(error=self._error(error))
        except ConnectionLost as error:
            reply = Lost(error=self._error(error))
        except (ClientError, TimeoutError, UnicodeDecodeError) as error:
            reply = Broke(error=self._error(error), logs=[])
        plane.invoker.finish(call, reply)

    def _error(self, error: Exception) -> StepError:
        return error_of(f"the runner at {self._url}: {error}")

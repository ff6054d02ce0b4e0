"""A push run with everything in it, for a runner that is never tired of dialling again.

The code of the runner is a function of what each pass tells it. It notes how often it ran a step,
and insists that what the engine once knew is known in every later pass. Whoever drives the run
sends its events under the same identity until they are answered. So whatever happens to the engines
meanwhile, what comes out is always the same.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidMessage, WebSocketException
from websockets.typing import Subprotocol

Json = dict[str, Any]

APP = "shop"
STEPS = ["charge", "nap", "paid", "kid", "shipped", "tell"]
"""What the run must have done in the end, each once."""
LARGE = "." * 70_000
"""What makes a result one that is stored apart."""
LOST = (OSError, httpx.HTTPError, WebSocketException, InvalidHandshake, InvalidMessage)


def step_id(name: str) -> str:
    return sha256(name.encode()).hexdigest()


class Code:
    """What a runner does: a function of what a pass tells it."""

    workflows: tuple[Json, ...]

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        self.hook_url = ""
        self._known: dict[tuple[str, str], Json] = {}

    def play(self, told: Json) -> tuple[int, Json]:
        """The answer to a pass."""
        run_id, memo = told["ctx"]["runId"], told["steps"]
        for (owner, name), value in self._known.items():
            assert owner != run_id or memo.get(name) == value, f"{name} was known, and is no more"
        for name, value in memo.items():
            if "data" in value:
                self._known[run_id, name] = value
        found = self.found(told["ctx"], memo)
        if isinstance(found, list):
            return 206, {"opcodes": found, "logs": []}
        return 200, {"data": found, "logs": []}

    def found(self, context: Json, memo: Json) -> object:
        """The steps at which the code stands, or its result."""
        raise NotImplementedError

    def opcode(self, step: Json) -> Json:
        """A step, with what came of it if that is known here."""
        told = {**step, "id": step_id(step["name"])}
        if step["op"] == "StepRun":
            self.executed[step["name"]] += 1
            # Another execution has another result, so that nobody can take one for the other.
            told["data"] = f"{step['name']} {self.executed[step['name']]}"
        return told


class OrderCode(Code):
    """The order and its kid. On a voyage both have large results, and the order uploads its own."""

    workflows = ({"name": "order"}, {"name": "kid", "triggers": []})

    def __init__(self) -> None:
        super().__init__()
        self.upload: Callable[[str, bytes], Json | None] = lambda run_id, data: None
        """Uploads a result for a run; None if that was not possible."""
        self.padding = ""
        self._run_id = ""

    def opcode(self, step: Json) -> Json:
        told = super().opcode(step)
        if step["name"] in ("charge", "work"):
            told["data"] += self.padding
        if step["name"] == "charge":
            ref = self.upload(self._run_id, json.dumps(told["data"]).encode())
            if ref is not None:
                del told["data"]
                told["dataRef"] = ref
        return told

    def found(self, context: Json, memo: Json) -> object:
        self._run_id = context["runId"]
        return self._kid(memo) if context["workflow"] == "kid" else self._order(memo)

    def _order(self, memo: Json) -> object:
        stages: list[list[Json]] = [
            [{"op": "StepRun", "name": "charge"}],
            [
                {"op": "Sleep", "name": "nap", "sleepMs": 30},
                {"op": "WaitForEvent", "name": "paid", "eventName": "paid", "timeoutMs": 90_000},
            ],
            [{"op": "RunWorkflow", "name": "kid", "childName": "kid"}],
            [
                {"op": "Emit", "name": "shipped", "eventName": "shipped"},
                {"op": "Webhook", "name": "tell", "webhookUrl": self.hook_url, "data": {"n": 1}},
            ],
        ]
        for stage in stages:
            if not all("data" in memo.get(step_id(step["name"]), {}) for step in stage):
                return [self.opcode(step) for step in stage if step_id(step["name"]) not in memo]
        return {name: memo[step_id(name)]["data"] for name in STEPS}

    def _kid(self, memo: Json) -> object:
        known = memo.get(step_id("work"))
        return [self.opcode({"op": "StepRun", "name": "work"})] if known is None else known["data"]


class PushVoyage:
    """One run, its runner, and who is told of it.

    `next_life` is called when an engine has gone away, and returns the address of the next one.
    `on_pass` and `on_post` are called when a pass or a webhook has arrived and is not answered yet.
    """

    def __init__(
        self,
        url: str,
        next_life: Callable[[], str],
        *,
        transport: str,
        code: Code | None = None,
    ) -> None:
        self.url = url
        self.on_pass: Callable[[int], None] = lambda count: None
        self.on_post: Callable[[int], None] = lambda count: None
        self.posts: list[tuple[str, Json]] = []
        """Webhooks that arrived: their ids and what they say."""
        self._next_life = next_life
        self._transport = transport
        self._reviving = asyncio.Lock()
        self._passes = 0
        self._code = code or OrderCode()
        if isinstance(self._code, OrderCode):
            self._code.upload, self._code.padding = self._upload, LARGE
        self._http: httpx.AsyncClient

    async def sail(self) -> Json:
        """From the registration of the runner to the end of the run, told by the last engine."""
        limits = httpx.Limits(max_keepalive_connections=0)
        client = httpx.AsyncClient(trust_env=False, verify=False, timeout=90, limits=limits)
        async with client as self._http, self._receiving(), self._running():
            return await self.play()

    async def play(self) -> Json:
        """What happens while the runner is there."""
        await self.call("POST", "/events", {"name": "order", "dedupeId": "start"})
        [run] = await self.rows("/runs?workflow=order")
        path = f"/runs/{run['id']}"
        await self.until(path, lambda shown: shown["status"] == "waiting")
        await self.call("POST", "/events", {"name": "paid", "dedupeId": "paid", "data": {"sum": 5}})
        shown = await self.until(path, lambda shown: "endedAt" in shown)
        await self.until(
            "/webhook-deliveries",
            lambda rows: all(one["status"] == "succeeded" for one in rows),
        )
        events = {event["name"]: event for event in await self.rows("/events")}
        return {
            "run": shown,
            "steps": [(step["name"], step["status"]) for step in await self.rows(f"{path}/steps")],
            "events": sorted(one["name"] for one in await self.rows("/events")),
            "woke": events["paid"]["woke"],
            "runs": sorted(one["workflowName"] for one in await self.rows("/runs")),
            "deliveries": [
                (one["id"], one["status"]) for one in await self.rows("/webhook-deliveries")
            ],
        }

    # Asking --------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: Json | None = None) -> Any:
        """Until somebody answers."""
        while True:
            url = self.url
            try:
                answer = await self._http.request(method, url + path, json=body)
                if answer.status_code < 500:
                    assert answer.status_code < 300, answer.text
                    return answer.json()
            except LOST:
                await self._revive(url)

    async def rows(self, path: str) -> list[Json]:
        found: list[Json] = await self.call("GET", path)
        return found

    async def until(self, path: str, condition: Callable[[Any], bool]) -> Any:
        while True:
            shown = await self.call("GET", path)
            if condition(shown):
                return shown
            await asyncio.sleep(0.03)

    async def _revive(self, url: str) -> None:
        """Somebody got no answer from this address."""
        async with self._reviving:
            if url == self.url:
                self.url = await asyncio.to_thread(self._next_life)

    def _upload(self, run_id: str, data: bytes) -> Json | None:
        """Store a large result, if the engine is there. It is reported inline otherwise."""
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Durablex-Payload-Sha256": sha256(data).hexdigest(),
        }
        try:
            url = f"{self.url}/payloads?run={run_id}"
            answer = httpx.post(url, content=data, headers=headers, timeout=90, trust_env=False)
        except LOST:
            return None
        ref: Json | None = answer.json()["ref"] if answer.status_code == 201 else None
        return ref

    # Being told ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _receiving(self) -> AsyncIterator[None]:
        async def receive(head: str, body: bytes) -> tuple[int, bytes]:
            [told] = [line for line in head.split("\r\n") if "x-durablex-delivery" in line.lower()]
            self.posts.append((told.partition(": ")[2], json.loads(body)))
            self.on_post(len(self.posts))
            return 200, b"{}"

        async with _listening(receive) as port:
            self._code.hook_url = f"http://127.0.0.1:{port}/hook"
            yield

    # Running -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        manifest = {"app": APP, "runner": "r1", "workflows": list(self._code.workflows)}
        if self._transport == "connect":
            dialling = asyncio.create_task(self._dial(manifest))
            try:
                await self.until("/workflows", lambda rows: len(rows) == len(self._code.workflows))
                yield
            finally:
                dialling.cancel()
                await asyncio.wait([dialling])
            return

        async def serve(head: str, body: bytes) -> tuple[int, bytes]:
            status, told = self._play(json.loads(body))
            return status, json.dumps(told).encode()

        async with _listening(serve) as port:
            url = f"http://127.0.0.1:{port}/invoke"
            await self.call("POST", "/register", {**manifest, "url": url})
            yield

    async def _dial(self, manifest: Json) -> None:
        while True:
            url = self.url
            try:
                async with connect(
                    url.replace("http", "ws") + "/connect",
                    subprotocols=[Subprotocol("durablex.connect.v0")],
                    proxy=None,
                ) as socket:
                    await socket.recv()
                    await socket.send(json.dumps({"type": "runner.register", "payload": manifest}))
                    async for frame in socket:
                        told = json.loads(frame)
                        if told["type"] == "invoke":
                            status, body = self._play(told["payload"])
                            payload = {"status": status, "body": body}
                            reply = {"type": "invoke.result", "id": told["id"], "payload": payload}
                            await socket.send(json.dumps(reply))
            except LOST:
                pass
            await self._revive_if_gone(url)

    async def _revive_if_gone(self, url: str) -> None:
        try:
            await self._http.get(url + "/healthz")
        except LOST:
            await self._revive(url)

    def _play(self, told: Json) -> tuple[int, Json]:
        self._passes += 1
        self.on_pass(self._passes)
        return self._code.play(told)


@contextlib.asynccontextmanager
async def _listening(
    answer: Callable[[str, bytes], Any],
) -> AsyncIterator[int]:
    """A plain server of posts. Who hangs up meanwhile has no answer."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                status, body = await answer(head, await reader.readexactly(length))
                told = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(told.encode() + body)
                await writer.drain()
        writers.discard(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        # One turn, so that what they still read ends.
        await asyncio.sleep(0)

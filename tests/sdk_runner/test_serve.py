"""The Serve transport: as an ASGI application, and with a server of its own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvloop

from perdure.sdk import App, Context, Endpoint, serving, workflow
from perdure.sdk.http_server import Server
from perdure.sdk.limits import INVOKE_BYTES_MAX
from perdure.sdk.signature import fingerprint, sign
from tests.sdk_runner.contract import check_registration, check_reply
from tests.sdk_runner.played import body_of, done

LIMIT_SECONDS = 30
NOW_SECONDS = 1718900000


async def echo(ctx: Context) -> object:
    return await ctx.step.run("echo", lambda: ctx.event.data)


APP = App("shop", [workflow("echo")(echo)])


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await story()

    uvloop.run(main())


@dataclass
class Registry:
    """The engine's `/register` and `/deregister`, and what arrived there."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    told: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    left: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    heads: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                told = json.loads(await reader.readexactly(length))
                if head.startswith("POST /deregister "):
                    self.left.put_nowait(told)
                else:
                    check_registration(told, has_url=True)
                    self.heads.append(head)
                    self.told.put_nowait(told)
                status = self.answers.pop(0) if self.answers else 200
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 11\r\n\r\n" % status)
                writer.write(b'{"ok":true}')
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def a_registry(*answers: int) -> AsyncIterator[Registry]:
    registry = Registry(answers=list(answers))
    server = await asyncio.start_server(registry.serve, "127.0.0.1", 0)
    registry.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield registry
    finally:
        server.close()


@contextlib.asynccontextmanager
async def mounted(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an endpoint that is mounted as an ASGI application."""
    endpoint = Endpoint(
        APP,
        url="http://here/invoke",
        engine_url="http://127.0.0.1:1",
        clock=lambda: NOW_SECONDS * 1000,
        **options,
    )
    transport = httpx.ASGITransport(endpoint)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client


def test_an_engine_drives_a_pass_by_plain_http() -> None:
    async def story() -> None:
        async with mounted() as client:
            first = await client.post("/invoke", json=body_of("echo", data={"n": 1}))
            check_reply(first.status_code, first.json())
            assert first.status_code == 206
            assert first.json()["opcodes"][0]["data"] == {"n": 1}
            last = await client.post(
                "/anywhere",
                json=body_of("echo", {"echo": done(5)}),
                headers={"x-duraton-protocol": "1"},
            )
            assert (last.status_code, last.json()) == (200, {"data": 5, "logs": []})
            assert last.headers["content-type"] == "application/json"

    run(story)


@pytest.mark.parametrize("name", ["X-Durablex-Protocol", "X-Duraton-Protocol"])
@pytest.mark.parametrize(("version", "status"), [("1", 206), (" 1 ", 206), ("2", 400), ("x", 400)])
def test_another_version_is_refused(name: str, version: str, status: int) -> None:
    async def story() -> None:
        async with mounted() as client:
            answer = await client.post("/", json=body_of("echo"), headers={name: version})
            assert answer.status_code == status

    run(story)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"event":{},"steps":[],"ctx":{}}',
        b'{"event":1,"steps":{},"ctx":{}}',
        b'{"event":{"name":1},"steps":{},"ctx":{}}',
        b'{"event":{},"steps":{"a":{"error":"x"}},"ctx":{}}',
        b'{"event":{},"steps":{},"ctx":{"attempt":"1"}}',
        b"\xff",
    ],
)
def test_what_is_no_invoke_is_refused(body: bytes) -> None:
    async def story() -> None:
        async with mounted() as client:
            answer = await client.post("/", content=body)
            check_reply(answer.status_code, answer.json())
            assert answer.status_code == 400
            assert (await client.get("/")).status_code == 405

    run(story)


def test_with_a_key_only_signed_invokes_are_answered() -> None:
    async def story() -> None:
        body = json.dumps(body_of("echo")).encode()
        good = sign("secret", body, NOW_SECONDS - 10)
        async with mounted(signing_key="secret") as client:
            for headers, status, told in [
                ({"X-Durablex-Signature": good}, 206, None),
                ({"X-Duraton-Signature": good}, 206, None),
                ({}, 401, "missing_signature"),
                ({"X-Durablex-Signature": "t=1"}, 401, "malformed_signature"),
                (
                    {"X-Durablex-Signature": sign("secret", body, NOW_SECONDS - 301)},
                    401,
                    "timestamp_out_of_tolerance",
                ),
                (
                    {"X-Durablex-Signature": sign("other", body, NOW_SECONDS)},
                    401,
                    "signature_mismatch",
                ),
            ]:
                answer = await client.post("/", content=body, headers=headers)
                assert answer.status_code == status
                assert answer.json().get("error") == told

    run(story)


def test_an_invoke_has_a_largest_size() -> None:
    async def story() -> None:
        async with mounted() as client:
            answer = await client.post("/", content=b"x" * (INVOKE_BYTES_MAX + 1))
            assert answer.status_code == 413

    run(story)


def test_the_lifespan_of_an_application_registers_until_its_end() -> None:
    async def story() -> None:
        async with a_registry() as registry:
            endpoint = Endpoint(
                APP,
                url="http://here/invoke",
                engine_url=registry.url,
                api_key="k",
                signing_key="s",
                runner="node-7",
                framework="starlette",
                heartbeat_seconds=0.001,
            )
            inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
            outbox: asyncio.Queue[Any] = asyncio.Queue()
            living = asyncio.ensure_future(endpoint({"type": "lifespan"}, inbox.get, outbox.put))
            inbox.put_nowait({"type": "lifespan.startup"})
            assert (await outbox.get())["type"] == "lifespan.startup.complete"
            for _ in range(3):  # the heartbeat
                told = await registry.told.get()
                assert (told["url"], told["runner"]) == ("http://here/invoke", "node-7")
                assert (told["framework"], told["keyFingerprint"]) == (
                    "starlette",
                    fingerprint("s"),
                )
            assert "authorization: Bearer k" in registry.heads[0]
            inbox.put_nowait({"type": "lifespan.shutdown"})
            assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
            await living
            assert registry.left.get_nowait() == {
                "app": "shop",
                "runner": "node-7",
                "url": "http://here/invoke",
                "instance": told["instance"],
            }

    run(story)


def test_registering_goes_on_until_the_engine_agrees() -> None:
    async def story() -> None:
        async with a_registry(503, 400, 500) as registry:
            endpoint = Endpoint(
                APP, url="http://here", engine_url=registry.url, retry_seconds=0.001
            )
            async with endpoint:
                await endpoint.registered.wait()
                assert registry.told.qsize() == 4

    run(story)


def test_a_goodbye_that_the_engine_does_not_take_holds_nothing_up() -> None:
    async def story() -> None:
        async with a_registry(200, 404) as registry:
            endpoint = Endpoint(APP, url="http://here", engine_url=registry.url)
            async with endpoint:
                await endpoint.registered.wait()
            assert registry.left.qsize() == 1
        unheard = Endpoint(APP, url="http://here", engine_url="http://127.0.0.1:1")
        async with unheard:
            await asyncio.sleep(0)
        never_begun = Endpoint(APP, url="http://here", engine_url="http://127.0.0.1:1")
        await never_begun.stop()

    run(story)


def test_a_server_of_its_own_answers_on_kept_connections() -> None:
    async def story() -> None:
        async with (
            a_registry() as registry,
            serving(APP, port=0, engine_url=registry.url) as endpoint,
            httpx.AsyncClient() as client,
        ):
            told = await registry.told.get()
            assert told["url"] == endpoint.url
            for number in range(5):
                answer = await client.post(told["url"], json=body_of("echo", data=number))
                assert answer.status_code == 206
                assert answer.json()["opcodes"][0]["data"] == number
            many = [client.post(told["url"], json=body_of("echo")) for _ in range(20)]
            assert {answer.status_code for answer in await asyncio.gather(*many)} == {206}
            assert (await client.get(told["url"])).status_code == 405

    run(story)


def test_a_server_lets_passes_finish_when_it_stops() -> None:
    async def story() -> None:
        begun, gate = asyncio.Event(), asyncio.Event()

        async def slow(ctx: Context) -> object:
            async def body() -> bool:
                begun.set()
                return await gate.wait()

            return await ctx.step.run("wait", body)

        async def open_gate(registry: Registry) -> None:
            await registry.left.get()
            gate.set()

        app = App("shop", [workflow("slow")(slow)])
        async with a_registry() as registry, httpx.AsyncClient() as client:
            async with serving(app, port=0, engine_url=registry.url) as endpoint:
                await endpoint.registered.wait()
                waiting = asyncio.ensure_future(client.post(endpoint.url, json=body_of("slow")))
                await begun.wait()
                opening = asyncio.ensure_future(open_gate(registry))
            answer = await waiting
            await opening
            assert answer.status_code == 206
            with pytest.raises(httpx.ConnectError):
                await client.post(endpoint.url, json=body_of("slow"))

    run(story)


@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_leaving_server_refuses_invokes_and_a_closed_one_connections(
    runs: Callable[[Awaitable[None]], None],
) -> None:
    async def story() -> None:
        server = Server()
        port = await server.listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{port}/invoke"
        server.endpoint = Endpoint(APP, url=url)
        async with httpx.AsyncClient() as kept, httpx.AsyncClient() as new:
            assert (await kept.post(url, json=body_of("echo"))).status_code == 206
            leaving = asyncio.ensure_future(server.leave(LIMIT_SECONDS))
            await asyncio.sleep(0)
            for client in (kept, new):
                answer = await client.post(url, json=body_of("echo"))
                assert answer.status_code == 503, "charged to no run"
                assert answer.headers["connection"] == "close"
            leaving.cancel()
            idle_reader, idle = await asyncio.open_connection("127.0.0.1", port)
            await server.close(LIMIT_SECONDS)
            for client in (kept, new):
                with pytest.raises(httpx.ConnectError):
                    await client.post(url, json=body_of("echo"))
            with contextlib.suppress(ConnectionError):
                assert await idle_reader.read() == b""
            idle.close()

    async def main() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await story()

    runs(main())


def test_a_pass_that_runs_when_the_socket_is_closed_is_answered() -> None:
    async def story() -> None:
        begun, gate = asyncio.Event(), asyncio.Event()

        async def slow(ctx: Context) -> object:
            async def body() -> bool:
                begun.set()
                return await gate.wait()

            return await ctx.step.run("wait", body)

        server = Server()
        port = await server.listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{port}/invoke"
        server.endpoint = Endpoint(App("shop", [workflow("slow")(slow)]), url=url)
        async with httpx.AsyncClient() as client:
            waiting = asyncio.ensure_future(client.post(url, json=body_of("slow")))
            await begun.wait()
            closing = asyncio.ensure_future(server.close(LIMIT_SECONDS))
            with contextlib.suppress(ConnectionRefusedError):
                while True:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
            assert not closing.done()
            gate.set()
            assert (await waiting).status_code == 206
            await closing

    run(story)


def test_a_closed_server_has_no_connection_left() -> None:
    async def story() -> None:
        server = Server()
        url = f"http://127.0.0.1:{await server.listen('127.0.0.1', 0)}/invoke"
        server.endpoint = Endpoint(APP, url=url)
        async with httpx.AsyncClient() as client:
            assert (await client.post(url, json=body_of("echo"))).status_code == 206
            await server.close(LIMIT_SECONDS)
            with pytest.raises(httpx.ConnectError):  # the kept connection is not used again
                await client.post(url, json=body_of("echo"))

    run(story)


@pytest.mark.parametrize(
    "sent",
    [
        b"no HTTP at all\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + b"x: " + b"y" * 40_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}POST / HTTP/1.1\r\n\r\n",
    ],
    ids=["not HTTP", "a large head", "pipelined"],
)
def test_bad_manners_end_the_connection_and_nothing_else(sent: bytes) -> None:
    async def story() -> None:
        async with (
            a_registry() as registry,
            serving(APP, port=0, engine_url=registry.url) as endpoint,
            httpx.AsyncClient() as client,
        ):
            port = int(endpoint.url.split(":")[2].split("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            with contextlib.suppress(ConnectionError):
                await reader.read()  # to its end
            writer.close()
            assert (await client.post(endpoint.url, json=body_of("echo"))).status_code == 206

    run(story)

"""Large results in the runner SDK: uploaded, fetched, remembered, and what if that fails."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.sdk import App, Context
from perdure.sdk.offload import ResultError, ResultStore
from perdure.sdk.passes import execute
from perdure.sdk.settings import resolve
from perdure.sdk.wire import Invoke, Reply, read_invoke
from tests.sdk_runner.played import body_of

TERMS = {"thresholdBytes": 1_000, "maxBytes": 2_000_000}
LARGE = "x" * 5_000
Json = dict[str, Any]


class Engine:
    """The engine's store, and what goes wrong with it."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.faults: list[int] = []
        """Statuses to answer with, before anything is done."""
        self.spoil: Callable[[bytes], bytes] = lambda data: data
        self.pages: dict[str, Json] = {}

    def keep(self, value: object) -> Json:
        data = json.dumps(value).encode()
        sha256 = hashlib.sha256(data).hexdigest()
        self.stored[sha256] = data
        return {"id": f"ep_{sha256}", "sha256": sha256, "size": len(data)}

    def answer(self, line: str, body: bytes) -> tuple[int, bytes]:
        method, target, _ = line.split(" ")
        self.requests.append(f"{method} {target}")
        if self.faults:
            return self.faults.pop(0), b"{}"
        if method == "POST":
            ref = self.keep(json.loads(body))
            return 201, json.dumps({"ref": ref}).encode()
        if target in self.pages:
            return 200, json.dumps(self.pages[target]).encode()
        data = self.stored.get(target.rpartition("ep_")[2])
        return (404, b"{}") if data is None else (200, self.spoil(data))


@asynccontextmanager
async def storing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Engine, ResultStore]]:
    """A store and the engine behind it."""
    monkeypatch.setattr("perdure.sdk.offload.RESULT_BACKOFF_SECONDS", 0)
    engine = Engine()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.lower().split("\r\n")
                lengths = [line[16:] for line in lines if line.startswith("content-length: ")]
                body = await reader.readexactly(int(lengths[0]) if lengths else 0)
                status, told = engine.answer(head.split("\r\n")[0], body)
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(told)))
                writer.write(told)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = ResultStore(resolve(engine_url=f"http://127.0.0.1:{port}"))
    try:
        yield engine, store
    finally:
        await store.close()
        server.close()


def invoked(memos: Json | None = None, *, after: int | None = None) -> Invoke:
    body = body_of("work", memos or {})
    body["ctx"]["offload"] = {**TERMS, "after": after}
    return read_invoke(json.dumps(body).encode())


def an_app(*values: object) -> App:
    app = App("shop")

    @app.workflow("work")
    async def work(ctx: Context) -> object:
        async def later(value: object) -> object:
            return value

        plain = [ctx.step.run(f"plain {n}", lambda v=v: v) for n, v in enumerate(values)]
        others = [ctx.step.run(f"later {n}", later, v) for n, v in enumerate(values)]
        return [len(str(value)) for value in await asyncio.gather(*plain, *others)]

    return app


def opcodes(reply: Reply) -> Json:
    assert reply.status == 206, reply
    return {one["name"]: one for one in json.loads(reply.body)["opcodes"]}


def test_large_results_are_uploaded_and_small_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with storing(monkeypatch) as (engine, store):
            told = opcodes(await execute(an_app(LARGE, "small"), invoked(), store=store))
            for name in ("plain 0", "later 0"):
                assert "data" not in told[name]
                assert engine.stored[told[name]["dataRef"]["sha256"]] == json.dumps(LARGE).encode()
            for name in ("plain 1", "later 1"):
                assert told[name]["data"] == "small"
                assert "dataRef" not in told[name]
            assert len(engine.requests) == 2

    asyncio.run(story())


def test_what_would_crowd_a_reply_is_uploaded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.sdk.offload.REPLY_INLINE_BYTES_MAX", 4_000)
    monkeypatch.setattr("perdure.sdk.offload.SMALL_RESULT_BYTES", 10)

    async def story() -> None:
        async with storing(monkeypatch) as (_, store):
            reply = await execute(an_app(*["x" * 900] * 6, "y"), invoked(), store=store)
            told = opcodes(reply).values()
            assert sum("dataRef" in one for one in told) == 8
            assert sum(one.get("data") == "y" for one in told) == 2

    asyncio.run(story())


def test_an_engine_that_stores_nothing_gets_everything_inline() -> None:
    async def story() -> None:
        store = ResultStore(resolve(engine_url="http://127.0.0.1:1"))
        invoke = read_invoke(json.dumps(body_of("work")).encode())
        told = opcodes(await execute(an_app(LARGE), invoke, store=store))
        assert told["plain 0"]["data"] == told["later 0"]["data"] == LARGE

    asyncio.run(story())


def test_an_engine_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with storing(monkeypatch) as (engine, store):
            engine.faults = [503, 500, 503, 500]
            assert (await store.upload("r1", b'"a"')).size == 3
            assert len(engine.requests) == 5
            engine.faults = [409]
            with pytest.raises(ResultError, match="409"):
                await store.upload("r1", b'"b"')
            assert len(engine.requests) == 6

    asyncio.run(story())


def test_an_upload_that_fails_goes_inline_if_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with storing(monkeypatch) as (engine, store):
            engine.faults = [409] * 2
            told = opcodes(await execute(an_app(LARGE), invoked(), store=store))
            assert told["plain 0"]["data"] == told["later 0"]["data"] == LARGE
            engine.faults = [409] * 2
            told = opcodes(await execute(an_app("x" * 600_000), invoked(), store=store))
            for name in ("plain 0", "later 0"):
                assert "409" in told[name]["error"]["message"]
                assert "data" not in told[name]

    asyncio.run(story())


def test_references_are_fetched_once_per_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with storing(monkeypatch) as (engine, store):
            ref = engine.keep(LARGE)
            memos = {f"{kind} 0": {"ref": ref} for kind in ("plain", "later")}
            for _ in range(3):
                reply = await execute(an_app(LARGE), invoked(memos), store=store)
                assert json.loads(reply.body)["data"] == [5_000, 5_000]
            assert set(engine.requests) == {f"GET /runs/01R/payloads/{ref['id']}"}
            assert len(engine.requests) <= 2

    asyncio.run(story())


def test_pages_of_a_memo_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with storing(monkeypatch) as (engine, store):
            invoke = invoked(after=7)
            engine.pages = {
                "/runs/01R/memo?after=7": {"steps": {"a": {"data": 1}}, "after": 9},
                "/runs/01R/memo?after=9": {
                    "steps": {"b": {"ref": engine.keep(LARGE)}, "c": {"pending": True}},
                    "after": None,
                },
            }
            await store.complete(invoke)
            assert invoke.steps["a"].data == 1
            assert invoke.steps["b"].data == LARGE
            assert invoke.steps["c"].pending
            engine.pages["/runs/01R/memo?after=9"]["after"] = 9
            with pytest.raises(ResultError, match="repeats"):
                await store.complete(invoked(after=7))

    asyncio.run(story())


@pytest.mark.parametrize("fault", ["missing", "other bytes", "cut"])
def test_a_result_that_is_not_what_it_was_breaks_the_pass(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with storing(monkeypatch) as (engine, store):
            ref = engine.keep(LARGE)
            if fault == "missing":
                engine.stored.clear()
            elif fault == "cut":
                engine.spoil = lambda data: data[:-1]
            else:
                engine.spoil = lambda data: data.replace(b"x", b"y")
            memos = {f"{kind} 0": {"ref": ref} for kind in ("plain", "later")}
            reply = await execute(an_app(LARGE), invoked(memos), store=store)
            assert reply.status == 500, "the engine tries again, and nothing was done"
            assert "payloads" in str(reply.body) or "other bytes" in str(reply.body)

    asyncio.run(story())


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.sdk.offload.RESULTS_CACHED_BYTES_MAX", 12_000)

    async def story() -> None:
        async with storing(monkeypatch) as (engine, store):
            refs = [engine.keep(str(n) * 5_000) for n in range(3)]
            for n, ref in enumerate([*refs, refs[2], refs[1], refs[0]]):
                invoke = invoked({"s": {"ref": ref}})
                await store.complete(invoke)
                assert [memo.data for memo in invoke.steps.values()] == [str(min(n, 5 - n)) * 5_000]
            assert len(engine.requests) == 4, "only the first had to go"

    asyncio.run(story())

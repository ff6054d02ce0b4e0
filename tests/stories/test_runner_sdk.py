"""Our own runner SDK against a real server, on SQLite and on PostgreSQL with two processes."""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop

from perdure.sdk import (
    ApiError,
    App,
    Batch,
    Client,
    Concurrency,
    Connection,
    Context,
    Cron,
    Debounce,
    Event,
    Idempotency,
    NonRetriableError,
    Priority,
    RateLimit,
    Retry,
    RetryAfterError,
    Run,
    RunFailedError,
    Singleton,
    StepFailedError,
    Throttle,
    serving,
)
from perdure.sdk.http import HttpClient
from perdure.sdk.link import Link
from tests.support.postgres import Cluster
from tests.support.server import STORES, ServerProcess

LIMIT_SECONDS = 90
SIGNING_KEY = "a key that both sides know"
ENVIRONMENT = {"PERDURE_SIGNING_KEY": SIGNING_KEY}


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    if request.param == "sqlite":
        process = ServerProcess(tmp_path / "perdure.db", env=ENVIRONMENT)
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        process = ServerProcess(
            cluster.fresh_database(), log_path=tmp_path / "log", processes=2, env=ENVIRONMENT
        )
    with process:
        yield process


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await story()

    uvloop.run(main())


@contextlib.asynccontextmanager
async def connected(app: App, server: ServerProcess, port: int = 0) -> AsyncIterator[Client]:
    """A runner of the app, and a client of the same engine, once the app is known there."""
    async with (
        Connection(app, engine_url=server.url, redial_seconds=0.05, redial_seconds_max=0.2),
        Client(engine_url=server.url, app=app.name) as client,
    ):
        await known(client, app)
        yield client


@contextlib.asynccontextmanager
async def served(app: App, server: ServerProcess, port: int = 0) -> AsyncIterator[Client]:
    """The same, called by the engine, perhaps where another runner was before."""
    async with (
        serving(app, port=port, engine_url=server.url, signing_key=SIGNING_KEY),
        Client(engine_url=server.url, app=app.name) as client,
    ):
        await known(client, app)
        yield client


async def known(client: Client, app: App) -> None:
    """Wait until the engine has all workflows of the app."""
    for workflow in app:
        await client.until_known(workflow.name)


async def started(client: Client, event: str, data: object) -> str:
    sent = await client.send(event, data)
    assert sent.run_id is not None
    return sent.run_id


Transport = Callable[..., contextlib.AbstractAsyncContextManager[Client]]
TRANSPORTS = [
    pytest.param(connected, id="connect"),
    pytest.param(served, id="serve"),
]


async def finished(client: Client, run_id: str) -> Run:
    return await client.wait(run_id, timeout_seconds=LIMIT_SECONDS)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_run_uses_everything_and_ends(server: ServerProcess, transport: Transport) -> None:
    app = App("shop")
    shipped: asyncio.Queue[object] = asyncio.Queue()

    @app.workflow("fulfil", on="order.created", retry=Retry(3, delay="20ms"))
    async def fulfil(ctx: Context) -> object:
        async def charge() -> str:
            ctx.log("charging", attempt=ctx.attempt)
            if ctx.attempt == 1:
                raise RuntimeError("the bank is busy")
            if ctx.attempt == 2:
                raise RetryAfterError("still busy", "10ms")
            return f"ch_{ctx.event.data['id']}"

        ctx.log("begin")
        charged = await ctx.step.run("charge", charge)
        one, _, two = await asyncio.gather(
            ctx.step.run("pack", lambda: 1),
            ctx.step.sleep("nap", "20ms"),
            ctx.step.run_workflow("kid", "child", {"n": 2}),
        )
        try:
            await ctx.step.run_workflow("bad kid", "child", {"n": 0})
        except StepFailedError as error:
            why = str(error)
        paid = await ctx.step.wait_for_event(
            "paid",
            "order.paid",
            match={"data.id": ctx.event.data["id"]},
            where="event.data.by != trigger.name",
            timeout="1h",
        )
        never = await ctx.step.wait_for_event("never", "order.lost", timeout="20ms")
        await ctx.step.emit("tell", "order.shipped", {"id": ctx.event.data["id"]})
        return [charged, one, two, why, paid, never]

    @app.workflow("child", on=[])
    async def child(ctx: Context) -> object:
        return await ctx.step.run("divide", lambda: 10 // ctx.event.data["n"])

    @app.workflow("listener", on="order.ship*")
    async def listener(ctx: Context) -> None:
        shipped.put_nowait(ctx.event.data)

    async def story() -> None:
        async with transport(app, server) as client:
            run_id = await started(client, "order.created", {"id": "A1"})
            await client.until_step(run_id, "paid")
            for foreign in ({"by": "card"}, {"id": "x"}, {"id": "A1", "by": "order.created"}):
                assert (await client.send("order.paid", foreign)).woke == 0
            sent = await client.send("order.paid", {"id": "A1", "by": "card"})
            assert (sent.woke, sent.continues) == (1, False)
            run = await finished(client, run_id)
            steps = await client.steps(run_id)

            assert run.status == "succeeded", run
            assert run.result == [
                "ch_A1",
                1,
                5,
                "integer division or modulo by zero",
                {"id": "A1", "by": "card"},
                None,
            ]
            assert await shipped.get() == {"id": "A1"}
            assert [step.name for step in steps] == [
                *("charge", "pack", "nap", "kid", "bad kid", "paid", "never", "tell")
            ]
            assert steps[0].attempt == 3

    play(story)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_failures_end_runs_as_they_say(server: ServerProcess, transport: Transport) -> None:
    app = App("shop")
    tried: list[str] = []
    mourned: asyncio.Queue[str] = asyncio.Queue()

    @app.workflow("worn out", on="a", retry=Retry(2, delay=1))
    async def worn_out(ctx: Context) -> None:
        def body() -> None:
            tried.append("a")
            raise RuntimeError("again")

        await ctx.step.run("s", body)

    @app.workflow("gives up", on="b", retry=Retry(5))
    async def gives_up(ctx: Context) -> None:
        def body() -> None:
            tried.append("b")
            raise NonRetriableError("no use")

        await ctx.step.run("s", body)

    @app.workflow("gives up itself", on="c")
    async def gives_up_itself(ctx: Context) -> None:
        tried.append("c")
        raise NonRetriableError("never")

    @worn_out.on_failure
    async def mourn(ctx: Context) -> None:
        assert ctx.error is not None
        mourned.put_nowait(ctx.error.message)

    async def story() -> None:
        async with transport(app, server) as client:
            for event, message in (("a", "again"), ("b", "no use"), ("c", "never")):
                run_id = await started(client, event, {})
                with pytest.raises(RunFailedError, match=message):
                    await client.result(run_id)
            assert await mourned.get() == "again"
            assert sorted(tried) == ["a", "a", "b", "c"]
            with pytest.raises(ApiError) as refused:
                await client.run("nobody")
            assert refused.value.status == 404
            with pytest.raises(ApiError) as refused:
                await client.send(" ")
            assert refused.value.status == 400

    play(story)


def test_an_engine_killed_in_mid_run_goes_on_where_it_was(server: ServerProcess) -> None:
    app = App("shop")
    ran: list[str] = []

    @app.workflow("w", on="go")
    async def handler(ctx: Context) -> object:
        await ctx.step.run("first", lambda: ran.append("first"))
        await ctx.step.sleep("nap", "300ms")
        await ctx.step.run("second", lambda: ran.append("second"))
        return await ctx.step.wait_for_event("news", "news", timeout="1h")

    async def story() -> None:
        async with connected(app, server) as client:
            run_id = await started(client, "go", {})
            await client.until_step(run_id, "nap")
            await asyncio.to_thread(server.restart)
            await known(client, app)
            await client.until_step(run_id, "news")
            await asyncio.to_thread(server.restart)
            await known(client, app)
            assert (await client.send("news", "good")).woke == 1
            assert await client.result(run_id) == "good"
            assert ran == ["first", "second"]

    play(story)


RUNNER = """
import asyncio, sys
from perdure.sdk import App, run_connected

app = App("shop")

@app.workflow("w", on="go")
async def handler(ctx):
    await ctx.step.run("first", lambda: 1)
    print("first done" if sys.argv[2] == "hang" else "again", flush=True)
    return await ctx.step.run("second", body)

async def body():
    if sys.argv[2] == "hang":
        print("hanging", flush=True)
        await asyncio.Event().wait()
    return sys.argv[2]

run_connected(app, engine_url=sys.argv[1], runner=sys.argv[2])
print("left", flush=True)
"""


def test_a_runner_killed_in_mid_pass_is_replaced(server: ServerProcess) -> None:
    async def runner(name: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RUNNER, server.url, name), stdout=asyncio.subprocess.PIPE
        )

    async def heard(process: asyncio.subprocess.Process, line: bytes) -> None:
        assert process.stdout is not None
        while (said := await process.stdout.readline()).strip() != line:
            assert said, "the runner has ended"

    async def story() -> None:
        async with Client(engine_url=server.url, app="shop") as client:
            first = await runner("hang")
            await client.until_known("w")
            run_id = await started(client, "go", {})
            await heard(first, b"hanging")
            first.kill()
            await first.wait()
            second = await runner("helper")
            assert await client.result(run_id) == "helper"
            assert (await client.run(run_id)).executed_by == "helper"
            second.terminate()
            await heard(second, b"left")
            await second.wait()

    play(story)


REPLICA = """
import sys
from perdure.sdk import App, run_connected, run_server

app = App("shop")

@app.workflow("w", on="go")
async def handler(ctx):
    return [await ctx.step.run(str(n), lambda n=n: n) for n in range(5)]

if sys.argv[2] == "serve":
    run_server(app, port=0, engine_url=sys.argv[1], runner=sys.argv[3], signing_key=sys.argv[4])
else:
    run_connected(app, engine_url=sys.argv[1], runner=sys.argv[3])
"""


@pytest.mark.parametrize(
    ("ending", "transport"), [("terminate", "serve"), ("kill", "serve"), ("terminate", "connect")]
)
def test_a_replica_that_ends_takes_no_run_with_it(
    server: ServerProcess, ending: str, transport: str
) -> None:
    async def replica(name: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", REPLICA, server.url, transport, name, SIGNING_KEY
        )

    async def rows(path: str) -> list[dict[str, Any]]:
        async with HttpClient(server.url, {}) as http:
            found: list[dict[str, Any]] = json.loads((await http.request("GET", path)).body)
            return found

    async def story() -> None:
        async with Client(engine_url=server.url, app="shop") as client:
            first, second = await replica("first"), await replica("second")
            try:
                while sum(row["live"] for row in await rows("/runners")) < 2:
                    pass
                ids = [await started(client, "go", n) for n in range(20)]
                getattr(first, ending)()
                ids += await asyncio.gather(*(started(client, "go", n) for n in range(40)))
                runs = await asyncio.gather(*(finished(client, run_id) for run_id in ids))
                assert [run.status for run in runs] == ["succeeded"] * 60
                assert (await client.run(ids[-1])).executed_by == "second"
                if ending == "terminate":
                    assert await first.wait() == 0
                    told = await rows("/runs?limit=100")
                    assert [row["errorCount"] for row in told] == [0] * 60
            finally:
                for process in (first, second):
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()

    play(story)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_runs_at_once(server: ServerProcess, transport: Transport) -> None:
    app = App("shop")

    @app.workflow("w", on="go")
    async def handler(ctx: Context) -> object:
        numbers = [await ctx.step.run("n", lambda n=n: n) for n in range(3)]
        both = await asyncio.gather(ctx.step.run("a", lambda: 1), ctx.step.run("b", lambda: 2))
        return [ctx.event.data, *numbers, *both]

    async def story() -> None:
        async with transport(app, server) as client:
            ids = await asyncio.gather(*(started(client, "go", n) for n in range(100)))
            results = await asyncio.gather(*(client.result(run_id) for run_id in ids))
            assert results == [[n, 0, 1, 2, 1, 2] for n in range(100)]

    play(story)


class Cutting:
    """Cuts the runner's socket at the nth moment of a kind, once each time it is armed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._moment = ""
        self._left = 0
        admit, send = Link._admit, Link._send

        def cut_on_arrival(link: Link, invoked: Any) -> None:
            if self.is_now("an invoke arrived"):
                self._abort(link)
            else:
                admit(link, invoked)

        def cut_around_sending(link: Link, id: str, reply: Any) -> None:
            if self.is_now("a result is ready"):
                self._abort(link)
                return
            send(link, id, reply)
            if self.is_now("a result is on its way"):
                assert link._channel is not None
                link._channel._flush()
                self._abort(link)

        patch.setattr(Link, "_admit", cut_on_arrival)
        patch.setattr(Link, "_send", cut_around_sending)

    def arm(self, ctx: str, nth: int) -> None:
        self._moment, self._left = ctx, nth

    def is_now(self, ctx: str) -> bool:
        if self._left and ctx == self._moment:
            self._left -= 1
            return not self._left
        return False

    @property
    def is_done(self) -> bool:
        return not self._left

    @staticmethod
    def _abort(link: Link) -> None:
        assert link._channel is not None
        link._channel.abort()


@pytest.mark.parametrize(
    "ctx", ["an invoke arrived", "a result is ready", "a result is on its way"]
)
def test_a_socket_cut_at_every_pass_of_a_run(
    server: ServerProcess, ctx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes: two steps at once, the sleep, the last step, the emitted event, the end."""
    cutting = Cutting(monkeypatch)
    app = App("shop")
    heard: list[int] = []
    tokens = itertools.count()

    @app.workflow("w", on="go")
    async def handler(ctx: Context) -> object:
        both = await asyncio.gather(
            ctx.step.run("a", lambda: next(tokens)), ctx.step.run("b", lambda: next(tokens))
        )
        await ctx.step.sleep("nap", 5)
        last = await ctx.step.run("last", lambda: next(tokens))
        await ctx.step.emit("tell", "told", ctx.event.data)
        return [*both, last]

    @app.workflow("listener", on="told")
    async def listener(ctx: Context) -> None:
        heard.append(ctx.event.data)

    async def story() -> None:
        async with connected(app, server) as client:
            for nth in range(1, 6):
                cutting.arm(ctx, nth)
                run_id = await started(client, "go", nth)
                result = await client.result(run_id)
                steps = {step.name: step.output for step in await client.steps(run_id)}
                assert cutting.is_done
                assert result == [steps["a"], steps["b"], steps["last"]]
                assert list(steps) == ["a", "b", "nap", "last", "tell"]
            while len(set(heard)) < 5:
                await client.workflows()
            emitted = [event["data"] for event in await client.events("told")]
            assert sorted(emitted) == [1, 2, 3, 4, 5], "each was emitted once"

    play(story)


def test_triggers_and_flow_control_are_understood(server: ServerProcess) -> None:
    app = App("shop")
    seen: asyncio.Queue[object] = asyncio.Queue()

    async def tell(ctx: Context) -> None:
        seen.put_nowait([ctx.workflow, *(event.data["n"] for event in ctx.events)])

    app.workflow("batched", on="batched", batch=Batch(3, "1h", key="of"))(tell)
    app.workflow("debounced", on="debounced", debounce=Debounce("300ms", key="of"))(tell)
    app.workflow("dropped", on="dropped", rate_limit=RateLimit(1, "1h"))(tell)
    app.workflow("deduped", on="deduped", idempotency=Idempotency("n", "1h"))(tell)
    app.workflow("filtered", on=Event("filt*", where="event.data.n > 10"))(tell)
    app.workflow("daily", on=[Cron("TZ=Europe/Berlin 0 9 * * *"), Cron("@hourly")])(tell)
    app.workflow(
        "paced",
        on="paced",
        concurrency=Concurrency(2, key="of"),
        throttle=Throttle(100, "1s"),
        priority=Priority(1_000),
    )(tell)

    @app.workflow("skipped", on="skipped", singleton=Singleton("of", "skip"))
    async def skipped(ctx: Context) -> None:
        await ctx.step.wait_for_event("end", "end", timeout="1h")
        await tell(ctx)

    async def story() -> None:
        async with connected(app, server) as client:

            async def sent(name: str, *numbers: int) -> list[list[str]]:
                """Per event, what was said of its trigger: a run, and words."""
                told = []
                for n in numbers:
                    answer = await client.send(name, {"n": n, "of": "me"})
                    for each in answer.triggered:
                        words = ("skipped", "dropped", "debounced", "batched", "deduped")
                        said = [word for word in words if getattr(each, word)]
                        told.append((["run"] if each.run_id else []) + said)
                return told

            assert await sent("batched", 1, 2, 3) == [["batched"], ["batched"], ["run", "batched"]]
            assert await seen.get() == ["batched", 1, 2, 3]
            assert await sent("debounced", 1, 2) == [["debounced"], ["debounced"]]
            while (told := await seen.get()) != ["debounced", 2]:
                assert told == ["debounced", 1]  # a slow machine let the quiet time pass
            assert await sent("dropped", 1, 2) == [["run"], ["dropped"]]
            assert await seen.get() == ["dropped", 1]
            assert await sent("deduped", 1, 1) == [["run"], ["deduped"]]
            assert await seen.get() == ["deduped", 1]
            assert await sent("filtered", 5, 15) == [["run"]]
            assert await seen.get() == ["filtered", 15]
            assert await sent("skipped", 1, 2) == [["run"], ["skipped"]]
            assert await sent("paced", 1) == [["run"]]
            assert await seen.get() == ["paced", 1]
            [daily] = [row for row in await client.workflows() if row["name"] == "daily"]
            assert [row["cron"] for row in daily["schedules"]] == [
                *("TZ=Europe/Berlin 0 9 * * *", "@hourly")
            ]
            assert all(row["nextFireAt"] for row in daily["schedules"])

    play(story)


def test_a_workflow_is_started_by_name_and_cancelled(server: ServerProcess) -> None:
    app = App("shop")

    @app.workflow("w", on=[])
    async def handler(ctx: Context) -> object:
        await ctx.step.skip("left out", "no need")
        await ctx.step.wait_for_event("end", "end", timeout="1h")
        return ctx.event.data

    async def story() -> None:
        async with connected(app, server) as client:
            first, second = [await client.trigger("w", {"n": n}) for n in (1, 2)]
            assert first.run_id is not None
            assert second.run_id is not None
            await client.until_step(first.run_id, "end")
            await client.until_step(second.run_id, "end")
            assert (await client.cancel(first.run_id)).status == "cancelled"
            assert (await client.send("end")).woke == 1
            assert await client.result(second.run_id) == {"n": 2}
            with pytest.raises(RunFailedError, match="cancelled"):
                await client.result(first.run_id)
            with pytest.raises(ApiError) as refused:
                await client.cancel(first.run_id)
            assert refused.value.status == 409
            with pytest.raises(ApiError) as refused:
                await client.trigger("nobody")
            assert refused.value.status == 404

    play(story)


def test_a_limit_holds_over_all_nodes_and_nobody_is_forgotten(server: ServerProcess) -> None:
    """Many runners, so that passes are sent by every process of the server."""
    runners, runs, limit = 6, 40, 2
    under_way, most = 0, 0
    app = App("quarry")

    @app.workflow("dig", on="dig", concurrency=Concurrency(limit))
    async def dig(ctx: Context) -> int:
        async def work() -> int:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return 1

        return int(await ctx.step.run("a", work)) + int(await ctx.step.run("b", work))

    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(runners):
                client = await stack.enter_async_context(connected(app, server))
            run_ids = await asyncio.gather(*(started(client, "dig", {}) for _ in range(runs)))
            ended = await asyncio.gather(*(finished(client, run_id) for run_id in run_ids))
            assert [run.status for run in ended] == ["succeeded"] * runs
            assert 1 <= most <= limit

    play(story)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_results_of_many_times_a_message_survive_a_new_runner(
    server: ServerProcess, transport: Transport
) -> None:
    app = App("shop")
    worked: list[int] = []

    def page(number: int) -> str:
        worked.append(number)
        return chr(97 + number % 26) * 500 * 1024

    async def later(number: int) -> list[str]:
        return [page(number)]

    @app.workflow("scan")
    async def scan(ctx: Context) -> object:
        pages = [await ctx.step.run(f"page {n}", page, n) for n in range(10)]
        pages += await asyncio.gather(
            *(ctx.step.run(f"page {n}", page, n) for n in range(10, 20)),
        )
        small = await asyncio.gather(
            *(ctx.step.run(f"small {n}", lambda n=n: str(n) * 30_000) for n in range(20))
        )
        await ctx.step.wait_for_event("go", "go", timeout="1h")
        for n in range(20, 40):
            pages += await ctx.step.run(f"page {n}", later, n)
        return [[text[0], len(text)] for text in pages], [len(text) for text in small]

    async def story() -> None:
        async with transport(app, server) as client:
            run_id = await started(client, "scan", None)
            await client.until_step(run_id, "go")
            (runner,) = await client._told("GET", "/runners")
        port = urlsplit(runner["url"]).port or 0
        async with transport(app, server, port) as client:
            await client.send("go")
            run = await finished(client, run_id)
            assert run.status == "succeeded", run
            pages, small = run.result
            assert pages == [[chr(97 + n % 26), 512_000] for n in range(40)]
            assert small == [30_000] * 10 + [60_000] * 10
            assert worked == list(range(40)), "nothing is done twice"
            steps = {step.name: step for step in await client.steps(run_id)}
            last = steps["page 39"]
            assert last.output is None
            assert last.output_ref is not None
            assert await client.stored_output(run_id, last.output_ref) == ["n" * 512_000]

    play(story)

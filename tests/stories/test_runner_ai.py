"""Model calls, their limits and evals with our own runner SDK, on both stores and transports."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from perdure.sdk import (
    App,
    Budget,
    Cap,
    Client,
    Concurrency,
    Connection,
    Context,
    RunFailedError,
    TokenThrottle,
    Usage,
    serving,
)
from tests.support.models import ThreadedModels, completion
from tests.support.postgres import Cluster
from tests.support.server import STORES, ServerProcess

LIMIT_SECONDS = 90


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    models = ThreadedModels(completion("because", model="m-9"))
    env = {"PERDURE_AI_URL": models.url}
    if request.param == "sqlite":
        process = ServerProcess(tmp_path / "perdure.db", env=env)
    else:
        cluster: Cluster = request.getfixturevalue("postgres_cluster")
        process = ServerProcess(
            cluster.fresh_database(), log_path=tmp_path / "log", processes=2, env=env
        )
    with models, process:
        yield process


Transport = Callable[[App, str], contextlib.AbstractAsyncContextManager[object]]
TRANSPORTS: dict[str, Transport] = {
    "connect": lambda app, url: Connection(app, engine_url=url),
    "serve": lambda app, url: serving(app, port=0, engine_url=url),
}


@contextlib.asynccontextmanager
async def running(app: App, server: ServerProcess, transport: str) -> AsyncIterator[Client]:
    async with (
        TRANSPORTS[transport](app, server.url),
        Client(engine_url=server.url, app=app.name) as client,
    ):
        for each in app:
            await client.until_known(each.name)
        yield client


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await story()

    uvloop.run(main())


def used(text: str) -> Usage:
    return Usage(model="m-1", tokens_in=90, tokens_out=len(text))


def an_app() -> App:
    app = App("press", price=lambda call: 0.25)

    @app.workflow("write", cap=Cap(tokens_max=500))
    async def write(ctx: Context) -> object:
        text = await ctx.ai.call("ask", lambda: "0123456789", usage=used)
        told = await ctx.ai.infer("infer", [{"role": "user", "content": "why?"}])
        vectors = await ctx.ai.embed("embed", ["a", "b"], lambda some: [[1] for _ in some])
        return [text, told.text, told.model, len(vectors), ctx.spent.tokens]

    @app.workflow("capped", cap=Cap(cost_max=0.25))
    async def capped(ctx: Context) -> None:
        for number in range(2):
            await ctx.ai.call(f"ask {number}", lambda: "0123456789", usage=used)

    @app.workflow("tight", budget=Budget("10m", tokens_max=100, warn_at_percent=50))
    async def tight(ctx: Context) -> str:
        await ctx.ai.call("ask", lambda: "0123456789", usage=used)
        return await ctx.step.run("last", lambda: "done")

    @app.workflow("paced", token_throttle=TokenThrottle(100, "400ms"))
    async def paced(ctx: Context) -> object:
        return await ctx.ai.call("ask", lambda: "0123456789", usage=used)

    @app.workflow("double", on=[])
    async def double(ctx: Context) -> bool:
        return await ctx.asserts.equals(2 * ctx.event.data["n"])

    return app


async def started(client: Client, workflow: str) -> str:
    sent = await client.send(workflow)
    assert sent.run_id is not None
    return sent.run_id


async def until_paused(client: Client, run_id: str) -> str:
    while (run := await client.run(run_id)).paused_by is None:
        assert not run.is_finished
        await asyncio.sleep(0.02)
    return run.paused_by.reason


@pytest.mark.parametrize("transport", sorted(TRANSPORTS))
def test_model_calls_are_counted_and_kept_within_their_limits(
    server: ServerProcess, transport: str
) -> None:
    async def story() -> None:
        async with running(an_app(), server, transport) as client:
            run_id = await started(client, "write")
            assert await client.result(run_id) == ["0123456789", "because", "m-9", 2, 110]
            run = await client.run(run_id)
            assert (run.ai_tokens, run.ai_cost) == (110, 0.5)
            spend = await client.spend(workflow="write")
            assert (spend["tokens"], spend["calls"], spend["cost"]) == (110, 3, 0.5)

            with pytest.raises(RunFailedError, match=r"spent 0\.25 of 0\.25"):
                await client.result(await started(client, "capped"))

            first = await started(client, "tight")
            assert await until_paused(client, first) == "budget"
            second = await started(client, "tight")
            assert await until_paused(client, second) == "budget"
            await client.resume(first)
            assert await client.result(first) == "done"

            runs = [await started(client, "paced") for _ in range(3)]
            for each in runs:
                assert await client.result(each) == "0123456789"

            cases = await client.datasets.make("numbers", dedupe_id="n")
            assert (await client.datasets.make("numbers", dedupe_id="n")).id == cases.id
            for number in (1, 2):
                await client.datasets.add(cases.id, {"n": number}, expected=4)
            gone = await client.datasets.add(cases.id, {"n": 9})
            assert (await client.datasets.archive(cases.id, gone.id)).archived
            assert len(await client.datasets.items(cases.id)) == 2
            told = await client.datasets.evaluate(cases.id, "double", label="one")
            assert [await client.result(each) for each in told.run_ids] == [False, True]
            (shown,) = await client.datasets.evals(cases.id)
            assert [(s.name, s.avg, s.count) for s in shown.scores] == [("match", 0.5, 2)]
            assert (await client.datasets.eval_set(shown.id)).label == "one"

    play(story)


def test_a_budget_holds_over_all_nodes(server: ServerProcess) -> None:
    """One pass at a time, each of which uses one token: not one too many is used."""
    runners, runs, limit = 4, 24, 10
    called = 0
    app = App("quarry")

    @app.workflow("dig", concurrency=Concurrency(1), budget=Budget("10m", tokens_max=limit))
    async def dig(ctx: Context) -> None:
        async def ask() -> str:
            nonlocal called
            called += 1
            await asyncio.sleep(0)
            return "x"

        await ctx.ai.call("ask", ask, usage=lambda _: Usage(tokens_out=1))

    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(runners):
                client = await stack.enter_async_context(running(app, server, "connect"))
            run_ids = await asyncio.gather(*(started(client, "dig") for _ in range(runs)))
            open_runs = dict.fromkeys(run_ids)
            while open_runs:
                for run_id in list(open_runs):
                    run = await client.run(run_id)
                    if run.is_finished or run.paused_by is not None:
                        del open_runs[run_id]
                await asyncio.sleep(0.02)
            assert called == limit
            spend = await client.spend(workflow="dig")
            assert (spend["tokens"], spend["calls"]) == (limit, limit)

    play(story)

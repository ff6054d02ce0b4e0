"""A connected runner whose code blocks longer than the server waits for a silent pass."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from perdure.sdk import App, Client, Connection, Context
from tests.support.server import ServerProcess

LIMIT_SECONDS = 60
PASS_SECONDS = 1
LONGER = "2500ms"
"""More than the server waits for a pass that no heartbeat names."""
PING_SECONDS = 0.2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path / "perdure.db", env={"PERDURE_PASS_TIMEOUT": str(PASS_SECONDS)}
    ) as process:
        yield process


class Runner(threading.Thread):
    """A connected runner with a loop of its own."""

    def __init__(self, app: App, url: str) -> None:
        super().__init__(daemon=True)
        self._app = app
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._leaving = asyncio.Event()

    def run(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        async with Connection(self._app, engine_url=self._url, ping_seconds=PING_SECONDS):
            await self._leaving.wait()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._leaving.set)
        self.join(LIMIT_SECONDS)


class Slow:
    """A function that blocks until the test lets it go on."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.times = 0

    def work(self) -> int:
        self.times += 1
        self.released.wait(LIMIT_SECONDS)
        return self.times


async def nap(ctx: Context) -> str:
    await ctx.step.sleep("nap", LONGER)
    return await ctx.step.run("wake", lambda: "rested")


def test_a_plain_function_that_blocks_runs_once_beside_its_neighbours(
    server: ServerProcess,
) -> None:
    slow = Slow()
    app = App("shop")
    app.workflow("nap")(nap)

    @app.workflow("grind")
    async def grind(ctx: Context) -> int:
        return await ctx.step.run("crush", slow.work)

    async def story() -> None:
        runner = Runner(app, server.url)
        runner.start()
        async with (
            asyncio.timeout(LIMIT_SECONDS),
            Client(engine_url=server.url, app="shop") as client,
        ):
            await client.until_known("grind")
            grinding = (await client.send("grind", {})).run_id
            napping = (await client.send("nap", {})).run_id
            assert grinding is not None
            assert napping is not None
            assert await client.result(napping) == "rested", "on the runner that is blocked"
            slow.released.set()
            assert await client.result(grinding) == 1
        await asyncio.to_thread(runner.end)

    uvloop.run(story())
    assert slow.times == 1


def test_async_code_that_blocks_the_loop_runs_once_and_is_named(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow()
    app, neighbour = App("shop"), App("yard")
    neighbour.workflow("nap")(nap)

    @app.workflow("grind")
    async def grind(ctx: Context) -> int:
        async def work() -> int:
            return slow.work()

        return await ctx.step.run("crush", work)

    async def story() -> None:
        runner = Runner(app, server.url)
        runner.start()
        async with (
            asyncio.timeout(LIMIT_SECONDS),
            Connection(neighbour, engine_url=server.url),
            Client(engine_url=server.url, app="shop") as client,
            Client(engine_url=server.url, app="yard") as other,
        ):
            await client.until_known("grind")
            await other.until_known("nap")
            grinding = (await client.send("grind", {})).run_id
            napping = (await other.send("nap", {})).run_id
            assert grinding is not None
            assert napping is not None
            assert await other.result(napping) == "rested", "the server waited for so long"
            slow.released.set()
            assert await client.result(grinding) == 1
        await asyncio.to_thread(runner.end)

    uvloop.run(story())
    assert slow.times == 1
    assert "reconnecting" not in caplog.text
    begun = [line for line in caplog.messages if line.startswith("the event loop is blocked")]
    assert len(begun) == 1
    assert "step 'crush' of workflow 'grind'" in begun[0]

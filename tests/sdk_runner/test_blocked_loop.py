"""A blocked event loop: the socket of a runner stays up, and what blocks the loop is named."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator

import pytest
import uvloop

from perdure.sdk import App, Connection, Context, Endpoint, limits, link
from tests.sdk_runner.engine import fake_engine
from tests.sdk_runner.played import LIMIT_SECONDS, body_of


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator["Log"]:
    """The log, beside a watchdog that soon loses its patience."""
    monkeypatch.setattr(limits, "LOOP_BLOCKED_SECONDS", 0.1)
    log = Log()
    logger = logging.getLogger("perdure.sdk")
    logger.addHandler(log)
    yield log
    logger.removeHandler(log)


class Log(logging.Handler):
    """Lines about blocked loops."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("the event loop"):
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()

    def about(self, *words: str) -> list[str]:
        """The lines with all these words."""
        return [line for line in self.lines if all(word in line for word in words)]

    def wait(self, *words: str) -> None:
        """Block until there is such a line."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.about(*words), LIMIT_SECONDS), self.lines


class Runner(threading.Thread):
    """A connected runner in a thread of its own, so that a test goes on when its loop does not."""

    def __init__(self, app: App, url: str, **options: float) -> None:
        super().__init__(daemon=True)
        self._app = app
        self._url = url
        self._options = options
        self._leaving: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        uvloop.run(self._main())

    async def _main(self) -> None:
        self._loop, self._leaving = asyncio.get_running_loop(), asyncio.Event()
        async with Connection(self._app, engine_url=self._url, **self._options):  # type: ignore[arg-type]
            await self._leaving.wait()

    def end(self) -> None:
        assert self._loop is not None
        assert self._leaving is not None
        self._loop.call_soon_threadsafe(self._leaving.set)
        self.join(LIMIT_SECONDS)
        assert not self.is_alive()


@contextlib.asynccontextmanager
async def a_runner(app: App, url: str, **options: float):  # type: ignore[no-untyped-def]
    runner = Runner(app, url, **options)
    runner.start()
    yield
    await asyncio.to_thread(runner.end)


@pytest.mark.parametrize("place", ["step", "handler"])
def test_the_socket_stays_up_and_the_log_names_what_blocks(reported: Log, place: str) -> None:
    released = threading.Event()
    app = App("shop")
    blocker = "step 'crush' of workflow" if place == "step" else "the handler of workflow 'grind'"

    @app.workflow("grind")
    async def grind(ctx: Context) -> str:
        async def body() -> bool:
            return released.wait(LIMIT_SECONDS)

        if place == "handler":
            return str(released.wait(LIMIT_SECONDS))
        return str(await ctx.step.run("crush", body))

    async def story() -> None:
        async with (
            fake_engine() as engine,
            a_runner(app, engine.url, ping_seconds=0.01, pong_seconds=LIMIT_SECONDS),
        ):
            runner = await engine.accept()
            await runner.greet()
            waiting = runner.begin(body_of("grind"))
            await asyncio.to_thread(reported.wait, "is blocked", blocker, "run 01R")
            while not runner.pinged.empty():
                runner.pinged.get_nowait()
            for _ in range(3):
                await runner.pinged.get()
            told = await runner.hear()
            assert told == {"type": "invoke.heartbeat", "payload": {"ids": ["inv_1"]}}
            later = runner.begin(body_of("grind"))
            while told["payload"]["ids"] != ["inv_1", "inv_2"]:
                told = await runner.hear()
            await runner.send({"type": "hello", "payload": {}})
            while (await runner.hear())["type"] != "runner.register":
                pass
            released.set()
            await asyncio.gather(waiting, later)
            await asyncio.to_thread(reported.wait, "was blocked", blocker)

    asyncio.run(asyncio.wait_for(story(), LIMIT_SECONDS))
    assert len(reported.about("is blocked", blocker)) == 1
    assert len(reported.about("was blocked", blocker)) == 1


def test_a_blocked_loop_of_a_served_runner_is_reported(reported: Log) -> None:
    async def block_here() -> None:
        reported.wait("is blocked", __file__.rpartition("/")[2])

    async def story() -> None:
        endpoint = Endpoint(App("shop"), url="http://127.0.0.1:1", engine_url="http://127.0.0.1:1")
        async with endpoint:
            await block_here()
            await asyncio.to_thread(reported.wait, "was blocked")

    asyncio.run(story())


def test_more_invokes_than_may_wait_are_refused_by_the_socket(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reported: Log
) -> None:
    monkeypatch.setattr(link, "PASSES_MAX", 1)
    monkeypatch.setattr(link, "PASSES_WAITING_MAX", 1)
    released = threading.Event()
    app = App("shop")

    @app.workflow("grind")
    async def grind(ctx: Context) -> bool:
        return released.wait(LIMIT_SECONDS)

    async def story() -> None:
        async with fake_engine() as engine, a_runner(app, engine.url):
            runner = await engine.accept()
            await runner.greet()
            taken = [runner.begin(body_of("grind")) for _ in range(2)]
            for _ in range(2):
                status, told = await runner.invoke(body_of("grind"))
                assert (status, "too many" in told["error"]) == (503, True)
            released.set()
            assert [status for status, _ in await asyncio.gather(*taken)] == [200, 200]
            assert (await runner.invoke(body_of("grind")))[0] == 200

    asyncio.run(asyncio.wait_for(story(), LIMIT_SECONDS))
    assert caplog.text.count("2 invokes are not answered yet; refusing more") == 1
